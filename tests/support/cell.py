"""The functions of one cell, called directly: what a worker or producer would send, no process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from agentq.store import calls, effects
from agentq.store.address import parse
from agentq.store.client import Store
from agentq.store.effects import Effect, Message

LIMIT = 3
LEASE_MS = 60_000
KEEP_MS = 60_000
NO_GAP_MS = 3_600_000
"""A gap that never occurs: `reap` reaps."""


def message(
    id_: str, *, pool: str = "p", lane: str = "normal", run: str = "", join: str = "", due: int = 0
) -> Message:
    return Message(pool, lane, due, id_, run, join, b'{"h":1}', b'["b"]')


@dataclass(frozen=True)
class Handed:
    """One entry of `fetch`."""

    stream: str
    entry: str
    id: str
    live: bool
    deadline_ms: int
    attempts: int
    retries: int
    lane: str
    suspected: int


_BUCKET = """
local v = redis.call('HMGET', KEYS[1], 'n', 'f')
local ended = (v[1] or 0) + (v[2] or 0)
local bucket = cmsgpack.pack({ tonumber(ARGV[1]), tonumber(ARGV[2]), 0, ended })
redis.call('HSET', KEYS[1], 'b', bucket)
redis.call('ZADD', KEYS[2], 'XX', ARGV[1], 'p')
"""


class Cell:
    """Typed enough for tests; answers as the functions give them."""

    def __init__(self, url: str) -> None:
        self.store = Store(address=parse(url), timeout=None)
        self.keys = self.store.keys
        self.prefix = self.keys.prefix

    def redis(self, *args: Any) -> Any:
        return self.store.command(*args)

    def now_ms(self) -> int:
        seconds, micros = self.redis("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    def enqueue(  # noqa: PLR0913 -- what a test may set
        self,
        *work: Effect | Message,
        id_: str = "",
        limit: int = 1000,
        run: str = "",
        deadline_ms: int = 0,
        lane: str = "normal",
        limit_bytes: int = 1 << 30,
        tenant: str = "",
        max_per_tenant: int = 0,
        max_members: int = 10_000,
        max_bytes: int = 1 << 26,
    ) -> Any:
        effects_ = [effects.put(one) if isinstance(one, Message) else one for one in work]
        new_run = calls.NewRun(
            run, b"{}" if run else b"", deadline_ms, KEEP_MS, max_members, max_bytes
        )
        admission = calls.Admission(
            id_, 60_000, "p", lane, limit, limit_bytes, tenant, max_per_tenant
        )
        call = calls.enqueue(self.prefix, admission, effects_, run=new_run)
        return calls.enqueued(self.store.call(call))

    def renew(
        self,
        worker: str,
        *,
        lease_ms: int = LEASE_MS,
        first: bool = True,
        suspects: int = 0,
        pools: Sequence[str] = (),
    ) -> bool:
        """Take or renew a lease; *suspects*: how many the worker says it runs alone at once."""
        report = orjson.dumps({"pools": list(pools), "suspects": suspects})
        call = calls.renew(self.prefix, worker, lease_ms, first=first, report=report)
        return bool(self.store.call(call)[1])

    def fetch(
        self,
        worker: str,
        slots: int = 100,
        *,
        pool: str = "p",
        lanes: Sequence[str] = ("high", "normal", "low"),
    ) -> list[Handed]:
        quotas = [arg for lane in lanes for arg in (lane, slots)]
        call = calls.fetch(self.prefix, worker, pool, slots, 0, quotas)
        _, entries = self.store.call(call)
        assert entries is not None, f"{worker} holds no lease"
        return [_handed(entry) for entry in entries]

    def complete(self, handed: Handed, *work: Effect, run: str = "") -> str:
        call = calls.complete(self.prefix, handed.stream, handed.entry, run, KEEP_MS, list(work))
        return str(self.store.call(call).decode())

    def fail(self, handed: Handed, *, after_ms: int = 0, retry: bool = True) -> str:
        call = calls.fail(
            self.prefix, f"p:{handed.lane}", handed.stream, handed.entry,
            after_ms=after_ms, retry=retry,
        )  # fmt: skip
        reply = self.store.call(call)
        return "ok" if isinstance(reply, int) else str(reply.decode())  # ms that it is held

    def died_alone(self, handed: Handed) -> str:
        call = calls.died(
            self.prefix, f"p:{handed.lane}", handed.stream, handed.entry,
            limit=LIMIT, keep_ms=KEEP_MS,
        )  # fmt: skip
        return str(self.store.call(call).decode())

    def complete_many(self, ended: Sequence[tuple[Handed, str, Sequence[Effect]]]) -> list[str]:
        """End several; each with its run and its effects."""
        some = [
            calls.complete(self.prefix, one.stream, one.entry, run, KEEP_MS, work)
            for one, run, work in ended
        ]
        return [answer.decode() for answer in self.store.call(calls.complete_many(some))]

    def park(
        self,
        handed: Handed,
        lacking: str = "task x",
        *,
        after_ms: int = 1,
        limit_ms: int = LEASE_MS,
    ) -> str:
        call = calls.park(
            self.prefix, f"p:{handed.lane}", handed.stream, handed.entry,
            after_ms=after_ms, name=lacking, limit_ms=limit_ms, keep_ms=KEEP_MS,
        )  # fmt: skip
        return str(self.store.call(call).decode())

    def replay(self, letters: Sequence[str]) -> list[str]:
        return [word.decode() for word in self.store.call(calls.replay(self.prefix, letters))]

    def stage(self, group: str, members: Sequence[Message]) -> None:
        for offset in range(0, len(members), 500):
            chunk = members[offset : offset + 500]
            self.store.call(calls.stage(self.prefix, group, offset, chunk, started=False))

    def open(self, *work: Effect, id_: str = "", limit: int = 0, count: int = 0) -> bytes:
        """Make staged members visible; *limit* of the lane, 0: it is not checked."""
        pool, lane = ("p", "normal") if limit else ("", "")
        admission = calls.Admission(id_, 60_000, pool, lane, limit, 1 << 30)
        call = calls.open_staged(self.prefix, admission, work, count=count)
        reply: list[bytes] = self.store.call(call)
        return reply[0]

    def reap(self, *, limit: int = LIMIT, gap_ms: int = NO_GAP_MS) -> tuple[int, str]:
        count, worker, _ = self.store.call(calls.reap(self.prefix, limit, gap_ms, KEEP_MS))
        return count, worker.decode()

    def pass_deadline(self, run: str) -> None:
        """Let a run's deadline be long ago."""
        self.redis("HSET", self.keys.run(run), "deadline", 1)
        self.redis("ZADD", f"{self.prefix}due", 1, run)

    def expire_lease(self, worker: str) -> None:
        """Let a lease run out now, as if its process had died a lease ago."""
        self.redis("ZADD", self.keys.workers(), 1, worker)

    def release(self, worker: str, *, died: bool = False) -> int:
        call = calls.release(self.prefix, worker, died=died, limit=LIMIT, keep_ms=KEEP_MS)
        return int(self.store.call(call))

    def promote(self, most: int = 500, retries: str = "20 10", **letters: int) -> list[int]:
        """Sweep; *letters*: how dead ones are kept, as `calls.Letters` has it."""
        call = calls.promote(
            self.prefix, most, KEEP_MS, letters=calls.Letters(**letters), retries=retries
        )
        reply: list[int] = self.store.call(call)
        return reply

    def fill_bucket(self, tokens: int) -> None:
        """Let so many retries be within the budget now, whatever there was."""
        self.redis(
            "EVAL", _BUCKET, 2, f"{self.prefix}load:p", self.keys.retrying(), self.now_ms(), tokens
        )

    def bury(self, count: int, *, body: bytes = b"") -> None:
        """Add dead letters of tasks *t0*, *t1*, ..., each with a reason of three bytes."""
        dead = [
            effects.dead("why", f"t{n}", 0, b"", body, pool="p", lane="normal")
            for n in range(count)
        ]
        for start in range(0, count, 1000):
            part = dead[start : start + 1000]
            self.store.call(calls.complete(self.prefix, "", "", "", KEEP_MS, part))

    def cancel(self, run: str) -> int:
        return int(self.store.call(calls.cancel(self.prefix, run, KEEP_MS)))

    def run_state(self, run: str) -> str:
        return str(self.redis("HGET", self.keys.run(run), "state").decode())

    def outcomes(self, join: str) -> dict[int, bytes]:
        reply = self.redis("HGETALL", self.keys.outcomes(join))
        return {int(index): value for index, value in reply.items()}

    def dead_letters(self) -> list[dict[bytes, bytes]]:
        return [fields for _, fields in self.redis("XRANGE", self.keys.dead(), "-", "+")]

    def all_keys(self) -> set[str]:
        found = self.store.client.scan_iter(match=f"{self.prefix}*", count=1000)
        return {key.decode() for key in found}


def _handed(entry: list[Any]) -> Handed:
    lane, stream, entry_id, flat, live, deadline = entry
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    return Handed(
        stream.decode(), entry_id.decode(), fields[b"i"].decode(), live == 1, deadline,
        int(fields.get(b"a", 0)), int(fields.get(b"n", 0)), lane.decode(),
        int(fields.get(b"s", 0)),
    )  # fmt: skip
