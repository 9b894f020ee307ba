"""What a block's keys and values depend on besides model and tokens."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """An image, audio clip, ... whose placeholder tokens stand at [start, stop) of the prompt."""

    content_hash: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ExtraKeys:
    """The extra identity of one request: adapter, salt, media contents."""

    lora_name: str = ""
    lora_fingerprint: str = ""
    salt: str = ""
    media: tuple[MediaSpan, ...] = ()

    def encode(self, start: int, stop: int) -> bytes:
        """The extra keys of the block of tokens [start, stop): msgpack, or b"" when there are none."""
        keys: list[tuple[str | int, ...]] = []
        if self.lora_name:
            keys.append(("lora", self.lora_name, self.lora_fingerprint))
        keys += [
            ("mm", span.content_hash, span.start - start)
            for span in self.media
            if span.start < stop and span.stop > start
        ]
        if self.salt and start == 0:
            keys.append(("salt", self.salt))
        return msgspec.msgpack.encode(keys) if keys else b""

    @property
    def is_empty(self) -> bool:
        """Whether no block of the request has extra keys."""
        return not (self.lora_name or self.salt or self.media)
