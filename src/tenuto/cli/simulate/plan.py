"""What is to be simulated: the options of `tenuto simulate`, read and checked."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenuto.config import Disk, Host, parse_size
from tenuto.errors import ConfigError

if TYPE_CHECKING:
    from tenuto.simulator import Bandwidths

OPTIMUM = "opt"
DEFAULT_CAPACITIES = (1000, 3000, 10000, 30000)
DEFAULT_POLICIES = tuple(dict.fromkeys((Host().policy, "lru")))
DEFAULT_BLOCK_BYTES = 2 << 20
_UNLESS_GIVEN = " and ".join(map(repr, DEFAULT_POLICIES))
_LANES = ("device-to-host", "host-to-disk", "disk-to-host", "host-to-device")
_OPTIONS = {
    "--capacity-blocks": ("N,...", "of host memory; unless given 1000,3000,10000,30000, of a recording what it had"),
    "--policy": (
        "NAME,...",
        f"of host memory, named as in tiers.host.policy, and opt: the optimum; unless given {_UNLESS_GIVEN}",
    ),
    "--disk-blocks": ("N", "a disk tier of so many blocks; unless given there is none"),
    "--disk-policy": ("NAME", f"of the disk tier; unless given {Disk().policy!r}"),
    "--disk-admission": ("NAME", f"which blocks are written to disk; unless given {Disk().admission!r}"),
    "--block-bytes": ("SIZE", "of one block, for the bandwidths; unless given 2 MiB, of a recording what it had"),
    **{f"--{lane}": ("SIZE", "bytes a second; 0, or unless given: instant") for lane in _LANES},
    "--plot": ("FILE.svg", "also draw hit rates over capacities"),
}
_OF_DISK = ("--disk-policy", "--disk-admission", "--host-to-disk", "--disk-to-host")


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
    return any(_given(args, option) is not None for option in _OPTIONS)


def read_plan(args: argparse.Namespace) -> Plan:
    """The options. Raises `ConfigError`, one line that names the one that is wrong."""
    from tenuto.manager.admission import make_admission
    from tenuto.pools.guarded import guarded_policy

    _check_company(args)
    plan = Plan(
        None if args.capacity_blocks is None else _capacities(args.capacity_blocks),
        DEFAULT_POLICIES if args.policy is None else _names(args.policy),
        _n_disk(args.disk_blocks or "0"),
        Disk().policy if args.disk_policy is None else args.disk_policy,
        Disk().admission if args.disk_admission is None else args.disk_admission,
        None if args.block_bytes is None else parse_size(args.block_bytes, "--block-bytes"),
        tuple(_rate(f"--{lane}", _given(args, f"--{lane}")) for lane in _LANES),
    )
    for name in plan.policies:
        if name != OPTIMUM:
            guarded_policy(name, "--policy")
    guarded_policy(plan.disk_policy, "--disk-policy")
    make_admission(plan.admission, "--disk-admission")
    return plan


def _given(args: argparse.Namespace, option: str) -> str | None:
    return getattr(args, option.strip("-").replace("-", "_"))


def _check_company(args: argparse.Namespace) -> None:
    """Raises `ConfigError` for an option that would change nothing, since what it is of is not there."""
    if _n_disk(args.disk_blocks or "0") == 0:
        for option in _OF_DISK:
            if _given(args, option) is not None:
                raise ConfigError(f"{option}: there is no disk tier without --disk-blocks; give it, or leave this out")
    if args.block_bytes is not None and all(_given(args, f"--{lane}") is None for lane in _LANES):
        raise ConfigError(f"--block-bytes: is for bandwidths, as of --{_LANES[0]}; give one, or leave this out")
    if args.plot is not None and not args.plot.lower().endswith(".svg"):
        raise ConfigError(f"--plot: {args.plot!r} is no SVG, which is all that is drawn; give a name that ends in .svg")


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
