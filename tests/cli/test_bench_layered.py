"""The layered bench at tiny sizes: what it says, keeps and refuses, never how fast it is."""

import json
from contextlib import closing
from xml.etree import ElementTree as ET

import pytest

from tenuto.cli.bench import command, layered
from tenuto.cli.bench.computing import Products
from tenuto.cli.bench.layered import choose_sizes
from tenuto.cli.bench.layered_bed import Bed
from tenuto.cli.main import main
from tenuto.errors import Cause, ConfigError, InvariantError, TenutoError
from tenuto.memory.paged import PagedKV
from tenuto.tiers.disk import DiskStore
from tenuto.tiers.store import Failure
from tenuto.traces import Recorder
from tests.cli.made_up_events import MadeUpEvent

pytestmark = pytest.mark.unit

SIZES = choose_sizes(is_gpu=False, is_quick=True)


@pytest.fixture
def bed(tmp_path):
    with closing(Bed(tmp_path, SIZES.bed, is_gpu=False)) as made:
        yield made


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


def test_it_says_its_figures_with_what_is_behind_them_and_draws_the_timeline(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["bench", "layered", "--quick", "--json", "--dir", str(tmp_path / "d"), "--out", str(out)]) == 0
    result = json.loads(capsys.readouterr().out)
    figures, samples = result["figures"], result["details"]["samples"]
    assert set(command.TARGETS["layered"]) <= set(figures)
    assert figures["submits_per_layer"] == 1
    assert figures["load_hidden"] == min(figures["load_hidden_half"], figures["load_hidden_one"])
    assert figures["ttft_over_bound"] == max(figures[f"ttft_over_bound_{name}"] for name in layered.RATIOS)
    assert all(0 <= figures[key] <= 1 for key in figures if "hidden" in key)
    assert {len(values) for its in samples.values() for values in its.values()} == {1}
    assert result["machine"]["file_system"]
    assert list((tmp_path / "d").iterdir()) == []
    picture, kept = sorted(out.iterdir(), key=lambda path: path.suffix, reverse=True)
    assert json.loads(kept.read_text()) == result
    assert picture == kept.with_suffix(".svg")
    drawn = ET.parse(picture).getroot()
    tips = [tip.text for tip in drawn.iter("{http://www.w3.org/2000/svg}title")]
    n_layers = result["details"]["n_layers"]
    for name in ("compute", "load"):
        assert sum(tip.startswith(f"{name}, layer ") for tip in tips) == n_layers


def test_the_bound_is_the_longer_of_the_two_and_what_of_the_other_cannot_lie_beside_it():
    samples = layered._Samples(by_layers_s=[8.0, 9.0, 2.0], whole_s=[9.0, 8.0, 2.0], compute_s=[2.0, 2.0, 8.0])
    assert samples.bounds_s(4) == [8.5, 8.5, 8.5]


def test_each_round_begins_with_another_way():
    seen = []
    for number in range(3):
        layered._in_turn(number, *(lambda way=way: seen.append(way) for way in "abc"))
    assert "".join(seen) == "abcbcacab"


def test_both_paths_move_the_same_bytes(bed):
    bed.check()


@pytest.mark.parametrize("ways", ["check", "load_layered"])
def test_a_layer_that_is_not_what_was_stored_is_refused(bed, monkeypatch, ways):
    scatter = PagedKV.scatter

    def without_the_second(self, runs, arena, slots, layers=None):
        if layers != (1, 2):
            scatter(self, runs, arena, slots, layers)

    monkeypatch.setattr(PagedKV, "scatter", without_the_second)
    with pytest.raises(InvariantError, match="loaded by layers differ from what was stored"):
        getattr(bed, ways)()


def test_extents_that_differ_are_refused(bed, monkeypatch):
    commit = DiskStore.commit

    def another_index(self, items):  # a field of the header that no load looks at
        for item in items:
            item.buffer[88] ^= 1
        return commit(self, items)

    monkeypatch.setattr(DiskStore, "commit", another_index)
    with pytest.raises(InvariantError, match="written by layers differs"):
        bed.check()


def test_a_block_that_does_not_move_ends_the_bench(bed, monkeypatch):
    monkeypatch.setattr(DiskStore, "read", lambda *_: [Failure(0, Cause.IO_ERROR, "made up")])
    with pytest.raises(TenutoError, match=r"not loaded by layers: .*made up"):
        bed.load_layered()
    with pytest.raises(TenutoError, match="did not move: made up"):
        bed.load_first()
    monkeypatch.setattr(DiskStore, "write_layers", lambda *_: [Failure(0, Cause.IO_ERROR, "made up")])
    with pytest.raises(TenutoError, match=r"did not move by layers: .*made up"):
        bed.store_layered()


def test_a_disk_without_room_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tenuto.cli.bench.layered_bed.shutil.disk_usage", lambda _: type("Usage", (), {"free": 1e6}))
    with pytest.raises(ConfigError, match=r"--dir: 0\.0 GB are free there"):
        Bed(tmp_path, SIZES.bed, is_gpu=False)
    assert list(tmp_path.iterdir()) == []


def test_on_a_gpu_as_many_products_are_queued_as_take_the_time_and_events_time_them(monkeypatch):
    def product(one, other, out):
        MadeUpEvent.now_s += 1.0

    monkeypatch.setattr("torch.cuda.Event", MadeUpEvent)
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    monkeypatch.setattr("torch.randn", lambda *_, **__: None)
    monkeypatch.setattr("torch.mm", product)
    computing = Products()
    computing.layer_s = 2.9
    with Recorder() as recorder:
        computing.begin()
        computing.compute(0)
        MadeUpEvent.now_s += 5.0  # the stream waits for a load
        computing.compute(1)
        computing.finish()
        first, second = recorder.spans()
    assert (first.name, first.layer, second.layer) == ("compute", 0, 1)
    assert [first.stop_s - first.start_s, second.start_s - first.stop_s, second.stop_s - second.start_s] == (
        pytest.approx([3.0, 5.0, 3.0])
    )
    computing.layer_s = 0.0
    with Recorder() as recorder:
        computing.begin()
        computing.compute(0)
        computing.finish()
    (span,) = recorder.spans()
    assert span.stop_s - span.start_s == pytest.approx(1.0)  # never none
