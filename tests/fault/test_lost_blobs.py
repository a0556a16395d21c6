"""Blob storage that fails: each payload that is lost harms its own step, one that is away none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentq.errors import BlobsUnavailable, RunFailed
from agentq.ops.dead import Wanted, letters
from agentq.ops.status import read_status
from tests.integration.test_blobs import FOLDER, LARGE, WAIT, blobs_of, swept
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


def test_a_folder_that_can_not_be_written_is_an_error_of_the_submit_and_of_the_step(
    found: Running, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    found.variables[FOLDER] = str(tmp_path / "file" / "blobs")
    found.worker()
    with pytest.raises(RunFailed, match=r"blobs.directory\) can not be written: Not a") as failed:
        found.app.growing.submit(300_000).result(timeout=WAIT)
    assert failed.value.kind == "BlobsUnavailable"
    assert found.ledger.count("grow") == 2, "it was tried again, as its retries say"
    assert found.app.growing.submit(10).result(timeout=WAIT) == 10

    other = type(found.app.aq)("other", overrides={"blobs.directory": str(tmp_path / "file/blobs")})
    with pytest.raises(BlobsUnavailable, match=r"blobs.directory\) can not be written"):
        other.flow("echo", other.step(anything)).submit(LARGE)
    assert found.app.aq.store.command("EXISTS", found.app.aq.store.keys.runs()) == 1


def test_under_prefork_a_result_that_can_not_be_written_fails_its_run(
    found: Running, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    found.variables[FOLDER] = str(tmp_path / "file" / "blobs")
    found.worker(options=("-Q", "critical,shared", "-P", "prefork", "-c", "1"))
    with pytest.raises(RunFailed, match=r"can not be written: Not a directory") as failed:
        found.app.growing.submit(300_000).result(timeout=WAIT)
    assert failed.value.kind == "BlobsUnavailable"


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
    with running("tests.support.apps.large", url, ledger, BLOBS__DIRECTORY=str(folder)) as found:
        echo = found.app.echo
        kept = [echo.submit("x" * 400_000, key=str(number)) for number in range(2)]
        with pytest.raises(BlobsUnavailable, match=r"can not be written: No space left on device"):
            echo.submit("x" * 400_000, key="2")
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert sorted(files) == sorted(path for run in kept for path in blobs_of(found, run.id))
        assert found.app.aq.run(kept[0].id).status().state == "running"
        found.worker()
        assert [len(run.result(timeout=WAIT)) for run in kept] == [400_000] * 2
        with pytest.raises(RunFailed, match="No space left on device"):
            found.app.growing.submit(400_000).result(timeout=WAIT)


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
