"""Fingerprints of weights and configurations: what tells one model from another that has the same name."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz")
_SNAPSHOT = re.compile(r"snapshots/([0-9a-f]{40})$")
_HEAD_BYTES = 1 << 20
_SAMPLE_BYTES = 4096
_N_SAMPLES = 64

_VOLATILE = (
    "_commit_hash",
    "_name_or_path",
    "transformers_version",
    "name_or_path",
    "torch_dtype",
    "dtype",
)
"""Configuration keys that change without the model changing, or that the namespace has elsewhere."""


def fingerprint_config(config: dict[str, Any]) -> str:
    """32 hex digits of a model configuration; keys that say nothing of the model are left out."""
    return sha256(json.dumps(_stable(config), sort_keys=True, default=str).encode()).hexdigest()[:32]


def fingerprint_weights(folder: Path) -> str:
    """What tells these weights from all others: the revision of a hub snapshot, else every weight file.

    A file counts by name, size, modification time, its head (a safetensors header), and 4 KiB samples spread over it;
    so a folder that was trained on in place is another model, and so is a copy made at another time.
    Raises `FileNotFoundError` when there is no weight file.
    """
    if folder.is_file():
        return _digest([folder], folder.parent)
    snapshot = _SNAPSHOT.search(folder.as_posix())
    files = sorted(path for path in folder.rglob("*") if path.suffix in _WEIGHTS and path.is_file())
    if not files:
        raise FileNotFoundError(f"no weight files in {folder}")
    if snapshot and all(path.is_symlink() for path in files):
        return f"revision:{snapshot[1]}"
    return _digest(files, folder)


def _digest(files: Iterable[Path], folder: Path) -> str:
    digest = sha256()
    for path in files:
        status = path.stat()
        digest.update(f"{path.relative_to(folder)}|{status.st_size}|{status.st_mtime_ns}|".encode())
        digest.update(_sample(path, status))
    return f"files:{digest.hexdigest()[:32]}"


def _sample(path: Path, status: os.stat_result) -> bytes:
    if not stat.S_ISREG(status.st_mode):
        return b""
    digest = sha256()
    with path.open("rb") as file:
        digest.update(file.read(_HEAD_BYTES))
        rest = status.st_size - _HEAD_BYTES
        for i in range(_N_SAMPLES if rest > 0 else 0):
            file.seek(_HEAD_BYTES + rest * i // _N_SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.digest()


def _stable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _stable(inner) for key, inner in value.items() if key not in _VOLATILE}
    if isinstance(value, list | tuple):
        return [_stable(inner) for inner in value]
    return value
