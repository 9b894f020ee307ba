"""The library over a GPU's memory: blocks come back bit for bit, in the order of the stream. Needs a GPU."""

import pytest
import torch

from tenuto.library import Layout, open_cache

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

TOKENS = 32
RINGS = {"tiers.device.load_ring": "4 MiB", "tiers.device.store_ring": "4 MiB", "tiers.device.window": "1 MiB"}
LAYOUTS = {
    "contiguous": Layout("contiguous", 8, 3, 2, TOKENS, 128, "bfloat16"),
    "per layer": Layout("per layer", 8, 3, 2, TOKENS, 96, "float16", 256),
    "latent": Layout("per layer", 8, 3, 1, TOKENS, 576, "bfloat16"),
    "large": Layout("contiguous", 8, 2, 2, TOKENS, 8192, "bfloat16"),  # pieces of 1 MiB: no ring
}


def prompt(number):
    return list(range(1000 * number, 1000 * number + 2 * TOKENS))


def planes(layout):
    return [(block, layer, outer) for block in range(2) for layer in range(3) for outer in range(layout.outer_dim)
            if layer < layout.n_layers]  # fmt: skip


@pytest.mark.parametrize("memory", ["device", "pinned", "tensor"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_blocks_leave_the_gpu_and_come_back_from_host_memory_and_disk(tmp_path, layout, memory):
    n_host = 6
    settings = RINGS | {
        "tiers.host.capacity": (n_host + 4) * layout.extent().extent_bytes,
        "tiers.disk.path": str(tmp_path),
        "tiers.disk.capacity": 128 * layout.extent().extent_bytes + (8 << 20),
    }
    expected = {}
    for life in range(2):
        given = {"allocator": memory}
        if memory == "tensor":
            given = {"buffer": torch.zeros(layout.shape, dtype=getattr(torch, layout.dtype), device="cuda")}
        with open_cache(layout, model="m", settings=settings, **given) as cache:
            for number in range(10) if life == 0 else ():
                with cache.allocate(2, timeout_s=10) as blocks:
                    blocks.apply(prompt(number))
                    torch.cuda._sleep(20_000_000)  # what writes the bytes is only queued
                    for at in planes(layout):
                        view = blocks.view(*at)
                        view.copy_(torch.randn(view.shape, device=view.device))
                        expected[number, at] = view.clone()
                        if memory == "tensor":
                            slot = blocks.slots[at[0]]
                            first = (slot, at[1]) if layout.kind == "contiguous" else (at[1], slot)
                            assert torch.equal(given["buffer"][(*first, at[2])], view)
                    if memory == "pinned":
                        torch.cuda.synchronize()
                    blocks.register().release()
            for number in range(10):
                with cache.match(prompt(number)) as hit:
                    assert len(hit) == 2
                    for at in planes(layout):
                        assert torch.equal(hit.view(*at), expected[number, at])
            assert cache.flush()
            cache.check()
