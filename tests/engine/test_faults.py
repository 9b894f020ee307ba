"""Storage goes wrong under a real engine: every output stays right, every fault is counted, none is served."""

import shutil
import threading

import pytest

from tenuto.errors import Cause, ConfigError, StoreError
from tenuto.testing.files import BROKEN, DISK_FULL, READ_ONLY, make_faulty
from tests.engine.tiny import prompt
from tests.tiers.disk_fixtures import wait_until

pytestmark = pytest.mark.engine

TOKENS = prompt(20, 500)  # 7 blocks of 64
FAST = {"runtime": {"retry_s": 0.2, "load_timeout_s": 0.5}}


def failures(figures):
    return {name: count for name, count in figures.items() if name.startswith("failed") and count}


def put_on_disk(start):
    """Compute the prompt, end the engine, start another: (engine, right output)."""
    engine = start(FAST)
    expected = engine.ask(TOKENS)[1]
    engine.settle()
    return start(FAST), expected


def first_extents(engine):
    """(pool file, extent size) of our slots 0, 1, 2, ..."""
    store = engine.worker._store
    return store.claim.folder / "pool-00000.kv", store.home._extent_bytes


def garbage_in_payload(file, extent):
    file.seek(2 * extent + extent // 2)
    file.write(b"garbage")


def garbage_in_header(file, extent):
    file.seek(2 * extent + 45)
    file.write(b"garbage")


def another_blocks_extent(file, extent):
    file.seek(extent)
    other = file.read(extent)
    file.seek(2 * extent)
    file.write(other)


def truncation(file, extent):
    file.truncate(2 * extent + 4096)


@pytest.mark.parametrize("harm", [garbage_in_payload, garbage_in_header, another_blocks_extent, truncation])
def test_a_harmed_extent_is_a_counted_miss_and_the_output_is_right(start, harm):
    engine, expected = put_on_disk(start)
    path, extent = first_extents(engine)
    with path.open("r+b") as file:
        harm(file, extent)
    n_cached, output = engine.ask(TOKENS)
    assert output == expected
    assert n_cached == 448  # what vLLM was promised; blocks from the third on were computed after all
    figures = engine.settle()
    assert 1 <= figures["failed.disk_to_host.corrupt"] <= 5
    assert figures["failed.host_to_device.corrupt"] == figures["failed.disk_to_host.corrupt"]
    engine.forget()
    assert engine.ask(TOKENS) == (448, expected)  # all blocks are kept again
    assert failures(engine.settle()) == failures(figures)


@pytest.mark.parametrize("number", [DISK_FULL, READ_ONLY], ids=["disk full", "read-only"])
def test_a_disk_that_refuses_writes_costs_only_its_tier(start, number, our_log):
    engine = start(FAST)
    engine.settle()
    wait_until(lambda: engine.worker._store.capacity().n_slots)
    files = make_faulty(engine.worker._store)
    files.write_errno = number
    expected = engine.ask(TOKENS)[1]
    engine.forget()
    assert engine.ask(TOKENS) == (448, expected)  # from host memory
    other = prompt(21, 500)
    engine.ask(other)
    figures = engine.settle()
    assert figures["disk.registered"] == 0
    assert sum(failures(figures).values()) >= 7
    assert len([r for r in our_log() if "host to disk failed" in r.getMessage()]) == 1
    files.write_errno = 0
    wait_for_retry(engine)
    engine.forget()
    engine.ask(TOKENS)  # blocks that are in host memory but not on disk are written now
    assert engine.settle()["disk.registered"] >= 7


def wait_for_retry(engine):
    """Let the pause of the disk tier pass."""
    health = engine.leader._health
    health._read_again_at = health._write_again_at = 0.0
    health.update()


@pytest.mark.parametrize("fault", ["io error", "short reads"])
def test_reads_that_fail_are_computed_instead(start, fault):
    engine, expected = put_on_disk(start)
    files = make_faulty(engine.worker._store)
    if fault == "io error":
        files.read_errno = BROKEN
    else:
        files.short_read_bytes = 4096
    assert engine.ask(TOKENS)[1] == expected
    figures = engine.settle()
    assert sum(failures(figures).values()) == 14  # 7 on their way to host memory, and the same 7 to the engine
    assert engine.ask(TOKENS)[1] == expected


def test_a_disk_that_does_not_answer_gives_a_miss_within_the_deadline(start, our_log):
    engine, expected = put_on_disk(start)
    files = make_faulty(engine.worker._store)
    files.gate.clear()
    assert engine.ask(TOKENS)[1] == expected
    assert engine.leader.statistics()["failed.host_to_device.timeout"] == 7
    engine.forget()
    assert engine.ask(prompt(22, 300))[0] == 0  # serving goes on while the reads still hang
    assert len([r for r in our_log() if "timeout" in r.getMessage()]) == 1
    files.gate.set()
    figures = engine.settle()
    assert figures["moved.disk_to_host"] == 7  # they came in the end, and are kept
    engine.forget()
    assert engine.ask(TOKENS) == (448, expected)


def test_a_full_host_tier_loads_straight_from_disk(start):
    small = {"tiers": {"host": {"capacity": 16 * 139264}}}
    engine = start(small)
    expected = engine.ask(TOKENS)[1]
    engine.settle()
    engine = start(small)
    n_slots = len(engine.leader.manager.host)
    held = engine.leader.manager.host.allocate(n_slots).lease
    assert engine.ask(TOKENS) == (448, expected)
    assert engine.leader.statistics()["moved.disk_to_device"] == 7
    held.discard()
    engine.settle()


def test_a_small_host_tier_evicts_and_the_disk_has_the_rest(start):
    engine = start({"tiers": {"host": {"capacity": 16 * 139264}}})
    prompts = [prompt(300 + i, 500) for i in range(4)]
    expected = []
    for tokens in prompts:
        expected.append(engine.ask(tokens)[1])
        engine.settle()
    engine.forget()
    for tokens, output in zip(prompts, expected, strict=True):
        assert engine.ask(tokens) == (448, output)
        engine.forget()
    figures = engine.settle()
    assert figures["host.evictions"] > 0
    assert figures["moved.disk_to_host"] + figures.get("moved.disk_to_device", 0) >= 14


def test_a_quota_that_is_reached_evicts_and_stays_reached(start, tmp_path):
    capacity = 64 << 20
    engine = start({"tiers": {"disk": {"capacity": capacity}}})
    for i in range(60):
        engine.generate(prompt(400 + i, 1000), n_tokens=1)
        if i % 10 == 0:
            engine.settle()
    figures = engine.settle()
    assert figures["disk.evictions"] > 0
    assert sum(path.stat().st_size for path in (tmp_path / "root").rglob("*") if path.is_file()) <= capacity
    engine.forget()
    assert engine.ask(prompt(459, 1000))[0] == 960


def test_a_folder_removed_under_a_running_engine_is_survived(start, tmp_path):
    engine, expected = put_on_disk(start)
    shutil.rmtree(tmp_path / "root")
    assert engine.ask(TOKENS)[1] == expected
    assert engine.settle()["failed.disk_to_host.missing"] == 7
    other = prompt(23, 500)
    right = engine.ask(other)[1]
    engine.forget()
    assert engine.ask(other) == (448, right)
    engine.settle()
    engine = start(FAST)  # makes the folder anew
    assert engine.ask(TOKENS) == (0, expected)


def test_a_disk_that_is_full_at_the_start_only_costs_its_tier(start, monkeypatch, our_log):
    engine, expected = put_on_disk(start)

    def full(*_, **__):
        raise StoreError(Cause.NO_SPACE, "manifest: open: database or disk is full")

    monkeypatch.setattr("tenuto.tiers.disk.store.Manifest", full)
    engine = start(FAST)
    assert engine.ask(TOKENS) == (0, expected)
    engine.forget()
    assert engine.ask(TOKENS) == (448, expected)  # from host memory
    engine.settle()
    assert len([r for r in our_log() if "the disk tier is off until the next start" in r.getMessage()]) == 1
    monkeypatch.undo()
    assert start(FAST).ask(TOKENS) == (448, expected)  # and nothing was lost


def test_a_start_that_fails_holds_on_to_nothing(start):
    before = {thread.name for thread in threading.enumerate()}
    with pytest.raises(ConfigError, match=r"tiers\.host\.capacity: .* more than the .* of memory there is"):
        start({"tiers": {"host": {"capacity": "900 GiB"}}})
    assert not {name for name in {t.name for t in threading.enumerate()} - before if name.startswith("tenuto")}
    assert start().worker._store.claim.instance.name == "a"


def test_blocks_that_were_loading_when_the_cache_was_reset_are_computed(start):
    from vllm import SamplingParams

    engine, expected = put_on_disk(start)
    files = make_faulty(engine.worker._store)
    files.gate.clear()
    core = engine.llm.llm_engine
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
    core.add_request("loading", {"prompt_token_ids": TOKENS}, params)
    for _ in range(3):
        core.step()
    engine.leader.reset()
    core.step()
    files.gate.set()
    outputs = []
    while core.has_unfinished_requests():
        outputs += [output for output in core.step() if output.finished]
    assert list(outputs[0].outputs[0].token_ids) == expected
    figures = engine.settle()
    assert figures["host.registered"] == figures["disk.registered"] == 0
    engine.forget()
    assert engine.ask(TOKENS) == (0, expected)
