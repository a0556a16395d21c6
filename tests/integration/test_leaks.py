"""A worker holds no more after much work than after some: objects are counted, by type.

Steps of every kind and ending: fan-outs with a member that fails, memos, threads, retries,
time-outs, cancelled runs, plain tasks. The long form, in bytes, is `agentq bench memory`.
"""

from __future__ import annotations

from contextlib import suppress

from agentq.errors import AgentQError
from tests.support.ledger import Ledger
from tests.support.running import Running, running

ROUNDS = 40
FEW = 3 * ROUNDS // 4
"""One object, or one entry of a registry, left behind by each piece of work would be more."""

SETTINGS = {"WORKER__THREADS": "2", "WORKER__EVENTS": "false"}
"""What comes with time and not with work: threads, events on their way."""


def work(app: Running) -> None:
    module = app.app
    runs = []
    for number in range(ROUNDS):
        runs += [
            flow.submit(number % 3 + 2)
            for flow in (module.fan, module.thread, module.retry, module.late)
        ]
        doomed = module.cancelled.submit(number)
        doomed.cancel()
        runs.append(doomed)
    results = [module.plain.delay(number) for number in range(ROUNDS)]
    for run in runs:
        with suppress(AgentQError):
            run.result(timeout=20)
    assert [result.get(timeout=20) for result in results] == list(range(ROUNDS))


def test_a_worker_holds_no_more_objects_after_more_work(url: str, ledger: Ledger) -> None:
    with running("tests.support.apps.census", url, ledger, **SETTINGS) as app:
        app.worker()
        app.app.census.delay().get(timeout=20)  # it leaves what it needs itself
        counts = []
        for _ in range(3):
            work(app)
            counts.append(app.app.census.delay().get(timeout=20))
        first, second, third = counts
        # A leak grows each time; a file's lines, read for a traceback, come once.
        grown = {
            name: least
            for name in third
            if (
                least := min(
                    second.get(name, 0) - first.get(name, 0),
                    third[name] - second.get(name, 0),
                )
            )
            >= FEW
        }
        assert grown == {}
