"""The share of the loads that computing hides."""

import pytest

from tenuto.traces import Span, hidden_share
from tenuto.traces.overlap import merged

pytestmark = pytest.mark.unit


def spans_of(**intervals):
    return [Span(name, start, stop, name) for name, pairs in intervals.items() for start, stop in pairs]


@pytest.mark.parametrize(
    ("loads", "computing", "share"),
    [
        ([(0, 4)], [], 0.0),
        ([(0, 4)], [(4, 9)], 0.0),
        ([(0, 4)], [(1, 2)], 0.25),
        ([(1, 2)], [(0, 4)], 1.0),
        ([(0, 4)], [(3, 9)], 0.25),
        ([(0, 2), (1, 4)], [(0, 1)], 0.25),  # beside each other: once
        ([(0, 1), (2, 3)], [(0.5, 2.5)], 0.5),
        ([(0, 10)], [(1, 2), (3, 4), (3.5, 5), (9, 12)], 0.4),
        ([(0, 4), (6, 10)], [(3, 7)], 0.25),
        ([(6, 10), (0, 4)], [(20, 30), (0, 1)], 0.125),
    ],
)
def test_what_is_hidden(loads, computing, share):
    assert hidden_share(spans_of(load=loads, compute=computing, store=[(0, 100)])) == pytest.approx(share)


def test_without_loads_there_is_no_share():
    assert hidden_share([]) is None
    assert hidden_share(spans_of(load=[(1, 1)], compute=[(0, 2)])) is None


def test_other_names_can_be_meant():
    spans = spans_of(scatter=[(0, 2)], load=[(0, 8)], step=[(1, 2)])
    assert hidden_share(spans, ["load", "scatter"], ["step"]) == pytest.approx(1 / 8)
    assert hidden_share(iter(spans), ["scatter"], ["step"]) == pytest.approx(1 / 2)


def test_the_union_of_intervals():
    assert merged([(5, 6), (0, 2), (1, 3), (3, 4), (0.5, 1)]) == [(0, 4), (5, 6)]
