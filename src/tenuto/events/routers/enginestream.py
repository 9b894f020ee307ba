"""The engine's own stream of events, as vLLM's publisher sends it, read without a thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from tenuto.errors import ConfigError, EventsError
from tenuto.events.ways.address import parse_router_address
from tenuto.events.ways.zeromq import import_zmq
from tenuto.events.wire.vllm import EngineBatch, EngineMessage, read_message

if TYPE_CHECKING:
    import zmq

logger = logging.getLogger(__name__)

_REPLAY_S = 2.0  # vLLM answers between two steps, or ten times a second
_AT_ONCE = 1000
_MOST_QUEUED = 100_000
_SETTING = "events.engine_url"
_ADVICE = 'give kv_events_config an endpoint as tcp://*:5557, or events.engine_url "" to leave the device out'


@dataclass(frozen=True, slots=True)
class EngineEndpoints:
    """ZeroMQ endpoints to connect to. `replay`: empty where the engine keeps nothing."""

    events: str
    replay: str = ""
    topic: str = ""


def engine_endpoints(url: str, rank: int) -> EngineEndpoints:
    """Those of `zmq://HOST:PORT?replay=PORT`; vLLM adds a data-parallel rank to both ports.

    Without `replay` there is none. Raises `ConfigError`.
    """
    address = parse_router_address(url, _SETTING)
    host = "127.0.0.1" if address.host in ("*", "0.0.0.0", "localhost") else address.host
    has_replay = "replay" in dict(parse_qsl(urlsplit(url).query))
    replay = f"tcp://{host}:{address.replay_port + rank}" if has_replay else ""
    return EngineEndpoints(f"tcp://{host}:{address.port + rank}", replay, address.topic)


def bound_endpoints(endpoint: str, replay: str | None, topic: str, rank: int) -> EngineEndpoints:
    """Those to connect to, where vLLM's publisher was given these; each data-parallel rank has its own.

    Raises `ConfigError` where vLLM listens nowhere that is known.
    """
    if not ("*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))):
        raise ConfigError(f"{_SETTING}: the engine sends its events to {endpoint}, and listens nowhere; {_ADVICE}")
    if endpoint.startswith("tcp://") and endpoint.endswith(":0"):
        raise ConfigError(f"{_SETTING}: at {endpoint} the engine's events have a port that nobody knows; {_ADVICE}")
    return EngineEndpoints(_of_rank(endpoint, rank), _of_rank(replay, rank) if replay else "", topic)


def _of_rank(endpoint: str, rank: int) -> str:
    if endpoint.startswith("inproc://"):
        return f"{endpoint}_dp{rank}" if rank else endpoint
    if not endpoint.startswith("tcp://"):
        return endpoint
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    host = {"*": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    return f"tcp://{host}:{int(port) + rank}"


class EngineStream:
    """Connects at once, and again whenever the engine has come back. Close it on the thread that reads."""

    def __init__(self, endpoints: EngineEndpoints) -> None:
        zmq = self._zmq = import_zmq(_SETTING)
        self._endpoints = endpoints
        is_inside = endpoints.events.startswith("inproc:")
        # What is inside of this process is found by those of one context, and vLLM takes this one.
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance() if is_inside else zmq.Context()
        self._owns_context = not is_inside
        self._subscriber = self._socket(zmq.SUB, endpoints.events)
        self._subscriber.setsockopt(zmq.SUBSCRIBE, endpoints.topic.encode())
        self._next = 0
        self._has_complained = False

    def take(self) -> Iterator[EngineBatch | None]:
        """What has arrived, in order; None where messages are missing that the engine can't give again."""
        for _ in range(_AT_ONCE):
            try:
                frames = self._subscriber.recv_multipart(self._zmq.NOBLOCK)
            except self._zmq.Again:
                return
            message = self._read(frames)
            if message is None or message.number < self._next:
                continue
            if message.number > self._next:
                yield from self._replay(message.number)
            if message.number >= self._next:  # an answer may have had it, too
                self._next = message.number + 1
                yield message.batch

    def close(self) -> None:
        """End."""
        self._subscriber.close(0)
        if self._owns_context:
            self._context.destroy(0)

    def _replay(self, end: int) -> Iterator[EngineBatch | None]:
        """What is missing before `end`, and what came behind it."""
        for message in self._ask(self._next):
            if message.number == self._next:
                self._next += 1
                yield message.batch
            elif message.number > self._next:
                break
        if self._next < end:
            self._next = end
            yield None

    def _ask(self, first: int) -> Iterator[EngineMessage]:
        if not self._endpoints.replay:
            return
        dealer = self._socket(self._zmq.DEALER, self._endpoints.replay)
        try:
            dealer.send_multipart([b"", first.to_bytes(8, "big")])
            until = time.monotonic() + _REPLAY_S
            while (left_s := until - time.monotonic()) > 0 and dealer.poll(max(1, int(left_s * 1000))):
                message = self._read(dealer.recv_multipart())
                if message is None:
                    return
                yield message
        finally:
            dealer.close(0)

    def _read(self, frames: list[bytes]) -> EngineMessage | None:
        """None for the end of a replay, and for what is no message: its number is then missing."""
        try:
            return read_message(frames) if len(frames) >= 3 else None
        except EventsError as error:
            if not self._has_complained:
                self._has_complained = True
                logger.warning("tenuto: %s: %s (said once)", _SETTING, error)
            return None

    def _socket(self, kind: int, endpoint: str) -> Any:
        socket = self._context.socket(kind)
        socket.setsockopt(self._zmq.LINGER, 0)
        socket.setsockopt(self._zmq.RCVHWM, _MOST_QUEUED)
        socket.setsockopt(self._zmq.IPV6, int("[" in endpoint))
        socket.connect(endpoint)
        return socket
