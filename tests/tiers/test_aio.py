"""The kernel's queue: what it refuses, takes in part, or never ends; by a made-up kernel where the real one won't."""

import ctypes
import errno
import logging
import os
import platform
import struct
import threading
from pathlib import Path

import pytest

from tenuto.errors import Cause
from tenuto.testing.runtime_bench import Bench
from tenuto.tiers.disk.runtime import Accepted, Done, Failed, Op, RuntimeSettings, Short, aio, books, move, open_runtime
from tenuto.tiers.disk.runtime.aio import WOKEN, Aio, Command
from tests.tiers.disk_fixtures import wait_until

pytestmark = pytest.mark.unit

UNIT = 4096
SETUP, DESTROY, GET, SUBMIT = aio._NUMBERS.get(platform.machine(), (0, 1, 2, 3))
COMMAND = struct.Struct("=QQHHIQQqQQ")
PREAD, PWRITE, PREADV, PWRITEV = 0, 1, 7, 8


class Kernel:
    """Runs commands as they are taken. Words of memory are read and written as the real one does.

    `refuse`: the error of the n-th command that it takes or refuses; `most`: so many are taken a call; `result`: what a
    command's result is instead; `gate`: while cleared no command ends.
    """

    def __init__(self, refuse=None, most=1000, result=lambda n_bytes: n_bytes):
        self.refuse = dict(refuse or {})
        self.most = most
        self.result = result
        self.gate = threading.Event()
        self.gate.set()
        self.n_seen = self.n_destroyed = self.n_submits = 0
        self.commands = []
        self._changed = threading.Condition()
        self._events = {}  # of each queue

    def __call__(self, number, *args):
        return {SETUP: self._setup, DESTROY: self._destroy, GET: self._get, SUBMIT: self._submit}[number](*args)

    def open_gate(self):
        with self._changed:
            self.gate.set()
            self._changed.notify_all()

    def _setup(self, n_events, address):
        ctypes.c_uint64.from_address(address).value = context = 77 + len(self._events)
        self._events[context] = []
        return 0

    def _destroy(self, context):
        assert context in self._events
        self.n_destroyed += 1
        return 0

    def _submit(self, context, n, pointers):
        assert context in self._events
        self.n_submits += 1
        for index in range(min(n, self.most)):
            command = COMMAND.unpack(ctypes.string_at(ctypes.c_uint64.from_address(pointers + 8 * index).value, 64))
            if command[0] != WOKEN:
                if (error := self.refuse.get(self.n_seen, 0)) and index:
                    return index
                self.n_seen += 1
                if error:
                    del self.refuse[self.n_seen - 1]
                    return -error
            self._run(context, *command[:8])
        return min(n, self.most)

    def _run(self, context, token, _, code, __, fd, address, n, offset):
        parts = [(address, n)]
        if code in (PREADV, PWRITEV):
            words = (ctypes.c_uint64 * (2 * n)).from_address(address)
            parts = list(zip(words[::2], words[1::2], strict=True))
        is_write = code in (PWRITE, PWRITEV)
        result = 0
        if token != WOKEN:
            self.commands.append(("write" if is_write else "read", offset))
            buffers = [(ctypes.c_ubyte * n_bytes).from_address(start) for start, n_bytes in parts]
            result = (os.pwritev if is_write else os.preadv)(fd, buffers, offset)
            result = self.result(result)
        with self._changed:
            self._events[context].append((token, 0, result, 0))
            self._changed.notify_all()

    def _there(self, context):
        return [event for event in self._events[context] if self.gate.is_set() or event[0] == WOKEN]

    def _get(self, context, n_least, n_most, address, time):
        timeout_s = None
        if time:
            seconds, nanoseconds = (ctypes.c_int64 * 2).from_address(time)
            timeout_s = seconds + nanoseconds / 1e9
        with self._changed:
            self._changed.wait_for(lambda: len(self._there(context)) >= n_least, timeout_s)
            found = self._there(context)[:n_most]
            for event in found:
                self._events[context].remove(event)
        ctypes.memmove(address, b"".join(struct.pack("=QQqq", *event) for event in found), 32 * len(found))
        return len(found)


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Opens runtimes over a made-up kernel, with a file in them."""
    if platform.machine() not in aio._NUMBERS:
        pytest.skip("no kernel AIO on this machine")
    made = []

    def open_one(kernel, **settings):
        monkeypatch.setattr(aio, "_system_call", lambda: kernel)
        made.append(open_runtime(f"file://{tmp_path}", RuntimeSettings(**settings)))
        if not made[0].caps.is_queued:
            pytest.skip("no direct I/O here")
        kernel_now = kernel.refuse, kernel.most, kernel.result
        kernel.refuse, kernel.most, kernel.result = {}, 1000, lambda n_bytes: n_bytes
        bench = Bench(made[0])
        kernel.refuse, kernel.most, kernel.result = kernel_now
        kernel.n_seen = kernel.n_submits = 0
        kernel.commands.clear()
        return bench

    yield open_one
    for runtime in made:
        runtime.close()


@pytest.mark.parametrize("op", Op)
@pytest.mark.parametrize("index", range(8))
def test_a_command_that_has_no_room_is_queued_later(opened, op, index):
    kernel = Kernel({index: errno.EAGAIN})
    bench = opened(kernel)
    bench.fill() if op is Op.WRITE else bench.clear()
    states = bench.moved([bench.request(op, chunk) for chunk in range(8)])
    assert states == [Done(UNIT)] * 8
    assert sorted(kernel.commands) == [(op.value, chunk * UNIT) for chunk in range(8)]
    assert all(bench.is_there(chunk) for chunk in range(8))


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EBADF, errno.ENOSPC])
@pytest.mark.parametrize("index", range(8))
def test_a_command_that_is_refused_fails_its_item_alone(opened, index, number):
    bench = opened(Kernel({index: number}))
    states = bench.moved([bench.request(Op.READ, chunk) for chunk in range(8)])
    failed = states.pop(index)
    cause = Cause.NO_SPACE if number == errno.ENOSPC else Cause.IO_ERROR
    assert failed == Failed(cause, f"read folder/file: {os.strerror(number)}")
    assert states == [Done(UNIT)] * 7


@pytest.mark.parametrize("most", range(1, 8))
def test_commands_that_are_taken_in_part_are_all_queued_once(opened, most):
    kernel = Kernel(most=most)
    bench = opened(kernel)
    assert bench.moved([bench.request(Op.READ, chunk) for chunk in range(8)]) == [Done(UNIT)] * 8
    assert sorted(kernel.commands) == [("read", chunk * UNIT) for chunk in range(8)]


def test_reads_that_have_no_room_wait_for_the_end_of_others_and_ask_no_more(opened):
    kernel = Kernel()
    bench = opened(kernel)
    kernel.gate.clear()
    first = bench.runtime.submit([bench.request(Op.READ, 0)])
    kernel.refuse = dict.fromkeys(range(1, 100), errno.EAGAIN)
    others = bench.runtime.submit([bench.request(Op.READ, chunk) for chunk in range(1, 8)])
    assert kernel.n_submits == 2
    kernel.refuse = {}
    kernel.open_gate()
    assert bench.runtime.wait(first, 30) + bench.runtime.wait(others, 30) == (Done(UNIT),) * 8


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_reads_of_more_files_than_may_be_open_take_turns(tmp_path, monkeypatch, number):
    runtime = open_runtime(f"file://{tmp_path}")
    bench = Bench(runtime)
    names = [f"folder/{at}" for at in range(40)]
    for name in names:
        runtime.reserve(name, UNIT)
    files = runtime.open_batch(names)
    descriptors = runtime.devices[0].descriptors
    plain, n_open, lock = descriptors._open_file, [0], threading.Lock()

    def opening(file):
        with lock:
            if n_open[0] == 4:
                raise OSError(number, "no")
            n_open[0] += 1
        return plain(file)

    def closing(_):
        with lock:
            n_open[0] -= 1

    monkeypatch.setattr(descriptors, "_open_file", opening)
    monkeypatch.setattr(descriptors, "_closing", closing)
    requests = [bench.request(Op.READ, 0, file=file) for file in files for _ in range(3)]
    assert set(move(runtime, requests)) == {Done(UNIT)}
    runtime.close()


def test_refusals_of_all_kinds_in_one_call(opened):
    kernel = Kernel({0: errno.EINVAL, 2: errno.EAGAIN, 5: errno.EINVAL, 6: errno.EAGAIN, 7: errno.EAGAIN}, most=3)
    bench = opened(kernel)
    states = bench.moved([bench.request(Op.READ, chunk) for chunk in range(16)])
    assert sorted(type(state).__name__ for state in states) == ["Done"] * 14 + ["Failed"] * 2


@pytest.mark.parametrize("op", Op)
def test_what_moves_in_part_goes_on_where_it_ended(opened, op):
    kernel = Kernel(result=lambda n_bytes: min(n_bytes, UNIT))
    bench = opened(kernel)
    bench.fill() if op is Op.WRITE else bench.clear()
    assert bench.moved([bench.request(op, 0, 4)]) == [Done(4 * UNIT)]
    assert [offset for _, offset in kernel.commands] == [0, UNIT, 2 * UNIT, 3 * UNIT]
    assert all(bench.is_there(chunk) for chunk in range(4))


@pytest.mark.parametrize("n_bytes", [0, 100])
def test_what_does_not_go_on_is_short_and_a_write_has_failed(opened, n_bytes):
    bench = opened(Kernel(result=lambda _: n_bytes))
    assert bench.moved([bench.request(Op.READ, 0)]) == [Short(n_bytes)]
    (state,) = bench.moved([bench.request(Op.WRITE, 0)])
    assert state == Failed(Cause.IO_ERROR, f"write folder/file: {n_bytes} of 4096 bytes were taken")


def test_a_result_that_is_an_error_fails_its_item(opened):
    bench = opened(Kernel(result=lambda _: -errno.EIO))
    states = bench.moved([bench.request(op, 0) for op in Op])
    wanted = [Failed(Cause.IO_ERROR, f"{op.value} folder/file: {os.strerror(errno.EIO)}") for op in Op]
    assert states == wanted


def test_the_pieces_of_a_read_are_queued_by_one_call(opened):
    kernel = Kernel()
    bench = opened(kernel)
    assert bench.moved([bench.request(Op.READ, chunk) for chunk in range(16)]) == [Done(UNIT)] * 16
    assert kernel.n_submits == 1


def test_no_more_is_under_way_than_may_be_and_reads_that_wait_go_before_writes(opened):
    kernel = Kernel()
    bench = opened(kernel)
    kernel.gate.clear()
    reads = bench.runtime.submit([bench.request(Op.READ, 0) for _ in range(100)])
    write = bench.runtime.submit([bench.request(Op.WRITE, 1)])
    assert len(kernel.commands) == 64
    kernel.open_gate()
    assert set(bench.runtime.wait(reads, 30)) == {Done(UNIT)}
    assert bench.runtime.wait(write, 30) == (Done(UNIT),)
    kernel.gate.clear()
    writes = bench.runtime.submit([bench.request(Op.WRITE, 1) for _ in range(40)])
    wait_until(lambda: len(kernel.commands) == 101 + 16)
    assert bench.runtime.poll(writes) == (Accepted(),) * 40
    kernel.open_gate()
    assert set(bench.runtime.wait(writes, 30)) == {Done(UNIT)}


def test_closed_while_something_hangs_the_queue_stays_until_it_has_ended(opened, monkeypatch):
    """Its memory is the kernel's till then."""
    monkeypatch.setattr(books, "_CLOSE_S", 0.01)
    monkeypatch.setattr("tenuto.tiers.disk.runtime.queuelane._JOIN_S", 0.01)
    kernel = Kernel()
    bench = opened(kernel)
    kernel.gate.clear()
    submission = bench.runtime.submit([bench.request(Op.READ, 0)])
    bench.runtime.close()
    assert bench.runtime.poll(submission) == (Accepted(),)
    assert kernel.n_destroyed == 0
    kernel.open_gate()
    assert bench.runtime.wait(submission, 30) == (Done(UNIT),)
    wait_until(lambda: kernel.n_destroyed == 1)


@pytest.fixture
def hurried(monkeypatch):
    """Closing waits for next to nothing."""
    for name in ("books._CLOSE_S", "queuelane._JOIN_S", "threads._JOIN_S"):
        monkeypatch.setattr(f"tenuto.tiers.disk.runtime.{name}", 0.01)


@pytest.mark.parametrize(("op", "n"), [(Op.WRITE, 40), (Op.READ, 100)])
def test_what_waits_behind_what_hangs_ends_after_closing_and_so_does_the_queue(opened, hurried, op, n):
    kernel = Kernel()
    bench = opened(kernel)
    kernel.gate.clear()
    submission = bench.runtime.submit([bench.request(op, 0) for _ in range(n)])
    bench.runtime.close()
    kernel.open_gate()
    gone = Failed(Cause.MISSING, "folder/file: its folder is closed")
    assert set(bench.runtime.wait(submission, 30)) == {Done(UNIT), gone}
    wait_until(lambda: kernel.n_destroyed == 1)


def test_a_queue_closes_though_the_thread_for_writes_ends_last(opened, hurried):
    kernel = Kernel()
    bench = opened(kernel)
    go, submit = threading.Event(), kernel._submit

    def slow(*args):
        taken = submit(*args)
        if threading.current_thread().name.endswith("-write-0"):
            go.wait(30)
        return taken

    kernel._submit = slow
    assert bench.moved([bench.request(Op.WRITE, 0)]) == [Done(UNIT)]
    bench.runtime.close()
    assert kernel.n_destroyed == 0
    go.set()
    wait_until(lambda: kernel.n_destroyed == 1)


@pytest.mark.parametrize("is_queued", [True, False])
def test_a_write_that_reaches_its_other_disks_after_closing_has_failed(tmp_path, hurried, monkeypatch, is_queued):
    monkeypatch.setattr("tenuto.tiers.disk.runtime.threads._JOIN_S", 0.1)  # the idle ones end
    if not is_queued:
        monkeypatch.setattr(aio, "_system_call", lambda: lambda *_: -errno.ENOSYS)
    for name in "ab":
        (tmp_path / name).mkdir()
    runtime = open_runtime(f"striped://{tmp_path}/a,{tmp_path}/b", RuntimeSettings(stripe_bytes=UNIT))
    bench = Bench(runtime)
    go, begun = threading.Event(), threading.Event()
    submission = runtime.submit([bench.request(Op.WRITE, 0, 4, work=lambda: (begun.set(), go.wait(30)))])
    assert begun.wait(30)
    runtime.close()
    go.set()
    assert runtime.wait(submission, 30) == (Failed(Cause.MISSING, "folder/file: its folder is closed"),)


def test_a_file_whose_closing_tells_of_an_error_costs_nobody_a_block(opened, monkeypatch):
    """As on NFS and FUSE."""
    kernel = Kernel()
    bench = opened(kernel)
    kernel.gate.clear()
    submission = bench.runtime.submit([bench.request(Op.READ, chunk) for chunk in range(4)])
    bench.runtime.close_batch([bench.file])
    plain = os.close

    def close(fd):
        is_ours = str(Path(f"/proc/self/fd/{fd}").readlink()).endswith("folder/file")
        plain(fd)
        if is_ours:
            raise OSError(errno.EIO, "no")

    monkeypatch.setattr(os, "close", close)
    kernel.open_gate()
    assert bench.runtime.wait(submission, 30) == (Done(UNIT),) * 4


@pytest.mark.parametrize("number", [SUBMIT, GET])
@pytest.mark.parametrize("result", [0, -errno.EPERM])
def test_where_commands_never_end_threads_move_bytes(tmp_path, monkeypatch, number, result):
    """Rules may forbid some of the calls alone."""
    monkeypatch.setattr(aio, "_TRIAL_S", 0.01)
    kernel = Kernel()
    monkeypatch.setattr(
        aio, "_system_call", lambda: lambda call, *args: result if call == number else kernel(call, *args)
    )
    runtime = open_runtime(f"file://{tmp_path}")
    assert not runtime.caps.is_queued
    assert kernel.n_destroyed == 1
    bench = Bench(runtime)
    assert bench.moved([bench.request(Op.READ, 0)]) == [Done(UNIT)]
    runtime.close()


def test_closing_ends_the_threads_and_gives_the_queue_back(opened):
    kernel = Kernel()
    n_fds = len(list(Path("/proc/self/fd").iterdir()))
    bench = opened(kernel, n_threads=3)
    names = {thread.name for thread in threading.enumerate() if thread.name.startswith("tenuto-io")}
    assert len(names) == 4  # and one for writes
    bench.runtime.close()
    assert kernel.n_destroyed == 1
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name in names])
    assert len(list(Path("/proc/self/fd").iterdir())) == n_fds


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EAGAIN])
def test_where_the_kernel_gives_no_queue_threads_move_bytes(tmp_path, monkeypatch, our_log, number):
    """A container's rules, another kernel, or as many as there may be."""
    monkeypatch.setattr(aio, "_system_call", lambda: lambda *_: -number)
    runtime = open_runtime(f"file://{tmp_path}")
    bench = Bench(runtime)
    assert not runtime.caps.is_queued
    assert bench.moved([bench.request(Op.READ, 0)]) == [Done(UNIT)]
    runtime.close()
    assert not [record for record in our_log() if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("number", "is_queued"), [(errno.EOPNOTSUPP, True), (errno.EISDIR, True), (errno.EROFS, False)]
)
def test_a_folder_without_nameless_files_is_tried_with_a_name(tmp_path, monkeypatch, opened, number, is_queued):
    opened(Kernel())  # where there is a queue
    plain = os.open

    def refuse(path, flags, *args, **kwargs):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(number, "no")
        return plain(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    (tmp_path / "new").mkdir()
    runtime = open_runtime(f"file://{tmp_path / 'new'}")
    assert runtime.caps.is_queued == is_queued
    assert runtime.caps.mover == f"file, by {'kernel AIO' if is_queued else 'threads'}"
    runtime.close()
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize(("refused", "number"), [(os.O_CREAT, errno.EROFS), (os.O_DIRECT, errno.EINVAL)])
def test_a_folder_that_takes_no_file_with_a_name_or_only_through_the_page_cache_has_no_queue(
    tmp_path, monkeypatch, opened, refused, number
):
    opened(Kernel())  # where there is a queue
    plain = os.open

    def refuse(path, flags, *args, **kwargs):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "no")
        if flags & refused:
            raise OSError(number, "no")
        return plain(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    (tmp_path / "new").mkdir()
    runtime = open_runtime(f"file://{tmp_path / 'new'}")
    assert not runtime.caps.is_queued
    runtime.close()
    assert list((tmp_path / "new").iterdir()) == []


def test_on_a_machine_whose_calls_are_not_known_there_is_none(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(OSError, match="x86-64 and aarch64") as caught:
        Aio(8)
    assert caught.value.errno == errno.ENOSYS


def test_an_item_of_more_pieces_than_a_call_takes_moves_whole(tmp_path):
    """By the real kernel: 1,100 units of each disk."""
    for name in "ab":
        (tmp_path / name).mkdir()
    runtime = open_runtime(f"striped://{tmp_path}/a,{tmp_path}/b", RuntimeSettings(stripe_bytes=UNIT))
    bench = Bench(runtime, 2200)
    assert move(runtime, [bench.request(Op.READ, 0, 2200)]) == [Done(2200 * UNIT)]
    assert bytes(bench.buffer) == bench.data
    runtime.close()


def test_a_wait_ends_after_its_time_and_when_it_is_woken():
    try:
        queue = Aio(8)
    except OSError as error:
        pytest.skip(f"no kernel AIO here: {error}")
    assert queue.wait(1, 0.001) == []
    queue.wake()
    assert queue.wait(1, None) == [(WOKEN, 0)]
    with pytest.raises(OSError, match="Bad file descriptor"):
        queue.submit([Command(1, False, 1 << 20, 0, ((0, 0),))])
    queue.close()
