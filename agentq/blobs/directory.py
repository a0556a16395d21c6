"""Blobs as files in one folder, which every machine of the cell must see.

Who may enter the folder may read what is in it: what is made inside has the folder's own mode. One
that agentq makes is for its user alone.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from agentq.blobs.store import NeverHere

_FILE = 0o660
_FOLDER = 0o2770


class Directory:
    """A `Founded` `BlobStore`."""

    def __init__(self, root: Path) -> None:
        """Take the folder; it is made when a cell begins."""
        self._root = root
        self.place = f"{root} (blobs.directory)"

    def begin(self, cell: str) -> None:
        """Make the cell's folder: where it is missing later, its disk is."""
        self._make(self._root / cell)

    def put(self, name: str, data: bytes) -> None:
        """Write a file beside its place, then rename it: whole or not there, and on the disk."""
        path = self._root / name
        with suppress(FileNotFoundError):
            if path.stat().st_size == len(data):
                # The same bytes: a retry, or a value that is passed on. Its writer may not be done.
                _sync(path.parent)
                return
        self._make(path.parent, inside=self._of_cell(name))
        written = path.with_name(f".{uuid4().hex}")
        try:
            self._write(written, data)
            written.rename(path)
        except BaseException:
            with suppress(OSError):
                written.unlink()
            raise
        _sync(path.parent)

    def _write(self, path: Path, data: bytes) -> None:
        with path.open("xb", buffering=0) as file:
            os.fchmod(file.fileno(), self._mode & _FILE)
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            os.fsync(file.fileno())

    def _of_cell(self, name: str) -> Path:
        return self._root / Path(name).parts[0]

    def _make(self, folder: Path, *, inside: Path | None = None) -> None:
        """Make what is missing of the way to *folder*, each step on the disk before the next.

        Raises:
            NeverHere: *inside* itself is missing.
        """
        missing = []
        while not folder.is_dir():
            if folder == inside:
                raise self._never_here(inside)
            missing.append(folder)
            folder = folder.parent
        for path in reversed(missing):
            ours = path != self._root and path.is_relative_to(self._root)
            with suppress(FileExistsError):
                path.mkdir(0o700)
                if ours:
                    path.chmod(self._mode & _FOLDER)
                _sync(path.parent)

    def _never_here(self, folder: Path) -> NeverHere:
        return NeverHere(f"mkdir -p {shlex.quote(str(folder))}")

    @property
    def _mode(self) -> int:
        return self._root.stat().st_mode

    def get(self, name: str) -> bytes:
        """Read a file."""
        path = self._root / name
        try:
            return path.read_bytes()
        except FileNotFoundError:
            if (folder := self._of_cell(name)).is_dir():
                raise
            raise self._never_here(folder) from None

    def folders(self, cell: str, *, before: str) -> Iterator[str]:
        """Yield the runs' folders of the days before *before*; empty days are removed."""
        with suppress(FileNotFoundError):
            for day in sorted((self._root / cell).glob("[0-9]*")):
                if day.name >= before:
                    return
                for run in day.iterdir():
                    yield f"{cell}/{day.name}/{run.name}"
                with suppress(OSError):  # what is left in it is still referred to
                    day.rmdir()

    def drop(self, folder: str) -> None:
        """Remove a folder."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self._root / folder)


def _sync(folder: Path) -> None:
    """Bring a folder's entries to the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
