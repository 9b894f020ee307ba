"""Tokens are counted exactly: asked, in the engine, found by tier, and loaded or failed in the end."""

import pytest

from tenuto.connectors.session import WorkerReport
from tenuto.errors import Cause
from tenuto.tokens import ExtraKeys, HashChain
from tenuto.transfers.plan import BlockFailure, Route, TransferResult
from tests.session.session_rig import BLOCK, NAMESPACE, Rig, View

pytestmark = pytest.mark.unit

TOKENS = list(range(5 * BLOCK))
PAGES = list(range(10))
CHAIN = HashChain(NAMESPACE.digest, BLOCK, ExtraKeys())
CHAIN.append(TOKENS)


def tokens_of(rig: Rig) -> dict[str, int]:
    """What is counted in tokens and is not zero."""
    prefix = "tokens."
    figures = rig.leader.statistics().items()
    return {name.removeprefix(prefix): n for name, n in figures if name.startswith(prefix) and n}


def ask(rig: Rig, name: str, n_computed: int = 0, tokens: list[int] = TOKENS) -> View:
    """Looked up and admitted."""
    view = View(name, tokens)
    n = rig.leader.lookup(view, n_computed)
    rig.leader.admit(name, PAGES, n)
    return view


@pytest.fixture
def rig():
    rig = Rig()
    rig.compute(View("first", TOKENS))
    assert tokens_of(rig) == {}
    return rig


def test_a_prompt_that_is_nowhere_is_asked_for_when_it_is_admitted(rig):
    view = View("a", list(range(100, 130)))
    for _ in range(3):  # it waits for room
        assert rig.leader.lookup(view, 0) == 0
    assert tokens_of(rig) == {}
    rig.leader.admit("a", PAGES, 0)
    assert tokens_of(rig) == {"asked": 30}
    rig.leader.admit("a", PAGES, 0)  # vLLM calls a second time
    assert tokens_of(rig) == {"asked": 30}


def test_what_the_engine_has_is_its_own_even_inside_a_block(rig):
    ask(rig, "a", n_computed=BLOCK + 4)
    rig.answer(rig.step())
    assert tokens_of(rig) == {"asked": 40, "engine": 12, "found.host": 28, "loaded.host": 28}


def test_a_load_counts_as_loaded_when_it_has_ended(rig):
    ask(rig, "a")
    plan = rig.step()
    assert tokens_of(rig) == {"asked": 40, "found.host": 40}
    rig.clock.advance(0.25)
    rig.answer(plan)
    assert tokens_of(rig) == {"asked": 40, "found.host": 40, "loaded.host": 40}
    total, *counts = rig.leader.recorder.snapshot().histograms["tenuto_load_seconds host"]
    assert (total, sum(counts)) == (0.25, 1)


@pytest.mark.parametrize("bad", [0, 2, 4])
def test_behind_a_block_that_fails_everything_is_computed(rig, bad):
    view = ask(rig, "a")
    rig.answer(rig.step(), failed={Route.HOST_TO_DEVICE: {bad: Cause.CORRUPT}})
    good = {"loaded.host": bad * BLOCK} if bad else {}
    expected = {"asked": 40, "found.host": 40, "failed.host": 40 - bad * BLOCK} | good
    assert tokens_of(rig) == expected
    assert rig.leader.lookup(view, bad * BLOCK) == 0  # the engine asks again for what it must compute
    rig.leader.admit("a", PAGES, 0)
    assert tokens_of(rig) == expected


def test_a_block_that_fails_spares_what_the_engine_had_of_it(rig):
    ask(rig, "a", n_computed=4)
    rig.answer(rig.step(), failed={Route.HOST_TO_DEVICE: {0: Cause.CORRUPT}})
    assert tokens_of(rig) == {"asked": 40, "engine": 4, "found.host": 36, "failed.host": 36}


def test_a_hit_in_two_tiers_is_told_apart_and_its_time_is_the_slower_ones(rig):
    rig.leader.manager.host.invalidate(CHAIN.hashes[3:])
    ask(rig, "a")
    rig.answer(rig.step())
    assert tokens_of(rig) == {
        "asked": 40, "found.host": 24, "loaded.host": 24, "found.disk": 16, "loaded.disk": 16,
    }  # fmt: skip
    assert list(rig.leader.recorder.snapshot().histograms)[-1] == "tenuto_load_seconds disk"


def test_a_failure_in_the_first_tier_spoils_what_comes_from_the_second(rig):
    rig.leader.manager.host.invalidate(CHAIN.hashes[3:])
    ask(rig, "a")
    plan = rig.step()
    load = next(t for t in plan.now if t.route is Route.HOST_TO_DEVICE and len(t.keys) == 3)
    results = {transfer.id: [TransferResult(transfer.id)] for transfer in plan.now}
    results[load.id] = [TransferResult(load.id, (BlockFailure(1, Cause.IO_ERROR),))]
    rig.leader.receive(WorkerReport(results))
    assert tokens_of(rig) == {
        "asked": 40, "found.host": 24, "loaded.host": 8, "failed.host": 16, "found.disk": 16, "failed.disk": 16,
    }  # fmt: skip


def test_another_engines_blocks_are_a_tier_of_their_own(rig):
    rig.leader.manager.host.invalidate(CHAIN.hashes)
    rig.leader.manager.disk.invalidate(CHAIN.hashes)
    rig.leader.receive(WorkerReport(peers={0: {"other": [(i, CHAIN.key(i)) for i in range(5)]}}))
    ask(rig, "a")
    rig.answer(rig.step())
    assert tokens_of(rig) == {"asked": 40, "found.peer": 40, "loaded.peer": 40}
    assert rig.leader.statistics()["peers"] == 5


def test_a_load_under_a_reset_has_failed(rig):
    ask(rig, "a")
    plan = rig.step()
    rig.leader.reset()
    rig.answer(plan)
    assert tokens_of(rig) == {"asked": 40, "found.host": 40, "failed.host": 40}


def test_lookups_are_timed_once_each(rig):
    view = View("a", TOKENS)
    for _ in range(3):
        rig.leader.lookup(view, 0)
    assert sum(rig.leader.recorder.snapshot().histograms["tenuto_lookup_seconds"][1:]) == 1
    rig.leader.finish("a")


def test_bytes_of_a_tier_are_those_of_all_ranks():
    rig = Rig(world_size=2, disk_slots=9)
    rig.compute(View("first", TOKENS))
    figures = rig.leader.statistics()
    extent = rig.leader.setup.layout.extent_bytes
    assert (figures["disk.bytes"], figures["disk.capacity_bytes"]) == (2 * 5 * extent, 2 * 9 * extent)
