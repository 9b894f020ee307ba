"""An engine's thread keeps the interpreter while layers are read: by the kernel's queue more than beside threads."""

import resource
import threading
import time
from dataclasses import replace
from statistics import fmean, median

import pytest
import torch

from tenuto.memory.layout import Dtype, ExtentLayout
from tenuto.tiers.disk.store import open_files
from tenuto.tiers.store import SlotIO
from tests.tiers.disk_fixtures import Disk, block

pytestmark = pytest.mark.perf

LAYOUT = ExtentLayout(32, (0, 8), (0, 8), 256, 256, Dtype.BFLOAT16)
"""Segments of 256 KiB, as those of a layer."""
N_BLOCKS, N_ROUNDS, ROUND_S = 32, 5, 0.4
N_OPS = 50
PAUSE_S = 0.003
SEEN = 0.5
"""So often an engine waits beside threads at least, a burst of operations, where it can be seen."""


class Engine:
    """A thread that launches tiny operations, each of which gives the interpreter away for a moment, and rests."""

    def __init__(self):
        self.n_waits = []
        """Of each burst of operations: how often it had to wait until it had the interpreter back."""
        self._is_ending = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self):
        self._is_ending = True
        self._thread.join()

    def _run(self):
        numbers = torch.zeros(4)
        while not self._is_ending:
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
            for _ in range(N_OPS):
                sum(range(60))  # Python between them, as an engine's
                torch.add(numbers, 1, out=numbers)
            self.n_waits.append(resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before)
            time.sleep(PAUSE_S)


class Reader:
    """A store with blocks, read layer by layer."""

    def __init__(self, root, *, is_queued):
        def opened(folders, settings):
            return open_files(folders, replace(settings, is_queued=is_queued))

        self.disk = Disk(
            root, layout=LAYOUT, n_arena=N_BLOCKS, file_slots=N_BLOCKS, capacity=16 * N_BLOCKS * LAYOUT.extent_bytes,
            n_threads=None, runtime=opened,
        )  # fmt: skip
        self.disk.store.buffers.attach(self.disk.arena.view)
        self.disk.wait_slots(N_BLOCKS)
        assert self.disk.write(*((slot, slot) for slot in range(N_BLOCKS))) == []
        self.items = [SlotIO(slot, block(slot).key, self.disk.arena.slot(slot)) for slot in range(N_BLOCKS)]

    def waits_of(self, engine):
        """How often a burst of the engine's has to wait while layers are read, on average."""
        engine.n_waits.clear()
        began = time.monotonic()
        while time.monotonic() < began + ROUND_S:
            for layer in range(8):
                assert self.disk.store.read(self.items, layers=(layer, layer + 1)) == []
        return fmean(engine.n_waits or [0])


def test_an_engines_thread_waits_less_than_half_as_often_beside_the_kernels_queue(tmp_path):
    """How often is counted, not how long: on a busy machine everybody waits for the processor."""
    ways = [Reader(tmp_path / name, is_queued=name == "queue") for name in ("queue", "threads")]
    engine = Engine()
    try:
        if not ways[0].disk.store.runtime.caps.is_queued:
            pytest.skip("no kernel AIO here")
        seen = [[way.waits_of(engine) for way in ways] for _ in range(N_ROUNDS)]
    finally:
        engine.close()
        for way in ways:
            way.disk.close()
    by_queue, by_threads = (median(column) for column in zip(*seen, strict=True))
    print(f"waits a burst of {N_OPS} operations: {by_queue:.2f} by the queue, {by_threads:.2f} by threads")
    if by_threads < SEEN:
        pytest.skip(f"other processes keep the threads away: the engine waits {by_threads:.2f} times a burst")
    assert by_queue <= by_threads / 2
