"""A second machine on the same broker over TLS, whose cable is pulled out and put back in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from agentq.ops.acl import Role
from agentq.store.address import parse
from agentq.store.client import Store
from tests.fault.scenarios.ground import Ground, now, on_server
from tests.support.machines import Machine, second_machine
from tests.support.production import Production, production_server
from tests.support.redis_server import Server
from tests.support.tls import signed, tls_program
from tests.support.waiting import wait_until

LEASE_S = 3.0
RETURN_S = 15.0
"""Of a limit: a link that is back is noticed when a try on it fails or is tried again."""

_WATCHER = "user watcher on >watchers ~* &* +@all\n"
"""The test's own: what is left in the server, no role of agentq's may list."""


class _Watched(Server):
    """The production server as `Ground` looks at it."""

    def __init__(self, production: Production) -> None:
        self.url = production.url(Role.WORKER)
        self.client = redis.Redis(
            unix_socket_path=str(production.socket),
            username="watcher",
            password=f"{'watcher'}s",
        )


@pytest.fixture
def machine() -> Iterator[Machine]:
    with second_machine() as other:
        yield other


@pytest.fixture
def here(machine: Machine, tmp_path: Path) -> Iterator[Ground]:
    """The broker on this machine with the files of `deploy/redis/`, reached over TLS alone."""
    own = signed(tmp_path, "own", alternative=f"IP:{machine.here}")
    with production_server(
        own=own, program=tls_program(), host=machine.here, more=_WATCHER
    ) as server:
        Store(address=parse(server.url(Role.ADMIN)), timeout=None).ensure_functions()
        with on_server(_Watched(server), cell="main", lease=LEASE_S) as found:
            yield found


@pytest.mark.timeout(120)
def test_a_machine_that_is_cut_off_loses_nothing_and_is_back_within_seconds(
    here: Ground, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    near, far = here.worker(), here.worker(inside=machine.inside)
    for _ in range(3):
        here.submit(30, 0.2)
    wait_until(lambda: begun(here, far.pid) >= 8, "the other machine works")

    machine.unplug()
    cut = now()
    wait_until(lambda: here.in_hands(far) <= {x.task for x in here.lines("begin ")}, "all begun")
    held = here.hit(far)
    assert held
    here.submit(10, 0.05)  # goes on without the other machine
    elsewhere = wait_until(lambda: begun_again(here, held, far.pid, cut), "they begin here", 30)
    assert far.alive()

    machine.plug()
    back = now()

    def rejoined() -> float | None:
        here.send(16, 0.2)
        return next((x.at - back for x in here.lines() if x.pid == far.pid and x.at > back), None)

    within = wait_until(rejoined, far.log, RETURN_S)
    assert here.ended(workers=2) == (0, 0)
    assert near.alive()
    assert far.alive()
    with capsys.disabled():
        print(
            f"\ncut off: its {len(held)} steps began elsewhere within {elsewhere:.1f} s "
            f"(lease {LEASE_S:g} s); plugged in again it worked after {within:.1f} s"
        )


def begun(here: Ground, pid: int) -> int:
    return sum(line.pid == pid for line in here.lines("begin "))


def begun_again(here: Ground, labels: set[str], pid: int, since: float) -> float | None:
    """Return the seconds from *since* until all had begun elsewhere than in *pid*, once they have.

    Each alone in a process: who held them may have died of one.
    """
    times = {x.label: x.at for x in here.lines("begin ") if x.pid != pid and x.at > since}
    return max(times[label] for label in labels) - since if labels <= times.keys() else None
