"""Host memory in slots."""

import ctypes
import mmap

import pytest

from tenuto.errors import ConfigError
from tenuto.memory.arena import HostArena

pytestmark = pytest.mark.unit

PAGE = mmap.PAGESIZE


def test_slots_are_page_aligned_and_do_not_overlap():
    arena = HostArena(3, 2 * PAGE)
    for number in range(3):
        slot = arena.slot(number)
        assert len(slot) == 2 * PAGE
        assert ctypes.addressof(ctypes.c_char.from_buffer(slot)) % PAGE == 0
        slot[:] = bytes([number + 1]) * len(slot)
    assert bytes(arena.view) == b"".join(bytes([number + 1]) * 2 * PAGE for number in range(3))


def test_slots_are_zero_at_first():
    assert bytes(HostArena(1, PAGE).slot(0)) == bytes(PAGE)


@pytest.mark.parametrize("number", [-1, 3])
def test_there_is_no_slot_outside(number):
    with pytest.raises(IndexError, match=f"slot {number} of 3"):
        HostArena(3, PAGE).slot(number)


def test_an_extent_is_whole_pages():
    with pytest.raises(ValueError, match="not a multiple of a page"):
        HostArena(3, PAGE + 512)


@pytest.mark.parametrize("n_slots", [1 << 40, 1 << 60])
def test_more_memory_than_there_can_be_is_one_line_with_the_setting_and_the_fix(n_slots):
    with pytest.raises(
        ConfigError, match=r"^tiers\.host\.capacity: .* GiB is more than the .* of memory there is; give less"
    ) as raised:
        HostArena(n_slots, PAGE)
    assert "\n" not in str(raised.value)


def test_an_arena_without_slots_is_allowed():
    assert repr(HostArena(0, PAGE)) == f"<HostArena 0 x {PAGE} bytes>"
