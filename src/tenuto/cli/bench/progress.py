"""A bar for what takes longer than two seconds; nothing where there is no terminal, or no rich to draw with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

T = TypeVar("T")


class Bar:
    """One moving bar on standard error per measured loop."""

    def __init__(self, console: Console | None) -> None:
        self._progress = None if console is None or not console.is_terminal else _make_progress(console)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def over(self, items: Iterable[T], what: str, n: int) -> Iterator[T]:
        """The items, `n` of them, while the bar named `what` moves."""
        if self._progress is None:
            yield from items
            return
        task = self._progress.add_task(what, total=n)
        for item in items:
            yield item
            self._progress.advance(task)


def _make_progress(console: Console) -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
