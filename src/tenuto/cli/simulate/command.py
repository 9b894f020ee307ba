"""`tenuto simulate TRACE`: arguments, runs, and what is shown."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tenuto.config import parse_size
from tenuto.errors import ConfigError

if TYPE_CHECKING:
    from tenuto.simulator import Bandwidths, Outcome

OPTIMUM = "opt"


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
        "a request's first miss. Beside each policy stands the optimum, that of a cache which knows the future.",
    )
    parser.add_argument("trace", type=Path, metavar="TRACE", help="in Mooncake's format, or a recording of ours")
    parser.add_argument("--capacity-blocks", default="1000,3000,10000,30000", metavar="N,...", help="of host memory")
    parser.add_argument("--policy", default="default,lru", metavar="NAME,...", help="of host memory; opt: the optimum")
    parser.add_argument(
        "--disk-blocks", type=int, default=0, metavar="N", help="a disk tier of so many blocks (default: none)"
    )
    parser.add_argument("--disk-policy", default="default", metavar="NAME", help="of the disk tier")
    parser.add_argument("--disk-admission", default="default", metavar="NAME", help="which blocks are written to disk")
    parser.add_argument("--block-bytes", default="2 MiB", metavar="SIZE", help="of one block, for the bandwidths")
    for lane in ("device-to-host", "host-to-disk", "disk-to-host", "host-to-device"):
        parser.add_argument(f"--{lane}", default="0", metavar="SIZE", help="bytes a second; 0: instant (default)")
    parser.add_argument("--json", action="store_true", help="print a list of rows, no table")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="also draw hit rates over capacities")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate and show. Raises `ConfigError` for what is wrong in the arguments or the trace."""
    from tenuto.cli.simulate.replaying import run_replay
    from tenuto.settings import expand_user
    from tenuto.simulator import is_recording

    path = expand_user(args.trace, "TRACE")
    if is_recording(path):
        return run_replay(path, as_json=args.json)
    rows = measure(args, lambda line: print(line, file=sys.stderr) if sys.stderr.isatty() else None)
    if args.plot is not None:
        from tenuto.cli.simulate.picture import draw

        out = expand_user(args.plot, "--plot")
        try:
            out.write_text(draw(rows, path.name), "utf-8")
        except OSError as error:
            raise ConfigError(f"--plot: can't write {out} ({error.strerror}); give another file") from None
    if args.json:
        asked = [row for row in rows if row.policy in _names(args.policy)]
        print(json.dumps([asdict(row) for row in asked], indent=2))
    else:
        print(table(rows, has_disk=args.disk_blocks > 0))
    return 0


def measure(args: argparse.Namespace, tell: Callable[[str], None]) -> list[Row]:
    """All rows; those of the optimum are the last of each capacity. What is wrong in the arguments is said first."""
    from tenuto.manager.admission import make_admission
    from tenuto.pools import make_policy
    from tenuto.settings import expand_user
    from tenuto.simulator import Tiers, optimal_hits, read_trace, simulate

    capacities, names = _capacities(args.capacity_blocks), _names(args.policy)
    for name in names:
        if name != OPTIMUM:
            make_policy(name, "--policy")
    if args.disk_blocks < 0:
        raise ConfigError(f"--disk-blocks: {args.disk_blocks} is no capacity; give 1 or more, or leave it out")
    make_policy(args.disk_policy, "--disk-policy")
    make_admission(args.disk_admission, "--disk-admission")
    bandwidths = _bandwidths(args)
    requests = read_trace(expand_user(args.trace, "TRACE"))
    n_blocks = sum(len(request.hashes) for request in requests)
    rows: list[Row] = []
    for n_slots in capacities:
        outcomes: dict[str, Outcome] = {}
        for name in dict.fromkeys([*names, "lru"]):
            if name == OPTIMUM:
                continue
            tiers = Tiers(n_slots, name, args.disk_blocks, args.disk_policy, args.disk_admission)
            began = time.perf_counter()
            outcomes[name] = simulate(requests, tiers, bandwidths)
            tell(f"{name}, {n_slots} blocks: {time.perf_counter() - began:.1f} s")
        best = optimal_hits([request.hashes for request in requests], n_slots + args.disk_blocks) / max(n_blocks, 1)
        floor = outcomes["lru"].hit_rate
        rows += [_row(name, n_slots, outcomes[name], best, floor) for name in names if name in outcomes]
        rows.append(Row(OPTIMUM, n_slots, round(best, 5), round(best, 5), 1.0))
    return rows


def table(rows: Sequence[Row], *, has_disk: bool) -> str:
    """Hit rates in percent: a line a capacity, a column a policy; with a disk also its part and its writes."""
    names = list(dict.fromkeys(row.policy for row in rows))
    lines = [f"{'blocks':>10}" + "".join(f"{name:>12}" for name in names)]
    for n_slots in dict.fromkeys(row.capacity_blocks for row in rows):
        there = {row.policy: row for row in rows if row.capacity_blocks == n_slots}
        lines.append(f"{n_slots:>10}" + "".join(f"{100 * there[name].hit_rate:>11.1f}%" for name in names))
        if has_disk:
            shown = [there[name] for name in names if name != OPTIMUM]
            lines.append(f"{'on disk':>10}" + "".join(f"{100 * row.disk_hit_rate:>11.1f}%" for row in shown))
            lines.append(f"{'writes/hit':>10}" + "".join(f"{row.writes_per_hit:>12.2f}" for row in shown))
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


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError("--policy: no name; give one or more, with commas between them")
    return list(dict.fromkeys(names))


def _capacities(text: str) -> list[int]:
    try:
        capacities = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--capacity-blocks: {text!r} is no list of numbers; write it as 1000,3000") from None
    if min(capacities) < 1:
        raise ConfigError(f"--capacity-blocks: {min(capacities)} is no capacity; give 1 or more")
    return capacities


def _bandwidths(args: argparse.Namespace) -> Bandwidths:
    from tenuto.simulator import Bandwidths

    def rate(option: str, text: str) -> float:
        return 0.0 if text.strip() == "0" else float(parse_size(text, option))

    return Bandwidths(
        rate("--device-to-host", args.device_to_host), rate("--host-to-disk", args.host_to_disk),
        rate("--disk-to-host", args.disk_to_host), rate("--host-to-device", args.host_to_device),
        parse_size(args.block_bytes, "--block-bytes"),
    )  # fmt: skip
