"""Dead letters as a person handles them: counted, looked at, replayed, dropped.

Each letter is an entry of one stream and is moved or deleted by one call, so that whoever is
interrupted just does it again: what was done is gone from the letters, and counts once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from agentq.broker import envelope
from agentq.clock import milliseconds
from agentq.errors import LetterNotFound
from agentq.store import calls
from agentq.store.client import Store
from agentq.store.keys import Keys

_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")  # two numbers of 64 bits
AT_ONCE = 100
"""Letters read, replayed or dropped by one call."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What there is of dead letters, and what was dropped to keep them within their settings."""

    number: int
    bytes: int
    """Of reasons, heads and bodies."""
    too_old: int
    """Dropped since the cell began, for `dead.keep`."""
    too_many: int
    """... for `dead.max_number`."""
    too_large: int
    """... for `dead.max_bytes`."""
    died: Mapping[str, int] = field(default_factory=dict, compare=False)
    """``pool:lane`` -> letters that were ever added, since the cell began or this was counted."""

    def __str__(self) -> str:
        """Return it in words."""
        shown = f"{self.number} dead letter{'' if self.number == 1 else 's'}"
        if self.number:
            shown += f" ({self.bytes / 2**20:.1f} MB)"
        dropped = {
            "dead.keep": self.too_old, "dead.max_number": self.too_many,
            "dead.max_bytes": self.too_large,
        }  # fmt: skip
        said = ", ".join(f"{count} by {name}" for name, count in dropped.items() if count)
        return f"{shown}; dropped so far: {said}" if said else shown


def kept(number: int, counts: Any) -> Kept:
    """Read the answers of `questions`."""
    pairs = (
        counts if isinstance(counts, dict) else dict(zip(counts[::2], counts[1::2], strict=True))
    )

    def count(name: bytes) -> int:
        return int(pairs.get(name, 0))

    return Kept(
        number=number, bytes=count(b"bytes"), too_old=count(b"trimmed:age"),
        too_many=count(b"trimmed:number"), too_large=count(b"trimmed:bytes"),
        died={
            name.decode().removeprefix("died:"): int(number)
            for name, number in pairs.items()
            if name.startswith(b"died:")
        },
    )  # fmt: skip


def questions(keys: Keys) -> list[calls.Call]:
    """Return the commands whose answers `kept` reads."""
    return [("XLEN", keys.dead()), ("HGETALL", keys.dead_numbers())]


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


def with_obstacles(store: Store, found: Iterable[Letter]) -> Iterator[tuple[Letter, str]]:
    """Yield letters with why `replay` would leave each where it is, "" where it would not.

    Raises:
        BrokerUnavailable: no answer in time.
    """
    keys, left = store.keys, iter(found)
    while some := list(islice(left, AT_ONCE)):
        asked: list[calls.Call] = []
        for one in some:
            join, _, index = one.join.rpartition("|")
            asked += [
                ("HGET", keys.run(one.run), "state"),
                ("HGET", keys.join(join), "state"),
                ("HEXISTS", keys.outcomes(join), index),
            ]
        answers = iter(store.pipeline(asked))
        for one, run, join_state, counted in zip(some, answers, answers, answers, strict=False):
            refusal = _refusal(one, run, is_open=join_state == b"open" and not counted)
            yield one, REFUSALS.get(refusal, "")


def _refusal(letter: Letter, run: bytes | None, *, is_open: bool) -> str:
    """Return what `replay.lua` would answer."""
    if not letter.whole:
        return "cut"
    if not letter.pool or not letter.lane:
        return "nowhere"
    if letter.run and run != b"running":
        return "ended"
    return "counted" if letter.join and not is_open else "ok"


def replay(store: Store, ids: Iterable[str]) -> Replayed:
    """Move letters back into their queues, as new; each is moved whole or not at all.

    Raises:
        BrokerUnavailable: no answer in time; what was moved is, and the rest can be asked again.
    """
    moved, refused = 0, {}
    for id_, answer in _answered(store, calls.replay, ids):
        if answer == "ok":
            moved += 1
        else:
            refused[id_] = REFUSALS[answer]
    return Replayed(moved, refused)


def drop(store: Store, ids: Iterable[str]) -> int:
    """Delete letters for good; return how many there were.

    Raises:
        BrokerUnavailable: no answer in time; the rest can be asked again.
    """
    return sum(answer == "ok" for _, answer in _answered(store, calls.drop, ids))


def _answered(
    store: Store, call: Callable[[str, Sequence[str]], calls.Call], ids: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """Yield letters with what *call* answered of them, piece by piece."""
    left = iter(ids)
    while some := list(islice(left, AT_ONCE)):
        yield from ((id_, "gone") for id_ in some if not _is_id(id_))
        known = [id_ for id_ in some if _is_id(id_)]
        while known:
            answers = store.call(call(store.keys.prefix, known))
            yield from ((id_, a.decode()) for id_, a in zip(known, answers, strict=False))
            known = known[len(answers) :]


def _is_id(text: str) -> bool:
    return bool(_ID.fullmatch(text)) and all(int(part) < 1 << 64 for part in text.split("-"))


def _start(store: Store, since: timedelta | None) -> bytes:
    if since is None:
        return b"-"
    seconds, micros = store.command("TIME")
    now_ms = int(seconds) * 1000 + int(micros) // 1000
    return str(max(0, now_ms - milliseconds(since))).encode()


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
