"""The life of a leader, for recordings."""

from __future__ import annotations

from random import Random

from tests.session.session_rig import BLOCK, Rig, View


def live(rig: Rig, seed: int, n_steps: int = 150, admitted: float = 0.9) -> tuple[int, int]:
    """Sessions that go on, share a beginning or come once, in a pool and a disk that are too small for them.

    Blocks that were found, and that were asked for. `admitted`: the share of requests that run with what was found.
    """
    n_found = n_asked = 0
    random, sessions = Random(seed), [[9] * 2 * BLOCK for _ in range(3)]
    for number in range(n_steps):
        if random.random() < 0.4:
            sessions.append(list(random.choice(sessions)[: 2 * BLOCK]))
        tokens = random.choice(sessions[-8:])
        tokens += random.choices(range(100), k=random.randrange(1, 4 * BLOCK))
        view = View(f"r{number}", list(tokens))
        while (found := rig.leader.lookup(view, 0)) is None:
            rig.answer(rig.step())
        n_found, n_asked = n_found + found // BLOCK, n_asked + len(tokens) // BLOCK
        if random.random() < admitted:
            rig.leader.admit(view.request_id, range(100, 100 + len(tokens)), found)
        rig.answer(rig.step((view, view.n_tokens)))
        rig.leader.finish(view.request_id)
        if random.random() < 0.02:
            rig.leader.reset()
        rig.clock.advance(0.1)
    return n_found, n_asked
