"""Runtimes over foreign libraries: what they say where something is missing, and what they do with errors."""

import ctypes
import errno
import os
import sys
from types import ModuleType, SimpleNamespace

import pytest

from tenuto.errors import Cause, ConfigError, StoreError
from tenuto.testing.runtime_bench import Bench
from tenuto.tiers.disk.runtime import Caps, Done, Failed, Memory, Op, Short, cufile, open_runtime
from tenuto.tiers.disk.runtime.cufile import CuFile, CuFiles
from tenuto.tiers.disk.runtime.libraries import load_library, packaged
from tenuto.tiers.disk.runtime.nixl import NixlRuntime, library
from tenuto.tiers.disk.runtime.nixl.library import Library
from tenuto.tiers.disk.runtime.striping import Striping
from tenuto.tiers.disk.runtime.threaded import ThreadedRuntime

pytestmark = pytest.mark.unit


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
    """A package `nixl_cu12` whose agent has these plugins."""

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
        self.transfers, self.n_registered = [], 0

    def register_memory(self, reg_list, mem_type, backends):
        self.n_registered += 1
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
    runtime = ThreadedRuntime(Caps("cufile", has_device_memory=True), [device], Striping(), 2)
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


def test_errors_of_cufile_are_told_in_words():
    calls = dict.fromkeys(("cuFileHandleRegister", "cuFileBufRegister", "cuFileBufDeregister", "cuFileHandleDeregister",
                           "cuFileRead", "cuFileWrite"))  # fmt: skip

    def opened():
        return SimpleNamespace(code=5011, cuda=0)

    calls_of = SimpleNamespace(**{name: lambda *args: -5030 for name in calls}, cuFileDriverOpen=opened)
    cuda = CuFile(calls_of)
    with pytest.raises(OSError, match="nvidia-fs driver is missing"):
        cuda.open()
    with pytest.raises(OSError, match="unsupported kind"):
        cuda.read(1, 2, 3, 4, 5)


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
