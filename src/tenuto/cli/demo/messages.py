"""What a child process tells its parent: one JSON object a line."""

from __future__ import annotations

from typing import Literal

import msgspec

Source = Literal["cold", "host", "disk", "engine"]
"""Where the context came from. "engine": the engine's own prefix cache, the yardstick."""


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Something that takes a while has begun."""

    what: str


class Run(msgspec.Struct, frozen=True, tag="run"):
    """One question was answered."""

    question: int
    name: Source
    prompt_tokens: int
    reused_tokens: int
    """Of the prompt, not computed again."""
    loaded_bytes: int
    """Moved by tenuto into the engine for this request."""
    ttft_s: float
    """From the request's arrival in the engine to its first token."""
    output_ids: tuple[int, ...]
    text: str


class Facts(msgspec.Struct, frozen=True, tag="facts"):
    """What the engine is."""

    engine: str
    threads: int


class Job(msgspec.Struct, frozen=True, tag="job"):
    """What a child is started for."""

    stage: Literal["model", "first", "second"]
    model: str
    """Folder of the model: written by stage "model", read by the others."""
    kv: str
    """Folder of the disk tier."""


Event = Begin | Run | Facts


def encode(message: Event | Job) -> str:
    """One line, without its end."""
    return msgspec.json.encode(message).decode()


def decode_event(line: str) -> Event:
    """Raises `msgspec.DecodeError` on anything but an event's line."""
    return msgspec.json.decode(line, type=Event)


def decode_job(line: str) -> Job:
    """Raises `msgspec.DecodeError` on anything but a job's line."""
    return msgspec.json.decode(line, type=Job)
