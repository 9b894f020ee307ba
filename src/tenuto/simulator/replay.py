"""A recording told to a manager again: it must decide the same."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tenuto.errors import Cause, LeaseError
from tenuto.manager import BlockManager, Filled, Hit, Limits, Pending, make_admission
from tenuto.memory.pages import PageRun
from tenuto.pools import Pool
from tenuto.pools.facts import Removed
from tenuto.pools.guarded import guarded_policy
from tenuto.simulator.recorded import packed
from tenuto.simulator.recordings import Header, read_recording, unpacked
from tenuto.simulator.trace import Request
from tenuto.tokens import BlockKey
from tenuto.transfers.plan import BlockFailure, TransferResult

_PAGE = PageRun((0,))


@dataclass(slots=True)
class Replay:
    """What came of it. `differences`: of the first line where the replay decided otherwise; it ends there."""

    n_lookups: int = 0
    n_hit_blocks: int = 0
    n_removed: int = 0
    n_differences: int = 0
    differences: list[str] = field(default_factory=list[str])

    def differ(self, where: str, was: object, found: object) -> None:
        """Note one."""
        self.n_differences += 1
        if len(self.differences) < 10:
            self.differences.append(f"{where}: was {was!r}, is {found!r}")


def replay(path: Path) -> Replay:
    """Tell a new manager all that the recorded one was told. Raises `ConfigError` for a line that can't be read."""
    recording = read_recording(path)
    player = _Player(recording.header)
    outcome = player.outcome
    for number, _, ops in recording.lines():
        try:
            for name, values in ops:
                player.play(f"line {number}", name, values)
        except (
            LookupError,
            LeaseError,
        ) as error:  # what is told next makes no sense to a manager that decided otherwise
            outcome.differ(f"line {number}", "a decision", f"another ({error!r})")
        except (ValueError, TypeError) as error:
            raise recording.broken(number, error) from None
        if outcome.n_differences:
            break
    return outcome


class _Player:
    """Tells one manager."""

    def __init__(self, header: Header) -> None:
        disk = Pool("disk", 0, guarded_policy(header.disk_policy, "disk_policy")) if header.has_disk else None
        self.manager = BlockManager(
            Pool("host", header.host_blocks, guarded_policy(header.host_policy, "host_policy")),
            disk, Limits(max_writes=header.max_writes), admission=make_admission(header.admission, "admission"),
        )  # fmt: skip
        self.outcome = Replay()
        self._chains: dict[int, Request] = {}
        self._hits: list[Hit] = []
        self._waiting: list[Removed] = []

    def play(self, where: str, name: str, values: Sequence[Any]) -> None:
        """Tell one thing, and compare what was decided."""
        manager = self.manager
        match name, values:
            case "c", [number, root]:
                self._chains[number] = Request(0.0, [], b64decode(root))
            case "x", [number, hashes]:
                self._chains[number].hashes += unpacked(hashes)
            case "l", [number, start, was]:
                self._look_up(where, number, start, was)
            case "t", [int(number), int(n_blocks)]:
                self._hits[number].trim(n_blocks)
            case "r", [int(number)]:
                self._hits[number].release()
            case "o", [int(number)]:
                manager.onboard(self._hits[number], [_PAGE] * self._hits[number].n_blocks)
            case "f", [filled]:
                manager.offload([Filled(self._chains[chain], start, [_PAGE] * n) for chain, start, n in filled])
            case "m", []:
                manager.pump()
            case "d", [number, failures]:
                manager.complete(TransferResult(number, tuple(BlockFailure(i, Cause(cause)) for i, cause in failures)))
            case "e", [tier, hashes]:
                self._compare(where, tier, hashes)
            case _:
                self._set_disk(name, values)

    def _set_disk(self, name: str, values: Sequence[Any]) -> None:
        match name, values:
            case "s", [n_slots, is_growing, *n_blocks]:  # before there were volumes, nothing stood there
                self.manager.resize_disk(n_slots, is_growing=is_growing, n_blocks=n_blocks[0] if n_blocks else None)
            case "v", [moved, lost]:
                self.manager.disk_changed([(BlockKey(*unpacked(key)), volume) for key, volume in moved], unpacked(lost))
            case "u", [read, write]:
                self.manager.use_disk(read=read, write=write)
            case "i", [entries, volume]:
                self.manager.restore_disk(_entries(entries), volume)
            case "z", []:
                self.manager.reset()
            case _:
                raise ValueError(f"no operation is named {name!r}")

    def _look_up(self, where: str, number: int, start: int, was: object) -> None:
        found = self.manager.lookup(self._chains[number], start)
        now: object = "pending" if isinstance(found, Pending) else []
        if isinstance(found, Hit):
            self._hits.append(found)
            now = [[span.place, len(span.keys)] for span in found.spans]
            self.outcome.n_hit_blocks += found.n_blocks
        self.outcome.n_lookups += 1
        if now != was:
            self.outcome.differ(where, was, now)

    def _compare(self, where: str, tier: str, hashes: str) -> None:
        removed = self._removed(tier)
        self.outcome.n_removed += len(unpacked(hashes))
        if removed != hashes:
            self.outcome.differ(where, (tier, hashes[:40]), removed and removed[:40])

    def _removed(self, tier: str) -> str | None:
        """The next fact of a removal, in order."""
        if not self._waiting:
            self._waiting.extend(fact for fact in self.manager.take_facts() if isinstance(fact, Removed))
        if not self._waiting:
            return None
        fact = self._waiting.pop(0)
        return packed([key.hash for key in fact.keys]) if fact.tier.value == tier else None


def _entries(entries: Sequence[tuple[int, str]]) -> list[tuple[int, BlockKey]]:
    return [(slot, BlockKey(*unpacked(text))) for slot, text in entries]
