"""An engine's publisher of events, made up: it forgets and loses what it is told to."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import zmq

from tenuto.events.wire.vllm import BlockStored, EngineEvent, encode_batch

END = (-1).to_bytes(8, "big", signed=True)


def stored(tokens: Sequence[int], page_tokens: int, first: int = 0) -> BlockStored:
    """The engine's event of a prompt's whole pages from page `first` on, by names of its own."""
    n = len(tokens) // page_tokens
    names = [hash(tuple(tokens[: (i + 1) * page_tokens])) & (2**63 - 1) for i in range(n)]
    parent = names[first - 1] if first else None
    some = list(tokens[first * page_tokens : n * page_tokens])
    return BlockStored(names[first:], parent, some, page_tokens, None, "GPU", None, None, 0, "full_attention")


class MadeEngine:
    """Binds a PUB at `port` and a ROUTER at the next, as vLLM would. `tell` numbers messages from 0."""

    def __init__(self, port: int, *, keeps: bool = True) -> None:
        self._context = zmq.Context()
        self._publisher = self._context.socket(zmq.XPUB)
        self._publisher.bind(f"tcp://127.0.0.1:{port}")
        self._router = self._context.socket(zmq.ROUTER)
        self._router.bind(f"tcp://127.0.0.1:{port + 1}")
        self.messages: list[bytes] = []
        self._keeps = keeps
        self._is_closed = False
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until somebody has subscribed."""
        assert self._publisher.poll(10_000)
        self._publisher.recv()

    def tell(self, *events: EngineEvent, is_lost: bool = False) -> None:
        number = len(self.messages)
        self.messages.append(encode_batch(events, 0.0, 0))
        if not is_lost:
            self._publisher.send_multipart([b"", number.to_bytes(8, "big"), self.messages[-1]])

    def close(self) -> None:
        self._is_closed = True
        self._thread.join()
        self._context.destroy(0)

    def _answer(self) -> None:
        while not self._is_closed:
            if not self._router.poll(20):
                continue
            asker, _, first = self._router.recv_multipart()
            kept = enumerate(self.messages) if self._keeps else ()
            for number, message in kept:
                if number >= int.from_bytes(first, "big"):
                    self._router.send_multipart([asker, b"", b"", number.to_bytes(8, "big"), message])
            self._router.send_multipart([asker, b"", b"", END, b""])
