"""Block hashes, recomputed here straight from docs/format.md."""

import struct
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.testing.strategies import cuts, extra_keys, token_ids
from tenuto.tokens import BlockKey, ExtraKeys, HashChain, MediaSpan

pytestmark = pytest.mark.unit

ROOT = bytes(range(16))
BLOCK_TOKENS = 4


def straight_hashes(tokens: list[int], extras: list[bytes] | None = None) -> list[bytes]:
    """SHA-256/128 of parent ‖ token ids ‖ extra keys, one block after the other."""
    hashes, parent = [], ROOT
    for index in range(len(tokens) // BLOCK_TOKENS):
        block = tokens[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS]
        extra = extras[index] if extras else b""
        parent = sha256(parent + struct.pack(f"<{BLOCK_TOKENS}I", *block) + extra).digest()[:16]
        hashes.append(parent)
    return hashes


def chain_of(tokens: list[int], extra: ExtraKeys | None = None) -> HashChain:
    chain = HashChain(ROOT, BLOCK_TOKENS, extra)
    chain.append(tokens)
    return chain


@given(token_ids())
def test_hashes_are_those_of_the_format_note(tokens):
    assert chain_of(tokens).hashes == straight_hashes(tokens)


@given(st.data(), token_ids(max_size=40))
def test_appending_in_parts_gives_the_same_chain_as_at_once(data, tokens):
    extra = data.draw(extra_keys(len(tokens)))
    chain = HashChain(ROOT, BLOCK_TOKENS, extra)
    for start, stop in data.draw(cuts(len(tokens))):
        chain.append(tokens[start:stop])
    whole = chain_of(tokens, extra)
    assert chain.hashes == whole.hashes
    assert len(chain) == len(tokens)
    assert [chain.block(i) for i in range(len(chain.hashes))] == [whole.block(i) for i in range(len(whole.hashes))]


def test_ids_given_as_bytes_are_the_same_tokens():
    chain = HashChain(ROOT, BLOCK_TOKENS)
    chain.append_bytes(struct.pack("<8I", *range(8)))
    assert chain.hashes == chain_of(list(range(8))).hashes


def test_an_unfinished_block_has_no_hash():
    chain = chain_of([1, 2, 3])
    assert chain.hashes == []
    assert len(chain) == 3
    chain.append([4])
    assert len(chain.hashes) == 1


def test_a_changed_token_changes_its_block_and_all_after_it():
    one, other = chain_of(list(range(16))), chain_of([*range(9), 99, *range(10, 16)])
    assert [a == b for a, b in zip(one.hashes, other.hashes, strict=True)] == [True, True, False, False]


@pytest.mark.parametrize("token", [-1, 2**32])
def test_an_id_that_is_no_uint32_is_refused(token):
    with pytest.raises(OverflowError):
        chain_of([token] * BLOCK_TOKENS)


def test_a_key_names_the_block_its_parent_and_the_chains_first():
    chain = chain_of(list(range(12)))
    first, second, third = chain.hashes
    assert [chain.key(i) for i in range(3)] == [
        BlockKey(first, ROOT, first),
        BlockKey(second, first, first),
        BlockKey(third, second, first),
    ]


def test_a_block_has_its_tokens_and_place():
    block = chain_of(list(range(12))).block(1)
    assert block.token_bytes == struct.pack("<4I", 4, 5, 6, 7)
    assert (block.index, block.extra) == (1, b"")
    assert block.key == chain_of(list(range(12))).key(1)


def test_the_first_parent_is_the_namespace_so_no_two_namespaces_share_a_block():
    one, other = chain_of(list(range(12))), HashChain(bytes(16), BLOCK_TOKENS)
    other.append(list(range(12)))
    assert not set(one.hashes) & set(other.hashes)


def test_the_format_does_not_drift():
    """Fixed when version 1 was made: a change here is a new format version."""
    extra = ExtraKeys("sql", "f00d", "pepper", (MediaSpan("cafe", 3, 6),))
    plain, rich = chain_of([0, 1, 2**32 - 1, 7, 8, 9, 10, 11]), chain_of(list(range(8)), extra)
    assert [h.hex() for h in plain.hashes] == GOLDEN_PLAIN
    assert [h.hex() for h in rich.hashes] == GOLDEN_RICH


GOLDEN_PLAIN = ["27ef931cc65492260df034eac79e13ad", "4118d63bf511890b07b3d4ee5f27aa2a"]
GOLDEN_RICH = ["ba32dd7737f0933e70e4d59e228d2ac5", "dac780cfb417d80163338142e8c7126f"]
