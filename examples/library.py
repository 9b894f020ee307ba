"""tenuto without an engine: a numpy array as device memory, three tiers, a restart. Give it a folder for the disk."""

import sys

import numpy as np

import tenuto

folder = sys.argv[1] if len(sys.argv) > 1 else sys.exit("Give a folder for the disk: python library.py FOLDER")
layout = tenuto.Layout("contiguous", n_blocks=4, n_layers=2, outer_dim=2, page_tokens=16, inner_dim=64, dtype="float32")
device = np.zeros(layout.buffer_bytes, np.uint8)  # has room for 4 blocks of 16 tokens
settings = {"tiers.host.capacity": "256 KiB", "tiers.disk.path": folder, "tiers.disk.capacity": "16 MiB"}
prompts = [list(range(at, at + 64)) for at in range(0, 2048, 64)]  # 32 prompts of 4 blocks

with tenuto.open_cache(layout, model="demo", buffer=device, settings=settings) as cache:
    for prompt in prompts:
        with cache.allocate(4) as blocks:  # evicts the prompt before, which the tiers below have by now
            blocks.apply(prompt)
            for block in range(4):
                blocks.view(block, layer=1, outer=0)[:] = prompt[16 * block]  # your model computes these keys
            blocks.register().release()

with tenuto.open_cache(layout, model="demo", buffer=device, settings=settings) as cache:  # as a new process would
    for prompt in prompts:
        with cache.match(prompt) as hit:
            assert all((hit.view(block, layer=1, outer=0) == prompt[16 * block]).all() for block in range(4))
    print(len(prompts), "prompts came back whole:", cache)
