"""`tenuto advisor` as a process, and `tenuto bench advisor` at a tiny size."""

import json
import signal
import subprocess
import sys
import time
import urllib.request
from functools import partial
from random import Random

import pytest

from tenuto.cli.bench.advising import AdvisorSizes, place
from tenuto.cli.main import main
from tenuto.events import Publisher, make_sender, parse_address
from tenuto.pools.facts import Stored
from tenuto.simulator import Request, read_trace
from tenuto.testing.nats_broker import free_port
from tenuto.tokens import BlockHash
from tests.events.events_rig import DISK, SHAPE, SOURCE, make_keys
from tests.events.reader import Reader, hear
from tests.library.library_rig import EXTENT, n_found, opened, prompt, store
from tests.library.test_volumes import check

WAIT_S = 30.0


@pytest.fixture
def advisor():
    running = []

    def start(*options):
        command = [sys.executable, "-m", "tenuto.cli.main", "advisor", "--http", "127.0.0.1:0", *options]
        hear = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background job ignores it
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=hear)  # noqa: PLW1509
        running.append(process)
        line = process.stderr.readline()
        assert line.startswith("tenuto advisor: http port"), line
        return process, int(line.split()[-1])

    yield start
    for process in running:
        process.kill()
        process.communicate()


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=WAIT_S) as answer:
        return json.load(answer)


@pytest.mark.adapter
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_it_hears_a_publisher_that_comes_later_and_ends_when_told(advisor, how):
    url, keys = f"zmq://127.0.0.1:{free_port()}", make_keys(20)
    process, port = advisor("--events", url)
    assert get(port, "/index") == {"engines": []}
    if how is signal.SIGTERM:
        publisher = Publisher(make_sender(parse_address(url)), SOURCE, SHAPE, lambda: [Stored(DISK, keys)])
        publisher.start()
        publisher.publish([Stored(DISK, keys)])
        until = time.monotonic() + WAIT_S
        while not (heard := get(port, "/index")["engines"]) or heard[0]["n_blocks"] < 20:
            assert time.monotonic() < until
            time.sleep(0.02)
        publisher.close()
    process.send_signal(how)
    assert process.wait(WAIT_S) == 0
    assert process.stderr.read() == ""


@pytest.mark.unit
@pytest.mark.parametrize(
    ("options", "line"),
    [
        ([], "events.url: it hears nobody; give the URL where engines publish (--events URL)"),
        (["--events", "http://x"], None),
        (["--events", "zmq://127.0.0.1:5557", "--rule", "promot"], "rules: no rule is named 'promot'; give one of"),
        (["--events", "zmq://127.0.0.1:5557", "--http", "0.0.0.0:80"], "http: 0.0.0.0 can be reached by others;"),
        (["--config", "nowhere.toml"], "config: can't read nowhere.toml (No such file or directory);"),
    ],
)
def test_bad_settings_are_one_line(options, line, capsys):
    assert main(["advisor", *options]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"tenuto advisor: {line or ''}")


def sessions(n_sessions: int, seed: int = 0) -> list[Request]:
    """A third of them come back twice, each time soon."""
    random = Random(seed)
    requests = []
    for number in range(n_sessions):
        hashes = [BlockHash(random.randbytes(16)) for _ in range(12)]
        requests.append(Request(float(number), hashes[:6]))
        if number % 3 == 0:
            requests += [Request(number + 40.0, hashes[:9]), Request(number + 80.0, hashes)]
    return sorted(requests, key=lambda request: request.time_s)


@pytest.mark.unit
def test_on_sessions_the_advisor_serves_more_than_lru_and_less_than_the_optimum():
    placed = place(sessions(1200), AdvisorSizes(share=0.03))
    assert placed.lru_hits < placed.advisor_hits < placed.optimum_hits <= placed.n_reads
    assert placed.n_promoted - placed.n_demoted <= placed.n_fast
    assert placed.n_requests == 2000


@pytest.mark.unit
def test_the_bench_reads_a_trace(tmp_path, capsys):
    path = tmp_path / "trace.jsonl"
    lines = [{"timestamp": 1000 * n, "hash_ids": [n % 7, 100 + n % 7, 1000 + n]} for n in range(60)]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert len(read_trace(path)) == 60
    assert main(["bench", "advisor", str(path), "--json", "--quick"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {"over_lru", "first_half_over_lru", "second_half_over_lru", "optimum_share"} <= set(result["figures"])
    assert result["command"] == "tenuto bench advisor trace.jsonl --quick"
    assert main(["bench", "advisor"]) == 1
    assert main(["bench", "hash", str(path)]) == 1
    said = capsys.readouterr().err
    assert "TRACE: none is given" in said
    assert "is of tenuto bench advisor alone" in said


@pytest.mark.adapter
def test_it_moves_the_blocks_of_a_living_cache_which_goes_on_reading_them_right(advisor, tmp_path):
    url = f"zmq://127.0.0.1:{free_port()}"
    (tmp_path / "fast").mkdir()
    home, fast = tmp_path / "home", f"fast={tmp_path / 'fast'}?capacity={48 * EXTENT}"
    options = {"n_host": 4, "events__url": url, "events__node": "here", "events__worker": "cache"}
    with opened(home, **options) as cache:
        process, port = advisor("--events", url, "--disk", str(home), "--volume", fast)
        until = time.monotonic() + WAIT_S
        turn = n_moved = n_fast = 0
        while turn < 40 or n_moved < 36 or not n_fast:
            assert time.monotonic() < until, get(port, "/orders")
            number = turn % 5 if turn % 2 else turn  # five prompts come back all the time
            if n_found(cache, prompt(number, 3)) < 3:
                store(cache, prompt(number, 3))
            assert cache.flush()
            turn += 1
            n_moved = sum(order.get("n_moved", 0) for order in get(port, "/orders")["orders"])
            engines = get(port, "/volumes")["engines"]
            n_fast = sum(v["n_blocks"] for rank in engines for v in rank["volumes"] if v["name"] == "fast")
        assert not cache.statistics().get("corrupt.disk")
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        assert [n_found(cache, prompt(number, 3)) for number in range(5)] == [3] * 5
        assert cache.flush()
        hear(Reader(url), check(cache))
