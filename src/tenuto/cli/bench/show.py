"""A result for people: a table in colours, or in plain text where rich is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tenuto.cli.bench.result import Machine, Result

if TYPE_CHECKING:
    from rich.console import Console

Targets = Mapping[str, tuple[str, float]]

QUICK = "quick run: no targets"
LEFT_OUT = "left_out"
"""What stands among a result's details under this name is a line: which figures it has not, and why."""


def show(result: Result, targets: Targets | None, console: Console) -> None:
    """Every figure, and its target in green or red; None: the figures of a quick run are not to be judged."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    console.print(f"[bold]{result.name}[/]{_with(result)} on {_where(result.machine)}", highlight=False)
    for line in _remarks(result, targets):
        console.print(line, markup=False, highlight=False)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("figure", no_wrap=True)
    table.add_column("measured", justify="right", no_wrap=True)
    if targets is not None:
        table.add_column("target", justify="right", no_wrap=True)
    for key, value in result.figures.items():
        wanted = [] if targets is None else [""]
        if targets is not None and key in targets:
            sign, bound = targets[key]
            wanted = [f"[{'green' if is_met(value, sign, bound) else 'red'}]{sign} {bound:,}[/]"]
        table.add_row(key, f"{value:,}", *wanted)
    console.print(table)


def plain_text(result: Result, targets: Targets | None) -> str:
    """The same without colours: a missed target has "missed" behind it."""
    width = max((len(key) for key in result.figures), default=0)
    lines = [f"{result.name}{_with(result)} on {_where(result.machine)}", *_remarks(result, targets), ""]
    for key, value in result.figures.items():
        wanted = ""
        if targets is not None and key in targets:
            sign, bound = targets[key]
            wanted = f"  {sign} {bound:,}" + ("" if is_met(value, sign, bound) else "  missed")
        lines.append(f"{key:<{width}}  {value:>14,}{wanted}")
    return "\n".join(lines)


def is_met(value: float, sign: str, bound: float) -> bool:
    """Whether a figure keeps its target; `sign` is "≥" or "≤"."""
    return value >= bound if sign == "≥" else value <= bound


def _where(machine: Machine) -> str:
    parts = [machine.gpu, machine.cpu, f"{machine.cores} cores", f"{machine.memory_gib} GiB", machine.file_system]
    return ", ".join(part for part in parts if part)


def _with(result: Result) -> str:
    policy = result.details.get("policy")
    return f", policy {policy}," if policy else ""


def _remarks(result: Result, targets: Targets | None) -> list[str]:
    return [*([QUICK] if targets is None else []), *([result.details[LEFT_OUT]] if LEFT_OUT in result.details else [])]
