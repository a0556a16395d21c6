"""What Redis keeps of a cell's blobs as a whole: its id, and whether there ever were any."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from agentq.flows.app import AgentQ


class BlobCell:
    """One per app; every method raises `BrokerUnavailable` where there is no answer in time."""

    def __init__(self, *, app: AgentQ) -> None:
        """Keep the app, whose broker is asked."""
        self._app = app

    def id(self) -> str:
        """Return what the cell's blobs are kept under: it is kept, and lost, with Redis' data.

        Asked for each blob, which takes far longer: who remembered it would not share with others
        behind a flush.
        """
        store = self._app.store
        key = store.keys.blobs_id()
        found: bytes | None = store.command("GET", key)
        while found is None:
            store.command("SET", key, uuid4().hex, "NX")
            found = store.command("GET", key)
        return found.decode()

    def begun(self) -> bool:
        """Whether a blob was ever written."""
        store = self._app.store
        return bool(store.command("EXISTS", store.keys.blobs_begun()))

    def begin(self) -> None:
        """Let it be known that one was; again is nothing new."""
        store = self._app.store
        store.command("SET", store.keys.blobs_begun(), "1")
