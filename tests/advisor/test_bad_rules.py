"""Rules of others that fail or order nonsense are left out, and told once; the rest goes on."""

from types import SimpleNamespace

import numpy as np
import pytest

from tenuto.advisor import AdvisorSettings, Compact, Drop, Move, VolumeInfo
from tests.advisor.advisor_rig import FAST, MIB, NAME, NO_LIMITS, Rig, chain

pytestmark = pytest.mark.unit


def rows(*numbers):
    return np.asarray(numbers, np.int64)


def endless():
    while True:
        yield Compact("", 0)


class Bad:
    """Gives what the test says."""

    orders = staticmethod(list)

    def plan(self, view):
        return type(self).orders()


@pytest.mark.parametrize(
    ("orders", "why"),
    [
        (lambda: 1 // 0, "it failed: ZeroDivisionError"),
        (lambda: None, "it failed: TypeError"),
        (lambda: ["drop all"], "it gives a str, which is no order"),
        (lambda: [Move("nowhere", rows(0))], "it names volume 'nowhere', which is not there"),
        (lambda: [Drop(rows(10**6))], "it names rows without a block"),
        (lambda: [Drop(rows(-1))], "it names rows without a block"),
        (lambda: [Drop(rows(0, 1, 2, 3))], "it names rows without a block"),
        (lambda: [Drop(np.asarray([0.0]))], "its rows are no column of whole numbers"),
        (lambda: [Drop([0])], "its rows are no column of whole numbers"),
        (lambda: [Drop(rows(0, 0))], "it names a block twice"),
        (lambda: [Compact("", -(10**12))], "it compacts -1000000000000 blocks of 3"),
        (lambda: [Compact("", 10**12)], "it compacts 1000000000000 blocks of 3"),
        (lambda: [Compact("", None)], "it compacts None blocks of 3"),
        (endless, "it gives more than 1000 orders at once"),
    ],
)
def test_a_bad_rule_is_left_out(monkeypatch, our_log, orders, why):
    monkeypatch.setattr(Bad, "orders", staticmethod(orders))
    rig = Rig(settings=AdvisorSettings(volumes=FAST, rates=NO_LIMITS, rules=(f"{__name__}:Bad", "promote")))
    rig.request(chain(3))
    assert [task.rule for task in rig.tick()] == ["promote"]
    rig.request(chain(2, seed=1))
    assert [task.rule for task in rig.tick()] == ["promote"]
    (said,) = [record.message for record in our_log()]
    assert said.startswith(f"tenuto: rule {__name__}:Bad is left out from now on: {why}")
    assert list(rig.advisor.left_out) == [f"{__name__}:Bad"]


@pytest.mark.parametrize(
    ("places", "block_bytes"),
    [({"fast": -5, "": 10}, MIB), ({}, MIB), ({"fast": 2, "": -10}, 0), ({"fast": 2**63 - 1, "": 10}, -1)],
)
def test_numbers_of_an_agent_that_cannot_be_end_nothing(places, block_bytes):
    rig = Rig(settings=AdvisorSettings(volumes=FAST, rates=NO_LIMITS))
    rig.request(chain(3))
    volumes = [VolumeInfo(name, "", n, 0, -1) for name, n in places.items()]
    rig.agent = SimpleNamespace(take_facts=list)
    for _ in range(3):
        rig.advisor.plan(NAME, volumes * 2, block_bytes, rig.now_s)
    assert not rig.advisor.left_out
