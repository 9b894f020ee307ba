"""Runtimes beyond the contract: stripes, windows, descriptors, what is refused and said."""

import errno
import logging
import os
import subprocess
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.errors import Cause, ConfigError, StoreError
from tenuto.memory.arena import HostArena
from tenuto.testing.runtime_bench import Bench
from tenuto.tiers.disk.runtime import (
    Accepted,
    Caps,
    Done,
    Failed,
    Op,
    Reason,
    Rejected,
    RuntimeSettings,
    Short,
    books,
    move,
    open_runtime,
)
from tenuto.tiers.disk.runtime.books import Submission
from tenuto.tiers.disk.runtime.stripeset import read_place, settle
from tenuto.tiers.disk.runtime.striping import Striping

pytestmark = pytest.mark.unit

UNIT = 4096


@given(
    n=st.integers(1, 5), rotation=st.integers(0, 4), offset=st.integers(0, 60), length=st.integers(1, 60),
    units=st.integers(1, 3),
)  # fmt: skip
def test_the_pieces_of_a_range_are_where_the_formula_says(n, rotation, offset, length, units):
    striping, rotation = Striping(n, units * UNIT), rotation % n
    seen = {}
    for piece in striping.cut(offset * UNIT, length * UNIT, rotation):
        at = piece.offset
        for start, n_bytes in piece.parts:
            for byte in range(0, n_bytes, UNIT):
                seen[offset * UNIT + start + byte] = (piece.disk, at)
                at += UNIT
    wanted = {}
    for at in range(offset * UNIT, (offset + length) * UNIT, UNIT):
        number, inside = divmod(at, units * UNIT)
        wanted[at] = ((number + rotation) % n, number // n * units * UNIT + inside) if n > 1 else (0, at)
    assert seen == wanted
    assert len(set(seen.values())) == len(seen)


@given(n=st.integers(1, 5), rotation=st.integers(0, 4), pages=st.integers(0, 100), units=st.integers(1, 3))
def test_the_parts_of_a_file_hold_exactly_its_bytes(n, rotation, pages, units):
    striping, rotation = Striping(n, units * UNIT), rotation % n
    sizes = striping.part_bytes(pages * UNIT, rotation)
    assert sum(sizes) == pages * UNIT
    ends = [0] * n
    if pages:
        for piece in striping.cut(0, pages * UNIT, rotation):
            ends[piece.disk] = piece.offset + sum(n_bytes for _, n_bytes in piece.parts)
    assert sizes == ends


def test_files_of_one_unit_do_not_all_begin_on_one_disk(tmp_path):
    striping = Striping(4, UNIT)
    assert {striping.rotation(f"a/rank-0/pool-{number:05d}.kv") for number in range(16)} == {0, 1, 2, 3}


def striped(tmp_path, names="abcd", **settings):
    for name in names:
        (tmp_path / name).mkdir(exist_ok=True)
    url = "striped://" + ",".join(str(tmp_path / name) for name in names)
    return open_runtime(url, RuntimeSettings(**{"stripe_bytes": UNIT, **settings}))


def test_a_striped_file_lies_on_all_disks(tmp_path):
    runtime = striped(tmp_path)
    bench = Bench(runtime)
    assert [(tmp_path / name / "folder/file").stat().st_size for name in "abcd"] == [4 * UNIT] * 4
    rotation = Striping(4, UNIT).rotation("folder/file")
    first = (tmp_path / "abcd"[rotation] / "folder/file").read_bytes()
    assert first[:UNIT] == bench.data[:UNIT]
    assert first[UNIT : 2 * UNIT] == bench.data[4 * UNIT : 5 * UNIT]
    runtime.close()


def test_the_disks_of_a_stripe_share_the_descriptors(tmp_path):
    runtime = striped(tmp_path, max_open_files=8, n_threads=1)
    bench = Bench(runtime)
    names = [f"file-{number}" for number in range(40)]
    for name in names:
        runtime.reserve(name, bench.chunk * 16)
    files = runtime.open_batch(names)
    bench.moved([bench.request(Op.READ, 0, 16, file=file) for file in files])
    assert sum(len(device.descriptors._open) for device in runtime.devices) == 8
    runtime.close()


def test_a_disk_of_a_stripe_that_is_gone_fails_what_lies_on_it(tmp_path):
    runtime = striped(tmp_path)
    bench = Bench(runtime)
    rotation = Striping(4, UNIT).rotation("folder/file")
    runtime.close()
    (tmp_path / "abcd"[(1 + rotation) % 4] / "folder/file").unlink()
    runtime = striped(tmp_path)
    bench.region = runtime.register_memory(bench.region.memory)
    bench.runtime, (bench.file,) = runtime, runtime.open_batch(["folder/file"])
    states = bench.moved([bench.request(Op.READ, chunk) for chunk in range(8)])
    assert [type(state) for state in states] == [Done, Failed, Done, Done] * 2
    runtime.close()


def test_a_disk_that_hangs_does_not_hold_the_others(tmp_path):
    """Each has threads of its own."""
    runtime = striped(tmp_path, n_threads=1)
    bench = Bench(runtime)
    gate = threading.Event()
    held = runtime.submit([bench.request(Op.READ, 0, work=lambda: bool(gate.wait(30)))])
    assert bench.moved([bench.request(Op.READ, chunk) for chunk in (1, 2, 3)]) == [Done(UNIT)] * 3
    assert runtime.poll(held) == (Accepted(),)
    gate.set()
    runtime.wait(held)
    runtime.close()


def test_reads_go_before_writes_that_wait(tmp_path):
    runtime = open_runtime("mem://", RuntimeSettings(n_threads=1))
    bench = Bench(runtime)
    gate, order = threading.Event(), []
    held = runtime.submit([bench.request(Op.READ, 0, work=lambda: bool(gate.wait(30)))])
    write = runtime.submit([bench.request(Op.WRITE, 1, work=lambda: order.append("write"))])
    read = runtime.submit([bench.request(Op.READ, 2, work=lambda: order.append("read"))])
    gate.set()
    for submission in (held, write, read):
        runtime.wait(submission, 30)
    assert order == ["read", "write"]
    runtime.close()


@pytest.mark.parametrize("scheme", ["mem", "file"])
def test_readers_that_never_pause_do_not_stop_all_writing(tmp_path, scheme):
    """Each read that ends asks for another one: there is always one that waits."""
    runtime = open_runtime("mem://" if scheme == "mem" else f"file://{tmp_path}", RuntimeSettings(n_threads=1))
    bench = Bench(runtime)
    is_over = threading.Event()

    def again():
        if not is_over.is_set():
            runtime.submit([bench.request(Op.READ, 0, work=again)])

    for _ in range(200):
        again()
    write = runtime.submit([bench.request(Op.WRITE, 1)])
    assert runtime.wait(write, 30) == (Done(bench.chunk),)
    is_over.set()
    runtime.close()


class Choosy:
    """Takes what `is_taken` says of each item's chunk, at first; ends items when told."""

    caps = Caps("choosy", max_in_flight=8)

    def __init__(self, is_taken=lambda chunk: True):
        self.is_taken = is_taken
        self.sent = []
        self.is_ending = True

    def submit(self, requests, stream=None):
        chunks = [request.offset for request in requests]
        self.sent.append(chunks)
        initial = tuple(Accepted() if self.is_taken(chunk) else Rejected(Reason.FULL) for chunk in chunks)
        return Submission(requests, initial, list(initial), sum(isinstance(state, Accepted) for state in initial))

    def poll(self, submission):
        return tuple(Done(1) if isinstance(s, Accepted) and self.is_ending else s for s in submission.initial)

    def wait(self, submission, timeout_s=None):
        if not self.is_ending:
            raise StoreError(Cause.TIMEOUT, "not yet")
        return self.poll(submission)


class Item:
    def __init__(self, offset):
        self.offset = offset


@pytest.mark.parametrize("index", range(8))
def test_an_item_refused_at_any_index_is_the_only_one_sent_again(index):
    refused = {index}
    runtime = Choosy(lambda chunk: chunk not in refused or refused.discard(chunk) or False)
    assert move(runtime, [Item(chunk) for chunk in range(8)]) == [Done(1)] * 8
    sent = [chunk for chunks in runtime.sent for chunk in chunks]
    assert sorted(sent) == sorted([*range(8), index])


def test_no_more_than_a_window_is_in_flight():
    runtime = Choosy()
    most, ended = [], []

    def submit(requests, stream=None, plain=runtime.submit):
        most.append(sum(map(len, runtime.sent)) + len(requests) - sum(ended))
        return plain(requests, stream)

    def wait(submission, timeout_s=None, plain=runtime.wait):
        ended.append(len(submission.requests))
        return plain(submission, timeout_s)

    runtime.submit, runtime.wait = submit, wait
    assert move(runtime, [Item(chunk) for chunk in range(40)], window=6) == [Done(1)] * 40
    assert max(most) <= 6


def test_a_deadline_tells_what_never_began_and_what_is_on_its_way():
    runtime = Choosy()
    runtime.is_ending = False
    states = move(runtime, [Item(chunk) for chunk in range(20)], timeout_s=0.01)
    assert states[:8] == [Accepted()] * 8
    assert all(isinstance(state, Failed) and state.cause is Cause.TIMEOUT for state in states[8:])


def test_a_runtime_that_others_have_filled_is_tried_again():
    left = [3]
    runtime = Choosy(lambda chunk: not left.__setitem__(0, left[0] - 1) and left[0] < 0)
    assert move(runtime, [Item(0), Item(1)]) == [Done(1)] * 2
    runtime = Choosy(lambda chunk: False)
    (state,) = move(runtime, [Item(0)], timeout_s=0.01)
    assert state == Failed(Cause.TIMEOUT, "not begun after 0.01 s")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "names no storage runtime; give one of mem://"),
        ("s3://bucket", "names no storage runtime"),
        ("/data/kv", "names no storage runtime"),
        ("mem://folder", "takes no folder"),
        ("file://", "no folder; give an absolute one, as file:///data/kv"),
        ("file://data", "not an absolute folder"),
        ("file:///no/such/folder", "there is no folder /no/such/folder"),
        ("file:///etc/passwd", "/etc/passwd is not a folder"),
        (f"file:///{'x' * 300}", "can't look at the folder (File name too long)"),
        ("striped:///tmp,", "no folder"),
        ("striped:///tmp,/tmp/.", "twice"),
    ],
)
def test_a_bad_url_gives_one_line(url, words):
    with pytest.raises(ConfigError) as caught:
        open_runtime(url)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_folder_that_is_mounted_twice_is_one(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
    if subprocess.run(["mount", "--bind", tmp_path / "a", tmp_path / "b"], capture_output=True, check=False).returncode:
        pytest.skip("this container may not mount")
    try:
        with pytest.raises(ConfigError, match="a folder is there twice"):
            striped(tmp_path, "ab")
        assert list((tmp_path / "a").iterdir()) == []
        with pytest.raises(ConfigError, match="are one; give each once"):  # made in the parents that are one
            settle("stripes", [tmp_path / "a/kv", tmp_path / "b/kv"], UNIT, lambda _: True)
        assert list((tmp_path / "a/kv").iterdir()) == []
    finally:
        subprocess.run(["umount", tmp_path / "b"], check=True)


def test_folders_of_a_stripe_in_another_order_are_refused(tmp_path):
    striped(tmp_path).close()
    striped(tmp_path).close()
    for names, settings in (("abdc", {}), ("abc", {}), ("abcde", {}), ("abcd", {"stripe_bytes": 2 * UNIT})):
        with pytest.raises(ConfigError, match="give the folders as before") as caught:
            striped(tmp_path, names, **settings)
        assert "\n" not in str(caught.value)
    (tmp_path / "b/stripe.json").write_text("nonsense")
    with pytest.raises(ConfigError, match=r"can't be read.*; restore it, or empty all"):
        striped(tmp_path)


@pytest.mark.parametrize("name", "abcd")
def test_a_folder_of_a_stripe_that_is_not_there_is_not_made_anew(tmp_path, name):
    runtime = striped(tmp_path)
    runtime.reserve("file", 4 * UNIT)
    runtime.close()
    (tmp_path / name).rename(tmp_path / "away")
    (tmp_path / name).mkdir()  # where its disk was mounted
    with pytest.raises(StoreError, match=f"/{name} is not the folder of the stripe that it was") as caught:
        striped(tmp_path)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / name).iterdir())
    (tmp_path / name).rmdir()
    (tmp_path / "away").rename(tmp_path / name)
    striped(tmp_path).close()


def test_a_stripe_whose_maker_was_killed_half_way_is_made_again(tmp_path):
    striped(tmp_path).close()
    for name in "ab":
        (tmp_path / name / "stripe.json").unlink()
    striped(tmp_path).close()


def test_folders_of_two_stripes_make_none(tmp_path):
    for names in ("ab", "cd"):
        runtime = striped(tmp_path, names)
        runtime.reserve("file", 4 * UNIT)
        runtime.close()
    with pytest.raises(ConfigError, match="/d was number 2 of 2 with units of 4096 bytes in another stripe"):
        striped(tmp_path, "ad")


def test_a_stripe_that_is_mounted_elsewhere_is_the_same(tmp_path):
    striped(tmp_path, "ab").close()
    (tmp_path / "b").rename(tmp_path / "x")
    runtime = open_runtime(f"striped://{tmp_path / 'a'},{tmp_path / 'x'}", RuntimeSettings(stripe_bytes=UNIT))
    runtime.close()
    assert read_place(tmp_path / "a").folders == (str(tmp_path / "a"), str(tmp_path / "x"))


def test_a_file_knows_in_how_many_pieces_it_lies(tmp_path):
    runtime = open_runtime(f"file://{tmp_path}")
    bench = Bench(runtime)
    assert runtime.n_extents("folder/file") in (0, 1)
    bench.fill()
    bench.moved([bench.request(Op.WRITE, chunk, offset=64 * chunk * bench.chunk) for chunk in range(4)])
    assert runtime.n_extents("folder/file") in (0, 4)  # holes between them; 0 where the file system does not tell
    with pytest.raises(StoreError):
        runtime.n_extents("folder/nothing")
    runtime.close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"alignment_bytes": 512}, "alignment: 512"), ({"alignment_bytes": 5000}, "alignment: 5000"),
     ({"stripe_bytes": 4097}, "stripe"), ({"n_threads": 0}, "a thread")],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        open_runtime("mem://", RuntimeSettings(**settings))


def test_without_direct_io_it_says_so_once_and_works(tmp_path, monkeypatch, our_log):
    plain = os.open

    def refuse(path, flags, *args, **kwargs):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no")
        return plain(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    runtime = open_runtime(f"file://{tmp_path}")
    bench = Bench(runtime)
    runtime.reserve("other", bench.chunk)
    (other,) = runtime.open_batch(["other"])
    assert bench.moved([bench.request(Op.READ, 0, file=other), bench.request(Op.READ, 1)]) == [Done(bench.chunk)] * 2
    runtime.close()
    (record,) = [record for record in our_log() if record.levelno >= logging.WARNING]
    assert (
        record.getMessage()
        == f"tenuto: {tmp_path}: no direct I/O on this file system; blocks go through the page cache"
    )


def test_a_file_that_ends_within_a_page_is_short_by_the_byte(tmp_path):
    runtime = open_runtime(f"file://{tmp_path}")
    bench = Bench(runtime)
    os.truncate(tmp_path / "folder/file", 2 * bench.chunk + 100)
    states = bench.moved([bench.request(Op.READ, 0, 4), bench.request(Op.READ, 2)])
    assert states == [Short(2 * bench.chunk + 100), Short(100)]
    runtime.close()


def test_a_pipe_in_place_of_a_file_is_an_error_not_a_wait(tmp_path):
    runtime = open_runtime(f"file://{tmp_path}")
    bench = Bench(runtime)
    os.mkfifo(tmp_path / "pipe")
    (pipe,) = runtime.open_batch(["pipe"])
    (state,) = bench.moved([bench.request(Op.READ, 0, file=pipe)])
    assert isinstance(state, Failed)
    assert state.cause is Cause.IO_ERROR
    runtime.close()


def test_memory_stays_alive_while_it_is_registered(tmp_path):
    runtime = open_runtime("mem://")
    bench = Bench(runtime)
    arena = HostArena(1, 4096)
    from tenuto.tiers.disk.runtime import Memory

    region = runtime.register_memory(Memory.of(arena.slot(0)))
    del arena
    assert bench.moved([bench.request(Op.READ, 3, region=region, memory_offset=0)]) == [Done(4096)]
    assert region.view is not None
    assert bytes(region.view) == bench.data[3 * 4096 : 4 * 4096]
    plain = Memory(region.memory.address, 4096)
    assert bytes(plain.view()) == bytes(region.view)
    runtime.close()


def without_direct_io(monkeypatch):
    plain = os.open

    def buffered(path, flags, *args, **kwargs):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no")
        return plain(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", buffered)


def some_of(call, most):
    """It moves at most so many bytes a call."""

    def moved(fd, buffers, offset):
        return call(fd, [buffers[0][:most]], offset)

    return moved


@pytest.mark.parametrize("n_bytes", [1, 100, 4096, 5000])
def test_what_a_call_moves_in_part_goes_on_where_it_ended(tmp_path, monkeypatch, n_bytes):
    """Whatever the part: a file system over a network gives any."""
    without_direct_io(monkeypatch)
    runtime = open_runtime(f"file://{tmp_path}")
    bench = Bench(runtime)
    bench.data = bytes(reversed(bench.data))
    bench.fill()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", some_of(os.pwritev, n_bytes))
        assert bench.moved([bench.request(Op.WRITE, 1, 3)]) == [Done(3 * bench.chunk)]
    bench.clear()
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", some_of(os.preadv, n_bytes))
        assert bench.moved([bench.request(Op.READ, 1, 3)]) == [Done(3 * bench.chunk)]
    assert all(bench.is_there(chunk) for chunk in (1, 2, 3))
    runtime.close()


@pytest.mark.parametrize(("is_direct", "n_bytes"), [(True, 100), (True, 0), (False, 0)])
def test_a_write_that_does_not_go_on_has_failed(tmp_path, monkeypatch, is_direct, n_bytes):
    """It was taken for done: what it had not written was listed."""
    if not is_direct:
        without_direct_io(monkeypatch)
    runtime = open_runtime(f"file://{tmp_path}", RuntimeSettings(is_queued=False))
    bench = Bench(runtime)
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, offset: n_bytes)
    (state,) = bench.moved([bench.request(Op.WRITE, 0)])
    assert state == Failed(Cause.IO_ERROR, f"write folder/file: {n_bytes} of 4096 bytes were taken")
    runtime.close()


def test_a_bug_in_one_items_work_is_raised_when_no_other_is_under_way():
    """Whoever moved them gives their memory to others then."""
    runtime = open_runtime("mem://", RuntimeSettings(n_threads=4))
    bench = Bench(runtime)
    gate, ended = threading.Event(), threading.Event()

    def slow():
        gate.wait(30)
        ended.set()

    threading.Timer(0.05, gate.set).start()
    requests = [bench.request(Op.READ, 0, work=lambda: int("bug")), bench.request(Op.READ, 1, work=slow)]
    with pytest.raises(ValueError, match="bug"):
        move(runtime, requests, window=2)  # one in each of two submissions
    assert ended.is_set()
    runtime.close()


@pytest.mark.parametrize("scheme", ["mem://", "file://"])
def test_closed_by_an_items_own_work_it_ends(tmp_path, monkeypatch, scheme):
    monkeypatch.setattr(books, "_CLOSE_S", 0.01)
    runtime = open_runtime(scheme if scheme == "mem://" else f"{scheme}{tmp_path}")
    bench = Bench(runtime)
    assert bench.moved([bench.request(Op.READ, 0, work=runtime.close)]) == [Done(bench.chunk)]
    assert bench.refused(bench.request(Op.READ, 0)) is Reason.CLOSED
