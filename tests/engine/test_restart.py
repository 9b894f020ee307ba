"""Engines one after the other in one process: each begins with what the one before has kept, and nothing stays open."""

import threading
from pathlib import Path

import pytest

from tenuto.tiers.agent.client import AgentClient, find_agents
from tests.engine.tiny import Engine, prompt

pytestmark = pytest.mark.engine

TOKENS = prompt(70, 500)
HIT = 7 * 64


@pytest.fixture
def our_threads():
    """The names of our threads that began in the test."""
    before = set(threading.enumerate())
    return lambda: sorted(
        thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("tenuto")
    )


def our_descriptors(root):
    """What is open of the disk tier, and shared memory of arenas."""
    targets = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return [target for target in targets if str(root) in target or "memfd:tenuto-host" in target]


def live(engine, is_first, expected):
    """The answer, after a prompt was asked with the engine's cache empty, and again when it had been emptied."""
    assert engine.worker._store.claim.instance.name == "a"
    n_reused, answer = engine.ask(TOKENS)
    assert n_reused == (0 if is_first else HIT)
    engine.settle()
    engine.forget()
    assert engine.ask(TOKENS) == (HIT, expected or answer)
    engine.settle()
    return answer


def test_an_engine_that_is_made_again_finds_its_blocks_and_the_one_before_is_gone(model, tmp_path, our_threads):
    answers = []
    for _ in range(3):
        engine = Engine(model, tmp_path / "root")
        try:
            assert our_threads().count("tenuto-load") == 1
            answers.append(live(engine, not answers, answers[0] if answers else None))
            worker = engine.worker
        finally:
            engine.close()
        worker.shutdown()  # a second time
        assert our_threads() == []
        assert our_descriptors(tmp_path / "root") == []
    assert answers[1:] == answers[:1] * 2


def test_an_engine_on_a_stripe_finds_its_blocks_again_and_computes_while_a_folder_of_it_is_gone(start, tmp_path):
    others = [tmp_path / "x", tmp_path / "y"]
    stripe = {"runtime": "striped", "stripes": [str(folder) for folder in others]}

    def begin():
        return start({"tiers": {"disk": stripe}})

    engine = begin()
    _, answer = engine.ask(TOKENS)
    engine.settle()
    assert all(list(folder.glob("*/*/rank-0/pool-*.kv")) for folder in others)
    assert begin().ask(TOKENS) == (HIT, answer)
    others[1].rename(tmp_path / "away")
    assert begin().ask(TOKENS) == (0, answer)
    (tmp_path / "away").rename(others[1])
    assert begin().ask(TOKENS) == (HIT, answer)


def test_blocks_are_found_and_read_right_while_an_advisor_moves_them(start, tmp_path):
    prompts = [prompt(80 + number, 500) for number in range(4)]
    engine = start()
    answers = [engine.ask(tokens)[1] for tokens in prompts]
    engine.settle()
    engine = start({"tiers": {"host": {"capacity": "1 MiB"}}})  # room for few blocks: hits are read from disk
    (path,) = find_agents(tmp_path / "root")
    disk = engine.leader.manager.disk
    blocks = [key.hash for key in disk.registered(0, len(disk))]
    assert len(blocks) == 4 * 7
    over = threading.Event()

    def move_about():
        with AgentClient(path) as agent:
            (tmp_path / "fast").mkdir()
            agent.register_volume("fast", str(tmp_path / "fast"), 64 << 20)
            while not over.is_set():
                for volume in ("fast", ""):
                    assert agent.move(blocks, volume).absent == ()
                    agent.compact(volume)
            agent.move(blocks[:10], "fast")

    thread = threading.Thread(target=move_about)
    thread.start()
    try:
        for _ in range(3):
            for tokens, answer in zip(prompts, answers, strict=True):
                engine.forget()
                assert engine.ask(tokens) == (HIT, answer)
    finally:
        over.set()
        thread.join()
    figures = engine.settle()
    engine.ask(prompt(90, 40))  # the last moves are told with a step's results
    assert not [name for name, n in figures.items() if n and name.startswith(("corrupt", "failed"))]
    assert sorted(engine.leader.manager.told.volumes) == sorted(blocks[:10])
