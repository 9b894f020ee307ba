"""`tenuto simulate RECORDING...`: the decisions of live runs, made again."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path


def run_replay(paths: Sequence[Path], *, as_json: bool) -> int:
    """Show whether they are the same, of each recording by itself: 1 where some are not."""
    from tenuto.simulator import replay

    outcomes = {path: replay(path) for path in paths}
    print(
        "tenuto simulate: made the recorded decisions again; with --capacity-blocks or --policy: simulates others",
        file=sys.stderr,
    )
    if as_json:
        said = [{"recording": str(path)} | asdict(outcome) for path, outcome in outcomes.items()]
        print(json.dumps(said if len(said) > 1 else asdict(outcomes[paths[0]]), indent=2))
    else:
        for path, outcome in outcomes.items():
            name = f"{path}: " if len(outcomes) > 1 else ""
            print(f"{name}{outcome.n_lookups} lookups, {outcome.n_hit_blocks} blocks hit, "
                  f"{outcome.n_removed} blocks removed")  # fmt: skip
            print(f"{outcome.n_differences} decisions differ from the recorded ones")
            for line in outcome.differences:
                print(f"  {line}")
    return int(any(outcome.n_differences for outcome in outcomes.values()))
