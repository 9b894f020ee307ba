"""`tenuto top` beside what is really there: a library's cache that publishes, its metrics, a terminal."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

import tenuto
from tenuto.cli.main import build_parser, main
from tenuto.cli.top.command import Sources, find_sources
from tenuto.connectors.session.endpoint import MetricsEndpoint
from tenuto.testing.nats_broker import free_port
from tests.cli.terminal_rig import Terminal

pytestmark = pytest.mark.adapter

LAYOUT = tenuto.Layout("contiguous", 8, n_layers=2, outer_dim=2, page_tokens=16, inner_dim=64, dtype="float32")


@contextmanager
def engine(folder, port, metrics_port):
    """A cache that keeps telling: device blocks for two prompts, host memory for more, a disk."""
    settings = {
        "tiers.host.capacity": "1 MiB", "tiers.disk.path": str(folder), "tiers.disk.capacity": "16 MiB",
        "events.url": f"zmq://127.0.0.1:{port}", "events.node": "node", "events.worker": "w", "events.idle_s": 0.5,
    }  # fmt: skip
    over = threading.Event()

    def live(cache):
        for turn in range(1 << 30):
            tokens = range(64 * (turn % 5), 64 * (turn % 5) + 64)
            with cache.match(tokens) as hit:
                is_there = len(hit) > 0
            if not is_there:
                with cache.allocate(4) as blocks:
                    blocks.apply(tokens)
                    blocks.register().release()
            if over.wait(0.02):
                return

    device = np.zeros(LAYOUT.buffer_bytes, np.uint8)
    with tenuto.open_cache(LAYOUT, model="demo", buffer=device, settings=settings) as cache:
        endpoint = MetricsEndpoint(metrics_port, cache._core.below.manager.recorder, "0")
        thread = threading.Thread(target=live, args=(cache,))
        thread.start()
        yield cache
        over.set()
        thread.join()
        endpoint.close()


@pytest.fixture(scope="module")
def ports(tmp_path_factory):
    """Of an engine's events and metrics."""
    ports = free_port(), free_port()
    with engine(tmp_path_factory.mktemp("disk"), *ports) as cache:
        until = time.monotonic() + 20.0
        while cache.statistics()["disk.registered"] < 20 and time.monotonic() < until:
            time.sleep(0.01)
        yield ports


def words(ports):
    return f"zmq://127.0.0.1:{ports[0]}", "--metrics", f"http://127.0.0.1:{ports[1]}/metrics"


def sources(*given):
    return find_sources(build_parser().parse_args(["top", *given]))


def run(capsys, *given):
    code = main(["top", *given])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_once_tells_what_both_sources_have(capsys, ports):
    code, out, error = run(capsys, *words(ports), "--once", "--interval", "0.3")
    lines = out.splitlines()
    assert (code, error) == (0, "")
    assert lines[1].startswith(f"events   zmq://127.0.0.1:{ports[0]}  1 worker, ")
    assert lines[2].startswith(f"metrics  http://127.0.0.1:{ports[1]}/metrics  1 engine, answered in ")
    assert re.match(r"node/w rank 0  heard \d\.\d s ago, lag \d", lines[4])
    rows = {line.split()[0]: line.split() for line in lines if line}
    assert rows["disk"][0] == "disk"
    assert "host to disk" in out
    assert "\x1b" not in out
    stored = next(line.split() for line in lines if line.startswith("device"))[4]
    assert float(stored) > 1


def test_json_of_a_settings_file(capsys, ports, tmp_path):
    file = tmp_path / "tenuto.toml"
    file.write_text(f'[events]\nurl = "zmq://*:{ports[0]}"\n[runtime]\nmetrics_port = {ports[1]}\n')
    code, out, error = run(capsys, "--config", str(file), "--json", "--interval", "0.1")
    found = json.loads(out)
    assert (code, error) == (0, "")
    assert found["events"][0]["url"] == f"zmq://127.0.0.1:{ports[0]}"
    (worker,) = found["events"][0]["workers"]
    blocks = {tier["tier"]: tier["n_blocks"] for tier in worker["tiers"]}
    assert blocks["disk"] == 20
    assert blocks["device"] <= 8
    (told,) = found["metrics"][0]["engines"]
    assert told["values"]["disk.registered"] == 20
    assert told["per_s"]["bytes.device_to_host"] is not None


def test_ranks_have_ports_of_their_own_in_a_settings_file_and_what_is_given_goes_before_it(tmp_path):
    file = tmp_path / "tenuto.toml"
    file.write_text('[events]\nurl = "zmq://*:5557"\n[runtime]\nmetrics_port = 9400\n')
    found = sources("--config", str(file), "--ranks", "2")
    assert found.events == ("zmq://*:5557",)
    assert found.metrics == ("http://127.0.0.1:9400/metrics", "http://127.0.0.1:9401/metrics")
    found = sources("zmq://a:1", "zmq://b:1", "zmq://a:1", "--config", str(file), "--metrics", "http://c:1/m")
    assert found == Sources(("zmq://a:1", "zmq://b:1"), ("http://c:1/m",))


def test_once_without_anybody_says_so(capsys, monkeypatch):
    monkeypatch.setattr("tenuto.cli.top.command._ONCE_S", 0.2)
    given = f"zmq://127.0.0.1:{free_port()}", "--metrics", f"http://127.0.0.1:{free_port()}/metrics"
    code, out, _ = run(capsys, *given, "--once", "--interval", "0.1")
    assert code == 1
    assert [line.split("  ")[-1] for line in out.splitlines()[1:]] == [
        "nobody answers; it is tried again", "Connection refused; it is tried again"
    ]  # fmt: skip


def test_a_source_that_can_not_be_looked_at_any_more_says_so_in_its_line(capsys, monkeypatch, ports):
    def fail(*_):
        raise IndexError("odd\n\x1b[2J")

    before = threading.excepthook
    monkeypatch.setattr("tenuto.cli.top.tally.Tally.take", fail)
    monkeypatch.setattr("tenuto.cli.top.sources.read_engines", lambda _: {}["odd"].nothing)
    code, out, error = run(capsys, *words(ports), "--once", "--interval", "0.1")
    assert error == ""
    assert re.search(
        r"  looking at it has ended \(IndexError: odd \\x1b\[2J\): what is shown is \d\.\d s old$", out, re.MULTILINE
    )
    assert out.splitlines()[2].endswith("  what it says are no metrics ('odd'); it is tried again")
    monkeypatch.setattr("tenuto.cli.top.sources.read_engines", lambda _: _.nothing)
    code, out, error = run(capsys, *words(ports)[1:], "--once", "--interval", "0.1")
    assert (code, error) == (1, "")
    assert out.endswith("  looking at it has ended (AttributeError: 'str' object has no attribute 'nothing')\n")
    assert threading.excepthook is before


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "nothing to look at; give an EVENTS_URL, --metrics URL, or --config FILE"),
        (["http://h/metrics"], "EVENTS_URL: 'http://h/metrics' is no address of events; give --metrics before it"),
        (["--metrics", "zmq://h:1"], "--metrics: 'zmq://h:1' is an address of events; give it before --metrics"),
        (["--metrics", "h:9400"], "--metrics: 'h:9400' is no address of metrics; give http://HOST:PORT/metrics"),
        (["--metrics", "http://h:x/"], "--metrics: 'http://h:x/' is no address (Port could not be cast"),
        (["--metrics", "http://me:secret@h/"], "--metrics: the address at h has a login, which is not used;"),
        (["nats://me:secret@h:1"], "EVENTS_URL: 'nats://...@h:1' has no subject of words"),
        (["zmq://h:1", "--interval", "0"], "--interval: 0 is out of range; give 0.1 to 3600 seconds"),
        (["zmq://h:1", "--interval", "nan"], "--interval: nan is out of range;"),
        (["zmq://h:1", "--ranks", "0"], "--ranks: 0 is out of range; give 1 to 1024"),
        (["zmq://h:65533", "--ranks", "2"], "EVENTS_URL: no port is left for rank 1"),
        (["--config", "/nowhere.toml"], "config: can't read /nowhere.toml"),
        (["--config", "/dev/null"], "config: /dev/null has neither events.url nor runtime.metrics_port;"),
    ],
)
def test_what_can_not_be_looked_at_is_one_line(capsys, given, said):
    code, out, error = run(capsys, *given, "--once")
    assert (code, out) == (1, "")
    (line,) = error.splitlines()
    assert line.startswith(f"tenuto top: {said}")


def test_a_missing_parser_is_one_line(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client.parser", None)
    code, _, error = run(capsys, "--metrics", "http://127.0.0.1:1/metrics")
    assert code == 1
    assert error.startswith("tenuto top: --metrics: needs prometheus_client, which is not installed; ")


# -- in a terminal ------------------------------------------------------------------------------------


def test_a_terminal_is_drawn_again_at_another_size_and_given_back(tmp_path, ports):
    with Terminal(tmp_path, "top", *words(ports), "--interval", "0.2") as terminal:
        screen = terminal.shows("tenuto top", "node/w rank 0", "engine 0", "host to disk")
        assert screen.modes == {"?25": False, "?1049": True, "?7": False, "?2026": False}
        assert len(screen.lines) <= 24
        terminal.resize(60, 9)
        terminal.wait(lambda screen: len(screen.lines) == 9 and "more lines below" in screen.lines[-1])
        assert max(map(len, screen.lines)) <= 60
        assert screen.lines[3].startswith("node/w rank 0")
        terminal.press("j")
        terminal.wait(lambda screen: len(screen.lines) == 9 and screen.lines[3].startswith("tier  "))
        terminal.press(" \x1b[6~\x1b[6~\x1b[6~\x1b[6~x")
        terminal.shows("the end")
        terminal.press("q")
        assert terminal.end() == (0, True, "")


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM"])
def test_what_ends_it_gives_the_terminal_back(tmp_path, ports, how):
    with Terminal(tmp_path, "top", *words(ports), "--interval", "3600") as terminal:
        terminal.shows("tenuto top")
        if how == "Ctrl-C":
            terminal.press("\x03")
        else:
            terminal.process.terminate()
        assert terminal.end() == (130, True, "tenuto top: interrupted\n")


def test_while_it_is_stopped_the_terminal_is_the_shells(tmp_path, ports):
    with Terminal(tmp_path, "top", *words(ports), "--interval", "0.2") as terminal:
        terminal.shows("node/w rank 0")
        terminal.press("\x1a")
        terminal.wait(lambda screen: not screen.modes["?1049"] and screen.modes["?25"])
        assert os.WIFSTOPPED(os.waitpid(terminal.process.pid, os.WUNTRACED)[1])
        terminal.process.send_signal(signal.SIGCONT)
        terminal.wait(lambda screen: screen.modes["?1049"] and not screen.modes["?25"])
        terminal.press("q")
        assert terminal.end() == (0, True, "")


def test_a_terminal_that_is_gone_is_no_traceback(tmp_path, ports):
    with Terminal(tmp_path, "top", *words(ports), "--interval", "0.1") as terminal:
        terminal.shows("node/w rank 0")
        os.close(terminal.master)
        terminal.master = -1
        assert terminal.process.communicate(timeout=10.0)[1] in ("", "tenuto: standard output: Input/output error\n")


def test_an_engine_that_comes_later_is_found_and_letters_are_those_the_terminal_has(tmp_path):
    ports = free_port(), free_port()
    given = [*words(ports), "--interval", "0.2"]
    with Terminal(tmp_path, "top", *given, PYTHONUTF8="0", PYTHONIOENCODING="ascii", NO_COLOR="1") as terminal:
        terminal.shows("nobody answers", "Connection refused")
        with engine(tmp_path / "disk", *ports):
            terminal.shows("node/w rank 0", "engine 0", "###")
            assert "\n".join(terminal.screen.lines).isascii()
        terminal.shows("Connection refused", "not answering now", "\nnow               -")
        terminal.wait(lambda screen: not any(line.startswith("device  ") for line in screen.lines))
        terminal.press("q")
        assert terminal.end() == (0, True, "")


def test_a_pipe_is_given_plain_text_once(ports):
    command = [sys.executable, "-m", "tenuto.cli.main", "top", *words(ports), "--interval", "0.1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert done.stderr == ""
    assert done.stdout.startswith(f"tenuto top  {time.strftime('%H:')}")
    assert "\x1b" not in done.stdout
