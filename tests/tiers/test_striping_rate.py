"""How fast stripes are: four folders, slowed to a made-up rate each, move at the sum of their rates."""

import pytest
from rich.console import Console

from tenuto.cli.bench.progress import Bar
from tenuto.cli.bench.striping import StripingSizes, measure_striping

pytestmark = pytest.mark.perf


def test_four_folders_move_at_the_sum_of_their_rates_and_cost_little_on_one_disk(tmp_path):
    with Bar(Console(quiet=True)) as bar:
        figures = measure_striping(tmp_path, StripingSizes(), bar)
    assert figures["striped_over_sum"] >= 0.95
    assert figures["striped_over_one"] >= 0.9
