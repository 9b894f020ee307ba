"""A NATS broker of one's own: Debian's `nats-server` on a free port, which can be stopped, killed and started again."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

from tenuto.errors import ConfigError, TenutoError

_START_S = 10.0
_STOP_S = 5.0
_LOOK_S = 0.01


def find_nats_server() -> str:
    """The program. Raises `ConfigError` naming the package when it is missing."""
    found = shutil.which("nats-server", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin") or shutil.which(
        "nats-server"
    )
    if found is None:
        raise ConfigError("nats-server is missing; `apt-get install nats-server` brings it")
    return found


class NatsBroker:
    """Use it with ``with``. `folder` is for what JetStream stores, and for the broker's log; it stays over restarts."""

    def __init__(self, folder: Path) -> None:
        self._program = find_nats_server()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    def url(self, subject: str, jetstream: str = "") -> str:
        """For `events.url`."""
        return f"nats://127.0.0.1:{self.port}/{subject}" + (f"?jetstream={jetstream}" if jetstream else "")

    def start(self) -> None:
        """Start it; returns when it listens. Raises `TenutoError` when it ends instead."""
        command = [self._program, "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self._folder / "store")]
        with (self._folder / "nats-server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        until = time.monotonic() + _START_S
        while time.monotonic() < until and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 0.2).close()
            except OSError:
                time.sleep(_LOOK_S)
            else:
                return
        self.kill()
        raise TenutoError(f"nats-server does not start: see {self._folder / 'nats-server.log'}")

    def stop(self) -> None:
        """Have it end in good order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash does."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def free_port() -> int:
    """A port that nobody listens at now, nor at the next one."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port
