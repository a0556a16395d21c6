"""How each piece of work ended, as its user would read it; asked past the link that loses replies."""

from __future__ import annotations

import threading
from typing import Any

import orjson
import redis

from agentq.runs.record import events_of, status_of
from agentq.store.keys import Keys
from tests.fault.soak.offer import Offer, Piece

_ROUND_S = 0.5


class Watch:
    """Reads ends from `start` to `stop`, before they are kept no longer."""

    def __init__(self, *, client: redis.Redis, keys: Keys, offer: Offer) -> None:
        """Keep the parts; *client* is not used by anybody else, and has a time limit."""
        self._client = client
        self._keys = keys
        self._offer = offer
        self._seen = 0
        self._open: list[Piece] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Safe twice."""
        self._stop.set()
        self._thread.join()

    def round(self) -> None:
        """Look once at all that has not ended yet."""
        known = len(self._offer.pieces)
        self._open += self._offer.pieces[self._seen : known]
        self._seen = known
        asked = [piece for piece in self._open if piece.accepted]
        for piece, answer in zip(asked, self._answers(asked), strict=True):
            if piece.run:
                self._look_at_run(piece, answer)
            elif answer:
                result = orjson.loads(answer)
                if result["status"] not in ("RETRY", "STARTED"):
                    piece.state, piece.value = result["status"].lower(), result["result"]
        self._open = [piece for piece in self._open if not piece.state]

    def _answers(self, pieces: list[Piece]) -> list[Any]:
        pipe = self._client.pipeline(transaction=False)
        for piece in pieces:
            if piece.run:
                pipe.hgetall(self._keys.run(piece.run))
            else:
                pipe.get(self._keys.result(piece.task))
        return pipe.execute()

    def _look_at_run(self, piece: Piece, record: dict[bytes, bytes]) -> None:
        if not record:
            piece.state = "gone"
            return
        status = status_of(piece.run, record)
        if status.state.ended:
            piece.ends = self._ends(piece.run)
            piece.value = orjson.loads(status.result)
            piece.state = status.state.value

    def _ends(self, run: str) -> int:
        """Return how many ends a run's events tell of, or of one of its steps, whichever is more."""
        entries = self._client.xrange(self._keys.events(run))
        events = [event for entry, fields in entries for event in events_of(entry, fields)]
        done = [e.data["task"] for e in events if e.kind == "step" and e.data["state"] == "done"]
        ends = sum(event.kind == "end" for event in events)
        return max([ends, *(done.count(task) for task in set(done))])

    def _run(self) -> None:
        while not self._stop.wait(_ROUND_S):
            try:
                self.round()
            except (redis.ConnectionError, redis.TimeoutError):
                continue  # the server stands still or is restarted
