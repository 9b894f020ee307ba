"""Straight from a publisher to its readers: PUB and ROUTER, framed as vLLM's events are."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tenuto.errors import ConfigError
from tenuto.events.ways.address import Address
from tenuto.events.ways.way import Delivery, Question

if TYPE_CHECKING:
    import zmq

END = (-1).to_bytes(8, "big", signed=True)
_MOST_QUEUED = 10_000  # messages for a reader that is slow; what is more it asks for again
_EVERYWHERE = ("*", "0.0.0.0", "[::]")


def import_zmq(setting: str) -> Any:
    """Raises `ConfigError` where it is not installed."""
    try:
        import zmq
    except ImportError:
        raise ConfigError(
            f"{setting}: zmq:// needs pyzmq, which is not installed; install tenuto[events], or give another way"
        ) from None
    return zmq


class ZmqSender:
    """Binds both ports. A reader that is slow or gone costs nothing but its own messages, of which so many are kept."""

    def __init__(self, address: Address, most_queued: int = _MOST_QUEUED) -> None:
        self._zmq = import_zmq(address.setting)
        self._address = address
        self._topic = address.topic.encode()
        self._most_queued = most_queued
        self._context: zmq.Context[zmq.Socket[bytes]] = self._zmq.Context(io_threads=1)
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_closed = False
        self._closing = threading.Lock()  # who wakes must not write to what has another's number by then

    def open(self, stream: bytes) -> None:  # noqa: ARG002
        """Bind. Raises `ConfigError` when a port is taken."""
        zmq = self._zmq
        self._publisher = self._context.socket(zmq.PUB)
        self._publisher.setsockopt(zmq.SNDHWM, self._most_queued)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._router.setsockopt(zmq.SNDHWM, self._most_queued)
        host = "127.0.0.1" if self._address.host == "localhost" else self._address.host
        for socket, port in ((self._publisher, self._address.port), (self._router, self._address.replay_port)):
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.IPV6, int(host.startswith("[")))
            try:
                socket.bind(f"tcp://{host}:{port}")
            except zmq.ZMQError as error:
                self.close(0.0)
                why = os.strerror(error.errno)
                raise ConfigError(
                    f"{self._address.setting}: can't listen at {host}:{port} ({why}); give another port"
                ) from None
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self._wakeup, zmq.POLLIN)

    def wait(self, timeout_s: float) -> list[Question]:
        """See `Sender`."""
        ready = dict(self._poller.poll(max(0, int(timeout_s * 1000))))
        if self._wakeup in ready:
            os.eventfd_read(self._wakeup)
        questions: list[Question] = []
        while self._router in ready and len(questions) < 100:
            try:
                frames = self._router.recv_multipart(self._zmq.NOBLOCK)
            except self._zmq.Again:
                break
            if len(frames) == 3 and not frames[1] and len(frames[2]) == 8:
                questions.append(Question(int.from_bytes(frames[2], "big"), frames[0]))
        return questions

    def wake(self) -> None:
        """See `Sender`."""
        with self._closing:
            if not self._is_closed:
                os.eventfd_write(self._wakeup, 1)

    def send(self, batches: Sequence[tuple[int, bytes]]) -> int:
        """See `Sender`."""
        for first, payload in batches:
            self._publisher.send_multipart([self._topic, first.to_bytes(8, "big"), payload])
        return len(batches)

    def answer(self, asker: object, first: int, payload: bytes | None) -> Delivery:
        """See `Sender`."""
        assert isinstance(asker, bytes)
        rest = [b"", END, b""] if payload is None else [self._topic, first.to_bytes(8, "big"), payload]
        try:
            self._router.send_multipart([asker, b"", *rest], self._zmq.NOBLOCK)
        except self._zmq.Again:
            return Delivery.LATER
        except self._zmq.ZMQError:
            return Delivery.GONE
        return Delivery.DONE

    def close(self, timeout_s: float) -> None:
        """See `Sender`."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
        self._router.close(0)
        self._publisher.close(int(timeout_s * 1000))
        self._context.term()  # waits for what is still queued
        os.close(self._wakeup)


class ZmqReceiver:
    """Connects to a publisher's two ports, and again whenever it has come back."""

    def __init__(self, address: Address) -> None:
        zmq = self._zmq = import_zmq(address.setting)
        host = "127.0.0.1" if address.host in (*_EVERYWHERE, "localhost") else address.host
        self._is_v6 = int(host.startswith("["))
        self._replay = f"tcp://{host}:{address.replay_port}"
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._subscriber = self._socket(zmq.SUB)
        self._subscriber.setsockopt(zmq.RCVHWM, _MOST_QUEUED)
        self._subscriber.setsockopt(zmq.SUBSCRIBE, address.topic.encode())
        self._subscriber.setsockopt(zmq.RECONNECT_IVL, 50)
        self._subscriber.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        self._subscriber.connect(f"tcp://{host}:{address.port}")

    def receive(self, timeout_s: float) -> bytes | None:
        """See `Receiver`."""
        frames = self._frames(self._subscriber, timeout_s)
        return frames[-1] if frames is not None and len(frames) == 3 else None

    def ask(self, stream: bytes | None, first: int, timeout_s: float) -> Iterator[bytes]:  # noqa: ARG002
        """See `Receiver`. Whoever listens there is the one."""
        with self._socket(self._zmq.DEALER) as dealer:
            dealer.setsockopt(self._zmq.RCVHWM, _MOST_QUEUED)
            dealer.connect(self._replay)
            dealer.send_multipart([b"", first.to_bytes(8, "big")])
            while True:
                frames = self._frames(dealer, timeout_s)
                if frames is None:
                    raise TimeoutError(f"no answer from {self._replay}")
                if len(frames) == 4 and frames[2] != END:
                    yield frames[3]
                elif len(frames) == 4:
                    return

    def close(self) -> None:
        """See `Receiver`."""
        self._context.destroy(0)  # an answer may not have been heard to its end

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.setsockopt(self._zmq.LINGER, 0)
        socket.setsockopt(self._zmq.IPV6, self._is_v6)
        return socket

    def _frames(self, socket: zmq.Socket[bytes], timeout_s: float) -> list[bytes] | None:
        try:
            return socket.recv_multipart(self._zmq.NOBLOCK)
        except self._zmq.Again:
            pass
        until = time.monotonic() + timeout_s
        while (left_s := until - time.monotonic()) > 0:
            if socket.poll(max(1, int(left_s * 1000))):
                return socket.recv_multipart()
        return None
