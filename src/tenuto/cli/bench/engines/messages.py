"""What parent and child say to each other: one JSON object a line. Each request has one answer."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from tenuto.cli.bench.engines.traffic import Traffic
from tenuto.traces import Span

M = TypeVar("M")


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Make the engine; answered by `Ready`."""

    options: dict[str, Any]
    """Arguments of vLLM's `LLM`."""
    vocab: int


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """One prompt of random tokens and one token of answer; answered by `Asked`. Same numbers, same prompt.

    A prompt begins with every shorter one of its seed. With `n_shared` its first tokens are those of `shared_seed`.
    """

    seed: int
    n_tokens: int
    shared_seed: int = 0
    n_shared: int = 0
    is_traced: bool = False
    """Record meanwhile what runs when; only with a connector."""


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """Empty the engine's own prefix cache; answered by `Done`, or the child fails."""


class Settle(msgspec.Struct, frozen=True, tag="settle"):
    """Step until the connector has nothing on its way; answered by `Done`."""


class Wire(msgspec.Struct, frozen=True, tag="wire"):
    """Copy so many bytes of pinned memory to the device a few times; answered by `Wired`."""

    n_bytes: int


class Serve(msgspec.Struct, frozen=True, tag="serve"):
    """Run the traffic to its end; answered by `Window`."""

    traffic: Traffic


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Shut the engine down; answered by `Done`."""


Request = Start | Ask | Forget | Settle | Wire | Serve | Stop


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The engine is there."""

    versions: dict[str, str]
    gpu: str
    """Name of the device; empty on the CPU."""


class Asked(msgspec.Struct, frozen=True, tag="asked"):
    """From handing the prompt over to its first token."""

    ttft_s: float
    reused_tokens: int
    """Of the prompt, not computed: from the engine's own cache and from the connector."""
    loaded_tokens: dict[str, int]
    """By tier, where the connector is ours."""
    answer: tuple[int, ...] = ()
    rates: dict[str, int] = {}
    """What our connector's cost gate has learnt: "prefill" in tokens per second, "load.disk" in bytes per second."""
    spans: list[Span] = []
    """Where they were asked for: the computing between the waits of layers, and what the connector did."""


class Wired(msgspec.Struct, frozen=True, tag="wired"):
    """Bytes per second of each copy."""

    bytes_per_s: list[float]


class Window(msgspec.Struct, frozen=True, tag="window"):
    """What the traffic saw; times in seconds."""

    ttft_s: list[float]
    itl_s: list[float]
    elapsed_s: float
    prompt_tokens: int
    answer_tokens: int
    reused_tokens: int

    @property
    def n_requests(self) -> int:
        """All of them were answered."""
        return len(self.ttft_s)


class Done(msgspec.Struct, frozen=True, tag="done"):
    """It is so."""

    seconds: float


Reply = Ready | Asked | Wired | Window | Done


def encode(message: Request | Reply) -> str:
    """One line, without its end."""
    return msgspec.json.encode(message).decode()


def decode_request(line: str) -> Request:
    """Raises `msgspec.DecodeError` on anything but a request's line."""
    return msgspec.json.decode(line, type=Request)


def decode_reply(line: str) -> Reply:
    """Raises `msgspec.DecodeError` on anything but an answer's line."""
    return msgspec.json.decode(line, type=Reply)
