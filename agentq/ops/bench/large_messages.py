"""Every function that reads or moves messages, with as many large ones as it may meet.

Bytes are what these calls cost: a message of 200 KB is copied some times on its way through a
function, 0.1 ms and more. So each is called again and again until nothing is left, as its callers
do, and every one of those calls is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from agentq.broker.publisher import chunks
from agentq.ops.bench.timing import (
    FETCHED,
    KEEP_MS,
    LANE,
    NEVER_MS,
    POOL,
    WORKER,
    Timing,
)  # fmt: skip
from agentq.store import calls, effects
from agentq.store.calls import Call
from agentq.store.client import Store
from agentq.worker.pump import Outgoing, group

MESSAGES = 96
AT_ONCE = 64
ENOUGH = 1000
"""More than there are: what a call is asked for, where its callers ask for as much as it gives."""

_TASK = "shop.pay"
_HEADERS = orjson.dumps({"headers": {"task": _TASK, "text": "h" * 500}})
_PAUSE = f"step:{_TASK}"
_SOURCE = f"s:{POOL}:{LANE}"
_HOUR_MS = 3_600_000


class LargeRound(Timing):
    """One round of them."""

    def __init__(self, store: Store, payload: int) -> None:
        """Keep the store; *payload*: bytes of each body and result."""
        super().__init__(store, headers=_HEADERS, body=b"x" * payload)
        self._of = f"of {payload / 1000:,.0f} KB"

    def tests(self) -> Sequence[Callable[[], None]]:
        """Return what is measured."""
        return (
            self._enqueue, self._fetch, self._fetch_mixed, self._fetch_spilled, self._pause,
            self._release, self._reap, self._promote, self._retries, self._ended, self._fan_out,
            self._results, self._cancelled, self._hand_backs, self._purge_queue,
            self._purge_delayed, self._purge_aside, self._purge_group, self._letters, self._trim,
        )  # fmt: skip

    def _until(self, done: Callable[[Any], bool], given: str, call: Callable[[], Call]) -> None:
        """Measure a call until its answer says that nothing is left."""
        while not done(self.timed(given, call())):
            pass

    def _fill_large(self, *, due: int = 0) -> None:
        self.fill(MESSAGES, at_once=4, due=due)

    def _stage_all(self, name: str, members: Sequence[effects.Message], given: str = "") -> None:
        offset = 0
        for chunk in chunks(members):
            call = calls.stage(self.prefix, name, offset, chunk, started=True)
            offset = self.timed(given, call) if given else self.call(call)

    # -- one function each ------------------------------------------------------------------------

    def _enqueue(self) -> None:
        self.timed(
            f"1 run {self._of}", self.enqueue_all([effects.put(self.message("a", run="r"))], "r")
        )

    def _fetch(self) -> None:
        self._fill_large()
        self._until(lambda got: not got[1], f"{MESSAGES} {self._of}", lambda: self.fetch(FETCHED))

    def _fetch_mixed(self) -> None:
        """Small ones first: how large the next are can not be seen from them."""
        small = [self.message(f"s{n}")._replace(body=b"") for n in range(FETCHED // 2)]
        self.call(self.enqueue_all([effects.put(one) for one in small]))
        self._fill_large()
        self._until(
            lambda got: not got[1], f"{MESSAGES} {self._of} behind small ones",
            lambda: self.fetch(FETCHED),
        )  # fmt: skip

    def _open_group(self) -> None:
        self._stage_all("g", [self.message(f"g{n}") for n in range(MESSAGES)])
        opened = [effects.open_group("g", POOL, LANE)]
        self.call(calls.open_staged(self.prefix, self.admission("g"), opened, count=MESSAGES))

    def _fetch_spilled(self) -> None:
        self._open_group()
        self._until(
            lambda got: not got[1], f"a group of {MESSAGES} {self._of}", lambda: self.fetch(FETCHED)
        )

    def _put_aside(self, given: str = "") -> None:
        self._fill_large()
        self.call(calls.pause(self.prefix, _PAUSE))
        while self.store.command("XLEN", f"{self.prefix}{_SOURCE}"):
            if given:
                self.timed(given, self.fetch(FETCHED))
            else:
                self.call(self.fetch(FETCHED))

    def _pause(self) -> None:
        self._put_aside(f"{MESSAGES} {self._of}, paused")
        self._find(f"aside:{_PAUSE}")
        self._until(
            lambda got: not got[2], f"{MESSAGES} {self._of}",
            lambda: calls.resume(self.prefix, _PAUSE, ENOUGH),
        )  # fmt: skip

    def _take_all(self) -> list[Any]:
        self._fill_large()
        return self.take(MESSAGES)

    def _release(self) -> None:
        self._take_all()
        self._until(
            lambda count: count < calls.HANDED_BACK, f"a worker that held {MESSAGES} {self._of}",
            lambda: calls.release(self.prefix, WORKER, died=False, limit=3, keep_ms=KEEP_MS),
        )  # fmt: skip

    def _reap(self) -> None:
        self._take_all()
        self.store.command("ZADD", self.store.keys.workers(), 1, WORKER)
        self._until(
            lambda got: not got[1], f"a worker that held {MESSAGES} {self._of}",
            lambda: calls.reap(self.prefix, 3, NEVER_MS, KEEP_MS),
        )  # fmt: skip

    def _promote_all(self, given: str, retries: str = "20 10") -> None:
        self._until(
            lambda got: got[0] < FETCHED, f"{MESSAGES} {given} {self._of}",
            lambda: calls.promote(self.prefix, FETCHED, KEEP_MS, retries=retries),
        )  # fmt: skip

    def _promote(self) -> None:
        self._fill_large(due=-1)
        self._promote_all("due")

    def _retries(self) -> None:
        for number in range(MESSAGES):
            again = effects.again(self.message(f"m{number}", due=-1))
            self.call(calls.complete(self.prefix, "", "", "", KEEP_MS, [again]))
        self._promote_all("retries due, few tokens", "0 1")
        self.store.command("DEL", f"{self.prefix}load:{POOL}")  # a full bucket
        self.store.command("ZADD", self.store.keys.retrying(), 0, POOL)
        self._promote_all("retries that waited for tokens", f"0 {MESSAGES}")

    def _ended(self) -> None:
        steps = [self.message(f"e{n}", run="r", due=-_HOUR_MS) for n in range(MESSAGES)]
        self.call(self.enqueue_all([effects.put(one) for one in steps], run="r"))
        self.call(calls.cancel(self.prefix, "r", KEEP_MS))
        self._fill_large(due=-1)
        self._promote_all("of an ended run, and as many due,")

    def _fan_out(self) -> None:
        self.call(self.enqueue_all([effects.put(self.message("a", run="r"))], "r"))
        [first] = self.take(1)
        members = [self.message(f"m{n}", run="r", join=f"j|{n}") for n in range(MESSAGES)]
        self._stage_all("j@1", members, f"1 MiB {self._of}")
        opened = effects.join(
            "j", width=MESSAGES, at_once=AT_ONCE, ttl_ms=KEEP_MS, run="r",
            body=[self.message("body", run="r")], members="j@1",
            staged_bytes=MESSAGES * len(members[0].body),
        )  # fmt: skip
        self.timed(
            f"opens a fan-out of {MESSAGES} {self._of}, {AT_ONCE} at once",
            self.complete(first, [opened], "r"),
        )
        left = MESSAGES
        while left:
            entries = self.call(self.fetch(FETCHED))[1]
            left -= len(entries)
            self._send(
                f"members of a fan-out, outcomes {self._of}",
                [
                    self.complete(e, [effects.part("j", e[3][1][1:].decode(), self._body)], "r")
                    for e in entries
                ],
            )
        [body] = self.take(1)
        end = [effects.forget("j"), effects.end("r", "done", self._body, KEEP_MS)]
        self.timed(f"ends a run with {MESSAGES} outcomes {self._of}", self.complete(body, end, "r"))

    def _send(self, given: str, ended: Sequence[Call]) -> None:
        """Send completions as a worker does."""
        for call, _ in group([Outgoing([one], "") for one in ended]):
            self.timed(given, call)

    def _results(self) -> None:
        entries = self._take_all()
        third = len(entries) // 3
        self._send(
            f"Celery results {self._of}",
            [self.complete(e, [effects.meta("t", KEEP_MS, self._body)]) for e in entries[:third]],
        )
        self._send(
            f"next steps {self._of}",
            [
                self.complete(e, [effects.put(self.message("n"))])
                for e in entries[third : 2 * third]
            ],
        )
        for number in range(third):
            self.store.command("HSET", self.store.keys.run(f"r{number}"), "state", "running")
        self._send(
            f"ends of runs, results {self._of}",
            [
                self.complete(e, [effects.end(f"r{n}", "done", self._body, KEEP_MS)], f"r{n}")
                for n, e in enumerate(entries[2 * third :])
            ],
        )

    def _cancelled(self) -> None:
        self.store.command("HSET", self.store.keys.run("r"), "state", "cancelled")
        entries = self._take_all()
        self._send(
            f"steps {self._of} of a cancelled run", [self.complete(e, [], "r") for e in entries]
        )

    def _hand_backs(self) -> None:
        lane = f"{POOL}:{LANE}"
        self.fill(3)
        first, second, third = ((e[1], e[2]) for e in self.take(3))
        fail = calls.fail(self.prefix, lane, *first, after_ms=1000, retry=True)
        self.timed(f"a retry in 1 s {self._of}", fail)
        died = calls.died(self.prefix, lane, *second, limit=1, keep_ms=KEEP_MS)
        self.timed(f"given up {self._of}", died)
        park = calls.park(
            self.prefix, lane, *third, after_ms=1, name="x", limit_ms=_HOUR_MS, keep_ms=KEEP_MS
        )
        self.timed(f"1 {self._of}", park)

    def _find(self, source: str) -> None:
        cursor: Any = b""
        while True:
            call = calls.find(self.prefix, source, cursor, ENOUGH, "r")
            cursor = self.timed(f"{source.partition(':')[0]}: {MESSAGES} {self._of}", call)[0]
            if not cursor:
                return

    def _purge(self, source: str, given: str) -> None:
        cursor: Any = b""
        fitting = calls.Fitting(step=_TASK)
        while True:
            call = calls.purge(self.prefix, source, cursor, ENOUGH, reason="why", fitting=fitting)
            cursor = self.timed(f"{given}: {MESSAGES} {self._of}", call)[0]
            if not cursor:
                return

    def _purge_queue(self) -> None:
        self._fill_large()
        self._find(_SOURCE)
        self._purge(_SOURCE, "queue")

    def _purge_delayed(self) -> None:
        self._fill_large(due=-_HOUR_MS)
        self._find("delayed")
        self._purge("delayed", "delayed")

    def _purge_aside(self) -> None:
        self._put_aside()
        self._purge(f"aside:{_PAUSE}", "put aside")

    def _purge_group(self) -> None:
        self._open_group()
        self._purge(_SOURCE, "opened group")

    def _letters(self) -> None:
        self._each_letter(calls.replay)
        self._each_letter(calls.drop)

    def _each_letter(self, act: Callable[[str, Sequence[bytes]], Call]) -> None:
        left = self.die(MESSAGES, self._body)
        while left:
            left = left[len(self.timed(f"{MESSAGES} {self._of}", act(self.prefix, left))) :]

    def _trim(self) -> None:
        self.die(MESSAGES, self._body)
        letters = calls.Letters(max_number=1)
        while self.store.command("XLEN", self.store.keys.dead()) > 1:
            call = calls.promote(self.prefix, FETCHED, KEEP_MS, letters=letters)
            self.timed(f"trims {MESSAGES} letters {self._of}", call)
