"""The disk store keeps the contract of stores on every runtime that is here."""

from dataclasses import replace
from importlib.util import find_spec

import pytest

from tenuto.testing.store_contract import StoreContract
from tenuto.tiers.disk import DiskSettings, DiskStore
from tenuto.tiers.disk.instance import claim
from tenuto.tiers.disk.quota import Quota
from tenuto.tiers.disk.runtime import open_runtime
from tenuto.tiers.disk.store import open_files
from tests.tiers.disk_fixtures import NAMESPACE, wait_until

pytestmark = pytest.mark.contract


def disk_store(folder, codec, **options):
    mine = claim(folder / "root", NAMESPACE, "engine", 0)
    n_bytes = codec.layout.extent_bytes
    store = DiskStore(mine, codec, DiskSettings(Quota(folder / "root", 256 * n_bytes), 16 * n_bytes, 2), **options)
    wait_until(lambda: store.capacity().n_slots >= 16)
    return store


class TestOnAFolder(StoreContract):
    def make_store(self, folder, codec):
        return disk_store(folder, codec)


class TestOnStripes(StoreContract):
    def make_store(self, folder, codec):
        url = striped_url(folder)
        return disk_store(folder, codec, runtime=lambda _, settings: open_runtime(url, settings))


class TestOnAFolderByThreads(StoreContract):
    def make_store(self, folder, codec):
        return disk_store(folder, codec, runtime=lambda folders, settings: open_files(folders, by_threads(settings)))


class TestOnStripesByThreads(StoreContract):
    def make_store(self, folder, codec):
        url = striped_url(folder)
        return disk_store(folder, codec, runtime=lambda _, settings: open_runtime(url, by_threads(settings)))


def striped_url(folder):
    parts = [folder / name for name in "abcd"]
    for part in parts:
        part.mkdir(exist_ok=True)
    return f"striped://{','.join(map(str, parts))}"


def by_threads(settings):
    return replace(settings, is_queued=False)


if any(map(find_spec, ("nixl", "nixl_cu12", "nixl_cu13"))):

    @pytest.mark.adapter
    class TestOnNixl(StoreContract):
        def make_store(self, folder, codec):
            return disk_store(
                folder, codec, runtime=lambda homes, settings: open_runtime(f"nixl+posix://{homes[0]}", settings)
            )
