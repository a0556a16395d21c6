"""Payloads beyond `broker.max_payload` go through flows by reference, and Redis stays small."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import signals
from celery.result import AsyncResult

from agentq import AgentQ
from agentq.errors import PayloadTooLarge, RunFailed
from agentq.flows import blob_sweeper
from agentq.flows.blob_sweeper import BlobSweeper
from agentq.ops.dead import Wanted, letters, replay
from agentq.ops.pausing import Kind, pause, purge, resume
from agentq.store.calls import Fitting
from tests.support.ledger import Ledger
from tests.support.redis_server import Server
from tests.support.running import Running, running
from tests.support.waiting import wait_until

WAIT = 15
MIB = 1 << 20
DAY_S = 86_400
FOLDER = "AGENTQ_BLOBS__DIRECTORY"
LARGE = "x" * 300_000


@pytest.fixture(scope="module")
def large(session_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    url = f"{session_server.url}?cell={uuid4().hex[:12]}"
    ledger = Ledger(tmp_path_factory.mktemp("large") / "ledger")
    with running("tests.support.apps.large", url, ledger, BLOBS__MAX_SIZE="5000000") as found:
        found.worker("one", options=("-Q", "critical"))
        found.worker("two", options=("-Q", "shared"))
        yield found


@pytest.fixture
def app(large: Running) -> Any:
    large.ledger.clear()
    return large.app


@pytest.fixture
def idle(url: str, ledger: Ledger) -> Iterator[Running]:
    """The app in a cell that no worker serves yet."""
    with running("tests.support.apps.large", url, ledger) as found:
        yield found


def blobs_of(found: Running, run: str) -> list[Path]:
    return sorted(Path(found.variables[FOLDER]).glob(f"*/*/{run}/[!.]*"))


def keys_larger_than(store: Any, size: int) -> list[str]:
    keys = store.client.scan_iter(match=store.keys.prefix.replace("{", "[{]") + "*", count=1000)
    return [key.decode() for key in keys if len(store.client.dump(key) or b"") > size]


# -- through a flow ---------------------------------------------------------------------------------


def test_a_mebibyte_goes_through_plan_members_and_review_on_two_workers(
    app: Any, large: Running
) -> None:
    text = "ab" * (MIB // 2)
    run = app.research.submit(text)
    assert run.result(timeout=WAIT) == [f"{number}{text}"[::-1] for number in range(3)]
    assert large.ledger.counts() == {f"plan one@test {MIB}": 1, f"search two@test {MIB + 1}": 3}
    # Argument, plan, its three members, their three outcomes, result.
    assert len(blobs_of(large, run.id)) == 9
    assert keys_larger_than(app.aq.store, 100_000) == []


def test_awaited_it_is_the_same(app: Any) -> None:
    async def go() -> Any:
        run = await app.echo.asubmit(LARGE)
        value = await run.aresult(timeout=WAIT)
        await app.aq.aclose()
        return value

    assert asyncio.run(go()) == LARGE


def test_large_and_small_arguments_are_submitted_together(app: Any) -> None:
    values = ["small", LARGE, 1, LARGE + "y"]
    assert [run.result(timeout=WAIT) for run in app.echo.submit_many(values)] == values


def test_celerys_result_of_a_step_is_the_large_value(app: Any) -> None:
    run = app.pair.submit(LARGE)
    run.result(timeout=WAIT)
    for node in (0, 1):
        assert AsyncResult(f"{run.id}:{node}", app=app.app).get(timeout=WAIT) == LARGE


def test_a_value_that_is_passed_on_is_kept_once(app: Any, large: Running) -> None:
    run = app.pair.submit(LARGE)
    run.result(timeout=WAIT)
    assert len(blobs_of(large, run.id)) == 1


def test_a_payload_at_the_limit_is_no_blob(app: Any, large: Running) -> None:
    run = app.echo.submit("x" * 262_000)
    run.result(timeout=WAIT)
    assert blobs_of(large, run.id) == []


REFERENCE = f"20261130/run/{'0' * 64}-1"


@pytest.mark.parametrize("value", [{"blob": REFERENCE}, f"@{REFERENCE}", REFERENCE, None])
def test_what_looks_like_a_reference_is_data(app: Any, value: Any) -> None:
    assert app.pair.submit(value).result(timeout=WAIT) == value
    assert app.lists.submit([value]).result(timeout=WAIT) == [value]
    beside = {"large": LARGE, "value": value}
    assert app.lists.submit([beside]).result(timeout=WAIT) == [beside]


def test_the_same_key_is_one_run_and_one_blob(app: Any, large: Running) -> None:
    first = app.echo.submit(LARGE, key="same")
    again = app.echo.submit(LARGE, key="same")
    assert (again.id, again.duplicate) == (first.id, True)
    assert again.result(timeout=WAIT) == LARGE
    assert len(blobs_of(large, first.id)) == 1
    assert large.ledger.count("same") == 1


def test_a_suspect_is_given_its_large_argument_in_its_own_process(url: str, ledger: Ledger) -> None:
    with running("tests.support.apps.large", url, ledger, WORKER__LEASE="1s") as found:
        first = found.worker("first")
        run = found.app.deadly.submit(LARGE)
        first.wait_ended()
        found.worker("second")
        assert run.result(timeout=20) == 300_000
        assert ledger.count("once_it_kills 300000") == 2


def test_under_prefork_it_goes_the_same_way(idle: Running) -> None:
    idle.worker("fork", options=("-Q", "critical,shared", "-P", "prefork", "-c", "2"))
    run = idle.app.research.submit(LARGE)
    assert run.result(timeout=WAIT) == [f"{number}{LARGE}"[::-1] for number in range(3)]
    assert AsyncResult(f"{run.id}:0", app=idle.app.app).get(timeout=WAIT)[0] == f"0{LARGE}"
    assert keys_larger_than(idle.app.aq.store, 100_000) == []


# -- bounds -----------------------------------------------------------------------------------------


def test_a_blob_beyond_the_largest_size_is_refused_at_submit_and_at_a_steps_end(
    app: Any, large: Running
) -> None:
    strict = AgentQ("strict", overrides={"blobs.max_size": 400_000})
    flow = strict.flow("strict", strict.step(anything))
    with pytest.raises(PayloadTooLarge, match=r"500002 bytes as JSON; blobs.max_size is 400000"):
        flow.submit("x" * 500_000)
    [length, kind] = app.sizes.submit([300_000, 5_000_000]).result(timeout=WAIT)
    assert (length, kind) == (300_000, "PayloadTooLarge")
    assert large.ledger.count("grow") == 3, "one of them was tried again"


async def anything(_: str) -> None: ...


def test_what_a_run_keeps_outside_counts_in_its_budget(app: Any) -> None:
    with pytest.raises(RunFailed, match=r"are .* bytes; runs.max_bytes .* is 1000000") as failed:
        app.small_budget.submit("x" * 600_000).result(timeout=WAIT)
    assert failed.value.kind == "RunTooLarge"
    with pytest.raises(
        RunFailed, match=r"4 members of .* bytes; flow 'small-members' allows 1000000"
    ):
        app.small_members.submit([letter * 300_000 for letter in "abcd"]).result(timeout=WAIT)


# -- dead letters and lifetime ----------------------------------------------------------------------


def test_a_dead_letter_with_a_blob_is_replayed(idle: Running) -> None:
    run = idle.app.echo.submit(LARGE)
    store = idle.app.aq.store
    assert purge(store, Fitting(flow="echo"), reason="stopped") == 1
    [letter] = letters(store, Wanted())
    assert len(letter.body) < 1000
    assert blobs_of(idle, run.id)[0].name.encode() in letter.headers
    assert replay(store, [letter.id]).moved == 1
    idle.worker()
    assert run.result(timeout=WAIT) == LARGE


def swept(found: Running, *, days: int) -> int:
    """Sweep as a worker would *days* from now; return how many runs' blobs went."""
    aq = found.app.aq
    try:
        return BlobSweeper(app=aq).round(now_s=time.time() + days * DAY_S)
    finally:
        for key in aq.store.client.scan_iter(match="*blobs:swept:*"):
            aq.store.command("DEL", key)


def test_blobs_live_as_long_as_their_run_or_a_dead_letter_of_it(idle: Running) -> None:
    store, submit = idle.app.aq.store, idle.app.echo.submit
    waiting, gone, dead = (submit(LARGE, tenant=name) for name in ("waiting", "gone", "dead"))
    purge(store, Fitting(tenant="dead"), reason="stopped")
    for run in (gone, dead):  # as `runs.keep` does it
        store.command("DEL", store.keys.run(run.id))

    assert swept(idle, days=0) == 0, "what is new may be about to be submitted"
    assert swept(idle, days=2) == 1
    assert [len(blobs_of(idle, run.id)) for run in (waiting, gone, dead)] == [1, 0, 1]

    assert swept(idle, days=14) == 0, "dead.keep, and a day"
    assert swept(idle, days=16) == 1
    assert swept(idle, days=90) == 0
    assert store.command("EXISTS", store.keys.blobs_kept(dead.id)) == 0
    assert [len(blobs_of(idle, run.id)) for run in (waiting, dead)] == [1, 0]
    idle.worker()
    assert waiting.result(timeout=WAIT) == LARGE


def test_only_a_letter_that_refers_to_a_blob_is_noted_for_its_run(idle: Running) -> None:
    store = idle.app.aq.store
    run = idle.app.echo.submit(LARGE)
    idle.app.echo.submit("small")
    purge(store, Fitting(flow="echo"), reason="stopped")
    kept = store.client.keys(store.keys.prefix.replace("{", "[{]") + "blobs:kept:*")
    assert [key.decode() for key in kept] == [store.keys.blobs_kept(run.id)]


def test_one_worker_sweeps_a_place_within_the_hour(idle: Running) -> None:
    aq = idle.app.aq
    swept_each = []
    for run in [idle.app.echo.submit(LARGE, key=str(number)) for number in range(2)]:
        aq.store.command("DEL", aq.store.keys.run(run.id))
        swept_each.append(BlobSweeper(app=aq).round(now_s=time.time() + 2 * DAY_S))
    assert swept_each == [1, 0]


def test_another_cells_blobs_in_the_same_folder_are_let_alone(
    idle: Running, session_server: Server
) -> None:
    other = AgentQ(
        "other",
        overrides={
            "broker.url": f"{session_server.url}?cell={uuid4().hex[:12]}",
            "blobs.directory": idle.variables[FOLDER],
        },
    )
    run = other.flow("kept", other.step(anything)).submit(LARGE)
    idle.app.echo.submit(LARGE)
    assert swept(idle, days=9) == 0
    assert len(blobs_of(idle, run.id)) == 1


def test_a_worker_that_is_ready_sweeps_from_then_on_until_it_stops(
    idle: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_sweeper, "EVERY_S", 0.05)
    aq = idle.app.aq
    kept, orphan = idle.app.echo.submit(LARGE), idle.app.echo.submit(LARGE)
    aq.store.command("DEL", aq.store.keys.run(orphan.id))
    [day] = Path(idle.variables[FOLDER]).glob("*/*")
    day.rename(day.with_name("20200101"))

    signals.worker_ready.send(sender=Consumer(aq.celery))
    try:
        wait_until(lambda: not blobs_of(idle, orphan.id), "the orphan is deleted")
        assert len(blobs_of(idle, kept.id)) == 1
    finally:
        signals.worker_shutdown.send(sender=None)
    wait_until(no_sweeper, "it ends")


class Consumer:
    """As much of one as the signal's receivers look at."""

    def __init__(self, app: Any) -> None:
        self.app = app


def no_sweeper() -> bool:
    return all(thread.name != "agentq-blob-sweeper" for thread in threading.enumerate())


@pytest.mark.parametrize("options", [(), ("-P", "prefork", "-c", "1")], ids=["ours", "prefork"])
def test_a_worker_of_any_pool_gives_the_cell_its_id_early(
    idle: Running, options: tuple[str, ...]
) -> None:
    store = idle.app.aq.store
    idle.worker(options=("-Q", "critical,shared", *options))
    wait_until(lambda: store.command("EXISTS", store.keys.blobs_id()), "its sweeper runs")


# -- outcomes ---------------------------------------------------------------------------------------


def test_a_member_whose_outcome_is_lost_has_failed_and_its_siblings_have_not(
    app: Any, large: Running
) -> None:
    store, step = app.aq.store, "tests.support.apps.large.lengths"
    pause(store, Kind.STEP, step)
    run = app.sizes.submit([300_000, 300_001, 300_002])
    wait_until(lambda: large.ledger.count("grow") == 3, "the members have run")
    wait_until(lambda: len(blobs_of(large, run.id)) == 3, "their outcomes are kept")
    wait_until(lambda: store.command("HLEN", store.keys.outcomes(f"{run.id}:j1")) == 3, "counted")
    [lost] = [path for path in blobs_of(large, run.id) if path.name.endswith("-300003")]
    lost.unlink()
    resume(store, Kind.STEP, step)
    assert run.result(timeout=WAIT) == [300_000, "BlobMissing", 300_002]
