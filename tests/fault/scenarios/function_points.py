"""For each Redis function: how a process dies at a call of it, and what must hold once others go on.

A scenario is given a play and the point; it lets a process die there, lets another one go on, and
checks that every run ended once and what the ledger says of the steps: what the dead process had
in its hands may have run twice, and had its effects once.
"""

from __future__ import annotations

import signal

from tests.support.play import WAIT_S, Play, Scenario
from tests.support.waiting import wait_until

LONG = {"AQ_TEST_SECONDS": "60"}
"""For a process that is to die before its steps end."""


def once(count: int) -> dict[str, int]:
    return {str(number): 1 for number in range(count)}


def rerun(point: str, count: int) -> tuple[dict[str, int], ...]:
    """Return how often each of *count* steps may have run whose end was written at *point*."""
    twice = {str(number): 2 for number in range(count)}
    moment = point.partition("-")[0]
    return {"before": (twice,), "sent": (once(count), twice), "after": (once(count),)}[moment]


# -- a worker -----------------------------------------------------------------------------------------


def about(play: Play, point: str) -> None:
    """It dies as it asks which functions the server has, before it takes anything."""
    run = play.submit("one")
    play.worker_dies(point)
    play.go_on()
    play.check_ended(run)
    assert play.ran("member") == once(1)


def fetch(play: Play, point: str) -> None:
    """It dies as work is handed to it: none of it has begun."""
    run = play.submit("one")
    play.worker_dies(point)
    play.go_on()
    play.check_ended(run)
    assert play.ran("member") == once(1)


def complete(play: Play, point: str) -> None:
    """It dies as a step ends: it runs again only if its end had not reached the broker."""
    run = play.submit("one")
    play.worker_dies(point)
    play.go_on()
    play.check_ended(run)
    assert play.ran("member") in rerun(point, 1)


def complete_many(play: Play, point: str) -> None:
    """It dies as several steps end at once."""
    run = play.submit("fan", 8)
    play.worker_dies(point)
    play.go_on()
    play.check_ended(run, steps=10, result=8)
    assert play.ran("member") in rerun(point, 8)
    assert play.ran("plan") == play.ran("body") == {run.id: 1}


def fail(play: Play, point: str) -> None:
    """It dies as it says that a step is to be tried again."""
    run = play.submit("uneasy")
    play.worker_dies(point)
    play.go_on()
    play.check_ended(run)
    assert play.ran("uneasy") == {"0": 2}


def park(play: Play, point: str) -> None:
    """It dies as it hands back a step that it does not know."""
    run = play.submit("newest")
    play.worker_dies(point)
    play.go_on()
    play.check_ended(run)
    assert play.ran("newest") == once(1)


def renew(play: Play, point: str) -> None:
    """It dies as it renews its lease, with a step in its hands."""
    run = play.submit("one")
    play.worker_dies(f"{point}:4", **LONG)
    play.go_on()
    play.check_ended(run)
    assert play.ran("member") == {"0": 2}


def release(play: Play, point: str) -> None:
    """It dies as it gives up its lease, told to go while a step runs."""
    run = play.submit("one")
    leaving = play.dying(point, AGENTQ_WORKER__DRAIN_TIMEOUT="50ms", **LONG)
    play.until_noted("member 0")
    leaving.send(signal.SIGTERM)
    play.dies(leaving)
    play.go_on()
    play.check_ended(run)
    assert play.ran("member") == {"0": 2}


def reap(play: Play, point: str) -> None:
    """It dies as it hands out again what a dead one held."""
    run = play.submit("one")
    dead = play.worker("dead", **LONG)
    play.until_noted("member 0")
    dead.kill()
    play.worker_dies(point)
    play.go_on()
    play.check_ended(run)
    assert play.ran("member") == {"0": 2}


def promote(play: Play, point: str) -> None:
    """It dies as it moves what is due into its queue."""
    play.producer(f"send_later(aq, 0.1, {point!r})")
    play.worker_dies(point)
    play.go_on()
    play.until_noted("counted 0")
    assert play.ran("counted") == once(1)


def held(play: Play, point: str) -> None:
    """It dies as it asks, behind a broker's silence, what the broker thinks it has."""
    run = play.submit("fan", 4)
    variables = {"AQ_TEST_SECONDS": "0.5", "AGENTQ_BROKER__TIMEOUT": "300ms"}
    asking = play.dying(f"{point}:2", **variables)  # it asks on each new link: at its start, too
    wait_until(lambda: play.ledger.count("member 0") or not asking.alive(), "its steps run", WAIT_S)
    play.server.client.execute_command("CLIENT", "PAUSE", 900, "ALL")
    play.dies(asking)
    play.go_on()
    play.check_ended(run, steps=6, result=4)


def stage_started(play: Play, point: str) -> None:
    """It dies as it stages the members of a large fan-out: another one decides anew."""
    run = play.submit("fan", 501)
    play.worker_dies(point)
    play.go_on()
    play.check_ended(run, steps=503, result=501)
    assert play.ran("plan")[run.id] in (1, 2)  # the step's end went in the same trip
    assert play.ran("body") == {run.id: 1}
    assert play.ran("member") == once(501)


# -- a producer ---------------------------------------------------------------------------------------


def enqueue(play: Play, point: str) -> None:
    """It dies as it submits; the same key is the same run."""
    play.command("submit", "one", "0", "--key", point, crash=point)
    run = play.aq.run(play.command("submit", "one", "0", "--key", point).split()[0])
    play.go_on()
    play.check_ended(run)
    assert play.ran("member") == once(1)


def stage(play: Play, point: str) -> None:
    """It dies as it stages a large group, of which nothing is visible then."""
    group(play, point, 501)


def open_(play: Play, point: str) -> None:
    """It dies as its group becomes visible; the same ids are the same group."""
    group(play, point, 3)


def group(play: Play, point: str, count: int) -> None:
    play.producer(f"send_group(aq, {count}, {point!r})", crash=point)
    play.producer(f"send_group(aq, {count}, {point!r})")
    play.go_on()
    assert play.ran("counted") == once(count)


def cancel(play: Play, point: str) -> None:
    """It dies as it cancels a run."""
    run = play.submit("one", 1)
    play.command("cancel", run.id, crash=point)
    play.command("cancel", run.id)
    other = play.submit("one")
    play.go_on()
    play.check_ended(other)
    assert run.status().state == "cancelled"
    assert [event.kind for event in run.history()] == ["end"]
    assert play.ran("member") == once(1)


# -- a tool -------------------------------------------------------------------------------------------

STEP = ("step", "points.member")


def pause(play: Play, point: str) -> None:
    """It dies as it pauses."""
    play.command("pause", *STEP, crash=point)
    play.command("pause", *STEP)
    run = play.submit("one")
    play.go_on()
    until_aside(play, 1)
    play.command("resume", *STEP)
    play.check_ended(run)
    assert play.ran("member") == once(1)


def resume(play: Play, point: str) -> None:
    """It dies as it lifts a pause."""
    play.command("pause", *STEP)
    run = play.submit("fan", 5)
    play.go_on()
    until_aside(play, 5)
    play.command("resume", *STEP, crash=point)
    play.command("resume", *STEP)
    play.check_ended(run, steps=7, result=5)
    assert play.ran("member") == once(5)


def until_aside(play: Play, count: int) -> None:
    store = play.aq.store
    key = store.keys.aside(":".join(STEP))
    wait_until(lambda: store.command("LLEN", key) == count, f"{count} steps are put aside", WAIT_S)


def purge(play: Play, point: str) -> None:
    """It dies as it moves what waits into the dead letters."""
    buried(play, purge_at=point)


def replay(play: Play, point: str) -> None:
    """It dies as it moves dead letters back into their queues."""
    buried(play, replay_at=point)


def buried(play: Play, *, purge_at: str = "", replay_at: str = "") -> None:
    runs = [play.submit("one", number) for number in range(5)]
    words = {"purge": ("purge", "--pool", "shared", "--yes"), "replay": ("dead", "replay", "--all")}
    for name, point in (("purge", purge_at), ("replay", replay_at)):
        if point:
            play.command(*words[name], crash=point)
        play.command(*words[name])
        letters = play.aq.store.command("XLEN", play.aq.store.keys.dead())
        assert letters == {"purge": 5, "replay": 0}[name]
    play.go_on()
    for number, run in enumerate(runs):
        play.check_ended(run, result=number)
    assert play.ran("member") == once(5)


def drop(play: Play, point: str) -> None:
    """It dies as it deletes dead letters: what they were is never run, and their runs fail."""
    runs = [play.submit("one", number) for number in range(5)]
    play.command("purge", "--pool", "shared", "--yes")
    play.command("dead", "drop", "--all", "--yes", crash=point)
    play.command("dead", "drop", "--all", "--yes")
    assert play.aq.store.command("XLEN", play.aq.store.keys.dead()) == 0
    play.go_on()
    assert {run.status().state for run in runs} == {"failed"}
    assert play.ran("member") == {}


def find(play: Play, point: str) -> None:
    """It dies as it looks for a run."""
    run = play.submit("one")
    play.command("why", run.id, crash=point)
    assert "points.member" in play.command("why", run.id)
    play.go_on()
    play.check_ended(run)
    assert play.ran("member") == once(1)


SCENARIOS: dict[str, Scenario] = {
    "about": about,
    "cancel": cancel,
    "complete": complete,
    "complete_many": complete_many,
    "drop": drop,
    "enqueue": enqueue,
    "fail": fail,
    "fetch": fetch,
    "find": find,
    "held": held,
    "open": open_,
    "park": park,
    "pause": pause,
    "promote": promote,
    "purge": purge,
    "reap": reap,
    "release": release,
    "renew": renew,
    "replay": replay,
    "resume": resume,
    "stage": stage,
    "stage_started": stage_started,
}
"""By the function's name."""

OF_ANY_WORKER = ("fetch", "park", "promote", "reap", "renew", "stage_started")
"""Whose scenarios hold for a worker with one of Celery's own pools as well."""
