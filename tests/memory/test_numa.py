"""The NUMA node nearest to a device, by kernels that are folders."""

import pytest

from tenuto.memory.numa import Node, nearest_node, parse_cpulist

pytestmark = pytest.mark.unit

GPU = "0000:1b:00.0"


def kernel(top, cpulists, numa_node=None):
    for number, cpulist in enumerate(cpulists):
        folder = top / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpulist + "\n")
    if numa_node is not None:
        device = top / "sys/bus/pci/devices" / GPU
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{numa_node}\n")
    return top


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0", {0}), ("0-3", {0, 1, 2, 3}), ("0-1,8-9\n", {0, 1, 8, 9}), ("0,2,4", {0, 2, 4}), ("\n", set())],
)
def test_a_cpulist_is_numbers_and_ranges(text, cpus):
    assert parse_cpulist(text) == cpus


@pytest.mark.parametrize("text", ["a", "-3", "1-b"])
def test_what_is_no_cpulist_is_refused(text):
    with pytest.raises(ValueError, match="invalid literal"):
        parse_cpulist(text)


def test_the_device_says_which_node_is_nearest(tmp_path):
    assert nearest_node(GPU, kernel(tmp_path, ["0-3", "4-7"], 1)) == Node(1, frozenset({4, 5, 6, 7}))


@pytest.mark.parametrize(
    ("cpulists", "numa_node"),
    [
        (["0-3", "4-7"], -1),  # not known
        (["0-3", "4-7"], None),  # no such device
        (["0-3", "4-7"], 5),  # no such node
        (["0-3", "4-7"], "what"),
        (["0-3", ""], 1),  # memory alone
        (["0-7"], 0),  # nothing to choose
        ([], 0),
    ],
)
def test_there_is_no_nearest_node_where_the_kernel_does_not_say_or_has_one(tmp_path, cpulists, numa_node):
    assert nearest_node(GPU, kernel(tmp_path, cpulists, numa_node)) is None
