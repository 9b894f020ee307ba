"""An agent against a model of what its manager believes: no block is wrong or forgotten, whatever is done."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.tiers.agent.agent_life import Life


class AgentMachine(RuleBasedStateMachine):
    """Each rule is a step of a `Life`, whose dice are a seed's: hypothesis can't know how far a volume has grown."""

    @initialize(rng=st.randoms(use_true_random=True))
    def begin(self, rng):
        self.folder = Path(tempfile.mkdtemp(prefix="tenuto-agent-"))
        self.life = Life(self.folder, rng)

    @rule()
    def write(self):
        self.life.write()

    @rule()
    def write_what_fails(self):
        self.life.write(fails=True)

    @rule(to_the_end=st.booleans())
    def write_by_layers(self, to_the_end):
        self.life.write_by_layers(to_the_end=to_the_end)

    @rule()
    def forget(self):
        self.life.forget()

    @rule()
    def read_by_layers(self):
        self.life.read_by_layers()

    @rule()
    def advise(self):
        self.life.advise()

    @rule()
    def register(self):
        self.life.register()

    @rule()
    def move(self):
        self.life.move()

    @rule()
    def restart(self):
        self.life.restart()

    @rule()
    def reset(self):
        self.life.reset()

    @invariant()
    def all_is_well(self):
        if hasattr(self, "life"):
            self.life.check()

    def teardown(self):
        if hasattr(self, "life"):
            self.life.end()
            shutil.rmtree(self.folder)


@pytest.mark.adapter
def test_any_short_life_leaves_every_block_right_or_told_lost():
    run_state_machine_as_test(AgentMachine, settings=settings(max_examples=12, stateful_step_count=25, deadline=None))


STEPS = {
    "write": 8, "write_by_layers": 2, "forget": 2, "read_by_layers": 1, "advise": 6, "move": 2, "restart": 0.3,
    "reset": 0.1, "fails": 0.5, "half": 0.5,
}  # fmt: skip


def live(folder, seed, n_steps):
    rng = Random(seed)
    life = Life(folder, rng)
    for step in rng.choices(list(STEPS), list(STEPS.values()), k=n_steps):
        match step:
            case "fails":
                life.write(fails=True)
            case "half":
                life.write_by_layers(to_the_end=False)
            case "write_by_layers":
                life.write_by_layers(to_the_end=True)
            case _:
                getattr(life, step)()
        life.check()
    life.end()


@pytest.mark.adapter
def test_a_life_of_some_steps(tmp_path):
    live(tmp_path, 8, 150)


@pytest.mark.scale
@pytest.mark.parametrize("seed", range(8))
def test_a_long_life(tmp_path, seed):
    live(tmp_path, seed, 3000)
