"""A disk through cuFile: GPU memory straight to and from files, or, without the kernel module, its compatibility mode.

Source: the cuFile API reference (cuFileDriverOpen, cuFileHandleRegister, cuFileBufRegister, cuFileRead, cuFileWrite).
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tenuto.errors import Cause, ConfigError, StoreError, store_error
from tenuto.memory.driver import CudaDriver, DriverError
from tenuto.tiers.disk.runtime.contract import File, Region
from tenuto.tiers.disk.runtime.descriptors import Descriptors
from tenuto.tiers.disk.runtime.device import Span
from tenuto.tiers.disk.runtime.direct import DirectFiles, open_direct, probe_file
from tenuto.tiers.disk.runtime.libraries import load_library
from tenuto.tiers.disk.runtime.probe import missing_for_start, remedy

logger = logging.getLogger(__name__)

LIBRARY = "libcufile.so.0"
_OPAQUE_FD = 1  # CU_FILE_HANDLE_TYPE_OPAQUE_FD
_ALLOW_COMPAT_MODE = 1  # CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE
_ALREADY_OPEN = 5026  # CU_FILE_DRIVER_ALREADY_OPEN
_FIRST_CODE = 5001
_KNOWN = {
    5001: "the kernel module nvidia-fs is not loaded, and compatibility mode is off",
    5004: "the kernel module nvidia-fs is of another version",
    5007: "this machine is not supported",
    5008: "the file or its file system is not supported",
    5009: "this GPU is not supported",
    5010: "the kernel module nvidia-fs failed",
    5011: "the CUDA driver failed",
    5012: "not an address of a GPU",
    5013: "memory of a kind that is not supported",
    5015: "memory of another CUDA context",
    5018: "a file of a kind that is not supported",
    5019: "the file is open in a way that is not supported",
    5020: "the file is not open for direct I/O",
    5023: "the memory is registered already",
    5025: "no access to the driver or the file",
    5027: "the file is not registered",
    5028: "the file is registered already",
    5029: "there is no such GPU",
    5030: "an internal error",
    5031: "no further descriptor",
    5033: "it can't be set up; cufile.log says what it lacks, as libudev.so.1",
    5034: "switched off for this file by cuFile's configuration",
    5036: "GPU memory can't be pinned",
}
"""Codes of cufile.h (CUfileOpError) that a user can meet."""


class _Error(ctypes.Structure):
    _fields_ = (("code", ctypes.c_int), ("cuda", ctypes.c_int))


class _Handle(ctypes.Union):
    _fields_ = (("fd", ctypes.c_int), ("pointer", ctypes.c_void_p))


class _Description(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("handle", _Handle), ("operations", ctypes.c_void_p))


def _text(code: int) -> str:
    return f"{_KNOWN[code]} ({code})" if code in _KNOWN else f"cuFile error {code}"


class CuFile:
    """libcufile of this process, opened. Calls raise `OSError`."""

    def __init__(self, library: Any) -> None:
        self._library = library
        for name in ("cuFileDriverOpen", "cuFileHandleRegister", "cuFileBufRegister", "cuFileBufDeregister",
                     "cuFileSetParameterBool"):  # fmt: skip
            if hasattr(library, name):
                getattr(library, name).restype = _Error
        library.cuFileHandleDeregister.restype = None
        for name in ("cuFileRead", "cuFileWrite"):
            call = getattr(library, name)
            call.restype = ctypes.c_ssize_t
            call.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_longlong, ctypes.c_longlong)

    def open(self) -> None:
        """Start its driver, once a process; compatibility mode is allowed where the library can be told so."""
        if hasattr(self._library, "cuFileSetParameterBool"):
            self._library.cuFileSetParameterBool(ctypes.c_int(_ALLOW_COMPAT_MODE), ctypes.c_bool(True))
        opened = self._library.cuFileDriverOpen()
        if opened.code != _ALREADY_OPEN:
            self._check("cuFileDriverOpen", opened)

    def register_file(self, fd: int) -> int:
        """The handle of an open file."""
        handle = ctypes.c_void_p()
        description = _Description(type=_OPAQUE_FD, handle=_Handle(fd=fd))
        self._check(
            "cuFileHandleRegister",
            self._library.cuFileHandleRegister(ctypes.byref(handle), ctypes.byref(description)),
        )
        return handle.value or 0

    def unregister_file(self, handle: int) -> None:
        """Undo it."""
        self._library.cuFileHandleDeregister(ctypes.c_void_p(handle))

    def register_memory(self, address: int, n_bytes: int) -> None:
        """GPU memory, as a whole."""
        code = self._library.cuFileBufRegister(ctypes.c_void_p(address), ctypes.c_size_t(n_bytes), ctypes.c_int(0))
        self._check("cuFileBufRegister", code)

    def unregister_memory(self, address: int) -> None:
        """Undo it."""
        self._library.cuFileBufDeregister(ctypes.c_void_p(address))

    def read(self, handle: int, address: int, n_bytes: int, offset: int, memory_offset: int) -> int:
        """Bytes read into registered memory at `address`, from `memory_offset` on."""
        return self._move("cuFileRead", handle, address, n_bytes, offset, memory_offset)

    def write(self, handle: int, address: int, n_bytes: int, offset: int, memory_offset: int) -> int:
        """Bytes written."""
        return self._move("cuFileWrite", handle, address, n_bytes, offset, memory_offset)

    def _move(self, what: str, *arguments: int) -> int:
        """Bytes moved. -1 stands for errno, in which the library also puts codes of its own; others for their code."""
        ctypes.set_errno(0)  # an older call's would be taken for this one's
        result = getattr(self._library, what)(*arguments)
        if result >= 0:
            return result
        number = -result if result < -1 else ctypes.get_errno()
        if number >= _FIRST_CODE:
            raise OSError(errno.EIO, f"{what}: {_text(number)}")
        number = number or errno.EIO
        raise OSError(number, f"{what}: {os.strerror(number)}")

    def _check(self, what: str, error: _Error) -> None:
        if error.code:
            cuda = f", CUDA error {error.cuda}" if error.cuda else ""
            raise OSError(errno.EIO, f"{what}: {_text(error.code)}{cuda}")


def missing_for_cufile() -> str:
    """What is not here, and what brings it; empty when nothing is missing."""
    if load_library(LIBRARY) is None:
        return f"{LIBRARY} is missing; `pip install nvidia-cufile-cu12`, or NVIDIA's package libcufile, brings it"
    if load_library("libcuda.so.1") is None:
        return "libcuda.so.1 is missing; NVIDIA's driver brings it"
    return missing_for_start()


def load_cufile() -> CuFile:
    """It, opened. Raises `ConfigError` that says what is missing."""
    absent, library = missing_for_cufile(), load_library(LIBRARY)
    if absent or library is None:
        raise ConfigError(f"cufile: {absent}")
    cufile = CuFile(library)
    try:
        cufile.open()
    except OSError as error:
        raise ConfigError(f"cufile: it does not start here: {error.strerror}") from error
    return cufile


def check_folder(root: Path, cufile: CuFile) -> None:
    """Register a file of the folder, which is gone afterwards.

    Raises `ConfigError`, one line, where cuFile takes none, and `StoreError` where the folder does not.
    """
    with probe_file(root) as fd:
        try:
            handle = cufile.register_file(fd)
        except OSError as error:
            raise ConfigError(f"cufile: {root} can't be used: {error.strerror}; {remedy(fd)}") from error
        cufile.unregister_file(handle)


class CuFiles:
    """See `Device`. GPU memory moves through cuFile, host memory as `DirectFiles` does it."""

    def __init__(self, root: Path, cufile: CuFile, driver: CudaDriver, max_open_files: int = 512) -> None:
        self._host = DirectFiles(root, max_open_files)
        self._cufile = cufile
        self._driver = driver
        self._descriptors = Descriptors(self._open, max_open_files, self._closing)
        self._handles: dict[int, int] = {}
        self._registered: set[int] = set()
        self._current = threading.local()

    def sizes(self, folder: str) -> dict[str, int]:
        """See `Device`."""
        return self._host.sizes(folder)

    def reserve(self, name: str, n_bytes: int) -> None:
        """See `Device`."""
        self._host.reserve(name, n_bytes)

    def delete(self, name: str) -> None:
        """See `Device`."""
        self._host.delete(name)

    def n_extents(self, name: str) -> int:
        """See `Device`."""
        return self._host.n_extents(name)

    def read(self, file: File, offset: int, spans: Sequence[Span]) -> int:
        """See `Device`."""
        if spans[0].region.view is not None:
            return self._host.read(file, offset, spans)
        return self._move("read", self._cufile.read, file, offset, spans)

    def write(self, file: File, offset: int, spans: Sequence[Span]) -> None:
        """See `Device`."""
        if spans[0].region.view is not None:
            self._host.write(file, offset, spans)
        elif (n_bytes := self._move("write", self._cufile.write, file, offset, spans)) < sum(s.n_bytes for s in spans):
            raise StoreError(Cause.IO_ERROR, f"write {file.name}: cuFile wrote only {n_bytes} bytes")

    def forget(self, file: File) -> None:
        """See `Device`."""
        self._host.forget(file)
        self._descriptors.forget(file)

    def attach(self, region: Region) -> None:
        """See `Device`. GPU memory that cuFile does not register goes through buffers of its own: slower, not wrong."""
        if region.memory.device is not None:
            self._use(region.memory.device)
            try:
                self._cufile.register_memory(region.memory.address, region.memory.n_bytes)
                self._registered.add(region.number)
            except OSError as error:
                gpu, why = region.memory.device, error.strerror
                logger.warning("tenuto: cuFile does not register memory of GPU %d: %s", gpu, why)

    def detach(self, region: Region) -> None:
        """See `Device`."""
        if region.memory.device is not None and region.number in self._registered:
            self._registered.discard(region.number)
            self._use(region.memory.device)
            self._cufile.unregister_memory(region.memory.address)

    def close(self) -> None:
        """See `Device`."""
        self._host.close()
        self._descriptors.close()

    def _move(
        self, what: str, call: Callable[[int, int, int, int, int], int], file: File, offset: int, spans: Sequence[Span]
    ) -> int:
        """Bytes moved, till the file ends."""
        done = 0
        try:
            with self._descriptors.use(file) as fd:
                for span in spans:
                    memory = span.region.memory
                    self._use(memory.device or 0)
                    n = call(self._handles[fd], memory.address, span.n_bytes, offset + done, span.offset)
                    done += n
                    if n < span.n_bytes:
                        break
        except FileNotFoundError as error:
            raise StoreError(Cause.MISSING, f"{file.name} is gone") from error
        except OSError as error:
            raise store_error(error, f"{what} {file.name}") from error
        return done

    def _use(self, device: int) -> None:
        """Make the device's context this thread's."""
        if getattr(self._current, "device", None) == device:
            return
        try:
            self._driver.make_current(device)
        except DriverError as error:
            raise StoreError(Cause.IO_ERROR, f"GPU {device}: {error}") from error
        self._current.device = device

    def _open(self, file: File) -> int:
        fd, _ = open_direct(self._host.root / file.name, is_writable=file.is_writable)
        try:
            self._handles[fd] = self._cufile.register_file(fd)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _closing(self, fd: int) -> None:
        self._cufile.unregister_file(self._handles.pop(fd))

    def __repr__(self) -> str:
        return f"<CuFiles {self._host.root}>"
