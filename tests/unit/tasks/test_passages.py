"""Markup goes, the words stay: sentences, passages and what may be quoted."""

from __future__ import annotations

from importlib import metadata

import pytest

from tasks.research.passages import is_prose, occurs, opening, passages, plain, sentences


@pytest.mark.parametrize(
    ("markup", "words"),
    [
        ("# Title\nSome *fine* **bold** `code` here.", "Title\n\nSome fine bold code here."),
        ("See [the docs](https://x.org/a_(b)) now.", "See the docs now."),
        ("[![build](https://x/y.svg)](https://x) Ready.", "Ready."),
        ("- one\n- two\n\n1. three", "one\n\ntwo\n\nthree"),
        ("<p align='center'>Hello<br>there &amp; all</p>", "Hello\n\nthere & all"),
        ("Read <https://a.org> first.", "Read https://a.org first."),
        ("> quoted\n> words", "quoted words"),
        ("| a | b |\n|---|---|\n| one cell | other |", "a\n\nb\n\none cell\n\nother"),
        ("before\n\n```python\nx = 1\n```\n\nafter", "before\n\nafter"),
        ("[ref]: https://x.org\nText with [a link][ref].", "Text with a link."),
    ],
)
def test_markdown_and_html_are_taken_off(markup: str, words: str) -> None:
    assert plain(markup) == words


@pytest.mark.parametrize(
    ("markup", "words"),
    [
        ("Title\n=====\n\nBody ``x`` and `y <https://y>`_.", "Title\n\nBody x and y."),
        ("Run it::\n\n    pip install x\n\nDone.", "Run it:\n\nDone."),
        (".. image:: a.png\n   :alt: A\n\nBody.", "Body."),
        (".. note:: ignored title\n\n   The note stays.", "The note stays."),
        ("Call :meth:`run` of :class:`~a.B`.", "Call run of ~a.B."),
        ("Works on Trio_ and asyncio_.", "Works on Trio and asyncio."),
        (">>> 1 + 1\n\nBody.", "Body."),
    ],
)
def test_restructured_text_is_taken_off(markup: str, words: str) -> None:
    assert plain(markup) == words


def test_names_with_underscores_and_stars_in_prose_survive() -> None:
    text = "Set max_items and my_other_name; 2 * 3 is 6, snake_case stays."
    assert plain(text) == text


def test_a_program_keeps_every_line() -> None:
    assert plain("# not a heading\nx = [1](2)\n\n\ny", markup=False) == (
        "# not a heading x = [1](2)\n\ny"
    )


def test_encoded_data_is_left_out() -> None:
    assert plain(f"before {'A' * 201} after", markup=False) == "before after"


def test_sentences_end_at_stops_and_paragraphs_but_not_at_abbreviations() -> None:
    text = 'It works, e.g. With care. "Quoted!" Then more\n\nA heading\n\nThe end'
    assert sentences(text) == [
        "It works, e.g. With care.",
        '"Quoted!',
        "Then more",
        "A heading",
        "The end",
    ]


def test_passages_hold_whole_sentences_up_to_the_limit() -> None:
    text = "One two three. Four five.\n\nSix seven eight nine."
    assert passages(text, max_words=5) == ["One two three.\nFour five.", "Six seven eight nine."]


def test_a_sentence_longer_than_a_passage_is_cut_and_no_word_is_lost() -> None:
    text = " ".join(f"w{n}" for n in range(23))
    parts = passages(text, max_words=10)
    assert [len(part.split()) for part in parts] == [10, 10, 3]
    assert " ".join(parts) == text


def test_an_opening_is_never_longer_than_a_quotation() -> None:
    assert opening("word " * 300) == " ".join(["word"] * 45)


def test_plain_text_without_words_has_no_passages() -> None:
    assert passages(plain("![only](an.png)")) == []


@pytest.mark.parametrize(
    ("sentence", "quotable"),
    [
        ("This library talks to a database over TCP.", True),
        ("Too short this.", False),
        ("word " * 46, False),
        ("For more information have a look at the manual.", False),
        ("Keywords: redis, database and other things here", False),
        ("with connect(timeout) as c; do the thing now", False),
        ("The page is at https://example.org for all of you.", False),
        ("1 2 3 4 5 6 are the numbers", False),
    ],
)
def test_only_what_states_something_can_be_quoted(sentence: str, quotable: bool) -> None:  # noqa: FBT001 -- parametrised
    assert is_prose(sentence) is quotable


def test_a_quotation_occurs_whatever_the_white_space_and_only_word_for_word() -> None:
    text = "The first line\n\ngoes on here."
    assert occurs("first line goes  on", text)
    assert not occurs("first line goes off", text)
    assert not occurs("", text)


def test_every_quotable_sentence_of_every_installed_readme_occurs_in_it() -> None:
    read = 0
    for found in metadata.distributions():
        text = plain((found.metadata.get_all("Description") or [""])[0])
        for part in passages(text):
            assert len(part.split()) <= 60
            for sentence in filter(is_prose, sentences(part)):
                read += 1
                assert occurs(sentence, text)
    assert read > 500
