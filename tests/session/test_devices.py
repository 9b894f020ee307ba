"""Where the engine's memory is, and what is made for it: refusals, and sizes of rings. No GPU is needed."""

import ctypes
import re
import subprocess

import pytest
import torch

from tenuto.config import load_config
from tenuto.connectors.session import Setup
from tenuto.connectors.session.devices import make_device, make_driver, ring_sizes
from tenuto.errors import ConfigError
from tenuto.memory import driver as driver_module
from tenuto.memory.arena import HostArena
from tenuto.memory.paged import PagedKV
from tenuto.transfers.lanes import cuda, ring, turns
from tests.session.session_rig import LAYOUT, NAMESPACE, PAGE
from tests.transfers.fake_cuda import Gpu

pytestmark = pytest.mark.unit

MIB = 1 << 20
STUB = """
int cuDriverGetVersion(int *version) { return 34; }
int cuGetErrorName(int code, const char **name) { *name = "CUDA_ERROR_STUB_LIBRARY"; return 0; }
int cuMemHostRegister_v2, cuMemHostUnregister, cuMemcpyAsync;
"""


def setup_of(max_step_tokens=0, **device):
    tiers = {"host": {"capacity": 16 * LAYOUT.extent_bytes}, "device": device}
    return Setup(load_config({"tiers": tiers}), NAMESPACE, LAYOUT, PAGE, "e", max_step_tokens=max_step_tokens)


def test_the_cpu_needs_no_driver():
    assert make_driver(torch.device("cpu")) is None


@pytest.mark.parametrize("kind", ["meta", "xpu", "mps", "hpu"])
def test_other_memory_is_refused_by_its_name(kind):
    with pytest.raises(ConfigError, match=f"memory of the kind '{kind}', .* cpu and cuda alone; ") as caught:
        make_driver(torch.device(kind))
    assert "\n" not in str(caught.value)


def refusal():
    with pytest.raises(ConfigError) as caught:
        make_driver(torch.device("cuda", 0))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_machine_without_the_driver_is_told_so_in_a_line(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(driver_module.ctypes, "CDLL", missing)
    assert refusal().startswith("no CUDA driver: libcuda.so.1: cannot open")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("int nothing;", "undefined symbol: cuDriverGetVersion"),
        (STUB, "cuDriverGetVersion: CUDA_ERROR_STUB_LIBRARY (34)"),
    ],
    ids=["another library", "the toolkit's stub"],
)
def test_a_library_that_is_no_driver_is_told_so_in_a_line(tmp_path, monkeypatch, source, says):
    (tmp_path / "it.c").write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "libcuda.so.1", "it.c"], cwd=tmp_path, check=True)
    real = ctypes.CDLL
    monkeypatch.setattr(driver_module.ctypes, "CDLL", lambda name: real(str(tmp_path / name)))
    said = refusal()
    assert said.startswith("no working CUDA driver: ")
    assert says in said


def auto(step_tokens, free_bytes, window):
    return ring_sizes(setup_of(step_tokens, window=window), free_bytes).store_bytes


@pytest.mark.parametrize(
    ("n_blocks", "free_blocks", "expected"),
    [
        (100, 1000, 100),  # what the largest step fills
        (100, 400, 100),  # just a quarter
        (100, 200, 50),  # at most a quarter of what is free
        (3, 1000, 20),  # at least two windows
        (100, 40, 20),  # these even where they are more than a quarter
        (0, 1000, 20),  # it is not known what a step fills
    ],
)
def test_an_auto_ring_holds_the_largest_step_within_its_bounds(n_blocks, free_blocks, expected):
    block = LAYOUT.extent_bytes
    assert auto(n_blocks * LAYOUT.block_tokens, free_blocks * block, 10 * block) == expected * block


def test_sizes_that_are_given_are_taken():
    given = {"load_ring": "3 MiB", "store_ring": "5 MiB", "window": "1 MiB", "load_programs": 2, "store_programs": 3}
    assert ring_sizes(setup_of(10_000, **given), 0) == cuda.RingSizes(3 * MIB, 5 * MIB, MIB, 2, 3)


@pytest.fixture
def on_gpu(monkeypatch):
    """Makes a device on a made-up GPU with so much memory free."""

    def make(setup, free_bytes, zeros=torch.zeros):
        gpu = Gpu(1)
        gpu.torch.cuda.mem_get_info = lambda _: (free_bytes, 1 << 40)
        gpu.torch.zeros = zeros
        monkeypatch.setattr(torch.cuda, "mem_get_info", gpu.torch.cuda.mem_get_info)
        monkeypatch.setattr(cuda, "torch", gpu.torch)
        monkeypatch.setattr(ring, "torch", gpu.torch)
        monkeypatch.setattr(turns, "torch", gpu.torch)
        monkeypatch.setattr(cuda, "BlockMover", gpu.mover)
        kv = PagedKV([torch.zeros((8, 1, PAGE, 32)) for _ in range(2)], LAYOUT, PAGE)
        return make_device(setup, kv, HostArena(2, LAYOUT.extent_bytes), gpu)

    return make


SMALL = {"load_ring": "2 MiB", "store_ring": "4 MiB", "window": "1 MiB"}


def test_rings_that_fit_are_made(on_gpu):
    on_gpu(setup_of(**SMALL), 6 * MIB)


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        (SMALL, "tiers.device.store_ring"),
        (SMALL | {"load_ring": "5 MiB"}, "tiers.device.load_ring"),
        (SMALL | {"window": "4 MiB"}, "tiers.device.window"),
    ],
)
def test_rings_that_do_not_fit_are_one_line_that_names_the_setting(on_gpu, given, setting):
    with pytest.raises(ConfigError) as caught:
        on_gpu(setup_of(**given), 5 * MIB)
    assert re.match(rf"{setting}: the staging rings take \d+ MiB of GPU memory and 5 MiB are free; ", str(caught.value))
    assert "\n" not in str(caught.value)


def test_blocks_larger_than_a_window_are_what_is_too_large(on_gpu):
    with pytest.raises(ConfigError, match=r"^layout\.block_tokens: the staging rings take"):
        on_gpu(setup_of(load_ring="1", store_ring="1", window="1"), 1)


def test_memory_that_is_free_and_can_not_be_had_all_the_same_is_one_line(on_gpu):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB.\nSee the documentation")

    with pytest.raises(ConfigError, match=r"^tiers\.device\.load_ring: .*Tried to allocate 2 MiB") as caught:
        on_gpu(setup_of(**SMALL), 1 << 40, full)
    assert "\n" not in str(caught.value)
