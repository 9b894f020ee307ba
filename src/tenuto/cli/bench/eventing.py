"""Events from a publisher to a reader in another process, over each way."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from tenuto.cli.bench.event_reader import Told
from tenuto.cli.bench.measured import Measured
from tenuto.cli.bench.progress import Bar
from tenuto.errors import TenutoError
from tenuto.events import BlockShape, Publisher, PublisherSettings, Source, make_sender, parse_address
from tenuto.pools.facts import Stored, TierKind
from tenuto.testing.nats_broker import NatsBroker, free_port
from tenuto.tokens import BlockHash, BlockKey

_PACE_S = 0.0005
_DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class EventSizes:
    """`n_events` over each way, in batches of `batch`, told in facts of as many; `n_single` in facts of one."""

    n_events: int = 1_000_000
    batch: int = 100
    n_single: int = 100_000
    most_behind: int = 100_000
    """The publisher is told no more while so many wait: no engine comes near."""


def measure_events(folder: Path, sizes: EventSizes, bar: Bar) -> Measured:
    """Each way: the reader is a process of its own, connected before the first event is told.

    `*_per_s`: events over the time from the first call of `publish` until the reader has checked the last. Their hashes
    are numbers, so it sees what is missing (`lost`, after replay) and whether all came in order (`is_in_order`: 1).
    `publish_us` is the mean of one call with one block, the worst there is, while the publisher's thread sends.
    `bytes_per_event`: batches as they are sent. `replayed`: gaps of readers that had had all before.
    """
    keys = _keys(sizes.n_events)
    gc.collect()
    gc.freeze()
    try:
        with NatsBroker(folder) as broker:
            urls = {
                "zmq": f"zmq://127.0.0.1:{free_port()}",
                "nats": broker.url("bench.core"),
                "jetstream": broker.url("bench.kept", "BENCH"),
            }
            told: dict[str, Told] = {}
            rates: dict[str, float] = {}
            for way, url in bar.over(urls.items(), "events", len(urls)):
                told[way], seconds = _run(url, keys, sizes)
                rates[way] = sizes.n_events / seconds
            publish_s = _publish_seconds(f"zmq://127.0.0.1:{free_port()}", keys[: sizes.n_single])
    finally:
        gc.unfreeze()
    figures = {
        "lost": sum(sizes.n_events - heard.n_events for heard in told.values()),
        "is_in_order": int(all(heard.is_in_order for heard in told.values())),
        **{f"{way}_per_s": round(rate) for way, rate in rates.items()},
        "publish_us": round(1e6 * publish_s, 3),
        "bytes_per_event": round(max(heard.n_bytes for heard in told.values()) / sizes.n_events, 1),
        "replayed": sum(heard.n_gaps for heard in told.values()),
    }
    details: dict[str, Any] = {"sizes": asdict(sizes), "readers": {way: asdict(heard) for way, heard in told.items()}}
    return Measured(figures, versions=_versions(), details=details)


def _keys(n: int) -> list[BlockKey]:
    """Blocks whose hashes are the numbers from 0 on; chains of 100."""
    hashes = [BlockHash(number.to_bytes(16, "big")) for number in range(n)]
    return [BlockKey(block, hashes[max(i - 1, 0)], hashes[i - i % 100]) for i, block in enumerate(hashes)]


def _publisher(url: str, keys: Sequence[BlockKey], batch: int) -> Publisher:
    publisher = Publisher(
        make_sender(parse_address(url)), Source("node", "bench", 0, bytes(16)), BlockShape(8 << 20, 64),
        lambda: [Stored(TierKind.HOST, tuple(keys))], PublisherSettings(batch_events=batch, idle_s=0.1),
    )  # fmt: skip
    publisher.start()
    return publisher


def _run(url: str, keys: Sequence[BlockKey], sizes: EventSizes) -> tuple[Told, float]:
    """What the reader has heard, and the seconds it took."""
    command = [sys.executable, "-m", "tenuto.cli.bench.event_reader", url, str(sizes.n_events)]
    publisher = _publisher(url, keys, sizes.batch)
    reader = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert reader.stdout is not None
        if reader.stdout.readline().strip() != b"ready":
            raise TenutoError("the reader did not come up")
        facts = [[Stored(TierKind.HOST, tuple(keys[at : at + sizes.batch]))] for at in range(0, len(keys), sizes.batch)]
        until = time.monotonic() + _DEADLINE_S
        began = time.monotonic()
        for some in facts:
            publisher.publish(some)
            while publisher.n_behind > sizes.most_behind and time.monotonic() < until:
                time.sleep(_PACE_S)
        said, _ = reader.communicate(timeout=max(1.0, until - time.monotonic()))
        told = msgspec.json.decode(said, type=Told)
        return told, told.ended - began
    except subprocess.TimeoutExpired:
        raise TenutoError(f"the reader of {url} did not hear all within {_DEADLINE_S:.0f} s") from None
    finally:
        reader.kill()
        reader.wait()
        publisher.close()


def _publish_seconds(url: str, keys: Sequence[BlockKey]) -> float:
    """Mean of one call with one block, in steps of a hundred as an engine has them."""
    publisher = _publisher(url, (), 100)
    facts = [[Stored(TierKind.HOST, (key,))] for key in keys]
    seconds = 0.0
    for at in range(0, len(facts), 100):
        some = facts[at : at + 100]
        began = time.perf_counter()
        for fact in some:
            publisher.publish(fact)
        seconds += time.perf_counter() - began
        time.sleep(_PACE_S)
    publisher.close()
    return seconds / len(facts)


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("pyzmq", "nats-py", "msgspec")}
