"""What the advisor knows, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import structs

from tenuto.advisor.agents import AgentInfo
from tenuto.advisor.core import Advisor, WorkerName
from tenuto.advisor.index import WorkerIndex


def report_index(advisor: Advisor, now_s: float) -> dict[str, Any]:
    """Blocks by engine and volume; `n_returns`: how many came back since the advisor began.

    `silent_s`: since its last message was sent; `now_s` by the advisor's clock.
    """
    return {
        "engines": [
            {
                "node": node, "worker": worker, "dp_rank": dp_rank,
                "n_blocks": len(index.table), "volumes": index.table.counts(),
                "n_prefixes": len(np.unique(index.table.prefix[index.table.all_rows()])),
                "block_tokens": index.block_tokens, "n_returns": index.model.n_returns,
                "silent_s": round(max(0.0, now_s - index.heard_s), 1),
            }
            for (node, worker, dp_rank), index in advisor.workers.items()
        ]
    }  # fmt: skip


def report_volumes(workers: Mapping[WorkerName, Sequence[AgentInfo]]) -> dict[str, Any]:
    """What agents say of their volumes, by engine and rank."""
    return {
        "engines": [
            {
                "worker": worker, "dp_rank": dp_rank, "rank": info.rank, "instance": info.instance,
                "extent_bytes": info.extent_bytes, "volumes": [structs.asdict(volume) for volume in info.volumes],
            }
            for (worker, dp_rank), infos in workers.items()
            for info in infos
        ]
    }  # fmt: skip


def report_prefixes(advisor: Advisor, n_top: int, now_s: float) -> dict[str, Any]:
    """The chain groups whose blocks are worth most together: `heat` is in uses a second."""
    found: list[dict[str, Any]] = [
        {"node": node, "worker": worker, "dp_rank": dp_rank, **group}
        for (node, worker, dp_rank), index in advisor.workers.items()
        for group in _groups(index, n_top, now_s)
    ]
    return {"prefixes": sorted(found, key=lambda group: float(group["heat"]), reverse=True)[:n_top]}


def _groups(index: WorkerIndex, n_top: int, now_s: float) -> list[dict[str, Any]]:
    table = index.table
    rows = table.all_rows()
    if not len(rows):
        return []
    n_groups = len(table.prefixes)
    prefix = table.prefix[rows]
    heat = np.bincount(prefix, index.model.scores(table, rows, now_s), n_groups)
    n_blocks, uses = np.bincount(prefix, minlength=n_groups), np.bincount(prefix, table.uses[rows], n_groups)
    used_s = np.zeros(n_groups)
    np.maximum.at(used_s, prefix, table.used_s[rows])
    by_volume = np.bincount(
        prefix * len(table.volumes) + table.volume[rows], minlength=n_groups * len(table.volumes)
    ).reshape(n_groups, -1)
    top: list[int] = np.argsort(-heat, kind="stable")[:n_top].tolist()
    return [
        {
            "prefix": table.prefixes[number].hex(), "heat": float(heat[number]), "n_blocks": int(n_blocks[number]),
            "uses": int(uses[number]), "idle_s": round(now_s - float(used_s[number]), 1),
            "volumes": dict(zip(table.volumes, by_volume[number].tolist(), strict=True)),
        }
        for number in top
        if n_blocks[number]
    ]  # fmt: skip
