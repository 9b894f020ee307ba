"""Names of the files that the engines and ranks of one server write, each its own."""

from __future__ import annotations

from pathlib import Path


def engine_file(path: Path, engine_index: int) -> Path:
    """What an engine of data parallelism writes: run.jsonl the first one, run-dp1.jsonl the second."""
    return _marked(path, _of_engine(engine_index), path.suffix)


def rank_file(path: Path, rank: int, engine_index: int) -> Path:
    """What a rank writes: FILE-rank0.json for FILE or FILE.json; FILE-dp1-rank0.json in the second engine."""
    return _marked(path, f"{_of_engine(engine_index)}-rank{rank}", ".json")


def _of_engine(engine_index: int) -> str:
    return f"-dp{engine_index}" if engine_index else ""


def _marked(path: Path, mark: str, suffix: str) -> Path:
    return path.with_name(f"{path.name.removesuffix(suffix)}{mark}{suffix}")
