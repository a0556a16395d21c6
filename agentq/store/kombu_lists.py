"""The lists in which stock Celery keeps its queues on Redis, for moving what waits in them.

A queue is one list for each priority step (the others named with kombu's separator), pushed at the
head and popped at the tail. What workers took and did not end is in the hash `unacked`, by delivery
tag, with its index `unacked_index`. As kombu 5.7 has it; a test moves what its own producer sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import redis
import redis.exceptions

from agentq.errors import BrokerUnavailable
from agentq.store.wrong_url import LINK_FAILED

PRIORITIES = (0, 3, 6, 9)
_SEPARATOR = "\x06\x16"
_UNACKED, _INDEX = "unacked", "unacked_index"
_MARK_S = 7 * 86_400
"""How long a mark is kept that nobody forgets: as long as a move may be interrupted."""


class KombuLists:
    """One stock Celery's Redis; `BrokerUnavailable` comes of every method that gets no answer."""

    def __init__(self, *, url: str, timeout: timedelta) -> None:
        """Keep the address, `redis://...` as Celery has it; nothing is connected yet."""
        self._url = url
        seconds = timeout.total_seconds()
        self._client = redis.Redis.from_url(
            url, socket_timeout=seconds, socket_connect_timeout=seconds
        )

    def oldest(self, key: str, after: int) -> bytes | None:
        """Return the oldest message of a list but *after* of them; None: there is no such one."""
        with self._translated():
            found: bytes | None = self._client.lindex(key, -1 - after)  # type: ignore[assignment]
        return found

    def delete(self, key: str, message: bytes) -> None:
        """Delete a message from its list, the oldest where it is there twice."""
        with self._translated():
            self._client.lrem(key, -1, message)  # type: ignore[arg-type]  # its stub: str

    def unacked(self) -> list[tuple[bytes, bytes]]:
        """Return (delivery tag, what kombu keeps of it) of what workers took and did not end."""
        with self._translated():
            found: Any = self._client.hgetall(_UNACKED)
        return list(found.items())

    def delete_unacked(self, tag: bytes) -> None:
        """Delete what a worker took."""
        with self._translated():
            self._client.hdel(_UNACKED, tag)
            self._client.zrem(_INDEX, tag)

    def push(self, queue: str, priority: int, message: bytes, once: str) -> bool:
        """Push a message and set the mark *once* unless it stands; return whether it was pushed."""
        mark, key = _mark(once), _key(queue, priority)
        while True:
            with self._translated(), self._client.pipeline() as pipe:
                try:
                    pipe.watch(mark)
                    if pipe.exists(mark):
                        return False
                    pipe.multi()
                    pipe.set(mark, 1, ex=_MARK_S)
                    pipe.lpush(key, message)
                    pipe.execute()
                except redis.exceptions.WatchError:
                    continue
                return True

    def forget(self, once: str) -> None:
        """Delete a mark of `push`."""
        with self._translated():
            self._client.delete(_mark(once))

    def close(self) -> None:
        """Close the connections; safe twice."""
        self._client.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except LINK_FAILED as error:
            raise BrokerUnavailable(
                f"the stock broker did not answer: {error}; what was moved is, ask again"
            ) from None


def lists_of(queue: str) -> list[str]:
    """Return the lists of a queue, the first priority first."""
    return [_key(queue, priority) for priority in PRIORITIES]


def _mark(once: str) -> str:
    return f"agentq:migrated:{once}"


def _key(queue: str, priority: int) -> str:
    step = max(one for one in PRIORITIES if one <= max(0, priority))
    return f"{queue}{_SEPARATOR}{step}" if step else queue
