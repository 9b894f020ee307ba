"""What every `StorageRuntime` promises.

A runtime of yours is tested by pytest so::

    from tenuto.testing.runtime_contract import RuntimeContract


    class TestMine(RuntimeContract):
        def make_runtime(self, folder, settings):
            return MyRuntime(folder, settings.max_in_flight)
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from tenuto.errors import Cause, StoreError
from tenuto.testing.runtime_bench import WAIT_S, Bench
from tenuto.tiers.disk.runtime import (
    Accepted,
    Done,
    Failed,
    IoRequest,
    Memory,
    Op,
    Reason,
    Region,
    Rejected,
    RuntimeSettings,
    Short,
    StorageRuntime,
    move,
)

N_FILES = 500
DESCRIPTORS = 32
"""Files that are opened at most, of 500."""


class _Given:
    """What the tests start from."""

    settings = RuntimeSettings(max_open_files=DESCRIPTORS)
    n_many = 100_000
    """Chunks of a large run."""

    def make_runtime(self, folder: Path, settings: RuntimeSettings) -> StorageRuntime:
        """A new runtime whose files lie below `folder`, which is empty and yours."""
        raise NotImplementedError

    @pytest.fixture
    def runtime(self, tmp_path: Path) -> Iterator[StorageRuntime]:
        """One that is closed afterwards."""
        runtime = self.make_runtime(tmp_path, self.settings)
        yield runtime
        runtime.close()

    @pytest.fixture
    def bench(self, runtime: StorageRuntime) -> Bench:
        """It, with something in it."""
        return Bench(runtime)


class MovingContract(_Given):
    """Bytes arrive where they should."""

    def test_gives_back_every_bit_that_was_written(self, bench: Bench) -> None:
        """In one item, and in many of different lengths."""
        assert bench.moved([bench.request(Op.READ, 0, bench.n_chunks)]) == [Done(len(bench.data))]
        assert bytes(bench.buffer) == bench.data
        bench.clear()
        cuts = [0, 1, 3, 6, 7, 12, 16]
        ranges = list(pairwise(cuts))
        states = bench.moved([bench.request(Op.READ, first, stop - first) for first, stop in ranges])
        assert states == [Done((stop - first) * bench.chunk) for first, stop in ranges]
        assert bytes(bench.buffer) == bench.data

    def test_offsets_of_file_and_memory_are_apart(self, bench: Bench) -> None:
        """Chunk 11 of the file into chunk 2 of memory, and nothing beside it."""
        bench.moved([bench.request(Op.READ, 11, memory_offset=2 * bench.chunk)])
        wanted = bytearray(len(bench.data))
        wanted[2 * bench.chunk : 3 * bench.chunk] = bench.data[11 * bench.chunk : 12 * bench.chunk]
        assert bytes(bench.buffer) == bytes(wanted)

    def test_a_part_that_is_written_again_is_new_and_the_rest_as_before(self, bench: Bench) -> None:
        """Writes touch their range alone."""
        assert bench.moved([bench.request(Op.WRITE, 5, 2)]) == [Done(2 * bench.chunk)]  # zeros
        bench.fill()
        bench.moved([bench.request(Op.READ, 0, bench.n_chunks)])
        gone = [chunk for chunk in range(bench.n_chunks) if not bench.is_there(chunk)]
        assert gone == [5, 6]

    def test_items_end_in_any_order_and_each_gets_its_own_state(self, bench: Bench) -> None:
        """Shuffled, with one that fails in the middle of them."""
        order = Random(1).sample(range(bench.n_chunks), bench.n_chunks)
        (missing,) = bench.runtime.open_batch(["folder/nothing"])
        requests = [bench.request(Op.READ, chunk, file=missing if chunk == 7 else bench.file) for chunk in order]
        states = dict(zip(order, bench.moved(requests), strict=True))
        failed = states.pop(7)
        assert isinstance(failed, Failed)
        assert failed.cause is Cause.MISSING
        assert set(states.values()) == {Done(bench.chunk)}
        assert [chunk for chunk in range(bench.n_chunks) if not bench.is_there(chunk)] == [7]

    def test_a_write_that_fails_costs_no_other(self, bench: Bench) -> None:
        """Its file is gone."""
        (missing,) = bench.runtime.open_batch(["folder/nothing"])
        bench.fill()
        states = bench.moved([bench.request(Op.WRITE, 0), bench.request(Op.WRITE, 1, file=missing),
                              bench.request(Op.WRITE, 2)])  # fmt: skip
        assert [type(state) for state in states] == [Done, Failed, Done]

    def test_a_file_that_ends_early_is_short(self, bench: Bench) -> None:
        """What is there of it arrives; behind its end there is nothing."""
        bench.runtime.reserve("folder/file", 10 * bench.chunk)
        states = bench.moved([bench.request(Op.READ, 4, 8), bench.request(Op.READ, 12), bench.request(Op.READ, 2)])
        assert states == [Short(6 * bench.chunk), Short(0), Done(bench.chunk)]
        assert bench.is_there(2)

    def test_sizes_are_those_of_the_files_of_a_folder(self, bench: Bench) -> None:
        """Not of folders in it, or of what was deleted."""
        runtime = bench.runtime
        runtime.reserve("folder/other", 3 * bench.chunk)
        runtime.reserve("folder/inner/deep", bench.chunk)
        assert runtime.sizes("folder") == {"file": len(bench.data), "other": 3 * bench.chunk}
        runtime.delete("folder/other")
        runtime.delete("folder/never")
        assert runtime.sizes("folder") == {"file": len(bench.data)}
        assert runtime.sizes("nowhere") == {}

    def test_work_is_done_before_a_write_and_after_a_read(self, bench: Bench) -> None:
        """On whichever thread; memory is as it should be then."""
        seen: list[bool] = []
        bench.moved([bench.request(Op.WRITE, 4, work=lambda: bench.buffer.__setitem__(4 * bench.chunk, 7))])
        bench.clear()
        bench.moved([bench.request(Op.READ, 4, work=lambda: seen.append(bench.buffer[4 * bench.chunk] == 7))])
        assert seen == [True]


class RefusingContract(_Given):
    """What can't be is refused, or fails, by itself."""

    def test_what_is_not_aligned_is_refused(self, bench: Bench) -> None:
        """Offsets, lengths and addresses, each by itself; the others go on."""
        caps, chunk = bench.runtime.caps, bench.chunk
        for other in (
            {"offset": caps.io_alignment // 2},
            {"length": chunk - caps.io_alignment // 2},
            {"memory_offset": caps.memory_alignment // 2},
        ):
            assert bench.refused(bench.request(Op.READ, 0, **other)) is Reason.ALIGNMENT
        states = bench.moved([bench.request(Op.READ, 1, offset=512), bench.request(Op.READ, 2)])
        assert states == [Rejected(Reason.ALIGNMENT), Done(chunk)]

    def test_what_lies_outside_its_memory_is_refused(self, bench: Bench) -> None:
        """Nobody writes behind a region."""
        chunk = bench.chunk
        assert bench.refused(bench.request(Op.READ, 0, memory_offset=bench.n_chunks * chunk)) is Reason.OUTSIDE
        assert bench.refused(bench.request(Op.READ, 0, 2, memory_offset=15 * chunk)) is Reason.OUTSIDE
        assert bench.refused(bench.request(Op.READ, 0, memory_offset=-chunk)) is Reason.OUTSIDE
        assert bench.refused(bench.request(Op.READ, -1, memory_offset=0)) is Reason.OUTSIDE
        assert bench.refused(bench.request(Op.READ, 0, 0)) is Reason.SIZE

    def test_a_file_opened_for_reading_is_not_written(self, bench: Bench) -> None:
        """But read."""
        (file,) = bench.runtime.open_batch(["folder/file"], is_writable=False)
        assert bench.refused(bench.request(Op.WRITE, 0, file=file)) is Reason.READ_ONLY
        assert bench.moved([bench.request(Op.READ, 3, file=file)]) == [Done(bench.chunk)]
        assert bench.is_there(3)

    def test_what_was_closed_is_unknown(self, bench: Bench) -> None:
        """A file, a region; opened again they are new."""
        bench.runtime.close_batch([bench.file])
        assert bench.refused(bench.request(Op.READ, 0)) is Reason.UNKNOWN
        (bench.file,) = bench.runtime.open_batch(["folder/file"])
        assert bench.moved([bench.request(Op.READ, 0)]) == [Done(bench.chunk)]
        stranger = Region(1 << 40, bench.region.memory, bench.region.view)
        assert bench.refused(bench.request(Op.READ, 0, region=stranger)) is Reason.UNKNOWN

    def test_memory_registered_twice_is_one_region_until_it_was_given_up_twice(self, bench: Bench) -> None:
        """So that two users need not know of each other."""
        again = bench.runtime.register_memory(Memory.of(bench.buffer))
        assert again == bench.region
        bench.runtime.unregister_memory(again)
        assert bench.moved([bench.request(Op.READ, 0)]) == [Done(bench.chunk)]
        bench.runtime.unregister_memory(bench.region)
        assert bench.refused(bench.request(Op.READ, 0)) is Reason.UNKNOWN
        bench.region = bench.runtime.register_memory(Memory.of(bench.buffer))
        assert bench.moved([bench.request(Op.READ, 1)]) == [Done(bench.chunk)]

    def test_regions_may_lie_in_each_other(self, bench: Bench) -> None:
        """One user registers all of it, another a part."""
        part = bench.runtime.register_memory(Memory.of(bench.buffer[4 * bench.chunk : 8 * bench.chunk]))
        assert bench.moved([bench.request(Op.READ, 5, region=part, memory_offset=bench.chunk)]) == [Done(bench.chunk)]
        bench.runtime.unregister_memory(part)
        assert bench.moved([bench.request(Op.READ, chunk) for chunk in (4, 6)]) == [Done(bench.chunk)] * 2
        assert [bench.is_there(chunk) for chunk in range(4, 8)] == [True, True, True, False]

    def test_a_gpus_memory_or_stream_is_refused_without_the_capability(self, bench: Bench) -> None:
        """Never taken for an address of the host."""
        caps = bench.runtime.caps
        if not caps.has_device_memory:
            with pytest.raises(StoreError):
                bench.runtime.register_memory(Memory(1 << 40, bench.chunk, device=0))
        if not caps.has_device_execution:
            (state,) = bench.runtime.submit([bench.request(Op.READ, 0)], stream=object()).initial
            assert state == Rejected(Reason.STREAM)

    def test_work_that_fails_fails_its_item(self, bench: Bench) -> None:
        """A write does not happen then."""

        def refuse() -> None:
            raise StoreError(Cause.CORRUPT, "it is not what it should be")

        wanted = Failed(Cause.CORRUPT, "it is not what it should be")
        states = bench.moved([bench.request(op, 6, work=work) for op in Op for work in (refuse, None)][:3])
        assert states == [wanted, Done(bench.chunk), wanted]
        bench.fill()
        bench.moved([bench.request(Op.READ, 6)])
        assert bench.is_there(6)

    def test_a_bug_in_work_is_raised_to_whoever_waits(self, bench: Bench) -> None:
        """The runtime goes on."""
        submission = bench.runtime.submit([bench.request(Op.READ, 0, work=lambda: int("bug"))])
        with pytest.raises(ValueError, match="bug"):
            bench.runtime.wait(submission, WAIT_S)
        assert bench.moved([bench.request(Op.READ, 0)]) == [Done(bench.chunk)]


class BoundsContract(_Given):
    """Bounds hold, and time passes."""

    def test_a_wait_that_is_too_short_leaves_the_item_on_its_way(self, bench: Bench) -> None:
        """`poll` tells as much, at once; a later `wait` gets it."""
        gate = threading.Event()
        submission = bench.runtime.submit([bench.request(Op.READ, 0, work=lambda: bool(gate.wait(WAIT_S)))])
        with pytest.raises(StoreError) as caught:
            bench.runtime.wait(submission, 0.02)
        assert caught.value.cause is Cause.TIMEOUT
        assert bench.runtime.poll(submission) == (Accepted(),)
        gate.set()
        assert bench.runtime.wait(submission, WAIT_S) == (Done(bench.chunk),)
        assert bench.runtime.poll(submission) == (Done(bench.chunk),)

    def test_no_items_have_ended_already(self, bench: Bench) -> None:
        """Nor does what was refused keep anybody waiting."""
        assert bench.runtime.wait(bench.runtime.submit([]), 0.0) == ()
        states = bench.runtime.wait(bench.runtime.submit([bench.request(Op.READ, 0, 0)]), 0.0)
        assert states == (Rejected(Reason.SIZE),)

    @pytest.mark.parametrize("n_accepted", range(1, 9))
    def test_what_has_no_room_is_refused_from_any_index_on(self, tmp_path: Path, n_accepted: int) -> None:
        """The first are taken, the rest is `FULL`; when they have ended there is room again, and for writes always."""
        folder = tmp_path / "own"
        folder.mkdir()
        runtime = self.make_runtime(folder, RuntimeSettings(max_in_flight=n_accepted))
        bench = Bench(runtime)
        gate = threading.Event()
        requests = [bench.request(Op.READ, chunk, work=lambda: bool(gate.wait(WAIT_S))) for chunk in range(9)]
        submission = runtime.submit(requests)
        wanted = [Accepted()] * n_accepted + [Rejected(Reason.FULL)] * (9 - n_accepted)
        assert list(submission.initial) == wanted
        assert bench.refused(requests[0]) is Reason.FULL
        write = runtime.submit([bench.request(Op.WRITE, 12)])
        assert write.initial == (Accepted(),)
        gate.set()
        states = runtime.wait(submission, WAIT_S)
        assert list(states) == [Done(bench.chunk)] * n_accepted + wanted[n_accepted:]
        runtime.wait(write, WAIT_S)
        assert bench.moved(requests[:n_accepted]) == [Done(bench.chunk)] * n_accepted
        runtime.close()

    def test_only_what_was_refused_is_sent_again(self, tmp_path: Path) -> None:
        """By `move`, through a runtime with room for three."""
        folder = tmp_path / "own"
        folder.mkdir()
        runtime = self.make_runtime(folder, RuntimeSettings(max_in_flight=3))
        bench = Bench(runtime)
        n_done = [0] * bench.n_chunks

        def count(chunk: int) -> None:
            n_done[chunk] += 1

        requests = [bench.request(Op.READ, chunk, work=lambda chunk=chunk: count(chunk)) for chunk in range(16)]
        requests[5] = bench.request(Op.READ, 5, 0)
        states = move(runtime, requests, timeout_s=WAIT_S)
        assert states == [Done(bench.chunk) if at != 5 else Rejected(Reason.SIZE) for at in range(16)]
        assert n_done == [1] * 5 + [0] + [1] * 10
        runtime.close()

    def test_a_hundred_thousand_chunks_are_moved(self, bench: Bench) -> None:
        """Each of them, and every byte once."""
        random = Random(2)
        order = [random.randrange(bench.n_chunks) for _ in range(self.n_many)]
        order[: bench.n_chunks] = range(bench.n_chunks)
        states = move(bench.runtime, [bench.request(Op.READ, chunk) for chunk in order], timeout_s=240.0)
        assert len(states) == self.n_many
        assert set(states) == {Done(bench.chunk)}
        assert bytes(bench.buffer) == bench.data

    def test_five_hundred_files_take_few_descriptors(self, bench: Bench) -> None:
        """All can be read and written, twice, and keep their bytes apart."""
        before = _n_descriptors()
        names = [f"many/{number}" for number in range(N_FILES)]
        for name in names:
            bench.runtime.reserve(name, bench.chunk)
        files = bench.runtime.open_batch(names)
        bench.fill()

        def requests(op: Op, first: int, n: int) -> list[IoRequest]:
            return [
                bench.request(op, 0, file=files[at], memory_offset=at % 16 * bench.chunk)
                for at in range(first, min(first + n, N_FILES))
            ]

        states = move(bench.runtime, requests(Op.WRITE, 0, N_FILES), timeout_s=WAIT_S)
        assert set(states) == {Done(bench.chunk)}
        assert _n_descriptors() <= before + DESCRIPTORS * 4
        for first in range(0, N_FILES, 16):
            bench.clear()
            reads = requests(Op.READ, first, 16)
            assert set(bench.moved(reads)) == {Done(bench.chunk)}
            assert all(bench.is_there(chunk) for chunk in range(len(reads)))
        bench.runtime.close_batch(files)
        assert _n_descriptors() <= before + 1

    def test_threads_may_share_it(self, bench: Bench) -> None:
        """Each its own chunks, written and read at once."""
        bench.fill()
        faults: list[object] = []

        def work(number: int) -> None:
            mine = range(number, 16, 4)
            for op in (Op.WRITE, Op.READ) * 4:
                states = move(bench.runtime, [bench.request(op, chunk) for chunk in mine], timeout_s=WAIT_S)
                faults.extend(state for state in states if state != Done(bench.chunk))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert faults == []
        assert bytes(bench.buffer) == bench.data

    def test_a_closed_runtime_refuses_everything(self, bench: Bench) -> None:
        """Once and again; what it had closed stays closed, what was under way has ended."""
        submission = bench.runtime.submit([bench.request(Op.READ, chunk) for chunk in range(16)])
        bench.runtime.close()
        bench.runtime.close()
        assert set(bench.runtime.wait(submission, 0.0)) == {Done(bench.chunk)}
        assert bench.refused(bench.request(Op.READ, 0)) is Reason.CLOSED
        with pytest.raises(StoreError):
            bench.runtime.open_batch(["folder/file"])
        with pytest.raises(StoreError):
            bench.runtime.register_memory(Memory.of(bench.buffer))
        bench.runtime.unregister_memory(bench.region)


class RuntimeContract(MovingContract, RefusingContract, BoundsContract):
    """Subclass it, give `make_runtime`, and pytest runs the rest.

    ``make_runtime(folder, settings)`` gives a new runtime whose files lie below `folder`, which is empty and yours, by
    these `RuntimeSettings`: the tests count on `max_in_flight` and on `max_open_files`.
    """


def _n_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - no Path is wanted
