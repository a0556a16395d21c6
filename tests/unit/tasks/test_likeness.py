"""How near two texts are, with and without embeddings."""

from __future__ import annotations

import pytest

from tasks.research.likeness import Likeness, cosine, coverage, pairs_kept, shared, stems


def test_stems_join_the_forms_of_a_word_and_leave_out_what_means_nothing() -> None:
    assert stems("The servers are serving databases") == {"serv", "databas"}


def test_coverage_is_the_share_of_words_that_the_other_has() -> None:
    assert coverage("redis database client", "a client for the Redis server") == pytest.approx(
        2 / 3
    )
    assert coverage("the of", "anything") == 0.0


def test_shared_words_count_against_all_words() -> None:
    assert shared("alpha beta", "beta gamma") == pytest.approx(1 / 3)
    assert shared("", "") == 0.0


def test_words_in_new_company_are_not_kept_pairs() -> None:
    text = "valkey runs beside docker while python waits and imports modules"
    assert pairs_kept("valkey docker", text) == 1.0
    assert pairs_kept("valkey modules", text) == 0.0


def test_cosine_of_equal_directions_is_one_and_of_nothing_zero() -> None:
    assert cosine([1.0, 2.0], [2.0, 4.0]) == pytest.approx(1.0)
    assert cosine([0.0, 0.0], [2.0, 4.0]) == 0.0


def test_texts_are_compared_by_their_vectors() -> None:
    near = Likeness({"a": [1.0, 0.0], "b": [0.6, 0.8], "c": [-1.0, 0.0]})
    assert near.between("a", "b") == pytest.approx(0.6)
    assert near.between("a", "c") == 0.0
    assert near.to_any(["c", "b"], "a") == pytest.approx(0.6)


def test_a_text_without_a_vector_is_compared_by_its_words() -> None:
    assert Likeness().between("database client", "client of a database") == 1.0
