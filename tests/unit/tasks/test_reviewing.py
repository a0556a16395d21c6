"""The review keeps what the sources bear out, once, and says what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentq import Err, Ok
from tasks.research.documents import NothingToReadError, digest
from tasks.research.models import Document, Limits, Note, Overview, Reading, Scope
from tasks.research.reviewing import merged, reviewed, unsupported

TEXT = "Alpha talks to the database server. It is fast."


def _note(name: str, **changes: object) -> Note:
    fields = {
        "document": Document(kind="file", name=name, digest=digest(TEXT)),
        "claim": f"{name}: Alpha talks to the database server.",
        "quotation": "talks to the database server.",
        "score": 0.8,
    }
    return Note.model_validate(fields | changes)


def _reading(folder: Path, note: Note, *, chosen: tuple[str, ...] = ()) -> Ok[Reading]:
    scope = Scope(question="q?", search=("q",), docs=str(folder), memory="", limits=Limits())
    seen = Overview(considered=9, chosen=chosen, skipped=(), skipped_more=0, missing=())
    return Ok(Reading(scope=scope, note=note, overview=seen))


def _written(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text(TEXT)


@pytest.mark.parametrize(
    ("changes", "objection"),
    [
        ({}, ""),
        (
            {"quotation": "talks to a database server."},
            "its quotation does not occur in the document",
        ),
        ({"claim": "b.md: Alpha talks."}, "its claim does not name the document"),
        ({"claim": "a.md: Alpha eats lions."}, "its claim has words that the document has not"),
    ],
)
def test_a_note_stands_only_on_the_words_of_its_document(
    changes: dict[str, str], objection: str
) -> None:
    assert unsupported(_note("a.md", **changes), TEXT) == objection


def test_notes_that_say_the_same_become_one_claim_that_names_both() -> None:
    low, high = _note("b.md", score=0.5), _note("a.md")
    other = _note("c.md", claim="c.md: It is fast.", quotation="It is fast.", score=0.6)
    claims = merged([low, other, high])
    assert [(c.note.document.name, [d.name for d in c.also]) for c in claims] == [
        ("a.md", ["b.md"]),
        ("c.md", []),
    ]


def test_unsound_notes_are_dropped_with_their_reason(tmp_path: Path) -> None:
    _written(tmp_path, "a.md", "b.md", "c.md", "e.md")
    (tmp_path / "d.md").write_text("Something else by now.")
    notes = [
        _note("a.md"),
        _note("b.md", quotation="never said"),
        _note("c.md", claim="", score=0.0),
        _note("d.md"),
        _note("e.md", score=0.1),
    ]
    review = reviewed([_reading(tmp_path, note) for note in notes])
    assert [claim.note.document.name for claim in review.claims] == ["a.md"]
    assert {skip.name: skip.reason for skip in review.dropped} == {
        "b.md": "its quotation does not occur in the document",
        "c.md": "nothing in it bears on the question",
        "d.md": "d.md changed while it was read; run again",
        "e.md": "bears too little on it",
    }


def test_failed_members_are_counted_and_named(tmp_path: Path) -> None:
    _written(tmp_path, "b.md")
    good = _reading(tmp_path, _note("b.md"), chosen=("a.md", "b.md", "c.md"))
    lost = Err(kind="WorkerLost", message="process 7 died")
    review = reviewed([lost, good, lost])
    assert review.missing == ("not read: WorkerLost: process 7 died (2 documents: a.md, c.md)",)


def test_a_failed_call_is_said_once_with_all_its_documents(tmp_path: Path) -> None:
    _written(tmp_path, "a.md", "b.md")
    notes = [_note(name, missing=("gloss: POST /x failed",)) for name in ("a.md", "b.md")]
    review = reviewed([_reading(tmp_path, note) for note in notes])
    assert review.missing == ("gloss: POST /x failed (2 documents: a.md, b.md)",)


def test_when_no_document_could_be_read_the_first_reason_is_given() -> None:
    failed = [Err(kind="ValueError", message="bad")] * 3
    with pytest.raises(NothingToReadError, match=r"none of 3 documents .* ValueError: bad"):
        reviewed(failed)
