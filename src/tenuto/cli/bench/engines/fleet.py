"""The engines of a bench together: started at once, ended together, and what they run on."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tenuto.cli.bench.engines.budget import Budget
from tenuto.cli.bench.engines.messages import Start
from tenuto.cli.bench.engines.process import END_TIMEOUT_S, Child, child_environment
from tenuto.errors import TenutoError


class Fleet:
    """Engines by the name of their variant. Leaving it ends them all; a failure shows the end of each log first."""

    def __init__(self, folder: Path, budget: Budget) -> None:
        self._folder, self._budget = folder, budget
        self._children: dict[str, Child] = {}
        self.left_out: dict[str, str] = {}
        """Engines that would not start, and other parts that ended early: why."""
        self.versions: dict[str, str] = {}
        self.gpu = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):  # nobody waits for an engine that is just being made
            _kill(self._children.values())
        try:
            if isinstance(error, TenutoError):
                self.show_logs(error)
        finally:
            self.end(*self._children)

    def __getitem__(self, name: str) -> Child:
        return self._children[name]

    def start(
        self, options: Mapping[str, Mapping[str, Any]], vocab: int, *, environment: Mapping[str, str], is_alone: bool
    ) -> None:
        """Make the engines named in `options`, all at once, or the first of them before the others when `is_alone`.

        So the first compiles what the others then find compiled. What does not start is left out, but for "off".
        """
        names = list(options)
        groups = [names[:1], names[1:]] if is_alone else [names]
        settings = {**child_environment(os.environ, len(names) + len(self._children)), **environment}
        for group in [group for group in groups if group]:
            self._budget.say(f"starting {', '.join(group)}")
            for name in group:
                with self._left_out_on_error(name):
                    self._children[name] = Child(name, self._folder / f"{name}.log", settings)
                    self._children[name].begin(Start(dict(options[name]), vocab))
            for name in self.alive(group):
                with self._left_out_on_error(name):
                    ready = self._children[name].wait_ready()
                    self.versions, self.gpu = ready.versions, ready.gpu
                    self._budget.say(f"{name}: ready")

    def alive(self, names: Sequence[str]) -> list[str]:
        """Those of these engines that are there."""
        return [name for name in names if name in self._children]

    def leave_out(self, what: str, error: TenutoError) -> None:
        """Go on without an engine or a part, and say so."""
        self.show_logs(error)
        self.left_out[what] = str(error)
        self._budget.say(f"{what} is left out: {error}")

    def end(self, *names: str) -> None:
        """End these engines, side by side; when that is interrupted, at once."""
        children = [self._children[name] for name in names]
        if not children:
            return
        self._budget.say(f"ending {', '.join(names)}")
        try:
            with ThreadPoolExecutor(len(children)) as threads:
                try:
                    ended = list(threads.map(Child.close, children))
                except KeyboardInterrupt:
                    _kill(children)
                    raise
        finally:
            for name in names:
                del self._children[name]
        for name in [name for name, by_itself in zip(names, ended, strict=True) if not by_itself]:
            self._budget.say(f"{name} did not end in {END_TIMEOUT_S:.0f} s: killed")

    @contextmanager
    def _left_out_on_error(self, name: str) -> Generator[None]:
        """An engine that fails is ended and left out; the run fails with "off"."""
        try:
            yield
        except TenutoError as error:
            if name == "off":
                raise
            self.leave_out(name, error)
            if name in self._children:
                self.end(name)

    def turns(self, names: Sequence[str], number: int) -> Iterator[tuple[str, Child]]:
        """The engines of these names, another one first in each round."""
        first = number % len(names) if names else 0
        for name in [*names[first:], *names[:first]]:
            yield name, self._children[name]

    def show_logs(self, error: TenutoError) -> None:
        """The end of the log of the engine that an error is about."""
        for name, child in self._children.items():
            if str(error).startswith((f"engine {name} ", f"engine {name}:")):
                print(f"--- the log of engine {name} ends:", *child.log_tail(), sep="\n", file=sys.stderr, flush=True)


def _kill(children: Iterable[Child]) -> None:
    for child in children:
        child.kill()
