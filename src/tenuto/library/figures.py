"""What the library counts beside the manager: tokens that were found, and blocks that were not kept."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tenuto import metrics
from tenuto.manager import Hit
from tenuto.metrics import Recorder, parse_series
from tenuto.tiers.agent.tier import TierStore
from tenuto.transfers.plan import Route

logger = logging.getLogger(__name__)

_DOWN = (Route.DEVICE_TO_HOST.value, Route.HOST_TO_DISK.value)


def count_found(recorder: Recorder, hit: Hit, block_tokens: int) -> list[tuple[str, int]]:
    """A hit is to be loaded: (place, tokens) of its parts, in order, each counted."""
    pieces = [(span.place, len(span.keys) * block_tokens) for span in hit.spans]
    recorder.add(metrics.LOADS, 1)
    for place, n_tokens in pieces:
        recorder.add(metrics.FOUND_TOKENS, n_tokens, place)
    return pieces


def count_loaded(recorder: Recorder, pieces: Sequence[tuple[str, int]], n_sound: int) -> None:
    """The load has ended: the first `n_sound` tokens of these parts are there."""
    for place, n_tokens in pieces:
        n_loaded = min(n_sound, n_tokens)
        n_sound -= n_loaded
        recorder.add(metrics.LOADED_TOKENS, n_loaded, place)
        recorder.add(metrics.FAILED_TOKENS, n_tokens - n_loaded, place)


def count_lost(recorder: Recorder) -> int:
    """Blocks so far that were not kept though they were to be."""
    found = 0.0
    for text, n in recorder.snapshot().values.items():
        metric, labels = parse_series(text)
        is_skipped = metric is metrics.SKIPPED_BLOCKS and labels[0] != "not_admitted"
        is_failed = metric is metrics.FAILED_BLOCKS and labels[0] in _DOWN
        found += n if is_skipped or is_failed else 0
    return int(found)


def has_room(store: TierStore | None) -> bool:
    """False where the disk has no slot and gets none: others have all of it, or its files can't grow."""
    now = None if store is None else store.capacity()
    return now is None or now.n_slots > 0 or now.is_growing


def is_folder_there(store: TierStore | None) -> bool:
    """False, and logged, when somebody has removed the disk's folder: its open files take writes all the same."""
    if store is None or store.claim.is_there():
        return True
    logger.warning("tenuto: %r: its folder was removed: no other process will find its blocks", store)
    return False
