"""What the documents say is so, and all of it can be reached. Links and references are checked by `make docs`."""

import ast
import json
import re
import shlex
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from tenuto.cli.main import main
from tenuto.config import leaves, load_config
from tenuto.pools import TRANSITIONS
from tenuto.settings import load_settings

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text("utf-8")
GUIDE = (DOCS / "guide" / "vllm.md").read_text("utf-8")
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


def test_the_guides_json_is_what_the_readmes_tenuto_serve_gives(monkeypatch, capsys):
    monkeypatch.setattr("tenuto.cli.serve.command.find_program", lambda model: ["vllm", "serve", model])
    (ours,) = re.findall(r"^tenuto (serve .*)$", README, re.MULTILINE)
    (plain,) = re.findall(r"^vllm serve MODEL .*?^}'[^\n]*$", GUIDE, re.MULTILINE | re.DOTALL)
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


def find(pattern: str, page: str) -> list[Any]:
    return re.findall(pattern, (DOCS / page).read_text("utf-8"), re.MULTILINE)


def test_every_page_is_in_the_navigation():
    trees = find(r"^```\{toctree\}\n(?::.*\n)*\n((?:.+\n)+)```$", "index.md")
    reached = {page for tree in trees for entry in tree.split() for page in DOCS.glob(f"{entry}.md")}
    assert reached | {DOCS / "index.md"} == set(DOCS.rglob("*.md"))


def test_the_index_of_decisions_has_each_with_its_title():
    listed = find(r"^\* (\d+\. )\[(.+)\]\((.+)\)$", "decisions/index.md")
    names = sorted(page.name for page in (DOCS / "decisions").glob("0*.md"))
    assert [(number + title, name) for number, title, name in listed] == [
        (find(r"^# (.+)$", f"decisions/{name}")[0], name) for name in names
    ]


def test_the_concepts_have_every_transition_of_a_slot_and_no_other():
    rows = find(r"^\| ([A-Z]+) \| ([a-z]+) \| ([A-Z]+) \| \S.* \|$", "concepts.md")
    assert rows == [(start.name, trigger.value, end.name) for (start, trigger), end in TRANSITIONS.items()]


def test_the_glossary_has_ten_nouns_and_nine_verbs():
    words = find(r"^\| \*\*(\w+)\*\* \| \S.* \|$", "glossary.md")
    assert [word[0].isupper() for word in words] == [True] * 10 + [False] * 9


@cache
def body_of(module: str) -> list[ast.stmt]:
    path = ROOT / "src" / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    body = ast.parse(path.read_text("utf-8")).body
    lazy = [part for node in body if isinstance(node, ast.If) for part in node.body]  # imported for checkers of types
    return [*body, *lazy]


def text_of(module: str, name: str) -> str:
    """What stands below a class, a function or an assignment, in whatever module the name is imported from."""
    body = body_of(module)
    for node, after in zip_longest(body, body[1:]):
        match node:
            case ast.ClassDef(defined) | ast.FunctionDef(defined) if defined == name:
                return ast.get_docstring(node) or ""
            case ast.Assign(targets=[ast.Name(defined)]) | ast.AnnAssign(target=ast.Name(defined)) if defined == name:
                is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                return str(after.value.value) if is_text else ""
            case ast.ImportFrom(module=str(source), names=names) if any(alias.name == name for alias in names):
                return text_of(source, name)
    raise AssertionError(f"{module} has no {name}")


def test_every_public_name_of_a_package_says_in_words_what_it_is():
    bare = []
    for path in sorted((ROOT / "src" / "tenuto").rglob("__init__.py")):
        module = ".".join(path.parent.relative_to(ROOT / "src").parts)
        found = re.search(r"^__all__ = \[(.*?)\]$", path.read_text("utf-8"), re.MULTILINE | re.DOTALL)
        names = re.findall(r'"(\w+)"', found[1]) if found else []
        bare += [f"{module}.{name}" for name in names if len(text_of(module, name).split()) < 2]
    assert bare == []


def test_the_readme_shows_the_librarys_example_as_it_is():
    example = (ROOT / "examples" / "library.py").read_text("utf-8")
    assert f"```python\n{example}```\n" in README


def test_the_readmes_figures_are_those_of_the_results_that_they_cite():
    rows = re.findall(r"^\|[^|]+\|(.+)\| \[.+\]\((benchmarks/results/.+\.json)\) \|$", README, re.MULTILINE)
    assert len(rows) == 4
    for cells, path in rows:
        figures = json.loads((ROOT / path).read_text("utf-8"))["figures"].values()
        for said in re.findall(r"[\d,.]+", cells):
            n_decimals = len(said.partition(".")[2])
            assert float(said.replace(",", "")) in {round(figure, n_decimals) for figure in figures}, (path, said)
