"""A worker that meets the kernel's limits: it says so, takes no more, and loses nothing."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentq.ops.status import read_status
from tests.support.ledger import Ledger
from tests.support.redis_server import Server
from tests.support.running import Running, running
from tests.support.waiting import wait_until
from tests.support.worker_process import WorkerProcess

WIDTH = 60
LIMIT = 64


@pytest.fixture
def app(url: str, ledger: Ledger) -> Iterator[Running]:
    # With a limit of memory, as each has that has a seat: it is looked at all the while. The lease
    # is renewed twice in what a step lasts.
    often = {"POOLS__CRITICAL__MEMORY": str(1 << 30), "WORKER__LEASE": "3s"}
    with running("tests.support.apps.greedy", url, ledger, **often) as found:
        yield found


@pytest.fixture
def worker(app: Running) -> WorkerProcess:
    """One that may open 64 files, its own connections and libraries included."""
    started = app.worker()
    resource.prlimit(started.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    return started


def test_too_many_open_files_stop_the_intake_name_the_limit_and_lose_nothing(
    app: Running, worker: WorkerProcess, ledger: Ledger
) -> None:
    run = app.app.fan.submit(WIDTH)
    assert run.result(timeout=25) == list(range(WIDTH))
    assert {int(line.split()[1]) for line in ledger.lines("end ")} == set(range(WIDTH))
    assert len(ledger.lines("end ")) == WIDTH
    log = worker.log()
    assert f"of {LIMIT} (RLIMIT_NOFILE); LimitNOFILE=65535 in the unit; fetching no more" in log
    assert "open files: there is room again; fetching" in log
    assert "Exception in thread" not in log
    assert worker.alive()
    assert "Traceback" not in log.split("Too many open files")[0]
    used = len(list(Path(f"/proc/{worker.pid}/fd").iterdir()))
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (used + 3, LIMIT))

    def told() -> str:
        [shown] = read_status(app.app.aq.store, brief=True).workers
        return shown.near

    said = rf"open files: \d+ of {used + 3} \(RLIMIT_NOFILE\)"
    wait_until(lambda: re.fullmatch(said, told()), "status tells a limit that is nearly met")


def test_links_that_are_cut_while_no_file_can_be_opened_come_back(
    app: Running, worker: WorkerProcess, session_server: Server, ledger: Ledger
) -> None:
    none_left = 4
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (none_left, LIMIT))
    session_server.client.client_kill_filter(_type="normal", skipme=True)
    run = app.app.fan.submit(4)
    said = f"open files: {none_left} of {none_left} (RLIMIT_NOFILE)"
    wait_until(lambda: f"{said}; LimitNOFILE" in worker.log(), lambda: f"{said}\n{worker.log()}")
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    assert run.result(timeout=25) == list(range(4))
    assert len(ledger.lines("end ")) == 4
    assert "the lease of" not in worker.log()


_FEW_THREADS = """
import asyncio, os, resource, sys
from agentq.host.limits import uses
from agentq.worker.threads import Threads
uses(users_threads=True)  # imports what another user may not be able to
if os.getuid() == 0:
    os.setresuid(54321, 54321, 54321)  # root has no limit, and this user no other threads
used = len(os.listdir("/proc/self/task"))
resource.setrlimit(resource.RLIMIT_NPROC, (used + int(sys.argv[1]),) * 2)
async def main():
    threads = Threads(count=8)
    threads.start()
    print(threads.count, await asyncio.gather(*(threads.run(abs, -n) for n in range(6))))
asyncio.run(main())
"""


_NO_PROCESS = """
import os, resource, subprocess
import multiprocessing.popen_fork, multiprocessing.popen_spawn_posix, multiprocessing.resource_tracker
from agentq.host.limits import fullest, uses
uses(users_threads=True)  # as above
if os.getuid() == 0:
    os.setresuid(54322, 54322, 54322)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
for start in (
    lambda: subprocess.Popen(["/bin/true"]),
    lambda: multiprocessing.get_context("fork").Process().start(),
    lambda: multiprocessing.get_context("spawn").Process().start(),
):
    try:
        start()
    except OSError as error:
        print(fullest(error))
"""


def test_a_process_that_may_not_be_started_has_met_the_limit_of_threads() -> None:
    command = [sys.executable, "-c", _NO_PROCESS]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    said = found.stdout.splitlines()
    assert len(said) == 3, found.stderr
    # An ordinary user's other processes count too, those of other tests among them.
    many = "1" if os.geteuid() == 0 else r"\d+"
    named = rf"threads of the user: {many} of 1 \(RLIMIT_NPROC\)"
    assert all(re.match(named, line) for line in said), said


@pytest.mark.skipif(os.geteuid() != 0, reason="what else a user runs counts too: root takes one")
@pytest.mark.parametrize(("more", "told"), [(3, "3 [0, 1, 2, 3, 4, 5]"), (0, None)])
def test_with_too_few_threads_there_are_fewer_or_the_worker_does_not_begin(
    more: int, told: str | None
) -> None:
    command = [sys.executable, "-c", _FEW_THREADS, str(more)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.stdout.splitlines() == ([told] if told else []), found.stderr
    if told:
        assert "3 of 8 threads for def steps: threads of the user" in found.stderr
    else:
        assert (
            "LimitReached: no thread can be started for def steps: threads of the" in found.stderr
        )
    assert "(RLIMIT_NPROC); LimitNPROC=" in found.stderr
