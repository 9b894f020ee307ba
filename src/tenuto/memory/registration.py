"""Host memory that the CUDA driver was told of, and can copy at the full rate of the wire."""

from __future__ import annotations

import logging
from typing import Protocol

from tenuto.memory.driver import DriverError

logger = logging.getLogger(__name__)


class HostRegistrar(Protocol):
    """What pinning needs of a driver; `CudaDriver` is one. Calls raise `DriverError`."""

    def register_host(self, address: int, size_bytes: int) -> None:
        """Pin host memory that is mapped and touched."""
        ...

    def unregister_host(self, address: int) -> None:
        """Undo `register_host`."""
        ...

    def pci_address(self) -> str:
        """The current device as sysfs names it: ``0000:1b:00.0``."""
        ...


class Registrations:
    """Ranges registered with one driver; `close` undoes them all. One thread."""

    def __init__(self, driver: HostRegistrar) -> None:
        self._driver = driver
        self._addresses: list[int] = []

    def add(self, address: int, size_bytes: int) -> None:
        """Register a range. Raises `DriverError`; the ranges before stay registered."""
        self._driver.register_host(address, size_bytes)
        self._addresses.append(address)

    def close(self) -> None:
        """Undo every registration, the last one first; a second call does nothing."""
        failures: list[DriverError] = []
        while self._addresses:
            try:
                self._driver.unregister_host(self._addresses.pop())
            except DriverError as error:  # the context may be gone, and with it all that was pinned
                failures.append(error)
        if failures:
            logger.warning(
                "tenuto: host arena: %d pieces stay pinned until the process ends: %s", len(failures), failures[0]
            )
