"""Memory that may still be touched, by kernels that are folders."""

import pytest

from tenuto.memory.room import Room, free_memory

pytestmark = pytest.mark.unit

GIB = 1 << 30


def write(top, path, text):
    file = top / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def top(tmp_path):
    write(tmp_path, "proc/meminfo", f"MemTotal: {100 << 20} kB\nMemFree: 5 kB\nMemAvailable:   {80 << 20} kB\n")
    return tmp_path


def v2(top, group, limit, used, **stat):
    folder = f"sys/fs/cgroup{group}"
    write(top, f"{folder}/memory.max", f"{limit}\n")
    write(top, f"{folder}/memory.current", f"{used}\n")
    write(top, f"{folder}/memory.stat", "".join(f"{name} {value}\n" for name, value in stat.items()))


def test_without_a_container_it_is_what_the_machine_has_free(top):
    assert free_memory(top) == Room(80 * GIB)


def test_a_containers_limit_counts_when_it_is_nearer(top):
    write(top, "proc/self/cgroup", "0::/\n")
    v2(top, "", 40 * GIB, 10 * GIB)
    assert free_memory(top) == Room(30 * GIB, is_container=True)


def test_a_limit_beyond_the_machines_memory_does_not_count(top):
    write(top, "proc/self/cgroup", "0::/\n")
    v2(top, "", 400 * GIB, 10 * GIB)
    assert free_memory(top) == Room(80 * GIB)


@pytest.mark.parametrize("limit", ["max", "", "what"])
def test_no_limit_is_no_limit(top, limit):
    write(top, "proc/self/cgroup", "0::/\n")
    v2(top, "", limit, 10 * GIB)
    assert free_memory(top) == Room(80 * GIB)


def test_file_pages_in_a_container_are_free_since_the_kernel_drops_them_first(top):
    write(top, "proc/self/cgroup", "0::/\n")
    v2(top, "", 40 * GIB, 39 * GIB, anon=7 * GIB, inactive_file=20 * GIB, active_file=4 * GIB, slab_reclaimable=GIB)
    assert free_memory(top).free_bytes == 26 * GIB


def test_every_group_around_the_process_counts(top):
    write(top, "proc/self/cgroup", "0::/kube/pod/main\n")
    v2(top, "/kube/pod/main", "max", 1 * GIB)
    v2(top, "/kube/pod", 20 * GIB, 15 * GIB)
    v2(top, "/kube", 60 * GIB, 15 * GIB)
    assert free_memory(top) == Room(5 * GIB, is_container=True)


def test_more_used_than_allowed_is_negative_not_an_error(top):
    write(top, "proc/self/cgroup", "0::/\n")
    v2(top, "", 4 * GIB, 5 * GIB)
    assert free_memory(top).free_bytes == -GIB


def test_the_first_version_of_cgroups_counts_too_also_where_the_path_is_the_hosts(top):
    write(top, "proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n")
    write(top, "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{8 * GIB}\n")
    write(top, "sys/fs/cgroup/memory/memory.usage_in_bytes", f"{6 * GIB}\n")
    write(top, "sys/fs/cgroup/memory/memory.stat", f"cache 5\ntotal_inactive_file {GIB}\ntotal_active_file {GIB}\n")
    assert free_memory(top) == Room(4 * GIB, is_container=True)


def test_a_kernel_that_says_nothing_bounds_nothing(tmp_path):
    assert free_memory(tmp_path).free_bytes > 1 << 60


def test_this_machine_has_some():
    assert 0 < free_memory().free_bytes < 1 << 60
