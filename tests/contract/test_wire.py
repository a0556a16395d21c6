"""What is written is what was recorded, and what was recorded is read: `tests/contract/wire`.

The build before reads what this one writes, since under one version both write the same bytes; of
a version that it can not read it parks what it meets (`test_versions`).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentq.ops.dead import Wanted, letters
from agentq.ops.pausing import read_pauses, resume
from agentq.runs.record import run_id_of
from agentq.store import library
from tests.contract.test_keys import documented
from tests.contract.wire import recordings
from tests.contract.wire.frozen import freeze
from tests.contract.wire.recordings import APP, BEFORE, CELL, FILES, FUNCTIONS, Refused, made
from tests.contract.wire.snapshot import read, restore, shown
from tests.support.ledger import Ledger
from tests.support.redis_server import Server, private_server
from tests.support.running import running
from tests.support.waiting import wait_until

SAYS = "python -m tests.contract.wire shows what; --record writes what is new"


@pytest.fixture(scope="module")
def today() -> dict[str, Any]:
    return made()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the recordings."""
    copy = tmp_path / "wire"
    shutil.copytree(recordings.FOLDER, copy, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    monkeypatch.setattr(recordings, "FOLDER", copy)
    return copy


# -- what is written ------------------------------------------------------------------------------


@pytest.mark.parametrize("file", FILES)
def test_every_byte_that_is_written_is_as_recorded(today: dict[str, Any], file: str) -> None:
    assert recordings.differences(file, today[file]) == [], SAYS
    assert recordings.recorded(file) == today[file], SAYS


def test_every_function_and_every_kind_of_key_is_recorded(today: dict[str, Any]) -> None:
    called = {one["call"][0] for scene in today[recordings.CALLS].values() for one in scene}
    assert set(library.names()) - called == {"aq1_about"}
    keys = {key for scene in today[CELL].values() for key in scene}
    missing = [kind.pattern for kind in documented() if not any(map(kind.match, keys))]
    assert missing == [
        "reap:server$",  # a server's run id, which a frozen one has not
        "blobs:swept:.+$",  # who swept a blob storage last, for an hour
        "reply:.+$",  # kombu's replies to remote control, which live a minute
    ]


# -- what is recorded stays -----------------------------------------------------------------------


def test_what_is_new_is_recorded_and_nothing_else_is_touched(
    folder: Path, today: dict[str, Any]
) -> None:
    before = (folder / CELL).read_bytes()
    assert recordings.record(today) == []
    assert recordings.record({CELL: today[CELL] | {"new scene": {"key": {}}}}) == [CELL]
    assert (folder / CELL).read_bytes().startswith(before[:-4])
    assert set(recordings.recorded(CELL)) == {*today[CELL], "new scene"}


@pytest.mark.parametrize("file", [CELL, FUNCTIONS, recordings.VALUES])
def test_a_change_under_a_recorded_version_is_refused_by_name(
    folder: Path, today: dict[str, Any], file: str
) -> None:
    old = (folder / file).read_bytes()
    changed: Any = today[file]
    if isinstance(changed, str):
        changed, named = changed.replace("PEXPIRE", "EXPIRE"), file
    else:
        first = next(iter(changed))
        changed, named = changed | {first: "something else"}, f"{file}: {first}"
    with pytest.raises(Refused, match=named):
        recordings.record({file: changed})
    assert (folder / file).read_bytes() == old


def test_a_new_revision_gets_files_of_its_own_and_those_of_the_build_before_stay(
    folder: Path, today: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    following = library.REVISION + 1
    functions, calls = f"functions.aq1.{following}.lua", f"calls.aq1.{following}.json"
    monkeypatch.setattr(recordings, "CALLS", calls)
    monkeypatch.setattr(recordings, "BEFORE", library.REVISION)
    new = {functions: "#!lua name=aq1", calls: today[recordings.FILES[2]]}
    assert recordings.record(new) == [functions]  # no call has changed
    new[calls] = new[calls] | {"first_step": []}
    assert recordings.record(new) == [calls]
    assert {path.name for path in folder.glob("functions.*")} == {functions, FUNCTIONS}
    assert len(list(folder.glob("calls.*"))) == 2


# -- what was recorded is read --------------------------------------------------------------------


@pytest.fixture
def frozen() -> Iterator[Server]:
    with private_server() as server:
        freeze(server.client)
        yield server


def test_the_calls_of_the_build_before_are_answered_as_they_were(frozen: Server) -> None:
    scenes = recordings.recorded(f"calls.{library.LIBRARY}.{BEFORE}.json")
    for name, noted in scenes.items():
        for one in noted:
            answer = frozen.client.execute_command("FCALL", *read(one["call"]))
            assert shown(answer) == one["answer"], (name, one["call"])


RUNS = {
    ("counted", "first", "acme"): ("done", b"0"),
    ("counted", "members", None): ("done", b"4"),
    ("counted", "staged", None): ("done", b"4"),
    ("counted", "outcomes", None): ("done", b"4"),
    ("counted", "body", None): ("done", b"0"),
    ("counted", "later", None): ("done", b"0"),
    ("counted", "ended", None): ("done", b"0"),
    ("shaken", "retried", None): ("done", b"2"),
    ("shaken", "suspect", None): ("done", b"3"),
    ("shaken", "cancelled", None): ("cancelled", b"null"),
    ("grown", "large outcome", None): ("done", b"[300000,300000]"),
}
"""Flow, key and tenant of each run that lies in the recorded cell, and how it ends today."""

DOUBLED = {"first": [0, 1], "members": [0, 1, 2], "staged": [0, 1, 2], "outcomes": [2]}
"""Members that had not ended in the recording, and run now: each once."""

TASKS = {
    "add 1 2": 2,  # linked; once more for its callback's sake
    "add 3 10": 1, "add 3 4": 1, "add 5 6": 1, "add 7 8": 1, "add 1 1": 1, "add 2 100": 1,
    "add 20 1": 1, "add 20 2": 2, "total 21 22": 3, "add 30 0": 1, "add 30 1": 1, "add 40 0": 1,
    "add 40 1": 1, "add 40 2": 1, "again 60 1": 1, "fails": 0,
}  # fmt: skip


def test_a_recorded_cell_is_worked_off_by_todays_worker(
    url: str, ledger: Ledger, tmp_path: Path
) -> None:
    folder = tmp_path / "blobs"
    with running(APP, url, ledger, WORKER__LEASE="2s", BLOBS__DIRECTORY=str(folder)) as wire:
        store = wire.app.aq.store
        restore(store, recordings.recorded(CELL).values())
        restore_blobs(folder, wire.app)
        assert "its worker died 3 times while it ran" in {
            letter.reason for letter in letters(store, Wanted())
        }
        for pause in read_pauses(store, 0):
            assert resume(store, pause.kind, pause.name).paused
        worker = wire.worker()
        # Between two steps of a run nothing may be queued for a moment: its state says its end.
        wait_until(
            lambda: left(store) == [] and ended(wire.app) == RUNS,
            lambda: f"{left(store)}\n{ended(wire.app)}\n{worker.log()}",
            25,
        )
        counts = ledger.counts()
        assert {line: counts[line] for line in TASKS} == TASKS
        for key, numbers in DOUBLED.items():
            run = run_id_of("counted", key, "acme" if key == "first" else None)
            assert sorted(ledger.lines(f"double {run}:")) == [
                f"double {run}:2.{n}" for n in numbers
            ]
            assert counts[f"kept {run}"] == counts[f"together {run}"] == 1
        assert "wire.elsewhere" in {letter.task for letter in letters(store, Wanted())}
        for key in ("large argument", "large result"):
            brief = wire.app.echoed.submit(wire.app.Brief(), key=key)
            assert brief.duplicate
            assert brief.result(timeout=5).text == wire.app.LARGE


def restore_blobs(folder: Path, app: Any) -> None:
    """Write what the recorded cell refers to."""
    text = (recordings.FOLDER / CELL).read_text(encoding="utf-8")
    cell_id = recordings.recorded(CELL)["large_argument"]["blobs:id"]["value"]
    brief = app.aq.steps["wire.typed"].encode(app.Brief(text=app.LARGE))
    grown = app.aq.steps["wire.grow"].encode(app.LARGE)
    for reference in set(re.findall(r"\d{8}/\w+/[0-9a-f]{64}-\d+", text)):
        path = folder / cell_id / reference
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(brief if reference.endswith(f"-{len(brief)}") else grown)


def ended(app: Any) -> dict[Any, Any]:
    """Return how each of `RUNS` stands."""
    states = {place: app.aq.run(run_id_of(*place)).status() for place in RUNS}
    return {place: (run.state, run.result) for place, run in states.items()}


def left(store: Any) -> list[str]:
    """Return what still waits or runs."""
    found = store.client.scan_iter(match=f"{store.keys.prefix}[sr]:*", count=1000)
    waiting = [key.decode() for key in found if store.client.xlen(key)]
    return waiting + ["delayed"] * store.client.hlen(store.keys.delayed_messages())
