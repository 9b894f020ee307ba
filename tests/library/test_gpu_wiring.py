"""What the library makes for a GPU's memory, with the driver and the lanes replaced by what a CPU can do."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tenuto.errors import ConfigError
from tenuto.library import Layout
from tenuto.memory.arena import HostArena
from tenuto.memory.blockmemory import BlockMemory
from tenuto.memory.paged import ArenaView
from tenuto.transfers.lanes.cpu import CpuDevice
from tests.library.library_rig import TOKENS, opened, prompt

pytestmark = pytest.mark.unit


def made_up_gpu(monkeypatch, device_type="cuda"):
    made = {}

    def device(kv, arena, sizes, driver):
        made.update(kv=kv, sizes=sizes, driver=driver)
        return CpuDevice(kv, ArenaView(arena, kv.layout, kv.dtype))

    def arena(n_slots, extent_bytes, driver):
        made["arena_driver"] = driver
        return HostArena(n_slots, extent_bytes)

    monkeypatch.setattr(BlockMemory, "torch_device", SimpleNamespace(type=device_type))
    monkeypatch.setattr("tenuto.memory.driver.CudaDriver", lambda: "the driver")
    monkeypatch.setattr("tenuto.memory.pinning.pinned_arena", arena)
    monkeypatch.setattr("tenuto.transfers.lanes.cuda.CudaDevice", device)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    return made


@pytest.mark.parametrize("kind", ["contiguous", "per layer"])
@pytest.mark.parametrize("outer_dim", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "bytes"])
def test_blocks_of_any_layout_go_by_the_way_of_the_kernels(monkeypatch, tmp_path, kind, outer_dim, dtype):
    made = made_up_gpu(monkeypatch)
    layout = Layout(kind, 4, 3, outer_dim, TOKENS, 8, dtype, alignment=256)
    buffer = torch.zeros(layout.buffer_bytes, dtype=torch.uint8)
    expected = {}
    with opened(tmp_path, layout=layout, buffer=buffer, tiers__device__load_ring="3 MiB") as cache:
        for number in range(1, 6):
            with cache.allocate(2) as blocks:
                blocks.apply(prompt(number))
                for block in range(2):
                    for layer in range(3):
                        view = blocks.view(block, layer, outer_dim - 1)
                        view.view(torch.uint8).random_(0, 256)
                        expected[number, block, layer] = view.view(torch.uint8).numpy().copy()
                blocks.register().release()
        for number in range(1, 6):
            with cache.match(prompt(number)) as hit:
                for block in range(2):
                    for layer in range(3):
                        view = hit.view(block, layer, outer_dim - 1).view(torch.uint8)
                        assert np.array_equal(view, expected[number, block, layer])
    assert (made["driver"], made["arena_driver"]) == ("the driver", "the driver")
    assert made["sizes"].load_bytes == made["sizes"].store_bytes == 3 << 20
    assert (made["kv"].n_pages, made["kv"].pages_ratio) == (4, 1)


def test_memory_of_another_kind_of_device_is_refused(monkeypatch):
    made_up_gpu(monkeypatch, "xpu")
    with pytest.raises(ConfigError, match=r"^buffer: memory of the kind 'xpu' can't be moved; give cpu or cuda"):
        opened(buffer=torch.zeros(1 << 16, dtype=torch.uint8))
