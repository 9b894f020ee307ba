"""Classes of others: what is wrong with a name is one line, and the examples keep the contracts."""

import sys
from pathlib import Path

import pytest
import torch

from tenuto.config import load_config
from tenuto.connectors.session import Setup, Worker
from tenuto.errors import Cause, ConfigError, StoreError
from tenuto.memory.arena import HostArena
from tenuto.memory.extent import ExtentCodec
from tenuto.plugins import load, methods_of
from tenuto.pools import LRU, Policy
from tenuto.testing.blocks import NAMESPACE as STORED_AS
from tenuto.testing.blocks import SMALL, fill_extent, make_blocks
from tenuto.testing.memory_store import MemoryStore
from tenuto.testing.policy_contract import PolicyContract
from tenuto.testing.store_contract import Bench, StoreContract
from tenuto.tiers.disk.foreign import ForeignStore
from tenuto.tiers.disk.instance import claim
from tenuto.tiers.disk.opening import load_store, open_disk
from tenuto.tiers.store import Capacity, SlotIO, Store
from tests.library.library_rig import LAYOUT, n_found, opened, prompt, store
from tests.session import session_rig
from tests.tiers.disk_fixtures import LAYOUT as EXTENTS
from tests.tiers.disk_fixtures import NAMESPACE

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SQLITE = "sqlite_store:SqliteStore"


@pytest.fixture(autouse=True)
def _examples_can_be_imported(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.contract
class TestSqliteStore(StoreContract):
    def make_store(self, folder, codec):
        return load(SQLITE, "tiers.disk.store", Store)(folder, codec, 16 * codec.layout.extent_bytes)


@pytest.mark.contract
class TestSqliteStoreAsATier(StoreContract):
    def make_store(self, folder, codec):
        disk = load_config({"tiers": {"disk": {"path": str(folder), "capacity": "8 MiB", "store": SQLITE}}}).tiers.disk
        return open_disk(disk, NAMESPACE, codec, "engine")


@pytest.mark.contract
class TestFifo(PolicyContract):
    def make_policy(self):
        return load("fifo_policy:Fifo", "tiers.host.policy", Policy)()


@pytest.mark.unit
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*_[sp]*.py")), ids=lambda path: path.name)
def test_an_example_of_a_plugin_is_short(path):
    assert len(path.read_text("utf-8").splitlines()) < 80


MODULE = """
from pathlib import Path
class Half:
    def capacity(self): ...
    def write(self, items): ...
    read = 5
value = 3
"""


@pytest.mark.unit
@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("", "s: '' is not \"module:Class\"; give"),
        ("module.Class", "s: 'module.Class' is not \"module:Class\""),
        ("a b:C", "s: 'a b:C' is not"),
        ("nowhere.to_be:Found", "s: 'nowhere.to_be' can't be imported (No module named 'nowhere'); install"),
        ("needy:Half", "s: 'needy' can't be imported (No module named 'nothing_like_it'); install"),
        ("made_up:Whole", "s: 'made_up' has no Whole; its classes: Half"),
        ("made_up:value", "s: made_up:value is no class but a int"),
        ("made_up:Half", "s: made_up:Half is no Store: it lacks write_layers, commit, read, forget, reset, close; see"),
    ],
)
def test_each_fault_of_a_name_is_one_line(tmp_path, spec, line):
    (tmp_path / "made_up.py").write_text(MODULE)
    (tmp_path / "needy.py").write_text("import nothing_like_it")
    with pytest.raises(ConfigError) as raised:
        load(spec, "s", Store)
    assert str(raised.value).startswith(line)
    assert "\n" not in str(raised.value)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("takes", "why"),
    [
        ("self, codec", "too many positional arguments"),
        ("self, folder, codec, capacity_bytes, n", "missing a required argument: 'n'"),
        ("self, *, folder, codec, capacity_bytes", "too many positional arguments"),
        ("self, folder, codec, capacity_bytes, n=1", ""),
        ("self, *given", ""),
    ],
)
def test_a_store_is_made_from_three_arguments_and_another_one_is_one_line(tmp_path, monkeypatch, takes, why):
    (tmp_path / "made.py").write_text(LYING.replace("self, folder, codec, capacity_bytes", takes))
    monkeypatch.delitem(sys.modules, "made", raising=False)
    if why:
        line = f"tiers.disk.store: made:Lying can't be made from (folder, codec, capacity_bytes): {why}; let its"
        with pytest.raises(ConfigError) as raised:
            load_store("made:Lying")
        assert str(raised.value).startswith(line)
    else:
        assert load_store("made:Lying").__name__ == "Lying"


class Forgetful(MemoryStore):
    """Finds nothing after a restart, and has no `recovered`."""


@pytest.mark.unit
def test_the_suite_fails_a_store_that_does_not_say_what_it_recovered(tmp_path):
    class Suite(StoreContract):
        def make_store(self, folder, codec):
            return Forgetful(codec, 9)

    suite, codec = Suite(), ExtentCodec(SMALL, STORED_AS)
    for test in (
        suite.test_opened_again_it_lists_and_gives_what_it_held,
        suite.test_opened_again_after_a_reset_it_holds_nothing,
    ):
        with pytest.raises(AssertionError, match="no `recovered`"):
            test(Bench(suite.make_store(tmp_path, codec), codec), tmp_path)


@pytest.mark.unit
def test_the_methods_of_a_protocol_are_its_own():
    assert methods_of(Store)[:3] == ["capacity", "write", "write_layers"]
    assert set(methods_of(Policy)) >= {"grow", "cached", "leased", "evict"}


@pytest.mark.adapter
def test_a_library_keeps_its_blocks_in_a_store_of_others(tmp_path):
    prompts = [prompt(number, 3) for number in range(1, 11)]
    for _ in range(2):
        with opened(tmp_path, 4, tiers__disk__store=SQLITE) as cache:
            if _ == 0:
                for tokens in prompts:
                    store(cache, tokens)
            assert [n_found(cache, tokens) for tokens in prompts] == [3] * 10
            cache.check()
    assert len(list(tmp_path.glob("*/*/rank-0/extents.sqlite"))) == 1
    assert not list(tmp_path.glob("**/*.kv"))


LYING = """
from tenuto.tiers.store import Capacity
from tenuto.errors import Cause, StoreError
class Lying:
    def __init__(self, folder, codec, capacity_bytes):
        self.recovered = []
        if (folder / "refuse").exists():
            raise StoreError(Cause.IO_ERROR, "not today")
    def capacity(self): return Capacity(8, False)
    def write(self, items): return []
    def write_layers(self, items, layers): return []
    def commit(self, items): return []
    def read(self, items, volume="", layers=None): return []
    def forget(self, slots): ...
    def reset(self, namespace, epoch): ...
    def close(self): ...
"""


@pytest.mark.unit
def test_a_store_that_lies_is_found_out_and_one_that_refuses_is_a_tier_that_is_off(tmp_path, our_log):
    (tmp_path / "lying.py").write_text(LYING)
    folder = tmp_path / "root"
    given = {"path": str(folder), "capacity": "8 MiB", "store": "lying:Lying"}
    disk = load_config({"tiers": {"disk": given}}).tiers.disk
    codec = ExtentCodec(EXTENTS, NAMESPACE.digest)
    tier = open_disk(disk, NAMESPACE, codec, "engine")
    arena = HostArena(1, EXTENTS.extent_bytes)
    (block,) = make_blocks(1, block_tokens=EXTENTS.block_tokens)
    fill_extent(codec, arena.slot(0), block)
    failures = tier.read([SlotIO(0, block.key, arena.slot(0))])
    assert [failure.cause for failure in failures] == [Cause.CORRUPT]
    tier.close()
    (rank,) = folder.glob("*/*/rank-0")
    (rank / "refuse").touch()
    assert open_disk(disk, NAMESPACE, codec, "engine") is None
    assert "not today" in our_log()[-1].getMessage()
    (rank / "refuse").unlink()
    open_disk(disk, NAMESPACE, codec, "engine").close()  # the folder is nobody's
    assert len(list(folder.glob("*/*/rank-0"))) == 1


@pytest.mark.unit
@pytest.mark.parametrize(("number", "cause"), [(28, "no_space"), (5, "io_error")])
def test_an_os_error_of_a_store_is_told_as_ours_are_and_costs_its_blocks_alone(
    tmp_path, monkeypatch, our_log, number, cause
):
    text = LYING.replace("def write(self, items): return []", f"def write(self, items): raise OSError({number}, 'why')")
    (tmp_path / "failing.py").write_text(text)
    monkeypatch.delitem(sys.modules, "failing", raising=False)
    with opened(tmp_path / "root", tiers__disk__store="failing:Lying") as cache:
        store(cache, prompt(1))
        assert not cache.flush()
        assert cache.statistics()[f"failed.host_to_disk.{cause}"] == 2
        assert n_found(cache, prompt(1)) == 2
    (line,) = [record for record in our_log() if "host to disk" in record.getMessage()]
    assert f"({cause}: write with Lying in " in line.getMessage()
    assert line.getMessage().rstrip().split(": why")[1].startswith("): served as a miss")
    assert not any(record.exc_info for record in our_log())


@pytest.mark.unit
def test_an_os_error_at_the_start_is_a_tier_that_is_off(tmp_path, monkeypatch, our_log):
    text = LYING.replace("self.recovered = []", "raise OSError(28, 'No space left on device')")
    (tmp_path / "unable.py").write_text(text)
    monkeypatch.delitem(sys.modules, "unable", raising=False)
    given = {"path": str(tmp_path / "root"), "capacity": "8 MiB", "store": "unable:Lying"}
    disk = load_config({"tiers": {"disk": given}}).tiers.disk
    assert open_disk(disk, NAMESPACE, ExtentCodec(EXTENTS, NAMESPACE.digest), "engine") is None
    assert our_log()[-1].getMessage().endswith("No space left on device")


@pytest.mark.unit
def test_a_cache_goes_by_a_policy_of_others():
    with opened(policies={"device": "fifo_policy:Fifo"}) as cache:
        assert LAYOUT.n_blocks == 8
        for number in range(1, 5):
            store(cache, prompt(number))
            assert n_found(cache, prompt(1)) == 2  # used, and yet the first to go
        before = cache.statistics().get("moved.host_to_device", 0)
        store(cache, prompt(5))
        assert n_found(cache, prompt(4)) == 2
        assert n_found(cache, prompt(1)) == 2
        assert cache.statistics()["moved.host_to_device"] == before + 2


@pytest.mark.unit
def test_an_engines_worker_takes_a_store_of_others_and_gives_it_up(tmp_path):
    disk = {"path": str(tmp_path / "root"), "capacity": "16 MiB", "store": SQLITE}
    config = load_config({"tiers": {"host": {"capacity": "1 MiB"}, "disk": disk}})
    for _ in range(2):
        worker = Worker(Setup(config, session_rig.NAMESPACE, session_rig.LAYOUT, session_rig.PAGE, "e"))
        worker.register([torch.randn(16, 1, session_rig.PAGE, 32) for _ in range(2)])
        shake = worker.handshake()
        assert shake.disk.n_slots > 0
        assert (shake.recovered, shake.peers) == ([], {})
        worker.shutdown()
    assert len(list(tmp_path.glob("root/*/*/rank-0/extents.sqlite"))) == 1


@pytest.mark.unit
@pytest.mark.parametrize(("policy", "why"), [
    ("fifi", "policies['device']: no policy is named 'fifi'; give one of "), ("fifo_policy:Fifi", "has no Fifi"),
    (7, "policies['device']: 7 is no policy"), (LRU, "is no policy; give an object"),
])  # fmt: skip
def test_what_is_no_policy_is_refused_by_one_line(policy, why):
    with pytest.raises(ConfigError) as refused:
        opened(policies={"device": policy})
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


class Moody:
    """Its capacity is an error when it is told so."""

    is_good = False
    recovered = ()
    n_closed = 0

    def __init__(self, *_, **__):
        pass

    def capacity(self):
        if self.is_good:
            return Capacity(7, True)
        raise StoreError(Cause.IO_ERROR, "no")

    def close(self):
        Moody.n_closed += 1


@pytest.mark.unit
def test_a_store_of_others_that_can_not_tell_its_capacity_is_closed_at_opening_and_kept_later(tmp_path, monkeypatch):
    codec = ExtentCodec(EXTENTS, NAMESPACE.digest)
    monkeypatch.setattr(Moody, "n_closed", 0)
    mine = claim(tmp_path, NAMESPACE, "engine", 0)
    with pytest.raises(StoreError):
        ForeignStore(mine, codec, Moody, 1)
    assert Moody.n_closed == 1
    monkeypatch.setattr(Moody, "is_good", True)
    opened = ForeignStore(mine, codec, Moody, 1)
    monkeypatch.setattr(Moody, "is_good", False)
    assert opened.capacity() == Capacity(7, True)
    opened.close()
    assert Moody.n_closed == 2
