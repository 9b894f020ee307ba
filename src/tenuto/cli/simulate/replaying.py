"""`tenuto simulate RECORDING`: the decisions of a live run, made again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path


def run_replay(path: Path, *, as_json: bool) -> int:
    """Show whether they are the same: 1 where they are not."""
    from tenuto.simulator import replay

    outcome = replay(path)
    if as_json:
        print(json.dumps(asdict(outcome), indent=2))
    else:
        print(f"{outcome.n_lookups} lookups, {outcome.n_hit_blocks} blocks hit, {outcome.n_removed} blocks removed")
        print(f"{outcome.n_differences} decisions differ from the recorded ones")
        for line in outcome.differences:
            print(f"  {line}")
    return int(outcome.n_differences > 0)
