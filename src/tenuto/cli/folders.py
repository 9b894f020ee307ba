"""Where a command works: the folder it is given, else one in the user's cache."""

from __future__ import annotations

import os
from pathlib import Path

from tenuto.settings import expand_user


def chosen_folder(given: Path | None, option: str, *names: str) -> Path:
    """`given`, or tenuto's folder `names` in the cache. Raises `ConfigError` naming `option` when a home is unknown."""
    if given is not None:
        return expand_user(given, option).absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or expand_user(Path("~/.cache"), option)
    return Path(cache).joinpath("tenuto", *names)
