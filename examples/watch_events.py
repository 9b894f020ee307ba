"""What becomes of an engine's blocks, as it happens: a line for each batch, and where a prompt would be found.

python watch_events.py zmq://127.0.0.1:5557   follows the engine whose events.url that is, until Ctrl-C
python watch_events.py FOLDER                 opens a small cache of its own, with its disk there, and watches it
"""

import sys
import threading
import time
from collections import Counter

import numpy as np

import tenuto
from tenuto.events import Batch, Index, Kind, Message, subscribe

URL = "zmq://127.0.0.1:15557"


def describe(message: Message) -> str:
    """Who tells, and how many blocks came or went in each tier."""
    who = f"{message.source.node}/{message.source.worker}/{message.source.rank}"
    if not isinstance(message, Batch):
        return f"{who}  snapshot, part {message.part}: {sum(group.n_events for group in message.groups)} blocks"
    counts = Counter()
    for event in message.events():
        counts[f"{event.kind.name.lower()} {event.tier.value}"] += 1
    told = ", ".join(f"{n} {what}" for what, n in counts.items()) or "nothing new"
    return f"{who}  #{message.first}: {told}"


def watch(url: str, seconds: float) -> Index:
    """Keep an index of all publishers at a URL."""
    index = Index()
    until = time.monotonic() + seconds
    with subscribe(url) as events:
        while (left := until - time.monotonic()) > 0:
            message = events.next(min(left, 1.0))
            if message is None:
                continue
            index.take(message)
            print(f"{describe(message)}  ({len(index)} in all)")
            if isinstance(message, Batch) and any(group.kind == Kind.LOST for group in message.groups):
                print("  the publisher had no room for some: a snapshot follows")
    for place, blocks in index.places.items():
        chains = Counter(prefix for _, prefix in blocks.values())
        print(f"{place.worker} {place.tier.value}: {len(blocks)} blocks of {len(chains)} prompts")
    return index


def live(folder: str, done: threading.Event) -> None:
    """A cache whose device has room for one prompt of four blocks, and its host memory for a few."""
    layout = tenuto.Layout("contiguous", 4, n_layers=2, outer_dim=2, page_tokens=16, inner_dim=64, dtype="float32")
    device = np.zeros(layout.buffer_bytes, np.uint8)
    settings = {
        "tiers.host.capacity": "384 KiB", "tiers.disk.path": folder, "tiers.disk.capacity": "16 MiB",
        "events.url": URL, "events.worker": "example",
    }  # fmt: skip
    with tenuto.open_cache(layout, model="demo", buffer=device, settings=settings) as cache:
        for start in range(0, 1024, 64):
            with cache.allocate(4) as blocks:
                blocks.apply(range(start, start + 64))
                blocks.register().release()
            time.sleep(0.05)
        cache.flush()
        done.wait(10.0)


def main() -> None:
    """Follow an engine, or a cache of our own."""
    where = sys.argv[1] if len(sys.argv) > 1 else sys.exit("Give a URL, or a folder: python watch_events.py FOLDER")
    if "://" in where:
        watch(where, float("inf"))
        return
    done = threading.Event()
    engine = threading.Thread(target=live, args=(where, done))
    engine.start()
    index = watch(URL, 3.0)
    done.set()
    engine.join()
    assert any(place.tier.value == "disk" for place in index.places), "nothing was told"


if __name__ == "__main__":
    main()
