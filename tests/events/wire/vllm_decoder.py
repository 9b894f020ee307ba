"""In a process of its own: vLLM's event structs, from its own file, without the rest of vLLM (ten seconds of imports).

python vllm_decoder.py FOLDER: reads one JSON object, decodes each of `payloads` (hex) with vLLM's decoder, and encodes
one batch of `events` (class name and fields) with its structs. Prints one JSON object.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import msgspec


def load(folder: Path) -> Any:
    """`vllm/distributed/kv_events.py` in this folder, with nothing of what it imports from vLLM but the hash type."""
    names = ("vllm", "vllm.config", "vllm.v1", "vllm.v1.core", "vllm.utils")
    for name in names:
        sys.modules[name] = ModuleType(name)
    for name in ("vllm.config.kv_events", "vllm.logger", "vllm.utils.network_utils"):
        sys.modules[name] = MagicMock()
    hashes = ModuleType("vllm.v1.core.kv_cache_utils")
    hashes.ExternalBlockHash = bytes | int
    sys.modules[hashes.__name__] = hashes
    spec = importlib.util.spec_from_file_location("kv_events", folder / "vllm" / "distributed" / "kv_events.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["kv_events"] = module
    spec.loader.exec_module(module)
    return module


def plain(value: Any) -> Any:
    """As JSON holds it: bytes in hex."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def fields_of(event: Any) -> dict[str, Any]:
    return {"type": type(event).__name__} | {k: plain(v) for k, v in msgspec.structs.asdict(event).items()}


def main(folder: Path) -> None:
    theirs, asked = load(folder), json.load(sys.stdin)
    decoder = msgspec.msgpack.Decoder(theirs.KVEventBatch)
    decoded = []
    for payload in asked["payloads"]:
        batch = decoder.decode(bytes.fromhex(payload))
        decoded.append([batch.ts, batch.data_parallel_rank, [fields_of(event) for event in batch.events]])
    events = [getattr(theirs, name)(**fields) for name, fields in asked["events"]]
    written = msgspec.msgpack.encode(theirs.KVEventBatch(ts=1.5, events=events, data_parallel_rank=1))
    print(json.dumps({"decoded": decoded, "written": written.hex()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
