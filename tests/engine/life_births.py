"""What is asked in a random life: prompts, when they come, and how they end. Pure; same seed, same life."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.engine.tiny import BLOCK_TOKENS, PAGE_TOKENS, prompt

B, P = BLOCK_TOKENS, PAGE_TOKENS
DOOMS = ("waiting", "loading", "loading", "loading", "running", "finished")


@dataclass(frozen=True, slots=True)
class Habits:
    """What requests are drawn from, in tokens and steps."""

    lengths: tuple[int, ...] = (
        1, P - 1, P, B - 1, B, B + 1, 2 * B, 3 * B - 1, 4 * B + P, 5 * B, 5 * B + 1, 7 * B - 1, 8 * B, 600,
    )  # fmt: skip
    tails: tuple[int, ...] = (0, 0, 1, 17, B, 100)
    outputs: tuple[int, ...] = (1, 1, 2, 5, 5, 12, 12, 40, 70)
    gaps: tuple[int, ...] = (0, 0, 0, 1, 2, 5, 15)
    lull_chance: float = 0.05


@dataclass(slots=True)
class Birth:
    """One request. A child asks its parent's prompt and answer, and goes on."""

    tokens: list[int]
    n_tokens: int
    gap: int
    """Steps after the request before."""
    after_lull: bool = False
    """It comes when all before it have ended, and the engine has emptied its prefix cache."""
    salt: str | None = None
    wants_logprobs: bool = False
    doom: str = ""
    """At which stage it is aborted; empty: never."""
    patience: int = 0
    """Steps it stays at that stage."""
    parent: int | None = None


def births(n: int, seed: int, habits: Habits = Habits()) -> list[Birth]:
    """`n` requests. Families share beginnings; a few are popular at a time, and popularity moves on."""
    rng = random.Random(seed)
    families = [prompt(10_000 * seed + i, max(habits.lengths)) for i in range(12 + n // 12)]
    found: list[Birth] = []
    for index in range(n):
        birth = Birth([], rng.choice(habits.outputs), rng.choice(habits.gaps))
        old = found[max(0, index - 60) :]
        if old and rng.random() < 0.4:
            twin = rng.choice(old)
            birth.tokens, birth.salt = twin.tokens, twin.salt
            birth.doom = "loading" if rng.random() < 0.2 else ""
        elif old and rng.random() < 0.2:
            birth.parent = rng.randrange(max(0, index - 60), index)
        if not birth.tokens:
            family = families[index * (len(families) - 12) // n + rng.randrange(12)]
            tail = prompt(rng.randrange(1 << 30), rng.choice(habits.tails))
            birth.tokens = [*family[: rng.choice(habits.lengths)], *tail]
        if birth.salt is None and rng.random() < 0.08:
            birth.salt = rng.choice(("a", "b"))
        birth.after_lull = rng.random() < habits.lull_chance
        birth.wants_logprobs = rng.random() < 0.05
        if rng.random() < 0.25:
            birth.doom, birth.patience = rng.choice(DOOMS), rng.choice((0, 0, 1, 3, 8))
        found.append(birth)
    return found
