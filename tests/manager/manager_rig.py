"""A manager, and a worker that moves names of blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tenuto.errors import Cause
from tenuto.manager import BlockManager, Filled, Hit, Limits, Lookup, Onboard
from tenuto.memory.pages import PageRun
from tenuto.pools import Pool, make_policy
from tenuto.pools.facts import Cleared, Fact, Removed, Stored, TierKind
from tenuto.testing.simulation import SimulatedWorker
from tenuto.tokens import HashChain
from tenuto.transfers.plan import Transfer, TransferResult, merge_results

HOST, DISK = TierKind.HOST, TierKind.DISK


def pages(n: int) -> list[PageRun]:
    """Device places of `n` blocks."""
    return [PageRun((10 * i, 10 * i + 1)) for i in range(n)]


class FactOracle:
    """What a subscriber believes: it must always be what the pools hold."""

    def __init__(self) -> None:
        self.believed: dict[TierKind, set] = {HOST: set(), DISK: set()}
        self.heard: list[Fact] = []

    def hear(self, facts: Sequence[Fact]) -> None:
        self.heard += facts
        for fact in facts:
            believed = self.believed[fact.tier]
            match fact:
                case Stored():
                    assert not believed & set(fact.keys), "stored twice"
                    assert len(set(fact.keys)) == len(fact.keys) > 0
                    believed |= set(fact.keys)
                case Removed():
                    assert set(fact.keys) <= believed, "removed without having been stored"
                    assert len(set(fact.keys)) == len(fact.keys) > 0
                    believed -= set(fact.keys)
                case Cleared():
                    believed.clear()

    def take(self, manager: BlockManager) -> None:
        self.hear(manager.take_facts())
        for tier, pool in ((HOST, manager.host), (DISK, manager.disk)):
            if pool is not None:
                assert {key.hash for key in self.believed[tier]} == set(pool._slots), f"{tier} is not as told"


class Rig:
    """One engine's manager with everything beside it. Checks itself after every step."""

    oracle = FactOracle

    def __init__(
        self,
        n_host: int = 8,
        n_disk: int | None = None,
        limits: Limits | None = None,
        n_ranks: int = 1,
        policy: str = "default",
    ) -> None:
        disk = None if n_disk is None else Pool("disk", n_disk, make_policy(policy, "policy"))
        self.manager = BlockManager(Pool("host", n_host, make_policy(policy, "policy")), disk, limits)
        self.workers = [SimulatedWorker() for _ in range(n_ranks)]
        self.worker = self.workers[0]
        self.partial: dict[int, list[TransferResult]] = {}
        self.facts = self.oracle()

    def offload(
        self, chain: HashChain, start: int = 0, stop: int | None = None, failures: Mapping[int, Cause] | None = None
    ) -> list[Transfer]:
        """Submitted to the workers; blocks of the stage in `failures` fail on the last one."""
        stop = len(chain.hashes) if stop is None else stop
        return self.submit(self.manager.offload([Filled(chain, start, pages(stop - start))]), failures)

    def keep(self, chain: HashChain, start: int = 0, stop: int | None = None) -> None:
        """Offloaded, and all that follows from it."""
        self.offload(chain, start, stop)
        self.finish()

    def hit(self, chain: HashChain, start: int = 0) -> Hit:
        found = self.manager.lookup(chain, start)
        assert isinstance(found, Hit)
        return found

    def lookup(self, chain: HashChain, start: int = 0) -> Lookup:
        return self.manager.lookup(chain, start)

    def onboard(self, hit: Hit) -> Onboard:
        """Submitted to the workers."""
        onboard = self.manager.onboard(hit, pages(hit.n_blocks))
        self.submit(onboard.transfers)
        return onboard

    def pump(self) -> list[Transfer]:
        return self.submit(self.manager.pump())

    def submit(self, transfers: Sequence[Transfer], failures: Mapping[int, Cause] | None = None) -> list[Transfer]:
        for worker in self.workers:
            worker.submit(transfers, failures if worker is self.workers[-1] else None)
        self.check()
        return list(transfers)

    def end(self, transfer: Transfer, failures: Mapping[int, Cause] | None = None) -> None:
        """Run one transfer that may start; all results are reported."""
        if transfer.id in self.worker.startable():
            self.worker.start(transfer.id)
        if transfer.id in self.worker.running():
            self.worker.end(transfer.id, failures)
        self.report()

    def report(self, n: int | None = None) -> None:
        """Each worker tells of its `n` oldest results; what all have told of is complete."""
        for worker in self.workers:
            for result in worker.take(n):
                self.partial.setdefault(result.transfer_id, []).append(result)
        for number in sorted(self.partial):
            if len(self.partial[number]) == len(self.workers):
                self.manager.complete(merge_results(self.partial.pop(number)))
        self.check()

    def finish(self) -> None:
        """Let everything on its way end, and what follows from it."""
        while self.manager.flights:
            for worker in self.workers:
                worker.results = worker.run()
            assert any(worker.results for worker in self.workers), "the workers were not given every transfer"
            self.report()
            self.pump()

    def check(self) -> None:
        self.manager.check()
        self.facts.take(self.manager)
        for tier, pool in self.pools().items():
            for block, slot in pool._slots.items():
                for worker in self.workers:
                    assert worker.content.get((tier, slot)) == block, f"{tier} slot {slot} does not hold its block"

    def pools(self) -> dict[TierKind, Pool]:
        pools = {HOST: self.manager.host, DISK: self.manager.disk}
        return {tier: pool for tier, pool in pools.items() if pool is not None}

    def lose(self, tier: TierKind, chain: HashChain, start: int = 0, stop: int | None = None) -> None:
        """As if blocks [start, stop) had never been in the tier."""
        hashes = chain.hashes[start:stop]
        self.pools()[tier].invalidate(hashes)
        self.facts.believed[tier] = {key for key in self.facts.believed[tier] if key.hash not in hashes}
        self.check()


def routes(transfers: Sequence[Transfer]) -> list[str]:
    return [transfer.route.value for transfer in transfers]
