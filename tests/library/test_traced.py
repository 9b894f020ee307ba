"""A program's own trace, written as the page on policies says, for `tenuto simulate`."""

import json
import re
from pathlib import Path

import pytest

from tenuto.cli.main import main
from tests.library.library_rig import fill, prompt

pytestmark = pytest.mark.unit

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "policies.md").read_text("utf-8")


def test_a_programs_trace_is_simulated_and_finds_what_the_program_found(cache, tmp_path, capsys):
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    said = {}
    exec(code, said)
    n_found = n_asked = 0
    with (tmp_path / "trace.jsonl").open("w") as file:
        for number in (1, 2, 1, 3, 2, 1):
            tokens = prompt(number)
            with cache.match(tokens) as hit:
                file.write(said["trace_line"](hit))
                n_found, n_asked = n_found + len(hit), n_asked + 2
                if not len(hit):
                    with cache.allocate(2) as blocks:
                        blocks.apply(tokens)
                        fill(blocks, tokens)
                        blocks.register().release()
    assert main(["simulate", str(tmp_path / "trace.jsonl"), "--capacity-blocks", "8", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["hit_rate"] for row in rows] == [n_found / n_asked] * 2 == [0.5] * 2
