"""A made-up GPU: streams that run in a random legal order, over real memory.

Nothing runs by itself: operations are queued, and run when somebody looks (`query`), waits (`synchronize`) or lets them
(`Gpu.run_some`). A stream runs its own in order; which stream goes on next is drawn. Copies and kernels are queued
block by block, so that others can come between. As in CUDA, a wait is for the last record before it, and an event that
was never recorded has passed.
"""

import ctypes
import random
from collections import deque
from contextlib import contextmanager
from types import SimpleNamespace

import torch

from tenuto.memory.kernels.reference import TorchMover

NAMES = ("gathering", "scattering", "copying_out", "copying_in")


class Ticket:
    """One record of an event."""

    def __init__(self, stream):
        self.stream, self.is_done = stream, False


class Event:
    """`torch.cuda.Event` of a `Gpu`."""

    def __init__(self, gpu):
        self._gpu, self.ticket = gpu, None

    def record(self, stream):
        ticket = self.ticket = Ticket(stream)
        stream.put(lambda: setattr(ticket, "is_done", True))

    def query(self):
        self._gpu.run_some()
        return self.ticket is None or self.ticket.is_done

    def synchronize(self):
        while self.ticket is not None and not self.ticket.is_done:
            self._gpu.step()


class Stream:
    """`torch.cuda.Stream` of a `Gpu`."""

    def __init__(self, gpu, name):
        self.gpu, self.name, self.queue = gpu, name, deque()
        self.cuda_stream = len(gpu.streams)
        gpu.streams.append(self)

    def put(self, do):
        self.queue.append((None, do))

    def wait_event(self, event):
        if event.ticket is not None and (self.name, event.ticket.stream.name) not in self.gpu.forgotten:
            self.queue.append((event.ticket, lambda: None))

    @property
    def can_run(self):
        return bool(self.queue) and (self.queue[0][0] is None or self.queue[0][0].is_done)


class Gpu:
    """Streams, and what stands for torch and the driver. `forgotten`: (waiting, recording) stream pairs left out."""

    def __init__(self, seed, forgotten=()):
        self.rng = random.Random(seed)
        self.forgotten = set(forgotten)
        self.streams = []
        self.compute = self.current = Stream(self, "compute")
        names = iter(NAMES)
        self.torch = SimpleNamespace(
            cuda=SimpleNamespace(
                Event=lambda: Event(self), Stream=lambda *_, **__: Stream(self, next(names)), stream=self.use,
                current_stream=lambda _: self.current, mem_get_info=lambda _: (1 << 40, 1 << 40),
            ),
            empty=lambda n, dtype, pin_memory: torch.empty(n, dtype=dtype), zeros=torch.zeros,
            int32=torch.int32, uint8=torch.uint8,
        )  # fmt: skip

    @contextmanager
    def use(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def step(self):
        """Run one operation of a stream that can go on."""
        ready = [stream for stream in self.streams if stream.can_run]
        assert ready, "all streams wait: a deadlock"
        self.rng.choice(ready).queue.popleft()[1]()

    def run_some(self):
        for _ in range(self.rng.randrange(12)):
            if any(stream.can_run for stream in self.streams):
                self.step()

    def copy(self, targets, sources, sizes, stream):
        """The driver's."""
        for target, source, size in zip(*(array.tolist() for array in (targets, sources, sizes)), strict=True):
            self.streams[stream].put(lambda t=target, s=source, n=size: ctypes.memmove(t, s, n))

    def mover(self, kv):
        """A `BlockMover` whose kernels are torch's, a block at a time."""
        real = TorchMover(kv)

        def gather(pages, out, n_programs):
            for at in range(len(pages)):
                self.current.put(lambda at=at: real.gather(pages[at : at + 1], out[at : at + 1], n_programs))

        def scatter(pages, first, source, n_programs):
            for at in range(len(pages)):
                part = slice(at, at + 1)
                self.current.put(lambda p=part: real.scatter(pages[p], first[p], source[p], n_programs))

        return SimpleNamespace(gather=gather, scatter=scatter, warm_up=lambda: None)
