"""Links that are cut before a reply is read, under both kinds of workers."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from celery import chord

from agentq.host.process import descendants
from tests.fault.scenarios.ground import ground
from tests.fault.scenarios.links import linked
from tests.support.waiting import wait_until

WIDTH = 3
TIMES = 3
"""More often than what cuts a link once is sent again."""
BODIES = ("total", "total_async")


@pytest.mark.parametrize("kind", ["ours", "prefork"])
def test_a_chords_body_whose_results_can_not_be_read_now_runs_when_they_can(kind: str) -> None:
    with linked() as (here, link):
        link.losing = b"HGETALL"
        for body in BODIES:
            header = [
                here.app.work.s(x).set(task_id=x) for x in (f"{body}{n}" for n in range(WIDTH))
            ]
            chord(header)(getattr(here.app, body).s(body).set(task_id=body))
        here.worker(kind)
        wait_until(lambda: link.lost >= len(BODIES), "replies are lost")
        link.losing = b""
        for body in BODIES:
            given = wait_until(lambda body=body: here.stored(body), f"{body} ends")  # type: ignore[misc]
            assert given == WIDTH
        begun = [line.label for line in here.lines("begin ")]
        assert [begun.count(body) for body in BODIES] == [1, 1]


@pytest.mark.parametrize(("kind", "request_"), [("ours", b"PING"), ("prefork", b"PUBLISH")])
def test_a_worker_starts_over_a_link_that_is_cut_meanwhile(kind: str, request_: bytes) -> None:
    with linked() as (here, link), ThreadPoolExecutor(1) as starter:
        link.losing = request_
        started = starter.submit(here.worker, kind)
        wait_until(lambda: link.lost >= TIMES, "replies are lost")
        link.losing = b""
        started.result()
        [label] = here.send(1)
        assert wait_until(lambda: here.stored(label), "it ends") == label


def test_what_celerys_pool_has_in_a_pipe_when_the_link_is_cut_runs_there_and_only_there() -> None:
    with ground(lease=2.0) as here:
        worker = here.worker("prefork", slots=3)  # more than it is given: it asks on
        children = descendants(worker.pid)
        for child in children:
            os.kill(child, signal.SIGSTOP)
        labels = here.send(2, 0.2)
        wait_until(lambda: worker.log().count("] received") == len(labels), "they are received")
        here.redis.client_kill_filter(_type="normal", skipme=True)
        wait_until(lambda: "Restoring" in worker.log(), "the cut is seen")
        for child in children:
            os.kill(child, signal.SIGCONT)
        assert here.ended(workers=1) == (0, 0)
        assert {line.pid for line in here.lines("begin ")} <= set(children)
