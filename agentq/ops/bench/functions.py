"""The longest single execution of each Redis function under large input, against the limit of 5 ms.

While a function runs the server does nothing else, so the longest one is what every other caller
may have to wait. Times are the server's own (`INFO commandstats`), without the way there and back.
The same calls are made in several rounds on fresh data: of each its best is taken, since on a
shared machine a single execution may have been interrupted, and of those the longest. Many small
messages are measured (`Round`), and large ones (`LargeRound`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

from agentq.ops.bench.large_messages import LargeRound
from agentq.ops.bench.server import private_server
from agentq.ops.bench.timing import (
    BODY,
    CHUNK,
    FETCHED,
    HEADERS,
    KEEP_MS,
    LANE,
    LEASE_MS,
    NEVER_MS,
    POOL,
    WORKER,
    Times,
    Timing,
)  # fmt: skip
from agentq.store import calls, effects
from agentq.store.address import parse
from agentq.store.client import Store
from agentq.store.effects import Message

LIMIT_US = 5000
"""No function may hold the server longer."""

MEMBERS = 5000
REAPED, PROMOTED, COMPLETED = 500, 200, 32
LETTERS, LARGE = 100, 262_144
PAYLOAD = 200_000
"""Bytes of what is measured as large messages; `broker.max_payload` lets 256 KiB through."""


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


def measure_functions(
    *, rounds: int = 5, server: Path | None = None, payload: int = PAYLOAD
) -> list[Held]:
    """Measure every function on a private server, with small messages and those of *payload* bytes.

    Takes some ten seconds.

    Raises:
        ServerNotFound: there is no Valkey or Redis to start.
    """
    with private_server(server) as embedded:
        found: list[Times] = []
        for _ in range(rounds):
            store = Store(address=parse(embedded.url), timeout=timedelta(seconds=30))
            try:
                store.ensure_functions()
                found.append(Round(store).run() | LargeRound(store, payload).run())
            finally:
                store.close()
    return [
        Held(
            *what,
            max(map(min, zip(*(times[what] for times in found), strict=False))),
            max(max(times[what]) for times in found),
            len(found[0][what]),
        )
        for what in found[0]
    ]


def render_functions(held: Sequence[Held]) -> str:
    """Return the table; what is over the limit is marked."""
    lines = [f"{'function':<20}{'given':<52}{'longest us':>11}{'seen us':>11}"]
    lines += [
        f"{one.name:<20}{one.given:<52}{one.longest_us:>11,}{one.seen_us:>11,}"
        f"{'' if one.within else f'  over {LIMIT_US:,} us'}"
        for one in held
    ]
    return "\n".join(lines)


def functions_as_json(held: Sequence[Held]) -> str:
    """Return the same for scripts."""
    return json.dumps([{**asdict(one), "within": one.within} for one in held], indent=2)


class Round(Timing):
    """Every function once, with small messages."""

    def tests(self) -> Sequence[Callable[[], None]]:
        """Return what is measured."""
        return (
            self._enqueue, self._group, self._fan_out, self._fetch_and_complete, self._reap,
            self._release, self._promote, self._retries, self._ended, self._renew, self._cancel,
            self._fail, self._letters,
        )  # fmt: skip

    def _stage(self, group: str, members: Sequence[Message], *, timed: bool = False) -> None:
        for start in range(0, len(members), CHUNK):
            chunk = members[start : start + CHUNK]
            call = calls.stage(self.prefix, group, start, chunk, started=True)
            if timed:
                self.timed(f"{CHUNK} members", call)
            else:
                self.call(call)

    # -- one function each ------------------------------------------------------------------------

    def _enqueue(self) -> None:
        self.timed("1 run", self.enqueue_all([effects.put(self.message("a", run="r"))], run="r"))
        self.fill(MEMBERS)
        self.store.command("DEL", f"{self.prefix}load:{POOL}")  # so that it takes a sample
        self.timed(
            f"1 run, {MEMBERS:,} waiting, a sample taken",
            self.enqueue_all([effects.put(self.message("b", run="q"))], run="q"),
        )
        many = [effects.put(self.message(f"e{i}")) for i in range(CHUNK)]
        self.timed(f"{CHUNK} messages", self.enqueue_all(many))

    def _group(self) -> None:
        self._stage("g", [self.message(f"g{i}") for i in range(MEMBERS)])
        opened = [effects.open_group("g", POOL, LANE)]
        self.timed(
            f"a group of {MEMBERS:,}",
            calls.open_staged(self.prefix, self.admission("g"), opened, count=MEMBERS),
        )
        self.timed(f"{FETCHED} of a group, spilled", self.fetch(FETCHED))

    def _fan_out(self) -> None:
        self.call(self.enqueue_all([effects.put(self.message("a", run="r"))], run="r"))
        _, [first] = self.call(self.fetch(1))
        members = [self.message(f"m{i}", run="r", join=f"j|{i}") for i in range(MEMBERS)]
        self._stage("j@1", members, timed=True)
        size = MEMBERS * len(HEADERS + BODY)
        opened = effects.join(
            "j",
            width=MEMBERS,
            at_once=CHUNK,
            ttl_ms=KEEP_MS,
            run="r",
            body=[self.message("body", run="r")],
            members="j@1",
            staged_bytes=size,
        )
        self.timed(
            f"opens a fan-out of {MEMBERS:,}, {CHUNK} at once", self.complete(first, [opened], "r")
        )
        outcome = b'{"value":"' + BODY + b'"}'
        left = MEMBERS
        while left:
            _, entries = self.call(self.fetch(FETCHED))
            for start in range(0, len(entries), COMPLETED):
                group = [
                    self.complete(
                        entry, [effects.part("j", entry[3][1][1:].decode(), outcome)], "r"
                    )
                    for entry in entries[start : start + COMPLETED]
                ]
                self.timed(f"{COMPLETED} members of a fan-out", calls.complete_many(group))
                left -= len(group)
        _, [body] = self.call(self.fetch(10))
        end = [effects.forget("j"), effects.end("r", "done", b"1", KEEP_MS)]
        self.timed(f"ends a run with {MEMBERS:,} outcomes", self.complete(body, end, "r"))

    def _fetch_and_complete(self) -> None:
        for number in range(FETCHED):
            run = f"r{number}"
            self.call(self.enqueue_all([effects.put(self.message(f"m{number}", run=run))], run))
        _, entries = self.timed(f"{FETCHED} messages of runs", self.fetch(FETCHED))
        group = [
            self.complete(
                entry,
                [
                    effects.event(f"r{number}", "step", BODY),
                    effects.put(self.message(f"n{number}", run=f"r{number}")),
                    effects.meta(f"m{number}", KEEP_MS, BODY),
                ],
                f"r{number}",
            )
            for number, entry in enumerate(entries[:COMPLETED])
        ]
        self.timed(f"{COMPLETED} steps of runs", calls.complete_many(group))
        inline = [self.message(f"i{i}", run="r99", join=f"k|{i}") for i in range(CHUNK)]
        opened = effects.join(
            "k",
            width=CHUNK,
            at_once=CHUNK,
            ttl_ms=KEEP_MS,
            run="r99",
            body=[self.message("body", run="r99")],
            members=inline,
        )
        self.timed(
            f"opens a fan-out of {CHUNK}, all at once", self.complete(entries[99], [opened], "r99")
        )

    def _reap(self) -> None:
        self.fill(REAPED)
        self.take(REAPED)
        self.store.command("ZADD", self.store.keys.workers(), 1, WORKER)
        self.timed(f"a worker that held {REAPED}", calls.reap(self.prefix, 3, NEVER_MS, KEEP_MS))

    def _release(self) -> None:
        self.fill(REAPED)
        self.take(REAPED)
        self.timed(
            f"a worker that held {REAPED}",
            calls.release(self.prefix, WORKER, died=False, limit=3, keep_ms=KEEP_MS),
        )

    def _promote(self) -> None:
        self.fill(PROMOTED, due=-1)
        self.store.command(
            "ZADD",
            self.store.keys.runs(),
            *(arg for number in range(MEMBERS) for arg in (1, f"old{number}")),
        )
        self.timed(
            f"{PROMOTED} due, {MEMBERS:,} old runs", calls.promote(self.prefix, PROMOTED, KEEP_MS)
        )

    def _retries(self) -> None:
        again = [effects.again(self.message(f"m{number}", due=-1)) for number in range(PROMOTED)]
        self.call(calls.complete(self.prefix, "", "", "", KEEP_MS, again))
        few, many = (
            calls.promote(self.prefix, PROMOTED, KEEP_MS, retries=f"0 {rate}")
            for rate in (1, PROMOTED)
        )
        self.timed(f"{PROMOTED} retries due, few tokens", few)
        self.store.command("DEL", f"{self.prefix}load:{POOL}")  # a full bucket
        self.store.command("ZADD", self.store.keys.retrying(), 0, POOL)
        self.timed(f"{PROMOTED} retries that waited for tokens", many)

    def _ended(self) -> None:
        steps = [self.message(f"m{n}", run="r", due=-LEASE_MS) for n in range(PROMOTED)]
        self.call(self.enqueue_all([effects.put(one) for one in steps], run="r"))
        self.call(calls.cancel(self.prefix, "r", KEEP_MS))
        sweep = calls.promote(self.prefix, PROMOTED, KEEP_MS)
        self.timed(f"{PROMOTED} delayed of an ended run", sweep)

    def _renew(self) -> None:
        report = b'{"pools":["p"],"text":"' + BODY + b'"}'
        self.timed(
            "a report", calls.renew(self.prefix, WORKER, LEASE_MS, first=False, report=report)
        )

    def _cancel(self) -> None:
        self.call(self.enqueue_all([effects.put(self.message("a", run="r"))], run="r"))
        for number in range(FETCHED):
            name = f"w{number}"
            self.call(calls.renew(self.prefix, name, LEASE_MS, first=True, report=b"{}"))
        self.timed(f"a run, {FETCHED} workers", calls.cancel(self.prefix, "r", KEEP_MS))

    def _fail(self) -> None:
        self.fill(1)
        _, [[_, stream, entry, *_]] = self.call(self.fetch(1))
        lane = f"{POOL}:{LANE}"
        self.timed(
            "a retry in 1 s",
            calls.fail(self.prefix, lane, stream, entry, after_ms=1000, retry=True),
        )

    def _letters(self) -> None:
        small = self.die(LETTERS, b"")
        self.timed(f"{LETTERS} letters", calls.replay(self.prefix, small))
        small = self.die(LETTERS, b"")
        self.timed(f"{LETTERS} letters", calls.drop(self.prefix, small))
        large = self.die(LETTERS, bytes(LARGE))
        self.timed(f"letters of {LARGE >> 10} KiB", calls.drop(self.prefix, large))
        self.timed(
            f"too many letters of {LARGE >> 10} KiB",
            calls.promote(self.prefix, PROMOTED, KEEP_MS, letters=calls.Letters(max_number=1)),
        )
