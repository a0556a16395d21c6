"""What is recorded: each scene leaves something lying in a cell of its own.

A scene that was recorded stays as it is; what is new to record gets a scene of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from celery import chain, chord, group

from agentq.broker import publisher
from agentq.broker.consumed import Consumed
from agentq.broker.lease_keeper import LeaseKeeper
from agentq.broker.terms import Terms
from agentq.store import calls, effects
from agentq.worker.loop import Loop
from tests.contract.wire.frozen import NOW, NOW_MS
from tests.contract.wire.world import (
    HOST,
    KEEP_MS,
    LEASE_MS,
    WORKER,
    World,
    chunks_of,
    message,
)

Scene = Callable[[World], None]
SCENES: dict[str, Scene] = {}


def scene(make: Scene) -> Scene:
    """Add a scene under its function's name."""
    SCENES[make.__name__] = make
    return make


# -- runs -----------------------------------------------------------------------------------------


@scene
def first_step(w: World) -> None:
    w.app.counted.submit(2, key="first", tenant="acme", deadline="3650d", priority="low")


@scene
def typed_argument(w: World) -> None:
    w.app.echoed.submit(w.app.Brief(), key="typed")


@scene
def members(w: World) -> None:
    """Three members, of which two may be in the queue."""
    w.app.counted.submit(3, key="members")
    w.work("critical")


@scene
def staged_members(w: World) -> None:
    """More than one call carries: staged by the step that fans out."""
    with chunks_of(2):
        w.app.counted.submit(3, key="staged")
        w.work("critical")


@scene
def outcomes(w: World) -> None:
    """A value and an error; the third member is held by a worker of ours."""
    w.app.counted.submit(3, key="outcomes")
    w.work("critical")
    w.work(most=2)
    w.take()


@scene
def body(w: World) -> None:
    w.app.counted.submit(1, key="body")
    w.work("critical")
    w.work()


@scene
def later_step(w: World) -> None:
    body_of(w, "later")
    w.work("critical")


@scene
def ended(w: World) -> None:
    body_of(w, "ended")
    w.work("critical")
    w.work()


def body_of(w: World, key: str) -> None:
    w.app.counted.submit(1, key=key)
    w.work("critical")
    w.work()


@scene
def retried_step(w: World) -> None:
    w.app.shaken.submit(1, key="retried")
    w.work()


@scene
def failed_run(w: World) -> None:
    w.app.shaken.submit(2, key="failed")
    w.lease()
    [entry] = w.take()
    w.hand_back(entry, retry=True)
    w.work()


@scene
def cancelled_run(w: World) -> None:
    """Its step runs meanwhile: the worker is told."""
    run = w.app.shaken.submit(0, key="cancelled")
    w.lease()
    w.take()
    run.cancel()


@scene
def cancelled_retry(w: World) -> None:
    """Its step waits for its retry: what is delayed of the run is dropped by the next sweep."""
    run = w.app.shaken.submit(0, key="cancelled-retry")
    w.lease()
    w.hand_back(w.take()[0], retry=True, after_ms=5000)
    run.cancel()


@scene
def expired_run(w: World) -> None:
    new = calls.NewRun("expired", b'{"flow":"shaken","v":1}', NOW_MS - 10, KEEP_MS, 10, 1000)
    w.enqueue(message("expired:0", run="expired"), run=new)
    w.promote()


@scene
def run_too_large(w: World) -> None:
    for members_, bytes_, run in ((1, 1 << 20, "wide"), (100, 800, "heavy")):
        new = calls.NewRun(run, b"{}", 0, KEEP_MS, members_, bytes_)
        w.enqueue(message(f"{run}:0", run=run), run=new)
        w.lease()
        [entry] = w.take()
        each = [message(f"{run}:1.{i}", run=run, join=f"{run}:j|{i}") for i in range(2)]
        join = effects.join(
            f"{run}:j", width=2, at_once=2, ttl_ms=KEEP_MS, run=run,
            body=[message(f"{run}:2", run=run)], members=each,
        )  # fmt: skip
        w.end(entry, join, run=run)


# -- deliveries -----------------------------------------------------------------------------------


@scene
def handed_back(w: World) -> None:
    w.add("handed-back")
    w.lease()
    w.hand_back(w.take()[0], retry=False)


@scene
def retried(w: World) -> None:
    w.add("retried")
    w.lease()
    w.hand_back(w.take()[0], retry=True, after_ms=5000)


@scene
def retry_budget(w: World) -> None:
    """Of ten tokens: the eleventh retry waits for the next one."""
    w.store.call(calls.promote(w.prefix, 100, KEEP_MS, retries="0 1"))
    w.enqueue(*(message(f"retry{i}") for i in range(11)))
    w.lease()
    for entry in w.take(most=11):
        w.hand_back(entry, retry=True)
    w.store.call(calls.promote(w.prefix, 100, KEEP_MS, retries="0 1"))


@scene
def suspects(w: World) -> None:
    """Once of a process that died with two steps, once more of one that died with both again."""
    w.app.shaken.submit(0, key="suspect")
    w.add("suspect")
    for worker in ("dead#1", "dead#2"):
        w.lease(worker, lease_ms=0)
        w.take(most=2, worker=worker)
        w.reap()


@scene
def charged(w: World) -> None:
    w.add("charged")
    w.lease()
    w.died(w.take()[0], limit=3)


@scene
def given_up(w: World) -> None:
    """A plain task, a member, a run: what each ends with when its process died too often."""
    w.enqueue(message("alone"), message("member", join="j|0"), message("step", run="r"))
    new = calls.NewRun("r", b"{}", 0, KEEP_MS, 10, 1000)
    w.enqueue(message("first", run="r"), run=new)
    opened = effects.join(
        "j", width=2, at_once=2, ttl_ms=KEEP_MS, run="", body=[message("body")], members=[]
    )
    w.enqueue(opened)
    w.lease()
    for entry in w.take(most=3):
        w.died(entry, limit=1)


@scene
def parked(w: World) -> None:
    """A task that this worker has not; handed back once by a stock pool, too."""
    w.app.app.send_task("wire.elsewhere", (1,), queue="shared", task_id="parked")
    w.work()


@scene
def malformed(w: World) -> None:
    for run in ("", "malformed"):
        w.enqueue(message(f"{run}:0", run=run, head=b"\xff no JSON"))
    w.work(most=2)


@scene
def lost(w: World) -> None:
    """A task whose process died too often: its result, its dead letter."""
    w.add("lost")
    for _ in range(3):
        w.lease()
        w.died(w.take()[0], limit=3)
    w.work()


# -- Celery's tasks -------------------------------------------------------------------------------


@scene
def plain_task(w: World) -> None:
    w.app.add.apply_async((1,), {"y": 2}, task_id="plain", priority=9, headers={"own": "header"})
    w.app.add.apply_async((3, 4), task_id="low", priority=0)


@scene
def linked_task(w: World) -> None:
    signature = w.app.add.s(1, 2)
    options = {"link": w.app.add.s(10), "link_error": w.app.fails.si(), "expires": 3650 * 86400}
    signature.apply_async(task_id="linked", **options)


@scene
def delayed_tasks(w: World) -> None:
    w.app.add.apply_async((5, 6), task_id="countdown", countdown=10)
    w.app.add.apply_async((7, 8), task_id="eta", eta=NOW + timedelta(hours=1))


@scene
def chained(w: World) -> None:
    chain(w.app.add.s(1, 1), w.app.add.s(100)).apply_async(task_id="chained")


@scene
def chord_header(w: World) -> None:
    _chord(w)


@scene
def chord_counted(w: World) -> None:
    _chord(w)
    w.work()


@scene
def chord_body(w: World) -> None:
    _chord(w)
    w.work(most=2)


@scene
def failed_chord(w: World) -> None:
    chord([w.app.add.s(1, 1), w.app.fails.s()], w.app.total.s()).apply_async()
    w.work(most=2)


def _chord(w: World) -> None:
    chord([w.app.add.s(20, 1), w.app.add.s(20, 2)], w.app.total.s()).apply_async()


@scene
def small_group(w: World) -> None:
    group(w.app.add.s(30, i) for i in range(2)).apply_async()


@scene
def large_group(w: World) -> None:
    """Staged and opened: its members are not in the queue yet."""
    with chunks_of(2):
        group(w.app.add.s(40, i) for i in range(3)).apply_async()


@scene
def staged(w: World) -> None:
    """Of a producer that died before it opened them."""
    publisher.stage(w.store, "never-opened", [message("staged")])


@scene
def results(w: World) -> None:
    w.app.add.apply_async((50, 1), task_id="succeeded")
    w.app.fails.apply_async(task_id="failed")
    w.work(most=2)


@scene
def retried_task(w: World) -> None:
    w.app.again.apply_async((60,), task_id="again")
    w.work()


# -- the cell -------------------------------------------------------------------------------------


@scene
def pauses(w: World) -> None:
    w.add("aside")
    w.store.call(calls.pause(w.prefix, "step:wire.add"))
    w.store.call(calls.pause(w.prefix, "pool:other"))
    w.lease()
    w.take()


class _NoHands(list[None]):
    slots = 4


@scene
def workers(w: World) -> None:
    ours: Any = SimpleNamespace(
        hostname=HOST, pools=["critical", "shared"], hands=_NoHands(),
        _allocator="glibc 2.36", _consumed=Consumed(clock=lambda: 0.0),
        _memory=SimpleNamespace(rss_bytes=lambda: 1 << 26),
        _suspects=SimpleNamespace(at_once=2), _lease=SimpleNamespace(skew_ms=-3),
        _exhaustion=SimpleNamespace(near=""), _services=(), _pool=None,
        aq=SimpleNamespace(blob_endings=SimpleNamespace(waiting=0)),
    )  # fmt: skip
    report = Loop._report(ours)  # noqa: SLF001 -- what it says of itself is what is recorded
    w.store.call(calls.renew(w.prefix, WORKER, LEASE_MS, first=True, report=report))
    w.store.call(calls.renew(w.prefix, WORKER, LEASE_MS, first=False, report=report))
    keeper = LeaseKeeper(store=w.store, terms=Terms())
    keeper.name = "host:1:00000000"
    keeper.pools.add("shared")
    w.store.call(keeper._renewal(first=True))  # noqa: SLF001 -- as above


@scene
def refused(w: World) -> None:
    """What `enqueue` and `open` say where there is no room, and to what they have had."""
    w.enqueue(message("one"), id_="same")
    w.enqueue(message("one"), id_="same")
    for limits in ((1, 1 << 20, 0), (100, 10, 0), (100, 1 << 20, 1)):
        length, size, tenants = limits
        new = calls.NewRun(f"run{tenants}", b"{}", 0, KEEP_MS, 10, 1000)
        for _ in range(2):
            w.enqueue(message("more"), run=new, length=length, size=size, tenants=tenants)
            new = calls.NewRun(f"more{tenants}", b"{}", 0, KEEP_MS, 10, 1000)
    w.open(length=1)


@scene
def operations(w: World) -> None:
    """What operators ask for, and the functions that no other scene calls."""
    w.enqueue(*(message(f"o{i}", run="r") for i in range(3)))
    w.store.call(calls.find(w.prefix, "s:shared:normal", "", 10, "r"))
    w.lease()
    one, two, _ = w.take(most=3)
    w.store.call(calls.held(w.prefix, WORKER))
    ending = calls.complete(w.prefix, one[1], one[2], "", KEEP_MS, ())
    w.store.call(calls.complete_many([ending, ending]))
    w.end(two, run="unknown")
    w.store.call(calls.release(w.prefix, WORKER, died=False, limit=3, keep_ms=KEEP_MS))
    w.take()  # without a lease
    fitting = calls.Fitting(step="wire.add")
    purge = calls.purge(w.prefix, "r:shared:normal", "", 10, reason="purged", fitting=fitting)
    w.store.call(purge)
    letter = w.store.client.xrange(w.store.keys.dead())[0][0]
    w.store.call(calls.replay(w.prefix, [letter, "1-1"]))
    w.store.call(calls.pause(w.prefix, "step:wire.add"))
    w.lease()
    w.take()
    w.store.call(calls.resume(w.prefix, "step:wire.add", 10))
    w.store.call(calls.cancel(w.prefix, "unknown", KEEP_MS))
    w.promote()


@scene
def dropped(w: World) -> None:
    """A letter that was deleted, and one that a sweep dropped as there were too many."""
    for id_ in ("d0", "d1", "d2"):
        letter = effects.dead("why", id_, 0, b"head", b"body", pool="shared", lane="normal")
        w.store.call(calls.complete(w.prefix, "", "", "", KEEP_MS, [letter]))
    first = w.store.client.xrange(w.store.keys.dead())[0][0]
    w.store.call(calls.drop(w.prefix, [first, "1-1"]))
    w.store.call(calls.promote(w.prefix, 10, KEEP_MS, letters=calls.Letters(max_number=1)))
