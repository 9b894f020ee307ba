"""The guide of the library says what is so: its examples run, and its settings are those that are taken."""

import re
from pathlib import Path

import pytest

import tenuto
from tenuto.config import leaves
from tenuto.library.configuration import ENGINES_ALONE
from tests.library.library_rig import LAYOUT, TOKENS, n_found, opened, prompt

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guide" / "library.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def example_with(text):
    (found,) = [example for example in EXAMPLES if text in example]
    return found


def test_the_guide_lists_the_settings_that_a_library_takes():
    listed = re.findall(
        r"`((?:tiers|runtime|layout|model|events)\.[a-z_.]+)`", PAGE.split("A library takes:")[1].split("Those")[0]
    )
    assert sorted(listed) == sorted({leaf.name for leaf in leaves()} - set(ENGINES_ALONE))


@pytest.mark.parametrize("n_blocks", [0, 1, 8, 20])
def test_a_prompt_of_any_length_goes_by_the_guides_way(n_blocks):
    ids = [*prompt(1, n_blocks), 7]
    with opened(n_host=32) as cache:
        for _ in range(2):
            exec(example_with("a longer prompt"), {"cache": cache, "layout": LAYOUT, "ids": ids})
        with cache.match(ids) as hit:
            assert len(hit) == min(n_blocks, LAYOUT.n_blocks)


def test_the_guide_shows_the_example_of_generation_as_it_is():
    assert example_with("def generate(") in (ROOT / "examples" / "generate.py").read_text("utf-8")


def test_the_guides_hit_rate_is_what_was_found(cache):
    exec(example_with("a longer prompt"), {"cache": cache, "layout": LAYOUT, "ids": prompt(1)})
    cache.match(prompt(1)).release()
    with cache.allocate(8):  # out of the device
        pass
    cache.match(prompt(1)).release()
    found = {"cache": cache}
    exec(example_with("hit_rate"), found)
    assert found["hit_rate"] == 4 * TOKENS / (6 * TOKENS)
    assert cache.statistics()["tokens.loaded.host"] == 2 * TOKENS


def test_the_guides_groups_find_what_they_were_given(capsys):
    exec(example_with("GroupPools"), {})
    assert capsys.readouterr().out == "64 {'full': [0, 1, 2, 3], 'window': [2, 3]}\n"


def test_settings_come_from_a_file_and_what_is_beside_it_goes_first(tmp_path):
    file = tmp_path / "tenuto.toml"
    file.write_text('[tiers.host]\ncapacity = "64 KiB"\npolicy = "slru"\n')
    with tenuto.open_cache(LAYOUT, model="m", settings={"config": file, "tiers.host.policy": "lineage"}) as cache:
        assert type(cache._core.below.manager.host._policy).__name__ == "Lineage"
        assert cache.statistics()["host.capacity_bytes"] == 64 << 10
        assert n_found(cache, prompt(1)) == 0
