"""One life of an agent: a manager that believes, an advisor that moves, and what must be true after each step."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tenuto.memory.extent import ExtentCodec
from tenuto.testing.files import BROKEN, make_faulty
from tenuto.tiers.agent import moves, room
from tenuto.tiers.agent.bindings import At
from tenuto.tiers.agent.messages import HOME
from tenuto.tiers.disk import growth
from tests.tiers.agent.agent_rig import BLOCKS, LAYOUT, MODEL, Engine, folder_at, room_for
from tests.tiers.disk_fixtures import wait_until

VOLUMES = ("a", "b")


class Life:
    """`held`, of the engine, is what the manager believes; `volume_of` where it was told that blocks are."""

    def __init__(self, root: Path, rng: Random) -> None:
        for module, name in ((moves, "_GROW_S"), (growth, "_RETRY_S"), (room, "_REST_S")):
            setattr(module, name, 0.05)  # what can't be done now is tried again soon
        self.root, self.rng = root, rng
        self.engine = Engine(root / "home", n_home=6, file_slots=2)
        self.volume_of: dict[int, str] = {}
        self.half: set[int] = set()  # slots whose layers were given up half written
        self.is_after_reset = False

    @property
    def agent(self):
        return self.engine.agent

    @property
    def held(self) -> dict[int, int]:
        return self.engine.held

    # -- the manager --------------------------------------------------------------------------------

    def free_number(self) -> int:
        return self.rng.choice([number for number in range(len(BLOCKS)) if number not in self.held.values()])

    def some_slot(self) -> int | None:
        """One to be written: a free one where there is room, else one whose block is evicted."""
        wait_until(lambda: (now := self.agent.capacity()).n_usable > len(self.held) or not now.is_growing)
        now = self.agent.capacity()
        free = [slot for slot in range(now.n_slots) if slot not in self.held]
        if free and now.n_usable > len(self.held | dict.fromkeys(self.half)) and self.rng.random() < 0.8:
            return self.rng.choice(free)
        return self.rng.choice(list(self.held)) if self.held else None

    def write(self, *, fails: bool = False) -> None:
        slot, number = self.some_slot(), self.free_number()
        if slot is None:
            return
        self.half.discard(slot)
        files = self.break_disks() if fails else []
        failures = self.engine.write({slot: number})
        for file in files:
            file.write_errno = 0
        assert fails or failures == []
        if not failures:
            self.volume_of[number] = HOME

    def break_disks(self) -> list:
        """Every write fails from now on."""
        files = [make_faulty(volume) for volume in self.agent._books.room.volumes.values()]
        for file in files:
            file.write_errno = BROKEN
        return files

    def write_by_layers(self, *, to_the_end: bool) -> None:
        slot, number = self.some_slot(), self.free_number()
        if slot is None:
            return
        self.held.pop(slot, None)
        items = self.engine.items({slot: number})
        for layer in range(LAYOUT.n_layers):
            assert self.agent.write_layers(items, (layer, layer + 1)) == []
            if not to_the_end:
                self.half.add(slot)
                return
            self.advise()
        assert self.agent.commit(items) == []
        self.half.discard(slot)
        self.held[slot], self.volume_of[number] = number, HOME

    def forget(self) -> None:
        if self.held:
            self.engine.forget(self.rng.choice(list(self.held)))

    def read_by_layers(self) -> None:
        if not self.held:
            return
        slot = self.rng.choice(list(self.held))
        (item,) = self.engine.items({slot: self.held[slot]}, filled=False)
        for layer in range(LAYOUT.n_layers):
            assert self.agent.read([item], layers=(layer, layer + 1)) == []

    # -- the advisor --------------------------------------------------------------------------------

    def advise(self) -> None:
        """Anything that an advisor may do at any time."""
        self.rng.choice([self.move, self.move, self.drop, self.compact, self.put, self.register, self.unregister])()

    def names(self) -> list[str]:
        return list(self.agent._books.room.volumes)

    def some_hashes(self, most: int = 6) -> list[bytes]:
        return [self.engine.hash(number) for number in self.rng.sample(range(len(BLOCKS)), self.rng.randint(1, most))]

    def move(self) -> None:
        self.settle()
        target, wanted = self.rng.choice(self.names()), self.some_hashes(len(BLOCKS))
        outcome = self.agent.move(wanted, target)
        believed = {self.engine.hash(number) for number in self.held.values()}
        assert not believed.intersection(outcome.absent)

    def drop(self) -> None:
        self.agent.drop(self.some_hashes(2))

    def compact(self) -> None:
        self.agent.compact(self.rng.choice(self.names()))

    def put(self) -> None:
        if self.held and not self.is_after_reset and not self.agent._books._writing:
            slot = self.rng.choice(list(self.held))
            if self.agent.capacity().n_usable > len(self.held) and len(self.names()) > 1:
                extent = self.agent.get(self.engine.hash(self.held[slot])) if not self.lost() else None
                if extent is not None and self.has_room(slot):
                    self.agent.put(extent)

    def lost(self) -> list:
        return self.agent._news.lost

    def has_room(self, slot: int) -> bool:
        (at,) = self.agent._books.where([slot])
        room = self.agent._books.room
        return room.places[at.volume].n_used < room.n_places(at.volume)

    def register(self) -> None:
        name = self.rng.choice(VOLUMES)
        if name not in self.names() and not (self.is_after_reset):
            self.agent.register_volume(name, folder_at(self.root / name), room_for(self.rng.randint(3, 8)))

    def unregister(self) -> None:
        names = [name for name in self.names() if name != HOME]
        in_use = {at.volume for at in self.agent._books.where(self.agent._books._writing | self.half) if at}
        if names and (name := self.rng.choice(names)) not in in_use:
            self.agent.unregister_volume(name)

    # -- both ---------------------------------------------------------------------------------------

    def restart(self) -> None:
        self.settle()
        before = {} if self.is_after_reset else dict(self.held)
        self.engine.codec = ExtentCodec(LAYOUT, MODEL.digest)
        self.engine.restart()
        assert self.held == before
        self.half, self.is_after_reset = set(), False
        self.volume_of = dict.fromkeys(self.held.values(), HOME)

    def reset(self) -> None:
        self.engine.codec = ExtentCodec(LAYOUT, bytes(16))
        self.agent.reset(bytes(16), self.rng.randint(1, 1 << 40))
        self.held.clear()
        self.is_after_reset = True
        for volume in self.agent._books.room.volumes.values():
            wait_until(lambda: volume.n_blocks == 0)  # noqa: B023

    def settle(self) -> None:
        """Hear the news, as a manager does after each step."""
        news = self.agent.take_news()
        numbers = {block.key.hash: number for number, block in enumerate(BLOCKS)}
        lost = {numbers[block] for block in news.lost}
        for key, volume in news.moved:
            self.volume_of[numbers[key.hash]] = volume
        for slot, number in list(self.held.items()):
            if number in lost:
                del self.held[slot]

    def check(self) -> None:
        """All that must be true between two steps."""
        self.settle()
        self.agent.check()
        books = self.agent._books
        listed: dict[int, int] = {}
        numbers = {block.key.hash: number for number, block in enumerate(BLOCKS)}
        for name, volume in books.room.volumes.items():
            assert not books.room.places[name]._pins
            for place, key in volume.blocks_from(0, 1000):
                slot = books.slot_at(At(name, place))
                assert slot is not None, f"{name}:{place} is listed, but nobody's"
                assert slot not in listed
                listed[slot] = numbers[key.hash]
            used = {books.slot_at(At(name, place)) for place in books.room.places[name].held()}
            assert used <= listed.keys() | self.half, "a place is used by nobody"
            assert books.room.places[name].n_used <= volume.capacity().n_slots
        assert listed == self.held
        assert {n: self.volume_of[n] for n in self.held.values()} == {
            number: at.volume for number, at in zip(self.held.values(), books.where(self.held), strict=True)
        }
        assert not books.moving | books._owed | books._bindings._reserved
        assert self.agent.capacity().n_usable <= sum(one.capacity().n_slots for one in books.room.volumes.values())
        for slot in self.rng.sample(list(self.held), min(3, len(self.held))):
            assert self.engine.read(slot) == [None]

    def end(self) -> None:
        self.check()
        for slot in self.held:
            assert self.engine.read(slot) == [None]
        self.restart()
        self.check()
        self.agent.close()
