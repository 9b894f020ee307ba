"""What the runs say: each test with vLLM's own connector and with ours. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from typing import Any

Entry = Mapping[str, Any]
"""A line of the recorder: test, outcome, reason, refused, how, asked."""

BY_DESIGN = {
    "*::test_reset_connector_cache_no_connector_is_no_op_success": "says what happens without a connector",
    "*::test_multi_example_connector_consistency": "compares the files that the example connector writes",
    "*::test_prefix_cache_stats_counted_once_for_retried_then_scheduled_request": "reads the mock connector's metadata",
    "*test_error_propagation.py::*": "wants the fail policy; ours sets recompute",
    "*test_cache_pollution_prevention.py::*": "wants the fail policy; ours sets recompute",
    "*test_invalid_blocks_correctness.py::test_sync_fail_*": "wants the fail policy; ours sets recompute",
    "*::test_failed_receive_completion_honors_failure_policy[fail]": "wants the fail policy; ours sets recompute",
}
"""Tests that ours must fail, and why."""


def judge(stock: Entry | None, ours: Entry) -> tuple[str, str]:
    """(verdict, reason) of one test.

    "passed", "skipped"; "here too": it fails on this machine with vLLM's own connectors as well; "refused": ours says
    that it does not serve this set-up; "by design"; "fault": everything else.
    """
    if ours["outcome"] != "failed":
        return ours["outcome"], ours["reason"]
    if stock is not None and stock["outcome"] == "failed":
        return "here too", stock["reason"]
    if ours["refused"]:
        return "refused", ours["reason"]
    for pattern, why in BY_DESIGN.items():
        if fnmatch(ours["test"].replace("[", "("), pattern.replace("[", "(")):
            return "by design", why
    return "fault", ours["reason"]


def summarise(stock: Iterable[Entry], ours: Iterable[Entry]) -> dict[str, Any]:
    """Per file the number of each verdict, and of tests that built ours; each failure with its reason."""
    baseline = {entry["test"]: entry for entry in stock}
    files: dict[str, Counter[str]] = {}
    reasons: dict[str, dict[str, list[str]]] = {}
    for entry in ours:
        file, _, name = entry["test"].partition("::")
        verdict, reason = judge(baseline.get(entry["test"]), entry)
        counts = files.setdefault(file, Counter())
        counts["tests"] += 1
        counts[verdict] += 1
        counts["constructions"] += len(entry["how"])
        counts["looked up tokens"] += entry["asked"]
        if entry["how"]:
            counts["built ours"] += 1
            counts["built ours and passed"] += verdict == "passed"
        for how in set(entry["how"]):
            counts[how] += 1
        if verdict not in ("passed", "skipped"):
            reasons.setdefault(verdict, {}).setdefault(reason, []).append(f"{file}::{name}")
    total: Counter[str] = sum(files.values(), Counter())
    return {"total": dict(total), "files": {f: dict(c) for f, c in files.items()}, "reasons": reasons}


COLUMNS = (
    "tests",
    "passed",
    "built ours",
    "built ours and passed",
    "refused",
    "by design",
    "fault",
    "here too",
    "skipped",
)


def table(summary: Mapping[str, Any]) -> str:
    """A Markdown table: one row per file, and the sum."""
    rows = [*summary["files"].items(), ("all", summary["total"])]
    lines = ["| file | " + " | ".join(COLUMNS) + " |", "|---|" + "---|" * len(COLUMNS)]
    for file, counts in rows:
        cells = " | ".join(str(counts.get(column, 0)) for column in COLUMNS)
        lines.append(f"| {file.removeprefix('tests/v1/')} | {cells} |")
    return "\n".join(lines)
