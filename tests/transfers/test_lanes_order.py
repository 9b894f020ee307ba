"""The order of streams: whatever a GPU does first of what it may, bytes are right; and each rule is needed for that."""

import re

import pytest

from tests.transfers.fake_cuda import WrongBytes
from tests.transfers.fresh_lanes import FOLDER, FreshLanes
from tests.transfers.lane_life import Life

pytestmark = pytest.mark.unit

N_STEPS, FAULT_RATE = 25, 0.05
N_TRIES = 200  # lives until an edit must have been caught

RULES = {
    "a gather comes after the computing it stores": ("self._gathering.wait_event(after)", "pass"),
    "computing is marked for a gather": (
        "computed.record(torch.cuda.current_stream(self._device))\n        ended", "ended"
    ),
    "a window is filled again when it was copied out": ("self._gathering.wait_event(window.emptied)", "pass"),
    "a filled window of stores is marked": ("window.filled.record(self._gathering)", "pass"),
    "an emptied window of stores is marked": ("self._copying_out.record(window.emptied)", "pass"),
    "a turn comes after what it copies": ("stream.wait_event(after)\n", "pass\n"),
    "a turn comes after the last but one": ("stream.wait_event(last_but_one)", "pass"),
    "a turn that is over is marked": ("self._ended[self._now].record(stream)", "pass"),
    "what comes after copies in turns comes after the last but one, too": (
        "last.wait_event(self._ended[self._now - 1])", "pass"
    ),
    "what comes after copies in turns is marked": ("event.record(last)", "pass"),
    "gathers run on their stream": ("with torch.cuda.stream(self._gathering):", "with ExitStack():"),
    "gathers that have read are marked": ("read.record(self._gathering)", "pass"),
    "a store has ended when its last copy has, not its last gather": (
        "self._copying_out.record(ended)", "ended.record(self._gathering)"
    ),
    "a store that has ended is marked": ("self._copying_out.record(ended)", "pass"),
    "a gather is not settled": ("self._is_settled = False", "pass"),
    "computing comes after the gathers before it": (
        "torch.cuda.current_stream(self._device).wait_event(self._read)", "pass"
    ),
    "a mark comes after the gathers before it": ("self.settle()\n        queued", "queued"),
    "a mark is one": ("queued.record(torch.cuda.current_stream(self._device))", "pass"),
    "a scatter comes after its mark": ("self._scattering.wait_event(after)", "pass"),
    "a window is copied in again when it was put into pages": ("self._copying_in.wait_event(window.emptied)", "pass"),
    "a window is put into pages when it was copied in": ("self._scattering.wait_event(window.filled)", "pass"),
    "a filled window of loads is marked": ("window.filled.record(self._copying_in)", "pass"),
    "an emptied window of loads is marked": ("window.emptied.record(self._scattering)", "pass"),
    "scatters run on their stream": ("with self._loading, torch.cuda.stream(self._scattering):", "with self._loading:"),
    "loads of two lanes take turns": (
        "with self._loading, torch.cuda.stream(self._scattering):", "with torch.cuda.stream(self._scattering):"
    ),
    "a load has ended when its last scatter has, not its last copy": (
        "ended.record(self._scattering)", "ended.record(self._copying_in)"
    ),
    "a load that has ended is marked": ("ended.record(self._scattering)", "pass"),
    "straight stores that have read are marked": ("self._out.record(read)", "pass"),
    "a straight store that has ended is marked": ("self._out.record(ended)", "pass"),
    "a straight load comes after its mark": ("self._in.wait_event(after)", "pass"),
    "a straight load that has ended is marked": ("ended.record(self._in)", "pass"),
    "a landing is waited for": (
        "self.waiter.wait(self.ended, self.after, self.n_bytes, self.queued_at)", "self.ended.query()"
    ),
    "a landing that has not ended says so": ("return self.ended.query()", "return True"),
    "a wait spins until the end": ("ended.synchronize()", "ended.query()"),
    "a ring is clean before it is used": ("torch.cuda.current_stream(device).synchronize()", "pass"),
    "a store that fails waits for what was queued": (
        "undo.callback(ended.synchronize)  # what was queued must not write host", "pass  # what"
    ),
    "a load that fails waits for what was queued": (
        "undo.callback(ended.synchronize)  # what was queued must not touch pages", "pass  # what"
    ),
    "computing comes after what it was fenced by": (
        "torch.cuda.current_stream(self.device).wait_event(self.ended)", "pass"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def lanes(tmp_path_factory):
    made = FreshLanes(tmp_path_factory.mktemp("lanes"))
    yield made
    made.forget()


@pytest.mark.parametrize("seed", range(0, 200, 10))
def test_every_byte_is_right_in_any_legal_order(lanes, seed):
    for number in range(seed, seed + 10):
        Life(lanes, number, FAULT_RATE * (number % 2)).live(N_STEPS)


TIMING = ["after.synchronize()"]
"""Nothing is read behind it."""


def test_no_wait_and_no_record_is_without_a_rule():
    lines = [
        line.strip() for path in FOLDER.glob("*.py") for line in path.read_text("utf-8").splitlines()
        if re.search(r"\.(wait_event|wait_stream|record|synchronize)\b", line)
    ]  # fmt: skip
    rules = [snippet for snippet, _ in RULES.values()]
    assert [line for line in lines if not any(rule in line or line in rule for rule in rules)] == TIMING


def test_an_edit_of_what_is_no_longer_there_is_no_edit(tmp_path):
    with pytest.raises(LookupError, match="no source"):
        FreshLanes(tmp_path, [("nobody wrote this", "pass")])


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(tmp_path, rule):
    lanes = FreshLanes(tmp_path, [RULES[rule]])
    try:
        for seed in range(N_TRIES):
            try:
                Life(lanes, seed, FAULT_RATE).live(N_STEPS)
            except WrongBytes:
                return
    finally:
        lanes.forget()
    pytest.fail(f"nothing was wrong in {N_TRIES} lives without: {rule}")
