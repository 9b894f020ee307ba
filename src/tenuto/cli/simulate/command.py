"""`tenuto simulate TRACE`: arguments, runs, and what is shown."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tenuto.cli.simulate.plan import OPTIMUM, Plan, add_options, is_wanted, read_plan
from tenuto.cli.simulate.progress import Watch
from tenuto.cli.simulate.sources import Source, are_recordings, read_source, readable
from tenuto.errors import ConfigError
from tenuto.settings import expand_user

if TYPE_CHECKING:
    from tenuto.simulator import Outcome


@dataclass(frozen=True, slots=True)
class Row:
    """One policy at one capacity."""

    policy: str
    capacity_blocks: int
    hit_rate: float
    optimum: float
    """Of any policy, in host memory and on disk together."""
    optimum_share: float
    """How far from LRU to the optimum; 0 where these are the same."""
    host_hit_rate: float = 0.0
    disk_hit_rate: float = 0.0
    disk_writes: int = 0
    writes_per_hit: float = 0.0
    """Blocks written to disk for each block found in any tier."""
    waited_s: float = 0.0


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the subcommand `simulate`."""
    parser = commands.add_parser(
        "simulate",
        help="hit rates of policies and capacities on a recorded trace",
        description="Runs tenuto's own manager and pools on a trace and a virtual clock. A hit is a block found before "
        "a request's first miss. Beside each policy stands the optimum, that of a cache which knows the future. A "
        "recording (runtime.record_file) without options of the simulation is no trace: the recorded decisions are "
        "made again, and must be the same.",
    )
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE",
                        help="in Mooncake's format, or recordings of the engines of one server, packed by gzip or not; "
                        "-: standard input")  # fmt: skip
    add_options(parser)
    parser.add_argument("--json", action="store_true", help="print a list of rows, no table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate and show. Raises `ConfigError` for what is wrong in the arguments or the trace."""
    with readable([expand_user(path, "TRACE") for path in args.traces]) as paths:
        return _run(args, paths)


def _run(args: argparse.Namespace, paths: Sequence[Path]) -> int:
    if are_recordings(paths) and not is_wanted(args):
        from tenuto.cli.simulate.replaying import run_replay

        return run_replay(paths, as_json=args.json)
    plan = read_plan(args)
    source = read_source(paths)
    if source.says:
        _say(source.says)
    rows = measure(plan, source, _say)
    if args.plot is not None:
        from tenuto.cli.simulate.picture import draw

        out = expand_user(Path(args.plot), "--plot")
        try:
            out.write_text(draw(rows, ", ".join(path.name for path in paths)), "utf-8")
        except OSError as error:
            raise ConfigError(f"--plot: can't write {out} ({error.strerror}); give another file") from None
    if args.json:
        asked = [row for row in rows if row.policy in plan.policies]
        print(json.dumps([asdict(row) for row in asked], indent=2))
    else:
        print(table(rows, has_disk=plan.n_disk > 0))
    return 0


def _say(line: str) -> None:
    print(f"tenuto simulate: {line}", file=sys.stderr)


def measure(plan: Plan, source: Source, tell: Callable[[str], None]) -> list[Row]:
    """All rows; those of the optimum are the last of each capacity. Hits of several caches are counted together.

    `tell`: told in a line, where it takes long, how long. Raises `InvariantError` for a policy of others that fails.
    """
    from tenuto.simulator import Outcome, Tiers, best_hits, simulate

    bandwidths = plan.bandwidths(source.block_bytes)
    n_blocks = sum(len(request.asked) for cache in source.caches for request in cache)
    rows: list[Row] = []
    capacities = plan.capacities or source.capacities
    names = [name for name in dict.fromkeys([*plan.policies, "lru"]) if name != OPTIMUM]
    # No tier of more slots finds more.
    n_most = 2 * max(1, *(len({block for request in cache for block in request.hashes}) for cache in source.caches))
    watch = Watch(len(capacities) * len(names) * sum(map(len, source.caches)), tell)
    for n_slots in capacities:
        outcomes: dict[str, Outcome] = {}
        for name in names:
            tiers = Tiers(min(n_slots, n_most), name, min(plan.n_disk, n_most), plan.disk_policy, plan.admission)
            runs = (simulate(watch.over(cache), tiers, bandwidths) for cache in source.caches)
            outcomes[name] = Outcome.together(runs)
        n_best = sum(best_hits(cache, n_slots + plan.n_disk) for cache in source.caches)
        best, floor = n_best / max(n_blocks, 1), outcomes["lru"].hit_rate
        rows += [_row(name, n_slots, outcomes[name], best, floor) for name in plan.policies if name in outcomes]
        rows.append(Row(OPTIMUM, n_slots, round(best, 5), round(best, 5), 1.0))
    return rows


def table(rows: Sequence[Row], *, has_disk: bool) -> str:
    """Hit rates in percent: a line a capacity, a column a policy; with a disk also its part and its writes."""
    names = list(dict.fromkeys(row.policy for row in rows))
    widths = {name: max(12, len(name) + 2) for name in names}
    lines = [f"{'blocks':>10}" + "".join(f"{name:>{widths[name]}}" for name in names)]
    for n_slots in dict.fromkeys(row.capacity_blocks for row in rows):
        there = {row.policy: row for row in rows if row.capacity_blocks == n_slots}
        rates = ((100 * there[name].hit_rate, widths[name]) for name in names)
        lines.append(f"{n_slots:>10}" + "".join(f"{rate:>{width - 1}.1f}%" for rate, width in rates))
        if has_disk:
            shown = [(there[name], widths[name]) for name in names if name != OPTIMUM]
            lines.append(f"{'on disk':>10}" + "".join(f"{100 * row.disk_hit_rate:>{w - 1}.1f}%" for row, w in shown))
            lines.append(f"{'writes/hit':>10}" + "".join(f"{row.writes_per_hit:>{w}.2f}" for row, w in shown))
    return "\n".join(lines)


def _row(name: str, n_slots: int, outcome: Outcome, best: float, floor: float) -> Row:
    n_hits = sum(outcome.n_hits.values())
    return Row(
        name, n_slots, round(outcome.hit_rate, 5), round(best, 5),
        round((outcome.hit_rate - floor) / (best - floor), 4) if best > floor else 0.0,
        round(outcome.n_hits["host"] / max(outcome.n_blocks, 1), 5),
        round(outcome.n_hits["disk"] / max(outcome.n_blocks, 1), 5),
        outcome.n_written,
        round(outcome.n_written / max(n_hits, 1), 3),
        round(outcome.waited_s, 3),
    )  # fmt: skip
