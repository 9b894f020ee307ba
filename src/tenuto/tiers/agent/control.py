"""The socket in a rank's folder, by which an advisor describes and drives its agent. One user's: the folder's owner."""

from __future__ import annotations

import logging
import os
import socket
import socketserver
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from tenuto.errors import StoreError, TenutoError
from tenuto.tiers.agent.address import CONTROL, short_address
from tenuto.tiers.agent.agent import StorageAgent
from tenuto.tiers.agent.messages import (
    AgentInfo,
    Answer,
    Compact,
    Compacted,
    Describe,
    Drop,
    Get,
    Move,
    Moved,
    Put,
    Refused,
    Register,
    Request,
    Unregister,
)

logger = logging.getLogger(__name__)

_MOST_BYTES = 1 << 30
_POLL_S = 0.2

_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(Request)


class ControlServer:
    """Serves an agent at `control` in its home volume's rank folder, until `close`.

    Where there can be no socket, as on some network mounts, there is none: said once, and serving goes on.
    """

    def __init__(self, agent: StorageAgent) -> None:
        self._agent = agent
        self._path = agent.claim.folder / CONTROL
        self._open: set[socket.socket] = set()
        self._server: _Server | None = None
        try:
            self._path.unlink(missing_ok=True)  # of who held this folder before us: the folder is locked
            with short_address(self._path) as address:
                self._server = _Server(address, self._serve)
            self._path.chmod(0o600)
        except OSError as error:
            logger.warning("tenuto: no socket at %s (%s): an advisor can't drive this engine", self._path, error)
            return
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(_POLL_S,), name="tenuto-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer nobody any more. A request that is under way ends with the agent's next step."""
        if self._server is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        with suppress(OSError):
            self._path.unlink()
        for client in list(self._open):
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        self._server = None

    def _serve(self, client: socket.socket) -> None:
        """Answer one who has connected until it goes."""
        self._open.add(client)
        connection = Connection(os.dup(client.fileno()))
        try:
            while True:
                connection.send_bytes(_encoder.encode(self._answer(connection.recv_bytes(_MOST_BYTES))))
        except (EOFError, OSError):  # gone
            return
        finally:
            self._open.discard(client)
            connection.close()

    def _answer(self, data: bytes) -> Answer | Refused:
        try:
            return Answer(_do(self._agent, _requests.decode(data)))
        except msgspec.DecodeError as error:
            return Refused(f"not a request: {error}")
        except StoreError as error:
            return Refused(str(error), error.cause.value)
        except TenutoError as error:
            return Refused(str(error))


def _do(agent: StorageAgent, request: Request) -> AgentInfo | Moved | Compacted | int | bytes | None:
    match request:
        case Describe():
            return agent.describe()
        case Register(name, url, capacity_bytes):
            return agent.register_volume(name, url, capacity_bytes)
        case Unregister(name):
            return agent.unregister_volume(name)
        case Move(hashes, volume):
            return agent.move(hashes, volume)
        case Drop(hashes):
            return agent.drop(hashes)
        case Compact(volume):
            return agent.compact(volume)
        case Get(block):
            return agent.get(block)
        case Put(extent):
            return agent.put(extent)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """A thread for each who connects."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, address: str, serve: Callable[[socket.socket], None]) -> None:
        self._serve_client = serve
        super().__init__(address, socketserver.BaseRequestHandler)

    def finish_request(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Instead of a handler."""
        self._serve_client(request)
