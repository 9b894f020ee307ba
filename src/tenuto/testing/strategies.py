"""Hypothesis strategies for what tenuto works on."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tenuto.errors import Cause
from tenuto.memory.layout import Dtype, ExtentLayout
from tenuto.tokens import ExtraKeys, MediaSpan

MAX_TOKEN = 2**32 - 1


def token_ids(min_size: int = 0, max_size: int = 64) -> SearchStrategy[list[int]]:
    """Token ids of a prompt."""
    return st.lists(st.integers(0, MAX_TOKEN), min_size=min_size, max_size=max_size)


@st.composite
def cuts(draw: DrawFn, n: int) -> list[tuple[int, int]]:
    """Half-open ranges that cut [0, n) into consecutive parts, some perhaps empty."""
    inner = sorted(draw(st.lists(st.integers(0, n), max_size=6)))
    return list(itertools.pairwise([0, *inner, n]))


@st.composite
def extra_keys(draw: DrawFn, n_tokens: int) -> ExtraKeys:
    """The extra identity of a request of `n_tokens` tokens."""
    name = draw(st.sampled_from(["", "adapter", "other"]))
    spans: list[MediaSpan] = []
    at = 0
    while at < n_tokens and draw(st.booleans()):
        start = draw(st.integers(at, n_tokens - 1))
        at = draw(st.integers(start + 1, n_tokens))
        spans.append(MediaSpan(draw(st.sampled_from(["image", "clip"])), start, at))
    return ExtraKeys(name, "fingerprint" if name else "", draw(st.sampled_from(["", "salt"])), tuple(spans))


@st.composite
def layouts(draw: DrawFn) -> ExtentLayout:
    """Small extents of any shape, perhaps of one of several ranks."""
    layer, head = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    k_dim = draw(st.sampled_from([1, 4, 8]))
    return ExtentLayout(
        block_tokens=draw(st.sampled_from([1, 4, 16])),
        layers=(layer, layer + draw(st.integers(1, 3))),
        heads=(head, head + draw(st.integers(1, 3))),
        k_dim=k_dim,
        v_dim=draw(st.sampled_from([0, k_dim])),
        dtype=draw(st.sampled_from(Dtype)),
        group=draw(st.integers(0, 2)),
    )


def prompts(max_blocks: int = 6, n_kinds: int = 2, block_tokens: int = 4) -> SearchStrategy[list[int]]:
    """Prompts of whole blocks that share prefixes often: each block is one of `n_kinds`."""

    def spell(kinds: list[int]) -> list[int]:
        return [kind for kind in kinds for _ in range(block_tokens)]

    return st.lists(st.integers(0, n_kinds - 1), min_size=1, max_size=max_blocks).map(spell)


def causes() -> SearchStrategy[Cause]:
    """Why a block can fail."""
    return st.sampled_from(Cause)
