"""Options of the benches that run engines, as the command line gives them; what is not given is the bench's choice."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

from tenuto.errors import ConfigError

VARIANTS = ("off", "ours", "native", "lmcache", "ours_disk", "ours_gate", "native_disk")
FRESH, SATURATED, RATES = WORKLOADS = ("fresh", "saturated", "rates")
DEFAULT_BUDGET_S = 480.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the most that an option's numbers may be; their type is the bounds'."""

    least: float
    most: float

    def read(self, option: str, text: str) -> float:
        """The number that `text` stands for. Raises `ConfigError`."""
        shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
        kind, word = (int, "a whole number") if isinstance(self.least, int) else (float, "a number")
        try:
            number = kind(text)
        except ValueError:
            raise ConfigError(f"{option}: {shown!r} is not {word}") from None
        if not self.least <= number <= self.most:  # nor is "nan" within any bounds
            raise ConfigError(f"{option}: {shown} is out of range; give {self.least:.12g} to {self.most:.12g}")
        return number


_MOST_TOKENS = 10_000_000
_SHOWN = 30  # characters of what is no number
_NUMBERS = {
    "repeats": Bounds(1, 1000),
    "budget_s": Bounds(1.0, 86400.0),
    "tokens": Bounds(1, _MOST_TOKENS),
    "disk_tokens": Bounds(1, _MOST_TOKENS),
    "rates": Bounds(0.01, 10000.0),
    "turns": Bounds(1, 1000),
    "first_tokens": Bounds(1, _MOST_TOKENS),
    "turn_tokens": Bounds(1, _MOST_TOKENS),
    "answer_tokens": Bounds(1, _MOST_TOKENS),
}
_LISTS = ("variants", "tokens", "disk_tokens", "workloads", "rates")


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
    workloads: tuple[str, ...] = ()
    rates: tuple[float, ...] = ()
    turns: int | None = None
    first_tokens: int | None = None
    turn_tokens: int | None = None
    answer_tokens: int | None = None


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each field of `EngineOptions`; numbers stay text until `read_engine_options`."""
    both = parser.add_argument_group("ttft, split and serving")
    both.add_argument("--model", type=Path, metavar="DIR", help="a model's folder (default: the shape of Llama 3 8B)")
    both.add_argument("--eager", action="store_true", help="neither torch.compile nor CUDA graphs, as split always")
    both.add_argument("--variants", nargs="+", metavar="NAME", help=f"engines to compare, of {', '.join(VARIANTS)}")
    both.add_argument("--repeats", metavar="N", help="rounds that the figures are medians of (9; split: 5)")
    both.add_argument("--budget-s", metavar="S",
                      help=f"no round begins that would end later ({DEFAULT_BUDGET_S:.0f})")  # fmt: skip
    ttft = parser.add_argument_group("ttft")
    ttft.add_argument("--tokens", nargs="+", metavar="N", help="lengths of prompts; split takes one")
    ttft.add_argument("--disk-tokens", nargs="+", metavar="N", help="those that are read from disk too")
    serving = parser.add_argument_group("serving")
    serving.add_argument("--workloads", nargs="+", metavar="NAME", help=f"some of {', '.join(WORKLOADS)} alone")
    serving.add_argument("--rates", nargs="+", metavar="R", help="requests per second")
    for name, says in {
        "turns": "requests of one session", "first-tokens": "mean of a session's first prompt",
        "turn-tokens": "mean of what each turn adds", "answer-tokens": "mean of the answers",
    }.items():  # fmt: skip
        serving.add_argument(f"--{name}", metavar="N", help=says)


def read_engine_options(args: argparse.Namespace) -> EngineOptions:
    """What was given. Raises `ConfigError`: no such variant, a number that can't be, the same thing twice."""
    given: dict[str, Any] = {field.name: getattr(args, field.name) for field in fields(EngineOptions)}
    given = {name: value for name, value in given.items() if value is not None}
    for name, bounds in _NUMBERS.items():
        if name in given:
            texts = given[name] if name in _LISTS else [given[name]]
            numbers = [bounds.read(_option(name), text) for text in texts]
            given[name] = numbers if name in _LISTS else numbers[0]
    for name in _LISTS:
        given[name] = _all_different(_option(name), given.get(name, ()))
    options = EngineOptions(**given)
    for name in options.variants:
        if name not in VARIANTS:
            raise ConfigError(f"--variants: no engine is named {name!r}; there are {', '.join(VARIANTS)}")
    for name in options.workloads:
        if name not in WORKLOADS:
            raise ConfigError(f"--workloads: there is no {name!r}; there are {', '.join(WORKLOADS)}")
    if "off" not in options.variants and options.variants:
        raise ConfigError("--variants: name off too; everything is compared with it")
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
        words.append(_option(field.name))
        if field.name == "model":
            words.append("DIR")
        elif isinstance(value, tuple):
            words += [_word(item) for item in cast("tuple[Any, ...]", value)]
        elif value is not True:
            words.append(_word(value))
    return "".join(f" {word}" for word in words)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _word(value: object) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _all_different(option: str, values: Sequence[Any]) -> tuple[Any, ...]:
    for at, value in enumerate(values):
        if value in values[:at]:
            raise ConfigError(f"{option}: {_word(value)} is given twice")
    return tuple(values)
