"""A manager's whole life, told to a router: it is told what the pools hold."""

import pytest
from hypothesis import settings
from hypothesis.stateful import invariant

from tenuto.events.wire import DynamoEvents, router_blocks
from tests.manager.manager_rig import FactOracle, Rig
from tests.manager.test_manager_model import BLOCK_TOKENS, ManagerModel

pytestmark = pytest.mark.unit


class RouterOracle(FactOracle):
    """What a router believes."""

    def __init__(self):
        super().__init__()
        self.events = DynamoEvents(BLOCK_TOKENS, BLOCK_TOKENS)
        self.told = set()

    def hear(self, facts):
        super().hear(facts)
        self.follow(self.events.take(facts))

    def follow(self, events):
        for event in events:
            if hasattr(event.data, "stored"):
                self.told.update(block.block_hash for block in event.data.stored.blocks)
            else:
                self.told.difference_update(event.data.removed.block_hashes)


class RouterRig(Rig):
    oracle = RouterOracle


class RouterModel(ManagerModel):
    make_rig = RouterRig

    def __init__(self):
        super().__init__()
        self.chains = {}

    def chain(self, tokens):
        chain = super().chain(tokens)
        self.chains[self.epoch, tuple(tokens)] = chain
        return chain

    @invariant()
    def a_router_is_told_what_the_pools_hold(self):
        if not hasattr(self, "rig"):
            return
        self.rig.check()
        oracle, pools = self.rig.facts, self.rig.pools().values()
        expected = set()
        for chain in self.chains.values():
            blocks = [chain.block(index) for index in range(len(chain.hashes))]
            oracle.follow(oracle.events.learn(blocks))  # as when a request asks for what a peer or a restart brought
            tokens = b"".join(block.token_bytes for block in blocks)
            for name, block in zip(chain.hashes, router_blocks(tokens, BLOCK_TOKENS), strict=True):
                if not any(name in pool for pool in pools):
                    break
                expected.add(block.sequence_hash)
        oracle.events.check()
        assert oracle.told == expected


TestRouterModel = RouterModel.TestCase
TestRouterModel.settings = settings(max_examples=25, stateful_step_count=30)
