"""What the demo shows: progress while it runs, then a table, a picture and the answers."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tenuto.cli.demo.messages import Run
from tenuto.cli.demo.model import DTYPE, NAME
from tenuto.cli.demo.outcome import MEASURED, Outcome
from tenuto.cli.demo.text import QUESTIONS

BAR_WIDTH = 44
LABELS = {"cold": "cold", "host": "host hit", "disk": "disk hit", "engine": "engine cache"}


class Steps:
    """One line per step, with a moving bar and the time elapsed while it lasts.

    Where there is no terminal to move in, each step is one line when it ends.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._current: tuple[str, float] | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._finish()
        self._progress.stop()

    def begin(self, what: str) -> None:
        """The step before has ended; this one has begun."""
        self._finish()
        self._current = (what, time.monotonic())
        self._progress.add_task(escape(what), total=None)

    def _finish(self) -> None:
        if self._current is None:
            return
        what, since = self._current
        self._current = None
        for task in self._progress.tasks:
            if not task.finished:
                self._progress.update(task.id, total=1, completed=1)
        if self._progress.disable:
            self._console.print(f"{what}: {time.monotonic() - since:.1f} s", highlight=False)


def show(outcome: Outcome, console: Console) -> None:
    """The whole result, for people."""
    cold = outcome.find(0, "cold")
    console.print()
    console.print(
        f"[bold]{NAME}[/] ({DTYPE}) in {outcome.facts.engine}, {outcome.facts.threads} compute "
        f"thread(s); a text of {cold.prompt_tokens:,} tokens as shared context",
        highlight=False,
    )
    console.print(_table(outcome))
    console.print("Time to first token, question 1", style="bold")
    longest = cold.ttft_s
    for run in outcome.of_question(0):
        filled = max(1, round(BAR_WIDTH * run.ttft_s / longest))
        colour = "red" if run.name == "cold" else "green"
        console.print(
            f"  {LABELS[run.name]:<9} [{colour}]{'█' * filled}[/] {run.ttft_s:.2f} s",
            highlight=False,
        )
    console.print()
    for index, question in enumerate(QUESTIONS):
        runs = outcome.of_question(index)
        console.print(f"[bold]{index + 1}. {escape(question)}[/]", highlight=False)
        console.print(f"   {escape(runs[0].text.strip())}", highlight=False)
    console.print()
    console.print(MEASURED, style="dim", highlight=False)


def _table(outcome: Outcome) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    table.add_column("context from", no_wrap=True)
    for heading in (
        "prompt\ntokens",
        "tokens\nreused",
        "bytes\nloaded",
        "first\ntoken",
        "speed-up",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("same\noutput", justify="center", no_wrap=True)
    for index in range(len(QUESTIONS)):
        for number, run in enumerate(outcome.of_question(index)):
            label = f"question {index + 1}" if number == 0 else ""
            table.add_row(label, LABELS[run.name], *_cells(outcome, run))
        table.add_section()
    return table


def _cells(outcome: Outcome, run: Run) -> list[str]:
    is_first = run is outcome.of_question(run.question)[0]
    same = "" if is_first else ("[green]yes[/]" if outcome.is_same(run) else "[red]no[/]")
    return [
        f"{run.prompt_tokens:,}",
        f"{run.reused_tokens:,}",
        f"{run.loaded_bytes / 1e6:,.0f} MB" if run.loaded_bytes else "-",
        f"{run.ttft_s:.2f} s",
        "" if run.name == "cold" else f"{outcome.speedup(run):.1f}×",
        same,
    ]
