"""A cache against a dictionary of what was registered, through any sequence of steps, restarts among them."""

import tempfile

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tenuto.errors import FullError
from tests.library.library_rig import LAYOUT, TOKENS, fill, n_found, opened

pytestmark = pytest.mark.unit

chains = st.lists(st.integers(1, 2), min_size=1, max_size=5)
numbers = st.integers(0, 9)


def tokens_of(chain):
    """Chains that begin alike share blocks; the first token of each block tells the whole way to it."""
    found, way = [], 0
    for kind in chain:
        way = 3 * way + kind
        found += [way, *range(TOKENS - 1)]
    return found


class CacheModel(RuleBasedStateMachine):
    """Nothing that fits is ever lost: the disk has room for every block there can be."""

    has_disk = True

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="tenuto-model-")
        self.known = set()  # chains whose last block was registered
        self.held = []
        self.open()

    def open(self):
        self.cache = opened(self.folder.name if self.has_disk else None, n_host=3)

    @rule(chain=chains, salt=st.sampled_from(["", "s"]), is_held=st.booleans(), one_by_one=st.booleans())
    def store(self, chain, salt, is_held, one_by_one):
        tokens = tokens_of(chain)
        try:
            blocks = self.cache.allocate(len(chain))
        except FullError:
            assert self.cache._core.pool.statistics().leased > LAYOUT.n_blocks - len(chain)
            return
        with blocks:
            if one_by_one:
                blocks.init_sequence(salt)
                for at in range(len(chain)):
                    assert blocks.add_tokens(tokens[at * TOKENS :]) == TOKENS
                    blocks.commit()
            else:
                blocks.apply(tokens, salt)
            fill(blocks, tokens)
            if one_by_one:
                blocks.register(len(chain) // 2).release()
            read = blocks.register()
        self.known |= {(salt, *chain[:n]) for n in range(1, len(chain) + 1)}
        self.hold(read, is_held)

    @rule(chain=chains, salt=st.sampled_from(["", "s"]), is_held=st.booleans())
    def match(self, chain, salt, is_held):
        tokens = tokens_of(chain)
        found = n_found(self.cache, tokens, salt)
        most = max((n for n in range(len(chain) + 1) if n == 0 or (salt, *chain[:n]) in self.known), default=0)
        n_leased = self.cache._core.pool.statistics().leased
        if self.has_disk and n_leased + len(chain) <= LAYOUT.n_blocks:
            assert found == most
        assert found <= most
        self.hold(self.cache.match(tokens, salt), is_held)

    @precondition(lambda self: self.held)
    @rule(number=numbers, is_kept=st.booleans())
    def go_on(self, number, is_kept):
        hit = self.held[number % len(self.held)]
        try:
            blocks = self.cache.allocate(1)
        except FullError:
            return
        with blocks:
            blocks.init_sequence(after=hit)
            if is_kept:
                blocks.add_token(7)

    @precondition(lambda self: self.held)
    @rule(number=numbers)
    def release(self, number):
        self.held.pop(number % len(self.held)).release()

    @rule()
    def flush(self):
        assert self.cache.flush()

    @rule()
    def reset(self):
        self.cache.reset()
        self.known.clear()
        self.after_reset = True

    @rule()
    def restart(self):
        while self.held:
            self.held.pop().release()
        self.cache.close()
        if not self.has_disk or getattr(self, "after_reset", False):
            self.known.clear()  # what came behind a reset is not trusted by another process
        self.after_reset = False
        self.open()

    def hold(self, read, is_held):
        if is_held and len(self.held) < 2:
            self.held.append(read)
        else:
            read.release()

    @invariant()
    def books_balance(self):
        self.cache.check()

    def teardown(self):
        for read in self.held:
            read.release()
        assert self.cache.flush()
        self.cache.check()
        assert self.cache._core.pool.statistics().leased == 0
        self.cache.close()
        self.folder.cleanup()


class WithoutADisk(CacheModel):
    has_disk = False


CacheModel.TestCase.settings = settings(max_examples=25, stateful_step_count=30)
WithoutADisk.TestCase.settings = settings(max_examples=25, stateful_step_count=30)
TestWithADisk = CacheModel.TestCase
TestWithoutADisk = WithoutADisk.TestCase
