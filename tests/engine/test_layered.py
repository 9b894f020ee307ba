"""Layer by layer in a real engine: answers are those of computing, whatever is loaded under the forward, and however
it fails."""

import errno

import pytest

from tenuto.manager import ComputeCost
from tenuto.testing.files import make_faulty
from tenuto.tokens import HashChain
from tests.engine.tiny import prompt

pytestmark = pytest.mark.engine

LAYERED = {"runtime": {"onboard": "layered", "cost_gate": False}}
TOKENS = prompt(70, 500)  # 7 blocks of 64
HIT = 7 * 64


def put_on_disk(engine):
    engine.settle()
    engine.leader.manager.host.reset()
    engine.forget()


def key_of(engine, tokens, index):
    chain = HashChain(engine.leader._namespace.digest, 64)
    chain.append(tokens)
    return chain.hashes[index]


def start_saving(start, save, settings=LAYERED, **options):
    """An engine whose stores are begun so; by layers, each of them by itself however little it is."""
    engine = start({**settings, "runtime": settings["runtime"] | {"save": save}}, **options)
    if save == "layers":
        engine.worker._gathers.least_bytes = 1
    return engine


def extents_of(engine, tokens):
    """Of a prompt's blocks, in host memory."""
    chain = HashChain(engine.leader._namespace.digest, 64)
    chain.append(tokens)
    with engine.leader.manager.host.match(chain.hashes) as lease:
        assert len(lease.slots) == len(chain.hashes)
        return [bytes(engine.worker._arena.slot(slot)) for slot in lease.slots]


def n_fenced(engine):
    """Counts the layers that the engine's attention has waited for."""
    loads = engine.worker._layered._loads
    counted = []
    load_layer = loads.load_layer

    def count(layer):
        if loads._now is not None:
            counted.append(layer)
        load_layer(layer)

    loads.load_layer = count
    return counted


@pytest.mark.parametrize("place", ["host", "disk"])
def test_a_hit_is_loaded_under_its_own_forward(start, place):
    engine = start(LAYERED)
    expected = engine.ask(TOKENS)[1]
    engine.settle()
    waited = n_fenced(engine)
    put_on_disk(engine) if place == "disk" else engine.forget()
    reads = engine.worker._layered._loads.n_reads
    assert engine.ask(TOKENS) == (HIT, expected)
    n_layers = engine.worker.setup.layout.n_layers
    assert waited == list(range(n_layers))
    assert engine.worker._layered._loads.n_reads - reads == (n_layers if place == "disk" else 0)
    figures = engine.settle()
    assert figures[f"tokens.loaded.{place}"] == HIT
    assert figures["loads"] == 1
    engine.forget()
    assert engine.ask(TOKENS) == (HIT, expected)  # what came from disk is in host memory now
    assert engine.settle()["tokens.loaded.host"] == (HIT if place == "disk" else 2 * HIT)


def test_hits_of_many_requests_are_loaded_under_one_forward(start):
    engine = start(LAYERED)
    prompts = [prompt(80 + number, 100 + 60 * number) for number in range(5)]
    expected = [list(output.outputs[0].token_ids) for output in engine.generate(*prompts)]
    put_on_disk(engine)
    fresh = prompt(90, 150)
    outputs = engine.generate(*prompts, fresh)
    assert [list(output.outputs[0].token_ids) for output in outputs[:-1]] == expected
    assert [output.num_cached_tokens for output in outputs] == [64 * (len(p) // 64) for p in prompts] + [0]
    engine.settle()
    assert engine.worker._layered._loads.n_pending() == 0


@pytest.mark.parametrize(("layer", "save"), [(0, "forward"), (1, "layers")])
def test_a_harmed_layer_is_computed_and_what_was_computed_on_it_is_not_kept(start, layer, save):
    engine = start_saving(start, save, LAYERED)
    longer = [*TOKENS, *prompt(71, 200)]  # four more blocks, in the same step as the load
    expected = engine.ask(longer)
    engine.leader.reset()
    engine.forget()
    engine.ask(TOKENS)
    put_on_disk(engine)
    layout = engine.worker.setup.layout
    path = min(engine.worker._store.claim.folder.glob("pool-*.kv"))
    slot = engine.leader.manager.disk.match([key_of(engine, TOKENS, 2)]).slots[0]
    with path.open("r+b") as file:
        file.seek(slot * layout.extent_bytes + layout.header_bytes + layer * layout.segment_bytes)
        file.write(bytes(range(200)) * 20)
    assert engine.ask(longer)[1] == expected[1]
    figures = engine.settle()
    assert figures["failed.disk_to_host.corrupt"] == 1
    for _ in range(2):  # what is kept now is right
        engine.forget()
        assert engine.ask(longer)[1] == expected[1]
        engine.settle()
    assert figures["failed.device_to_host.cancelled"] > 0


def test_a_disk_that_is_too_slow_is_given_up_and_the_answer_is_right(start):
    engine = start({"runtime": LAYERED["runtime"] | {"load_timeout_s": 0.3}})
    expected = engine.ask(TOKENS)[1]
    put_on_disk(engine)
    files = make_faulty(engine.worker._store)
    files.read_s = 2.0
    assert engine.ask(TOKENS)[1] == expected
    files.read_s = 0.0
    figures = engine.settle()
    assert figures["failed.host_to_device.timeout"] == 7
    engine.forget()
    assert engine.ask(TOKENS)[1] == expected


def answers(outputs):
    return [list(output.outputs[0].token_ids) for output in outputs]


def fail_reads(engine):
    """From now on; what it is set with, to end that."""
    put_on_disk(engine)
    files = make_faulty(engine.worker._store)
    files.read_errno = errno.EIO
    return files


@pytest.mark.parametrize("n_steps", [1, 2])
def test_pages_whose_load_failed_serve_nobody_when_their_request_is_aborted(start, n_steps):
    """vLLM lists them before they are filled, and has this request alone compute them again, in several steps."""
    from vllm import SamplingParams

    engine = start(LAYERED, max_num_batched_tokens=128)
    longer = [*TOKENS, *prompt(71, 100)]
    expected = engine.ask(longer)[1]
    files = fail_reads(engine)
    core = engine.llm.llm_engine
    name = core.add_request("a", {"prompt_token_ids": longer}, SamplingParams(max_tokens=4))
    for _ in range(n_steps):
        core.step()
    core.abort_request([name], internal=True)
    files.read_errno = 0
    assert engine.ask(longer)[1] == expected
    assert engine.settle()["failed.host_to_device.io_error"] > 0
    put_on_disk(engine)
    assert engine.ask(longer)[1] == expected


def test_requests_that_share_a_load_that_fails_are_right(start):
    """Else, where the first does not get all of a step, others would go on from what it has not computed again yet."""
    engine = start(LAYERED, max_num_batched_tokens=256, long_prefill_token_threshold=64)
    prompts = [[*TOKENS, *prompt(72 + number, 30)] for number in range(3)]
    expected = [engine.ask(tokens)[1] for tokens in prompts]
    files = fail_reads(engine)
    assert answers(engine.generate(*prompts)) == expected
    assert engine.settle()["failed.host_to_device.io_error"] == 8  # of the first alone
    files.read_errno = 0
    for forget in (engine.forget, lambda: put_on_disk(engine)):
        forget()
        assert answers(engine.generate(*prompts)) == expected
        engine.settle()


def test_auto_is_layered_for_a_request_that_is_alone_and_beside_others_where_its_load_hides(start):
    engine = start({"runtime": {"onboard": "auto", "cost_gate": False}})
    prompts = [prompt(60 + number, 300) for number in range(2)]
    expected = [list(output.outputs[0].token_ids) for output in engine.generate(*prompts)]
    engine.settle()
    waited = n_fenced(engine)
    engine.forget()
    assert engine.ask(prompts[0])[1] == expected[0]
    assert waited
    gate, chosen = engine.leader.gate, []
    choose = gate.choose

    def note(situation, queued):
        choice = choose(situation, queued)
        chosen.append((situation.n_others, choice.is_layered))
        return choice

    gate.choose = note
    gate._refit = lambda *_: None
    gate.loaded("host", 4, 1e-3)
    for token_s in (1.0, 1e-9, 1.0):
        gate._compute = ComputeCost(0.0, token_s)
        engine.forget()
        outputs = engine.generate(*prompts)
        assert [list(output.outputs[0].token_ids) for output in outputs] == expected
        assert [output.num_cached_tokens for output in outputs] == [256, 256]
        engine.settle()
    assert chosen == [(0, True), (1, True), (0, True), (1, False), (0, True), (1, True)]


def test_what_is_stored_by_layers_is_what_is_stored_behind_the_forward_and_is_read_either_way(start, tmp_path):
    engine = start_saving(start, "layers")
    expected = engine.ask(TOKENS)[1]
    engine.settle()
    n_layers = engine.worker.setup.layout.n_layers
    assert engine.worker._gathers.n_gathers == n_layers
    by_layers = extents_of(engine, TOKENS)
    engine = start_saving(start, "forward", {"runtime": {"cost_gate": False}})  # finds it on disk
    assert engine.ask(TOKENS) == (HIT, expected)
    assert engine.settle()["tokens.loaded.disk"] == HIT
    whole = {"runtime": {"cost_gate": False}, "tiers": {"disk": {"path": str(tmp_path / "other")}}}
    engine = start_saving(start, "forward", whole)
    assert engine.ask(TOKENS)[1] == expected
    engine.settle()
    assert extents_of(engine, TOKENS) == by_layers
    layered = {"runtime": LAYERED["runtime"], "tiers": whole["tiers"]}
    engine = start_saving(start, "layers", layered)  # what was stored whole, under the forward
    assert engine.ask(TOKENS) == (HIT, expected)
    assert engine.settle()["tokens.loaded.disk"] == HIT


def test_prompts_in_chunks_some_of_them_preempted_are_stored_by_layers(start):
    settings = {"runtime": {"cost_gate": False, "onboard": "auto"}}
    options = {"max_num_batched_tokens": 256, "kv_cache_memory_bytes": 2 << 20, "max_model_len": 640}
    engine = start_saving(start, "layers", settings, **options)
    preempted = []
    preempt = engine.scheduler._preempt_request

    def count(request, *more, **named):
        preempted.append(request)
        return preempt(request, *more, **named)

    engine.scheduler._preempt_request = count
    prompts = [prompt(40 + number, 200 + 60 * number) for number in range(6)]
    expected = [list(output.outputs[0].token_ids) for output in engine.generate(*prompts, n_tokens=80)]
    assert preempted
    assert engine.worker._gathers.n_gathers > 4 * engine.worker.setup.layout.n_layers
    engine.settle()
    put_on_disk(engine)
    outputs = engine.generate(*prompts, n_tokens=80)
    assert [list(output.outputs[0].token_ids) for output in outputs] == expected
    assert engine.settle()["tokens.loaded.disk"] > 0
