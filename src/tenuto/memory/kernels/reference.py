"""What the kernels do, in plain torch: for tests, and for memory that no kernel reaches."""

from __future__ import annotations

import torch

from tenuto.memory.kernels.mover import check_rows
from tenuto.memory.paged import PagedKV


class TorchMover:
    """A `Mover` on any device that torch has; `n_programs` changes nothing. It waits and allocates."""

    def __init__(self, kv: PagedKV) -> None:
        self._kv = kv
        self._layout = kv.layout

    def gather(
        self, pages: torch.Tensor, out: torch.Tensor, n_programs: int, layers: tuple[int, int] | None = None
    ) -> None:
        """See `Mover`."""
        self._check(pages, out, n_programs, layers)
        for layer, runs in self._segments(out[: pages.shape[0]], layers):
            for plane, rows in enumerate(self._planes(layer)):
                runs[:, :, plane] = rows[pages.long()].permute(0, 2, 1, 3, 4).flatten(2, 3)

    def scatter(
        self,
        pages: torch.Tensor,
        first: torch.Tensor,
        source: torch.Tensor,
        n_programs: int,
        layers: tuple[int, int] | None = None,
    ) -> None:
        """See `Mover`."""
        self._check(pages, source, n_programs, layers)
        is_wanted = torch.arange(pages.shape[1], device=pages.device) >= first[:, None]
        for layer, runs in self._segments(source[: pages.shape[0]], layers):
            for plane, rows in enumerate(self._planes(layer)):
                by_page = runs[:, :, plane].unflatten(2, (pages.shape[1], -1)).permute(0, 2, 1, 3, 4)
                rows[pages[is_wanted].long()] = by_page[is_wanted]

    def gather_layer(self, layer: int, slots: torch.Tensor, out: torch.Tensor, n_programs: int) -> None:
        """See `Mover`."""
        for token, slot in self._tokens(slots, out, n_programs):
            block, at = divmod(token, self._layout.block_tokens)
            self._runs(out[block])[:, :, at] = self._token(layer, slot)

    def scatter_layer(self, layer: int, slots: torch.Tensor, source: torch.Tensor, n_programs: int) -> None:
        """See `Mover`."""
        for token, slot in self._tokens(slots, source, n_programs):
            block, at = divmod(token, self._layout.block_tokens)
            page, offset = divmod(slot, self._kv.kernel_page_tokens)
            for plane, rows in enumerate(self._planes(layer)):
                rows[page, :, offset] = self._runs(source[block])[:, plane, at]

    def _check(self, pages: torch.Tensor, rows: torch.Tensor, n_programs: int, layers: tuple[int, int] | None) -> None:
        start, stop = layers or (0, self._layout.n_layers)
        check_rows(rows, pages.shape[0], (stop - start) * self._layout.segment_bytes)
        if pages.shape[1] != self._kv.pages_per_block or n_programs < 1:
            raise ValueError(f"pages of shape {tuple(pages.shape)} are not rows of {self._kv.pages_per_block}")

    def _planes(self, layer: int) -> list[torch.Tensor]:
        """K and V of a layer as bytes: ``(pages, heads, tokens, row_bytes)``."""
        return [plane.view(torch.uint8) for group in self._kv.views[layer] for plane in group.unbind(0)]

    def _runs(self, segment: torch.Tensor) -> torch.Tensor:
        """(..., bytes) → ``(..., heads, planes, block_tokens, row_bytes)``."""
        layout = self._layout
        sizes = (layout.n_heads, self._kv.n_planes, layout.block_tokens, self._kv.row_bytes)
        return segment[..., : layout.n_heads * layout.run_bytes].unflatten(-1, sizes)

    def _segments(self, rows: torch.Tensor, layers: tuple[int, int] | None) -> list[tuple[int, torch.Tensor]]:
        size = self._layout.segment_bytes
        start, stop = layers or (0, self._layout.n_layers)
        return [
            (layer, self._runs(rows[:, (layer - start) * size : (layer - start + 1) * size]))
            for layer in range(start, stop)
        ]

    def _tokens(self, slots: torch.Tensor, rows: torch.Tensor, n_programs: int) -> list[tuple[int, int]]:
        n_blocks = -(-slots.shape[0] // self._layout.block_tokens)
        check_rows(rows, n_blocks, self._layout.n_heads * self._layout.run_bytes)
        if n_programs < 1:
            raise ValueError(f"{n_programs} programs move nothing")
        return [(token, slot) for token, slot in enumerate(slots.tolist()) if slot >= 0]

    def _token(self, layer: int, slot: int) -> torch.Tensor:
        page, offset = divmod(slot, self._kv.kernel_page_tokens)
        return torch.stack([plane[page, :, offset] for plane in self._planes(layer)], 1)
