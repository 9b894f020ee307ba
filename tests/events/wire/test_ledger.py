"""The books of one source: what is known of blocks that have gone, and of those that wait for their parent."""

import pytest

from tenuto.errors import InvariantError
from tenuto.events.wire.ledger import Content, Ledger
from tenuto.events.wire.places import Places
from tenuto.events.wire.view import ReachableView
from tests.events.wire.worlds import bits

pytestmark = pytest.mark.unit
HERE, THERE = ("host", ""), ("disk", "a")


class Told:
    """A sink that is a set."""

    def __init__(self):
        self.blocks = {}

    def hold(self, block):
        assert block.sequence_hash not in self.blocks
        self.blocks[block.sequence_hash] = block

    def drop(self, sequence_hash):
        del self.blocks[sequence_hash]


def content(name, parent=None):
    """Two blocks of a router."""
    return Content(name, parent, bits([ord(name[0])] * 8))


def make(remembered=100):
    sink = Told()
    return Ledger(4, sink, remembered), sink


def put(ledger, *contents, place=HERE):
    for each in contents:
        ledger.store(each.key, place)
        ledger.learn(each)
        ledger.check()


def test_what_waits_is_told_with_its_parent_whatever_the_order():
    ledger, sink = make()
    put(ledger, content("c", "b"), content("d", "c"), content("b", "a"))
    assert sink.blocks == {}
    put(ledger, content("a"))
    assert len(sink.blocks) == 8


def test_what_waits_and_goes_is_forgotten():
    ledger, sink = make()
    put(ledger, content("b", "a"), content("c", "a"))
    ledger.remove("b", HERE)
    ledger.check()
    put(ledger, content("a"))
    assert len(sink.blocks) == 4
    ledger.store("b", HERE)
    assert len(sink.blocks) == 4  # its tokens are not known any more


def test_of_what_has_gone_so_many_are_known_as_parents():
    ledger, sink = make(remembered=1)
    put(ledger, content("a"), content("b", "a"))
    ledger.clear("host")
    ledger.check()
    put(ledger, content("c", "b"))
    assert len(sink.blocks) == 2
    put(ledger, content("d", "a"))
    assert len(sink.blocks) == 2  # a was forgotten
    put(ledger, content("a"))
    assert len(sink.blocks) == 6


def test_two_names_of_one_block_are_told_once():
    ledger, sink = make()
    put(ledger, content("a"), content("a's twin"))
    assert len(sink.blocks) == 2
    ledger.remove("a", HERE)
    assert len(sink.blocks) == 2
    ledger.remove("a's twin", HERE)
    assert sink.blocks == {}
    ledger.check()


def test_a_block_may_be_in_several_places():
    ledger, sink = make()
    put(ledger, content("a"))
    put(ledger, content("a"), place=THERE)
    ledger.clear("host")
    ledger.remove("a", HERE)
    assert len(sink.blocks) == 2
    ledger.clear_all()
    assert sink.blocks == {}
    ledger.check()


def test_tokens_of_what_is_nowhere_are_not_kept():
    ledger, sink = make()
    ledger.learn(content("a"))
    ledger.store("a", HERE)
    assert sink.blocks == {}


def test_a_place_is_cleared_by_kind_or_by_name():
    places = Places()
    for key, place in [("x", THERE), ("x", ("disk", "b")), ("y", ("disk", "b")), ("z", HERE)]:
        places.add(key, place)
    assert places.clear("disk", "b") == ["x", "y"]
    assert (len(places), "y" in places, places.is_in("x", "disk"), places.is_at("x", HERE)) == (2, False, True, False)
    assert places.clear("tape") == places.clear("disk", "c") == []
    assert places.clear("disk") == ["x"]
    assert places.clear_all() == ["z"]


def test_books_that_do_not_balance_are_told():
    ledger, _ = make()
    put(ledger, content("a"))
    ledger._gone["a"] = None
    with pytest.raises(InvariantError, match="does not add up"):
        ledger.check()
    view = ReachableView()
    view._reachable.add(1)
    with pytest.raises(InvariantError, match="not held"):
        view.check()
