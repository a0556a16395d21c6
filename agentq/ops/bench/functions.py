"""The longest single execution of each Redis function under large input, against the limit of 5 ms.

While a function runs the server does nothing else, so the longest one is what every other caller
may have to wait. Times are the server's own (`INFO commandstats`), without the way there and back.
The same calls are made in several rounds on fresh data: of each its best is taken, since on a
shared machine a single execution may have been interrupted, and of those the longest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from agentq.ops.bench.server import private_server
from agentq.store import calls, effects
from agentq.store.address import parse
from agentq.store.calls import Call
from agentq.store.client import Store
from agentq.store.effects import Effect, Message

LIMIT_US = 5000
"""No function may hold the server longer."""

MEMBERS = 5000
CHUNK, FETCHED, REAPED, PROMOTED, COMPLETED = 500, 256, 500, 200, 32
LETTERS, LARGE = 100, 262_144
_BODY = b"x" * 700
_HEADERS = b"h" * 700
_WORKER, _POOL, _LANE = "w", "p", "normal"
_KEEP_MS, _LEASE_MS = 60_000, 3_600_000
_CAP = 1 << 40

Times = dict[tuple[str, str], list[int]]
"""Microseconds of each call, by function and what it was given."""


@dataclass(frozen=True, slots=True)
class Held:
    """How long one function held the server.

    Attributes:
        name: of the function.
        given: what it was given.
        longest_us: the longest of its calls, each in its best round, microseconds.
        seen_us: the longest of all rounds, interruptions included.
        calls: how many there were in a round.
    """

    name: str
    given: str
    longest_us: int
    seen_us: int
    calls: int

    @property
    def within(self) -> bool:
        """Whether it kept to the limit."""
        return self.longest_us <= LIMIT_US


def measure_functions(*, rounds: int = 5, server: Path | None = None) -> list[Held]:
    """Measure every function on a private server; takes a few seconds.

    Raises:
        ServerNotFound: there is no Valkey or Redis to start.
    """
    with private_server(server) as embedded:
        found: list[Times] = []
        for _ in range(rounds):
            store = Store(address=parse(embedded.url), timeout=timedelta(seconds=30))
            try:
                store.ensure_functions()
                found.append(Round(store).run())
            finally:
                store.close()
    return [
        Held(
            *what,
            max(map(min, zip(*(times[what] for times in found), strict=True))),
            max(max(times[what]) for times in found),
            len(found[0][what]),
        )
        for what in found[0]
    ]


def render_functions(held: Sequence[Held]) -> str:
    """Return the table; what is over the limit is marked."""
    lines = [f"{'function':<20}{'given':<46}{'longest us':>11}{'seen us':>11}"]
    lines += [
        f"{one.name:<20}{one.given:<46}{one.longest_us:>11,}{one.seen_us:>11,}"
        f"{'' if one.within else f'  over {LIMIT_US:,} us'}"
        for one in held
    ]
    return "\n".join(lines)


def functions_as_json(held: Sequence[Held]) -> str:
    """Return the same for scripts."""
    return json.dumps([{**asdict(one), "within": one.within} for one in held], indent=2)


def _message(id_: str, *, run: str = "", join: str = "", due: int = 0) -> Message:
    return Message(_POOL, _LANE, due, id_, run, join, _HEADERS, _BODY)


class Round:
    """Every function once, on an empty server."""

    def __init__(self, store: Store) -> None:
        """Keep the store."""
        self._store = store
        self._prefix = store.keys.prefix
        self._found: Times = {}

    def run(self) -> Times:
        """Measure all of them."""
        tests: list[Callable[[], None]] = [
            self._enqueue, self._group, self._fan_out, self._fetch_and_complete, self._reap,
            self._release, self._promote, self._retries, self._ended, self._renew, self._cancel,
            self._fail, self._letters,
        ]  # fmt: skip
        for test in tests:
            self._store.command("FLUSHALL")
            self._call(calls.renew(self._prefix, _WORKER, _LEASE_MS, first=True, report=b"{}"))
            test()
        return self._found

    # -- what is sent -----------------------------------------------------------------------------

    def _call(self, call: Call) -> Any:
        return self._store.call(call)

    def _timed(self, given: str, call: Call) -> Any:
        self._store.command("CONFIG", "RESETSTAT")
        reply = self._call(call)
        spent = self._store.client.info("commandstats")["cmdstat_fcall"]
        self._found.setdefault((str(call[1]), given), []).append(int(spent["usec"]))
        return reply

    def _admission(self, id_: str = "") -> calls.Admission:
        return calls.Admission(id_, _KEEP_MS, _POOL, _LANE, _CAP, _CAP)

    def _enqueue_all(self, work: Sequence[Effect], run: str = "") -> Call:
        new = calls.NewRun(run, b"{}" if run else b"", 0, _KEEP_MS, _CAP, _CAP)
        return calls.enqueue(self._prefix, self._admission(), work, run=new)

    def _fill(self, count: int, **fields: Any) -> None:
        for start in range(0, count, CHUNK):
            ids = range(start, min(count, start + CHUNK))
            self._call(self._enqueue_all([effects.put(_message(f"m{i}", **fields)) for i in ids]))

    def _fetch(self, slots: int) -> Call:
        return calls.fetch(self._prefix, _WORKER, _POOL, slots, 0, (_LANE, slots))

    def _stage(self, group: str, members: Sequence[Message], *, timed: bool = False) -> None:
        for start in range(0, len(members), CHUNK):
            chunk = members[start : start + CHUNK]
            call = calls.stage(self._prefix, group, start, chunk, started=True)
            if timed:
                self._timed(f"{CHUNK} members", call)
            else:
                self._call(call)

    def _complete(self, entry: Any, work: Sequence[Effect], run: str = "") -> Call:
        return calls.complete(self._prefix, entry[1], entry[2], run, _KEEP_MS, work)

    # -- one function each ------------------------------------------------------------------------

    def _enqueue(self) -> None:
        self._timed("1 run", self._enqueue_all([effects.put(_message("a", run="r"))], run="r"))
        self._fill(MEMBERS)
        self._store.command("DEL", f"{self._prefix}load:{_POOL}")  # so that it takes a sample
        self._timed(
            f"1 run, {MEMBERS:,} waiting, a sample taken",
            self._enqueue_all([effects.put(_message("b", run="q"))], run="q"),
        )
        many = [effects.put(_message(f"e{i}")) for i in range(CHUNK)]
        self._timed(f"{CHUNK} messages", self._enqueue_all(many))

    def _group(self) -> None:
        self._stage("g", [_message(f"g{i}") for i in range(MEMBERS)])
        opened = [effects.open_group("g", _POOL, _LANE)]
        self._timed(
            f"a group of {MEMBERS:,}",
            calls.open_staged(self._prefix, self._admission("g"), opened, count=MEMBERS),
        )
        self._timed(f"{FETCHED} of a group, spilled", self._fetch(FETCHED))

    def _fan_out(self) -> None:
        self._call(self._enqueue_all([effects.put(_message("a", run="r"))], run="r"))
        _, [first] = self._call(self._fetch(1))
        members = [_message(f"m{i}", run="r", join=f"j|{i}") for i in range(MEMBERS)]
        self._stage("j@1", members, timed=True)
        size = MEMBERS * len(_HEADERS + _BODY)
        opened = effects.join(
            "j",
            width=MEMBERS,
            at_once=CHUNK,
            ttl_ms=_KEEP_MS,
            run="r",
            body=[_message("body", run="r")],
            members="j@1",
            staged_bytes=size,
        )
        self._timed(
            f"opens a fan-out of {MEMBERS:,}, {CHUNK} at once", self._complete(first, [opened], "r")
        )
        outcome = b'{"value":"' + _BODY + b'"}'
        left = MEMBERS
        while left:
            _, entries = self._call(self._fetch(FETCHED))
            for start in range(0, len(entries), COMPLETED):
                group = [
                    self._complete(
                        entry, [effects.part("j", entry[3][1][1:].decode(), outcome)], "r"
                    )
                    for entry in entries[start : start + COMPLETED]
                ]
                self._timed(f"{COMPLETED} members of a fan-out", calls.complete_many(group))
                left -= len(group)
        _, [body] = self._call(self._fetch(10))
        end = [effects.forget("j"), effects.end("r", "done", b"1", _KEEP_MS)]
        self._timed(f"ends a run with {MEMBERS:,} outcomes", self._complete(body, end, "r"))

    def _fetch_and_complete(self) -> None:
        for number in range(FETCHED):
            run = f"r{number}"
            self._call(self._enqueue_all([effects.put(_message(f"m{number}", run=run))], run))
        _, entries = self._timed(f"{FETCHED} messages of runs", self._fetch(FETCHED))
        group = [
            self._complete(
                entry,
                [
                    effects.event(f"r{number}", "step", _BODY),
                    effects.put(_message(f"n{number}", run=f"r{number}")),
                    effects.meta(f"m{number}", _KEEP_MS, _BODY),
                ],
                f"r{number}",
            )
            for number, entry in enumerate(entries[:COMPLETED])
        ]
        self._timed(f"{COMPLETED} steps of runs", calls.complete_many(group))
        inline = [_message(f"i{i}", run="r99", join=f"k|{i}") for i in range(CHUNK)]
        opened = effects.join(
            "k",
            width=CHUNK,
            at_once=CHUNK,
            ttl_ms=_KEEP_MS,
            run="r99",
            body=[_message("body", run="r99")],
            members=inline,
        )
        self._timed(
            f"opens a fan-out of {CHUNK}, all at once", self._complete(entries[99], [opened], "r99")
        )

    def _take(self, count: int) -> None:
        self._fill(count)
        while count > 0:
            count -= len(self._call(self._fetch(FETCHED))[1])

    def _reap(self) -> None:
        self._take(REAPED)
        self._store.command("ZADD", self._store.keys.workers(), 1, _WORKER)
        self._timed(f"a worker that held {REAPED}", calls.reap(self._prefix, 3, _CAP, _KEEP_MS))

    def _release(self) -> None:
        self._take(REAPED)
        self._timed(
            f"a worker that held {REAPED}",
            calls.release(self._prefix, _WORKER, died=False, limit=3, keep_ms=_KEEP_MS),
        )

    def _promote(self) -> None:
        self._fill(PROMOTED, due=-1)
        self._store.command(
            "ZADD",
            self._store.keys.runs(),
            *(arg for number in range(MEMBERS) for arg in (1, f"old{number}")),
        )
        self._timed(
            f"{PROMOTED} due, {MEMBERS:,} old runs", calls.promote(self._prefix, PROMOTED, _KEEP_MS)
        )

    def _retries(self) -> None:
        again = [effects.again(_message(f"m{number}", due=-1)) for number in range(PROMOTED)]
        self._call(calls.complete(self._prefix, "", "", "", _KEEP_MS, again))
        few, many = (
            calls.promote(self._prefix, PROMOTED, _KEEP_MS, retries=f"0 {rate}")
            for rate in (1, PROMOTED)
        )
        self._timed(f"{PROMOTED} retries due, few tokens", few)
        self._store.command("DEL", f"{self._prefix}load:{_POOL}")  # a full bucket
        self._store.command("ZADD", self._store.keys.retrying(), 0, _POOL)
        self._timed(f"{PROMOTED} retries that waited for tokens", many)

    def _ended(self) -> None:
        steps = [effects.put(_message(f"m{n}", run="r", due=-_LEASE_MS)) for n in range(PROMOTED)]
        self._call(self._enqueue_all(steps, run="r"))
        self._call(calls.cancel(self._prefix, "r", _KEEP_MS))
        sweep = calls.promote(self._prefix, PROMOTED, _KEEP_MS)
        self._timed(f"{PROMOTED} delayed of an ended run", sweep)

    def _renew(self) -> None:
        report = b'{"pools":["p"],"text":"' + _BODY + b'"}'
        self._timed(
            "a report", calls.renew(self._prefix, _WORKER, _LEASE_MS, first=False, report=report)
        )

    def _cancel(self) -> None:
        self._call(self._enqueue_all([effects.put(_message("a", run="r"))], run="r"))
        for number in range(FETCHED):
            name = f"w{number}"
            self._call(calls.renew(self._prefix, name, _LEASE_MS, first=True, report=b"{}"))
        self._timed(f"a run, {FETCHED} workers", calls.cancel(self._prefix, "r", _KEEP_MS))

    def _fail(self) -> None:
        self._fill(1)
        _, [[_, stream, entry, *_]] = self._call(self._fetch(1))
        lane = f"{_POOL}:{_LANE}"
        self._timed(
            "a retry in 1 s",
            calls.fail(self._prefix, lane, stream, entry, after_ms=1000, retry=True),
        )

    def _letters(self) -> None:
        small = self._die(LETTERS, b"")
        self._timed(f"{LETTERS} letters", calls.replay(self._prefix, small))
        small = self._die(LETTERS, b"")
        self._timed(f"{LETTERS} letters", calls.drop(self._prefix, small))
        large = self._die(LETTERS, bytes(LARGE))
        self._timed(f"letters of {LARGE >> 10} KiB", calls.drop(self._prefix, large))
        self._timed(
            f"too many letters of {LARGE >> 10} KiB",
            calls.promote(self._prefix, PROMOTED, _KEEP_MS, letters=calls.Letters(max_number=1)),
        )

    def _die(self, count: int, body: bytes) -> list[bytes]:
        for number in range(count):
            letter = effects.dead("why", f"d{number}", 0, _HEADERS, body, pool=_POOL, lane=_LANE)
            self._call(calls.complete(self._prefix, "", "", "", _KEEP_MS, [letter]))
        found = self._store.command("XRANGE", self._store.keys.dead(), "-", "+")
        return [entry for entry, _ in found]
