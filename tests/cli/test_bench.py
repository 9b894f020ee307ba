"""The benches at tiny sizes: what they print and refuse, never how fast they are."""

import io
import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from tenuto.cli.bench import command, disk, fio
from tenuto.cli.bench.disk import DiskSizes, measure_disk
from tenuto.cli.bench.hashing import HashSizes, measure_hash
from tenuto.cli.bench.measured import Measured
from tenuto.cli.bench.pooling import PoolSizes, measure_pool
from tenuto.cli.bench.progress import Bar
from tenuto.cli.bench.result import Machine, Result
from tenuto.cli.bench.striping import StripingSizes, measure_striping
from tenuto.cli.main import main
from tenuto.config import POLICY_NAMES
from tenuto.errors import ConfigError, TenutoError
from tenuto.pools import POLICIES, Pool

pytestmark = pytest.mark.unit

FEW = StripingSizes(n_units=4, n_memory_units=2, n_rounds=1)
TINY = DiskSizes(n_units=16, n_rounds=2, n_uring_rounds=1, batch=5, n_threads=2)


@pytest.fixture
def bar():
    with Bar(Console(quiet=True)) as shown:
        yield shown


@pytest.fixture
def no_fio(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture
def fake_fio(monkeypatch):
    """Every pass at 2 GB/s; the calls."""
    calls = []

    def run(program, file, n_bytes, rw, engine="libaio"):
        calls.append((rw, engine, n_bytes))
        return 2e9

    monkeypatch.setattr(disk, "find_fio", lambda: "fio")
    monkeypatch.setattr(disk, "run_fio", run)
    return calls


def lines_of(capsys):
    return capsys.readouterr().err.splitlines()


def script(tmp_path, text):
    path = tmp_path / "fio"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_json_says_all_that_a_figure_needs(capsys):
    assert main(["bench", "hash", "--quick", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result) == {"name", "machine", "versions", "command", "date", "figures"}
    assert result["name"] == "hash"
    assert result["command"] == "tenuto bench hash --quick"
    assert result["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert result["machine"]["memory_gib"] > 0
    assert result["machine"]["cpu"]
    assert set(result["versions"]) == {"tenuto", "python", "numpy", "xxhash", "kernel"}
    assert all(isinstance(value, int | float) for value in result["figures"].values())


@pytest.mark.parametrize("has_rich", [True, False])
def test_the_table_names_every_figure_and_its_target_but_of_a_quick_run(capsys, monkeypatch, has_rich):
    if not has_rich:
        monkeypatch.setattr(command, "find_spec", lambda _: None)
    assert main(["bench", "hash", "--quick"]) == 0
    shown = capsys.readouterr().out
    assert "tokens_per_s_64_chunked" in shown
    assert "quick run: no targets" in shown
    assert not {"≥", "missed"} & set(shown.split())
    monkeypatch.setitem(command.BENCHES, "hash", lambda *_: Measured({"tokens_per_s_16": 1, "other": 2}))
    assert main(["bench", "hash"]) == 0
    shown = capsys.readouterr().out
    assert "≥ 10,000,000" in shown
    assert "quick" not in shown


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_a_pool_is_measured_with_any_policy(bar, policy):
    figures = measure_pool(PoolSizes(1024, 64, 2, 16, 8, 2, policy), bar)
    assert figures["match_8192_ms"] > 0
    assert figures["n_blocks"] == 1024


def test_the_pools_bench_takes_a_policy_and_a_size_and_says_so(capsys):
    line = ["bench", "pool", "--quick", "--policy", "default", "--blocks", "70000"]
    assert main([*line, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["command"] == "tenuto " + " ".join(line)
    assert result["details"] == {"policy": "default"}
    assert result["figures"]["n_blocks"] == 81920  # whole groups of its prompts
    assert result["figures"]["bytes_per_block"] > 0
    assert isinstance(Pool("a")._policy, POLICIES[PoolSizes().policy])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["pool", "--policy", "lur"], "--policy: no policy is named 'lur'; give one of default, lru"),
        (["pool", "--blocks", "many"], "--blocks: 'many' is not a whole number"),
        (["pool", "--blocks", "100"], "--blocks: 100 is out of range; give 65536 to 1000000000"),
        (["hash", "--blocks", "70000"], "--blocks: is of tenuto bench pool alone; leave it out"),
    ],
)
def test_wrong_options_of_the_pools_bench_are_one_line(capsys, options, said):
    assert main(["bench", *options, "--quick"]) == 1
    (line,) = lines_of(capsys)
    assert line.startswith(f"tenuto bench: {said}")


def test_a_result_is_kept_under_a_name_without_the_host(tmp_path, capsys):
    assert main(["bench", "hash", "--quick", "--json", "--out", str(tmp_path / "new")]) == 0
    (kept,) = (tmp_path / "new").iterdir()
    assert kept.name.startswith("hash-")
    assert kept.name.endswith("-quick.json")  # what was not measured replaces no result
    assert os.uname().nodename not in kept.name
    assert json.loads(kept.read_text()) == json.loads(capsys.readouterr().out)


def test_a_folder_that_cannot_be_written_gives_one_line_before_anything_is_measured(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setitem(command.BENCHES, "hash", None)
    assert main(["bench", "hash", "--quick", "--json", "--out", str(tmp_path / "file")]) == 1
    (line,) = lines_of(capsys)
    assert line.startswith("tenuto bench: --out: can't write")


def test_an_unknown_name_gives_one_line_and_exit_code_2(capsys):
    assert main(["bench", "speed"]) == 2
    names = "hash, pool, disk, scheduler, device, layered, ttft, split, serving, events, advisor"
    assert lines_of(capsys) == [f"tenuto bench: no bench is named 'speed'; there are {names}"]


def test_a_missing_fio_gives_one_line_that_names_the_package(capsys, no_fio, tmp_path):
    assert main(["bench", "disk", "--quick", "--dir", str(tmp_path)]) == 1
    (line,) = lines_of(capsys)
    assert "apt-get install fio" in line


@pytest.mark.parametrize(
    ("cpu", "slug"),
    [
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "intel-xeon-platinum-8481c-4c"),
        ("AMD EPYC 9B14", "amd-epyc-9b14-4c"),
        ("aarch64", "aarch64-4c"),
    ],
)
def test_files_are_named_by_processor_and_cores(cpu, slug):
    assert Machine(cpu, 4, 16.0).slug == slug


def test_every_target_is_a_figure_of_its_bench(bar, fake_fio, tmp_path):
    figures = {
        "hash": measure_hash(HashSizes(1 << 11, 1), bar),
        "pool": measure_pool(PoolSizes(1024, 128, 2, 16, 2, 2), bar),
        "disk": measure_disk(tmp_path, TINY, bar) | measure_striping(tmp_path, FEW, bar),
    }
    assert set(command.TARGETS) == set(command.BENCHES)
    for name, measured in figures.items():  # those of engines are in tests/engine/test_bench.py
        assert set(command.TARGETS[name]) <= set(measured)
        assert all(value > 0 for key, value in measured.items() if key != "bytes_per_block")


def test_the_disk_bench_takes_turns_and_leaves_nothing(bar, fake_fio, tmp_path):
    figures = measure_disk(tmp_path, TINY, bar)
    assert list(tmp_path.iterdir()) == []
    assert fake_fio == [
        ("write", "libaio", 16 << 20),  # before the first round
        *[("write", "libaio", 16 << 20), ("randread", "libaio", 16 << 20)] * 2,
        ("write", "io_uring", 16 << 20),
        ("randread", "io_uring", 16 << 20),
    ]
    assert figures["fio_read_gb_s"] == figures["fio_uring_write_gb_s"] == 2.0
    assert figures["read_over_fio"] == pytest.approx(figures["read_gb_s"] / 2, rel=0.5)


def test_without_io_uring_its_figures_are_left_out(bar, fake_fio, monkeypatch, tmp_path):
    def run(program, file, n_bytes, rw, engine="libaio"):
        if engine == "io_uring":
            raise TenutoError("not here")
        return 2e9

    monkeypatch.setattr(disk, "run_fio", run)
    assert not [key for key in measure_disk(tmp_path, TINY, bar) if "uring" in key]


def test_a_disk_without_room_is_refused_before_anything_is_written(bar, fake_fio, monkeypatch, tmp_path):
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: SimpleNamespace(free=1e6))
    with pytest.raises(ConfigError, match=r"--dir: .* has 0\.0 GB free, the bench needs 0\.1 GB"):
        measure_disk(tmp_path, TINY, bar)
    assert fake_fio == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["echo 'fio: no such engine' >&2; exit 1", "echo '{\"jobs\": []}'", "echo nonsense", "exit 3"]
)
def test_a_fio_that_fails_gives_one_line(tmp_path, text):
    with pytest.raises(TenutoError, match=r"^fio \(libaio\) failed: .+$"):
        fio.run_fio(script(tmp_path, text), tmp_path / "f", 1 << 20, "write")


def test_fio_is_believed_after_its_warnings(tmp_path):
    said = '{"jobs": [{"error": 0, "read": {"bw_bytes": 7}, "write": {"bw_bytes": 5, "io_bytes": 1}}]}'
    program = script(tmp_path, f"echo 'fio: a warning'\necho '{said}'")
    assert fio.run_fio(program, tmp_path / "f", 1 << 20, "write") == 5
    assert fio.run_fio(program, tmp_path / "f", 1 << 20, "randread") == 7


def test_a_missed_target_is_red():
    console = Console(record=True, color_system="truecolor", force_terminal=True, width=100, file=io.StringIO())
    command.show(
        Result("hash", Machine("cpu", 1, 1.0), {}, "", "", {"tokens_per_s_16": 1}), command.TARGETS["hash"], console
    )
    assert "\x1b[31m≥ 10,000,000" in console.export_text(styles=True)


@pytest.mark.parametrize("name", ["device", "ttft", "split", "serving"])
def test_without_a_gpu_benches_that_need_one_say_so_in_a_line_and_leave_nothing(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(command, "find_spec", lambda _: True)
    assert main(["bench", name, "--dir", str(tmp_path)]) == 1
    (line,) = lines_of(capsys)
    assert line.startswith(f"tenuto bench: {name}: torch finds no CUDA device")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("device", "torch"),
        ("layered", "torch"),
        *((name, "vllm") for name in ("ttft", "split", "serving", "scheduler")),
    ],
)
def test_without_what_it_needs_installed_a_bench_says_so_in_a_line(name, package, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "find_spec", lambda asked: None if asked in {package, "rich"} else True)
    assert main(["bench", name, "--quick", "--dir", str(tmp_path)]) == 1
    (line,) = lines_of(capsys)
    assert line == f"tenuto bench: missing: {package}; run this in the environment that has it"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_bench_that_is_ended_leaves_nothing_behind(tmp_path, number):
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from tenuto.cli.bench import layered; from tenuto.cli.main import main; "
        "layered.Bed = lambda *a, **o: (print('there', flush=True), signal.pause()); "
        f"main(['bench', 'layered', '--quick', '--dir', {str(tmp_path / 'work')!r}, '--out', {str(tmp_path)!r}])"
    )
    bench = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert bench.stdout.readline() == "there\n"
    assert list((tmp_path / "work").iterdir())
    bench.send_signal(number)
    _, said = bench.communicate(timeout=30)
    assert "tenuto bench: interrupted" in said
    assert list((tmp_path / "work").iterdir()) == []
