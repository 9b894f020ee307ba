"""Multi-turn traffic as data: sessions whose prompts grow by each answer. Pure: a seed gives the same traffic."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import msgspec


class Traffic(msgspec.Struct, frozen=True):
    """`n_sessions` of `n_turns` each; lengths in tokens are means, drawn evenly from half to one and a half of them.

    A turn's prompt is the whole session so far and `turn_tokens` more; the first turn's has `first_tokens`. With a
    `rate_per_s` (requests, over all turns) sessions begin as a Poisson process, and a turn follows the answer before
    after `think_s` on average (exponential). Without one the traffic is closed: `n_clients` requests are in flight at
    any time, first turns of all sessions before second ones, so that a history rests until all others had their turn.
    """

    seed: int
    n_sessions: int
    n_turns: int
    first_tokens: int
    turn_tokens: int
    answer_tokens: int
    n_clients: int = 0
    rate_per_s: float = 0.0
    think_s: float = 0.0
    vocab: int = 32000

    @property
    def arrivals_s(self) -> float:
        """The mean time in which all sessions of open traffic begin; 0 for closed."""
        return self.n_sessions * self.n_turns / self.rate_per_s if self.rate_per_s else 0.0

    @property
    def longest_tokens(self) -> int:
        """What one session can grow to, its last answer included."""
        growth = (self.n_turns - 1) * self.turn_tokens + self.n_turns * self.answer_tokens
        return (3 * (self.first_tokens + growth)) // 2 + 2 * self.n_turns


@dataclass(frozen=True, slots=True)
class Turn:
    """What is added to the session, how many tokens are answered, and how long after the answer before (s)."""

    tokens: tuple[int, ...]
    n_answer: int
    pause_s: float


@dataclass(frozen=True, slots=True)
class Session:
    """Its first request comes `start_s` after the traffic's begin."""

    start_s: float
    turns: tuple[Turn, ...]


def plan_sessions(traffic: Traffic) -> list[Session]:
    """All sessions, in the order in which they begin."""
    random = Random(traffic.seed)
    start_s = 0.0
    sessions: list[Session] = []
    for _ in range(traffic.n_sessions):
        if traffic.rate_per_s:
            start_s += random.expovariate(traffic.rate_per_s / traffic.n_turns)
        turns = tuple(_turn(traffic, index, random) for index in range(traffic.n_turns))
        sessions.append(Session(start_s, turns))
    return sessions


def _turn(traffic: Traffic, index: int, random: Random) -> Turn:
    n_tokens = _around(traffic.turn_tokens if index else traffic.first_tokens, random)
    tokens = tuple(random.randrange(3, traffic.vocab) for _ in range(n_tokens))
    n_answer = _around(traffic.answer_tokens, random)
    pause_s = random.expovariate(1 / traffic.think_s) if index and traffic.think_s else 0.0
    return Turn(tokens, n_answer, pause_s)


def _around(mean: int, random: Random) -> int:
    return random.randint(max(1, mean // 2), max(1, mean + mean // 2))
