"""Dynamo's own code, as it is published: the real router's hashes and its tree."""

import sys
from pathlib import Path

import pytest

DYNAMO = Path(__file__).resolve().parents[3] / ".venv" / "dynamo-1.6.1"


@pytest.fixture(scope="session")
def dynamo():
    """`dynamo._core`, from a folder of its own."""
    assert (DYNAMO / "dynamo").is_dir(), f"{DYNAMO} is missing: run `make install`"
    sys.path.append(str(DYNAMO))
    try:
        from dynamo import _core
    finally:
        sys.path.remove(str(DYNAMO))
    return _core
