"""Blocks that leave the device come back from the tiers below with every bit, or are misses."""

import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tenuto
from tenuto.config import leaves
from tenuto.errors import ConfigError, FullError, StateError
from tenuto.library import Heap, Layout, Shared
from tenuto.library.configuration import ENGINES_ALONE
from tests.library.library_rig import EXTENT, LAYOUT, TOKENS, fill, n_found, opened, prompt, store

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("kind", ["contiguous", "per layer"])
@pytest.mark.parametrize("n_host", [2, 100])
def test_what_the_device_and_host_memory_have_no_room_for_comes_back_from_disk_and_after_a_restart(
    tmp_path, kind, n_host
):
    layout = Layout(kind, 8, 3, 2, TOKENS, 8, "float32", alignment=256)
    prompts = [prompt(number, 3) for number in range(1, 21)]
    with opened(tmp_path, n_host, layout) as cache:
        for tokens in prompts:
            store(cache, tokens)
        assert [n_found(cache, tokens) for tokens in prompts] == [3] * 20
        assert cache.flush()
        cache.check()
        assert (cache.statistics()["disk.registered"], cache.statistics()["device.cached"]) == (60, 8)
    with opened(tmp_path, n_host, layout) as cache:
        assert cache.statistics()["device.free"] == 8
        assert [n_found(cache, tokens) for tokens in prompts] == [3] * 20
        cache.check()


def test_without_a_disk_blocks_come_back_from_host_memory_while_they_are_there(cache):
    for number in range(1, 9):
        store(cache, prompt(number))
    assert [n_found(cache, prompt(number)) for number in range(1, 9)] == [2] * 8
    for number in range(9, 13):
        store(cache, prompt(number))
    assert sum(n_found(cache, prompt(number)) for number in range(1, 13)) <= 20


def test_a_match_is_the_longest_prefix_of_whole_blocks(cache):
    store(cache, prompt(1, 4))
    assert n_found(cache, prompt(1, 4)[:-1]) == 3
    assert n_found(cache, [*prompt(1, 2), *prompt(2, 2)]) == 2
    assert n_found(cache, prompt(1, 4)[1:]) == 0
    assert n_found(cache, []) == 0


def test_other_salts_and_other_models_share_nothing(tmp_path):
    with opened(tmp_path) as cache:
        store(cache, prompt(1), salt="a")
        assert (n_found(cache, prompt(1)), n_found(cache, prompt(1), "b"), n_found(cache, prompt(1), "a")) == (0, 0, 2)
    with opened(tmp_path, model="another") as cache:
        assert n_found(cache, prompt(1), "a") == 0
    with opened(tmp_path) as cache:
        assert n_found(cache, prompt(1), "a") == 2


def test_a_sequence_goes_on_behind_what_was_matched(cache):
    tokens = prompt(1, 4)
    store(cache, tokens[: 2 * TOKENS])
    with cache.match(tokens) as hit, cache.allocate(2) as blocks:
        blocks.init_sequence(after=hit)
        for block in range(2):
            assert blocks.add_tokens(tokens[(2 + block) * TOKENS :]) == TOKENS
            blocks.commit()
        fill(blocks, tokens, first=2)
        with blocks.register() as read:
            assert (read.start, len(read)) == (2, 2)
    assert n_found(cache, tokens) == 4


def test_the_first_bytes_of_a_block_stay_and_registered_arrays_are_read_only(cache):
    store(cache, prompt(1))
    with cache.allocate(2) as blocks:
        blocks.apply(prompt(1))
        blocks.view(0, 0, 0)[:] = -1
        with blocks.register() as read, pytest.raises(ValueError, match="read-only"):
            read.view(0, 0, 0)[:] = 1
    assert n_found(cache, prompt(1)) == 2


def test_leased_blocks_stay_on_the_device_and_the_rest_of_a_match_is_a_miss(cache):
    store(cache, prompt(1, 8))
    store(cache, prompt(2, 8))
    with cache.match(prompt(2, 8)):
        assert n_found(cache, prompt(1, 8)) == 0
        with pytest.raises(FullError, match=r"^device: 1 blocks wanted, 0 of 8 .*: release leases, give timeout_s, or"):
            cache.allocate()
        with pytest.raises(FullError, match=r"9 blocks wanted, 0 of 8 to be had: open with a larger layout\.n_blocks$"):
            cache.allocate(9, timeout_s=60)
    with cache.match(prompt(2, 3)):
        assert n_found(cache, prompt(1, 8)) == 5
    assert n_found(cache, prompt(1, 8)) == 8


def test_allocate_waits_for_a_lease_to_end(cache):
    blocks = cache.allocate(8)
    timer = threading.Timer(0.05, blocks.discard)
    timer.start()
    cache.allocate(1, timeout_s=30).discard()
    timer.join()


def test_a_damaged_block_is_a_miss_and_what_is_behind_it_too(tmp_path):
    with opened(tmp_path) as cache:
        store(cache, prompt(1, 4))
    (pool,) = tmp_path.glob("*/*/rank-0/pool-00000.kv")
    with pool.open("r+b") as file:
        file.seek(EXTENT + LAYOUT.extent().header_bytes + 10)  # in the second block
        file.write(b"\xff")
    with opened(tmp_path) as cache:
        assert n_found(cache, prompt(1, 4)) == 1
        assert cache.statistics()["corrupt.disk"] == 1
        store(cache, prompt(1, 4))
        assert n_found(cache, prompt(1, 4)) == 4
        cache.check()


def test_after_a_reset_nothing_of_before_is_found_not_even_after_a_restart(tmp_path):
    with opened(tmp_path) as cache:
        store(cache, prompt(1))
        begun = cache.allocate()
        begun.apply(prompt(3, 1))
        cache.reset()
        assert n_found(cache, prompt(1)) == 0
        with begun, pytest.raises(StateError, match="before the cache was reset"):
            begun.register()
        store(cache, prompt(2))
        assert n_found(cache, prompt(2)) == 2
        cache.check()
    with opened(tmp_path) as cache:
        assert (n_found(cache, prompt(1)), n_found(cache, prompt(2))) == (0, 0)


def test_two_caches_on_one_folder_find_what_the_other_wrote_and_closed_ones_say_so(tmp_path):
    one = opened(tmp_path, tiers__disk__poll_s=0.001)
    other = opened(tmp_path, tiers__disk__poll_s=0.001)
    store(one, prompt(1))
    assert one.flush()
    assert n_found(other, prompt(1)) == 2
    one.close()
    one.close()
    with pytest.raises(StateError, match="closed"):
        one.match(prompt(1))
    other.close()


def test_threads_take_turns(tmp_path):
    with opened(tmp_path, n_host=4) as cache:

        def life(number):
            for turn in range(10):
                tokens = prompt(number * 100 + turn, 2)
                with cache.allocate(2, timeout_s=30) as blocks:
                    blocks.apply(tokens)
                    fill(blocks, tokens)
                    blocks.register().release()
                n_found(cache, prompt(number * 100 + turn // 2, 2))

        with ThreadPoolExecutor(6) as threads:  # more than there are blocks for: some wait for others to register
            list(threads.map(life, range(1, 7)))
        assert cache.flush()
        cache.check()
        assert sum(n_found(cache, prompt(number * 100 + turn)) for number in range(1, 7) for turn in range(10)) == 120


def test_a_load_that_takes_too_long_is_a_miss(tmp_path, monkeypatch):
    with opened(tmp_path) as cache:
        store(cache, prompt(1))
    with opened(tmp_path) as cache:
        store_ = cache._core.below._store
        go, read = threading.Event(), store_.read
        monkeypatch.setattr(store_, "read", lambda *given: (go.wait(30), read(*given))[1])
        assert n_found(cache, prompt(1), timeout_s=0.01) == 0
        go.set()
        assert cache.flush()
        assert n_found(cache, prompt(1)) == 2
        cache.check()


def test_a_match_that_is_interrupted_gives_its_blocks_back_once_nothing_writes_them(tmp_path, monkeypatch):
    with opened(tmp_path) as cache:
        store(cache, prompt(1))
    with opened(tmp_path) as cache:
        below = cache._core.below
        go, read, poll = threading.Event(), below._store.read, below._engine.poll
        monkeypatch.setattr(below._store, "read", lambda *given: (go.wait(30), read(*given))[1])

        def interrupted(wait_s=0.0):
            if wait_s and below._engine.n_pending():
                monkeypatch.setattr(below._engine, "poll", poll)
                raise KeyboardInterrupt
            return poll(wait_s)

        monkeypatch.setattr(below._engine, "poll", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.match(prompt(1))
        assert cache.statistics()["device.free"] == 8
        store(cache, prompt(2, 8))
        go.set()
        assert cache.flush()
        assert n_found(cache, prompt(2, 8)) == 8
        assert n_found(cache, prompt(1)) == 2


def test_memory_of_every_kind_holds_blocks(tmp_path):
    shared = Shared()
    layers = [np.zeros(LAYOUT.region_bytes * 4, np.float16) for _ in range(LAYOUT.n_layers)]
    per_layer = Layout("per layer", 8, 3, 2, TOKENS, 8, "float32")
    for options in (
        {"allocator": "heap"},
        {"allocator": shared},
        {"buffer": bytearray(1 << 20)},
        {"buffer": layers, "layout": per_layer},
    ):
        with opened(**options) as cache:
            store(cache, prompt(1))
            store(cache, prompt(2, 8))
            assert n_found(cache, prompt(1)) == 2
    assert shared.fd is not None


@pytest.mark.parametrize("leaf", [leaf for leaf in leaves() if leaf.name in ENGINES_ALONE], ids=lambda leaf: leaf.name)
def test_each_setting_of_an_engine_alone_is_refused_even_at_its_default(leaf):
    assert {leaf.name for leaf in leaves()} >= set(ENGINES_ALONE)
    with pytest.raises(ConfigError, match=rf"^{leaf.name}: does nothing without an engine; leave it out$"):
        tenuto.open_cache(LAYOUT, model="m", settings={leaf.name: leaf.default})


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"tiers.host.capacity": 100}, r"^tiers\.host\.capacity: 100 has no room for one block"),
        ({"tiers.host.capacty": 100}, r"^tiers\.host\.capacty: unknown setting; did you mean tiers\.host\.capacity\?$"),
        ({"runtime.cost_gate": True}, r"^runtime\.cost_gate: does nothing without an engine; leave it out$"),
        ({"model": {"weights": "w"}}, r"^model\.weights: does nothing without an engine; leave it out$"),
        (
            {"runtime": {"metrics_port": 9, "trace_file": "t", "retry_s": 1}},
            r"^runtime\.metrics_port: does nothing [^\n]*\nruntime\.trace_file: does nothing [^\n]*$",
        ),
        ({"tiers.disk.store": "a:B"}, r"^tiers\.disk\.store: there is no disk tier without tiers\.disk\.path; give"),
        ({"layout.block_tokens": 8}, r"^layout\.block_tokens: 8 is not the layout's page_tokens 4; leave it out$"),
    ],
)
def test_wrong_settings_are_one_line(given, line):
    with pytest.raises(ConfigError, match=line):
        tenuto.open_cache(LAYOUT, model="m", settings=given)


@pytest.mark.parametrize("name", ["tiers.host.capacity", "tiers.disk.capacity"])
def test_room_for_no_block_is_refused_with_the_least_that_keeps_one(tmp_path, name):
    with pytest.raises(ConfigError, match=rf"^{name}: 4 KiB has no room for one block of 16 KiB; give") as raised:
        opened(tmp_path, **{name.replace(".", "__"): "4 KiB"})
    assert "layout.block_tokens" not in str(raised.value)
    least = re.search(r"give at least (\d+ KiB)", str(raised.value))[1]
    with opened(tmp_path, **{name.replace(".", "__"): least}) as cache:
        store(cache, prompt(1, 1))
    with opened(tmp_path, **{name.replace(".", "__"): least}) as cache:
        assert n_found(cache, prompt(1, 1)) == 1


def test_settings_in_a_file_that_do_nothing_are_told_too_and_folders_may_be_paths(tmp_path):
    file = tmp_path / "t.toml"
    file.write_text('[runtime]\nonboard = "auto"\n[tiers.device]\nload_programs = 8\n')
    given = {"config": file, "tiers.disk.path": tmp_path / "root", "tiers.disk.stripes": (tmp_path / "b",)}
    with pytest.raises(ConfigError, match=r"t\.toml:2: runtime\.onboard: does nothing without an engine"):
        tenuto.open_cache(LAYOUT, model="m", settings=given | {"tiers.disk.runtime": "striped"})
    file.write_text("[tiers.device]\nload_programs = 8\n")
    with tenuto.open_cache(LAYOUT, model="m", settings=given | {"tiers.disk.runtime": "striped"}) as cache:
        store(cache, prompt(1))
    assert len(list(tmp_path.glob("*/*/*/rank-0"))) == 2


class Odd:
    """No allocator."""


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"allocator": Heap}, r"^allocator: Heap is a class; give one of it: Heap\(\)$"),
        ({"allocator": Odd()}, r"^allocator: <.*Odd.*> can't allocate; give 'heap', 'shared', 'pinned', 'device'$"),
        ({"allocator": "attic"}, r"^allocator: 'attic' is not known; give 'heap'"),
        ({"allocator": "heap", "buffer": bytearray(1 << 20)}, r"^allocator: there is a buffer already; give one of"),
    ],
)
def test_what_is_no_allocator_is_one_line(options, line):
    with pytest.raises(ConfigError, match=line):
        opened(**options)


def test_a_sequence_goes_on_behind_registered_blocks_alone(cache):
    with cache.allocate() as one, cache.allocate() as other:
        one.apply(prompt(1, 1))
        with pytest.raises(StateError, match=r"^cannot continue behind WritableBlocks; give the Blocks that match or"):
            other.init_sequence(after=one)
        assert other.states[0].name == "RESET"


@pytest.mark.parametrize("model", ["", " m", "a\nb"])
def test_a_model_has_a_name(model):
    with pytest.raises(ConfigError, match=r"^model: .* is no name"):
        tenuto.open_cache(LAYOUT, model=model)


def test_a_disk_that_hangs_costs_one_wait_and_then_blocks(tmp_path, monkeypatch):
    go = threading.Event()
    with opened(tmp_path, n_host=4, runtime__load_timeout_s=0.1) as cache:
        store_ = cache._core.below._store
        write = store_.write
        monkeypatch.setattr(store_, "write", lambda items: (go.wait(60), write(items))[1])
        for number in range(1, 40):
            store(cache, prompt(number))
        assert [n_found(cache, prompt(number)) for number in range(36, 40)] == [2] * 4
        assert not cache.flush(timeout_s=0.01)
        go.set()
        assert cache.flush()
        cache.check()
        store(cache, prompt(50, 8))
        assert n_found(cache, prompt(50, 8)) == 8


def test_a_store_that_is_interrupted_leaves_nothing_leased_and_nothing_on_its_way(tmp_path, monkeypatch):
    with opened(tmp_path) as cache:
        device = cache._core.below._movers._device

        def interrupted(*_):
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(device, "gather", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store(cache, prompt(1))
        assert cache.flush(1.0)
        assert cache.statistics()["device.leased"] == 0
        cache.check()
        store(cache, prompt(1))
        store(cache, prompt(2, 8))
        assert n_found(cache, prompt(1)) == 2


def test_in_a_process_that_was_forked_off_a_cache_says_so_and_closes_nothing(tmp_path, monkeypatch):
    with opened(tmp_path) as cache:
        store(cache, prompt(1))
        blocks = cache.allocate()
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: -1)
            for call in (lambda: store(cache, prompt(2)), lambda: cache.match(prompt(1)), cache.flush, cache.reset):
                with pytest.raises(StateError, match="forked"):
                    call()
            cache.close()
        blocks.discard()
        assert n_found(cache, prompt(1)) == 2


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_bytes_are_a_token_each(cache, kind):
    tokens = list(b"\1\0\0\0\2\0\0\0")
    store(cache, kind(tokens))
    assert n_found(cache, tokens) == n_found(cache, kind(tokens)) == 2


@pytest.mark.parametrize("salt", [None, 0, 7, b"a", "\ud800"])
def test_a_salt_is_text(cache, salt):
    store(cache, prompt(1))
    with pytest.raises(StateError, match="salt"):
        cache.match(prompt(1), salt)
    with cache.allocate() as blocks, pytest.raises(StateError, match="salt"):
        blocks.init_sequence(salt)


def test_a_signal_that_closes_the_cache_inside_a_call_ends_the_call_instead_of_waiting_for_it(tmp_path, monkeypatch):
    with opened(tmp_path) as cache:

        def signalled(*_):
            monkeypatch.undo()
            cache.close()  # as a handler does, on the thread that it interrupts

        monkeypatch.setattr(cache._core.below, "turn", signalled)
        with pytest.raises(StateError, match="inside"):
            store(cache, prompt(1))
        store(cache, prompt(1))
        assert n_found(cache, prompt(1)) == 2
