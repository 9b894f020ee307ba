"""Made-up looks at engines, for the frames of `tenuto top`."""

from tenuto import metrics
from tenuto.cli.top.looks import EventsLook, EventsSeen, Holding, MetricsLook, MetricsSeen, Seen, WorkerLook
from tenuto.metrics import series

NOW = 1000.0
MIB = 1 << 20
CHAINS = (("a3f09c" + 26 * "0", 64), ("00ff00" + 26 * "1", 51))


def worker(scale=1, heard_s=NOW - 0.2, rank=0, name="llama-0", n_lost=0, more=()):
    holdings = (
        Holding("host", "", 1024 * scale, 2048 * MIB * scale, 100 * scale, 50 * scale, 37, CHAINS),
        Holding("disk", "", 9210 * scale, 18420 * MIB * scale, 9300 * scale, 90 * scale, 412, CHAINS[:1]),
        *more,
    )
    return WorkerLook("node", name, rank, heard_s, 0.012, 0, n_lost, holdings)


def events(*workers, before=None, **more):
    """Two looks, two seconds apart."""
    now = EventsLook(NOW, workers or (worker(),), 0, 1, 1)
    old = EventsLook(NOW - 2.0, before or (), 0, 1, 1)
    return EventsSeen("zmq://127.0.0.1:5557", now, old, is_settled=True, **more)


def values(n):
    """After `n` thousand tokens, of which the engine had a tenth, host memory four and the disk one."""
    host, disk = ("host",), ("disk",)
    found = {
        (metrics.ASKED_TOKENS, ()): 1000 * n, (metrics.ENGINE_TOKENS, ()): 100 * n,
        (metrics.LOADED_TOKENS, host): 400 * n, (metrics.LOADED_TOKENS, disk): 100 * n,
        (metrics.LOADS, ()): 10 * n, (metrics.REQUESTS, ()): 3, (metrics.BACKLOG_BLOCKS, ()): 12,
        (metrics.SKIPPED_BLOCKS, ("host_full",)): 5, (metrics.PREFILL_RATE, ()): 12000,
        (metrics.TRANSFERRED_BYTES, ("device_to_host",)): 512 * MIB * n,
        (metrics.TRANSFERRED_BLOCKS, ("device_to_host",)): 64 * n,
        (metrics.TRANSFERRED_BYTES, ("host_to_disk",)): 0, (metrics.IN_FLIGHT, ("device_to_host",)): 2,
        (metrics.TIER_BLOCKS, host): 1024, (metrics.TIER_BYTES, host): 2048 * MIB,
        (metrics.TIER_CAPACITY_BYTES, host): 4096 * MIB, (metrics.TIER_LEASED_BLOCKS, host): 64,
        (metrics.TIER_BYTES, disk): 0, (metrics.TIER_CAPACITY_BYTES, disk): 0,
        (metrics.EVICTED_BLOCKS, host): 20 * n,
        (metrics.EVENTS, ()): 100 * n, (metrics.EVENT_LAG_SECONDS, ()): 0.004,
    }  # fmt: skip
    return {series(metric, *labels): float(value) for (metric, labels), value in found.items()} | {
        "tenuto_load_seconds_sum host": 0.04 * n, "tenuto_load_seconds_count host": 10.0 * n,
        "tenuto_transfer_seconds_sum device_to_host": 0.25 * n,
        "tenuto_transfer_seconds_count device_to_host": 10.0 * n,
    }  # fmt: skip


def endpoint(now, before=None, fault=""):
    looks = [MetricsLook(at_s, 0.004, {("tiny", "0"): found}) if found else None
             for at_s, found in ((NOW, now), (NOW - 2.0, before))]  # fmt: skip
    return MetricsSeen("http://127.0.0.1:9400/metrics", *looks, fault)


def seen(*sources):
    return Seen(
        NOW,
        tuple(source for source in sources if isinstance(source, EventsSeen)),
        tuple(source for source in sources if isinstance(source, MetricsSeen)),
    )
