"""Where blobs lie: the interface of a store, and which one the settings choose.

A store keeps bytes under names of four parts, ``<cell's id>/<day>/<run>/<blob>``, and knows nothing
of what they mean. Whatever goes wrong in it is an `OSError`; `FileNotFoundError` says that it works
and that there is nothing of that name.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agentq.errors import SettingsError

if TYPE_CHECKING:
    from agentq.settings import Settings


class BlobStore(Protocol):
    """Called from several threads at a time; each call may block."""

    place: str
    """Where it is and which setting says so, for the texts of errors."""

    def put(self, name: str, data: bytes) -> None:
        """Keep *data*, whole and durable or not at all; of one name the bytes are always the same.

        Raises:
            OSError: it is not kept.
        """
        ...

    def get(self, name: str) -> bytes:
        """Return what was kept.

        Raises:
            FileNotFoundError: the store works and has nothing of that name.
            OSError: it can not be read now, or this store never had a blob of that cell.
        """
        ...

    def folders(self, cell: str, *, before: str) -> Iterator[str]:
        """Yield ``<cell>/<day>/<run>`` of each run that has blobs from before day *before*."""
        ...

    def drop(self, folder: str) -> None:
        """Delete a folder and what is in it; one that is not there is dropped already."""
        ...


class Founded(BlobStore, Protocol):
    """One whose place can be missing without an error: a folder on which nothing is mounted.

    Its `put` raises `NeverHere` where nothing was begun: else it would fill the mount point.
    """

    def begin(self, cell: str) -> None:
        """Let blobs of *cell* be put from now on.

        Raises:
            OSError: they can not be.
        """
        ...


class NeverHere(OSError):  # noqa: N818 -- named by situation, as in `errors`
    """There is nothing of the whole cell at this place."""

    def __init__(self, begun_by: str = "") -> None:
        """Say so; *begun_by* is a command that makes it a place of the cell all the same."""
        text = "no blob of this cell was ever here: it must be the place that the others use"
        text += f"; to begin a new one: {begun_by}" if begun_by else ""
        super().__init__(errno.ENODEV, text)


def chosen(settings: Settings, *, default: Callable[[], Path]) -> BlobStore | None:
    """Return the store that *settings* name, None where there is none; nothing is touched yet.

    *default* names the folder of a user who sets nothing. In production nothing set is none: of a
    folder that other machines do not see, their steps could read nothing.

    Raises:
        SettingsError: its class or the package for it can not be had.
    """
    blobs = settings.blobs
    name = blobs.store
    if name is None:
        local = settings.env != "production"
        name = "directory" if local or blobs.directory is not None else "none"
    if name == "none":
        return None
    if name == "directory":
        from agentq.blobs.directory import Directory  # noqa: PLC0415 -- most processes need none

        return Directory(blobs.directory or default())
    if "://" in name:
        from agentq.blobs.objects import ObjectStore  # noqa: PLC0415 -- its package is an extra

        return ObjectStore(name, timeout=blobs.timeout)
    return _made(name)


def _made(name: str) -> BlobStore:
    module, _, attribute = name.partition(":")
    try:
        store: BlobStore = getattr(import_module(module), attribute)()
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"blobs.store: {name!r} can not be had: {error}") from error
    return store
