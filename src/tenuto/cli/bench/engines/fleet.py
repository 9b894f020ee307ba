"""The engines of a bench together: started at once, ended together, and what they run on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tenuto.cli.bench.engines.budget import Budget
from tenuto.cli.bench.engines.messages import Start
from tenuto.cli.bench.engines.process import Child, child_environment
from tenuto.errors import TenutoError


class Fleet:
    """Engines by the name of their variant. Leaving it ends them all; a failure shows the end of each log first."""

    def __init__(self, folder: Path, budget: Budget) -> None:
        self._folder, self._budget = folder, budget
        self._children: dict[str, Child] = {}
        self.versions: dict[str, str] = {}
        self.gpu = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, TenutoError):
            self._show_logs(str(error))
        self.end(*self._children)

    def __getitem__(self, name: str) -> Child:
        return self._children[name]

    def start(
        self, options: Mapping[str, Mapping[str, Any]], vocab: int, *, environment: Mapping[str, str], is_alone: bool
    ) -> None:
        """Make the engines named in `options`, all at once, or the first of them before the others when `is_alone`.

        So the first compiles what the others then find compiled.
        """
        names = list(options)
        groups = [names[:1], names[1:]] if is_alone else [names]
        settings = {**child_environment(os.environ, len(names) + len(self._children)), **environment}
        for group in [group for group in groups if group]:
            self._budget.say(f"starting {', '.join(group)}")
            for name in group:
                self._children[name] = Child(name, self._folder / f"{name}.log", settings)
                self._children[name].begin(Start(dict(options[name]), vocab))
            for name in group:
                ready = self._children[name].wait_ready()
                self.versions, self.gpu = ready.versions, ready.gpu
                self._budget.say(f"{name}: ready")

    def end(self, *names: str) -> None:
        """End these engines."""
        with ExitStack() as stack:
            for name in names:
                stack.callback(self._children.pop(name).close)

    def turns(self, names: list[str], number: int) -> Iterator[tuple[str, Child]]:
        """The engines of these names, another one first in each round."""
        first = number % len(names) if names else 0
        for name in [*names[first:], *names[:first]]:
            yield name, self._children[name]

    def _show_logs(self, error: str) -> None:
        for name, child in self._children.items():
            if f"engine {name} " in error or f"engine {name}:" in error:
                print(f"--- the log of engine {name} ends:", *child.log_tail(), sep="\n", file=sys.stderr, flush=True)
