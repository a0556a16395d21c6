"""Workers of another version beside each other: what one does not know waits for one that does."""

from __future__ import annotations

from tests.fault.scenarios.ground import KINDS, ground
from tests.fault.scenarios.row import Row
from tests.support.running import running
from tests.support.waiting import wait_until

OLD = "tests.support.apps.canvas"
"""An app that has none of the tasks and flows that are sent."""

WAITS_S = 180.0
"""What was refused several times waits for up to half a minute before it is offered again."""


def unknown(trials: int, *, kind: str, tasks: int = 20) -> list[Row]:
    """Send tasks and a run to a worker that lacks them; then start one that has them."""
    with ground(lease=2.0) as here:
        url = here.running.variables["AGENTQ_BROKER__URL"]
        with running(OLD, url, here.running.ledger) as old:
            for _ in range(trials):
                older = old.worker("older", options=KINDS[kind])
                here.send(tasks, 0.0)
                here.submit(3, 0.0)
                parked = here.keys.parked()
                wait_until(
                    lambda parked=parked: _total(here.redis.hvals(parked)) == tasks + 1, "parked"
                )  # type: ignore[misc]
                assert here.lines() == [] or trials > 1
                newer = here.worker(kind)
                wait_until(lambda: not here.waiting(), lambda: f"{here.waiting()}", WAITS_S)
                assert older.alive(), older.log()[-3000:]
                assert older.stop() == newer.stop() == 0
        lost, doubled = here.ended(workers=0)
    what = f"tasks and flows unknown to a worker, {kind}"
    note = "parked, then run by a worker that has them"
    return [Row(25, what, trials * (tasks + 1), lost, doubled, None, note)]


def _total(counts: list[bytes]) -> int:
    return sum(int(count) for count in counts)
