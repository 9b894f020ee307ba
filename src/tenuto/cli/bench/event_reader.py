"""The reader of `tenuto bench events`: a process of its own, which checks every event."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import msgspec
import numpy as np

from tenuto.events import Batch, encode, subscribe


@dataclass(slots=True)
class Told:
    """What came. `ended`: when the last event was checked, on the machine's monotonic clock."""

    n_events: int = 0
    n_bytes: int = 0
    n_batches: int = 0
    is_in_order: bool = True
    n_gaps: int = 0
    ended: float = 0.0


def read(url: str, n_events: int) -> Told:
    """Hear that many events of a publisher whose blocks are called 0, 1, 2, ..."""
    told = Told()
    with subscribe(url) as events:
        for message in events:
            if not isinstance(message, Batch):
                told.is_in_order = False  # a snapshot: something was lost
                break
            if not message.groups:
                if not told.n_batches and message.first == 1:
                    print("ready", flush=True)
                    told.n_batches = 1
                continue
            for group in message.groups:
                numbers = np.frombuffer(group.hashes, ">u8").reshape(-1, 2)[:, 1]
                told.is_in_order &= bool(
                    (numbers == np.arange(told.n_events, told.n_events + len(numbers), dtype=np.uint64)).all()
                )
                told.n_events += len(numbers)
            told.n_batches += 1
            told.n_bytes += len(encode(message))
            if told.n_events >= n_events:
                break
        told.ended = time.monotonic()
        told.n_gaps = events.n_gaps
    return told


if __name__ == "__main__":
    print(msgspec.json.encode(read(sys.argv[1], int(sys.argv[2]))).decode())
