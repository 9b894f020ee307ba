"""A step's transfers as loads and stores by layers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tenuto.transfers.plan import Route, Transfer


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Blocks from host slots into pages; with `read`, they come into their host slots from a store first.

    `read` has the same blocks as `load`, in the same order.
    """

    load: Transfer
    read: Transfer | None = None

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """In the order in which they end."""
        return (self.load,) if self.read is None else (self.read, self.load)


@dataclass(frozen=True, slots=True)
class StorePlan:
    """Blocks from pages into host slots, and, with `write`, some of them on into a store's slots."""

    stage: Transfer
    write: Transfer | None = None

    @property
    def written(self) -> tuple[int, ...]:
        """The blocks of `stage` that `write` has, in its order."""
        if self.write is None:
            return ()
        at = {key.hash: index for index, key in enumerate(self.stage.keys)}
        return tuple(at[key.hash] for key in self.write.keys)


def plan_loads(transfers: Sequence[Transfer]) -> tuple[list[LoadPlan], list[Transfer]]:
    """(what can go layer by layer, the rest): loads from host slots, each with the read that it waits for.

    A load that waits for anything else is of the rest, and so is one that has no host slots.
    """
    by_id = {transfer.id: transfer for transfer in transfers}
    plans: list[LoadPlan] = []
    for transfer in transfers:
        if transfer.route is not Route.HOST_TO_DEVICE:
            continue
        before = [by_id.get(number) for number in transfer.after]
        if not before:
            plans.append(LoadPlan(transfer))
        elif len(before) == 1 and (read := before[0]) is not None and read.keys == transfer.keys:
            plans.append(LoadPlan(transfer, read))
    return plans, _without(transfers, {one.id for plan in plans for one in plan.transfers})


def plan_stores(transfers: Sequence[Transfer]) -> tuple[list[StorePlan], list[Transfer]]:
    """(what can go layer by layer, the rest): stores into host slots, each with the write that waits for it."""
    writes = {transfer.after: transfer for transfer in transfers if transfer.route is Route.HOST_TO_DISK}
    plans: list[StorePlan] = []
    for transfer in transfers:
        if transfer.route is Route.DEVICE_TO_HOST:
            write = writes.get((transfer.id,))
            is_of_it = write is not None and set(write.keys) <= set(transfer.keys)
            plans.append(StorePlan(transfer, write if is_of_it else None))
    taken = {plan.stage.id for plan in plans} | {plan.write.id for plan in plans if plan.write is not None}
    return plans, _without(transfers, taken)


def _without(transfers: Sequence[Transfer], taken: set[int]) -> list[Transfer]:
    return [transfer for transfer in transfers if transfer.id not in taken]
