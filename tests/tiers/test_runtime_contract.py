"""Every runtime keeps the contract."""

from dataclasses import replace
from importlib.util import find_spec

import pytest

from tenuto.errors import ConfigError
from tenuto.testing.runtime_contract import DESCRIPTORS, RuntimeContract
from tenuto.tiers.disk.runtime import RuntimeSettings, open_runtime

pytestmark = pytest.mark.contract


def queued(runtime):
    """It, where this machine has a queue for the folder."""
    if not runtime.caps.is_queued:
        runtime.close()
        pytest.skip("no kernel AIO here")
    return runtime


class TestMemory(RuntimeContract):
    def make_runtime(self, folder, settings):
        return open_runtime("mem://", settings)


class TestFile(RuntimeContract):
    """By the kernel's queue."""

    def make_runtime(self, folder, settings):
        return queued(open_runtime(f"file://{folder}", settings))


class TestFileByThreads(RuntimeContract):
    def make_runtime(self, folder, settings):
        return open_runtime(f"file://{folder}", replace(settings, is_queued=False))


class TestFileOfOneReaper(RuntimeContract):
    """One thread that sees reads end, and does their work."""

    settings = RuntimeSettings(max_open_files=DESCRIPTORS, n_threads=1)
    n_many = 2_000

    def make_runtime(self, folder, settings):
        return queued(open_runtime(f"file://{folder}", settings))


class TestFileOf64K(RuntimeContract):
    """The larger alignment that some devices want."""

    settings = RuntimeSettings(alignment_bytes=64 << 10, max_open_files=DESCRIPTORS)
    n_many = 2_000

    def make_runtime(self, folder, settings):
        return open_runtime(f"file://{folder}", settings)


class TestStriped(RuntimeContract):
    """Units as small as a chunk, so that items cross disks."""

    settings = RuntimeSettings(stripe_bytes=4096, max_open_files=DESCRIPTORS, n_threads=2)

    def make_runtime(self, folder, settings):
        return queued(open_striped(folder, settings))


class TestStripedByThreads(RuntimeContract):
    settings = replace(TestStriped.settings, is_queued=False)

    def make_runtime(self, folder, settings):
        return open_striped(folder, replace(settings, is_queued=False))


def open_striped(folder, settings):
    folders = [folder / name for name in "abcd"]
    for part in folders:
        part.mkdir()
    return open_runtime(f"striped://{','.join(map(str, folders))}", settings)


if any(map(find_spec, ("nixl", "nixl_cu12", "nixl_cu13"))):

    @pytest.mark.adapter
    class TestNixl(RuntimeContract):
        """Its POSIX plugin, on real files."""

        def make_runtime(self, folder, settings):
            return open_runtime(f"nixl+posix://{folder}", settings)


@pytest.mark.kernels
class TestCuFile(RuntimeContract):
    """Host memory beside a GPU; that of the GPU is in test_runtime_cuda.py."""

    def make_runtime(self, folder, settings):
        try:
            return open_runtime(f"cufile://{folder}", settings)
        except ConfigError as error:
            pytest.skip(str(error))
