"""The disk store keeps the contract of stores on every runtime that is here."""

from importlib.util import find_spec

import pytest

from tenuto.testing.store_contract import StoreContract
from tenuto.tiers.disk import DiskSettings, DiskStore
from tenuto.tiers.disk.instance import claim
from tenuto.tiers.disk.quota import Quota
from tenuto.tiers.disk.runtime import open_runtime
from tests.tiers.disk_fixtures import NAMESPACE, wait_until

pytestmark = pytest.mark.contract


def disk_store(codec, folder, **options):
    mine = claim(folder / "root", NAMESPACE, "engine", 0)
    n_bytes = codec.layout.extent_bytes
    store = DiskStore(mine, codec, DiskSettings(Quota(folder / "root", 256 * n_bytes), 16 * n_bytes, 2), **options)
    wait_until(lambda: store.capacity().n_slots >= 16)
    return store


class TestOnAFolder(StoreContract):
    def make_store(self, codec, folder):
        return disk_store(codec, folder)


class TestOnStripes(StoreContract):
    def make_store(self, codec, folder):
        parts = [folder / name for name in "abcd"]
        for part in parts:
            part.mkdir()
        url = f"striped://{','.join(map(str, parts))}"
        return disk_store(codec, folder, runtime=lambda _, settings: open_runtime(url, settings))


if any(map(find_spec, ("nixl", "nixl_cu12", "nixl_cu13"))):

    @pytest.mark.adapter
    class TestOnNixl(StoreContract):
        def make_store(self, codec, folder):
            return disk_store(
                codec, folder, runtime=lambda homes, settings: open_runtime(f"nixl+posix://{homes[0]}", settings)
            )
