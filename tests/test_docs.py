"""What the documents say of the settings is so."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tenuto.cli.main import main
from tenuto.config import leaves, load_config
from tenuto.settings import load_settings

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")
GUIDE = (ROOT / "docs" / "guide" / "vllm.md").read_text("utf-8")
EXAMPLE = ROOT / "examples" / "tenuto.toml"


def test_the_guide_lists_exactly_the_settings_with_their_defaults():
    rows = re.findall(r"^\| `([a-z_.]+)` \| `([^`]+)` \| \S.* \|$", GUIDE, re.MULTILINE)
    assert rows == [(leaf.name, json.dumps(leaf.default)) for leaf in leaves()]


def test_the_example_loads_as_it_is_and_with_what_it_leaves_out(tmp_path):
    assert load_settings({"config": str(EXAMPLE)}).tiers.disk.path == "/var/cache/tenuto"
    text, n = re.subn(r"^# (\w+ = )", r"\1", EXAMPLE.read_text("utf-8"), flags=re.MULTILINE)
    assert n == 1
    (tmp_path / "all.toml").write_text(text, "utf-8")
    assert load_settings({"config": str(tmp_path / "all.toml")}).model.weights.startswith("llama")


def test_the_readmes_json_is_what_tenuto_serve_gives(monkeypatch, capsys):
    monkeypatch.setattr("tenuto.cli.serve.command.find_program", lambda model: ["vllm", "serve", model])
    (ours,) = re.findall(r"^tenuto (serve .*)$", README, re.MULTILINE)
    (plain,) = re.findall(r"^vllm serve MODEL .*?^}'[^\n]*$", README, re.MULTILINE | re.DOTALL)
    words = shlex.split(ours)
    assert main([*words[:1], "--dry-run", *words[1:]]) == 0
    shown, told = shlex.split(capsys.readouterr().out), shlex.split(plain)
    at = shown.index("--kv-transfer-config") + 1
    given, said = (json.loads(words.pop(at)) for words in (shown, told))
    assert shown == told
    configs = [load_config(transfer.pop("kv_connector_extra_config")) for transfer in (given, said)]
    assert given == said
    assert configs[0].tiers.disk.path == configs[1].tiers.disk.path
    sizes = [[c.tiers.host.capacity.replace(" ", ""), c.tiers.disk.capacity.replace(" ", "")] for c in configs]
    assert sizes[0] == sizes[1] == ["16GiB", "200GiB"]
