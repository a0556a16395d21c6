"""Dead letters as a person handles them: looked at, replayed, dropped.

Each letter is an entry of one stream and is moved or deleted by one call, so that whoever is
interrupted just does it again: what was done is gone from the letters, and counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from agentq.broker import envelope
from agentq.errors import LetterNotFound
from agentq.store import calls
from agentq.store.client import Store

AT_ONCE = 100
"""Letters read, replayed or dropped by one call: keeps it under 5 ms."""

REFUSALS = {
    "gone": "it was replayed or dropped before",
    "cut": "only its beginning was kept: it was larger than broker.max_payload",
    "nowhere": "its queue is not known",
    "ended": "its run has ended: submit it again",
    "counted": "its fan-in has counted it as failed, or has ended",
}
"""What `replay` answers of a letter that it leaves where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One dead letter; fields that its message did not have are empty."""

    id: str
    reason: str
    task: str
    """The task's name, where the head could be read."""
    task_id: str
    pool: str
    lane: str
    run: str
    join: str
    attempts: int
    """Deaths of workers that were charged to it."""
    retries: int
    born: datetime | None
    """When it was first enqueued."""
    died: datetime
    size: int
    """Bytes it had, head and body."""
    whole: bool
    """Whether all its bytes were kept, so that it can be replayed."""
    headers: bytes = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which letters: those that fit every field that is set."""

    reason: str = ""
    """Part of the reason, in any case of letters."""
    task: str = ""
    pool: str = ""
    since: timedelta | None = None
    """Died within this."""

    def fits(self, letter: Letter) -> bool:
        """Whether *letter* is one of them; `since` is left to who reads the stream."""
        return (
            self.reason.lower() in letter.reason.lower()
            and self.task in ("", letter.task)
            and self.pool in ("", letter.pool)
        )


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay did."""

    moved: int
    refused: dict[str, str]
    """Letter -> why it was left where it is, in words of `REFUSALS`."""


def letters(store: Store, wanted: Wanted) -> Iterator[Letter]:
    """Yield the letters there are now that fit, oldest first.

    Raises:
        BrokerUnavailable: no answer in time.
    """
    key = store.keys.dead()
    newest = store.command("XREVRANGE", key, "+", "-", "COUNT", 1)
    if not newest:
        return
    after, last = _start(store, wanted.since), newest[0][0]
    while entries := store.command("XRANGE", key, after, last, "COUNT", AT_ONCE):
        yield from filter(wanted.fits, (_letter(*entry) for entry in entries))
        after = b"(" + entries[-1][0]


def letter(store: Store, id_: str) -> Letter:
    """Return one letter.

    Raises:
        LetterNotFound: there is none of that id.
        BrokerUnavailable: no answer in time.
    """
    if not _is_id(id_) or not (found := store.command("XRANGE", store.keys.dead(), id_, id_)):
        raise LetterNotFound(f"no dead letter {id_!r}: it was replayed or dropped, or is too old")
    return _letter(*found[0])


def replay(store: Store, ids: Iterable[str]) -> Replayed:
    """Move letters back into their queues, as new; each is moved whole or not at all.

    Raises:
        BrokerUnavailable: no answer in time; what was moved is, and the rest can be asked again.
    """
    moved, left = 0, iter(ids)
    refused: dict[str, str] = {}
    while some := list(islice(left, AT_ONCE)):
        known = [id_ for id_ in some if _is_id(id_)]
        refused |= {id_: REFUSALS["gone"] for id_ in some if not _is_id(id_)}
        answers = store.call(calls.replay(store.keys.prefix, known)) if known else []
        for id_, answer in zip(known, answers, strict=True):
            if answer == b"ok":
                moved += 1
            else:
                refused[id_] = REFUSALS[answer.decode()]
    return Replayed(moved, refused)


def drop(store: Store, ids: Iterable[str]) -> int:
    """Delete letters for good; return how many there were.

    Raises:
        BrokerUnavailable: no answer in time; the rest can be asked again.
    """
    dropped, left = 0, filter(_is_id, ids)
    while some := list(islice(left, AT_ONCE)):
        dropped += store.command("XDEL", store.keys.dead(), *some)
    return dropped


def _is_id(text: str) -> bool:
    ms, dash, number = text.partition("-")
    return bool(dash) and ms.isdecimal() and number.isdecimal()


def _start(store: Store, since: timedelta | None) -> bytes:
    if since is None:
        return b"-"
    seconds, micros = store.command("TIME")
    now_ms = int(seconds) * 1000 + int(micros) // 1000
    return str(max(0, now_ms - int(since.total_seconds() * 1000))).encode()


def _letter(entry: bytes, flat: Any) -> Letter:
    pairs = flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))

    def text(name: bytes) -> str:
        value: bytes = pairs.get(name, b"")
        return value.decode(errors="replace")

    head, body = pairs.get(b"h", b""), pairs.get(b"b", b"")
    cut, born = int(text(b"c") or 0), int(text(b"t") or 0)
    return Letter(
        id=entry.decode(), reason=text(b"why"), task=envelope.task_of(head), task_id=text(b"i"),
        pool=text(b"p"), lane=text(b"l"), run=text(b"r"), join=text(b"j"),
        attempts=int(text(b"a") or 0), retries=int(text(b"n") or 0),
        born=_instant(born) if born else None, died=_instant(int(entry.partition(b"-")[0])),
        size=cut or len(head) + len(body), whole=not cut, headers=head, body=body,
    )  # fmt: skip


def _instant(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
