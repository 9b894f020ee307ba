"""What a bench hands over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tenuto.cli.bench.result import Figures


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures, and what else they depend on. `gpu`: its name, where one was used. `details`: what is behind them.

    `picture`: an SVG that is kept beside them, where there is one.
    """

    figures: Figures
    file_system: str = ""
    versions: dict[str, str] = field(default_factory=dict[str, str])
    gpu: str = ""
    details: dict[str, Any] = field(default_factory=dict[str, Any])
    picture: str = ""
