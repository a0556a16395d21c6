"""How a step is declared, and what is refused where it is written."""

from __future__ import annotations

from typing import Any

import pytest

from agentq import Context
from agentq.broker.step import kind_of
from agentq.errors import DefinitionError


async def coroutine(_: Context) -> None: ...


def function(_: int) -> None: ...


def with_context(_: Context, __: int) -> None: ...


def test_a_coroutine_is_async_and_a_function_runs_in_a_thread_unless_told_otherwise() -> None:
    assert kind_of(coroutine, None) == "async"
    assert kind_of(function, None) == "thread"
    assert kind_of(with_context, "thread") == "thread"
    assert kind_of(function, "cpu") == "cpu"


@pytest.mark.parametrize(
    ("declared", "kind", "why"),
    [
        (function, "gpu", "kind 'gpu' is not thread or cpu"),
        (coroutine, "cpu", 'is async: kind="cpu" needs a plain def'),
        (function, "async", "is a plain def: it can not be async"),
        (with_context, "cpu", 'kind="cpu" runs in another process, where there is no Context'),
    ],
)
def test_a_kind_that_does_not_fit_is_refused(declared: Any, kind: str, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        kind_of(declared, kind)
