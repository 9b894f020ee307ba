"""Pinned arenas: real shared memory, a driver that is told what to do."""

import ctypes
import dataclasses
import gc
import mmap
import os
import threading
from pathlib import Path

import pytest

from tenuto.errors import ConfigError
from tenuto.memory import pinning
from tenuto.memory.arena import HostArena
from tenuto.memory.driver import DriverError
from tenuto.memory.mapping import Mapping, shared
from tenuto.memory.numa import Node
from tenuto.memory.pinning import KEPT_BYTES, Surroundings, cut_pieces, pinned_arena
from tenuto.memory.progress import Progress
from tenuto.memory.registration import Registrations
from tenuto.memory.room import Room
from tenuto.testing.clock import FakeClock

pytestmark = pytest.mark.adapter

PAGE = mmap.PAGESIZE
EXTENT = 3 * PAGE
GIB = 1 << 30


class FakeDriver:
    """Keeps what is registered; `failing` = (the how manieth call fails, code, name)."""

    def __init__(self, failing=None, failing_to_undo=False, address="0000:1b:00.0"):
        self.ranges = {}
        self.calls = []
        self._failing = failing
        self._failing_to_undo = failing_to_undo
        self._address = address

    def register_host(self, address, size_bytes):
        if self._failing and len(self.calls) == self._failing[0]:
            raise DriverError("cuMemHostRegister", *self._failing[1:])
        assert is_touched(address, size_bytes), "registering would touch it, on one thread"
        self.ranges[address] = size_bytes
        self.calls.append((address, size_bytes))

    def unregister_host(self, address):
        if self._failing_to_undo:
            raise DriverError("cuMemHostUnregister", 201, "CUDA_ERROR_INVALID_CONTEXT")
        del self.ranges[address]

    def pci_address(self):
        if self._address is None:
            raise DriverError("cuCtxGetDevice", 201, "CUDA_ERROR_INVALID_CONTEXT")
        return self._address


def is_touched(address, size_bytes):
    n_pages = size_bytes // PAGE
    states = (ctypes.c_ubyte * n_pages)()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), states) == 0
    return all(state & 1 for state in states)


def surroundings(free_gib=100.0, **more):
    defaults = {
        "room": lambda: Room(int(free_gib * GIB)), "nearest_node": lambda _: None, "huge": lambda _: None,
        "piece_bytes": 2 * EXTENT,
    }  # fmt: skip
    return Surroundings(**(defaults | more))


def n_open_files():
    gc.collect()  # what earlier tests left
    links = [file.readlink() for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    return sum("memfd:tenuto-host" in link.name for link in links)


def n_mappings():
    return Path("/proc/self/maps").read_text().count("memfd:tenuto-host")


def test_an_arena_is_registered_in_pieces_of_whole_slots_once_they_are_touched():
    driver = FakeDriver()
    arena = pinned_arena(5, EXTENT, driver, surroundings())
    start = arena.address(0)
    assert driver.calls == [(start, 2 * EXTENT), (start + 2 * EXTENT, 2 * EXTENT), (start + 4 * EXTENT, EXTENT)]
    arena.close()
    assert driver.ranges == {}


@pytest.mark.parametrize(
    ("extent_bytes", "piece_bytes", "pieces"),
    [
        (4, 4, [(0, 4), (4, 8), (8, 12)]),
        (4, 11, [(0, 8), (8, 12)]),
        (4, 100, [(0, 12)]),
        (4, 1, [(0, 4), (4, 8), (8, 12)]),  # a slot larger than a piece is one
    ],
)
def test_pieces_end_with_slots(extent_bytes, piece_bytes, pieces):
    assert cut_pieces(12, extent_bytes, piece_bytes) == pieces


def test_slots_are_where_their_addresses_say_and_aligned():
    arena = pinned_arena(5, EXTENT, FakeDriver(), surroundings())
    for number in range(5):
        assert ctypes.addressof(ctypes.c_char.from_buffer(arena.slot(number))) == arena.address(number)
        assert arena.address(number) % PAGE == 0
        arena.slot(number)[:4] = bytes([number] * 4)
    with mmap.mmap(arena.fd, 5 * EXTENT) as other:  # as another process would
        assert [other[number * EXTENT] for number in range(5)] == [0, 1, 2, 3, 4]
    arena.close()


@pytest.mark.parametrize("number", [-1, 5])
def test_there_is_no_address_outside(number):
    arena = pinned_arena(5, EXTENT, FakeDriver(), surroundings())
    with pytest.raises(IndexError, match=f"slot {number} of 5"):
        arena.address(number)
    arena.close()


def test_closing_twice_is_closing_once_and_slots_stay_readable():
    driver, before = FakeDriver(), n_open_files()
    arena = pinned_arena(2, EXTENT, driver, surroundings())
    arena.slot(1)[:3] = b"abc"
    arena.close()
    taken = os.open("/dev/null", os.O_RDONLY)  # gets the descriptor's number
    arena.close()
    os.fstat(taken)
    os.close(taken)
    assert arena.fd is None
    assert bytes(arena.slot(1)[:3]) == b"abc"
    del arena
    assert (n_open_files(), n_mappings()) == (before, 0)


def test_an_arena_that_is_not_pinned_is_closed_too():
    arena = HostArena(2, PAGE)
    arena.close()
    assert arena.fd is None


@pytest.mark.parametrize("failing_at", [0, 1, 2])
def test_when_the_driver_has_no_memory_the_pieces_before_are_given_back(failing_at):
    driver = FakeDriver((failing_at, 2, "CUDA_ERROR_OUT_OF_MEMORY"))
    before = n_open_files()
    with pytest.raises(ConfigError) as raised:
        pinned_arena(5, EXTENT, driver, surroundings())
    assert str(raised.value) == (
        "tiers.host.capacity: of 0.0 GiB the CUDA driver pinned 0.0 GiB and then failed (cuMemHostRegister: "
        "CUDA_ERROR_OUT_OF_MEMORY (2)); give less, or end other programs that pin memory"
    )
    assert len(driver.calls) == failing_at
    assert driver.ranges == {}
    assert (n_open_files(), n_mappings()) == (before, 0)


def test_another_error_of_the_driver_is_one_line_with_its_name():
    with pytest.raises(ConfigError, match=r"^tiers\.host\.capacity: .*CUDA_ERROR_NOT_PERMITTED \(800\).*nvidia-smi"):
        pinned_arena(5, EXTENT, FakeDriver((1, 800, "CUDA_ERROR_NOT_PERMITTED")), surroundings())


def test_without_a_context_the_line_is_that_of_registering():
    driver = FakeDriver((0, 201, "CUDA_ERROR_INVALID_CONTEXT"), address=None)
    with pytest.raises(ConfigError, match=r"^tiers\.host\.capacity: .*CUDA_ERROR_INVALID_CONTEXT"):
        pinned_arena(5, EXTENT, driver, surroundings())


def test_what_cant_be_unpinned_is_logged_and_the_rest_is_tried(our_log):
    arena = pinned_arena(5, EXTENT, FakeDriver(failing_to_undo=True), surroundings())
    arena.close()
    assert our_log()[-1].getMessage() == (
        "tenuto: host arena: 3 pieces stay pinned until the process ends: "
        "cuMemHostUnregister: CUDA_ERROR_INVALID_CONTEXT (201)"
    )


def test_registrations_are_undone_from_the_last_to_the_first():
    undone = []

    class Driver(FakeDriver):
        def register_host(self, address, size_bytes):
            pass

        def unregister_host(self, address):
            undone.append(address)

    registrations = Registrations(Driver())
    for address in (1, 2, 3):
        registrations.add(address, PAGE)
    registrations.close()
    registrations.close()
    assert undone == [3, 2, 1]


@pytest.mark.parametrize(
    ("room", "end"),
    [
        (
            Room(KEPT_BYTES + 5 * EXTENT - 1),
            "with 1.0 GiB of memory free and 1.0 GiB kept for the rest; give less, or free some memory",
        ),
        (
            Room(-GIB, is_container=True),
            "with 0.0 GiB left below the container's limit and 1.0 GiB kept for the rest; give less, or raise it",
        ),
    ],
)
def test_more_than_may_be_touched_is_refused_before_it_is_touched(room, end):
    driver, before = FakeDriver(), n_open_files()
    with pytest.raises(ConfigError) as raised:
        pinned_arena(5, EXTENT, driver, surroundings(room=lambda: room))
    assert str(raised.value) == f"tiers.host.capacity: 0.0 GiB can't be pinned {end}"
    assert driver.calls == []
    assert n_open_files() == before


def test_exactly_what_may_be_touched_is_taken():
    pinned_arena(5, EXTENT, FakeDriver(), surroundings(room=lambda: Room(KEPT_BYTES + 5 * EXTENT))).close()


def test_memory_that_others_take_meanwhile_stops_it_and_all_is_given_back(monkeypatch):
    monkeypatch.setattr(pinning, "_SLICE_BYTES", 2 * EXTENT)
    rooms = iter([Room(100 * GIB), Room(100 * GIB)])
    driver, before = FakeDriver(), n_open_files()
    with pytest.raises(ConfigError, match=r"^tiers\.host\.capacity: .* with 0\.1 GiB of memory free"):
        pinned_arena(50, EXTENT, driver, surroundings(room=lambda: next(rooms, Room(GIB // 10))))
    assert driver.ranges == {}
    assert (n_open_files(), n_mappings()) == (before, 0)


def test_a_kernel_without_pages_is_one_line(monkeypatch):
    def touch(self, start, size_bytes):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(Mapping, "touch", touch)
    driver, before = FakeDriver(), n_open_files()
    with pytest.raises(
        ConfigError, match=r"^tiers\.host\.capacity: 0\.0 GiB can't be had \(.*Cannot allocate memory\); give less"
    ):
        pinned_arena(5, EXTENT, driver, surroundings())
    assert driver.calls == []
    assert (n_open_files(), n_mappings()) == (before, 0)


def test_granted_huge_pages_are_used_whatever_other_memory_is_free(our_log):
    def huge(size_bytes):
        return dataclasses.replace(shared(size_bytes + EXTENT), is_huge=True)

    arena = pinned_arena(5, EXTENT, FakeDriver(), surroundings(0.0, huge=huge))
    assert len(arena.view) == 5 * EXTENT
    assert our_log()[-1].getMessage().endswith(", huge pages")
    arena.close()


def test_huge_pages_that_are_promised_and_not_given_cost_nothing_but_themselves(monkeypatch, our_log):
    touch = Mapping.touch

    def touch_plain(self, start, size_bytes):
        if self.is_huge:
            raise OSError(14, "Bad address")
        touch(self, start, size_bytes)

    monkeypatch.setattr(Mapping, "touch", touch_plain)
    before = n_open_files()
    around = surroundings(huge=lambda size_bytes: dataclasses.replace(shared(size_bytes), is_huge=True))
    arena = pinned_arena(5, EXTENT, FakeDriver(), around)
    assert "Bad address" in our_log()[0].getMessage()
    assert "huge" not in our_log()[-1].getMessage()
    arena.close()
    del arena
    assert (n_open_files(), n_mappings()) == (before, 0)


def test_threads_that_touch_are_bound_to_the_node_of_the_gpu_and_the_engines_thread_is_not(monkeypatch, our_log):
    cpu = min(os.sched_getaffinity(0))
    mine, seen = os.sched_getaffinity(0), []
    touch = Mapping.touch

    def watched(self, start, size_bytes):
        seen.append((threading.current_thread().name, os.sched_getaffinity(0)))
        touch(self, start, size_bytes)

    monkeypatch.setattr(Mapping, "touch", watched)
    nodes = {"0000:1b:00.0": Node(1, frozenset({cpu}))}
    arena = pinned_arena(5, EXTENT, FakeDriver(), surroundings(nearest_node=nodes.get))
    assert [cpus for _, cpus in seen] == [{cpu}]
    assert seen[0][0].startswith("tenuto-touch")
    assert os.sched_getaffinity(0) == mine
    assert our_log()[-1].getMessage().endswith("on NUMA node 1")
    arena.close()


def test_a_node_whose_cpus_a_container_does_not_have_binds_nothing():
    around = surroundings(nearest_node=lambda _: Node(1, frozenset({1023})))
    arena = pinned_arena(5, EXTENT, FakeDriver(), around)
    arena.close()


def test_it_ends_with_one_line_of_size_and_time(our_log):
    clock = FakeClock()

    class SlowDriver(FakeDriver):
        def register_host(self, address, size_bytes):
            clock.advance(6.4)
            super().register_host(address, size_bytes)

    around = surroundings(progress=lambda what, total: Progress(what, total, clock, lambda *_: None))
    arena = pinned_arena(5, EXTENT, SlowDriver(), around)
    assert [record.getMessage() for record in our_log()] == [
        "tenuto: host arena: 0.0 of 0.0 GiB after 6 s",
        "tenuto: host arena: 0.0 of 0.0 GiB after 13 s",
        "tenuto: host arena: 0.0 of 0.0 GiB after 19 s",
        "tenuto: host arena: 0.0 GiB pinned in 19.2 s",
    ]
    arena.close()


def test_an_interrupt_gives_all_back_and_leaves_no_thread():
    class Interrupted(FakeDriver):
        def register_host(self, address, size_bytes):
            if len(self.calls) == 1:
                raise KeyboardInterrupt
            super().register_host(address, size_bytes)

    driver, before = Interrupted(), n_open_files()
    with pytest.raises(KeyboardInterrupt):
        pinned_arena(5, EXTENT, driver, surroundings())
    assert driver.ranges == {}
    assert (n_open_files(), n_mappings()) == (before, 0)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tenuto-touch")]


def test_an_extent_is_whole_pages_and_a_wrong_one_leaves_nothing_behind():
    driver, before = FakeDriver(), n_open_files()
    with pytest.raises(ValueError, match="not a multiple of a page"):
        pinned_arena(3, PAGE + 512, driver, surroundings())
    assert driver.ranges == {}
    assert n_open_files() == before
