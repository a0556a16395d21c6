"""What installing writes, keeps and takes away; below a folder that stands for /."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from agentq.errors import DeployError
from agentq.ops.deploy.deployment import Given, Site, load
from agentq.ops.deploy.install import Changes, install, read_record, uninstall
from agentq.ops.deploy.machine import Machine
from agentq.ops.deploy.render import File
from agentq.settings.installed import RECORD
from tests.unit.ops.deploy.plans import plan_of, planned

SITE = Site(app="shop:aq", folder=Path("/opt/shop"), python=Path("/usr/bin/python3"))
UNIT, SECRET = "etc/systemd/system/agentq-x.service", "etc/agentq/credentials/k"
FILES = {UNIT: File(text="one\n"), SECRET: File(text="secret", mode=0o600)}


def put(root: Path, files: dict[str, File] = FILES, **processes: int) -> Changes:
    return install(root, files, site=SITE, processes=processes)


def test_everything_is_written_once_with_its_rights(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        assert put(tmp_path, shared=3).written == sorted(FILES)
    finally:
        os.umask(before)
    assert (tmp_path / RECORD).parent.stat().st_mode & 0o777 == 0o755
    assert (tmp_path / UNIT).stat().st_mode & 0o777 == 0o644
    assert (tmp_path / SECRET).stat().st_mode & 0o777 == 0o600
    assert put(tmp_path, shared=3) == Changes(same=sorted(FILES))
    record = read_record(tmp_path)
    assert record is not None
    assert (record.site, record.processes) == (SITE, {"shared": 3})


def test_a_folder_that_was_there_and_is_closed_to_the_workers_is_said(tmp_path: Path) -> None:
    (tmp_path / RECORD).parent.mkdir(parents=True, mode=0o700)
    [note] = put(tmp_path).notes
    assert note.endswith(f"closed to user agentq, whose workers look for their plan in it: "
                         f"chmod 755 {tmp_path}/etc/agentq")  # fmt: skip
    (tmp_path / RECORD).parent.chmod(0o755)
    assert put(tmp_path).notes == []


def test_what_somebody_edited_is_kept_and_said_and_forgotten_by_nobody(tmp_path: Path) -> None:
    put(tmp_path)
    (tmp_path / UNIT).write_text("mine\n")
    newer = {**FILES, UNIT: File(text="two\n")}
    for _ in range(2):
        assert put(tmp_path, newer).kept == [UNIT]
    assert uninstall(tmp_path) == Changes(kept=[UNIT], removed=[SECRET])
    assert (tmp_path / UNIT).read_text() == "mine\n"


def test_an_edit_that_was_taken_back_is_ours_again(tmp_path: Path) -> None:
    put(tmp_path)
    (tmp_path / UNIT).write_text("mine\n")
    put(tmp_path, {**FILES, UNIT: File(text="two\n")})
    (tmp_path / UNIT).write_text("one\n")
    assert put(tmp_path, {**FILES, UNIT: File(text="two\n")}).written == [UNIT]


def test_a_file_that_was_there_before_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / UNIT).parent.mkdir(parents=True)
    (tmp_path / UNIT).write_text("somebody's\n")
    assert put(tmp_path).kept == [UNIT]
    uninstall(tmp_path)
    assert (tmp_path / UNIT).read_text() == "somebody's\n"


def test_what_is_no_longer_rendered_is_removed(tmp_path: Path) -> None:
    put(tmp_path)
    assert put(tmp_path, {UNIT: FILES[UNIT]}).removed == [SECRET]
    assert not (tmp_path / SECRET).exists()


def test_uninstalling_leaves_nothing(tmp_path: Path) -> None:
    put(tmp_path)
    uninstall(tmp_path)
    left = [path for path in tmp_path.rglob("*") if path.is_file() or "agentq" in path.name]
    assert left == []


def test_uninstalling_names_what_others_have_put_beside_it(tmp_path: Path) -> None:
    put(tmp_path)
    mine = ["etc/agentq/ca.crt", f"{UNIT}.d/override.conf"]
    for name in mine:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine\n")
    said = uninstall(tmp_path).notes
    assert said == [f"left, since it is not of our writing: /{name}" for name in mine]
    assert all((tmp_path / name).exists() for name in mine)


class Cut(BaseException):
    """What ends an installation where it stands; nothing catches it."""


@contextmanager
def cut_off_at(call: int) -> Iterator[None]:
    """Let the call of that number, of all that touch files, be the end of it."""
    calls = iter(range(1, call))

    def wrapped(real: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **options: object) -> object:
            if next(calls, None) is None:
                raise Cut
            return real(*arguments, **options)

        return counted

    with pytest.MonkeyPatch.context() as patched:
        for name in ("open", "fchmod", "fsync"):
            patched.setattr(os, name, wrapped(getattr(os, name)))
        for name in ("mkdir", "replace", "unlink", "rmdir"):
            patched.setattr(Path, name, wrapped(getattr(Path, name)))
        yield


def seats(processes: int, text: str) -> dict[str, File]:
    folder = "etc/systemd/system/agentq-worker@shared-{}.service.d"
    each = {f"{folder.format(one)}/20.conf": File(text=text) for one in range(processes)}
    return {**each, SECRET: File(text=text, mode=0o600)}


@pytest.mark.parametrize("later", [3, 1, None])
def test_wherever_it_is_cut_off_the_next_completes_it_and_nothing_stays(
    tmp_path: Path, later: int | None
) -> None:
    for call in range(1, 100):
        root = tmp_path / str(call)
        put(root, seats(2, "old"))
        try:
            with cut_off_at(call):
                put(root, seats(later, "new")) if later else uninstall(root)
        except Cut:
            assert put(root, seats(2, "old")).kept == []
            assert not list(root.rglob("*.agentq-new"))
            uninstall(root)
            assert [path for path in root.rglob("*") if "agentq" in path.name] == []
        else:
            assert call > 8
            return
    pytest.fail("it never came to its end")


@pytest.mark.parametrize("fits", range(7))
def test_a_disk_that_is_full_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: int
) -> None:
    put(tmp_path, seats(2, "old"))
    real, calls = os.fsync, iter(range(fits))

    def full(handle: int) -> None:
        if next(calls, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    if fits < 5:  # of four files and the record
        with pytest.raises(
            DeployError, match=r"etc/\S+ can not be .*No space.*nothing was changed"
        ):
            put(tmp_path, seats(3, "new"))
    else:
        put(tmp_path, seats(3, "new"))
    monkeypatch.undo()
    now = seats(2, "old") if fits < 5 else seats(3, "new")
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {*now, RECORD}
    assert put(tmp_path, now) == Changes(same=sorted(now))


def test_a_file_that_can_not_be_written_changes_nothing(tmp_path: Path) -> None:
    put(tmp_path)
    (tmp_path / "etc/z.agentq-new").mkdir()  # where the last of them is to be written first
    newer = {**FILES, UNIT: File(text="two\n"), "etc/z": File(text="")}
    with pytest.raises(DeployError, match=r"z\.agentq-new.*nothing was changed"):
        put(tmp_path, newer)
    assert (tmp_path / UNIT).read_text() == "one\n"
    assert [path.name for path in tmp_path.rglob("*.agentq-new")] == ["z.agentq-new"]
    assert (tmp_path / RECORD).exists()


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"site": 1}'])
def test_a_record_that_is_damaged_is_removed_and_made_again(tmp_path: Path, text: str) -> None:
    put(tmp_path)
    (tmp_path / RECORD).write_text(text)
    with pytest.raises(DeployError, match=r"deploy\.json can not be read .*: remove it, then"):
        put(tmp_path)
    (tmp_path / RECORD).unlink()
    assert put(tmp_path) == Changes(same=sorted(FILES))
    uninstall(tmp_path)
    assert not (tmp_path / UNIT).exists()


def test_settings_that_are_broken_by_now_are_no_reason_to_stay(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "config").mkdir(parents=True)
    site = replace(SITE, folder=project)
    given = Given(plain={"AGENTQ_WORKER__DRAIN_TIMEOUT": "50s"}, secret={})
    machine = Machine(root=tmp_path)
    machine.install(site, load(site, given, {}), plan_of(planned("shared", (0,))), given)
    assert machine.stop_limit() == timedelta(minutes=2)
    (project / "config/default.toml").write_text("no toml")
    assert machine.stop_limit() == timedelta(hours=1)


def test_what_was_given_at_the_installation_is_read_back_from_it(tmp_path: Path) -> None:
    machine = Machine(root=tmp_path)
    given = Given(
        plain={"AGENTQ_MODEL__LARGE": 'a "b" $c \\d `e` %f', "AGENTQ_WORKER__SLOTS": "7"},
        secret={"broker.url": "agentq://:p%40ss@db:6379/0"},
        code={"AGENTQ_POOLS__GPU__PURPOSE": "exclusive"},
    )
    plan = plan_of(planned("shared", (0,)))
    machine.install(SITE, load(SITE, given, {}), plan, given)
    again = Machine(root=tmp_path)
    assert again.given() == given
    assert again.plan() == plan
    settings = again.settings({"shared": 4})
    assert settings.model.large == given.plain["AGENTQ_MODEL__LARGE"]
    assert (settings.worker.slots, settings.pools["shared"].processes) == (7, 4)
    assert settings.broker.url == given.secret["broker.url"]
    assert settings.pools["gpu"].purpose == "exclusive"
