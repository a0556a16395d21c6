"""The model's sentence is shown only where the passage bears it out."""

from __future__ import annotations

import pytest

from tasks.research import gloss

PASSAGE = (
    "Kombu is a messaging library for Python.\n"
    "It does not need RabbitMQ, and speaks to Redis 7 over a socket."
)


def _doubt(said: str, *, shown: tuple[str, ...] = (), near: float = 0.9) -> str:
    return gloss.doubt(said, name="kombu", passage=PASSAGE, shown=shown, near=near)


def test_a_fair_paraphrase_is_kept() -> None:
    assert _doubt("Kombu is a Python library for messaging.") == ""


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("Yes.", "empty or cut off"),
        ("Messaging for messaging in messaging with Kombu.", "repeats itself"),
        ("Kombu Kombu is a messaging library.", "repeats itself"),
        ("Kombu is a messaging library for Python 3.", "has a number that the passage has not"),
        ("Kombu is not a messaging library for Python.", "denies, or leaves out a denial"),
        ("It needs RabbitMQ, and speaks to Redis.", "denies, or leaves out a denial"),
        ("Kombu is a popular web server for Python.", "says what the passage does not"),
        ("Kombu is a Python socket library.", "says what the passage does not"),
    ],
)
def test_what_the_passage_does_not_bear_out_is_doubted(said: str, reason: str) -> None:
    assert _doubt(said) == reason


def test_a_copy_of_what_is_quoted_adds_nothing() -> None:
    shown = ("Kombu is a messaging library for Python.",)
    assert _doubt("Kombu is a messaging library.", shown=shown) == "only copies what is quoted"


def test_a_sentence_far_from_the_passage_by_embeddings_is_doubted() -> None:
    assert _doubt("Kombu is a Python library for messaging.", near=0.5) == "is far from the passage"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("A: It talks to Redis. And more.", "It talks to Redis."),
        ('"It talks\nto Redis."', "It talks to Redis."),
        ("It was cut off in the mid", ""),
        ("", ""),
    ],
)
def test_only_the_first_whole_sentence_of_an_answer_counts(answer: str, said: str) -> None:
    assert gloss.tidied(answer) == said
