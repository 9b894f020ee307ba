"""Engines in this process: one at a time, closed before the next."""

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1", VLLM_LOGGING_LEVEL="WARNING",
)  # fmt: skip

from tests.engine.tiny import Engine, make_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model."""
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def start(model: Path, tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    """Starts engines on one disk root; starting one closes the one before."""
    running: list[Engine] = []

    def close() -> None:
        while running:
            running.pop().close()
        gc.collect()

    def start_one(tenuto: dict[str, Any] | None = None, *, on: Path = model, **options: Any) -> Engine:
        close()
        running.append(Engine(on, tmp_path / "root", tenuto, **options))
        return running[-1]

    yield start_one
    close()
