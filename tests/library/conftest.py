"""Caches whose books balance at the end of each test."""

import pytest

from tests.library.library_rig import opened


@pytest.fixture
def cache():
    """Eight device blocks above sixteen host slots, no disk."""
    with opened() as made:
        yield made
        assert made.flush()
        made.check()
