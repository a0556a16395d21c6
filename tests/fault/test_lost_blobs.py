"""Blob storage that fails: each payload that is lost harms its own step, one that is away none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentq.errors import BlobsUnavailable, DeadlineExceeded, RunFailed
from agentq.ops.dead import Wanted, letters
from agentq.ops.status import Worker, read_status
from tests.integration.test_blobs import FOLDER, LARGE, WAIT, blobs_of, swept
from tests.support.hanging_store import hangs
from tests.support.ledger import Ledger
from tests.support.running import Running, running
from tests.support.waiting import wait_until
from tests.support.worker_process import ROOT


@pytest.fixture
def found(url: str, ledger: Ledger) -> Iterator[Running]:
    with running("tests.support.apps.large", url, ledger) as found:
        yield found


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    os.truncate(path, 1000)


def test_a_lost_payload_ends_its_run_is_a_dead_letter_and_harms_nothing_else(
    found: Running,
) -> None:
    lost = {
        Path.unlink: ("BlobMissing", found.app.pair.submit(LARGE)),
        flip: ("BlobAltered", found.app.pair.submit(LARGE)),
        cut: ("BlobAltered", found.app.pair.submit(LARGE)),
    }
    good = found.app.pair.submit(LARGE)
    for harm, (_, run) in lost.items():
        harm(*blobs_of(found, run.id))
    worker = found.worker()
    assert good.result(timeout=WAIT) == LARGE
    reasons = {}
    for kind, run in lost.values():
        with pytest.raises(
            RunFailed, match=rf"{kind}: blob \d+/{run.id}/.*blobs.directory"
        ) as failed:
            run.result(timeout=WAIT)
        reasons[run.id] = failed.value.message
    found_letters = letters(found.app.aq.store, Wanted())
    assert {letter.run: letter.reason for letter in found_letters} == reasons
    assert found.ledger.count("same") == 2, "both steps of the good run, none of the others"
    assert worker.alive()


def test_a_lost_argument_of_a_member_fails_that_member(found: Running) -> None:
    found.worker("plans", options=("-Q", "critical"))
    run = found.app.research.submit(LARGE)
    wait_until(lambda: len(blobs_of(found, run.id)) == 5, "argument, plan and members are kept")
    [lost] = [path for path in blobs_of(found, run.id) if b'"1x' in path.read_bytes()[:3]]
    lost.unlink()
    found.worker("searches", options=("-Q", "shared"))
    [first, second, third] = run.result(timeout=WAIT)
    assert (first, third) == (f"0{LARGE}"[::-1], f"2{LARGE}"[::-1])
    assert second[0] == "BlobMissing"


def test_a_worker_that_does_not_share_the_folder_parks_the_step_for_one_that_does(
    found: Running, tmp_path: Path
) -> None:
    run = found.app.echo.submit(LARGE)
    right = found.variables[FOLDER]
    found.variables[FOLDER] = str(tmp_path / "elsewhere")
    stranger = found.worker("stranger")
    shown = wait_until(lambda: read_status(found.app.aq.store).parked, "it is parked")
    assert [one.lacking for one in shown] == ["the blob storage of its payload (settings blobs.*)"]
    said = "can not be read: no blob of this cell was ever here"
    assert f"{tmp_path / 'elsewhere'} (blobs.directory) {said}" in stranger.log()
    found.variables[FOLDER] = right
    found.worker("sharer")
    assert run.result(timeout=25) == LARGE
    assert found.ledger.count("same") == 1


def test_a_share_that_is_not_mounted_takes_nothing_into_its_mount_point(found: Running) -> None:
    """By a producer, and by a worker that starts meanwhile: its step waits with its result."""
    share = Path(found.variables[FOLDER])
    kept = found.app.echo.submit(LARGE)
    mounted = share.rename(share.with_name("mounted"))
    share.mkdir()
    with pytest.raises(BlobsUnavailable, match="no blob of this cell was ever here"):
        found.app.echo.submit(LARGE)
    worker = found.worker()
    grows = found.app.sizes.submit([300_000])
    wait_until(lambda: "wait for it in their slots" in worker.log(), "its step waits")
    assert list(share.iterdir()) == []
    share.rmdir()
    mounted.rename(share)
    assert grows.result(timeout=WAIT) == [300_000]
    assert kept.result(timeout=WAIT) == LARGE


def test_a_folder_that_can_not_be_written_is_an_error_of_the_submit(
    found: Running, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    other = type(found.app.aq)("other", overrides={"blobs.directory": str(tmp_path / "file/blobs")})
    with pytest.raises(BlobsUnavailable, match=r"blobs.directory\) can not be written"):
        other.flow("echo", other.step(anything)).submit(LARGE)
    assert found.app.aq.store.command("EXISTS", found.app.aq.store.keys.runs()) == 0


POOLS = [(), ("-P", "prefork", "-c", "4")]


@pytest.fixture
def away(found: Running) -> Path:
    """A file where the workers' folder is to be: as root writes to any folder."""
    place = Path(found.variables[FOLDER])
    place.touch()
    found.variables |= {"AGENTQ_WORKER__LEASE": "1s"}
    return place


@pytest.mark.parametrize("pool", POOLS, ids=["ours", "prefork"])
def test_what_can_not_be_written_for_a_while_is_not_done_again(
    found: Running, away: Path, pool: tuple[str, ...]
) -> None:
    worker = found.worker(options=("-Q", "critical,shared", *pool))
    run = found.app.sizes.submit([300_000, 300_001, 300_002])
    wait_until(lambda: found.ledger.count("grow") == 3, "the members have ended")
    wait_until(lambda: worker.log().count("wait for it in their slots") > 0, "and wait")
    if not pool:
        [shown] = wait_until(lambda: unwritten(found, 3), "the status shows them")
        assert shown.running == 3
        assert worker.log().count("wait for it in their slots") == 1
    lease_end = time.monotonic() + 1
    wait_until(lambda: time.monotonic() > lease_end, "a lease that is not renewed is over")
    away.unlink()
    assert run.result(timeout=WAIT) == [300_000, 300_001, 300_002]
    assert found.ledger.counts() == {"same": 1, "grow": 3}
    assert [event.kind for event in run.history() if event.kind == "retry"] == []


def unwritten(found: Running, count: int) -> list[Worker]:
    workers = read_status(found.app.aq.store).workers
    return [worker for worker in workers if worker.unwritten == count]


def test_an_ending_that_waits_for_its_place_is_over_at_its_deadline(
    found: Running, away: Path
) -> None:
    found.worker()
    with pytest.raises(DeadlineExceeded):
        found.app.growing.submit(300_000, deadline="2s").result(timeout=WAIT)
    away.unlink()
    assert found.app.growing.submit(300_000).result(timeout=WAIT) == 300_000
    assert found.ledger.count("grow") == 2, "one of each run"
    wait_until(lambda: unwritten(found, 0), "nothing waits")


@pytest.mark.parametrize("pool", POOLS, ids=["ours", "prefork"])
def test_behind_the_limit_another_worker_has_the_step_and_nothing_is_charged(
    found: Running, away: Path, pool: tuple[str, ...]
) -> None:
    found.variables["AGENTQ_BLOBS__WRITE_LIMIT"] = "200ms"
    first = found.worker(options=("-Q", "critical,shared", *pool))
    run = found.app.growing.submit(300_000)
    wait_until(lambda: found.ledger.count("grow") > 0, "it ran")
    wait_until(lambda: "no ended step waits" in first.log(), "and waited")
    first.stop()
    away.unlink()
    found.worker("second")
    assert run.result(timeout=WAIT) == 300_000
    ends = [event.data for event in run.history() if event.kind == "step"]
    assert [end["attempt"] for end in ends] == [1, 1]


def test_where_nobody_can_write_the_run_fails_at_the_park_limit(found: Running, away: Path) -> None:
    found.variables |= {"AGENTQ_BLOBS__WRITE_LIMIT": "0s", "AGENTQ_BROKER__PARK_LIMIT": "1s"}
    found.worker()
    with pytest.raises(RunFailed, match=r"no worker that saw it has the blob storage") as failed:
        found.app.growing.submit(300_000).result(timeout=WAIT)
    assert failed.value.kind == "UnknownStep"
    assert found.app.growing.submit(10).result(timeout=WAIT) == 10
    assert away.is_file()


async def anything(_: str) -> None: ...


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["/bin/mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield disk
    finally:
        subprocess.run(["/bin/umount", "-l", str(disk)], check=True)


def test_a_full_disk_is_an_error_that_leaves_nothing_behind(
    url: str, ledger: Ledger, small_disk: Path
) -> None:
    folder = small_disk / "blobs"
    settings = {"BLOBS__DIRECTORY": str(folder), "BLOBS__WRITE_LIMIT": "5s"}
    with running("tests.support.apps.large", url, ledger, **settings) as found:
        echo = found.app.echo
        kept = [echo.submit("x" * 400_000, key=str(number)) for number in range(2)]
        with pytest.raises(BlobsUnavailable, match=r"can not be written: No space left on device"):
            echo.submit("x" * 400_000, key="2")
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert sorted(files) == sorted(path for run in kept for path in blobs_of(found, run.id))
        assert found.app.aq.run(kept[0].id).status().state == "running"
        worker = found.worker()
        assert [len(run.result(timeout=WAIT)) for run in kept] == [400_000] * 2
        run = found.app.growing.submit(400_000)
        wait_until(lambda: "No space left on device; steps" in worker.log(), "a step waits")
        for path in files:
            path.unlink()
        assert run.result(timeout=WAIT) == 400_000
        assert ledger.count("grow") == 1


LEFT = """
from agentq.errors import BlobsUnavailable
from tests.support.apps.large import echo

try:
    echo.submit("x" * 300_000)
except BlobsUnavailable as error:
    print(error)
"""


def test_a_store_that_hangs_keeps_neither_a_producer_nor_a_worker_told_twice_from_ending(
    url: str, ledger: Ledger
) -> None:
    settings = {"BLOBS__STORE": "tests.support.hanging_store:Hanging", "BLOBS__TIMEOUT": "500ms"}
    settings |= {"WORKER__DRAIN_TIMEOUT": "1m", "WORKER__LEASE": "1s"}
    with running("tests.support.apps.large", url, ledger, **settings) as found:
        hanging = hangs(Path(found.variables[FOLDER]))
        hanging.touch()
        worker = found.worker()
        run = found.app.growing.submit(300_000)
        wait_until(lambda: "wait for it in their slots" in worker.log(), "the step's end waits")
        worker.send(signal.SIGTERM)
        wait_until(lambda: "draining" in worker.log(), "it lets the step end")
        worker.send(signal.SIGTERM)
        assert worker.wait_ended(timeout=10) == 0
        producer = subprocess.run(
            [sys.executable, "-c", LEFT], cwd=ROOT, env=os.environ | found.variables, check=True,
            capture_output=True, text=True, timeout=10,
        )  # fmt: skip
        assert "did not answer within 500ms" in producer.stdout
        hanging.unlink()
        worker.start()
        assert run.result(timeout=WAIT) == 300_000


KILLED = """
import os, signal, sys
from tests.support.apps.large import echo, aq

aq.store.call = lambda call: os.kill(os.getpid(), signal.SIGKILL)
echo.submit("x" * 300_000, key="orphan")
"""


def test_a_producer_killed_before_it_enqueues_leaves_an_orphan_that_alone_is_swept(
    found: Running,
) -> None:
    waiting = found.app.echo.submit(LARGE)
    command = [sys.executable, "-c", KILLED]
    ended = subprocess.run(command, cwd=ROOT, env=os.environ | found.variables, check=False)
    assert ended.returncode == -signal.SIGKILL
    folder = Path(found.variables[FOLDER])
    [orphan] = set(folder.glob("*/*/*/*")) - set(blobs_of(found, waiting.id))
    assert swept(found, days=0) == 0
    assert orphan.exists()
    assert swept(found, days=2) == 1
    assert not orphan.parent.exists()
    found.worker()
    assert waiting.result(timeout=WAIT) == LARGE
    assert found.app.echo.submit(LARGE, key="orphan").result(timeout=WAIT) == LARGE


def test_a_submit_again_after_the_kill_uses_the_same_blob(found: Running) -> None:
    command = [sys.executable, "-c", KILLED]
    subprocess.run(command, cwd=ROOT, env=os.environ | found.variables, check=False)
    assert not found.app.echo.submit(LARGE, key="orphan").duplicate
    assert len(list(Path(found.variables[FOLDER]).glob("*/*/*/*"))) == 1
