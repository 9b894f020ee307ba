"""A router's hashes: those of Dynamo itself, number by number."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenuto.events.wire import chain_seed, router_blocks, tokens_hashes
from tenuto.testing.strategies import token_ids
from tests.events.wire.worlds import bits

pytestmark = pytest.mark.adapter

names = st.sampled_from(["", "adapter", "ein-anderer-\u00e4"])
real = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(token_ids(max_size=70), st.sampled_from([1, 3, 16, 32]), names, names)
@real
def test_tokens_hashes_are_those_of_dynamo(dynamo, tokens, block_tokens, lora, salt):
    theirs = dynamo.compute_block_hash_for_seq(
        tokens, block_tokens, lora_name=lora or None, cache_namespace=salt or None
    )
    assert tokens_hashes(bits(tokens), block_tokens, chain_seed(lora, salt)) == theirs


def test_a_partial_block_has_no_hash():
    assert len(tokens_hashes(bits(range(39)), 16)) == 2
    assert router_blocks(bits(range(15)), 16) == []


def test_the_first_blocks_sequence_hash_is_its_tokens_hash():
    (block,) = router_blocks(bits(range(32)), 32)
    assert block[:3] == (5756925433886871916, 5756925433886871916, None)


def test_a_chain_in_parts_is_the_chain():
    tokens = bits(range(64))
    whole = router_blocks(tokens, 16)
    head = router_blocks(tokens[:128], 16)
    assert head + router_blocks(tokens[128:], 16, parent=head[-1].sequence_hash) == whole
    assert len({block.sequence_hash for block in whole}) == 4


def test_a_salt_is_hashed_without_the_mark_that_workers_put_before_it():
    assert chain_seed(salt="dynamo-cache-salt:tenant") == chain_seed(salt="tenant") != chain_seed()
