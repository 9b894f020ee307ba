"""`tenuto inspect` of a striped root: all folders count, and one that is gone is told, not taken for damage."""

import json
import shutil
from dataclasses import replace

import pytest

from tenuto.cli.main import main
from tests.tiers.disk_fixtures import NAMESPACE, Disk
from tests.tiers.test_disk_stripes import EXTENT, LAYOUT

pytestmark = pytest.mark.adapter


@pytest.fixture
def roots(tmp_path):
    return tmp_path / "root", tmp_path / "x", tmp_path / "y"


@pytest.fixture
def striped(roots):
    """A closed store with four blocks, over three folders."""
    its = replace(NAMESPACE, n_layers=4, n_kv_heads=4, k_dim=512, v_dim=256)
    disk = Disk(roots[0], others=roots[1:], layout=LAYOUT, namespace=its, capacity=64 * EXTENT)
    for slot in range(4):
        disk.wait_slots(slot + 1)
        assert disk.write((slot, slot)) == []
    disk.wait_slots(8)
    disk.close()
    return disk


def inspect(capsys, folder, *options):
    code = main(["inspect", str(folder), "--json", *options])
    return code, json.loads(capsys.readouterr().out)


def test_bytes_of_all_folders_count_and_verify(striped, roots, capsys):
    code, found = inspect(capsys, roots[0], "--verify")
    assert (code, found["faults"], found["strays"]) == (0, [], [])
    assert found["stripes"] == [str(folder) for folder in roots[1:]]
    (rank,) = found["models"][0]["ranks"]
    assert (rank["blocks"], rank["used_bytes"], rank["notes"]) == (4, 4 * EXTENT, [])
    assert rank["allocated_bytes"] == sum(
        path.stat().st_size for folder in roots for path in folder.glob("*/*/*/pool-*.kv")
    )
    assert (found["verified"]["good"], found["verified"]["is_good"]) == (4, True)


def test_a_byte_that_changed_in_any_folder_is_found(striped, roots, capsys):
    for folder in roots:
        (path,) = folder.glob("*/*/rank-0/pool-00000.kv")
        with path.open("r+b") as file:
            file.seek(70_000)
            byte = file.read(1)[0]
            file.seek(70_000)
            file.write(bytes([byte ^ 1]))
            file.flush()
            code, found = inspect(capsys, roots[0], "--verify")
            assert code == 1
            assert [bad["cause"] for bad in found["verified"]["bad"]] == ["corrupt"]
            file.seek(70_000)
            file.write(bytes([byte]))
    assert inspect(capsys, roots[0], "--verify")[0] == 0


def test_a_folder_that_is_gone_is_told_and_no_block_is_called_bad(striped, roots, capsys):
    roots[2].rename(roots[2].with_name("away"))
    for make, words in ((lambda: None, "is not there"), (roots[2].mkdir, "has no note of it")):
        make()
        code, found = inspect(capsys, roots[0], "--verify")
        (fault,) = found["faults"]
        assert fault.startswith(f"{roots[2]}, folder 3 of the stripe, {words}")
        assert (code, found["verified"]["bad"], found["verified"]["unread"]) == (1, [], [fault])
        assert found["models"][0]["ranks"][0]["notes"] == []
    assert main(["inspect", str(roots[0])]) == 0
    assert fault in capsys.readouterr().out
    assert not list(roots[2].iterdir())


def test_another_folder_of_the_stripe_is_not_the_one_to_give(striped, roots, capsys):
    assert main(["inspect", str(roots[1])]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"{roots[1]} is folder 2 of a stripe; give the first, {roots[0]}")


def test_what_else_lies_in_the_folders_is_told_with_its_path(striped, roots, capsys):
    (roots[1] / "photos").mkdir()
    home = roots[1] / striped.claim.instance.parent.name
    (home / "a" / "rank-0" / "notes.txt").touch()
    shutil.copytree(home / "a", home / "b")
    (home / "b" / "rank-0" / "notes.txt").unlink()
    _, found = inspect(capsys, roots[0])
    assert {stray["path"]: stray["why"] for stray in found["strays"]} == {
        str(roots[1] / "photos"): "not tenuto's",
        str(home / "a" / "rank-0" / "notes.txt"): "not tenuto's",
        str(home / "b"): "left over from a removal: it goes at the next start",
    }
