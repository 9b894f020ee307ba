"""Classes of others, named "module:Class" in the settings."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from tenuto.errors import ConfigError


def load(spec: str, setting: str, protocol: type) -> type[Any]:
    """The class that `spec` names, which has every method of `protocol`. `setting` is where it was given.

    Importing runs the module. Raises `ConfigError`, one line that names the setting: not of the form, no such module,
    no such name in it, not a class, or methods that it lacks. What the module itself raises comes through.
    """
    module_name, _, name = spec.partition(":")
    if not (name.isidentifier() and all(part.isidentifier() for part in module_name.split("."))):
        raise ConfigError(f'{setting}: {spec!r} is not "module:Class"; give an importable module and a class in it')
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        why = " ".join(str(error).split())
        raise ConfigError(
            f"{setting}: {module_name!r} can't be imported ({why}); install it into this Python, or put its folder on "
            "PYTHONPATH"
        ) from error
    if not hasattr(module, name):
        classes = [key for key, value in vars(module).items() if _is_own_class(value, module_name)]
        raise ConfigError(f"{setting}: {module_name!r} has no {name}; its classes: {', '.join(classes) or 'none'}")
    found = getattr(module, name)
    if not inspect.isclass(found):
        raise ConfigError(f"{setting}: {spec} is no class but a {type(found).__name__}; give a class")
    if missing := [method for method in methods_of(protocol) if not callable(getattr(found, method, None))]:
        raise ConfigError(
            f"{setting}: {spec} is no {protocol.__name__}: it lacks {', '.join(missing)}; see "
            f"{protocol.__module__}.{protocol.__name__}"
        )
    return found


def methods_of(protocol: type) -> list[str]:
    """The public methods that a Protocol names, in its order."""
    return [name for name, value in vars(protocol).items() if inspect.isfunction(value) and not name.startswith("_")]


def _is_own_class(value: object, module_name: str) -> bool:
    return inspect.isclass(value) and value.__module__ == module_name
