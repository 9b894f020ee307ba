"""A small cache over arrays, and blocks whose bytes follow from their tokens."""

import numpy as np

from tenuto.library import Layout, open_cache

LAYOUT = Layout("contiguous", 8, 3, 2, 4, 8, "float32")
EXTENT = LAYOUT.extent().extent_bytes
TOKENS = LAYOUT.page_tokens
N_BOUNCE = 4


def settings(root=None, n_host=16, **more):
    given = {"tiers.host.capacity": (n_host + N_BOUNCE * (root is not None)) * EXTENT, **more}
    if root is not None:
        given |= {"tiers.disk.path": str(root), "tiers.disk.capacity": 256 * EXTENT, "tiers.disk.poll_s": 0.0}
    return given


def opened(root=None, n_host=16, layout=LAYOUT, model="m", **options):
    more = {name.replace("__", "."): options.pop(name) for name in list(options) if "__" in name}
    return open_cache(layout, model=model, settings=settings(root, n_host) | more, **options)


def prompt(number, n_blocks=2):
    return [1000 * number + at for at in range(n_blocks * TOKENS)]


def planes(layout=LAYOUT):
    return [(layer, outer) for layer in range(layout.n_layers) for outer in range(layout.outer_dim)]


def value_of(tokens, block, layer, outer):
    """What a plane of a block is filled with: it differs between all planes of all blocks."""
    return float(tokens[block * TOKENS]) + layer / 8 + outer / 64


def fill(blocks, tokens, first=0):
    for block in range(len(blocks)):
        for layer, outer in planes():
            blocks.view(block, layer, outer)[:] = value_of(tokens, first + block, layer, outer)


def store(cache, tokens, salt=""):
    """Register the whole blocks of a prompt, and let them go."""
    with cache.allocate(len(tokens) // TOKENS) as blocks:
        blocks.apply(tokens[: len(blocks) * TOKENS], salt)
        fill(blocks, tokens)
        blocks.register().release()


def n_found(cache, tokens, salt="", **options):
    """Blocks of a prompt that are matched, every byte of which is right."""
    with cache.match(tokens, salt, **options) as hit:
        for block in range(len(hit)):
            for layer, outer in planes():
                plane = hit.view(block, layer, outer)
                assert np.array_equal(plane, np.full_like(plane, value_of(tokens, block, layer, outer)))
        return len(hit)
