"""The random life of requests on a real engine: arrivals, aborts, preemptions, resets, and storage that fails.

python -m tests.engine.life --requests 1000 --seed 1

After every step the books are checked, and every block that was loaded holds bytes that the engine has computed for it.
Every output, also of requests that were aborted, is compared with a cold engine's that has neither a connector nor a
prefix cache. That is stricter than a comparison with the engine's own prefix hits: those may round otherwise, but with
this model in float32 no output has differed yet. Prints one JSON object of counts; anything wrong is an error.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import sys
import tempfile
import threading
import time
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from tenuto.testing.files import BROKEN, DISK_FULL, make_faulty
from tests.engine.life_births import Birth, births
from tests.engine.life_bytes import PageWitness
from tests.engine.life_world import World, chosen, make_engine, quiet_vllm
from tests.engine.tiny import Engine, make_model

WEATHER = (
    (0.35, 0.50, "read error"), (0.55, 0.65, "no answer"), (0.70, 0.82, "short reads"), (0.86, 0.92, "disk full"),
)  # fmt: skip
"""Parts of the life in which storage fails."""
WARM_UP = 0.3


def sampling(n_tokens: int, prompt_logprobs: int | None = None) -> Any:
    from vllm import SamplingParams

    return SamplingParams(
        temperature=0, max_tokens=n_tokens, ignore_eos=True, detokenize=False, prompt_logprobs=prompt_logprobs
    )


class Oracle:
    """Outputs of a cold engine, by prompt; also gives children their prompts."""

    def __init__(self, model: Path, requests: list[Birth], world: World) -> None:
        self._outputs: dict[tuple[int, ...], list[int]] = {}
        self._engine = Engine(model, Path(), kv_transfer_config=None, enable_prefix_caching=False, **world.cold_options)
        known: set[int] = set()
        while len(known) < len(requests):
            ready = [i for i, birth in enumerate(requests) if i not in known and birth.parent in known | {None}]
            for birth in (requests[i] for i in ready):
                if birth.parent is not None:
                    parent = requests[birth.parent]
                    answer = self._outputs[tuple(parent.tokens)][: parent.n_tokens]
                    birth.tokens = [*parent.tokens, *answer, *birth.tokens[:9]][: world.longest]
            self._learn([requests[i] for i in ready])
            known.update(ready)
        self._engine.close()
        gc.collect()

    def expected(self, birth: Birth) -> list[int]:
        return self._outputs[tuple(birth.tokens)][: birth.n_tokens]

    def _learn(self, requests: list[Birth]) -> None:
        wanted: dict[tuple[int, ...], int] = {}
        for birth in requests:
            name = tuple(birth.tokens)
            n = max(wanted.get(name, 0), birth.n_tokens)
            if n > len(self._outputs.get(name, ())):
                wanted[name] = n
        outputs = self._engine.llm.generate(
            [{"prompt_token_ids": list(name)} for name in wanted],
            [sampling(n) for n in wanted.values()],
            use_tqdm=False,
        )
        for name, output in zip(wanted, outputs, strict=True):
            self._outputs[name] = list(output.outputs[0].token_ids)


class Life:
    """One engine and its requests."""

    def __init__(self, engine: Engine, requests: list[Birth], oracle: Oracle, seed: int, world: World) -> None:
        self.engine, self.requests, self.oracle, self.world = engine, requests, oracle, world
        self.llm, self.scheduler = engine.llm.llm_engine, engine.scheduler
        self.counts: Counter[str] = Counter()
        self.rng = random.Random(seed)
        store = engine.worker._store
        self.files = make_faulty(store)
        self.alive: dict[str, Birth] = {}
        self.internal: dict[str, str] = {}
        self.stayed: Counter[str] = Counter()
        self.storm = ""
        plain = [birth for birth in requests if not birth.salt and not birth.wants_logprobs]
        self.witness = replace(max(plain, key=lambda birth: len(birth.tokens)), doom="")
        preempt = self.scheduler._preempt_request

        def count_preemption(*args: Any, **more: Any) -> Any:
            self.counts["preempted"] += 1
            return preempt(*args, **more)

        self.scheduler._preempt_request = count_preemption

    def run(self) -> None:
        """All requests, from the first one's arrival to the last one's end, and the leaks since the warm-up."""
        base: dict[str, int] | None = None
        for index, birth in enumerate(self.requests):
            progress = index / len(self.requests)
            if base is None and progress >= WARM_UP:
                self.drain()
                base = resources()
            self._weather(progress)
            if birth.after_lull:
                while self.scheduler.requests:
                    self.step()
                self.end_batches()
                assert self.engine.llm.reset_prefix_cache()
                self.counts["resets.engine"] += 1
            wait = birth.gap
            while wait > 0 or len(self.alive) >= self.world.n_waiting:
                wait -= 1
                self.step()
            self._add(f"r{index}", birth)
        self._weather(1.0)
        self.drain()
        assert base is not None
        self._compare(base, resources())

    def step(self) -> None:
        """Aborts, resets, a step of the engine, and what is true after each one."""
        self._abort()
        self._reset()
        for output in self.llm.step():
            self._take(output)
        self.engine.leader.check()
        self.counts["steps"] += 1

    def drain(self) -> None:
        """Everything ends; nothing is left of it."""
        while self.alive or self.scheduler.requests or self.engine.leader.has_pending:
            self.step()
        self.end_batches()
        leader, worker, connector = self.engine.leader, self.engine.worker, self.scheduler.connector
        figures = leader.statistics()
        left = {name: figures[name] for name in ("flights", "backlog", "requests", "host.leased", "disk.leased")}
        assert not any(left.values()), left
        for pool in (leader.manager.host, leader.manager.disk):
            s = pool.statistics()
            assert s.free + s.registered + leader.manager._n_empty(pool) == s.total, s
        manager, flights = leader.manager, leader.manager.flights
        held = {
            "leader": (
                leader._loading,
                leader._ranks._partial,
                leader._now,
                leader._layered,
                leader._loads,
                leader._resets,
            ),
            "manager": (manager._open_hits, flights.overdue, flights.arriving),
            "worker": (worker._loads, worker._pages, worker._results),
            "connector": (connector._requests, connector._failed_pages),
        }
        assert not any(map(any, held.values())), held
        assert worker._running_engine().n_pending() == 0
        free = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        assert free == self.world.n_pages - 1, f"the engine has {free} free pages"

    def end_batches(self) -> None:
        """Nothing is computing any more: under asynchronous scheduling a batch is always on its way, with its pages."""
        from vllm.v1.core.sched.interface import PauseState

        self.scheduler.set_pause_state(PauseState.PAUSED_ALL)
        while self.engine.is_computing:
            for output in self.llm.step():
                self._take(output)
        self.scheduler.set_pause_state(PauseState.UNPAUSED)

    # -- inside -------------------------------------------------------------------------------------

    def _add(self, name: str, birth: Birth) -> None:
        prompt: dict[str, Any] = {"prompt_token_ids": birth.tokens}
        if birth.salt:
            prompt["cache_salt"] = birth.salt
        self.alive[name] = birth
        self.internal[name] = self.llm.add_request(
            name, prompt, sampling(birth.n_tokens, 1 if birth.wants_logprobs else None)
        )

    def _stage(self, name: str) -> str:
        request = self.scheduler.requests.get(self.internal[name])
        status = "" if request is None else request.status.name
        return {"WAITING_FOR_REMOTE_KVS": "loading", "RUNNING": "running"}.get(status, "waiting")

    def _loading(self) -> list[str]:
        return [name for name in self.alive if self._stage(name) == "loading"]

    def _abort(self) -> None:
        for name, birth in list(self.alive.items()):
            if birth.doom and self._stage(name) == birth.doom:
                self.stayed[name] += 1
                if self.stayed[name] > birth.patience:
                    self._end(name, f"aborted.{birth.doom}")
                    self.llm.abort_request([self.internal.pop(name)], internal=True)

    def _end(self, name: str, how: str) -> None:
        del self.alive[name]
        self.counts[how] += 1

    def _reset(self) -> None:
        chance = self.rng.random()
        if chance < self.world.running_reset_chance and self._only_running_hold_pages():
            self.end_batches()
            before = self.counts["preempted"]
            self.counts["resets.running"] += bool(self.engine.llm.reset_prefix_cache(reset_running_requests=True))
            self.counts["preempted.by_reset"] += self.counts["preempted"] - before
        elif chance > 1 - self.world.connector_reset_chance and self._loading():
            self.scheduler.reset_connector_cache()
            self.counts["resets.loading"] += 1

    def _only_running_hold_pages(self) -> bool:
        """Else vLLM refuses to preempt all: loads that are on their way, or have ended, keep theirs."""
        manager = self.scheduler.kv_cache_manager
        return not any(
            any(manager.get_block_ids(name)[0])
            for name, request in self.scheduler.requests.items()
            if request.status.name != "RUNNING"
        )

    def _weather(self, progress: float) -> None:
        now = next((what for start, stop, what in WEATHER if start <= progress < stop), "")
        if now == self.storm:
            return
        self.storm, files = now, self.files
        if now:
            self._put_on_disk(now)
        files.read_errno = BROKEN if now == "read error" else 0
        files.write_errno = DISK_FULL if now == "disk full" else 0
        files.short_read_bytes = 4096 if now == "short reads" else None
        if now == "no answer":
            files.gate.clear()
        else:
            files.gate.set()
        if now == "disk full":  # so that something is to be written under it
            self.engine.leader.manager.disk.reset()
        if now:  # a load from disk begins right under the storm
            self._ask_under(now)
        for again in range(2):  # on a busy machine it may have begun before, or not at all
            if now != "no answer" or self._has_been_late():
                break
            files.gate.set()
            self._put_on_disk(f"{now} {again}")
            files.gate.clear()
            self._ask_under(f"{now} {again}")

    def _ask_under(self, storm: str) -> None:
        self._add(f"under {storm}", self.witness)
        while f"under {storm}" in self.alive:
            self.step()

    def _has_been_late(self) -> bool:
        figures = self.engine.leader.statistics()
        return any(figures.get(f"failed.{route}.timeout") for route in ("host_to_device", "disk_to_device"))

    def _put_on_disk(self, name: str) -> None:
        """Have the longest prompt on disk, and what the engine and host memory hold forgotten."""
        self._add(f"before {name}", self.witness)
        self.drain()
        assert self.engine.llm.reset_prefix_cache()
        self.engine.leader.manager.host.reset()

    def _take(self, output: Any) -> None:
        name = output.request_id
        birth = self.alive.get(name)
        if birth is None:
            return  # aborted meanwhile
        tokens = list(output.outputs[0].token_ids)
        expected = self.oracle.expected(birth)[: len(tokens)]
        is_equal = tokens == expected
        assert is_equal or not self.world.is_exact, (
            f"{name}, {output.num_cached_tokens} of {len(birth.tokens)} cached: not {expected}"
        )
        if birth.wants_logprobs:
            assert not output.num_cached_tokens
        if not output.finished:
            return
        assert len(tokens) == birth.n_tokens
        assert output.outputs[0].finish_reason == "length"
        self.counts["with hits"] += bool(output.num_cached_tokens)
        self.counts["outputs.equal" if is_equal else "outputs.other"] += 1
        self._end(name, "finished")
        internal = self.internal.pop(name)
        if birth.doom == "finished":
            self.llm.abort_request([internal], internal=True)
            self.counts["aborted.finished"] += 1

    def _compare(self, before: dict[str, int], after: dict[str, int]) -> None:
        self.counts["fds.grown"] = after["fds"] - before["fds"]
        self.counts["threads.grown"] = after["threads"] - before["threads"]
        self.counts["ours.grown_kib"] = after["ours_kib"] - before["ours_kib"]
        self.counts["rss.grown_kib"] = after["rss_kib"] - before["rss_kib"]


def resources() -> dict[str, int]:
    """Of this process; `ours_kib` only while memory is traced."""
    gc.collect()
    ours_bytes = 0
    if tracemalloc.is_tracing():
        ours = tracemalloc.Filter(inclusive=True, filename_pattern="*/tenuto/*")
        ours_bytes = sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([ours]).traces)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "fds": sum(not path.name.startswith("pool-") for path in map(_target, Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
        "rss_kib": pages * os.sysconf("SC_PAGE_SIZE") // 1024,
        "ours_kib": ours_bytes // 1024,
    }


def _target(link: Path) -> Path:
    """Where a descriptor leads; pool files stay open, and there may be more of them while the disk tier grows."""
    try:
        return link.readlink()
    except FileNotFoundError:  # the one that lists them
        return Path("pool-")


def live(n: int, seed: int, folder: Path, onboard: str = "async", save: str = "forward") -> dict[str, Any]:
    """One life in a folder; its counts. Where stores are by layers, each layer is copied by itself."""
    import vllm

    requests, world = births(n, seed), World()
    world.settings["runtime"] |= {"onboard": onboard, "save": save}
    model = make_model(folder / "model")
    began = time.monotonic()
    oracle = Oracle(model, requests, world)
    cold_s = time.monotonic() - began
    tracemalloc.start()
    engine = make_engine(model, folder / "root", world)
    gathers = engine.worker._gathers
    if gathers is not None:
        gathers.least_bytes = 1
    life = Life(engine, requests, oracle, seed, world)
    witness = PageWitness(engine.worker, engine.kv_tensors)
    began = time.monotonic()
    life.run()
    figures = engine.leader.statistics()
    life_s = time.monotonic() - began
    engine.close()
    return {
        "vllm": vllm.__version__, "requests": n, "seed": seed, **dict(sorted(life.counts.items())),
        **witness.counts(), "gathers": gathers.n_gathers if gathers else 0, **chosen(figures),
        "cold_s": round(cold_s, 1), "life_s": round(life_s, 1),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--onboard", default="async", help="how hits are loaded")
    parser.add_argument("--save", default="forward", help="when what is computed is stored")
    arguments = parser.parse_args()
    quiet_vllm()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder) / "tmp"
        scratch.mkdir()
        tempfile.tempdir = os.environ["TMPDIR"] = str(scratch)
        counts = live(arguments.requests, arguments.seed, Path(folder), arguments.onboard, arguments.save)
        counts["left_in_tmp"] = sum("tenuto" in path.name for path in scratch.rglob("*"))
        print(json.dumps(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
