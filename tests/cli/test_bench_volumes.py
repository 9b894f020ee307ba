"""`tenuto bench volumes` at a tiny size: all that it counts is there, and a wrong byte would be."""

import json

import pytest

from tenuto.cli.bench.progress import Bar
from tenuto.cli.bench.volumes import VolumeSizes, measure_volumes
from tenuto.cli.main import main
from tenuto.tiers.agent import StorageAgent

pytestmark = pytest.mark.adapter


def test_blocks_are_read_right_while_they_move_and_room_comes_back(tmp_path, capsys):
    assert main(["bench", "volumes", "--quick", "--json", "--dir", str(tmp_path)]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert figures["wrong"] == figures["failed"] == 0
    assert figures["given_back"] >= 0.9
    assert figures["moved_blocks_per_s"] > 0
    assert not list(tmp_path.iterdir())


def test_wrong_bytes_are_counted(tmp_path, monkeypatch):
    read = StorageAgent.read

    def spoilt(agent, items, *more, **options):
        failures = read(agent, items, *more, **options)
        items[0].buffer[-1] ^= 1
        return failures

    monkeypatch.setattr(StorageAgent, "read", spoilt)
    with Bar(None) as bar:
        figures = measure_volumes(tmp_path, VolumeSizes(n_blocks=20, phase_s=0.05), bar).figures
    assert figures["wrong"] == figures["reads"] > 0
