"""What both halves of a session agree on, each having derived it by itself."""

from __future__ import annotations

from dataclasses import dataclass

from tenuto.config import Config, in_mib
from tenuto.events.routers import EngineEndpoints
from tenuto.memory.layout import ExtentLayout
from tenuto.tiers.sizes import N_BOUNCE, host_slots, max_writes
from tenuto.tokens import Namespace


@dataclass(frozen=True, slots=True)
class Setup:
    """One engine's settings, identity and geometry. `engine_id` is the same on all its ranks."""

    config: Config
    namespace: Namespace
    layout: ExtentLayout
    page_tokens: int
    engine_id: str
    world_size: int = 1
    keeps_trailing_block: bool = True
    """False under speculative decoding, where the last block's tokens may still change."""
    max_model_len: int = 0
    """Tokens of the longest prompt that the engine takes; 0: not known."""
    is_async_scheduled: bool = False
    """Whether the engine plans a step before it has heard how the one before ended: failures come too late for it."""
    max_step_tokens: int = 0
    """Tokens that the engine computes in a step, at most; 0: not known."""
    engine_index: int = 0
    """Which engine of a server: those of data parallelism have leaders, ranks and tiers of their own."""
    engine_events: EngineEndpoints | None = None
    """Where this engine tells of its device's blocks, if it is known to."""

    @property
    def pages_per_block(self) -> int:
        """Engine pages in one block."""
        return self.layout.block_tokens // self.page_tokens

    @property
    def n_host_slots(self) -> int:
        """Slots of the host pool. Raises `ConfigError` when not even one fits."""
        return host_slots(self.config, self.layout.extent_bytes)

    @property
    def split(self) -> str:
        """How the ranks share a block: engines with another split can't use each other's folders."""
        return f"tp{self.world_size}"

    @property
    def shortage(self) -> str:
        """A line for the log when the longest prompt does not fit into host memory, else nothing."""
        n_held = self.n_host_slots * self.layout.block_tokens
        if n_held >= self.max_model_len:
            return ""
        n_blocks = -(-self.max_model_len // self.layout.block_tokens) + (N_BOUNCE if self.has_disk else 0)
        return (
            f"host memory holds {n_held} tokens, and a prompt of max_model_len {self.max_model_len} does not fit: "
            f"set tiers.host.capacity to {in_mib(n_blocks * self.layout.extent_bytes)} or more"
        )

    @property
    def held_back(self) -> str:
        """A line for the log when loads by layers are wanted and the disk's can't be, else nothing."""
        if self.config.runtime.onboard == "async" or not self.has_disk or not self.is_async_scheduled:
            return ""
        return (
            f'runtime.onboard = "{self.config.runtime.onboard}": the engine schedules asynchronously, so layers come '
            "from host memory alone, and what is on disk is loaded before its request runs; with "
            "--no-async-scheduling layers come from disk too"
        )

    @property
    def has_disk(self) -> bool:
        """Whether there is a disk tier."""
        return bool(self.config.tiers.disk.path)

    @property
    def max_writes(self) -> int:
        """Blocks on the way to disk at once: the window, and at most half of the host pool."""
        return max_writes(self.config, self.layout.extent_bytes)
