"""One command at a time changes a machine's units: two at once would each undo half of the other.

The lock is on the folder that has them all, so it leaves no file, and ends with whoever holds it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentq.errors import DeployError


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Let nobody else install, uninstall, scale or roll out below *root* meanwhile.

    Raises:
        DeployError: somebody does, or there is no such folder to be made.
    """
    folder = root / "etc"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise DeployError(f"{folder} can not be written ({error.strerror})") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DeployError(
            "another agentq deploy, scale or rollout is changing this machine's units, and nothing "
            "was changed: run this again when that has ended "
            "(pgrep -af 'agentq (deploy|scale|rollout)' names it)"
        ) from error
    else:
        yield
    finally:
        os.close(handle)
