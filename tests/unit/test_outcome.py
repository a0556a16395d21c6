"""What is kept of an exception's text."""

from __future__ import annotations

import orjson
import pytest

from agentq.outcome import text_of


class Silent(Exception):  # noqa: N818 -- no error
    def __str__(self) -> str:
        raise KeyError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("plain \u2014 text"), "plain \u2014 text"),
        (ValueError("bad \udcff name"), r"bad \udcff name"),
        (Silent(), "<unprintable Silent object>"),
        (ValueError("x" * 8192), "x" * 8192),
        (
            ValueError("a" * 6144 + "b" * 10 + "c" * 2048),
            f"{'a' * 6144}... (10 characters cut) ...{'c' * 2048}",
        ),
    ],
)
def test_a_text_is_sendable_and_of_bounded_length(error: Exception, text: str) -> None:
    assert text_of(error) == text
    assert orjson.loads(orjson.dumps(text_of(error))) == text
