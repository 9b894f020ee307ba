"""Files of traces and recordings, packed by gzip or not."""

from __future__ import annotations

import zlib
from collections.abc import Generator
from contextlib import contextmanager
from gzip import GzipFile
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from tenuto.errors import ConfigError

_GZIP = b"\x1f\x8b"


@contextmanager
def open_lines(path: Path) -> Generator[BinaryIO]:
    """The bytes of a file; unpacked where it begins as gzip does, whatever its name. Closed at the end.

    Raises `ConfigError` when it can't be read, or is broken.
    """
    try:
        with path.open("rb") as file:
            if file.peek(len(_GZIP)).startswith(_GZIP):
                with BufferedReader(GzipFile(fileobj=file)) as unpacked:
                    yield unpacked
            else:
                yield file
    except (EOFError, zlib.error) as error:
        raise ConfigError(f"TRACE: {path} is not whole gzip ({error}); pack it again") from None
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(
            f"TRACE: can't read {path} ({why}); give a trace in Mooncake's format, or a recording"
        ) from None
