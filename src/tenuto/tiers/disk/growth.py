"""Adding pool files: reserved under the node's quota, written full of zeros, then listed."""

from __future__ import annotations

import logging
import mmap
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from tenuto.errors import StoreError, store_error
from tenuto.tiers.disk.files import PoolFiles
from tenuto.tiers.disk.instance import Claim, root_lock
from tenuto.tiers.disk.manifest import Manifest
from tenuto.tiers.disk.quota import Quota
from tenuto.tiers.disk.runtime.extents import MOST_EXTENTS
from tenuto.tiers.disk.slotmap import SlotMap
from tenuto.tiers.store import Capacity

logger = logging.getLogger(__name__)

STEP_BYTES = 4 << 20
_LEAST_FILES = 16  # so that the last file that fits leaves little of the capacity unused
_MOST_FILES = 512  # each is an open descriptor
_RETRY_S = 10.0
_JOIN_S = 5.0
_HANGS_S = 30.0
"""A file that takes longer is not waited for: slots are evicted meanwhile."""


class Growth:
    """Owns which slots can be used. One daemon thread adds a file when fewer than half a file is free."""

    def __init__(self, claim: Claim, files: PoolFiles, manifest: Manifest, quota: Quota, extent_bytes: int) -> None:
        self._claim = claim
        self._files = files
        self._manifest = manifest
        self._quota = quota
        self._extent_bytes = extent_bytes
        self._zeros = memoryview(mmap.mmap(-1, STEP_BYTES))
        self._changed = threading.Condition()
        self._n_used = 0
        self._is_growing = True
        self._closing = threading.Event()
        self._has_told = False
        self._began_at = 0.0  # while a file is being added
        self._is_kept_small = False  # room was given back: no file is added before more is used
        self._files_change = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name="tenuto-grow", daemon=True)
        self.slots_per_file = 1
        """Slots of the files that are added."""
        self.slots = SlotMap({})
        """Where the slots lie."""

    def recover(self, max_file_bytes: int) -> None:
        """Make files, rows and capacity agree.

        Files that are not listed go; listed ones get their size back, and reads find what was lost; those that a
        capacity made smaller has no room for go, last first. New files will have at most about `max_file_bytes`.
        Raises `StoreError`.
        """
        capacity = self._quota.reachable_bytes()
        wish = max(min(max_file_bytes, capacity // _LEAST_FILES), capacity // _MOST_FILES)
        self.slots_per_file = max(1, wish // self._extent_bytes)
        listed, sizes = self._manifest.files(), self._files.sizes()
        self.slots = SlotMap(listed)
        for number in sizes.keys() - listed.keys():
            self._files.delete(number)
        self._shrink()
        for number in range(self.slots.n_files):
            size_bytes = listed[number] * self._extent_bytes
            if sizes.get(number, 0) < size_bytes:
                logger.warning("tenuto: pool file %d was cut short; its lost blocks will be misses", number)
            if sizes.get(number, 0) != size_bytes:  # longer where who gave room back was killed
                self._files.reserve(number, size_bytes)

    def start(self) -> None:
        """Begin to grow."""
        self._thread.start()

    def capacity(self) -> Capacity:
        """Slots that can be written now."""
        with self._changed:
            hangs = self._began_at and time.monotonic() - self._began_at > _HANGS_S
            return Capacity(self.slots.n_slots, self._is_growing and not hangs)

    @property
    def most_slots(self) -> int:
        """Slots there may be one day; those there are when no more will come."""
        n_now, now = self.slots.n_slots, self.capacity()
        return max(n_now, self._quota.most_bytes // self._extent_bytes) if now.is_growing else n_now

    def used(self, n_slots: int) -> None:
        """`n_slots` slots hold blocks; adds a file when that is nearly all."""
        with self._changed:
            self._is_kept_small &= n_slots <= self._n_used
            self._n_used = n_slots
            self._changed.notify()

    def give_back(self, n_slots: int) -> int:
        """Cut the files off behind the first `n_slots` slots, as nothing lies there; bytes that are free now.

        Files are added again when more slots are used than now. Raises `StoreError`.
        """
        freed_slots = 0
        if not self._files_change.acquire(timeout=_HANGS_S):
            return 0  # a file is being added, on a disk that hangs
        try:
            with self._changed:
                self._is_kept_small = True
            while self.slots.n_slots > n_slots:
                number = self.slots.n_files - 1
                slots = self.slots.slots(number)
                left = max(0, n_slots - slots.start)
                if left:
                    self._manifest.cut_file(number, left)
                    self._files.reserve(number, left * self._extent_bytes)
                    self.slots.cut_last(left)
                else:
                    self._manifest.drop_file(number, slots)
                    self._files.delete(number)
                    self.slots.drop_last()
                freed_slots += len(slots) - left
        finally:
            self._files_change.release()
        return freed_slots * self._extent_bytes

    def close(self) -> None:
        """End the thread; a file that is being written is left to the next recovery."""
        self._closing.set()
        with self._changed:
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)  # on a disk that hangs it is left behind: a daemon

    def _wants_file(self) -> bool:
        n_free = self.slots.n_slots - self._n_used
        return not self._is_kept_small and n_free < max(1, self.slots_per_file // 2)

    def _loop(self) -> None:
        has_failed = False
        while True:
            with self._changed:
                while not self._closing.is_set() and not self._wants_file():
                    self._changed.wait()
                self._began_at = time.monotonic()
            if self._closing.is_set():
                return
            try:
                with self._files_change:
                    grew = self._add_file()
                has_failed = False
            except StoreError as error:
                grew = False
                if not has_failed:
                    logger.warning("tenuto: the disk tier can't grow: %s; trying again later", error)
                has_failed = True
            with self._changed:
                self._began_at = 0.0
                self._is_growing = grew
            if not grew:
                self._closing.wait(_RETRY_S)

    def _add_file(self) -> bool:
        """Whether a file was added; no when the quota has no room for it. Raises `StoreError`."""
        number, size_bytes = self.slots.n_files, self.slots_per_file * self._extent_bytes
        with self._decision():
            if not self._quota.has_room(size_bytes, self._claim.instance, is_needed=number == 0):
                self._tell_once(size_bytes)
                return False
            self._files.reserve(number, size_bytes)
        try:
            for at in range(0, size_bytes, STEP_BYTES):
                if self._closing.is_set():
                    return False
                self._files.write_from(number, at, self._zeros[: min(STEP_BYTES, size_bytes - at)])
            if (n_extents := self._files.n_extents(number)) > MOST_EXTENTS:
                logger.warning("tenuto: pool file %d lies in %d pieces: this disk is nearly full", number, n_extents)
            self._manifest.add_file(number, self.slots_per_file)
        except StoreError:
            self._files.delete(number)
            raise
        with self._changed:
            self.slots.add(self.slots_per_file)
        return True

    def _tell_once(self, size_bytes: int) -> None:
        """Say so where there is no file at all: nothing is written then."""
        if not (self._has_told or self.slots.n_files):
            self._has_told = True
            logger.warning("tenuto: %s", self._quota.why_no_room(size_bytes))

    def _shrink(self) -> None:
        with self._decision():
            while self.slots.n_files and not self._quota.is_kept(self._claim.instance):
                number = self.slots.n_files - 1
                self._manifest.drop_file(number, self.slots.slots(number))
                self._files.delete(number)
                self.slots.drop_last()

    @contextmanager
    def _decision(self) -> Generator[None]:
        """The node's lock, with its errors mapped."""
        try:
            with root_lock(self._quota.root):
                yield
        except OSError as error:
            raise store_error(error, f"decide on space under {self._quota.root}") from error
