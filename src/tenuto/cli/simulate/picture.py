"""Hit rates over capacities, as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenuto.cli.simulate.command import Row

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 760, 420, 60, 40, 130, 50
_COLOURS = ("#1f6f8b", "#c1440e", "#5b8c2a", "#7a4fa3", "#a8841a", "#b03a5b", "#3a5fb0", "#555555")


def draw(rows: Sequence[Row], title: str) -> str:
    """An SVG: a line a policy, capacities on a logarithmic axis."""
    capacities = sorted({row.capacity_blocks for row in rows})
    highest = max([row.hit_rate for row in rows] + [0.01]) * 1.05
    low, high = math.log(capacities[0]), math.log(capacities[-1])

    def x_of(n_slots: int) -> float:
        share = 0.5 if high == low else (math.log(n_slots) - low) / (high - low)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y_of(rate: float) -> float:
        return _HEIGHT - _BOTTOM - rate / highest * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="15">Hit rate by capacity: {escape(title)}</text>',
    ]
    for step in range(6):
        rate = highest * step / 5
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y_of(rate):.1f}" y2="{y_of(rate):.1f}" stroke="#ddd"/>'
        )
        parts.append(f'<text x="{_LEFT - 8}" y="{y_of(rate) + 4:.1f}" text-anchor="end">{100 * rate:.0f}%</text>')
    parts += [
        f'<text x="{x_of(n_slots):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{n_slots:,}</text>'
        for n_slots in capacities
    ]
    parts.append(f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 10}" text-anchor="middle">blocks</text>')
    for at, name in enumerate(dict.fromkeys(row.policy for row in rows)):
        colour = _COLOURS[at % len(_COLOURS)]
        points = sorted((row.capacity_blocks, row.hit_rate) for row in rows if row.policy == name)
        line = " ".join(f"{x_of(n):.1f},{y_of(rate):.1f}" for n, rate in points)
        dash = ' stroke-dasharray="5 4"' if name == "opt" else ""
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        parts += [f'<circle cx="{x_of(n):.1f}" cy="{y_of(rate):.1f}" r="3" fill="{colour}"/>' for n, rate in points]
        y = _TOP + 18 * at
        parts.append(f'<text x="{_WIDTH - _RIGHT + 14}" y="{y + 4}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])
