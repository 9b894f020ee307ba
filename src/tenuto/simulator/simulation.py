"""One manager, one trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tenuto import config
from tenuto.manager import BlockManager, Filled, Hit, Limits, Pending, make_admission
from tenuto.memory.pages import PageRun
from tenuto.pools import Pool
from tenuto.pools.guarded import guarded_policy
from tenuto.simulator.lanes import Bandwidths, Lanes
from tenuto.simulator.trace import Request
from tenuto.transfers.plan import Route, Transfer

_PAGE = PageRun((0,))


@dataclass(frozen=True, slots=True)
class Tiers:
    """Capacities in blocks, and policies by name: unless given, those of the settings. No disk while `n_disk` is 0."""

    n_host: int
    host_policy: str = config.Host().policy
    n_disk: int = 0
    disk_policy: str = config.Disk().policy
    admission: str = config.Disk().admission


@dataclass(slots=True)
class Outcome:
    """What came of a trace. A hit is a block found before a request's first miss."""

    n_blocks: int = 0
    n_hits: dict[str, int] = field(default_factory=lambda: {"host": 0, "disk": 0})
    n_written: int = 0
    """Blocks written to disk."""
    waited_s: float = 0.0
    """By requests, for blocks that were on their way."""

    @property
    def hit_rate(self) -> float:
        """Hits per block, 0 to 1."""
        return sum(self.n_hits.values()) / self.n_blocks if self.n_blocks else 0.0

    @staticmethod
    def together(outcomes: Iterable[Outcome]) -> Outcome:
        """Of several caches."""
        total = Outcome()
        for outcome in outcomes:
            total.n_blocks += outcome.n_blocks
            total.n_hits = {place: n + outcome.n_hits[place] for place, n in total.n_hits.items()}
            total.n_written += outcome.n_written
            total.waited_s += outcome.waited_s
        return total


class Simulation:
    """Requests arrive at their times, load what they find, and leave all their blocks with the manager."""

    def __init__(self, tiers: Tiers, bandwidths: Bandwidths) -> None:
        disk = Pool("disk", tiers.n_disk, guarded_policy(tiers.disk_policy, "--disk-policy")) if tiers.n_disk else None
        host = Pool("host", tiers.n_host, guarded_policy(tiers.host_policy, "--policy"))
        limits = Limits(max_writes=max(1, tiers.n_host // 2))
        admission = make_admission(tiers.admission, "--disk-admission")
        self.manager = BlockManager(host, disk, limits, admission=admission)
        self.outcome = Outcome()
        self._lanes = Lanes(bandwidths)
        self._now = 0.0

    def run(self, requests: Iterable[Request]) -> Outcome:
        """All requests, and what is on its way at the end."""
        for request in requests:
            self._advance(max(request.time_s, self._now))
            self._serve(request)
        while (end := self._lanes.next_end()) is not None:
            self._advance(end)
        return self.outcome

    def _serve(self, request: Request) -> None:
        if request.is_reset:
            self.manager.reset()
        if request.start is not None:
            self._load(request, request.start)
        if request.kept:
            pages = [_PAGE] * len(request.kept)
            self._submit(self.manager.offload([Filled(request, request.kept.start, pages)]))
            self._submit(self.manager.pump())
            self._advance(self._now)

    def _load(self, request: Request, start: int) -> None:
        began = self._now
        found = self.manager.lookup(request, start)
        while isinstance(found, Pending):
            end = self._lanes.next_end()
            assert end is not None
            self._advance(end)
            found = self.manager.lookup(request, start)
        self.outcome.waited_s += self._now - began
        self.outcome.n_blocks += len(request.hashes) - start
        if isinstance(found, Hit):
            for span in found.spans:
                self.outcome.n_hits[span.place] += len(span.keys)
            self._submit(self.manager.onboard(found, [_PAGE] * found.n_blocks).transfers)
            self._advance(self._now)

    def _submit(self, transfers: Sequence[Transfer]) -> None:
        self.outcome.n_written += sum(len(t.keys) for t in transfers if t.route is Route.HOST_TO_DISK)
        self._lanes.submit(transfers, self._now)

    def _advance(self, now: float) -> None:
        """Go on to this time; what ends until then is complete."""
        while (end := self._lanes.next_end()) is not None and end <= now:
            self._now = max(self._now, end)
            self.manager.complete(self._lanes.pop())
            self._submit(self.manager.pump())
        self._now = max(self._now, now)
        self.manager.take_facts()


def simulate(requests: Iterable[Request], tiers: Tiers, bandwidths: Bandwidths | None = None) -> Outcome:
    """Hits of a trace. Raises `ConfigError` for an unknown policy, `InvariantError` for one of others that fails."""
    return Simulation(tiers, bandwidths or Bandwidths()).run(requests)
