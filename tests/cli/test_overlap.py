"""Loads by layers under computing, on this machine: its GPU and disk, or a slowed store and sleep."""

import pytest
import torch

from tenuto.cli.bench.layered import choose_sizes, measure_layered
from tenuto.cli.bench.progress import Bar

pytestmark = pytest.mark.overlap


def test_computing_hides_loads_that_take_no_longer(tmp_path):
    is_gpu = torch.cuda.is_available()
    with Bar(None) as bar:
        figures = measure_layered(tmp_path, choose_sizes(is_gpu=is_gpu, is_quick=False), bar, is_gpu=is_gpu).figures
    assert figures["load_hidden"] >= 0.8
    assert figures["submits_per_layer"] <= 1
    for ratio in ("half", "one"):
        assert figures[f"ttft_over_bound_{ratio}"] <= 1.1
        assert figures[f"layered_over_load_first_{ratio}"] < 1
