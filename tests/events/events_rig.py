"""A way in memory that loses what it is told to, a life of pools, and the checker of an index."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from random import Random

from tenuto.events import BlockShape, Index, Place, Publisher, PublisherSettings, Source, Subscription
from tenuto.events.ways import Delivery, Question
from tenuto.manager import inventory
from tenuto.pools import Full, Pool
from tenuto.pools.facts import Cleared, Fact, Removed, Stored, TierKind
from tenuto.tokens import BlockHash, BlockKey

HOST, DISK = TierKind.HOST, TierKind.DISK
SHAPE = BlockShape(8 << 20, 64)
SOURCE = Source("node", "worker", 0, bytes(16))


def make_keys(n: int, seed: int = 0) -> tuple[BlockKey, ...]:
    """A chain of `n` blocks."""
    random = Random(seed)
    hashes = [BlockHash(random.randbytes(16)) for _ in range(n)]
    return tuple(
        BlockKey(block, hashes[i - 1] if i else BlockHash(bytes(16)), hashes[0]) for i, block in enumerate(hashes)
    )


class MadeUpWay:
    """Both sides, on the test's thread. `n_to_lose`: messages that don't arrive; `is_up`: whether there is a broker."""

    def __init__(self) -> None:
        self.publisher: Publisher | None = None
        self.is_up = True
        self.n_to_lose = 0
        self.sent: list[bytes] = []
        self.arrived: deque[bytes] = deque()
        self.questions: list[Question] = []
        self.answers: dict[int, list[bytes | None]] = {}
        self.waits: list[float] = []
        self.is_closed = False
        self.n_later = 0  # messages of answers for which there is no room at first
        self.gone: set[int] = set()

    # the publisher's side

    def open(self, stream: bytes) -> None:
        self.stream = stream

    def wait(self, timeout_s: float) -> list[Question]:
        self.waits.append(timeout_s)
        questions, self.questions = self.questions, []
        return questions

    def wake(self) -> None:
        pass

    def send(self, batches) -> int:
        if not self.is_up:
            return 0
        for _, payload in batches:
            self.sent.append(payload)
            if self.n_to_lose:
                self.n_to_lose -= 1
            else:
                self.arrived.append(payload)
        return len(batches)

    def answer(self, asker, first: int, payload: bytes | None) -> Delivery:
        if asker in self.gone:
            return Delivery.GONE
        if self.n_later:
            self.n_later -= 1
            return Delivery.LATER
        self.answers[asker].append(payload)
        return Delivery.DONE

    # the reader's side

    def receive(self, timeout_s: float) -> bytes | None:
        return self.arrived.popleft() if self.arrived else None

    def ask(self, stream: bytes | None, first: int, timeout_s: float) -> Iterator[bytes]:
        if self.publisher is None or not self.is_up:
            raise TimeoutError
        number = len(self.answers)
        self.answers[number] = messages = []
        self.questions.append(Question(first, number))
        while not (messages and messages[-1] is None):
            self.publisher.turn()
        for payload in messages[:-1]:
            if self.n_to_lose:
                self.n_to_lose -= 1
                raise TimeoutError
            yield payload

    def close(self, timeout_s: float = 0.0) -> None:
        self.is_closed = True


class Clock:
    """Time that passes when it is looked at, so that pauses end."""

    def __init__(self, step_s: float = 0.05) -> None:
        self.now = 100.0
        self.step_s = step_s

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


class Told:
    """A publisher and a reader over a made-up way, without threads."""

    def __init__(self, *tiers: tuple[TierKind, Pool | None], settings: PublisherSettings | None = None) -> None:
        self.tiers = tiers
        self.settings = settings
        self.way = MadeUpWay()
        self.index = Index()
        self.begin()
        self.subscription = Subscription([self.way], Clock())

    def begin(self, source: Source = SOURCE) -> Publisher:
        """Another publisher, in the place of the one before."""
        self.publisher = Publisher(self.way, source, SHAPE, lambda: inventory({}, *self.tiers), self.settings, Clock())
        self.way.publisher = self.publisher
        self.way.arrived.clear()
        return self.publisher

    def settle(self) -> None:
        """Until a heartbeat behind everything has come through."""
        self.way.n_to_lose = 0
        for _ in range(100):
            self.publisher.turn()
            n_waiting = len(self.way.arrived)
            for _ in range(n_waiting + 1):
                while (message := self.subscription.next(0.0)) is not None:
                    self.index.take(message)
            stream, following = self.publisher.stream, self.subscription._following
            has_heard = stream in following._next  # of a publisher that has told nothing yet, a heartbeat
            if has_heard and not self.publisher.n_behind and following.wanted(stream) == self.publisher._history.end:
                return
        raise AssertionError("the reader does not catch up")

    def check(self) -> None:
        check_index(self.index, self.publisher._source, *self.tiers)


def check_index(index: Index, source: Source, *tiers: tuple[TierKind, Pool | None]) -> None:
    """An index has exactly what the pools have, parents and prefixes too."""
    for tier, pool in tiers:
        truth = {} if pool is None else {key.hash: (key.parent, key.prefix) for key in pool.registered(0, len(pool))}
        believed = index.places.get(Place(*source.place, tier), {})
        missing, wrong = len(truth.keys() - believed.keys()), len(believed.keys() - truth.keys())
        assert believed == truth, f"{tier}: {missing} missing, {wrong} that are not there"


class Life:
    """Pools whose blocks come and go, as a manager would have it; facts as they come true."""

    def __init__(self, n_host: int = 256, n_disk: int = 1024, seed: int = 0, **more: int) -> None:
        sizes = {"host": n_host, "disk": n_disk} | more
        self.pools = {TierKind(name): Pool(name, n) for name, n in sizes.items()}
        self.tiers = tuple(self.pools.items())
        self.n_events = 0
        self._random = Random(seed)

    def step(self) -> list[Fact]:
        """Something happens."""
        kind = self._random.choice(list(self.pools))
        pool = self.pools[kind]
        facts: list[Fact] = []
        chance = self._random.random()
        if chance < 0.5 / len(pool):
            pool.reset()
            facts = [Cleared(kind)]
        elif chance < 0.1:
            at = self._random.randrange(len(pool))
            gone = pool.invalidate([key.hash for key in pool.registered(at, at + 8)])
            facts = [Removed(kind, tuple(gone))] if gone else []
        else:
            keys = make_keys(self._random.randint(1, 32), self._random.getrandbits(60))
            answer = pool.allocate(len(keys))
            assert not isinstance(answer, Full)
            if answer.evicted:
                facts.append(Removed(kind, tuple(answer.evicted)))
            pool.apply(answer.lease, keys)
            done = pool.register(answer.lease)
            done.lease.release()
            facts.append(Stored(kind, tuple(done.new)))
        self.n_events += sum(1 if isinstance(fact, Cleared) else len(fact.keys) for fact in facts)
        return facts
