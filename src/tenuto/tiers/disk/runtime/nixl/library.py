"""NIXL's Python package and one of its plugins, or what is missing of them."""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol, cast

from tenuto.errors import ConfigError
from tenuto.tiers.disk.runtime.libraries import load_library
from tenuto.tiers.disk.runtime.probe import missing_for_start

PLUGINS = ("POSIX", "GDS", "GDS_MT")
"""Those of NIXL that move bytes of files."""
_MODULES = ("nixl", "nixl_cu12", "nixl_cu13")


class Agent(Protocol):
    """What is used of NIXL's agent."""

    name: str
    plugin_list: list[str]

    def create_backend(self, backend: str) -> None:
        """Start a plugin."""
        ...

    def register_memory(self, reg_list: object, mem_type: str, backends: list[str]) -> object:
        """(address, bytes, device, "") of memory; (0, bytes, descriptor, "") of a file."""
        ...

    def deregister_memory(self, dereg_list: object, backends: list[str]) -> None:
        """Undo it."""
        ...

    def get_xfer_descs(self, descs: object, mem_type: str) -> object:
        """Ranges of what was registered: the same triples."""
        ...

    def initialize_xfer(
        self, operation: str, local_descs: object, remote_descs: object, remote_agent: str,
        notif_msg: bytes, backends: list[str],
    ) -> object:  # fmt: skip
        """A transfer, not begun."""
        ...

    def transfer(self, handle: object) -> str:
        """Begin it: DONE, PROC or ERR."""
        ...

    def check_xfer_state(self, handle: object) -> str:
        """DONE, PROC or ERR."""
        ...

    def release_xfer_handle(self, handle: object) -> None:
        """Forget it."""
        ...


@dataclass(frozen=True, slots=True)
class Library:
    """An agent with its plugin started, and the errors it raises."""

    agent: Agent
    plugin: str
    errors: tuple[type[Exception], ...]


def missing_for(plugin: str) -> str:
    """What a plugin needs and is not here, and what brings it; empty when nothing is missing."""
    found = _import()
    if found is None:
        return "the Python package nixl is missing; `pip install nixl` brings it"
    if plugin == "POSIX":
        return ""
    cuda = "13" if found[0].__name__.startswith("nixl_cu13") else "12"
    needed = ("libcuda.so.1", f"libcudart.so.{cuda}", "libcufile.so.0")
    absent = ", ".join(name for name in needed if load_library(name) is None)
    if absent:
        return f"{absent} missing; NVIDIA's driver, CUDA runtime and cuFile bring them"
    return missing_for_start()


def load_nixl(plugin: str, name: str) -> Library:
    """An agent of this name. Raises `ConfigError` that says what is missing."""
    where = f"nixl+{plugin.lower()}"
    absent, found = missing_for(plugin), _import()
    if absent or found is None:
        raise ConfigError(f"{where}: {absent}")
    module, bindings = found
    kinds = [value for value in vars(bindings).values() if isinstance(value, type) and issubclass(value, Exception)]
    errors = (*kinds, RuntimeError)
    try:
        agent = cast("Agent", module.nixl_agent(name, module.nixl_agent_config(backends=[])))
        if plugin not in agent.plugin_list:
            there = ", ".join(sorted(agent.plugin_list)) or "none"
            raise ConfigError(f"{where}: this NIXL has no plugin {plugin}; it has {there}")
        agent.create_backend(plugin)
    except errors as error:
        raise ConfigError(f"{where}: NIXL's plugin {plugin} does not start here: {error}") from error
    return Library(agent, plugin, errors)


def _import() -> tuple[ModuleType, ModuleType] | None:
    for name in _MODULES:
        try:
            module = importlib.import_module(f"{name}._api")
        except ImportError:
            continue
        its_log = logging.getLogger("nixl")
        if its_log.level == logging.INFO:  # its default, written to the standard output
            its_log.setLevel(logging.WARNING)
        return module, cast("ModuleType", module.nixlBind)
    return None
