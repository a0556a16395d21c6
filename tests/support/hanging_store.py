"""A blob store that can hang, as a share does whose server is gone."""

from __future__ import annotations

import os
import time
from pathlib import Path

from agentq.blobs.directory import Directory


class Hanging(Directory):
    """The folder of `blobs.directory`; no write ends while `hangs` is there."""

    def __init__(self) -> None:
        folder = Path(os.environ["AGENTQ_BLOBS__DIRECTORY"])
        self._hangs = hangs(folder)
        super().__init__(folder)

    def put(self, name: str, data: bytes) -> None:
        while self._hangs.exists():
            time.sleep(0.05)
        super().put(name, data)


def hangs(folder: Path) -> Path:
    """Return the file that makes the store of *folder* hang."""
    return folder.with_name("hangs")
