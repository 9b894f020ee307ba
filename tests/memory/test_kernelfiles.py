"""Files of a kernel that says odd things: nothing is made of them, and nothing ends."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenuto.memory.kernelfiles import kernel_number, kernel_text
from tenuto.memory.numa import nearest_node, parse_cpulist
from tenuto.memory.room import Room, free_memory

pytestmark = pytest.mark.unit

ODD = st.binary(max_size=40) | st.sampled_from(
    [
        b"",
        b"\n",
        b"max\n",
        b"-1\n",
        b"12 kB\n",
        b"\xff\xfe\n",
        "²\n".encode(),
        "٣\n".encode(),
        b"9" * 5000,
        b"a b c\n\n",
    ]
)
GROUP = "sys/fs/cgroup"
PAIRS = st.sampled_from([b"inactive_file", b"active_file", b"slab_reclaimable", b"anon"])
STAT = st.lists(ODD | st.builds(lambda name, value: name + b" " + value + b"\n", PAIRS, ODD), max_size=6).map(b"".join)
ANYTHING = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(top, path, data):
    (top / path).parent.mkdir(parents=True, exist_ok=True)
    (top / path).write_bytes(data)


@pytest.mark.parametrize(
    ("text", "number"),
    [("12\n", 12), (" 0 ", 0), ("max\n", None), ("-1", None), ("", None), ("1 2", None), ("²", None), ("٣", None),
     ("1_0", None), ("9" * 5000, None)],
)  # fmt: skip
def test_a_number_is_decimal_digits_alone(text, number):
    assert kernel_number(text) == number


def test_what_can_not_be_read_is_nothing(tmp_path):
    assert kernel_text(tmp_path / "none") == kernel_text(tmp_path) == kernel_text(tmp_path / "none/at/all") == ""


def test_a_file_whose_bytes_are_no_text_is_read_all_the_same(tmp_path):
    write(tmp_path, "it", b"a\xff\nb\n")
    assert kernel_text(tmp_path / "it").splitlines()[1] == "b"


@pytest.mark.parametrize(
    ("stat", "free"),
    [
        ("inactive_file\nactive_file 5\n", 65),
        ("inactive_file 1 2\nactive_file 5\n", 65),
        ("\n \ninactive_file max\nactive_file 5\n", 65),
        ("inactive_file -7\nactive_file 5\n", 65),
    ],
)
def test_a_line_of_memory_stat_that_is_none_is_passed_over(tmp_path, stat, free):
    write(tmp_path, "proc/self/cgroup", b"what is this\n::\n0::/\n")
    for name, text in (("max", "100"), ("current", "40"), ("stat", stat)):
        write(tmp_path, f"{GROUP}/memory.{name}", text.encode())
    assert free_memory(tmp_path) == Room(free, is_container=True)


@ANYTHING
@given(st.lists(ODD, min_size=4, max_size=4), STAT, st.sampled_from([b"0::/\n", b"3:memory:/\n", b""]))
def test_whatever_the_kernel_says_there_is_an_answer(tmp_path, odd, stat, groups):
    meminfo, cgroup, limit, used = odd
    write(tmp_path, "proc/meminfo", b"MemAvailable: " + meminfo)
    write(tmp_path, "proc/self/cgroup", groups + cgroup)
    for root, names in ((GROUP, ("max", "current")), (f"{GROUP}/memory", ("limit_in_bytes", "usage_in_bytes"))):
        for name, data in zip((*names, "stat"), (limit, used, stat), strict=True):
            write(tmp_path, f"{root}/memory.{name}", data)
    assert isinstance(free_memory(tmp_path).free_bytes, int)


@ANYTHING
@given(ODD, ODD)
def test_whatever_the_kernel_says_a_node_has_cpus(tmp_path, number, cpulist):
    for node in range(3):
        write(tmp_path, f"sys/devices/system/node/node{node}/cpulist", cpulist)
    write(tmp_path, "sys/bus/pci/devices/gpu/numa_node", number)
    node = nearest_node("gpu", tmp_path)
    assert node is None or node.cpus


@pytest.mark.parametrize("text", ["0-99999999999", "70000", "1-2-3", "0x1"])
def test_a_list_of_more_cpus_than_there_can_be_is_none(text):
    with pytest.raises(ValueError, match=r"range of CPUs|invalid literal"):
        parse_cpulist(text)
