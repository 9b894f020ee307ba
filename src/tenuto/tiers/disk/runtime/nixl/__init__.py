"""NIXL: `library` loads it, `agent` shares it, `transfers` moves batches, `runtime` is the whole."""

from tenuto.tiers.disk.runtime.nixl.agent import check_files
from tenuto.tiers.disk.runtime.nixl.library import PLUGINS, load_nixl, missing_for
from tenuto.tiers.disk.runtime.nixl.runtime import NixlRuntime

__all__ = ["PLUGINS", "NixlRuntime", "check_files", "load_nixl", "missing_for"]
