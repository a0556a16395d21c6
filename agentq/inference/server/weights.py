"""Where the weights of installed packages lie, and the cache of what is built from them once."""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from agentq.errors import ModelPackageMissing


def package_folder(module: str, *, install: str) -> Path:
    """Return the folder of a package without importing it (some import what they do not need).

    Raises:
        ModelPackageMissing: it is not installed; *install* says how to change that.
    """
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ModelPackageMissing(f"package {module!r} is not installed: {install}")
    return Path(spec.submodule_search_locations[0])


def default_cache_dir() -> Path:
    """Return the user's cache folder for built weights, some 240 MB; safe to delete at any time."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(configured) if Path(configured).is_absolute() else Path("~/.cache").expanduser()
    home = next(folder for folder in (cache, *cache.parents) if folder.exists())
    if os.access(home, os.W_OK):
        return cache / "agentq/models"
    return Path(tempfile.gettempdir()) / f"agentq-models-{os.geteuid()}"  # a user without a home


def built_once(cache: Path, *, distribution: str, name: str, build: Callable[[Path], None]) -> Path:
    """Return the file *name* of the cache, made by *build* where it is not there yet.

    The version of *distribution* is part of the file's name. A file appears whole or not at all,
    and of several processes that miss it one builds while the others wait.
    """
    version = importlib.metadata.version(distribution)
    path = cache / f"{distribution}-{version}-{name}"
    if path.exists():
        return path
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            partial = path.with_name(f"{path.name}.partial")
            build(partial)
            partial.replace(path)
    return path
