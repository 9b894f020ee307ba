"""Ways of getting host memory from the kernel. Sources: memfd_create(2), madvise(2), mmap(2)."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from dataclasses import dataclass

from tenuto.errors import ConfigError

_MADV_POPULATE_WRITE = 23  # Linux 5.14; not in the mmap module, whose calls keep the interpreter lock besides


@dataclass(frozen=True, slots=True)
class Mapping:
    """Page-aligned, writable memory of this process; absent in forked children."""

    buffer: mmap.mmap
    address: int
    fd: int | None = None
    """What another process can map; None where the memory is private."""
    is_huge: bool = False
    """Whether it is of the kernel's reserved huge pages (hugetlb)."""

    def touch(self, start: int, size_bytes: int) -> None:
        """Have the kernel give the pages of a range that nobody has written; other threads run meanwhile.

        Raises `OSError` where it gives none. `start` is a multiple of a page.
        """
        libc = ctypes.CDLL(None, use_errno=True)
        address = ctypes.c_void_p(self.address + start)
        if libc.madvise(address, ctypes.c_size_t(size_bytes), _MADV_POPULATE_WRITE) == 0:
            return
        code = ctypes.get_errno()
        if code != errno.EINVAL or self.is_huge:  # writing to a huge page that is not granted ends the process
            raise OSError(code, os.strerror(code))
        ctypes.memset(address, 0, size_bytes)  # an older kernel

    def close(self) -> None:
        """Give the memory back. Raises `BufferError` while a view of it is held. Once only."""
        self.buffer.close()
        if self.fd is not None:
            os.close(self.fd)


def anonymous(size_bytes: int) -> Mapping:
    """Private memory, in huge pages where the kernel has them; pages are given at the first touch.

    Raises `ConfigError`, which names tiers.host.capacity.
    """
    _check_size(size_bytes)
    try:
        return _advised(mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except (OSError, ValueError, OverflowError) as error:
        raise _refused(size_bytes, error) from None


def shared(size_bytes: int) -> Mapping:
    """Memory that another process can map through `fd`, in transparent huge pages where shared memory has them.

    Raises `ConfigError`, which names tiers.host.capacity.
    """
    _check_size(size_bytes)
    try:
        fd = os.memfd_create("tenuto-host")
        return _mapped(fd, size_bytes)
    except (OSError, ValueError, OverflowError) as error:
        raise _refused(size_bytes, error) from None


def shared_huge(size_bytes: int) -> Mapping | None:
    """As `shared`, of the kernel's reserved huge pages and rounded up to whole ones; None unless it grants them all."""
    _check_size(size_bytes)
    try:
        fd = os.memfd_create("tenuto-host", os.MFD_CLOEXEC | os.MFD_HUGETLB)
        page_bytes = os.fstatvfs(fd).f_bsize
        return _mapped(fd, -(-size_bytes // page_bytes) * page_bytes, is_huge=True)
    except (OSError, ValueError, OverflowError):
        return None


def _mapped(fd: int, size_bytes: int, *, is_huge: bool = False) -> Mapping:
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, fd)
        os.ftruncate(fd, size_bytes)
        mapping = _advised(mmap.mmap(fd, size_bytes, mmap.MAP_SHARED), fd, is_huge=is_huge)
        undo.pop_all()
    return mapping


def _advised(buffer: mmap.mmap, fd: int | None = None, *, is_huge: bool = False) -> Mapping:
    buffer.madvise(mmap.MADV_DONTFORK)  # a fork must not part us from pages that are being read into
    with contextlib.suppress(OSError):  # a kernel without them
        buffer.madvise(mmap.MADV_HUGEPAGE)
    return Mapping(buffer, ctypes.addressof(ctypes.c_char.from_buffer(buffer)), fd, is_huge)


def _check_size(size_bytes: int) -> None:
    has = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
    if size_bytes > has:
        raise ConfigError(
            f"tiers.host.capacity: {size_bytes / 2**30:.1f} GiB is more than the {has / 2**30:.1f} GiB "
            "of memory there is; give less"
        )


def _refused(size_bytes: int, error: Exception) -> ConfigError:
    return ConfigError(f"tiers.host.capacity: {size_bytes / 2**30:.1f} GiB of memory can't be had ({error}); give less")
