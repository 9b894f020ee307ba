"""The fast way to look up many blocks gives what a dictionary would."""

from hashlib import sha256
from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.pools.index import HashIndex
from tenuto.tokens import BlockHash, BlockKey

pytestmark = pytest.mark.unit

N_SLOTS = 64


def key(number: int) -> BlockKey:
    block = BlockHash(sha256(b"%d" % number).digest()[:16])
    return BlockKey(block, block, block)


def index_of(places: dict[BlockKey, int], n_slots: int = N_SLOTS) -> HashIndex:
    index = HashIndex()
    index.grow(n_slots)
    index.update({block.hash: slot for block, slot in places.items()})
    index.remember(np.array(list(places.values()), np.int32), list(places))
    return index


def straight(index: HashIndex, hashes: list[BlockHash]) -> list[int]:
    return list(takewhile(lambda slot: slot is not None, map(index.get, hashes)))


@given(st.permutations(range(N_SLOTS)), st.sets(st.integers(0, 59)), st.integers(0, 60))
def test_the_longest_prefix_is_the_dictionarys(slots, removed, n_asked):
    keys = [key(number) for number in range(60)]
    places = dict(zip(keys, slots, strict=False))
    index = index_of(places)
    gone = [keys[number] for number in removed if number > 40]
    index.remove(np.array([places[block] for block in gone], np.int32), gone)
    hashes = [block.hash for block in keys[:n_asked]]
    assert index.prefix(hashes).tolist() == straight(index, hashes)
    assert index.prefix(iter(hashes)).tolist() == straight(index, hashes)
    assert index.is_consistent()


def test_a_slot_used_again_is_found_by_its_new_block_only():
    keys = [key(number) for number in range(40)]
    index = index_of({block: slot for slot, block in enumerate(keys)})
    index.remove(np.array([5], np.int32), [keys[5]])
    other = key(1000)
    index[other.hash] = 5
    index.remember(np.array([5], np.int32), [other])
    assert len(index.prefix([block.hash for block in keys])) == 5
    changed = [*keys[:5], other, *keys[6:]]
    assert index.prefix([block.hash for block in changed]).tolist() == list(range(40))


def test_growing_keeps_every_block():
    keys = [key(number) for number in range(60)]
    index = index_of({block: slot for slot, block in enumerate(keys)})
    index.grow(5000)
    assert index.prefix([block.hash for block in keys]).tolist() == list(range(60))
    assert index.is_consistent()


def test_blocks_whose_hashes_start_alike_are_told_apart():
    """They want the same place among the hints; one of them has it."""
    blocks = [BlockHash(bytes(8) + number.to_bytes(8, "little")) for number in range(1, 41)]
    keys = [BlockKey(block, block, block) for block in blocks]
    index = index_of({block: slot for slot, block in enumerate(keys)})
    assert index.prefix(blocks).tolist() == list(range(40))
    assert index.prefix([*blocks[:35], BlockHash(bytes(16)), *blocks[35:]]).tolist() == list(range(35))


@pytest.mark.parametrize("n", [3, 40])
def test_hashes_of_another_size_are_nowhere_and_do_no_harm(n):
    index = index_of({key(number): number for number in range(60)})
    hashes = [key(number).hash for number in range(n)]
    assert index.prefix([*hashes, BlockHash(b"short")]).tolist() == list(range(n))


def test_an_empty_index_has_no_prefix():
    assert HashIndex().prefix([key(number).hash for number in range(40)]).tolist() == []
