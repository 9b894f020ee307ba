"""The benches that run engines, without any: traffic, figures, budget, options, what variants are."""

import argparse
import json
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.cli.bench import command, serving, ttft
from tenuto.cli.bench.engines import variants
from tenuto.cli.bench.engines.budget import Budget
from tenuto.cli.bench.engines.diskrate import DiskMeter
from tenuto.cli.bench.engines.messages import Ask, Asked, Serve, Window, decode_reply, decode_request, encode
from tenuto.cli.bench.engines.options import EngineOptions, add_engine_options, as_arguments, read_engine_options
from tenuto.cli.bench.engines.pump import Clock, Output, run_traffic
from tenuto.cli.bench.engines.traffic import Traffic, plan_sessions
from tenuto.cli.bench.result import Machine, Result
from tenuto.cli.bench.serving_figures import Place, quantile, serving_figures
from tenuto.cli.bench.show import plain_text
from tenuto.cli.bench.ttft_figures import Case, Times, plan_cycle, ttft_details, ttft_figures
from tenuto.cli.main import main
from tenuto.config import load_config
from tenuto.errors import ConfigError, TenutoError

pytestmark = pytest.mark.unit

CLOSED = Traffic(7, n_sessions=5, n_turns=3, first_tokens=40, turn_tokens=10, answer_tokens=6, n_clients=2, vocab=99)
OPEN = Traffic(7, 5, 3, 40, 10, 6, rate_per_s=30.0, think_s=0.5, vocab=99)


class Time:
    """A clock that moves when it is told to."""

    def __init__(self):
        self.now_s = 0.0

    def now(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += max(seconds, 1e-6)


class OneTokenAStep:
    """Every request in it gets a token a step; a step takes a tenth of a second."""

    def __init__(self, time):
        self.time, self.left, self.prompts, self.most = time, {}, {}, 0

    def submit(self, request, prompt, n_answer):
        assert request not in self.prompts
        self.left[request], self.prompts[request] = n_answer, list(prompt)
        self.most = max(self.most, len(self.left))

    def step(self):
        self.time.now_s += 0.1
        outputs = []
        for request in list(self.left):
            self.left[request] -= 1
            outputs.append(Output(request, (5,), self.left[request] == 0, 3))
            if not self.left[request]:
                del self.left[request]
        return outputs


def run(traffic):
    time = Time()
    engine = OneTokenAStep(time)
    return run_traffic(engine, traffic, Clock(time.now, time.sleep)), engine


def asked(*ttft_ms, reused=0, **loaded):
    return [Asked(ms / 1e3, reused, loaded) for ms in ttft_ms]


def read(*words):
    parser = argparse.ArgumentParser()
    add_engine_options(parser)
    return read_engine_options(parser.parse_args(words))


def test_a_seed_gives_the_same_traffic_and_another_other():
    assert plan_sessions(CLOSED) == plan_sessions(CLOSED)
    assert plan_sessions(CLOSED) != plan_sessions(Traffic(8, 5, 3, 40, 10, 6, n_clients=2, vocab=99))


@given(st.integers(0, 99), st.integers(1, 4), st.integers(1, 50), st.integers(1, 50), st.integers(1, 20))
def test_no_session_outgrows_its_bound(seed, n_turns, first, turn, answer):
    traffic = Traffic(seed, 4, n_turns, first, turn, answer, n_clients=1)
    for session in plan_sessions(traffic):
        assert sum(len(turn.tokens) + turn.n_answer for turn in session.turns) <= traffic.longest_tokens


def test_open_sessions_begin_one_after_the_other_at_about_the_rate():
    sessions = plan_sessions(Traffic(1, 4000, 2, 4, 4, 4, rate_per_s=10.0))
    starts = [session.start_s for session in sessions]
    assert starts == sorted(starts)
    assert 2 * len(sessions) / starts[-1] == pytest.approx(10, rel=0.1)


@pytest.mark.parametrize("traffic", [CLOSED, OPEN])
def test_every_turn_is_asked_with_all_that_was_said_before(traffic):
    window, engine = run(traffic)
    sessions = plan_sessions(traffic)
    assert window.n_requests == 15
    assert window.answer_tokens == sum(turn.n_answer for session in sessions for turn in session.turns)
    assert window.prompt_tokens == sum(len(prompt) for prompt in engine.prompts.values())
    assert window.reused_tokens == 3 * 15
    history = []
    for turn, of in enumerate(sessions[0].turns):
        history += of.tokens
        assert engine.prompts[f"7-0-{turn}"] == history
        history += [5] * of.n_answer


def test_closed_traffic_keeps_its_number_in_flight_and_the_order_of_turns():
    window, engine = run(CLOSED)
    assert engine.most == 2
    assert [int(request.rpartition("-")[2]) for request in engine.prompts] == [0] * 5 + [1] * 5 + [2] * 5
    assert window.ttft_s == pytest.approx([0.1] * 15)
    assert len(window.itl_s) == window.answer_tokens - 15
    assert window.itl_s == pytest.approx([0.1] * len(window.itl_s))


def test_an_open_request_waits_from_when_it_was_due():
    window, _ = run(OPEN)
    assert all(0.1 - 1e-9 <= ttft_s <= 0.2 + 1e-6 for ttft_s in window.ttft_s)  # a step that runs is waited for
    assert max(window.ttft_s) > 0.11


def test_requests_and_answers_survive_the_way():
    for message in (Ask(1, 2), Serve(OPEN)):
        assert decode_request(encode(message)) == message
    window = Window([0.1], [0.2], 1.0, 3, 4, 5)
    assert decode_reply(encode(window)) == window


def test_the_ratios_of_times_to_first_token_are_of_medians():
    times = Times(kv_bytes_per_token=1000, wire=[1e9, 2e9, 9e9], disk={8: [1e8, 1e8], 16: [2e7]})
    for variant, kind, samples in [
        ("off", "cold", asked(100, 200, 900)), ("ours", "cold", asked(202)), ("off", "engine", asked(10)),
        ("ours", "host", asked(22, 33, 11, host=1000)), ("native", "host", asked(44)),
        ("ours_disk", "disk", asked(242)), ("native_disk", "disk", asked(484)), ("ours_gate", "disk", asked(121)),
        ("off", "recompute", asked(110)),
    ]:  # fmt: skip
        times.asked[Case(variant, kind, 20_000)] += samples
    figures = ttft_figures(times, 20_000)
    assert figures["cold_over_off"] == 1.01
    assert figures["host_floor_ms"] == 20.0  # 10 ms, and 20 MB at 2 GB/s
    assert figures["host_hit_over_floor"] == 1.1
    assert figures["host_hit_over_native"] == 0.5
    assert figures["disk_hit_over_floor"] == round(242 / 210, 4)
    assert figures["disk_hit_over_native"] == 0.5
    assert figures["disk_hit_over_recompute"] == 1.1
    assert figures["ours.host.20000_ms"] == 22.0
    assert ttft_details(times)["loaded_tokens"] == {"ours.host.20000": {"host": 1000}}


def test_the_ratios_of_serving_are_of_one_round_each():
    def windows(*itl_s):
        return [Window([0.1], [seconds], 1.0, 3, 4, 5) for seconds in itl_s]

    figures = serving_figures({
        Place("off", "fresh"): windows(0.1, 0.2, 0.4), Place("ours", "fresh"): windows(0.11, 0.18, 0.44),
    })  # fmt: skip
    assert figures["itl_median"] == 1.1
    assert figures["ours.fresh.itl_ms_median"] == 180.0
    assert "throughput_over_native" not in figures


def test_what_was_not_measured_gives_no_figure():
    assert ttft_figures(Times(1000), 20_000) == {}
    assert serving_figures({Place("off", "fresh"): []}) == {}


def test_every_target_of_these_benches_can_be_measured():
    times = Times(1000, wire=[1e9], disk={8: [1e9]})
    for variant in (*ttft.IN_MEMORY, *ttft.ON_DISK):
        for kind in ("cold", "engine", "host", "disk", "recompute"):
            times.asked[Case(variant, kind, 9)] += asked(1)
    assert set(command.TARGETS["ttft"]) <= set(ttft_figures(times, 9))
    window = Window([0.1], [0.2], 1.0, 3, 4, 5)
    both = [Place(variant, load) for variant in ("off", "ours", "native") for load in ("fresh", "saturated")]
    assert set(command.TARGETS["serving"]) <= set(serving_figures({place: [window] for place in both}))


@given(st.lists(st.integers(1, 300), min_size=1, max_size=4, unique=True), st.integers(1, 50), st.integers(1, 20_000))
def test_each_prompt_of_a_cycle_is_pushed_out_by_the_others(lengths, per_token, host_bytes):
    cycle = plan_cycle(lengths, per_token, host_bytes)
    assert len(set(cycle)) == len(cycle)
    assert {length for length, _ in cycle} == set(lengths)
    total = sum(length for length, _ in cycle)
    assert all((total - length) * per_token >= host_bytes for length, _ in cycle)
    fewest = (total - max(lengths) - max(lengths)) * per_token  # one of the longest less would not do
    assert Counter(cycle).most_common(1)[0][1] == 1
    assert len(cycle) == len(lengths) or fewest < 1.05 * host_bytes


def test_the_default_cycle_fits_a_disk_of_64_gib_three_times():
    sizes = ttft.TtftSizes()
    kept = 131072 * sum(n for n, _ in plan_cycle(sizes.disk_lengths, 131072, sizes.disk_host_bytes))
    assert sum(share * kept for share in ttft._SPACE.values()) < 45e9


def test_the_model_has_the_bytes_of_llama_3_8b(tmp_path):
    model = variants.write_model(tmp_path, variants.LLAMA_8B, "bfloat16")
    assert model.kv_bytes_per_token == 131072
    assert json.loads((tmp_path / "config.json").read_text())["hidden_size"] == 4096


@pytest.mark.parametrize("name", ["ours", "ours_disk", "ours_gate"])
def test_our_settings_are_settings(tmp_path, name):
    transfer = variants.connector(name, variants.Storage(5 << 30, tmp_path, 7 << 30))
    config = load_config(transfer["kv_connector_extra_config"])
    assert config.tiers.host.capacity == "5120 MiB"
    assert (config.tiers.disk.path == "") == (name == "ours")
    assert config.runtime.cost_gate == (name != "ours_disk")
    ungated = variants.connector(name, variants.Storage(5 << 30, tmp_path, 7 << 30, has_gate=False))
    config = load_config(ungated["kv_connector_extra_config"])
    assert config.runtime.cost_gate == (name == "ours_gate")


def test_vllms_own_have_the_same_host_memory(tmp_path):
    storage = variants.Storage(5 << 30, tmp_path)
    extra = variants.connector("native_disk", storage)["kv_connector_extra_config"]
    assert variants.connector("native", storage)["kv_connector_extra_config"] == {"cpu_bytes_to_use": 5 << 30}
    assert extra["cpu_bytes_to_use"] == 5 << 30
    assert extra["secondary_tiers"] == [{"type": "fs", "root_dir": str(tmp_path)}]
    assert variants.connector("off", storage) is None


def test_no_round_begins_that_would_end_too_late():
    time = Time()
    budget = Budget(100.0, time.now)
    numbers = []
    for number in budget.rounds("some", 9):
        numbers.append(number)
        time.now_s += 30
    assert numbers == [0, 1, 2]
    time.now_s += 30
    assert list(budget.rounds("others", 9, least=2)) == [0, 1]
    assert list(budget.rounds("none", 9, least=0)) == []


def test_a_first_round_that_is_known_to_last_too_long_is_not_begun():
    budget = Budget(100.0, Time().now)
    assert list(budget.rounds("long", 9, least=0, expected_s=101)) == []
    assert next(budget.rounds("short", 9, least=0, expected_s=99)) == 0
    assert OPEN.arrivals_s == 5 * 3 / 30
    assert CLOSED.arrivals_s == 0


def test_a_share_of_the_budget_ends_before_the_whole():
    time = Time()
    budget = Budget(100.0, time.now)
    rounds = budget.rounds("some", 9, share=0.5)
    for _ in rounds:
        time.now_s += 20
    assert rounds.n_made == 2


def test_options_are_written_as_they_were_given():
    words = ["--eager", "--variants", "off", "ours", "--tokens", "4096", "8192", "--rates", "2.5", "--repeats", "3",
             "--workloads", "rates"]  # fmt: skip
    options = read(*words)
    assert options == EngineOptions(
        eager=True, variants=("off", "ours"), tokens=(4096, 8192), rates=(2.5,), repeats=3, workloads=("rates",)
    )
    assert read(*as_arguments(options).split()) == options
    assert as_arguments(EngineOptions()) == ""


BAD = ("0", "-1", "nan", "inf")
COUNTS = (
    "--repeats", "--tokens", "--disk-tokens", "--turns", "--first-tokens", "--turn-tokens", "--answer-tokens",
)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--variants", "off", "mine"], "--variants: no engine is named 'mine'"),
        (["--variants", "ours"], "--variants: name off too"),
        (["--variants", "off", "ours", "off"], "--variants: off is given twice"),
        *(
            (["--rates", "4", text], "--rates: .*out of range; give 0.01 to 10000")
            for text in ("0", "-1", "nan", "inf")
        ),
        (["--workloads", "fresh", "stale"], "--workloads: there is no 'stale'; there are fresh, saturated, rates"),
        (["--workloads", "fresh", "fresh"], "--workloads: fresh is given twice"),
        (["--rates", "4", "4.0"], "--rates: 4 is given twice"),
        (["--rates", "many"], "--rates: 'many' is not a number"),
        *((["--budget-s", text], "--budget-s: .*out of range; give 1 to 86400") for text in BAD),
        (["--budget-s", ""], "--budget-s: '' is not a number"),
        (["--tokens", "4096", "4096"], "--tokens: 4096 is given twice"),
        (["--disk-tokens", "1", "2", "1"], "--disk-tokens: 1 is given twice"),
        *(([option, "0"], f"{option}: 0 is out of range; give 1 to 1") for option in COUNTS),
        *(([option, "-3"], f"{option}: -3 is out of range; give 1 to ") for option in COUNTS),
        *(([option, "2.5"], f"{option}: '2.5' is not a whole number") for option in COUNTS),
        *(([option, "9" * 5000], f"{option}: ") for option in COUNTS),
        (["--model", "/nowhere"], "--model: /nowhere has no config.json"),
    ],
)
def test_wrong_options_give_one_line(words, says, capsys):
    with pytest.raises(ConfigError, match=f"^{says}"):
        read(*words)
    assert main(["bench", "ttft", *words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"tenuto bench: {says}", line)
    assert len(line) < 200


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "can't be read"),
        ("[]", "can't be read"),
        ('{"num_attention_heads": 4, "num_hidden_layers": 2}', "can't be read .*hidden_size"),
        ('{"num_attention_heads": 0, "hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 9}', "can't be read"),
    ],
)
def test_a_model_whose_config_tells_too_little_is_one_line(tmp_path, text, says):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=f"^--model: .*config.json {says}") as caught:
        variants.choose_model(tmp_path, tmp_path / "other", is_quick=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("workloads", [(), ("fresh",), ("saturated",), ("rates",), ("fresh", "rates")])
def test_only_the_workloads_asked_for_are_made_and_the_last_may_take_what_is_left(tmp_path, workloads):
    sizes = serving.choose_sizes(EngineOptions(workloads=workloads), is_quick=False)
    budget = Budget(9.0)
    bench = serving._Bench(tmp_path, serving.Fleet(tmp_path, budget), budget, None, sizes)
    made = []
    bench._start = lambda **_: None
    bench._rounds = lambda traffic, n_rounds, share, n_warm: made.append((next(iter(traffic)), share))
    bench.run(is_eager=True)
    names = {"fresh": "fresh", "saturated": "saturated", "rates": "rate_4"}
    assert [name for name, _ in made] == [names[name] for name in workloads or names]
    assert [share for _, share in made][-1] == 1.0
    assert all(share < 1 for _, share in made[:-1])


def test_figures_are_of_the_longest_prompt_where_the_default_is_not_asked():
    assert ttft.choose_sizes(EngineOptions(), is_quick=False).n_figure == 32768
    chosen = ttft.choose_sizes(EngineOptions(tokens=(4096, 65536)), is_quick=False)
    assert (chosen.n_figure, chosen.disk_lengths) == (65536, (4096,))


def test_engines_that_have_no_room_on_disk_are_left_out(tmp_path, monkeypatch):
    def chosen(free):
        monkeypatch.setattr(ttft.shutil, "disk_usage", lambda _: argparse.Namespace(free=free))
        model = variants.write_model(tmp_path / "model", variants.LLAMA_8B, "bfloat16")
        fleet = ttft.Fleet(tmp_path, Budget(9.0))
        bench = ttft._Bench(tmp_path, fleet, Budget(9.0), model, ttft.TtftSizes(variants=("off", *ttft.ON_DISK)))
        bench._on_disk = list(ttft.ON_DISK)
        return bench._with_space(), fleet.left_out

    assert chosen(1e12) == (["ours_disk", "native_disk", "ours_gate"], {})
    names, left_out = chosen(35e9)
    assert names == ["ours_disk", "native_disk"]
    assert "GB of disk more are needed" in left_out["ours_gate"]
    with pytest.raises(ConfigError, match=r"^--dir: a disk tier needs 15\.\d GB"):
        chosen(10e9)


def test_the_disk_meter_reads_what_it_wrote_and_removes_it(tmp_path):
    meter = DiskMeter(tmp_path / "file", (5 << 20) + 1)
    assert (tmp_path / "file").stat().st_size == 8 << 20
    assert meter.measure(3) > 0
    meter.close()
    assert list(tmp_path.iterdir()) == []


def test_quantiles_are_of_values_that_were_seen():
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0
    assert quantile([float(n) for n in range(1, 101)], 0.99) == 99.0
    assert quantile([], 0.5) == 0.0


def test_a_gpu_names_the_file_and_details_stay_in_it():
    result = Result(
        "ttft", Machine("cpu", 1, 1.0, gpu="NVIDIA H200"), {}, "", "", {"a": 1}, {"samples": [1.5, 2, -3e-05]}
    )
    assert result.machine.slug == "h200"
    assert '"samples": [ 1.5, 2, -3e-05 ]' in result.as_json()
    assert json.loads(result.as_json())["details"] == {"samples": [1.5, 2, -3e-05]}


def test_without_rich_the_table_is_plain(monkeypatch, capsys):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert main(["bench", "hash", "--quick"]) == 0
    assert "tokens_per_s_64_chunked" in capsys.readouterr().out
    missed = plain_text(
        Result("hash", Machine("cpu", 1, 1.0), {}, "", "", {"tokens_per_s_16": 1}), command.TARGETS["hash"]
    )
    assert missed.endswith("≥ 10,000,000  missed")


def test_a_failed_engine_is_one_line(tmp_path):
    from tenuto.cli.bench.engines.messages import Start
    from tenuto.cli.bench.engines.process import Child, child_environment

    child = Child("off", tmp_path / "log", child_environment({"PATH": "/nowhere"}, 1))
    try:
        child.begin(Start({"model": "/nowhere"}, 9))
        child._process.stdin.close()
        child._process.kill()
        with pytest.raises(TenutoError, match=r"^engine off ended \(code -9\): "):
            child.wait_ready()
    finally:
        child.close()
