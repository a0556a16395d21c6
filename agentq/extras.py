"""What to install for a part of agentq that is optional: the packages, by their own names.

Not `pip install 'agentq[...]'`: PyPI's `agentq` is somebody else's.
"""

from __future__ import annotations

import re
import shlex
from importlib.metadata import PackageNotFoundError, requires

_OF_EXTRA = re.compile(r"(?P<package>[^;]+); extra == ['\"](?P<extra>[\w-]+)['\"]")


def pip_install(extra: str) -> str:
    """Return the command that installs what *extra* of our own metadata names, to paste."""
    try:
        found = [match for line in requires("agentq") or () if (match := _OF_EXTRA.match(line))]
    except PackageNotFoundError:  # a checkout that nobody installed
        found = []
    packages = [one["package"].strip() for one in found if one["extra"] == extra]
    return f"pip install {shlex.join(packages or [f'/path/to/agentq[{extra}]'])}"
