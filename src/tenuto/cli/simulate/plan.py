"""What is to be simulated: the options of `tenuto simulate`, read and checked."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenuto.config import parse_size
from tenuto.errors import ConfigError

if TYPE_CHECKING:
    from tenuto.simulator import Bandwidths

OPTIMUM = "opt"
DEFAULT_CAPACITIES = (1000, 3000, 10000, 30000)
DEFAULT_POLICIES = "default,lru"
DEFAULT_BLOCK_BYTES = 2 << 20
_LANES = ("device-to-host", "host-to-disk", "disk-to-host", "host-to-device")
_OPTIONS = {
    "--capacity-blocks": ("N,...", "of host memory (1000,3000,10000,30000; with a recording: what it had)"),
    "--policy": ("NAME,...", f"of host memory; opt: the optimum ({DEFAULT_POLICIES})"),
    "--disk-blocks": ("N", "a disk tier of so many blocks (none)"),
    "--disk-policy": ("NAME", "of the disk tier (default)"),
    "--disk-admission": ("NAME", "which blocks are written to disk (default)"),
    "--block-bytes": ("SIZE", "of one block, for the bandwidths (2 MiB; with a recording: what it had)"),
    **{f"--{lane}": ("SIZE", "bytes a second; 0: instant (0)") for lane in _LANES},
    "--plot": ("FILE.svg", "also draw hit rates over capacities"),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """None: not given, so that the trace decides."""

    capacities: tuple[int, ...] | None
    policies: tuple[str, ...]
    n_disk: int
    disk_policy: str
    admission: str
    block_bytes: int | None
    rates: tuple[float, ...]
    """Bytes a second of each lane."""

    def bandwidths(self, block_bytes: int) -> Bandwidths:
        """Of the lanes; `block_bytes`: unless it was given."""
        from tenuto.simulator import Bandwidths

        return Bandwidths(*self.rates, block_bytes=self.block_bytes or block_bytes)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a simulation; those that are not given stay None."""
    group = parser.add_argument_group("simulation")
    for option, (metavar, says) in _OPTIONS.items():
        group.add_argument(option, metavar=metavar, help=says)


def is_wanted(args: argparse.Namespace) -> bool:
    """Whether any of them is given."""
    return any(getattr(args, option.strip("-").replace("-", "_")) is not None for option in _OPTIONS)


def read_plan(args: argparse.Namespace) -> Plan:
    """The options. Raises `ConfigError`, one line that names the one that is wrong."""
    from tenuto.manager.admission import make_admission
    from tenuto.pools import make_policy

    plan = Plan(
        None if args.capacity_blocks is None else _capacities(args.capacity_blocks),
        _names(args.policy or DEFAULT_POLICIES),
        _n_disk(args.disk_blocks or "0"),
        args.disk_policy or "default",
        args.disk_admission or "default",
        None if args.block_bytes is None else parse_size(args.block_bytes, "--block-bytes"),
        tuple(_rate(f"--{lane}", getattr(args, lane.replace("-", "_"))) for lane in _LANES),
    )
    for name in plan.policies:
        if name != OPTIMUM:
            make_policy(name, "--policy")
    make_policy(plan.disk_policy, "--disk-policy")
    make_admission(plan.admission, "--disk-admission")
    return plan


def _names(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError("--policy: no name; give one or more, with commas between them")
    return tuple(dict.fromkeys(names))


def _capacities(text: str) -> tuple[int, ...]:
    try:
        capacities = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--capacity-blocks: {text!r} is no list of numbers; write it as 1000,3000") from None
    if min(capacities) < 1:
        raise ConfigError(f"--capacity-blocks: {min(capacities)} is no capacity; give 1 or more")
    return capacities


def _n_disk(text: str) -> int:
    if not text.strip().isdecimal():
        raise ConfigError(f"--disk-blocks: {text} is no capacity; give 1 or more, or leave it out")
    return int(text)


def _rate(option: str, text: str | None) -> float:
    return 0.0 if text is None or text.strip() == "0" else float(parse_size(text, option))
