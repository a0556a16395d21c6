"""Blobs as objects in S3, or what is like it (GCS, Azure), by `obstore`.

Chosen over boto3 and minio: one wheel without dependencies (it is Rust's `object_store`), retries
and time limits of its own, one API for all three. Credentials and endpoint come from the
environment, by the names that the vendors' own tools read (``AWS_ACCESS_KEY_ID``,
``AWS_ENDPOINT_URL``, ...).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from agentq.blobs.store import NeverHere
from agentq.errors import SettingsError
from agentq.extras import pip_install

try:
    import obstore
    from obstore.exceptions import BaseError
except ImportError as error:
    raise SettingsError(f"blobs.store is a URL: {pip_install('objects')}") from error


class ObjectStore:
    """A `BlobStore`."""

    def __init__(self, url: str, *, timeout: timedelta) -> None:
        """Take where the objects are, e.g. ``s3://bucket/prefix``; tried again within *timeout*."""
        self.place = f"{url} (blobs.store)"
        retries = {"max_retries": 2, "retry_timeout": timeout}
        try:
            self._store = obstore.store.from_url(url, retry_config=retries)
        except (BaseError, ValueError) as error:
            raise SettingsError(f"blobs.store: {error}") from error

    def put(self, name: str, data: bytes) -> None:
        """Write an object: a store shows it when it is whole."""
        try:
            obstore.put(self._store, name, data)
        except BaseError as error:
            raise _failed(error) from error

    def get(self, name: str) -> bytes:
        """Read an object."""
        try:
            return bytes(obstore.get(self._store, name).bytes())
        except FileNotFoundError:
            # A bucket that is not there answers the same.
            if self._inside(name.partition("/")[0]):
                raise
            raise NeverHere from None
        except BaseError as error:
            raise _failed(error) from error

    def folders(self, cell: str, *, before: str) -> Iterator[str]:
        """Yield the runs' folders of the days before *before*."""
        for day in self._inside(cell):
            if day.rpartition("/")[2] < before:
                yield from self._inside(day)

    def _inside(self, folder: str) -> list[str]:
        try:
            found: list[str] = obstore.list_with_delimiter(self._store, folder)["common_prefixes"]
        except (BaseError, FileNotFoundError) as error:
            raise _failed(error) from error
        return found

    def drop(self, folder: str) -> None:
        """Delete the objects of a folder."""
        try:
            for some in obstore.list(self._store, f"{folder}/"):
                obstore.delete(self._store, [found["path"] for found in some])
        except BaseError as error:
            raise _failed(error) from error


def _failed(error: BaseException) -> OSError:
    """Return *error* as a store's, without the pages of detail below its first line."""
    return OSError(str(error).partition("\n")[0])
