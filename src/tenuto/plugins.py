"""Classes of others, named "module:Class" in the settings."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from tenuto.errors import ConfigError

T = TypeVar("T")


def why_malformed(spec: str) -> str:
    """Why a name is not of the form "module:Class", and what to do; empty for one that is."""
    module_name, _, name = spec.partition(":")
    if name.isidentifier() and all(part.isidentifier() for part in module_name.split(".")):
        return ""
    return f'{spec!r} is not "module:Class"; give an importable module and a class in it'


def why_unknown(kind: str, name: str, known: Collection[str], *, takes_classes: bool = False) -> str:
    """Why a name is none of `known` nor, where these are taken, that of a class of others, and what to do; else empty.

    `kind`: of what it names, in a word. Imports nothing.
    """
    if takes_classes and ":" in name:
        return why_malformed(name)
    choices = ", ".join(known) + (', or "module:Class"' if takes_classes else "")
    return "" if name in known else f"no {kind} is named {name!r}; give one of {choices}"


def make_named(
    kind: str, name: str, setting: str, known: Mapping[str, Callable[[], T]], protocol: type[T] | None = None
) -> T:
    """A new thing of some kind: of those known by name or, where there is a `protocol`, of a class of others.

    Raises `ConfigError`, one line that names `setting`: no such name, with the choices; or as `load` does.
    """
    if why := why_unknown(kind, name, known, takes_classes=protocol is not None):
        raise ConfigError(f"{setting}: {why}")
    if name in known:
        return known[name]()
    assert protocol is not None
    return load(name, setting, protocol, ())()


def why_absent(spec: str) -> str:
    """Why the module of a well-formed name can't be imported into this Python; empty when it can. Runs the module."""
    try:
        importlib.import_module(spec.partition(":")[0])
    except ImportError as error:
        return " ".join(str(error).split())
    return ""


def load(spec: str, setting: str, protocol: type, arguments: Sequence[str] | None = None) -> type[Any]:
    """The class that `spec` names, which has every method of `protocol`. `setting` is where it was given.

    `arguments`: names of those that it is called with, by position; None: not looked at. Importing runs the module.
    Raises `ConfigError`, one line that names the setting: not of the form, no such module, no such name in it, not a
    class, methods that it lacks, or other arguments. What the module itself raises comes through.
    """
    if why := why_malformed(spec):
        raise ConfigError(f"{setting}: {why}")
    module_name, _, name = spec.partition(":")
    if why := why_absent(spec):
        raise ConfigError(
            f"{setting}: {module_name!r} can't be imported ({why}); install it into this Python, or put its folder on "
            "PYTHONPATH"
        )
    module = importlib.import_module(module_name)
    if not hasattr(module, name):
        classes = [key for key, value in vars(module).items() if _is_own_class(value, module_name)]
        raise ConfigError(f"{setting}: {module_name!r} has no {name}; its classes: {', '.join(classes) or 'none'}")
    found = getattr(module, name)
    if not inspect.isclass(found):
        raise ConfigError(f"{setting}: {spec} is no class but a {type(found).__name__}; give a class")
    if missing := lacking(found, protocol):
        raise ConfigError(
            f"{setting}: {spec} is no {protocol.__name__}: it lacks {', '.join(missing)}; see "
            f"{protocol.__module__}.{protocol.__name__}"
        )
    if arguments is not None and (why := _why_uncallable(found, arguments)):
        raise ConfigError(
            f"{setting}: {spec} can't be made from ({', '.join(arguments)}): {why}; let its __init__ take these"
        )
    return found


def methods_of(protocol: type) -> list[str]:
    """The public methods that a Protocol names, in its order."""
    return [name for name, value in vars(protocol).items() if inspect.isfunction(value) and not name.startswith("_")]


def lacking(found: object, protocol: type) -> list[str]:
    """Those of them that a class, or an object, does not have."""
    return [name for name in methods_of(protocol) if not callable(getattr(found, name, None))]


def _is_own_class(value: object, module_name: str) -> bool:
    return inspect.isclass(value) and value.__module__ == module_name


def _why_uncallable(found: type, arguments: Sequence[str]) -> str:
    try:
        inspect.signature(found).bind(*arguments)
    except TypeError as error:
        return str(error)
    except ValueError:  # it does not say what it takes
        return ""
    return ""
