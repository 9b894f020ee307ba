"""Hypothesis: few examples and no deadlines; always the same ones in CI. `--hypothesis-profile=thorough` has more."""

import os

from hypothesis import settings

settings.register_profile("tests", max_examples=50, deadline=None, derandomize="CI" in os.environ)
settings.register_profile("thorough", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile("tests")
