"""Adding pool files: reserved under the node's quota, written full of zeros, then listed."""

from __future__ import annotations

import logging
import mmap
import threading

from tenuto.errors import StoreError, store_error
from tenuto.memory.extent import ExtentCodec
from tenuto.tiers.disk.files import PoolFiles
from tenuto.tiers.disk.instance import Claim, root_lock
from tenuto.tiers.disk.manifest import Manifest
from tenuto.tiers.disk.quota import Quota
from tenuto.tiers.store import Capacity
from tenuto.tokens import FORMAT_VERSION

logger = logging.getLogger(__name__)

STEP_BYTES = 4 << 20
_RETRY_S = 10.0


def files_meta(codec: ExtentCodec, per_file: int) -> dict[str, str]:
    """What a rank folder is for; other values mean other bytes."""
    layout = codec.layout
    return {
        "format": str(FORMAT_VERSION),
        "namespace": codec.namespace.hex(),
        "extent_bytes": str(layout.extent_bytes),
        "layers": f"{layout.layers[0]}:{layout.layers[1]}",
        "heads": f"{layout.heads[0]}:{layout.heads[1]}",
        "per_file": str(per_file),
    }


class Growth:
    """Owns the number of usable slots. One daemon thread adds a file when fewer than half a file is free."""

    def __init__(
        self,
        claim: Claim,
        files: PoolFiles,
        manifest: Manifest,
        quota: Quota,
        extent_bytes: int,
        per_file: int,
    ) -> None:
        self._claim = claim
        self._files = files
        self._manifest = manifest
        self._quota = quota
        self._extent_bytes = extent_bytes
        self._per_file = per_file
        self._zeros = memoryview(mmap.mmap(-1, STEP_BYTES))
        self._changed = threading.Condition()
        self._n_files = 0
        self._n_used = 0
        self._is_growing = True
        self._is_closed = False
        self._thread = threading.Thread(target=self._loop, name="tenuto-grow", daemon=True)

    def recover(self) -> None:
        """Delete files that are not listed; give listed ones their size back. Reads find what was lost."""
        listed, sizes = self._manifest.files(), self._files.sizes()
        for number in sizes.keys() - listed.keys():
            self._files.delete(number)  # a file whose writing did not end
        for number in listed:
            if sizes.get(number, 0) < self._file_bytes:
                logger.warning("pool file %d was cut short; its lost blocks will be misses", number)
                self._files.reserve(number, self._file_bytes)
        self._manifest.delete_other_epochs()
        self._n_files = len(listed)
        self._thread.start()

    def capacity(self) -> Capacity:
        """Slots that can be written now."""
        with self._changed:
            return Capacity(self._n_files * self._per_file, self._is_growing)

    def used(self, n_slots: int) -> None:
        """`n_slots` slots hold blocks; adds a file when that is nearly all."""
        with self._changed:
            self._n_used = n_slots
            self._changed.notify()

    def close(self) -> None:
        """End the thread; a file that is being written is left to the next recovery."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def _file_bytes(self) -> int:
        return self._per_file * self._extent_bytes

    def _wants_file(self) -> bool:
        return self._n_files * self._per_file - self._n_used < max(1, self._per_file // 2)

    def _loop(self) -> None:
        failed = False
        while True:
            with self._changed:
                while not self._is_closed and not self._wants_file():
                    self._changed.wait()
                if self._is_closed:
                    return
            try:
                grew = self._add_file()
                failed = False
            except StoreError as error:
                grew = False
                if not failed:
                    logger.warning("disk tier can't grow: %s; trying again later", error)
                failed = True
            with self._changed:
                self._is_growing = grew
                if not grew and not self._is_closed:
                    self._changed.wait(_RETRY_S)

    def _add_file(self) -> bool:
        """Whether a file was added; no when the quota has no room for it. Raises `StoreError`."""
        number = self._n_files
        try:
            with root_lock(self._quota.root):
                if not self._quota.has_room(self._file_bytes, self._claim.instance):
                    return False
                self._files.reserve(number, self._file_bytes)
        except OSError as error:
            raise store_error(error, f"reserve under {self._quota.root}") from error
        try:
            for at in range(0, self._file_bytes, STEP_BYTES):
                if self._is_closed:
                    return False
                n = min(STEP_BYTES, self._file_bytes - at)
                self._files.write_from(number, at, self._zeros[:n])
            self._manifest.add_file(number, self._per_file)
        except StoreError:
            self._files.delete(number)
            raise
        with self._changed:
            self._n_files += 1
        return True
