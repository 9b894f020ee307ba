"""Options of `tenuto bench pool`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from tenuto.cli.bench.engines.options import Bounds
from tenuto.config import POLICY_NAMES, Host
from tenuto.errors import ConfigError

GROUP_BLOCKS = 1 << 16
_BLOCKS = Bounds(GROUP_BLOCKS, 1_000_000_000)


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """`None`: not given."""

    policy: str | None = None
    n_blocks: int | None = None

    def as_arguments(self) -> str:
        """As they would be written; empty, or with a leading space."""
        policy = "" if self.policy is None else f" --policy {self.policy}"
        return policy + ("" if self.n_blocks is None else f" --blocks {self.n_blocks}")


def add_pool_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each field of `PoolOptions`."""
    group = parser.add_argument_group(
        "pool", "Bytes of memory per block, times of a block's life, and of matching a prompt of 8192 blocks:"
    )
    group.add_argument(
        "--policy",
        metavar="NAME",
        help=f'of {", ".join(POLICY_NAMES)}, or "module:Class"; unless given {Host().policy!r}, as of every tier',
    )
    group.add_argument(
        "--blocks", metavar="N",
        help=f"in the pool, rounded up to whole groups of {GROUP_BLOCKS:,} (1,048,576); ten million take some 4 GB",
    )  # fmt: skip


def read_pool_options(args: argparse.Namespace) -> PoolOptions:
    """What was given. Raises `ConfigError`: not of this bench, no such policy, a number that can't be."""
    given = {"--policy": args.policy, "--blocks": args.blocks}
    for option, value in given.items():
        if value is not None and args.name != "pool":
            raise ConfigError(f"{option}: is of tenuto bench pool alone; leave it out")
    if args.policy is not None:
        from tenuto.pools.guarded import guarded_policy

        guarded_policy(args.policy, "--policy")
    return PoolOptions(args.policy, None if args.blocks is None else int(_BLOCKS.read("--blocks", args.blocks)))
