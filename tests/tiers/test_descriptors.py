"""Descriptors are few, and never closed under somebody who uses them."""

import errno
import os
from contextlib import ExitStack

import pytest

from tenuto.errors import StoreError
from tenuto.tiers.disk.runtime import File
from tenuto.tiers.disk.runtime.descriptors import Descriptors

pytestmark = pytest.mark.unit


@pytest.fixture
def opened():
    """(number of the file, descriptor) in the order of opening."""
    return []


@pytest.fixture
def descriptors(opened, tmp_path):
    def open_file(file):
        fd = os.open(tmp_path / file.name, os.O_CREAT | os.O_RDWR)
        opened.append((file.number, fd))
        return fd

    made = Descriptors(open_file, 2)
    yield made
    made.close()


FILES = [File(number, f"f{number}", True) for number in range(4)]


def use(descriptors, *numbers):
    for number in numbers:
        with descriptors.use(FILES[number]) as fd:
            os.fstat(fd)


def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_the_one_used_longest_ago_closes(descriptors, opened):
    use(descriptors, 0, 1, 0, 2)
    assert [number for number, _ in opened] == [0, 1, 2]
    use(descriptors, 0)
    assert len(opened) == 3
    use(descriptors, 1)
    assert [number for number, _ in opened] == [0, 1, 2, 1]


def test_what_is_used_stays_open_whoever_comes_or_forgets_it(descriptors, opened):
    with descriptors.use(FILES[0]) as first, descriptors.use(FILES[1]) as second, descriptors.use(FILES[2]) as third:
        assert all(map(is_open, (first, second, third)))
        descriptors.forget(FILES[1])
        assert is_open(second)
        descriptors.close()
        assert all(map(is_open, (first, second, third)))
    assert not any(map(is_open, (first, second, third)))
    with pytest.raises(StoreError), descriptors.use(FILES[0]):
        pass


def test_a_file_forgotten_while_idle_closes_at_once(descriptors, opened):
    use(descriptors, 0)
    descriptors.forget(FILES[0])
    descriptors.forget(FILES[3])
    assert not is_open(opened[0][1])


def test_whoever_closes_is_told_before(tmp_path):
    told = []
    made = Descriptors(lambda file: os.open(tmp_path, os.O_RDONLY), 1, lambda fd: told.append(is_open(fd)))
    use(made, 0, 1)
    made.close()
    assert told == [True, True]


def test_where_a_process_may_have_no_more_idle_ones_close(tmp_path):
    """An engine has sockets, too, and its user set the limit."""
    opened = []

    def limited(file):
        if len(opened) - len(closed) >= 4:
            raise OSError(errno.EMFILE, "Too many open files")
        opened.append(file.number)
        return os.open(tmp_path, os.O_RDONLY)

    closed = []
    descriptors = Descriptors(limited, 100, closed.append)
    for number in range(10):
        with descriptors.use(File(number, "f", is_writable=False)):
            pass
    assert opened == list(range(10))
    assert len(opened) - len(closed) <= 4
    with ExitStack() as in_use:
        for number in range(10, 14):
            in_use.enter_context(descriptors.use(File(number, "f", is_writable=False)))
        with pytest.raises(OSError, match="Too many"):
            in_use.enter_context(descriptors.use(File(14, "f", is_writable=False)))
    descriptors.close()
