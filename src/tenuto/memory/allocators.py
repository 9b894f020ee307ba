"""Where the memory of blocks comes from. Each kind says what it lacks here."""

from __future__ import annotations

import mmap
import os
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from tenuto.errors import ConfigError


class Allocator(Protocol):
    """Gives memory that lives as long as what it gives is held."""

    def allocate(self, size_bytes: int) -> Any:
        """At least `size_bytes` bytes, zero: what `BlockMemory` takes as a buffer. Raises `ConfigError`."""
        ...


class Heap:
    """Memory of this process: "heap"."""

    def allocate(self, size_bytes: int) -> Any:
        """See `Allocator`: a numpy array."""
        try:
            return np.zeros(size_bytes, np.uint8)
        except (MemoryError, ValueError) as error:
            raise _refused("heap", size_bytes, str(error)) from None


class Shared:
    """Memory that another process can map: "shared"."""

    fd: int | None = None
    """The file of what was allocated last, open as long as this object; None before."""

    def allocate(self, size_bytes: int) -> Any:
        """See `Allocator`: a shared mapping (memfd_create(2), Linux)."""
        try:
            fd = os.memfd_create("tenuto-blocks")
            try:
                os.ftruncate(fd, size_bytes)
                found = mmap.mmap(fd, size_bytes, mmap.MAP_SHARED)
            except (OSError, ValueError, OverflowError):
                os.close(fd)
                raise
        except (OSError, ValueError, OverflowError) as error:
            raise _refused("shared", size_bytes, str(error)) from None
        self._close()
        self.fd = fd
        return found

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


class Pinned:
    """Host memory that a GPU copies from and into at the rate of the wire: "pinned". It takes torch and CUDA."""

    def allocate(self, size_bytes: int) -> Any:
        """See `Allocator`: a torch tensor."""
        torch = _torch_with_cuda("pinned")
        try:
            return torch.zeros(size_bytes, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:
            raise _refused("pinned", size_bytes, str(error).splitlines()[0]) from None


class OnDevice:
    """Memory of a GPU, by torch's name for it, as "cuda:1"; with none, "device". It takes torch and CUDA."""

    def __init__(self, device: str = "cuda") -> None:
        self.device = device

    def allocate(self, size_bytes: int) -> Any:
        """See `Allocator`: a torch tensor."""
        torch = _torch_with_cuda("device")
        try:
            return torch.zeros(size_bytes, dtype=torch.uint8, device=self.device)
        except RuntimeError as error:  # also torch's out of memory
            raise _refused("device", size_bytes, str(error).splitlines()[0]) from None


ALLOCATORS: dict[str, type[Heap | Shared | Pinned | OnDevice]] = {
    "heap": Heap,
    "shared": Shared,
    "pinned": Pinned,
    "device": OnDevice,
}


def allocator_of(chosen: str | Allocator) -> Allocator:
    """The allocator of a name, or the one that was given. Raises `ConfigError` for what is none."""
    if isinstance(chosen, type):
        raise ConfigError(f"allocator: {chosen.__name__} is a class; give one of it: {chosen.__name__}()")
    if not isinstance(chosen, str):
        if not callable(getattr(chosen, "allocate", None)):
            raise ConfigError(f"allocator: {chosen!r} can't allocate; give {', '.join(map(repr, ALLOCATORS))}")
        return chosen
    if chosen not in ALLOCATORS:
        raise ConfigError(f"allocator: {chosen!r} is not known; give {', '.join(map(repr, ALLOCATORS))}")
    return ALLOCATORS[chosen]()


def _torch_with_cuda(kind: str) -> Any:
    if find_spec("torch") is None:
        raise ConfigError(f'allocator: "{kind}" needs torch, which is not in this Python; install it, or give "heap"')
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(f'allocator: "{kind}" needs a CUDA GPU, and torch sees none here; give "heap" or "shared"')
    return torch


def _refused(kind: str, size_bytes: int, why: str) -> ConfigError:
    return ConfigError(f'allocator: {size_bytes / 2**30:.1f} GiB of "{kind}" memory can\'t be had ({why}); give less')
