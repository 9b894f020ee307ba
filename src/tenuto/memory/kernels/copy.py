"""The Triton kernels. A row of paged KV is cut into chunks of a power of two words; a step moves a tile of chunks.

A tile lies in one layer of one block, so what differs between its chunks is split off by constants. All loads of a step
are issued before its stores: with 32 KiB a step, a few programs are enough to hide the latency of memory.
"""
# pyright: basic, reportMissingImports=false
# Annotations are read by Triton: they must not become text.

import triton
import triton.language as tl


@triton.jit
def _copy(
    paged, rows, is_used, WORD: tl.constexpr, ALIGNMENT: tl.constexpr, CHUNK_WORDS: tl.constexpr,
    IS_GATHER: tl.constexpr,
):  # fmt: skip
    """Move chunks between the addresses `paged` and `rows`, both ``(chunks,)``, where `is_used`."""
    pointer: tl.constexpr = tl.pointer_type(WORD)
    words = tl.arange(0, CHUNK_WORDS)[None, :]
    outer = tl.multiple_of(paged.to(pointer), ALIGNMENT)[:, None] + words
    inner = tl.multiple_of(rows.to(pointer), ALIGNMENT)[:, None] + words
    mask = is_used[:, None]
    if IS_GATHER:
        tl.store(inner, tl.load(outer, mask=mask), mask=mask)
    else:
        tl.store(outer, tl.load(inner, mask=mask), mask=mask)


# Nothing is specialised, so that no argument makes Triton compile again while an engine runs.
@triton.jit(
    do_not_specialize=["rows", "row_stride", "n_blocks", "layer_start", "n_layers"],
    do_not_specialize_on_alignment=["table", "pages", "first"],
)
def move_blocks(
    table, pages, first, rows: tl.int64, row_stride: tl.int64, n_blocks: tl.int32, layer_start: tl.int32,
    n_layers: tl.int32, HEADS: tl.constexpr, PLANES: tl.constexpr, PAGES: tl.constexpr, TOKENS: tl.constexpr,
    ROW_CHUNKS: tl.constexpr, PAGE_STRIDE: tl.constexpr, HEAD_STRIDE: tl.constexpr, TOKEN_STRIDE: tl.constexpr,
    SEGMENT_BYTES: tl.constexpr, WORD: tl.constexpr, WORD_BYTES: tl.constexpr, ALIGNMENT: tl.constexpr,
    CHUNK_WORDS: tl.constexpr, TILE_CHUNKS: tl.constexpr, IS_GATHER: tl.constexpr,
):  # fmt: skip
    """Blocks of whole pages, some layers of them."""
    chunks: tl.constexpr = HEADS * PLANES * PAGES * TOKENS * ROW_CHUNKS
    tiles: tl.constexpr = (chunks + TILE_CHUNKS - 1) // TILE_CHUNKS
    chunk_bytes: tl.constexpr = CHUNK_WORDS * WORD_BYTES
    for tile in range(tl.program_id(0), n_blocks * n_layers * tiles, tl.num_programs(0)):
        segment = tile // tiles
        block = segment // n_layers
        layer = segment % n_layers
        chunk = (tile % tiles) * TILE_CHUNKS + tl.arange(0, TILE_CHUNKS)
        is_used = chunk < chunks
        row = chunk // ROW_CHUNKS
        token = row % TOKENS
        at = (row // TOKENS) % PAGES
        plane = (row // (TOKENS * PAGES)) % PLANES
        head = row // (TOKENS * PAGES * PLANES)
        page = tl.load(pages + block * PAGES + at, mask=is_used, other=0).to(tl.int64)
        base = tl.load(table + (layer_start + layer) * PLANES + plane, mask=is_used, other=0)
        offset = page * PAGE_STRIDE + head.to(tl.int64) * HEAD_STRIDE + token.to(tl.int64) * TOKEN_STRIDE
        paged = base + offset + (chunk % ROW_CHUNKS) * chunk_bytes
        if not IS_GATHER:
            is_used = is_used & (at >= tl.load(first + block))
        _copy(
            paged, rows + block * row_stride + layer * SEGMENT_BYTES + chunk * chunk_bytes, is_used,
            WORD, ALIGNMENT, CHUNK_WORDS, IS_GATHER,
        )  # fmt: skip


@triton.jit(
    do_not_specialize=["rows", "row_stride", "n_tokens", "layer"], do_not_specialize_on_alignment=["table", "slots"]
)
def move_layer(
    table, slots, rows: tl.int64, row_stride: tl.int64, n_tokens: tl.int32, layer: tl.int32,
    HEADS: tl.constexpr, PLANES: tl.constexpr, BLOCK_TOKENS: tl.constexpr, TOKENS: tl.constexpr,
    ROW_CHUNKS: tl.constexpr, PAGE_STRIDE: tl.constexpr, HEAD_STRIDE: tl.constexpr, TOKEN_STRIDE: tl.constexpr,
    WORD: tl.constexpr, WORD_BYTES: tl.constexpr, ALIGNMENT: tl.constexpr, CHUNK_WORDS: tl.constexpr,
    TILE_CHUNKS: tl.constexpr, IS_GATHER: tl.constexpr,
):  # fmt: skip
    """Tokens of one layer, each at its slot; a negative slot is left out."""
    chunks: tl.constexpr = HEADS * PLANES * BLOCK_TOKENS * ROW_CHUNKS
    tiles: tl.constexpr = (chunks + TILE_CHUNKS - 1) // TILE_CHUNKS
    chunk_bytes: tl.constexpr = CHUNK_WORDS * WORD_BYTES
    n_blocks = (n_tokens + BLOCK_TOKENS - 1) // BLOCK_TOKENS
    for tile in range(tl.program_id(0), n_blocks * tiles, tl.num_programs(0)):
        block = tile // tiles
        chunk = (tile % tiles) * TILE_CHUNKS + tl.arange(0, TILE_CHUNKS)
        row = chunk // ROW_CHUNKS
        token = block * BLOCK_TOKENS + row % BLOCK_TOKENS
        plane = (row // BLOCK_TOKENS) % PLANES
        head = row // (BLOCK_TOKENS * PLANES)
        is_used = (chunk < chunks) & (token < n_tokens)
        slot = tl.load(slots + token, mask=is_used, other=-1)
        is_used = is_used & (slot >= 0)
        base = tl.load(table + layer * PLANES + plane, mask=is_used, other=0)
        offset = (slot // TOKENS) * PAGE_STRIDE + (slot % TOKENS) * TOKEN_STRIDE + head.to(tl.int64) * HEAD_STRIDE
        _copy(
            base + offset + (chunk % ROW_CHUNKS) * chunk_bytes, rows + block * row_stride + chunk * chunk_bytes,
            is_used, WORD, ALIGNMENT, CHUNK_WORDS, IS_GATHER,
        )  # fmt: skip
