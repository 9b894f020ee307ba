"""Leader, worker, transfers and lanes upon a GPU that runs streams in any legal order: no wrong byte is computed on."""

import pytest

from tenuto.connectors.session import Worker
from tenuto.transfers.movers import Movers
from tests.session.gpu_engine import GpuEngine
from tests.transfers.fake_cuda import WrongBytes
from tests.transfers.fresh_lanes import FreshLanes

pytestmark = pytest.mark.unit

N_STEPS = 30


@pytest.fixture(scope="module")
def lanes(tmp_path_factory):
    made = FreshLanes(tmp_path_factory.mktemp("lanes"))
    yield made
    made.forget()


@pytest.mark.parametrize("seed", range(0, 60, 10))
def test_no_request_computes_on_wrong_bytes(monkeypatch, lanes, seed):
    n_loaded = 0
    for number in range(seed, seed + 10):
        engine = GpuEngine(monkeypatch, lanes, number, 0.02 * (number % 2))
        engine.live(N_STEPS)
        n_loaded += engine.n_loaded_pages
    assert n_loaded > 100
