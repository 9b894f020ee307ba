"""Stores that fail, or block, when told to. They wrap any store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from tenuto.errors import Cause, StoreError
from tenuto.tiers.store import OWN, Capacity, Failure, Layers, SlotIO, Store

Op = Literal["read", "write", "commit", "forget"]


@dataclass(slots=True)
class _Fault:
    """`slots` None: all; `n_left` None: for ever."""

    op: Op
    cause: Cause
    slots: frozenset[int] | None
    n_left: int | None


class FaultyStore:
    """Fails chosen operations with a chosen cause; what does not fail reaches the store below."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._faults: list[_Fault] = []

    def fail(self, op: Op, cause: Cause, slots: Collection[int] | None = None, n_times: int | None = None) -> None:
        """From now on `op` fails, on these slots (None: on all), `n_times` blocks long (None: until `heal`)."""
        with self._lock:
            self._faults.append(_Fault(op, cause, None if slots is None else frozenset(slots), n_times))

    def heal(self) -> None:
        """Nothing fails any more."""
        with self._lock:
            self._faults.clear()

    def capacity(self) -> Capacity:
        """See `Store`."""
        return self.store.capacity()

    def write(self, items: Sequence[SlotIO]) -> list[Failure]:
        """See `Store`."""
        return self._some("write", items, self.store.write)

    def write_layers(self, items: Sequence[SlotIO], layers: Layers) -> list[Failure]:
        """See `Store`."""
        return self._some("write", items, lambda good: self.store.write_layers(good, layers))

    def commit(self, items: Sequence[SlotIO]) -> list[Failure]:
        """See `Store`."""
        return self._some("commit", items, self.store.commit)

    def read(self, items: Sequence[SlotIO], volume: str = OWN, layers: Layers | None = None) -> list[Failure]:
        """See `Store`."""
        return self._some("read", items, lambda good: self.store.read(good, volume, layers))

    def forget(self, slots: Sequence[int]) -> None:
        """See `Store`."""
        self._all("forget", slots)
        self.store.forget(slots)

    def reset(self, namespace: bytes, epoch: int) -> None:
        """See `Store`."""
        self.store.reset(namespace, epoch)

    def close(self) -> None:
        """See `Store`."""
        self.store.close()

    def _some(self, op: Op, items: Sequence[SlotIO], run: Callable[[Sequence[SlotIO]], list[Failure]]) -> list[Failure]:
        causes = [self._cause(op, item.slot) for item in items]
        good = [index for index, cause in enumerate(causes) if cause is None]
        below = run([items[index] for index in good]) if good else []
        ours = [Failure(index, cause, f"injected into {op}") for index, cause in enumerate(causes) if cause]
        return sorted(
            [*ours, *(Failure(good[f.index], f.cause, f.message) for f in below)], key=lambda failure: failure.index
        )

    def _all(self, op: Op, slots: Sequence[int]) -> None:
        for slot in slots:
            cause = self._cause(op, slot)
            if cause is not None:
                raise StoreError(cause, f"injected into {op}")

    def _cause(self, op: Op, slot: int) -> Cause | None:
        with self._lock:
            for fault in self._faults:
                if fault.op == op and fault.n_left != 0 and (fault.slots is None or slot in fault.slots):
                    if fault.n_left is not None:
                        fault.n_left -= 1
                    return fault.cause
        return None


class SlowStore:
    """Blocks chosen operations before they reach the store below, until they are let through.

    A test holds an operation, waits until somebody is blocked in it, looks around, and lets it go: no sleeps.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._changed = threading.Condition()
        self._held: dict[Op, int] = {}  # calls that may still pass
        self._n_blocked: dict[Op, int] = {}

    def hold(self, op: Op) -> None:
        """Calls of `op` block from now on."""
        with self._changed:
            self._held.setdefault(op, 0)

    def let_go(self, op: Op | None = None, n: int | None = None) -> None:
        """Let `n` calls of `op` through (None: of everything; all), whether they are blocked already or still come."""
        with self._changed:
            chosen: list[Op] = list(self._held) if op is None else [op]
            for held in chosen:
                if n is None:
                    self._held.pop(held, None)
                elif held in self._held:
                    self._held[held] += n
            self._changed.notify_all()

    def wait_blocked(self, op: Op, n: int = 1, timeout_s: float = 30.0) -> None:
        """Wait until `n` calls are blocked in `op`. Raises `TimeoutError`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._n_blocked.get(op, 0) >= n, timeout_s):
                raise TimeoutError(f"{self._n_blocked.get(op, 0)} of {n} calls came to {op}")

    def capacity(self) -> Capacity:
        """See `Store`."""
        return self.store.capacity()

    def write(self, items: Sequence[SlotIO]) -> list[Failure]:
        """See `Store`."""
        self._wait("write")
        return self.store.write(items)

    def write_layers(self, items: Sequence[SlotIO], layers: Layers) -> list[Failure]:
        """See `Store`."""
        self._wait("write")
        return self.store.write_layers(items, layers)

    def commit(self, items: Sequence[SlotIO]) -> list[Failure]:
        """See `Store`."""
        self._wait("commit")
        return self.store.commit(items)

    def read(self, items: Sequence[SlotIO], volume: str = OWN, layers: Layers | None = None) -> list[Failure]:
        """See `Store`."""
        self._wait("read")
        return self.store.read(items, volume, layers)

    def forget(self, slots: Sequence[int]) -> None:
        """See `Store`."""
        self._wait("forget")
        self.store.forget(slots)

    def reset(self, namespace: bytes, epoch: int) -> None:
        """See `Store`."""
        self.store.reset(namespace, epoch)

    def close(self) -> None:
        """See `Store`."""
        self.let_go()
        self.store.close()

    def _wait(self, op: Op) -> None:
        with self._changed:
            self._n_blocked[op] = self._n_blocked.get(op, 0) + 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._held.get(op, 1) > 0)
            self._n_blocked[op] -= 1
            if op in self._held:
                self._held[op] -= 1
