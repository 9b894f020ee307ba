"""Options of the benches that run engines, as the command line gives them; what is not given is the bench's choice."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

from tenuto.errors import ConfigError

VARIANTS = ("off", "ours", "native", "lmcache", "ours_disk", "ours_gate", "native_disk")
DEFAULT_BUDGET_S = 480.0


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """`None` and empty: not given."""

    model: Path | None = None
    eager: bool = False
    variants: tuple[str, ...] = ()
    repeats: int | None = None
    budget_s: float = DEFAULT_BUDGET_S
    tokens: tuple[int, ...] = ()
    disk_tokens: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    turns: int | None = None
    first_tokens: int | None = None
    turn_tokens: int | None = None
    answer_tokens: int | None = None


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each field of `EngineOptions`."""
    both = parser.add_argument_group("ttft and serving")
    both.add_argument("--model", type=Path, metavar="DIR", help="a model's folder (default: the shape of Llama 3 8B)")
    both.add_argument("--eager", action="store_true", help="neither torch.compile nor CUDA graphs")
    both.add_argument("--variants", nargs="+", metavar="NAME", help=f"engines to compare, of {', '.join(VARIANTS)}")
    both.add_argument("--repeats", type=_positive, metavar="N", help="rounds that the figures are medians of (9)")
    both.add_argument("--budget-s", type=float, default=DEFAULT_BUDGET_S, metavar="S",
                      help=f"no round begins that would end later ({DEFAULT_BUDGET_S:.0f})")  # fmt: skip
    ttft = parser.add_argument_group("ttft")
    ttft.add_argument("--tokens", type=_positive, nargs="+", metavar="N", help="lengths of prompts")
    ttft.add_argument("--disk-tokens", type=_positive, nargs="+", metavar="N", help="those that are read from disk too")
    serving = parser.add_argument_group("serving")
    serving.add_argument("--rates", type=float, nargs="+", metavar="R", help="requests per second")
    for name, says in {
        "turns": "requests of one session", "first-tokens": "mean of a session's first prompt",
        "turn-tokens": "mean of what each turn adds", "answer-tokens": "mean of the answers",
    }.items():  # fmt: skip
        serving.add_argument(f"--{name}", type=_positive, metavar="N", help=says)


def read_engine_options(args: argparse.Namespace) -> EngineOptions:
    """What was given. Raises `ConfigError` for a variant that is none, or numbers that can't be."""
    given: dict[str, Any] = {field.name: getattr(args, field.name) for field in fields(EngineOptions)}
    for name in ("variants", "tokens", "disk_tokens", "rates"):
        given[name] = tuple(given[name] or ())
    options = EngineOptions(**given)
    for name in options.variants:
        if name not in VARIANTS:
            raise ConfigError(f"--variants: no engine is named {name!r}; there are {', '.join(VARIANTS)}")
    if "off" not in options.variants and options.variants:
        raise ConfigError("--variants: name off too; everything is compared with it")
    if not all(rate > 0 for rate in options.rates):
        raise ConfigError("--rates: a rate is more than 0 requests per second")
    if options.model is not None and not (options.model / "config.json").is_file():
        raise ConfigError(f"--model: {options.model} has no config.json; give a model's folder")
    return options


def as_arguments(options: EngineOptions) -> str:
    """The options as they would be written, but for folders; empty, or with a leading space."""
    default, words = EngineOptions(), list[str]()
    for field in fields(EngineOptions):
        value: Any = getattr(options, field.name)
        if value == getattr(default, field.name):
            continue
        words.append("--" + field.name.replace("_", "-"))
        if field.name == "model":
            words.append("DIR")
        elif isinstance(value, tuple):
            words += [_word(item) for item in cast("tuple[Any, ...]", value)]
        elif value is not True:
            words.append(_word(value))
    return "".join(f" {word}" for word in words)


def _word(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number
