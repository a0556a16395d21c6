"""Steps and tasks that raise what is no `Exception`."""

from __future__ import annotations

from typing import Any

from agentq import AgentQ, each

aq = AgentQ("uncontained")
app = aq.celery


class Odd(BaseException):
    """Something that `except Exception` does not catch."""


def throw(name: str) -> int:
    """Raise it."""
    odd: dict[str, BaseException] = {
        "odd": Odd("odd"),
        "generator exit": GeneratorExit(),
        "group": BaseExceptionGroup("group", [Odd("in a group")]),
        "exit": SystemExit(3),
        "stop iteration": StopIteration(),
    }
    raise odd[name]


@aq.step
async def names(given: list[str]) -> list[str]:
    return given


@aq.step
async def coroutine(name: str) -> int:
    return throw(name)


@aq.step
def thread(name: str) -> int:
    return throw(name)


@aq.step(kind="cpu")
def process(name: str) -> int:
    return throw(name)


@aq.step
async def kinds(outcomes: list[Any]) -> list[str]:
    return [outcome.kind for outcome in outcomes]


flows = {
    "coroutine": aq.flow("coroutine", names >> each(coroutine) >> kinds),
    "thread": aq.flow("thread", names >> each(thread) >> kinds),
    "process": aq.flow("process", names >> each(process) >> kinds),
}


@app.task
def plain(name: str) -> int:
    return throw(name)


@app.task
async def plain_coroutine(name: str) -> int:
    return throw(name)
