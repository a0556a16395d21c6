"""The plan ranks documents by short passages and chooses within its limits."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tasks.research.documents import NothingToReadError
from tasks.research.likeness import Likeness
from tasks.research.models import DEFAULT_QUESTION, Brief, Document, Limits
from tasks.research.planning import Candidate, choose, make_plan, openings, search_phrases
from tests.unit.tasks.desk import Desk


def _candidates(scores: list[float]) -> tuple[list[Candidate], Likeness]:
    names = [f"d{place}" for place in range(len(scores))]
    vectors = {"q": [1.0, 0.0]} | {
        name: [score, (1 - score**2) ** 0.5] for name, score in zip(names, scores, strict=True)
    }
    made = [Candidate(Document(kind="file", name=n, digest="0"), (n,)) for n in names]
    return made, Likeness(vectors)


def _chosen(scores: list[float], limits: Limits) -> list[str]:
    made, near = _candidates(scores)
    return [document.name for document in choose(made, ("q",), near, limits)]


def test_documents_near_enough_to_the_best_are_chosen_best_first() -> None:
    limits = Limits(threshold=0.5, chosen_at_least=1)
    assert _chosen([0.2, 0.8, 0.41, 0.39], limits) == ["d1", "d2"]


def test_so_many_are_chosen_where_there_are_as_many() -> None:
    assert _chosen([0.9, 0.1, 0.2], Limits(chosen_at_least=2)) == ["d0", "d2"]
    assert _chosen([0.9], Limits(chosen_at_least=2)) == ["d0"]


def test_no_more_are_chosen_than_the_cap() -> None:
    assert _chosen([0.9, 0.9, 0.9], Limits(chosen=2)) == ["d0", "d1"]


def test_the_parts_of_a_question_are_searched_for_and_licences_are_not() -> None:
    assert search_phrases("how are queues bounded, and what happens when Redis is full?") == (
        "how are queues bounded, and what happens when Redis is full?",
        "how are queues bounded",
        "what happens when Redis is full",
    )
    assert search_phrases("who parses big files, under which licence?") == ("who parses big files",)
    assert search_phrases("why?") == ("why?",)
    assert DEFAULT_QUESTION not in search_phrases(DEFAULT_QUESTION)


def test_a_document_is_ranked_by_its_first_passage_and_its_most_telling_one() -> None:
    first = "Opening words " * 20
    other = "nothing here " * 20
    telling = "it talks to a database " * 8
    text = f"{first.strip()}\n\n{other.strip()}\n\n{telling.strip()}"
    assert openings(text, ("database",)) == (first.strip(), telling.strip())
    assert openings("Just one.", ("database",)) == ("Just one.",)


def _planned(docs: Path, **limits: int) -> tuple[Desk, list[str], list[bool]]:
    desk = Desk()
    brief = Brief(question="which one knows databases?", docs=str(docs), limits=Limits(**limits))
    plan = asyncio.run(make_plan(desk, brief))  # type: ignore[arg-type]
    return desk, [t.document.name for t in plan.tasks], [t.ask for t in plan.tasks]


def _folder(folder: Path, count: int) -> Path:
    for place in range(count):
        about = "databases" if place == 3 else "gardens"
        (folder / f"d{place}.md").write_text(f"Number {place} knows all about {about}.")
    return folder


def test_the_best_documents_are_marked_for_the_model(tmp_path: Path) -> None:
    desk, names, asked = _planned(_folder(tmp_path, 5), chosen=3, glosses=2)
    assert names[0] == "d3.md"
    assert asked == [True, True, False]
    assert len(desk.embedded) == 1


def test_only_so_many_are_ranked_by_embeddings(tmp_path: Path) -> None:
    desk, names, _ = _planned(_folder(tmp_path, 5), ranked=2, chosen_at_least=5)
    assert len(names) == 2
    assert "d3.md" in names
    assert len(desk.embedded[0]) == 3


def test_an_empty_folder_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(NothingToReadError, match="holds no documents; pass a folder"):
        _planned(tmp_path)


def test_a_folder_without_text_names_the_first_reason(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    with pytest.raises(NothingToReadError, match=r"none of the 1 .* a\.png: not text: byte 0"):
        _planned(tmp_path)


def test_without_embeddings_the_plan_goes_on_by_words_and_says_so(tmp_path: Path) -> None:
    _folder(tmp_path, 5)
    desk = Desk(embeds=False)
    brief = Brief(question="which one knows databases?", docs=str(tmp_path))
    plan = asyncio.run(make_plan(desk, brief))  # type: ignore[arg-type]
    assert plan.tasks[0].document.name == "d3.md"
    assert plan.tasks[0].overview is not None
    assert plan.tasks[0].overview.missing == (
        (
            "ranking: embeddings: POST http://model/v1/embeddings failed "
            "(ModelUnavailable: connection refused); compared by words instead"
        ),
    )
