"""The split bench without engines: bounds, figures, sizes, and what it asks of whom."""

import json
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.cli.bench import command, split
from tenuto.cli.bench.engines import forwards, variants
from tenuto.cli.bench.engines.budget import Budget
from tenuto.cli.bench.engines.engine import random_tokens
from tenuto.cli.bench.engines.messages import Asked, decode_reply, encode
from tenuto.cli.bench.engines.options import EngineOptions
from tenuto.cli.bench.split_bound import SplitBounds
from tenuto.cli.bench.split_figures import SplitTimes, split_details, split_figures
from tenuto.config import load_config
from tenuto.errors import ConfigError, TenutoError
from tenuto.traces import Recorder, Span
from tests.cli.made_up_events import MadeUpEvent

pytestmark = pytest.mark.unit

N = 4096
BLOCK = 64


def curve(token_s, pair_s=0.0, fixed_s=0.0):
    """What computing tokens [x, N) takes, by x."""
    return {x: fixed_s + token_s * (N - x) + pair_s * (N * N - x * x) / 2 for x in range(0, N + 1, N // 8)}


curves = st.builds(curve, st.floats(1e-6, 1e-3), st.floats(0, 1e-7), st.floats(0, 0.1))
loads = st.floats(1e-7, 1e-2)
steps = st.integers(BLOCK, 2 * N)


@given(curves, loads, steps)
def test_what_may_overlap_more_is_no_slower(computed_s, load_token_s, step_tokens):
    bounds = SplitBounds(computed_s, load_token_s, BLOCK)
    ordered = [bounds.under_all_steps(), bounds.under_first_step(step_tokens), bounds.one_after_the_other()]
    seconds = [bound.seconds for bound in ordered]
    assert seconds == pytest.approx(sorted(seconds))
    assert seconds[-1] <= computed_s[0] * (1 + 1e-9)
    assert all(0 <= bound.n_tokens <= N for bound in ordered)


@given(curves, loads)
def test_one_step_for_all_is_as_loading_under_all_of_it(computed_s, load_token_s):
    bounds = SplitBounds(computed_s, load_token_s, BLOCK)
    assert bounds.under_first_step(N) == bounds.under_all_steps()


@given(curves, loads, steps, st.floats(1.0, 10.0))
def test_a_faster_disk_is_no_slower(computed_s, load_token_s, step_tokens, factor):
    slower, faster = (SplitBounds(computed_s, s, BLOCK) for s in (load_token_s * factor, load_token_s))
    assert faster.under_first_step(step_tokens).seconds <= slower.under_first_step(step_tokens).seconds + 1e-12


@given(curves, loads, steps)
def test_the_bound_is_reached_where_it_says(computed_s, load_token_s, step_tokens):
    bound = SplitBounds(computed_s, load_token_s, BLOCK).under_first_step(step_tokens)
    x = bound.n_tokens

    def compute(place):
        return float(np.interp(place, list(computed_s), list(computed_s.values()))) if place < N else 0.0

    if x + step_tokens >= N:
        first, rest = (compute(x) if x < N else computed_s[N]), 0.0
    else:
        rest = compute(x + step_tokens)
        first = compute(x) - rest
    assert bound.seconds == pytest.approx(max(load_token_s * x, first) + rest)


@pytest.mark.parametrize(("load_s", "compute_s"), [(2.0, 1.2), (1.0, 3.0), (1.0, 1.0)])
def test_in_one_step_rates_add_up(load_s, compute_s):
    bound = SplitBounds(curve(compute_s / N), load_s / N, BLOCK).under_first_step(N)
    assert bound.seconds == pytest.approx(1 / (1 / load_s + 1 / compute_s), rel=2 * BLOCK / N)


def test_short_steps_hide_less():
    bounds = SplitBounds(curve(1.0 / N), 1.5 / N, BLOCK)
    quarter = bounds.under_first_step(N // 4)
    assert quarter.seconds == pytest.approx(5 / 6, rel=0.02)  # of the load, what the first step takes is free
    assert quarter.n_tokens == pytest.approx(N / 6, abs=BLOCK)
    assert bounds.under_all_steps().seconds == pytest.approx(0.6, rel=0.05)
    assert bounds.one_after_the_other().seconds == pytest.approx(1.0)


def asked(ms, reused=0, answer=(7,), **loaded):
    return Asked(ms / 1e3, reused, loaded, answer, {"load.disk": 10**9})


def some_times(step_tokens=N):
    times = SplitTimes(N, step_tokens, kv_bytes_per_token=1000, block_tokens=BLOCK)
    for x, seconds in curve(1.0 / N).items():
        times.computed[x] += [asked(seconds * 1e3), asked(seconds * 1e3), asked(seconds * 1e4)]
    times.disk = {8: [N * 1000 / 1.5] * 3, 16: [1.0]}
    times.split = [asked(660, 1600, disk=1600), asked(600, 1664, disk=1664), asked(690, 1536, disk=1536)]
    times.answers = {1: (7,), 2: (8,)}
    times.loaded_answers = [(1, (7,)), (2, (7,)), (3, (7,))]
    return times


def test_figures_are_ratios_of_medians():
    figures = split_figures(some_times(), "_x")
    assert figures["bound_ms_x"] == pytest.approx(600, rel=0.03)
    assert figures["split_over_bound_x"] == pytest.approx(660 / figures["bound_ms_x"], abs=1e-4)
    assert figures["split_over_recompute_x"] == 0.66
    assert figures["load_ms_x"] == 1500
    assert figures["split_tokens_x"] == 1600
    assert (figures["compared_answers_x"], figures["different_answers_x"]) == (2, 1)
    assert "bound_lookahead_ms_x" not in figures
    shorter = split_figures(some_times(N // 4))
    assert shorter["bound_lookahead_ms"] == figures["bound_ms_x"] < shorter["bound_ms"] < shorter["bound_async_ms"]
    assert set(command.TARGETS["split"]) <= set(shorter)


def test_details_say_what_each_load_brought():
    details = split_details(some_times())
    assert details["loaded_tokens"] == {"disk": [1600, 1664, 1536]}
    assert details["split_computed_tokens"] == [2496, 2432, 2560]
    assert details["gate_rates"] == {"load.disk": [10**9] * 3}
    assert len(details["computed_ms"]["512"]) == 3
    json.dumps(details)


def test_what_was_not_measured_gives_no_figure():
    assert split_figures(SplitTimes(N, N, 1000, BLOCK)) == {}
    times = some_times()
    del times.computed[N]
    assert "split_over_bound" not in split_figures(times)
    assert "split_over_recompute" in split_figures(times)


def test_a_longer_prompt_of_a_seed_begins_with_a_shorter_one():
    whole = random_tokens(5, 5000, 128256)
    assert all(random_tokens(5, n, 128256) == whole[:n] for n in (0, 1, 63, 64, 4097))
    assert random_tokens(6, 64, 128256) != whole[:64]


def test_a_trace_survives_the_way():
    spans = [Span("compute", 1.0, 2.0, "forward", 3), Span("load", 1.0, 2.0, "t", None, 5)]
    traced = Asked(0.1, 9, {"disk": 9}, (4,), {"prefill": 3}, spans)
    assert decode_reply(encode(traced)) == traced


class MadeUpConnector:
    """A layer's load is waited for for five seconds."""

    def __init__(self):
        self.waited, self.n_saves = [], 0

    def wait_for_layer_load(self, name):
        self.waited.append(name)
        MadeUpEvent.now_s += 5.0

    def wait_for_save(self):
        self.n_saves += 1
        MadeUpEvent.now_s += 7.0


@pytest.mark.parametrize("has_gpu", [False, True])
def test_what_lies_between_the_waits_of_layers_is_computing(monkeypatch, has_gpu):
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_gpu)
    monkeypatch.setattr("torch.cuda.Event", MadeUpEvent)
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    if not has_gpu:
        monkeypatch.setattr(forwards.time, "monotonic", lambda: MadeUpEvent.now_s)
    connector = MadeUpConnector()
    hooks = forwards._Forwards(connector)
    for _ in range(2):  # two forwards of two layers
        for name in ("first", "second"):
            hooks.wait_for_layer_load(name)
            MadeUpEvent.now_s += 1.0
        hooks.wait_for_save()
    recorder = Recorder()
    hooks.tell(recorder)
    spans = recorder.spans()
    assert (connector.waited, connector.n_saves) == (["first", "second"] * 2, 2)
    assert [(span.name, span.layer) for span in spans] == [("compute", 0), ("compute", 1)] * 2
    assert [span.start_s - spans[0].start_s for span in spans] == pytest.approx([0.0, 6.0, 19.0, 25.0])
    assert [span.stop_s - span.start_s for span in spans] == pytest.approx([1.0] * 4)


def test_our_engine_loads_by_layers_and_never_plans_ahead(tmp_path):
    model = variants.write_model(tmp_path, variants.LLAMA_8B, "bfloat16")
    transfer = variants.connector("ours_split", variants.Storage(5 << 30, tmp_path, 7 << 30))
    config = load_config(transfer["kv_connector_extra_config"])
    assert (config.runtime.onboard, config.runtime.cost_gate) == ("auto", True)
    assert config.tiers.disk.path == str(tmp_path)
    sizes = variants.EngineSizes(1 << 30, 40000, step_tokens=33024, plans_ahead=False)
    options = variants.engine_options(model, sizes, transfer)
    assert (options["max_num_batched_tokens"], options["async_scheduling"]) == (33024, False)
    options = variants.engine_options(model, variants.EngineSizes(1 << 30, 40000), None)
    assert options["max_num_batched_tokens"] == 8192
    assert "async_scheduling" not in options


def test_sizes_are_those_that_were_asked_for():
    chosen = split.choose_sizes(EngineOptions(tokens=(8192,), repeats=3), is_quick=False)
    assert (chosen.n_tokens, chosen.chunk_tokens, chosen.n_rounds) == (8192, 0, 3)
    assert split.choose_sizes(EngineOptions(), is_quick=False) == split.SplitSizes()
    for options, says in [
        (EngineOptions(tokens=(8192, 16384)), "--tokens: split takes one length"),
        (EngineOptions(tokens=(8000,)), "--tokens: 8000 is no multiple of 2048"),
        (EngineOptions(variants=("off",)), "--variants, --disk-tokens: split has engines of its own"),
    ]:
        with pytest.raises(ConfigError, match=says):
            split.choose_sizes(options, is_quick=False)


SPANS = [
    Span("compute", 1.0, 3.0, "forward", 0), Span("load", 0.0, 2.0, "layers", 0, 9), Span("store", 3.0, 9.0, "store"),
]  # fmt: skip


class MadeUpChild:
    """An engine that has what it was asked, until it forgets, and what another of it was told to have on disk."""

    def __init__(self, name, has_disk):
        self.name, self.has_disk = name, has_disk
        self.asked, self.on_disk, self.cached = [], set(), {}

    def ask(self, seed, n_tokens, shared_seed=0, n_shared=0, *, is_traced=False):
        self.asked.append((seed, n_tokens, shared_seed, n_shared))
        reused = min(self.cached.get(shared_seed, 0), n_shared)
        if self.has_disk and seed in self.on_disk:
            reused = n_tokens // 2
        if self.has_disk and n_tokens == N + 1:
            self.on_disk.add(seed)
        self.cached[seed] = n_tokens
        loaded = {"disk": reused} if self.has_disk else {}
        return Asked(1.0 - reused / n_tokens, reused, loaded, (seed,), spans=SPANS if is_traced else [])

    def forget(self):
        self.cached.clear()


class MadeUpFleet:
    """Both engines of a part."""

    def __init__(self, *children):
        self.children = {child.name: child for child in children}
        self.left_out = {}

    def __getitem__(self, name):
        return self.children[name]

    def alive(self, names):
        return [name for name in names if name in self.children]

    def turns(self, names, number):
        return [(name, self.children[name]) for name in names]

    def leave_out(self, what, error):
        self.left_out[what] = str(error)

    def start(self, *_, **__):
        pass


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(split.DiskMeter, "measure", lambda *_: 1e9)

    def made(*children, **sizes):
        model = variants.write_model(tmp_path / "model", variants.TINY, "float32")
        chosen = split.SplitSizes(N, 0, 3, block_tokens=BLOCK, **sizes)
        return split._Bench(tmp_path, MadeUpFleet(*children), Budget(90.0), model, chosen)

    return made


def test_each_round_has_every_prompt_from_disk_and_one_computed_from_nine_places(bench):
    off, ours = MadeUpChild("off", has_disk=False), MadeUpChild("ours_split", has_disk=True)
    made = bench(off, ours)
    made.run()
    (part,) = made.parts
    assert made.rounds == {"ours_split": 3}
    assert {x: len(samples) for x, samples in part.times.computed.items()} == dict.fromkeys(range(0, N + 1, N // 8), 3)
    assert len(part.times.split) == 3 * 3
    assert {seed for seed, *_ in off.asked[::9]} == {1, 2, 3}  # whose answers are compared
    pieces, hits = ours.asked[:7], ours.asked[7:]
    assert [n for _, n, *_ in pieces] == [1024, 2048, 3072, N + 1, 2048, N + 1, N + 1]
    assert [(seed, n) for seed, n, *_ in hits] == [(1 + i % 3, N + 1) for i in range(3 * (2 + 4) + 1)]
    figures = made.figures()
    assert figures["load_hidden"] == 0.5
    assert figures["different_answers"] == 0
    assert figures["compared_answers"] == 9
    drawn = ET.fromstring(made.picture())
    assert any("tokens on disk 2048 are loaded" in (text.text or "") for text in drawn.iter())


def test_an_engine_that_has_not_what_it_should_ends_its_part(bench):
    off = MadeUpChild("off", has_disk=False)
    made = bench(off, MadeUpChild("ours_split", has_disk=True))
    ask = off.ask
    off.ask = lambda *prompt: ask(*prompt[:3], prompt[3] // 2)
    made.run()
    assert list(made._fleet.left_out) == ["the rest of ours_split"]
    assert "had 2048 of a prompt's tokens, not 4096" in made._fleet.left_out["the rest of ours_split"]
    assert made.picture() == ""


def test_without_our_engine_what_is_computed_is_still_measured(bench):
    made = bench(MadeUpChild("off", has_disk=False))
    made.run()
    assert {"recompute_ms", "bound_ms", "load_gb_s"} <= set(made.figures())
    assert "split_ms" not in made.figures()


def test_a_disk_without_room_is_refused_or_has_one_part(bench, monkeypatch):
    def parts(free):
        made = bench()
        made._add_part("_8k", 8192)
        monkeypatch.setattr(split.shutil, "disk_usage", lambda _: type("Usage", (), {"free": int(free)}))
        made._drop_parts_without_space()
        return [part.ours for part in made.parts], list(made._fleet.left_out)

    prompt_bytes = N * variants.read_model(bench()._folder / "model").kv_bytes_per_token
    assert parts(1e12) == (["ours_split", "ours_split_8k"], [])
    assert parts(6 * prompt_bytes) == (["ours_split"], ["ours_split_8k"])
    with pytest.raises(ConfigError, match=r"^--dir: 0\.0 GB are needed there"):
        parts(3 * prompt_bytes)


def test_errors_of_engines_are_one_line(monkeypatch, tmp_path, capsys):
    from tenuto.cli.main import main

    monkeypatch.setattr("tenuto.cli.bench.split.Fleet.start", lambda *_, **__: (_ for _ in ()).throw(TenutoError("no")))
    assert main(["bench", "split", "--quick", "--dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "tenuto bench: no"
    assert list(tmp_path.iterdir()) == []
