"""One soak from its beginning to its accounts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import redis

from agentq.host.allocator import launch_environment
from tests.fault.scenarios.ground import Ground, now, on_server
from tests.fault.soak.accounts import Accounts
from tests.fault.soak.chaos import Chaos
from tests.fault.soak.gauges import Gauges, Level
from tests.fault.soak.offer import Offer
from tests.fault.soak.plan import Plan
from tests.fault.soak.watch import Watch
from tests.support.proxy import Proxy, proxy_to
from tests.support.redis_server import private_server
from tests.support.waiting import wait_until

MOST_GROWTH = 0.05
LEAST_THROUGHPUT = 0.80

_ENDING_S = 120.0
_ASKED_S = 2.0
"""How long an answer to who looks on may take."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a soak did and what it found.

    faults: how often each was done.
    pieces, steps, again: offered pieces of work, steps that ended, and beginnings that a fault explains.
    refused: submits and cancels that were not answered and sent again.
    calm, stormy: steps ended a second without and with faults, at the same offered rate.
    problems: what does not hold, by what it is; each names what it was seen at.
    levels: what workers and server hold, after warming up and at the end.
    """

    plan: Plan
    faults: dict[str, int]
    pieces: int
    steps: int
    again: int
    refused: int
    calm: float
    stormy: float
    problems: dict[str, list[str]]
    levels: list[Level]

    @property
    def throughput(self) -> float:
        """Return the throughput under faults as a share of that without."""
        return self.stormy / self.calm if self.calm else 0.0

    @property
    def grown(self) -> list[Level]:
        """Return what holds more than it may; nothing where that can not be told."""
        return [x for x in self.levels if self.plan.tells_growth and x.growth > MOST_GROWTH]

    @property
    def holds(self) -> bool:
        """Whether all that is asked of a soak is true."""
        return not (any(self.problems.values()) or self.grown) and (
            self.throughput >= LEAST_THROUGHPUT
        )


def soak(plan: Plan, *, logs: Path | None = None) -> Report:
    """Do what *plan* says; *logs*: a folder for what the workers print, and for the ledger."""
    with _ground(plan) as (here, link):
        chaos = Chaos(here=here, plan=plan, link=link, logs=logs)
        chaos.start()
        offer = Offer(app=here.app, rate=plan.rate, seed=plan.seed)
        watch = Watch(client=_looking_on(here), keys=here.keys, offer=offer)
        every = min(1.0, plan.seconds / 100)
        gauges = Gauges(
            server=here.server, workers=chaos.residents, client=_looking_on(here), every=every
        )  # fmt: skip
        with _running(offer, watch, gauges):
            _rushed(offer, plan)
            began = now()
            chaos.run(began)
            chaos.end()
            offer.stop()
            with suppress(AssertionError):  # the accounts name those that have not
                wait_until(lambda: all(x.state for x in offer.pieces), "all end", _ENDING_S)
        left = _left_behind(here, len(chaos.workers))
        chaos.close()
        _keep(logs, here, gauges)
        accounts = Accounts(pieces=offer.pieces, lines=here.lines(), explained=chaos.explained)
    storm, end = began + plan.calm, began + plan.seconds
    return Report(
        plan=plan,
        faults=chaos.done | {"replies lost": link.lost},
        pieces=len(offer.pieces),
        steps=accounts.steps_between(0.0, now()),
        again=accounts.again,
        refused=offer.refused,
        calm=accounts.steps_between(began, storm) / (storm - began),
        stormy=accounts.steps_between(storm, end) / (end - storm),
        problems=accounts.problems()
        | {
            "left behind": left,
            "workers that ended by themselves": chaos.fallen,
            "producers' errors": [repr(x) for x in offer.errors],
        },
        levels=gauges.levels(began + plan.warm, end, plan.window),
    )


def _keep(logs: Path | None, here: Ground, gauges: Gauges) -> None:
    if logs is not None:
        shutil.copy(here.running.ledger.path, logs / "ledger")
        gauges.keep(logs / "gauges")


@contextmanager
def _running(offer: Offer, watch: Watch, gauges: Gauges) -> Iterator[None]:
    parts = (watch, gauges)
    try:
        for part in parts:
            part.start()
        yield
    finally:
        for part in (offer, *parts):
            part.stop()


def _rushed(offer: Offer, plan: Plan) -> None:
    """Begin to offer work, and wait until the first rush of it has ended."""
    offer.start(rush=plan.rush)
    many = int(plan.rush * plan.rate)
    wait_until(
        lambda: len(offer.pieces) > many and all(x.state for x in offer.pieces[:many]),
        "the first rush is over", _ENDING_S,
    )  # fmt: skip


def _left_behind(here: Ground, workers: int) -> list[str]:
    """Return what is in the server that should not be, once all has ended."""
    found = [f"{here.redis.xlen(here.keys.dead())} dead letters"]
    try:
        wait_until(lambda: not here.waiting(), lambda: f"{here.waiting()}", _ENDING_S)
        here.at_rest(workers)
    except AssertionError as error:
        found.append(str(error))
    return [one for one in found if one != "0 dead letters"]


@contextmanager
def _ground(plan: Plan) -> Iterator[tuple[Ground, Proxy]]:
    kept = f"{plan.keep:g}s"
    with (
        private_server(appendfsync="always") as private,
        proxy_to(private.embedded.socket_path, seed=plan.seed) as link,
        on_server(
            private, url=link.url, lease=plan.lease,
            WORKER__THREADS="4",  # soon all started, so that one more would be too many
            RUNS__KEEP=kept, BROKER__RESULT_TTL=kept, BROKER__DEDUPE_TTL=kept,
        ) as here,
    ):  # fmt: skip
        here.running.variables.update(launch_environment("jemalloc"))  # as `agentq worker` does
        yield here, link


def _looking_on(here: Ground) -> redis.Redis:
    path = str(here.server.embedded.socket_path)
    return redis.Redis(unix_socket_path=path, socket_timeout=_ASKED_S)
