"""What `tenuto inspect` shows: tables for people, one object for programs."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tenuto.cli.inspect.survey import Model, RankFolder, Root
from tenuto.cli.inspect.verification import Verdict
from tenuto.cli.wording import age_text, printable, size_text

MOST_LINES = 20
"""Strays and bad blocks shown; the JSON object has all."""


def show(root: Root, verdict: Verdict | None, console: Console) -> None:
    """Models, what is not tenuto's, and the verdict, if there is one."""
    ranks = root.ranks
    _line(
        console,
        f"{root.folder}: {_count(len(root.models), 'model')}, "
        f"{_count(sum(rank.n_blocks for rank in ranks), 'block')}, "
        f"{size_text(sum(rank.used_bytes for rank in ranks))} used of "
        f"{size_text(sum(rank.allocated_bytes for rank in ranks))} allocated",
        "bold",
    )
    if root.stripes.others:
        _line(console, f"striped over it and {', '.join(map(str, root.stripes.others))}")
    _lines(console, root.stripes.faults, "red")
    for model in root.models:
        _show_model(model, console)
    _lines(console, [f"{_relative(root, stray.path)}: {stray.why}" for stray in root.strays], "yellow")
    if verdict is not None:
        _show_verdict(verdict, console)


def as_json(root: Root, verdict: Verdict | None) -> dict[str, Any]:
    """One object; sizes in bytes, times in UTC, paths under the root."""
    return {
        "root": printable(str(root.folder)),
        "stripes": [printable(str(other)) for other in root.stripes.others],
        "faults": root.stripes.faults,
        "models": [_model_json(root, model) for model in root.models],
        "strays": [{"path": _relative(root, stray.path), "why": stray.why} for stray in root.strays],
        "verified": None if verdict is None else _verdict_json(verdict),
    }


def _show_model(model: Model, console: Console) -> None:
    console.print()
    known = model.namespace
    _line(console, f"{known.model if known else 'unknown model'}  {model.folder.name[:8]}", "bold cyan")
    if known:
        _line(
            console,
            f"{known.kv_dtype}, {known.n_layers} layers, {known.n_kv_heads} KV heads, {known.block_tokens} tokens "
            f"a block, format {known.format_version}; {model.n_tokens:,} tokens in all",
        )
    if model.ranks:
        console.print(_table(model.ranks))
    _lines(console, model.unread, "red")
    notes = [*model.notes, *(f"{rank.name}: {note}" for rank in model.ranks for note in rank.notes)]
    _lines(console, notes, "yellow")


def _table(ranks: list[RankFolder]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("folder", "engine"):
        table.add_column(heading, no_wrap=True)
    for heading in ("blocks", "used", "allocated", "oldest", "newest"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for rank in ranks:
        oldest, newest = (_age(stamp) for stamp in rank.stamps or (None, None))
        colour = "red" if rank.is_unreadable else "yellow"
        table.add_row(
            rank.name, rank.holder.value, f"{rank.n_blocks:,}", size_text(rank.used_bytes),
            size_text(rank.allocated_bytes), oldest, newest, f"[{colour}]{escape(printable(rank.fault))}[/]",
        )  # fmt: skip
    return table


def _show_verdict(verdict: Verdict, console: Console) -> None:
    bad = [f"{bad.rank} slot {bad.slot} {bad.hash}: {bad.cause.value}: {bad.message}" for bad in verdict.bad]
    _lines(console, [f"not verified: {line}" for line in verdict.unread] + bad, "red")
    words = f"{verdict.n_good:,} good, {len(verdict.bad):,} bad"
    if verdict.n_rewritten:
        words += f", {verdict.n_rewritten:,} rewritten by their engine meanwhile"
    if verdict.unread:
        words += f", {_count(len(verdict.unread), 'folder')} not verified"
    _line(console, f"verified: {words}", "bold green" if verdict.is_good else "bold red")


def _model_json(root: Root, model: Model) -> dict[str, Any]:
    return {
        "namespace": model.folder.name,
        "identity": model.namespace.describe() if model.namespace else None,
        "tokens": model.n_tokens,
        "notes": model.notes,
        "unread": model.unread,
        "ranks": [_rank_json(root, rank) for rank in model.ranks],
    }


def _rank_json(root: Root, rank: RankFolder) -> dict[str, Any]:
    oldest, newest = (_moment(stamp) for stamp in rank.stamps or (None, None))
    return {
        "path": _relative(root, rank.folder),
        "rank": rank.rank,
        "engine": rank.holder.value,
        "format": rank.format,
        "blocks": rank.n_blocks,
        "extent_bytes": rank.extent_bytes,
        "used_bytes": rank.used_bytes,
        "allocated_bytes": rank.allocated_bytes,
        "oldest": oldest,
        "newest": newest,
        "fault": rank.fault,
        "is_unreadable": rank.is_unreadable,
        "notes": rank.notes,
    }


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "is_good": verdict.is_good,
        "good": verdict.n_good,
        "rewritten": verdict.n_rewritten,
        "bad": [
            {
                "path": str(bad.rank),
                "slot": bad.slot,
                "hash": bad.hash,
                "cause": bad.cause.value,
                "message": bad.message,
            }
            for bad in verdict.bad
        ],
        "unread": verdict.unread,
    }


def _relative(root: Root, path: Path) -> str:
    """Under the root; what lies in another folder of its stripe has its whole path."""
    return printable(str(path.relative_to(root.folder) if path.is_relative_to(root.folder) else path))


def _age(stamp: int | None) -> str:
    return "" if stamp is None else age_text(time.time() - stamp / 1e9)


def _moment(stamp: int | None) -> str | None:
    """UTC to the second; a stamp that no calendar has is None."""
    if stamp is None:
        return None
    try:
        return datetime.fromtimestamp(stamp // 10**9, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return None


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _lines(console: Console, lines: list[str], style: str) -> None:
    for line in lines[:MOST_LINES]:
        _line(console, line, style)
    if len(lines) > MOST_LINES:
        _line(console, f"... and {len(lines) - MOST_LINES:,} more; --json names all", style)


def _line(console: Console, text: str, style: str = "") -> None:
    """One line as it is, but for what would move the cursor: no markup, no wrapping."""
    console.print(printable(text), style=style, markup=False, highlight=False, soft_wrap=True)
