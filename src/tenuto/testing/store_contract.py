"""What every `Store` promises.

A store of yours, to be named in `tiers.disk.store`, is tested by pytest so::

    from tenuto.testing.store_contract import StoreContract


    class TestMine(StoreContract):
        def make_store(self, folder, codec):
            return MyStore(folder, codec, 16 * codec.layout.extent_bytes)
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tenuto.errors import Cause
from tenuto.memory.arena import HostArena
from tenuto.memory.extent import ExtentCodec
from tenuto.memory.layout import ExtentLayout
from tenuto.testing.blocks import NAMESPACE, SMALL, fill_extent, make_blocks, payload_of
from tenuto.tiers.store import OWN, Failure, SlotIO, Store
from tenuto.tokens import BlockKey, TokenBlock

BLOCKS = make_blocks(8)
LOST = (Cause.CORRUPT, Cause.MISSING)


class Bench:
    """A store, and buffers to move blocks with. Block i has buffer i."""

    def __init__(self, store: Store, codec: ExtentCodec) -> None:
        self.store = store
        self.codec = codec
        self.arena = HostArena(2 * len(BLOCKS), codec.layout.extent_bytes)

    def write(self, slots: dict[int, TokenBlock]) -> list[Failure]:
        """Write blocks, by slot, in one batch."""
        return self.store.write(self.items(slots))

    def items(self, slots: dict[int, TokenBlock]) -> list[SlotIO]:
        """Blocks to write, in buffers, by slot."""
        items = [SlotIO(slot, block.key, self.arena.slot(at)) for at, (slot, block) in enumerate(slots.items())]
        for item, block in zip(items, slots.values(), strict=True):
            fill_extent(self.codec, item.buffer, block)
        return items

    def read(self, slots: dict[int, TokenBlock], volume: str = OWN) -> list[Cause | None]:
        """Read blocks, by slot, in one batch: the cause of each failure. Wrong bytes fail the test."""
        buffers = [self.arena.slot(len(BLOCKS) + at) for at in range(len(slots))]
        for buffer in buffers:
            buffer[:] = b"\xa5" * len(buffer)
        items = [SlotIO(slot, block.key, buffer) for (slot, block), buffer in zip(slots.items(), buffers, strict=True)]
        causes: list[Cause | None] = [None] * len(items)
        for failure in self.store.read(items, volume):
            causes[failure.index] = failure.cause
        for cause, block, buffer in zip(causes, slots.values(), buffers, strict=True):
            assert cause or bytes(buffer[self.codec.layout.header_bytes :]) == payload_of(self.codec.layout, block)
            assert cause or self.codec.read_block(buffer) == block
        return causes


class WhileOpenContract:
    """What a store promises from its opening to its end; all there is for one that forgets then."""

    layout: ExtentLayout = SMALL

    def make_store(self, folder: Path, codec: ExtentCodec) -> Store:
        """A store with at least 8 slots that can be written now; `folder` is yours, and empty at first.

        Called again for the same folder once the store was closed, it opens what is there.
        """
        raise NotImplementedError

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[Bench]:
        """A store that is closed afterwards."""
        codec = ExtentCodec(self.layout, NAMESPACE)
        bench = Bench(self.make_store(tmp_path, codec), codec)
        yield bench
        bench.store.close()

    def test_has_the_slots_it_says(self, bench: Bench) -> None:
        """Its last slot is as good as its first."""
        last = bench.store.capacity().n_slots - 1
        assert last >= 7
        assert bench.write({last: BLOCKS[0]}) == []
        assert bench.read({last: BLOCKS[0]}) == [None]

    def test_gives_back_every_bit_that_was_written(self, bench: Bench) -> None:
        """A batch, in any order of slots."""
        where = dict(zip([5, 0, 7, 2], BLOCKS[:4], strict=True))
        assert bench.write(where) == []
        assert bench.read(where) == [None] * 4
        assert bench.read({2: BLOCKS[3]}) == [None]

    def test_writing_leaves_the_payload_in_the_buffer_alone(self, bench: Bench) -> None:
        """Others read that host slot meanwhile."""
        bench.write({1: BLOCKS[1]})
        assert bytes(bench.arena.slot(0)[self.layout.header_bytes :]) == payload_of(self.layout, BLOCKS[1])

    def test_empty_batches_mean_nothing(self, bench: Bench) -> None:
        """No items, no failures."""
        assert bench.write({}) == []
        assert bench.read({}) == []
        bench.store.forget([])

    def test_an_empty_slot_holds_no_block(self, bench: Bench) -> None:
        """It is a loss, so that whoever believed in it forgets it."""
        assert bench.read({3: BLOCKS[0]})[0] in LOST

    def test_another_block_than_the_expected_one_is_never_given(self, bench: Bench) -> None:
        """The slot was reused; the reader did not know."""
        bench.write({3: BLOCKS[0]})
        assert bench.read({3: BLOCKS[1]})[0] in LOST

    def test_a_slot_written_again_holds_the_new_block_only(self, bench: Bench) -> None:
        """What it held before is forgotten."""
        bench.write({3: BLOCKS[0]})
        assert bench.write({3: BLOCKS[1]}) == []
        assert bench.read({3: BLOCKS[1]}) == [None]
        assert bench.read({3: BLOCKS[0]})[0] in LOST

    def test_a_block_that_fails_costs_no_other_block(self, bench: Bench) -> None:
        """Failures carry the index of their item; the rest of the batch is done."""
        bench.write({0: BLOCKS[0], 2: BLOCKS[2], 4: BLOCKS[4]})
        causes = bench.read({0: BLOCKS[0], 1: BLOCKS[1], 2: BLOCKS[3], 4: BLOCKS[4]})
        assert causes[0] is None
        assert causes[1] in LOST
        assert causes[2] in LOST
        assert causes[3] is None

    def test_blocks_may_be_written_and_read_layer_by_layer(self, bench: Bench) -> None:
        """They are there when they are committed, as if written whole; each read fills what it was asked for alone."""
        layout = self.layout
        where = {0: BLOCKS[2], 3: BLOCKS[3]}
        bench.write({0: BLOCKS[0], 1: BLOCKS[1]})
        items = bench.items(where)
        for layer in range(layout.n_layers):
            assert bench.store.write_layers(items, (layer, layer + 1)) == []
            assert set(bench.read({0: BLOCKS[0], 3: BLOCKS[3]})) <= set(LOST)
        assert bench.store.commit(items) == []
        assert bench.read({0: BLOCKS[2], 1: BLOCKS[1], 3: BLOCKS[3]}) == [None] * 3
        buffers = [bench.arena.slot(len(BLOCKS) + at) for at in range(2)]
        for buffer in buffers:
            buffer[:] = b"\xa5" * len(buffer)
        items = [SlotIO(slot, block.key, buffer) for (slot, block), buffer in zip(where.items(), buffers, strict=True)]
        for layer in range(layout.n_layers):
            assert bench.store.read(items, layers=(layer, layer + 1)) == []
            n_bytes = (layer + 1) * layout.segment_bytes
            for block, buffer in zip(where.values(), buffers, strict=True):
                payload = buffer[layout.header_bytes :]
                assert bytes(payload[:n_bytes]) == payload_of(layout, block)[:n_bytes]
                assert set(payload[n_bytes:]) <= {0xA5}
        wrong = [SlotIO(0, BLOCKS[1].key, buffers[0]), items[1]]
        failures = bench.store.read(wrong, layers=(0, 1))
        assert [(failure.index, failure.cause in LOST) for failure in failures] == [(0, True)]

    def test_a_forgotten_slot_can_be_used_again(self, bench: Bench) -> None:
        """Forgetting is no failure even where there was nothing."""
        bench.write({0: BLOCKS[0], 1: BLOCKS[1]})
        bench.store.forget([0, 6])
        assert bench.read({1: BLOCKS[1]}) == [None]
        assert bench.write({0: BLOCKS[2]}) == []
        assert bench.read({0: BLOCKS[2]}) == [None]

    def test_after_a_reset_nothing_of_before_is_given(self, bench: Bench) -> None:
        """Not even a block whose bytes are still there."""
        bench.write({0: BLOCKS[0], 1: BLOCKS[1]})
        bench.store.reset(bytes(16), 77)
        bench.codec = ExtentCodec(self.layout, bytes(16))
        causes = bench.read({0: BLOCKS[0], 1: BLOCKS[1]})
        assert all(cause in LOST for cause in causes)

    def test_after_a_reset_it_stores_for_the_new_namespace(self, bench: Bench) -> None:
        """And goes on as before."""
        bench.write({0: BLOCKS[0]})
        bench.store.reset(bytes(16), 77)
        bench.codec = ExtentCodec(self.layout, bytes(16))
        later = make_blocks(1, root=bytes(16))
        assert bench.write({0: later[0]}) == []
        assert bench.read({0: later[0]}) == [None]

    def test_an_unknown_volume_is_a_failure_of_every_block(self, bench: Bench) -> None:
        """Another engine's folder may be gone at any time."""
        bench.write({0: BLOCKS[0]})
        assert None not in bench.read({0: BLOCKS[0], 1: BLOCKS[1]}, "nobody")

    def test_many_threads_may_read_and_write_at_once(self, bench: Bench) -> None:
        """Each its own slots, eight rounds."""
        benches = [Bench(bench.store, bench.codec) for _ in range(4)]
        faults: list[object] = []

        def work(number: int) -> None:
            mine = benches[number]
            slots = (2 * number, 2 * number + 1)
            for turn in range(8):
                where = {slot: BLOCKS[(slot + turn) % 8] for slot in slots}
                faults.extend(mine.write(where))
                faults.extend(cause for cause in mine.read(where) if cause)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert faults == []


class StoreContract(WhileOpenContract):
    """What a store in `tiers.disk.store` promises. Subclass it, give `make_store`, and pytest runs the rest."""

    def test_opened_again_it_lists_and_gives_what_it_held(self, bench: Bench, tmp_path: Path) -> None:
        """All that was written or committed and not forgotten, oldest first; nothing else."""
        for slot in (5, 0, 2, 7):
            assert bench.write({slot: BLOCKS[slot]}) == []
        assert bench.write({5: BLOCKS[1]}) == []
        bench.store.forget([2])
        layers = (0, self.layout.n_layers)
        for slot in (3, 4):
            assert bench.store.write_layers(bench.items({slot: BLOCKS[slot]}), layers) == []
        assert bench.store.commit(bench.items({4: BLOCKS[4]})) == []
        self.reopen(bench, tmp_path)
        held = {0: BLOCKS[0], 7: BLOCKS[7], 5: BLOCKS[1], 4: BLOCKS[4]}
        assert list(recovered_by(bench.store)) == [(slot, block.key) for slot, block in held.items()]
        assert bench.read(held) == [None] * 4
        assert bench.read({3: BLOCKS[3]})[0] in LOST

    def test_opened_again_after_a_reset_it_holds_nothing(self, bench: Bench, tmp_path: Path) -> None:
        """Neither of before, nor of the namespace that ended with its process."""
        bench.write({0: BLOCKS[0], 1: BLOCKS[1]})
        before, bench.codec = bench.codec, ExtentCodec(self.layout, bytes(16))
        bench.store.reset(bytes(16), 77)
        assert bench.write({2: make_blocks(1, root=bytes(16))[0]}) == []
        bench.codec = before
        self.reopen(bench, tmp_path)
        assert list(recovered_by(bench.store)) == []

    def reopen(self, bench: Bench, folder: Path) -> None:
        """Close the store, and open it as the next process does."""
        bench.store.close()
        bench.store = self.make_store(folder, bench.codec)


def recovered_by(store: Store) -> Sequence[tuple[int, BlockKey]]:
    """What a store says that it held when it was opened. One that does not say fails the test."""
    found: Sequence[tuple[int, BlockKey]] | None = getattr(store, "recovered", None)
    assert found is not None, "it has no `recovered`: give it one, a list of (slot, key), oldest first"
    return found
