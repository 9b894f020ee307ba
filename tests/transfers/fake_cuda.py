"""A made-up GPU: streams that run in a random legal order, over real memory.

Nothing runs by itself: operations are queued, and go on a piece at a time when somebody calls, waits or pauses. A
stream runs its operations in order; the pieces of one (rows of a kernel, parts of a batch of copies) in any. Which
stream goes on is drawn, and each has a speed of its own. As in CUDA, a wait is for the last record before it, and an
event that was never recorded has passed. Memory that was dropped is overwritten as soon as torch's allocators would
give it to others: in the order of the stream that it was made on, pinned memory when its copies by torch have ended.

Of torch's operations, fills and copies of what `empty` and `zeros` gave are queued; any other runs at once.
"""

import ctypes
import math
import random
from collections import deque
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tenuto.memory.driver import DriverError
from tests.transfers.fake_threads import Threads

ROTTEN = 0x6B
"""What dropped memory is overwritten with."""
PIECE_S = 1e-4
PIECES = 24
"""At most so many has a batch of copies."""


class WrongBytes(BaseException):
    """Somebody read what is not there, no longer or not yet. No `except Exception` keeps it from the test."""


class Ticket:
    """One record of an event."""

    def __init__(self):
        self.is_done = False

    def end(self):
        self.is_done = True


class Event:
    """`torch.cuda.Event`."""

    def __init__(self, gpu, **_):
        self._gpu, self._ticket = gpu, None

    def record(self, stream=None):
        ticket = self._ticket = Ticket()
        (stream or self._gpu.current).put([ticket.end])

    def wait(self, stream=None):
        (stream or self._gpu.current).wait_event(self)

    def query(self):
        self._gpu.tick()
        return self._ticket is None or self._ticket.is_done

    def synchronize(self):
        ticket = self._ticket
        self._gpu.threads.pause(lambda: ticket is None or ticket.is_done)


class Stream:
    """`torch.cuda.Stream`. `queue`: (ticket to wait for, pieces that are left)."""

    def __init__(self, gpu, *_, **__):
        self._gpu, self.queue = gpu, deque()
        self.speed = 10 ** gpu.rng.uniform(-1.5, 0)
        self.cuda_stream = len(gpu.streams)
        gpu.streams.append(self)

    def put(self, pieces):
        """An operation: pieces that run in any order."""
        pieces = list(pieces)
        self._gpu.tick()
        self._gpu.rng.shuffle(pieces)
        if pieces:
            self.queue.append((None, pieces))

    def wait_event(self, event):
        self._gpu.tick()
        if event._ticket is not None:
            self.queue.append((event._ticket, []))

    def wait_stream(self, stream):
        self.wait_event(stream.record_event())

    def record_event(self, event=None):
        event = event or Event(self._gpu)
        event.record(self)
        return event

    def query(self):
        self._gpu.tick()
        return not self.queue

    def synchronize(self):
        self.record_event().synchronize()

    @property
    def can_run(self):
        return bool(self.queue) and (self.queue[0][0] is None or self.queue[0][0].is_done)

    def run(self):
        """A piece of the first operation."""
        _, pieces = self.queue[0]
        piece = pieces.pop() if pieces else None
        if not pieces:
            self.queue.popleft()
        if piece is not None:
            piece()


class Gpu:
    """Streams, memory, kernels, and what stands for torch, threads, the clock and the driver."""

    def __init__(self, seed, fault_rate=0.0):
        self.rng = random.Random(seed)
        self.fault_rate = fault_rate
        self.clock_s = 0.0
        self.threads = Threads(self.rng, self.step)
        self.streams = []
        self.compute = self._last = Stream(self)
        self._using = {}  # by thread: the stream it has chosen
        self._wrong = None
        self._pace = self.rng.choice([1, 6, 20])  # pieces that run while somebody calls
        self._buffers, self._held = [], []
        self._memory = type("Memory", (_Memory,), {"gpu": self})
        self.torch = _Torch(self)

    @property
    def current(self):
        """The running thread's stream."""
        return self._using.get(self.threads.running, self.compute)

    @contextmanager
    def use(self, stream):
        thread, before = self.threads.running, self.current
        self._using[thread] = stream
        try:
            yield
        finally:
            self._using[thread] = before

    def step(self):
        """A piece of a stream that can go on, often the last one's; whether there was one."""
        ready = [stream for stream in self.streams if stream.can_run]
        if not ready:
            return False
        if self._last not in ready or self.rng.random() < 0.3:
            self._last = self.rng.choices(ready, [stream.speed for stream in ready])[0]
        self.clock_s += PIECE_S
        if self._wrong is not None:  # what unwinds now waits for nothing
            raise self._wrong
        try:
            self._last.run()
        except WrongBytes as error:
            self._wrong = error
            raise
        return True

    def tick(self):
        """What happens while somebody calls: some pieces, and perhaps another thread's turn."""
        if self.rng.random() < 0.5:
            for _ in range(int(self.rng.expovariate(1 / self._pace))):
                if not self.step():
                    break
        if self.rng.random() < 0.15:
            self.threads.pause()

    def sleep(self, seconds):
        """Pieces run meanwhile."""
        until_s = self.clock_s + seconds
        self.threads.pause()
        while self.clock_s < until_s and self.step():
            if self.rng.random() < 0.3:
                self.threads.pause()
        self.clock_s = max(self.clock_s, until_s)

    def copy(self, targets, sources, sizes, stream):
        """The driver's: copies in no order among themselves, each perhaps in two parts. A fault leaves some queued."""
        moves = []
        for target, source, size in zip(*(np.asarray(a).tolist() for a in (targets, sources, sizes)), strict=True):
            at = self.rng.randrange(size) if self.rng.random() < 0.2 else 0
            moves += [(target, source, at)] * bool(at) + [(target + at, source + at, size - at)]
        self.rng.shuffle(moves)
        is_fault = self.rng.random() < self.fault_rate
        if is_fault:
            moves = moves[: self.rng.randint(0, len(moves))]
        step = math.ceil(len(moves) / PIECES) or 1
        self.streams[stream].put(partial(_move, moves[at : at + step]) for at in range(0, len(moves), step))
        if is_fault:
            raise DriverError("a copy", 1, "made up")

    def empty(self, *size, dtype=torch.float32, device=None, pin_memory=False, fill=ROTTEN):
        """Torch's, of memory that a kernel or the wire reaches."""
        size = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
        buffer = np.full(math.prod(size) * dtype.itemsize + 16, fill, np.uint8)
        self._buffers.append(buffer)  # never given back: what runs later must not hit memory of others
        plain = torch.from_numpy(buffer[-buffer.ctypes.data % 16 :][: buffer.size - 16])
        storage = StorageWeakRef(plain.untyped_storage())
        self._held.append((storage, buffer, None if pin_memory else self.current, []))
        self._collect()
        return plain.view(dtype).view(size).as_subclass(self._memory)

    def zeros(self, *size, **options):
        """Torch's: a kernel makes them so, on the stream in use."""
        made = self.empty(*size, **options)
        if not options.get("pin_memory"):
            made.zero_()
        return made

    def copy_tensor(self, target, source):
        """As `Tensor.copy_` without waiting."""
        assert target.is_contiguous()
        assert source.is_contiguous()
        assert target.nbytes == source.nbytes
        ticket = Ticket()
        for storage, _, stream, tickets in self._held:
            if stream is None and storage == StorageWeakRef(source.untyped_storage()):
                tickets.append(ticket)
        self.current.put([partial(ctypes.memmove, target.data_ptr(), source.data_ptr(), target.nbytes)])
        self.current.put([ticket.end])

    def _collect(self):
        """Overwrite what was dropped."""
        for held in [held for held in self._held if held[0].expired()]:
            _, buffer, stream, tickets = held
            if stream is not None:
                stream.queue.append((None, [partial(buffer.fill, ROTTEN)]))
            elif all(ticket.is_done for ticket in tickets):
                buffer.fill(ROTTEN)
            else:
                continue
            self._held.remove(held)

    def mover(self, kv, *_, **__):
        """A `BlockMover` whose programs move a page of a layer at a time."""
        return _Mover(self, kv)

    def drain(self):
        while any(stream.queue for stream in self.streams):
            self.threads.pause()
            self.step()


class _Torch:
    """Torch, with this GPU."""

    def __init__(self, gpu):
        self.cuda = _Cuda(gpu)
        self.empty, self.zeros = gpu.empty, gpu.zeros

    def __getattr__(self, name):
        return getattr(torch, name)


class _Cuda:
    """`torch.cuda`."""

    def __init__(self, gpu):
        self.Event, self.Stream, self.stream = partial(Event, gpu), partial(Stream, gpu), gpu.use
        self.current_stream = lambda *_: gpu.current
        self.mem_get_info = lambda *_: (1 << 40, 1 << 40)
        self.synchronize = lambda *_: gpu.drain()


class _Memory(torch.Tensor):
    """Pinned or a GPU's."""

    def to(self, *_, non_blocking=False, **__):
        there = self.gpu.empty(*self.shape, dtype=self.dtype)
        there.copy_(self, non_blocking=non_blocking)
        return there

    def copy_(self, source, non_blocking=False):
        self.gpu.copy_tensor(self, source)
        if not non_blocking:
            self.gpu.current.synchronize()
        return self

    def fill_(self, value):
        assert self.is_contiguous()
        self.gpu.current.put([partial(_bytes_at(self.data_ptr(), self.nbytes).fill, value)])
        return self

    def zero_(self):
        return self.fill_(0)


class _Mover:
    """By the extent's format alone."""

    def __init__(self, gpu, kv):
        self._gpu, self._kv = gpu, kv
        self._rows = rows_of(kv)

    def gather(self, pages, out, n_programs, layers=None):
        self._launch(pages, None, out, n_programs, layers)

    def scatter(self, pages, first, source, n_programs, layers=None):
        self._launch(pages, first, source, n_programs, layers)

    def warm_up(self):
        """Nothing to compile."""

    def _launch(self, pages, first, payloads, n_programs, layers):
        """As a kernel: it keeps nothing alive, and reads its tables when it runs. Rows hold these layers alone."""
        assert n_programs >= 1
        assert pages.is_contiguous()
        assert payloads.shape[0] >= len(pages)
        n, width = pages.shape
        table = _bytes_at(pages.data_ptr(), 4 * n * width).view(np.int32).reshape(n, width)
        left_alone = None if first is None else _bytes_at(first.data_ptr(), 4 * n).view(np.int32)
        start, stop = layers or (0, self._kv.layout.n_layers)
        size, stride = (stop - start) * self._kv.layout.segment_bytes, payloads.stride(0)
        rows = [_bytes_at(payloads.data_ptr() + at * stride, size) for at in range(n)]
        step = self._gpu.rng.choice([1, width])
        self._gpu.current.put([
            partial(
                self._program, table[block], left_alone, rows, block, (start, layer), range(at, min(at + step, width))
            )
            for block in range(n) for layer in range(start, stop) for at in range(0, width, step)
        ])  # fmt: skip

    def _program(self, table, left_alone, rows, block, start_layer, pages):
        layout, n_tokens = self._kv.layout, self._kv.kernel_page_tokens
        start, layer = start_layer
        segment = rows[block][(layer - start) * layout.segment_bytes :][: layout.n_heads * layout.run_bytes]
        runs = segment.reshape(layout.n_heads, layout.n_planes, layout.block_tokens, -1)
        for at in pages:
            if left_alone is not None and at < left_alone[block]:
                continue
            page = int(table[at])
            if not 0 <= page < self._kv.n_kernel_pages:
                raise WrongBytes(f"a kernel was told of page {page:#x}")
            for plane, there in enumerate(self._rows[layer]):
                part = runs[:, plane, at * n_tokens : (at + 1) * n_tokens]
                if left_alone is None:
                    part[:] = there[page]
                else:
                    there[page] = part


def rows_of(kv):
    """By layer and plane, an engine's memory: uint8 ``(kernel pages, heads, tokens, row_bytes)``."""
    return [
        [plane.view(torch.uint8).numpy() for group in layer for plane in group.unbind(0)] for layer in kv.views
    ]  # fmt: skip


def _move(moves):
    for move in moves:
        ctypes.memmove(*move)


def _bytes_at(address, n_bytes):
    return np.frombuffer((ctypes.c_uint8 * n_bytes).from_address(address), np.uint8)
