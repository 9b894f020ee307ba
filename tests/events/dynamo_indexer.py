"""Dynamo's own indexer, a process that starts in half a second: reads vLLM's events by ZeroMQ, answers by HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from tenuto.testing.nats_broker import free_port

DYNAMO = Path(__file__).resolve().parents[2] / ".venv" / "dynamo-1.6.1"
DEADLINE_S = 20.0


class DynamoIndexer:
    """`python -m dynamo.indexer`, until it is closed."""

    def __init__(self) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "dynamo.indexer", "--port", str(self.port), "--threads", "1"]
        self._process = subprocess.Popen(
            command, env=os.environ | {"PYTHONPATH": str(DYNAMO)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + DEADLINE_S
        while True:
            with contextlib.suppress(OSError):
                self._call("/workers")
                return
            assert self._process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)

    def register(self, worker: int, url: str, block_tokens: int, rank: int = 0, model: str = "m") -> None:
        """Read `zmq://HOST:PORT`, with its replay at the next port."""
        port = int(url.rpartition(":")[2])
        body = {
            "instance_id": worker, "endpoint": f"tcp://127.0.0.1:{port}", "model_name": model, "dp_rank": rank,
            "block_size": block_tokens, "replay_endpoint": f"tcp://127.0.0.1:{port + 1}",
        }  # fmt: skip
        assert self._call("/register", body) == {"status": "ok"}
        until = time.monotonic() + DEADLINE_S
        while "pending" in json.dumps(self._call("/workers")) and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.1)  # it says so a moment before it has subscribed

    def unregister(self, worker: int, model: str = "m") -> None:
        """Forget a worker, as a router does that sees it go."""
        assert self._call("/unregister", {"instance_id": worker, "model_name": model}) == {"status": "ok"}

    def find(self, tokens: list[int], model: str = "m", **more: str) -> dict[tuple[int, int], int]:
        """Tokens of the prompt that each (worker, rank) has."""
        scores = self._call("/query", {"token_ids": tokens, "model_name": model, **more})["scores"]
        return {(int(worker), int(rank)): n for worker, ranks in scores.items() for rank, n in ranks.items() if n}

    def find_by_tier(self, tokens: list[int], worker: int, model: str = "m") -> dict[str, int]:
        """Tokens of the prompt that are found on a worker, down to each tier."""
        instances = self._call("/query", {"token_ids": tokens, "model_name": model})["instances"]
        found = instances.get(str(worker), {})
        return {tier: found.get(tier, 0) for tier in ("gpu", "cpu", "disk")}

    def wait(self, tokens: list[int], expected: dict[tuple[int, int], int], **more: str) -> None:
        """Until it finds exactly that."""
        until = time.monotonic() + DEADLINE_S
        while (found := self.find(tokens, **more)) != expected:
            assert time.monotonic() < until, (found, expected)
            time.sleep(0.02)

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(10.0)

    def _call(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data=data, headers={"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=5.0) as answer:
            return json.load(answer)
