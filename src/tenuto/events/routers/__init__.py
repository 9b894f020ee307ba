"""A stream for routers, as vLLM's own publisher has it: of our tiers alone, or of all that a worker has.

Takes facts, the chains of prompts that were found, and the engine's own stream. Gives numbered messages of vLLM's KV
events on ZeroMQ, and what a reader missed. Never: does more on the engine's thread than append to a queue.
"""

from tenuto.events.routers.enginestream import EngineEndpoints, bound_endpoints, engine_endpoints
from tenuto.events.routers.opening import open_router
from tenuto.events.routers.publisher import RouterPublisher, RouterSettings

__all__ = [
    "EngineEndpoints", "RouterPublisher", "RouterSettings", "bound_endpoints", "engine_endpoints", "open_router",
]  # fmt: skip
