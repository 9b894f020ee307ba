"""A server that speaks S3 (moto's), on a free port, which can be held up, killed and started again, empty then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tenuto.testing.nats_broker import free_port

MOTO = Path(__file__).resolve().parents[3] / ".venv" / "moto-5.2.5"
BUCKET = "blocks"


class S3Server:
    """`env` is what the engine's process has in its environment."""

    def __init__(self, log: Path) -> None:
        assert MOTO.is_dir(), f"{MOTO} is missing: run `make install`"
        self.log, self.port = log, free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.env = {
            "AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.address,
        }  # fmt: skip
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        with self.log.open("ab") as log:
            env = os.environ | {"PYTHONPATH": str(MOTO)}
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.log.parent, env=env)
        until = time.monotonic() + 30
        while True:
            try:
                made = urllib.request.Request(f"{self.address}/{BUCKET}", method="PUT")
                urllib.request.urlopen(made, timeout=5).close()
            except OSError:
                if self.process.poll() is not None or time.monotonic() > until:
                    self.kill()
                    raise AssertionError(f"the server does not start: {self.log.read_text()}") from None
                time.sleep(0.05)
            else:
                return

    def hold(self) -> None:
        """It takes connections, and does not answer any more."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
