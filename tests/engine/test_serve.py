"""`tenuto serve` with a real vLLM server and a real OpenAI client: a hit, a stop that loses nothing, the shown line."""

import json
import os
import random
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from urllib.error import URLError

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.engine.tiny import BLOCK_TOKENS, PAGE_TOKENS, SHAPE, make_model

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

START_S, STOP_S = 300, 60
N_TOKENS = 30 * BLOCK_TOKENS + 20
VLLM_OPTIONS = [
    "--enforce-eager", "--dtype", "float32", "--block-size", str(PAGE_TOKENS), "--max-model-len", "4096",
    "--kv-cache-memory-bytes", str(16 << 20), "--max-num-seqs", "8", "--enable-prompt-tokens-details",
    "--served-model-name", "tiny", "--host", "127.0.0.1",
]  # fmt: skip


@pytest.fixture
def model(tmp_path):
    """The tiny model with a tokenizer of made-up words, one for each token."""
    folder = make_model(tmp_path / "model")
    words = Tokenizer(models.WordLevel({f"w{i:03}": i for i in range(SHAPE.vocab)}, unk_token="w000"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(folder / "tokenizer.json"))
    special = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w000", "eos_token": "w002"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return folder


class Server:
    """A running server and a client of it."""

    def __init__(self, process, port, log):
        from openai import OpenAI

        self.process = process
        self._url = f"http://127.0.0.1:{port}"
        self._log = log
        self._client = OpenAI(base_url=f"{self._url}/v1", api_key="none", max_retries=0)

    def wait_until_ready(self):
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.said()[-4000:]
            try:
                with urllib.request.urlopen(f"{self._url}/health", timeout=5):
                    return
            except URLError:
                time.sleep(0.5)
        pytest.fail(f"not ready after {START_S} s: {self.said()[-4000:]}")

    def ask(self, prompt, n_tokens=8):
        """(tokens that were not computed, answer)."""
        answer = self._client.completions.create(
            model="tiny", prompt=prompt, max_tokens=n_tokens, temperature=0, extra_body={"ignore_eos": True}
        )
        assert answer.usage.prompt_tokens == N_TOKENS
        details = answer.usage.prompt_tokens_details
        return (details.cached_tokens or 0) if details else 0, answer.choices[0].text

    def forget(self):
        """Empty the engine's own prefix cache."""
        request = urllib.request.Request(f"{self._url}/reset_prefix_cache", method="POST", data=b"")
        with urllib.request.urlopen(request, timeout=60) as response:
            assert response.status == 200

    def stop(self):
        """SIGTERM: the exit code."""
        self.process.terminate()
        return self.process.wait(STOP_S)

    def said(self):
        return self._log.read_text(errors="replace")


SLOW_DISK = """
import os, time
fast = os.pwritev
def slow(*arguments):
    time.sleep(0.05)
    return fast(*arguments)
os.pwritev = slow
"""


@contextmanager
def running(command, port, log, startup=""):
    """A server that is ready; each of its processes runs `startup` first."""
    (log.parent / "sitecustomize.py").write_text(startup)
    path = os.pathsep.join([str(log.parent), os.environ.get("PYTHONPATH", "")])
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")}
    environment |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": path}
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
    try:
        server = Server(process, port, log)
        server.wait_until_ready()
        yield server
    finally:
        for _ in range(2):  # the second one kills
            if process.poll() is None:
                process.terminate()
                time.sleep(1)
        process.kill()
        process.wait()


def words(seed):
    rng = random.Random(seed)
    return " ".join(f"w{rng.randrange(3, SHAPE.vocab):03}" for _ in range(N_TOKENS))


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_a_server_hits_stops_without_loss_and_its_shown_line_starts_it_again(model, tmp_path):
    port = free_port()
    command = [
        sys.executable, "-m", "tenuto.cli.main", "serve", str(model), "--host-memory", "64MiB",
        "--disk", str(tmp_path / "it's kept"), "--disk-capacity", "256 MiB", "--model.weights", "tiny-0",
        "--layout.block_tokens", str(BLOCK_TOKENS),
        "--runtime.write_window", "1",  # one block at a time
        "--runtime.cost_gate", "false",  # this model computes sooner than anything loads
        "--", "--port", str(port), *VLLM_OPTIONS,
    ]  # fmt: skip
    first, second = words(1), words(2)
    with running(command, port, tmp_path / "first.log", SLOW_DISK) as server:
        n_cached, answer = server.ask(first)
        assert n_cached == 0
        server.forget()
        assert server.ask(first) == (30 * BLOCK_TOKENS, answer)
        other = server.ask(second, 1)  # its writes take more than a second yet
        assert other[0] == 0
        assert server.stop() == 0
        # vLLM's front end may log that its engine has gone; none of it is in our code.
        assert not [line for line in server.said().splitlines() if 'File "' in line and "src/tenuto/" in line]
    shown = next(line for line in server.said().splitlines() if "--kv-transfer-config" in line)
    model.joinpath("model.safetensors").touch()  # as a copy made at another time: told by its name
    with running(["/bin/sh", "-c", f"exec {shown}"], port, tmp_path / "second.log") as server:
        assert shlex.split(shown)[-1] == "127.0.0.1"
        assert server.ask(second, 1) == (30 * BLOCK_TOKENS, other[1])
        assert server.ask(first) == (30 * BLOCK_TOKENS, answer)
        assert server.stop() == 0
