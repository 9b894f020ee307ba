"""An agent over small volumes, driven as a manager does: a slot holds one block, and is leased while it is used."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tenuto.memory.arena import HostArena
from tenuto.memory.extent import ExtentCodec
from tenuto.memory.layout import Dtype, ExtentLayout
from tenuto.testing.blocks import fill_extent, make_blocks, payload_of
from tenuto.tiers.agent import StorageAgent
from tenuto.tiers.agent.agent import Identity
from tenuto.tiers.disk import DiskSettings, DiskStore
from tenuto.tiers.disk.instance import claim
from tenuto.tiers.disk.quota import Quota
from tenuto.tiers.store import SlotIO
from tenuto.tokens import Namespace
from tests.tiers.disk_fixtures import wait_until

LAYOUT = ExtentLayout(block_tokens=16, layers=(0, 2), heads=(0, 8), k_dim=128, v_dim=128, dtype=Dtype.FLOAT32)
EXTENT = LAYOUT.extent_bytes  # 260 KiB or so: more than manifests take
MODEL = Namespace("m", "config", "weights", "float32", "float32", "none", 16, 2, 2, 16, 16)
BLOCKS = make_blocks(64, root=MODEL.digest)


def open_agent(
    root: Path, n_home: int = 16, owner: str = "engine", layout=LAYOUT, namespace: bytes = b"", file_slots: int = 4
) -> StorageAgent:
    """An agent whose home volume has room for about `n_home` blocks."""
    codec = ExtentCodec(layout, namespace or MODEL.digest)
    mine = claim(root, MODEL, owner, 0)
    settings = DiskSettings(Quota(root, room_for(n_home, layout.extent_bytes)), file_slots * layout.extent_bytes, 2)
    return StorageAgent(DiskStore(mine, codec, settings), codec, Identity(MODEL, "engine"))


def room_for(n_blocks: int, extent_bytes: int = EXTENT) -> int:
    """A capacity for about as many blocks, with what is spared and the manifest."""
    return (n_blocks * extent_bytes + (200 << 10)) * 16 // 15


def folder_at(folder: Path) -> str:
    """A folder that is there: a volume is refused where there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)


class Engine:
    """Its agent, and buffers; `held` is what it believes to be where."""

    def __init__(self, root: Path, **options) -> None:
        self.root, self.options = root, options
        self.agent = open_agent(root, **options)
        self.codec = ExtentCodec(LAYOUT, MODEL.digest)
        self.arena = HostArena(16, EXTENT)
        self.held: dict[int, int] = dict(self.found())

    def found(self):
        """(slot, block number) of what was recovered."""
        numbers = {block.key.hash: number for number, block in enumerate(BLOCKS)}
        return [(slot, numbers[key.hash]) for slot, key in self.agent.recovered]

    def restart(self) -> None:
        self.agent.close()
        self.agent = open_agent(self.root, **self.options)
        self.held = dict(self.found())

    def items(self, where: dict[int, int], *, filled: bool = True) -> list[SlotIO]:
        items = [
            SlotIO(slot, BLOCKS[number].key, self.arena.slot(at)) for at, (slot, number) in enumerate(where.items())
        ]
        for item, number in zip(items, where.values(), strict=True):
            item.buffer[:] = b"\xa5" * EXTENT
            if filled:
                fill_extent(self.codec, item.buffer, BLOCKS[number])
        return items

    def write(self, where: dict[int, int]) -> list:
        """Write blocks by slot; the failures."""
        for slot in where:
            self.held.pop(slot, None)
        failures = self.agent.write(self.items(where))
        failed = {failure.index for failure in failures}
        self.held |= {slot: number for at, (slot, number) in enumerate(where.items()) if at not in failed}
        return failures

    def fill(self, slots: Iterable[int], first: int = 0) -> None:
        """Write block `first` + slot into each, one by one, once there is room for it."""
        for slot in slots:
            wait_until(lambda: (now := self.agent.capacity()).n_usable > len(self.held) or not now.is_growing)
            assert self.write({slot: first + slot}) == []

    def forget(self, *slots: int) -> None:
        self.agent.forget(slots)
        for slot in slots:
            self.held.pop(slot, None)

    def read(self, *slots: int) -> list:
        """The causes of what fails; wrong bytes fail the test."""
        items = self.items({slot: self.held[slot] for slot in slots}, filled=False)
        causes = [None] * len(items)
        for failure in self.agent.read(items):
            causes[failure.index] = failure.cause
        for cause, slot, item in zip(causes, slots, items, strict=True):
            assert cause or bytes(item.buffer[LAYOUT.header_bytes :]) == payload_of(LAYOUT, BLOCKS[self.held[slot]])
        return causes

    def check(self) -> None:
        """All that is held is read right, and the books balance."""
        for slot in self.held:
            assert self.read(slot) == [None], f"slot {slot}"
        self.agent.check()

    def volumes(self) -> dict[str, int]:
        """Blocks of each volume."""
        return {volume.name: volume.n_blocks for volume in self.agent.describe().volumes}

    def hash(self, number: int) -> bytes:
        return BLOCKS[number].key.hash
