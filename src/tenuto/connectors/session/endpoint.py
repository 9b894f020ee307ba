"""Our own Prometheus port, served from the leader's process."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tenuto.errors import ConfigError
from tenuto.metrics import SECONDS_BUCKETS, TABLE, Kind, Metric, Recorder, parse_series

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

logger = logging.getLogger(__name__)

SETTING = "runtime.metrics_port"
_JOIN_S = 5.0
_BOUNDS = [*map(str, SECONDS_BUCKETS), "+Inf"]


class MetricsEndpoint:
    """Serves a recorder's metrics at http://HOST:`port`/metrics until it is closed; each series has the label `engine`.

    Raises `ConfigError` when prometheus_client is not installed. A port that can't be had is logged, no more.
    """

    def __init__(self, port: int, recorder: Recorder, engine: str) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError:
            raise ConfigError(
                f"{SETTING}: {port} needs prometheus_client, which is not installed; "
                "pip install prometheus-client, or give 0"
            ) from None
        registry = CollectorRegistry()
        registry.register(RecorderCollector(recorder, engine))
        self._server = None
        try:
            self._server, self._thread = start_http_server(port, registry=registry)
        except (OSError, OverflowError) as error:
            logger.warning("tenuto: %s: no metrics at port %d (%s); serving goes on without", SETTING, port, error)
        else:
            logger.info("tenuto: metrics at port %d", port)

    def close(self) -> None:
        """Free the port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(_JOIN_S)
            self._server = None


class RecorderCollector:
    """A recorder's snapshot as prometheus_client's families, taken anew at each scrape."""

    def __init__(self, recorder: Recorder, engine: str) -> None:
        self._recorder = recorder
        self._engine = engine

    def collect(self) -> Iterable[Family]:
        """One family for each metric of the table, with the series there are so far."""
        families = {metric.name: _family(metric) for metric in TABLE}
        now = self._recorder.snapshot()
        for name, value in now.values.items():
            metric, labels = parse_series(name)
            families[metric.name].add_metric([self._engine, *labels], value)
        for name, (total, *counts) in now.histograms.items():
            metric, labels = parse_series(name)
            cumulated = list(zip(_BOUNDS, itertools.accumulate(counts), strict=True))
            families[metric.name].add_metric([self._engine, *labels], cumulated, total)
        return families.values()


def _family(metric: Metric) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds = {Kind.COUNTER: CounterMetricFamily, Kind.GAUGE: GaugeMetricFamily, Kind.HISTOGRAM: HistogramMetricFamily}
    return kinds[metric.kind](metric.name, metric.help, labels=["engine", *metric.labels])
