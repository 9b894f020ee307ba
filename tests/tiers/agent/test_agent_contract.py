"""What an agent promises as a store, whatever its volumes; and an object store as a volume."""

from __future__ import annotations

import pytest
from obstore.store import LocalStore

from tenuto.testing.blocks import make_blocks
from tenuto.testing.store_contract import Bench, StoreContract
from tenuto.tiers.agent.objects import ObjectStore
from tests.tiers.agent.agent_rig import LAYOUT, folder_at, open_agent, room_for
from tests.tiers.disk_fixtures import wait_until

pytestmark = pytest.mark.contract


def grown(agent, codec):
    """The same with 10 slots: it grows as it is used, so they are used once."""
    bench = Bench(agent, codec)
    for slot in range(10):
        wait_until(lambda: agent.capacity().n_usable > slot or not agent.capacity().is_growing)  # noqa: B023
        if agent.recovered:
            break
        assert bench.write({slot: make_blocks(10, 1, root=codec.namespace)[slot]}) == []
    agent.forget([] if agent.recovered else range(10))
    return agent


class TestHomeAlone(StoreContract):
    layout = LAYOUT

    def make_store(self, folder, codec):
        return grown(open_agent(folder / "home", 16, namespace=codec.namespace), codec)


class TestHomeAndAnotherFolder(StoreContract):
    layout = LAYOUT

    def make_store(self, folder, codec):
        made = open_agent(folder / "home", 4, namespace=codec.namespace)
        made.register_volume("more", folder_at(folder / "more"), room_for(20))
        return grown(made, codec)


class TestObjectsAlone(StoreContract):
    layout = LAYOUT

    def make_store(self, folder, codec):
        bucket = LocalStore(str(folder / "bucket"), mkdir=True)
        return ObjectStore(bucket, "m/owner/rank-0", folder / "listing", codec, 16 * codec.layout.extent_bytes)
