"""An engine of names and its advisor, on one clock that the test moves."""

from __future__ import annotations

from random import Random

from tenuto.advisor import Advisor, AdvisorSettings, Compact, Move
from tenuto.advisor.settings import Rates
from tenuto.events import Batch, BlockShape, Source
from tenuto.events.grouping import group_facts
from tenuto.pools.facts import TierKind, Used
from tenuto.testing.agents import MadeUpAgent
from tenuto.tokens import BlockHash, BlockKey

MIB = 1 << 20
SOURCE = Source("node", "worker", 0, bytes(16))
NAME = ("worker", 0)
FAST = ("fast=/mnt/fast?capacity=1GiB",)
NO_LIMITS = Rates(1e9, 1 << 60, 1e9, 1 << 60)


def chain(n_blocks: int, seed: int = 0, above: tuple[BlockKey, ...] = ()) -> tuple[BlockKey, ...]:
    """A chain of blocks; it may continue another."""
    random = Random(seed)
    keys = list(above)
    for _ in range(n_blocks):
        block = BlockHash(random.randbytes(16))
        keys.append(BlockKey(block, keys[-1].hash if keys else BlockHash(bytes(16)), keys[0].hash if keys else block))
    return tuple(keys)


class Rig:
    """`request` reads and writes as an engine does; `tick` plans and has all orders carried out."""

    def __init__(self, n_fast: int = 10, n_home: int = 100, settings: AdvisorSettings | None = None) -> None:
        self.settings = settings or AdvisorSettings(volumes=FAST, rates=NO_LIMITS, rules=("demote", "promote"))
        self.advisor = Advisor(self.settings)
        self.agent = MadeUpAgent({"fast": n_fast, "": n_home}, extent_bytes=MIB)
        self.now_s = 1000.0
        self.first = 1
        self.stream = b"stream-1"

    @property
    def index(self):
        return self.advisor.workers[SOURCE.place]

    def tell(self, facts) -> Batch:
        groups = tuple(group for some, _ in group_facts(facts, BlockShape(MIB, 64), 1 << 30) for group in some)
        batch = Batch(self.stream, self.first, round(1e3 * self.now_s), SOURCE, groups)
        self.first += batch.n_events
        self.advisor.take(batch)
        return batch

    def request(self, keys, tier=TierKind.DISK) -> None:
        known = tuple(key for key in keys if key.hash in self.agent.places)
        self.agent.write(keys)
        self.tell([*([Used(tier, known)] if known else []), *self.agent.take_facts()])

    def plan(self):
        info = self.agent.describe()
        return self.advisor.plan(NAME, info.volumes, info.extent_bytes, self.now_s)

    def carry_out(self, tasks) -> None:
        for task in tasks:
            moved = None
            if isinstance(task.order, Move):
                moved = self.agent.move(task.hashes, task.order.volume)
            elif isinstance(task.order, Compact):
                self.agent.compact(task.order.volume)
            else:
                self.agent.drop(task.hashes)
            self.tell(self.agent.take_facts())
            self.advisor.done(NAME, task, moved, self.now_s)

    def tick(self, after_s: float = 1.0):
        self.now_s += after_s
        tasks = self.plan()
        self.carry_out(tasks)
        self.check()
        return tasks

    def check(self) -> None:
        """The index is what the agent has."""
        table = self.index.table
        volumes = {block: table.volumes[table.volume[row]] for block, row in table.rows.items()}
        assert volumes == self.agent.places
        for block, row in table.rows.items():
            children = [other for other in table.rows if table.parents[table.rows[other]] == block]
            assert table.n_children[row] == len(children)

    def where(self, keys):
        return [self.agent.places.get(key.hash) for key in keys]
