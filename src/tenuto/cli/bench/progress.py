"""A bar for what takes longer than two seconds; nothing where there is no terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

T = TypeVar("T")


class Bar:
    """One moving bar on standard error per measured loop."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def over(self, items: Iterable[T], what: str, n: int) -> Iterator[T]:
        """The items, `n` of them, while the bar named `what` moves."""
        task = self._progress.add_task(what, total=n)
        for item in items:
            yield item
            self._progress.advance(task)
