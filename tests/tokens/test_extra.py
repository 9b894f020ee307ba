"""Adapters, salts and media change exactly the blocks that depend on them."""

import msgspec
import pytest

from tenuto.tokens import ExtraKeys, HashChain, MediaSpan

pytestmark = pytest.mark.unit

ROOT = bytes(range(16))
BLOCK_TOKENS = 4


def chain_of(extra: ExtraKeys | None) -> HashChain:
    chain = HashChain(ROOT, BLOCK_TOKENS, extra)
    chain.append(list(range(16)))
    return chain


def own_extras(extra: ExtraKeys) -> list[object]:
    """What each of the four blocks says of its extra keys, decoded."""
    chain = chain_of(extra)
    encoded = [chain.block(index).extra for index in range(4)]
    return [msgspec.msgpack.decode(data) if data else None for data in encoded]


def test_no_extra_keys_are_no_bytes_at_all():
    assert own_extras(ExtraKeys()) == [None] * 4
    assert chain_of(ExtraKeys()).hashes == chain_of(None).hashes


def test_an_adapter_is_in_every_block():
    assert own_extras(ExtraKeys("sql", "f00d")) == [[["lora", "sql", "f00d"]]] * 4


@pytest.mark.parametrize("other", [ExtraKeys("sql", "beef"), ExtraKeys("poems", "f00d"), ExtraKeys()])
def test_another_adapter_or_one_retrained_shares_nothing(other):
    assert not set(chain_of(ExtraKeys("sql", "f00d")).hashes) & set(chain_of(other).hashes)


def test_a_salt_is_in_the_first_block_only_and_so_in_every_hash():
    assert own_extras(ExtraKeys(salt="pepper")) == [[["salt", "pepper"]], None, None, None]
    assert not set(chain_of(ExtraKeys(salt="pepper")).hashes) & set(chain_of(None).hashes)


@pytest.mark.parametrize(
    ("span", "offsets"),
    [
        ((0, 1), [0, None, None, None]),
        ((4, 8), [None, 0, None, None]),  # exactly one block: neither neighbour
        ((3, 5), [3, -1, None, None]),
        ((5, 14), [None, 1, -3, -7]),
        ((15, 16), [None, None, None, 3]),
        ((15, 40), [None, None, None, 3]),
    ],
)
def test_media_are_in_the_blocks_they_overlap_at_their_offset_in_the_block(span, offsets):
    found = own_extras(ExtraKeys(media=(MediaSpan("cafe", *span),)))
    assert found == [None if at is None else [["mm", "cafe", at]] for at in offsets]


def test_blocks_before_an_image_are_shared_those_from_it_on_are_not():
    plain, image = chain_of(None).hashes, chain_of(ExtraKeys(media=(MediaSpan("cafe", 9, 11),))).hashes
    other = chain_of(ExtraKeys(media=(MediaSpan("beef", 9, 11),))).hashes
    moved = chain_of(ExtraKeys(media=(MediaSpan("cafe", 10, 11),))).hashes
    for one, two in [(plain, image), (image, other), (image, moved)]:
        assert [a == b for a, b in zip(one, two, strict=True)] == [True, True, False, False]


def test_two_images_in_one_block_are_both_named():
    media = (MediaSpan("cafe", 4, 5), MediaSpan("beef", 6, 9))
    assert own_extras(ExtraKeys(media=media))[1] == [["mm", "cafe", 0], ["mm", "beef", 2]]


def test_all_kinds_come_in_one_fixed_order():
    extra = ExtraKeys("sql", "f00d", "pepper", (MediaSpan("cafe", 1, 2),))
    assert own_extras(extra)[0] == [["lora", "sql", "f00d"], ["mm", "cafe", 1], ["salt", "pepper"]]


@pytest.mark.parametrize(
    "extra", [ExtraKeys("sql", "f00d"), ExtraKeys(salt="x"), ExtraKeys(media=(MediaSpan("cafe", 0, 1),))]
)
def test_a_request_with_extra_keys_says_so(extra):
    assert not extra.is_empty
    assert ExtraKeys().is_empty
