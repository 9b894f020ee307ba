"""Memory from the kernel: private, shared, touched."""

import gc
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tenuto.errors import ConfigError
from tenuto.memory.mapping import anonymous, shared, shared_huge

pytestmark = pytest.mark.adapter

PAGE = mmap.PAGESIZE
MIB = 1 << 20

CHILD = """
import mmap, sys
memory = mmap.mmap(int(sys.argv[1]), 0)
print(memory[4096:4101].decode(), len(memory))
memory[:3] = b"yes"
"""


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def n_open_files():
    gc.collect()  # what earlier tests left
    links = [file.readlink() for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    return sum("memfd:tenuto-host" in link.name for link in links)


def test_another_process_maps_shared_memory_by_its_descriptor_and_both_see_what_the_other_writes():
    mapping = shared(4 * PAGE)
    mapping.buffer[PAGE : PAGE + 5] = b"hello"
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(mapping.fd)],
        pass_fds=[mapping.fd],
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stdout.split() == ["hello", str(4 * PAGE)]
    assert mapping.buffer[:3] == b"yes"
    mapping.close()


@pytest.mark.parametrize("make", [anonymous, shared])
def test_memory_is_page_aligned_zero_and_taken_when_it_is_touched(make):
    mapping = make(64 * MIB)
    before = resident_bytes()
    assert mapping.address % PAGE == 0
    mapping.touch(0, 48 * MIB)
    assert 47 * MIB < resident_bytes() - before < 60 * MIB
    assert mapping.buffer[: 2 * PAGE] == bytes(2 * PAGE)
    mapping.close()


def test_touching_keeps_what_is_written():
    mapping = shared(4 * PAGE)
    mapping.buffer[PAGE] = 7
    mapping.touch(0, 4 * PAGE)
    assert mapping.buffer[PAGE] == 7
    mapping.close()


def test_touching_what_is_not_mapped_is_an_error_not_a_signal():
    mapping = shared(2 * PAGE)
    os.ftruncate(mapping.fd, PAGE)  # the second page has no file behind it: a write would be SIGBUS
    with pytest.raises(OSError, match="Bad address"):
        mapping.touch(0, 2 * PAGE)
    mapping.close()


def test_closing_gives_the_memory_and_the_descriptor_back():
    n_files, n_bytes = n_open_files(), resident_bytes()
    mapping = shared(32 * MIB)
    mapping.touch(0, 32 * MIB)
    mapping.close()
    assert resident_bytes() - n_bytes < 8 * MIB
    assert n_open_files() == n_files


def test_private_memory_has_no_descriptor():
    assert anonymous(PAGE).fd is None


@pytest.mark.parametrize("make", [anonymous, shared, shared_huge])
def test_more_memory_than_there_is_names_the_setting(make):
    with pytest.raises(ConfigError, match=r"^tiers\.host\.capacity: .* give less$"):
        make(1 << 60)


def test_huge_pages_are_whole_ones_or_none():
    before = n_open_files()
    mapping = shared_huge(3 * MIB)
    if mapping is None:  # none are reserved on most machines
        assert n_open_files() == before
        return
    assert mapping.is_huge
    assert len(mapping.buffer) % (2 * MIB) == 0
    mapping.touch(0, 3 * MIB)
    mapping.close()
