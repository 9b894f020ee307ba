"""A real engine's trace file: what its worker did, and when."""

import pytest

from tenuto.traces import is_recording, read_trace
from tests.engine.tiny import prompt

pytestmark = pytest.mark.engine

TOKENS = prompt(41, 500)  # 7 blocks of 64


def test_a_trace_has_the_loads_and_stores_of_an_engine(start, tmp_path):
    settings = {"runtime": {"trace_file": str(tmp_path / "run")}}
    path = tmp_path / "run-rank0.json"
    engine = start(settings)
    extent_bytes = engine.worker.setup.layout.extent_bytes
    engine.ask(TOKENS)
    engine.settle()
    assert not path.exists()

    engine = start(settings)  # closes the first
    stored = [(found.track, found.n_bytes) for found in read_trace(path) if found.name == "store"]
    assert {track for track, _ in stored} == {"tenuto-store"}
    assert sum(n_bytes for _, n_bytes in stored) == 7 * extent_bytes
    assert engine.ask(TOKENS)[0] == 448
    engine.settle()
    engine.worker.shutdown()
    assert not is_recording()
    loads = [found for found in read_trace(path) if found.name == "load"]
    assert {found.track for found in loads} == {"tenuto-load", "tenuto-copy"}
    (scatter,) = [found for found in read_trace(path) if found.name == "scatter"]
    (around,) = [found for found in loads if found.track == "tenuto-copy"]
    assert around.start_s <= scatter.start_s <= scatter.stop_s <= around.stop_s
