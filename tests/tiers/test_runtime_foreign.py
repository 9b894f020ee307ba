"""Runtimes over foreign libraries: what they say where something is missing, and what they do with errors."""

import ctypes
import errno
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tenuto.config import Disk
from tenuto.errors import Cause, ConfigError, StoreError
from tenuto.testing.runtime_bench import Bench
from tenuto.tiers.disk.runtime import (
    Caps,
    Done,
    Failed,
    Memory,
    Op,
    RuntimeSettings,
    Short,
    cufile,
    direct,
    open_runtime,
    probe,
)
from tenuto.tiers.disk.runtime.cufile import CuFile, CuFiles
from tenuto.tiers.disk.runtime.folders import FolderRuntime
from tenuto.tiers.disk.runtime.libraries import load_library, packaged
from tenuto.tiers.disk.runtime.nixl import NixlRuntime, check_files, library
from tenuto.tiers.disk.runtime.nixl.library import Library
from tenuto.tiers.disk.runtime.striping import Striping
from tenuto.tiers.disk.volume import volume_of

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    """The kernel's list of modules, which is there."""
    path = tmp_path / "modules"
    path.touch()
    monkeypatch.setattr(probe, "MODULES", path)
    return path


def refusal(url):
    with pytest.raises(ConfigError) as caught:
        open_runtime(url)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_the_package_nixl_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(library, "_MODULES", ("no_such_nixl",))
    assert "pip install nixl" in refusal(f"nixl+posix://{tmp_path}")


class NixlError(Exception):
    pass


def fake_nixl(monkeypatch, plugins, starts=True):
    """A package `nixl_cu12` whose agent has these plugins; its module."""

    class FakeAgent:
        def __init__(self, name, config):
            self.name, self.plugin_list = name, list(plugins)

        def create_backend(self, backend):
            if not starts:
                raise NixlError("NIXL_ERR_BACKEND")

    bindings = ModuleType("nixl_cu12._bindings")
    bindings.NixlError = NixlError
    api = SimpleNamespace(nixlBind=bindings, nixl_agent=FakeAgent, nixl_agent_config=lambda backends: None,
                          __name__="nixl_cu12._api")  # fmt: skip
    monkeypatch.setattr(library, "_import", lambda: (api, bindings))
    return api


def test_a_plugin_that_is_not_there_is_told_with_those_that_are(tmp_path, monkeypatch):
    fake_nixl(monkeypatch, ["UCX", "GDS"])
    assert "no plugin POSIX; it has GDS, UCX" in refusal(f"nixl+posix://{tmp_path}")


def test_a_plugin_that_does_not_start_is_told_with_its_words(tmp_path, monkeypatch):
    fake_nixl(monkeypatch, ["POSIX"], starts=False)
    assert "POSIX does not start here: NIXL_ERR_BACKEND" in refusal(f"nixl+posix://{tmp_path}")


@pytest.mark.parametrize("plugin", ["gds", "gds_mt"])
def test_what_gpu_direct_lacks_is_named(tmp_path, monkeypatch, plugin):
    fake_nixl(monkeypatch, ["GDS", "GDS_MT"])
    monkeypatch.setattr(library, "load_library", {"libcudart.so.12": SimpleNamespace()}.get)
    text = refusal(f"nixl+{plugin}://{tmp_path}")
    assert "libcuda.so.1, libcufile.so.0 missing" in text


def test_without_cufile_it_is_told_what_brings_it(tmp_path, monkeypatch):
    monkeypatch.setattr(cufile, "load_library", lambda name: None)
    assert "libcufile.so.0 is missing; `pip install nvidia-cufile-cu12`" in refusal(f"cufile://{tmp_path}")


def test_without_a_driver_cufile_is_not_started(tmp_path, monkeypatch):
    monkeypatch.setattr(cufile, "load_library", lambda name: None if "libcuda." in name else SimpleNamespace())
    assert "libcuda.so.1 is missing" in refusal(f"cufile://{tmp_path}")


def test_libraries_of_nvidias_packages_are_found(tmp_path, monkeypatch):
    folder = tmp_path / "nvidia/cufile/lib"
    folder.mkdir(parents=True)
    (folder / "libmadeup.so.0").write_bytes(b"no library")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert packaged("libmadeup.so.0") == [folder / "libmadeup.so.0"]
    assert load_library("libmadeup.so.0") is None
    assert load_library("libc.so.6") is not None


class PlainAgent:
    """NIXL's agent, played by preads and pwrites; `bad` says of (operation, file offset) what errs."""

    def __init__(self, bad=lambda op, offset: False, refuses=False):
        self.name, self.plugin_list, self.bad, self.refuses = "plain", ["POSIX"], bad, refuses
        self.transfers, self.n_registered, self.n_ever = [], 0, 0

    def register_memory(self, reg_list, mem_type, backends):
        self.n_registered += 1
        self.n_ever += 1
        return reg_list

    def deregister_memory(self, dereg_list, backends):
        self.n_registered -= 1

    def get_xfer_descs(self, descs, mem_type):
        return descs

    def initialize_xfer(self, operation, local_descs, remote_descs, remote_agent, notif_msg, backends):
        if self.refuses and len(local_descs) > 1:
            raise NixlError("NIXL_ERR_INVALID_PARAM")
        self.transfers.append(len(local_descs))
        return operation, local_descs, remote_descs

    def transfer(self, handle):
        return "PROC"

    def check_xfer_state(self, handle):
        operation, here, there = handle
        for (address, n, _), (offset, _, fd) in zip(here, there, strict=True):
            if self.bad(operation, offset):
                return "ERR"
            buffer = memoryview((ctypes.c_ubyte * n).from_address(address)).cast("B")
            (os.preadv if operation == "READ" else os.pwritev)(fd, [buffer], offset)
        return "DONE"

    def release_xfer_handle(self, handle):
        pass


def plain_nixl(folder, **kwargs):
    agent = PlainAgent(**kwargs)
    runtime = NixlRuntime(Caps("nixl+posix"), folder, Library(agent, "POSIX", (NixlError,)), 8)
    return agent, runtime


def test_one_bad_item_of_a_transfer_costs_no_other(tmp_path):
    agent, runtime = plain_nixl(tmp_path, bad=lambda op, offset: op == "READ" and offset == 5 * 4096)
    bench = Bench(runtime)
    states = bench.moved([bench.request(Op.READ, chunk) for chunk in range(16)])
    failed = Failed(Cause.IO_ERROR, "read folder/file: NIXL: a transfer failed")
    assert states == [Done(4096) if chunk != 5 else failed for chunk in range(16)]
    assert agent.transfers == [1, 16, *[1] * 16]
    runtime.close()
    assert agent.n_registered == 0


def test_a_transfer_that_nixl_does_not_take_is_tried_item_by_item(tmp_path):
    agent, runtime = plain_nixl(tmp_path, refuses=True)
    bench = Bench(runtime)
    assert bench.moved([bench.request(op, chunk) for op in Op for chunk in range(3)]) == [Done(4096)] * 6
    assert agent.transfers == [1] * 7
    runtime.close()


class FakeCuFile:
    """The library's calls on host memory; `error` is raised by all that move."""

    def __init__(self):
        self.handles, self.memory, self.error, self.fds = {}, set(), None, 0

    def register_file(self, fd):
        self.handles[1000 + fd] = fd
        return 1000 + fd

    def unregister_file(self, handle):
        del self.handles[handle]

    def register_memory(self, address, n_bytes):
        self.memory.add(address)

    def unregister_memory(self, address):
        self.memory.discard(address)

    def read(self, handle, address, n_bytes, offset, memory_offset):
        return self._move(os.preadv, handle, address + memory_offset, n_bytes, offset)

    def write(self, handle, address, n_bytes, offset, memory_offset):
        return self._move(os.pwritev, handle, address + memory_offset, n_bytes, offset)

    def _move(self, call, handle, address, n_bytes, offset):
        if self.error:
            raise self.error
        return call(
            self.handles[handle], [memoryview((ctypes.c_ubyte * n_bytes).from_address(address)).cast("B")], offset
        )


def refuse(*_):
    raise OSError(errno.EIO, "cuFileBufRegister: cuFile error 5020")


def test_memory_of_a_gpu_goes_through_cufile_and_that_of_the_host_does_not(tmp_path):
    fake, used = FakeCuFile(), []
    device = CuFiles(tmp_path, fake, SimpleNamespace(make_current=used.append))
    runtime = FolderRuntime(Caps("cufile", has_device_memory=True), [device], Striping(), 2)
    bench = Bench(runtime)
    assert fake.handles == {}
    host = bench.region
    bench.region = runtime.register_memory(Memory(host.memory.address, host.memory.n_bytes, device=1))
    assert bench.region.view is None
    assert bench.moved([bench.request(Op.READ, 0, 16)]) == [Done(16 * 4096)]
    assert bytes(bench.buffer) == bench.data
    assert fake.memory == {host.memory.address}
    assert set(used) == {1}
    bench.clear()
    assert bench.moved([bench.request(Op.WRITE, 0, 2), bench.request(Op.READ, 12, 8, memory_offset=0)]) == [
        Done(2 * 4096), Short(4 * 4096)]  # fmt: skip
    fake.error = OSError(errno.EIO, "cuFileRead: cuFile error 5030")
    (state,) = bench.moved([bench.request(Op.READ, 0)])
    assert state == Failed(Cause.IO_ERROR, "read folder/file: cuFileRead: cuFile error 5030")
    runtime.unregister_memory(bench.region)
    assert fake.memory == set()
    fake.register_memory, fake.error = refuse, None
    bench.region = runtime.register_memory(Memory(host.memory.address, host.memory.n_bytes, device=1))
    assert bench.moved([bench.request(Op.READ, 3)]) == [Done(4096)]
    runtime.unregister_memory(bench.region)
    runtime.close()
    assert fake.handles == {}


class FakeLibrary:
    """libcufile's calls, which end with these codes and results; `registered` has the files that were."""

    def __init__(self, opened=0, file=0, moved=0, errno_of_moved=0):
        self.registered, self.n_files = [], 0

        def register_file(handle, description):
            fd = description._obj.handle.fd
            self.registered.append((Path(f"/proc/self/fd/{fd}").readlink(), os.fstat(fd).st_size))
            handle._obj.value = 77
            self.n_files += not file
            return error(file)

        def unregister_file(handle):
            assert handle.value == 77
            self.n_files -= 1

        def move(*_):
            if errno_of_moved:
                ctypes.set_errno(errno_of_moved)
            return moved

        self.cuFileDriverOpen = lambda: error(opened)
        self.cuFileHandleRegister, self.cuFileHandleDeregister = register_file, unregister_file
        self.cuFileRead = move
        self.cuFileWrite = lambda *_: move()
        self.cuFileBufRegister = lambda *_: error(0)
        self.cuFileBufDeregister = lambda *_: error(0)


def error(code):
    return SimpleNamespace(code=code, cuda=0)


@pytest.mark.parametrize(("code", "words"), [
    (5001, "the kernel module nvidia-fs is not loaded, and compatibility mode is off (5001)"),
    (5011, "the CUDA driver failed (5011)"),
    (5033, "it can't be set up; cufile.log says what it lacks, as libudev.so.1 (5033)"),
    (5049, "cuFile error 5049"),
])  # fmt: skip
def test_a_driver_of_cufile_that_does_not_open_is_told_in_words(code, words):
    with pytest.raises(OSError) as caught:
        CuFile(FakeLibrary(opened=code)).open()
    assert caught.value.strerror == f"cuFileDriverOpen: {words}"


def test_a_driver_of_cufile_that_is_open_is_good():
    CuFile(FakeLibrary(opened=5026)).open()


def moving(call, **kwargs):
    """What a read or write that fails raises, with an errno of an older call about."""
    ctypes.set_errno(errno.ENOSPC)
    with pytest.raises(OSError) as caught:
        getattr(CuFile(FakeLibrary(**kwargs)), call)(1, 2, 3, 4, 5)
    return caught.value.errno, caught.value.strerror


@pytest.mark.parametrize(("call", "name"), [("read", "cuFileRead"), ("write", "cuFileWrite")])
def test_what_cufile_says_of_a_transfer_is_told_in_words(call, name):
    assert moving(call, moved=-5013) == (errno.EIO, f"{name}: memory of a kind that is not supported (5013)")
    assert moving(call, moved=-1, errno_of_moved=errno.EFBIG) == (errno.EFBIG, f"{name}: File too large")
    assert moving(call, moved=-1, errno_of_moved=5027) == (errno.EIO, f"{name}: the file is not registered (5027)")
    assert moving(call, moved=-1) == (errno.EIO, f"{name}: Input/output error")
    assert CuFile(FakeLibrary(moved=3)).read(1, 2, 3, 4, 5) == 3


def test_the_errno_of_a_library_is_heard():
    """`pread` takes what `cuFileRead` takes: of a descriptor that is none it says so."""
    libc, fake = load_library("libc.so.6"), FakeLibrary()
    fake.cuFileRead = libc.pread
    buffer = ctypes.create_string_buffer(8)
    with pytest.raises(OSError, match="cuFileRead: Bad file descriptor") as caught:
        CuFile(fake).read((1 << 31) - 1, ctypes.addressof(buffer), 8, 0, 0)
    assert caught.value.errno == errno.EBADF


@pytest.fixture
def udev(tmp_path, monkeypatch):
    """A folder of udev's records of a made-up disk, 254:3, which all files are on."""
    records = tmp_path / "udev"
    records.mkdir()
    monkeypatch.setattr(probe, "UDEV", records)
    monkeypatch.setattr(os, "major", lambda device: 254)
    monkeypatch.setattr(os, "minor", lambda device: 3)
    return records


def opened_folder(tmp_path, monkeypatch, library):
    folder = tmp_path / "kv"
    folder.mkdir()
    monkeypatch.setattr(cufile, "load_library", lambda name: library)
    return folder


def test_a_folder_that_cufile_does_not_take_is_told_when_it_is_opened(tmp_path, monkeypatch, udev):
    fake = FakeLibrary(file=5027)
    folder = opened_folder(tmp_path, monkeypatch, fake)
    said = (
        f"cufile: {folder} can't be used: cuFileHandleRegister: the file is not registered (5027); "
        f"udev's record of the disk, {udev}/b254:3, is missing: run udev or, in a container, "
        f'mount the host\'s /run/udev; or use "file"'
    )
    assert refusal(f"cufile://{folder}") == said
    volume = volume_of(Disk(path=str(folder), runtime="cufile"))
    with pytest.raises(ConfigError) as caught:
        volume.runtime((folder,), RuntimeSettings())
    assert str(caught.value) == f"tiers.disk.runtime: {said}"
    assert [(path.parent, n_bytes) for path, n_bytes in fake.registered] == [(folder, 4096)] * 2
    assert list(folder.iterdir()) == []
    (udev / "b254:3").write_text("E:ID_FS_TYPE=ext4\n")
    assert refusal(f"cufile://{folder}").endswith(
        'its cufile.log says why; give a folder on a local disk with ext4 or XFS, or use "file"'
    )


@pytest.mark.parametrize("scheme", ["cufile", "nixl+gds"])
def test_where_the_start_of_cufile_would_not_end_it_is_not_started(tmp_path, monkeypatch, modules, scheme):
    modules.unlink()
    folder = opened_folder(tmp_path, monkeypatch, SimpleNamespace())
    fake_nixl(monkeypatch, ["GDS"], starts=False)
    monkeypatch.setattr(library, "load_library", lambda name: SimpleNamespace())
    said = f"{scheme}: {modules} is missing, and cuFile's start never ends without it"
    assert refusal(f"{scheme}://{folder}").startswith(said)


def test_where_no_disk_is_udev_is_not_blamed(tmp_path, monkeypatch, udev):
    monkeypatch.setattr(os, "major", lambda device: 0)
    folder = opened_folder(tmp_path, monkeypatch, FakeLibrary(file=5008))
    text = refusal(f"cufile://{folder}")
    assert "the file or its file system is not supported (5008); its cufile.log says why" in text


def test_a_folder_that_cufile_takes_opens_with_nothing_left_in_it(tmp_path, monkeypatch):
    fake = FakeLibrary()
    folder = opened_folder(tmp_path, monkeypatch, fake)
    monkeypatch.setattr("tenuto.tiers.disk.runtime.url.CudaDriver", SimpleNamespace)
    runtime = open_runtime(f"cufile://{folder}")
    assert (len(fake.registered), fake.n_files, list(folder.iterdir())) == (1, 0, [])
    runtime.close()


@pytest.mark.parametrize("broken", ["reserve", "open_direct"])
def test_a_folder_that_takes_no_file_may_take_one_later(tmp_path, monkeypatch, broken):
    folder = opened_folder(tmp_path, monkeypatch, FakeLibrary())

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(*((os, "ftruncate") if broken == "reserve" else (direct, "open_direct")), full)
    with pytest.raises(StoreError, match=r"(create|open) \.probe-\w+: full") as caught:
        open_runtime(f"cufile://{folder}")
    assert caught.value.cause is Cause.NO_SPACE
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("plugin", ["GDS", "GDS_MT"])
def test_a_folder_that_nixls_gpu_direct_does_not_take_is_told_when_it_is_opened(tmp_path, monkeypatch, udev, plugin):
    agents = []

    def register(agent, reg_list, mem_type, backends):
        ((_, _, fd, _),) = reg_list
        agents.append((os.fstat(fd).st_size, mem_type, backends))
        raise NixlError("NIXL_ERR_BACKEND")

    api = fake_nixl(monkeypatch, ["GDS", "GDS_MT"])
    monkeypatch.setattr(library, "load_library", lambda name: SimpleNamespace())
    monkeypatch.setattr(api.nixl_agent, "register_memory", register, raising=False)
    folder = tmp_path / "kv"
    folder.mkdir()
    assert refusal(f"nixl+{plugin.lower()}://{folder}") == (
        f"nixl+{plugin.lower()}: {folder} can't be used: NIXL: a file can't be registered: NIXL_ERR_BACKEND; "
        f"udev's record of the disk, {udev}/b254:3, is missing: run udev or, in a container, "
        f'mount the host\'s /run/udev; or use "file"'
    )
    assert agents == [(4096, "FILE", [plugin])]
    assert list(folder.iterdir()) == []


def test_a_folder_that_nixl_takes_has_nothing_left_in_it(tmp_path):
    agent = PlainAgent()
    folder = tmp_path / "kv"
    folder.mkdir()
    check_files(folder, Library(agent, "GDS", (NixlError,)))
    assert (agent.n_ever, agent.n_registered, list(folder.iterdir())) == (1, 0, [])
    check_files(folder, Library(agent, "POSIX", (NixlError,)))
    assert agent.n_ever == 1


def test_memory_that_nixl_refuses_is_not_registered(tmp_path):
    agent, runtime = plain_nixl(tmp_path)
    bench = Bench(runtime)

    def refuse(*args):
        raise NixlError("NIXL_ERR_NOT_SUPPORTED")

    agent.register_memory = refuse
    with pytest.raises(StoreError, match="NIXL_ERR_NOT_SUPPORTED"):
        runtime.register_memory(Memory.of(bench.buffer[:4096]))
    runtime.close()


@pytest.mark.parametrize("name", ["initialize_xfer", "check_xfer_state", "release_xfer_handle"])
def test_a_bug_in_nixl_ends_its_items_and_not_the_thread(tmp_path, monkeypatch, name):
    agent, runtime = plain_nixl(tmp_path)
    bench = Bench(runtime)

    def broken(*args):
        raise TypeError("no such thing")

    with monkeypatch.context() as patch:
        patch.setattr(agent, name, broken)
        submission = runtime.submit([bench.request(Op.READ, chunk) for chunk in (0, 1)])
        with pytest.raises(TypeError, match="no such thing"):
            runtime.wait(submission, 10.0)
    assert bench.moved([bench.request(Op.READ, 0)]) == [Done(4096)]
    runtime.close()


def test_what_nixl_does_not_give_up_is_told_and_costs_nothing(tmp_path, our_log):
    agent, runtime = plain_nixl(tmp_path)
    bench = Bench(runtime)

    def keep(*args):
        raise NixlError("NIXL_ERR_BACKEND")

    agent.deregister_memory = keep
    held = bench.moved([bench.request(Op.READ, 0, work=lambda: runtime.close_batch([bench.file]))])
    assert held == [Done(4096)]
    runtime.unregister_memory(bench.region)
    (bench.file,) = runtime.open_batch(["folder/file"])
    bench.region = runtime.register_memory(Memory.of(bench.buffer))
    assert bench.moved([bench.request(Op.READ, 0)]) == [Done(4096)]
    runtime.close()
    assert {record.getMessage() for record in our_log()} == {"tenuto: NIXL: can't be deregistered: NIXL_ERR_BACKEND"}
