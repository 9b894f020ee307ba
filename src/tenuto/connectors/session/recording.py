"""The manager of a session, and the file that what it is told goes to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from tenuto.connectors.session.rankfiles import engine_file
from tenuto.connectors.session.setup import Setup
from tenuto.errors import ConfigError
from tenuto.manager import BlockManager, Limits, make_admission
from tenuto.metrics import Recorder
from tenuto.pools import Pool, make_policy
from tenuto.settings import expand_user
from tenuto.simulator.recorded import RecordedManager

logger = logging.getLogger(__name__)

MOST_BYTES = 1 << 30
"""Of one recording; it ends there."""


class RecordFile:
    """Takes lines until the file refuses one or is full; then says so once, and `ended` is called."""

    def __init__(self, path: Path, ended: Callable[[], None], most_bytes: int = MOST_BYTES) -> None:
        self._path = path
        self._ended = ended
        self._left = most_bytes
        try:
            if path.is_file():  # of the engine before, which may have crashed
                path.replace(path.with_name(f"{path.stem}-before{path.suffix}"))
            self._file: BinaryIO | None = path.open("wb", buffering=0)
        except OSError as error:
            raise ConfigError(
                f"runtime.record_file: can't write {path} ({error.strerror}); give another file"
            ) from None

    def write(self, line: bytes) -> None:
        """One line more; never fails."""
        if self._file is None:
            return
        self._left -= len(line) + 1
        if self._left < 0:
            self._end(f"it has {MOST_BYTES >> 20} MiB")
            return
        try:
            if self._file.write(line + b"\n") != len(line) + 1:
                self._end("the disk is full")
        except OSError as error:
            self._end(str(error.strerror or error))

    def _end(self, why: str) -> None:
        logger.warning("tenuto: the recording in %s ends here: %s", self._path, why)
        file, self._file = self._file, None
        self._ended()
        if file is not None:
            try:
                file.close()
            except OSError:
                logger.debug("tenuto: %s could not be closed", self._path)


def make_manager(setup: Setup, recorder: Recorder, clock: Callable[[], float]) -> BlockManager:
    """The manager that the settings say. Raises `ConfigError` for a name or a file that is of no use."""
    host, disk, runtime = setup.config.tiers.host, setup.config.tiers.disk, setup.config.runtime
    kind = RecordedManager if runtime.record_file else BlockManager
    manager = kind(
        Pool("host", setup.n_host_slots, make_policy(host.policy, "tiers.host.policy")),
        Pool("disk", 0, make_policy(disk.policy, "tiers.disk.policy")) if setup.has_disk else None,
        Limits(max_writes=setup.max_writes),
        recorder,
        setup.layout.extent_bytes * setup.world_size,
        make_admission(disk.admission, "tiers.disk.admission"),
    )
    if isinstance(manager, RecordedManager):
        path = engine_file(expand_user(Path(runtime.record_file), "runtime.record_file"), setup.engine_index)
        file = RecordFile(path, manager.stop_recording)
        manager.record(file.write, clock, {
            "host_blocks": setup.n_host_slots, "host_policy": host.policy, "has_disk": setup.has_disk,
            "disk_policy": disk.policy, "admission": disk.admission, "max_writes": setup.max_writes,
            "block_tokens": setup.layout.block_tokens, "block_bytes": setup.layout.extent_bytes * setup.world_size,
        })  # fmt: skip
    return manager
