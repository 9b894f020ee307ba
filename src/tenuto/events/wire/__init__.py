"""Facts in the words of others: vLLM's KV events, and the events of Dynamo's router.

Takes facts with their token ids, and the messages of an engine's own publisher. Gives bytes.
Never: opens a socket or a file, starts a thread or looks at a clock; tells of a block whose tokens are not known.
"""

from tenuto.events.wire.dynamo import DynamoEvents, KvCacheEvent, encode_events
from tenuto.events.wire.router import RouterBlock, Scope, chain_seed, router_blocks, tokens_hashes
from tenuto.events.wire.vllm import EngineBatch, EngineMessage, HashForm, VllmEvents, read_batch, read_message

__all__ = [
    "DynamoEvents",
    "EngineBatch",
    "EngineMessage",
    "HashForm",
    "KvCacheEvent",
    "RouterBlock",
    "Scope",
    "VllmEvents",
    "chain_seed",
    "encode_events",
    "read_batch",
    "read_message",
    "router_blocks",
    "tokens_hashes",
]
