"""Hands back at once what a dead worker held: who started it knows before its lease runs out.

The lease is for what nobody sees: a lost machine, a cut link, a process that hangs unwatched.
"""

from __future__ import annotations

from agentq.clock import milliseconds
from agentq.errors import BrokerUnavailable
from agentq.host.supervisor import LeaseNote
from agentq.settings import Settings
from agentq.store import calls
from agentq.store.address import parse
from agentq.store.client import Store


def found_dead(note: LeaseNote, settings: Settings, *, url: str, suspects: bool) -> str:
    """Hand back what the process held that left *note*; return a line on it, "" where it held none.

    *url* is its broker's; the rest is as for `hand_back`. A broker that is away is no error: it
    is said, and the lease runs out by itself. Nor is a process that lives: it keeps what it has.
    """
    worker = note.read()
    if worker is None:
        return ""
    if (pid := note.holder()) is not None:
        return f"{worker} is not gone: process {pid} lives; nothing is handed back"
    address = parse(url, cell=settings.broker.cell)
    store = Store(address=address, timeout=settings.broker.timeout)
    try:
        count = hand_back(store, settings, worker, suspects=suspects)
    except BrokerUnavailable as error:
        return f"{error}; what {worker} held is free when its lease ends"
    finally:
        store.close()
    note.remove()
    return f"{worker} is gone: {count} messages handed out again"


def hand_back(store: Store, settings: Settings, worker: str, *, suspects: bool) -> int:
    """Hand out again what *worker*, the name of a lease, held; return how many messages.

    Its process must be dead. *suspects*: its steps may be what it died of, and run alone; False
    where it was ended on purpose. A lease that is gone already, or was reaped meanwhile, is no
    error: nothing is handed back twice.

    Raises:
        BrokerUnavailable: no answer in time; the lease runs out by itself.
    """
    prefix, keep_ms = store.keys.prefix, milliseconds(settings.runs.keep)
    limit = settings.broker.delivery_limit
    returned = 0
    if not suspects:
        call = calls.release(prefix, worker, died=False, limit=limit, keep_ms=keep_ms)
        while (count := store.call(call)) >= calls.HANDED_BACK:
            returned += count
        return returned + int(count)
    gap_ms = max(milliseconds(settings.worker.lease) // 2, 3000)
    # It runs out now, and is reaped as every lease that runs out: one place knows what is suspect.
    # Again, because a reaper may first give all leases a new term, or take another dead one.
    expire = calls.renew(prefix, worker, -1, first=False, report=b"")
    while store.call(expire)[1]:
        count, reaped, _ = store.call(calls.reap(prefix, limit, gap_ms, keep_ms))
        if reaped.decode() == worker:
            returned += count
    return returned
