"""The calls of the CUDA driver that torch does not offer, through ctypes on libcuda.

Sources: the CUDA driver API reference (cuMemHostRegister, cuMemcpyBatchAsync, cuGetProcAddress, cuDeviceGetPCIBusId).
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from tenuto.errors import ConfigError

_REGISTER_PORTABLE_MAPPED = 3  # CU_MEMHOSTREGISTER_PORTABLE | DEVICEMAP
_ORDER_STREAM = 1  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: sources are read in stream order
_BATCH_SINCE = 12080  # cuMemcpyBatchAsync came with CUDA 12.8
_NEEDED = ("cuDriverGetVersion", "cuGetErrorName", "cuMemHostRegister_v2", "cuMemHostUnregister", "cuMemcpyAsync")


class DriverError(RuntimeError):
    """A call of the CUDA driver failed; carries the driver's code."""

    def __init__(self, what: str, code: int, name: str) -> None:
        super().__init__(f"{what}: {name} ({code})")
        self.code = code


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _CopyAttributes(ctypes.Structure):
    _fields_ = (
        ("src_access_order", ctypes.c_int), ("src", _Location), ("dst", _Location), ("flags", ctypes.c_uint),
    )  # fmt: skip


class CudaDriver:
    """libcuda of this process. Raises `ConfigError` where there is none, or one that is no driver.

    A context must be current (torch makes one). Calls raise `DriverError`.
    """

    def __init__(self) -> None:
        try:
            self._lib = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise ConfigError(f"no CUDA driver: {error}; install NVIDIA's driver, or run on the CPU") from None
        version = ctypes.c_int()
        try:
            for name in _NEEDED:
                getattr(self._lib, name)
            self._check("cuDriverGetVersion", self._lib.cuDriverGetVersion(ctypes.byref(version)))
        except (AttributeError, DriverError) as error:
            raise ConfigError(f"no working CUDA driver: {error}; install NVIDIA's driver, or run on the CPU") from None
        self.version = version.value
        """As CUDA counts: 12080 is 12.8."""
        self._batch: Any = getattr(self._lib, "cuMemcpyBatchAsync_v2", None) if self.version >= _BATCH_SINCE else None
        self._attributes = _CopyAttributes(src_access_order=_ORDER_STREAM)
        self._attribute_starts = ctypes.c_size_t(0)

    def register_host(self, address: int, size_bytes: int) -> None:
        """Pin host memory that is mapped and touched."""
        code = self._lib.cuMemHostRegister_v2(
            ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), ctypes.c_uint(_REGISTER_PORTABLE_MAPPED)
        )
        self._check("cuMemHostRegister", code)

    def unregister_host(self, address: int) -> None:
        """Undo `register_host`."""
        self._check("cuMemHostUnregister", self._lib.cuMemHostUnregister(ctypes.c_void_p(address)))

    def pci_address(self) -> str:
        """The device of the current context as sysfs names it: ``0000:1b:00.0``."""
        device = ctypes.c_int()
        self._check("cuCtxGetDevice", self._lib.cuCtxGetDevice(ctypes.byref(device)))
        name = ctypes.create_string_buffer(32)
        self._check("cuDeviceGetPCIBusId", self._lib.cuDeviceGetPCIBusId(name, ctypes.c_int(len(name)), device))
        return name.value.decode().lower()

    def make_current(self, device: int) -> None:
        """Have calls of this thread mean a device: its primary context, which torch uses too."""
        self._check("cuInit", self._lib.cuInit(ctypes.c_uint(0)))
        context = ctypes.c_void_p()
        self._check("cuDevicePrimaryCtxRetain", self._lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self._check("cuCtxSetCurrent", self._lib.cuCtxSetCurrent(context))

    def copy(self, targets: npt.ArrayLike, sources: npt.ArrayLike, sizes: npt.ArrayLike, stream: int) -> None:
        """Queue copies between addresses of any kind on a stream, in no order among themselves."""
        arrays = [np.ascontiguousarray(values, dtype=np.uint64) for values in (targets, sources, sizes)]
        n = len(arrays[0])
        if self._batch is None or n == 1:
            for target, source, size in zip(*(array.tolist() for array in arrays), strict=True):
                code = self._lib.cuMemcpyAsync(
                    ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(size), ctypes.c_void_p(stream)
                )
                self._check("cuMemcpyAsync", code)
            return
        code = self._batch(
            *(ctypes.c_void_p(array.ctypes.data) for array in arrays), ctypes.c_size_t(n),
            ctypes.byref(self._attributes), ctypes.byref(self._attribute_starts), ctypes.c_size_t(1),
            ctypes.c_void_p(stream),
        )  # fmt: skip
        self._check("cuMemcpyBatchAsync", code)

    def _check(self, what: str, code: int) -> None:
        if code:
            name = ctypes.c_char_p()
            self._lib.cuGetErrorName(code, ctypes.byref(name))
            raise DriverError(what, code, (name.value or b"unknown error").decode())
