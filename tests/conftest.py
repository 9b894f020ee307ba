"""Hypothesis: few examples and no deadlines; always the same ones in CI. `--hypothesis-profile=thorough` has more."""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

settings.register_profile("tests", max_examples=50, deadline=None, derandomize="CI" in os.environ)
settings.register_profile("thorough", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile("tests")


DYNAMO = Path(__file__).resolve().parents[1] / ".venv" / "dynamo-1.6.1"


@pytest.fixture(scope="session")
def dynamo() -> ModuleType:
    """Dynamo's own code as it is published, `dynamo._core`: a router's hashes and its tree."""
    assert (DYNAMO / "dynamo").is_dir(), f"{DYNAMO} is missing: run `make install`"
    sys.path.append(str(DYNAMO))
    try:
        from dynamo import _core
    finally:
        sys.path.remove(str(DYNAMO))
    return _core


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def our_log() -> Iterator[Callable[[], list[logging.LogRecord]]]:
    """What tenuto logs, each record once, whatever an engine in this process did to the handlers."""
    logger, kept = logging.getLogger("tenuto"), _Kept()
    level = logger.level
    logger.addHandler(kept)
    logger.setLevel(logging.INFO)
    yield lambda: kept.records
    logger.removeHandler(kept)
    logger.setLevel(level)
