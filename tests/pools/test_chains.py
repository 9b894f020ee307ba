"""What a store recovers, in any order, is put back into chains."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.pools.chains import in_chains
from tenuto.tokens import BlockHash, BlockKey

pytestmark = pytest.mark.unit

ROOT = BlockHash(b"root")


def chain(name, n, parent=ROOT):
    keys = []
    for index in range(n):
        keys.append(BlockKey(BlockHash(f"{name}{index}".encode()), keys[-1].hash if keys else parent, ROOT))
    return keys


def test_chains_that_were_written_in_turns_lie_whole_again_and_the_newest_comes_first():
    a, b = chain("a", 3), chain("b", 3)
    written = [a[0], b[0], a[1], b[1], a[2], b[2]]
    newest_first = written[::-1]
    assert [newest_first[index] for index in in_chains(newest_first)] == [*b, *a]


def test_where_a_chain_parts_the_newest_end_lies_behind_what_they_share():
    shared = chain("s", 2)
    old, new = chain("o", 2, shared[-1].hash), chain("n", 2, shared[-1].hash)
    newest_first = [*new[::-1], *old[::-1], *shared[::-1]]
    assert [newest_first[index] for index in in_chains(newest_first)] == [*shared, *new, *old]


def test_blocks_that_continue_each_other_in_a_circle_are_there_once():
    a, b = BlockHash(b"a"), BlockHash(b"b")
    assert sorted(in_chains([BlockKey(a, b, a), BlockKey(b, a, a)])) == [0, 1]
    assert in_chains([BlockKey(a, a, a)]) == [0]
    assert in_chains([]) == []


@given(st.lists(st.integers(-1, 30), max_size=31), st.integers(0, 99))
def test_each_block_is_there_once_and_behind_its_parent_wherever_the_parent_has_no_newer_child(parents, seed):
    names = [BlockHash(str(index).encode()) for index in range(31)]
    tree = [BlockKey(names[i], names[min(p, i - 1)] if p >= 0 < i else ROOT, ROOT) for i, p in enumerate(parents)]
    Random(seed).shuffle(tree)
    order = in_chains(tree)
    assert sorted(order) == list(range(len(tree)))
    placed = [tree[index] for index in order]
    place = {key.hash: index for index, key in enumerate(placed)}
    newest = {}
    for key in tree:
        newest.setdefault(key.parent, key)
    for key in tree:
        if key.parent in place and newest[key.parent] is key:
            assert place[key.hash] == place[key.parent] + 1
