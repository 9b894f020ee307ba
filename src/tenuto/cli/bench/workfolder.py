"""A folder that a bench may fill."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tenuto.errors import ConfigError


@contextmanager
def work_folder(folder: Path) -> Generator[Path]:
    """A folder of our own in `folder`, removed afterwards. Raises `ConfigError` when it can't be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix="bench-", dir=folder))
    except OSError as error:
        raise ConfigError(f"--dir: can't write to {folder} ({error.strerror}); give another folder") from None
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
