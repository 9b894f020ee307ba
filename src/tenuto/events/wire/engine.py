"""What an engine's own events say it holds on its device, for a router."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from tenuto.events.wire.ledger import Content, Ledger, Sink
from tenuto.events.wire.router import Scope
from tenuto.events.wire.vllm import AllBlocksCleared, BlockRemoved, BlockStored, EngineEvent, EngineHash, ExtraKey
from tenuto.tokens.chain import TOKEN_BYTES

MAIN_KINDS = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""Caches that hold a whole prefix. Of the others (windows, states) a router learns nothing: they hold parts of it."""


class EngineBlocks:
    """Tells `sink` which blocks of `router_tokens` tokens the engine holds, from vLLM's events.

    vLLM tells a block of which it has two copies twice, and tells the end of each: with `counts_copies` it is there
    until the last has gone. Where requests ask for full reports (`kv_cache_report_mode`), which tell again what is
    there, that must be off: then a block of two copies is told as gone with the first. Left out are events of blocks of
    other sizes, of caches that don't hold a whole prefix, and of blocks with media or embeddings.
    """

    def __init__(self, router_tokens: int, sink: Sink, *, counts_copies: bool = True) -> None:
        self.ledger: Ledger[EngineHash] = Ledger(router_tokens, sink)
        self._router_tokens = router_tokens
        self._counts_copies = counts_copies
        self._more_copies: dict[tuple[EngineHash, str], int] = {}
        self._group: int | None = None  # of the caches that hold a whole prefix, the first that was told

    def take(self, events: Iterable[EngineEvent]) -> None:
        """Take in a message's events."""
        for event in events:
            match event:
                case BlockStored():
                    if self._is_ours(event):
                        self._store(event)
                case BlockRemoved():
                    if event.group_idx in (None, self._group):
                        self._remove(event)
                case AllBlocksCleared():
                    self.clear()

    def clear(self) -> None:
        """The engine has nothing any more."""
        self._more_copies.clear()
        self.ledger.clear_all()

    def _is_ours(self, event: BlockStored) -> bool:
        n_tokens = event.block_size * len(event.block_hashes)
        is_whole = event.block_size > 0 and event.block_size % self._router_tokens == 0
        if event.kv_cache_spec_kind not in MAIN_KINDS or not is_whole or n_tokens != len(event.token_ids):
            return False
        if self._group is None:
            self._group = event.group_idx
        return event.group_idx in (None, self._group)

    def _store(self, event: BlockStored) -> None:
        place = (event.medium or "", "")
        tokens, step = array("I", event.token_ids).tobytes(), event.block_size * TOKEN_BYTES
        keys = event.extra_keys or [None] * len(event.block_hashes)
        parent = event.parent_block_hash
        for number, name in enumerate(event.block_hashes):
            if self.ledger.places.is_at(name, place):
                self._add_copy(name, place[0])
            self.ledger.store(name, place)
            extra = keys[number] if number < len(keys) else None
            salt, is_opaque = _salt_of(extra or (), event.lora_name)
            scope = Scope(event.lora_name or "", salt)
            data = tokens[number * step : (number + 1) * step]
            self.ledger.learn(Content(name, parent, data, scope, is_opaque))
            parent = name

    def _add_copy(self, name: EngineHash, medium: str) -> None:
        if self._counts_copies:
            self._more_copies[name, medium] = self._more_copies.get((name, medium), 0) + 1

    def _remove(self, event: BlockRemoved) -> None:
        medium = event.medium or ""
        for name in event.block_hashes:
            n_more = self._more_copies.pop((name, medium), 0)
            if n_more > 1:
                self._more_copies[name, medium] = n_more - 1
            if not n_more:
                self.ledger.remove(name, (medium, ""))


def _salt_of(extra: tuple[ExtraKey, ...], lora_name: str | None) -> tuple[str, bool]:
    """A block's salt, and whether it holds what its tokens don't say (media, embeddings)."""
    names = [key for key in extra if isinstance(key, str)]
    if lora_name in names:
        names.remove(lora_name)  # it stands first; a salt may read the same
    return (names[-1] if names else ""), len(names) > 1 or any(not isinstance(key, str) for key in extra)
