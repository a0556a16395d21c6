"""What is refused where a step is declared, since it can not work.

Each text names the step, so that an import's traceback says which line to look at.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from datetime import timedelta
from difflib import get_close_matches
from typing import Any

from celery import Task as CeleryTask

from agentq.clock import DurationLike, parse_duration
from agentq.errors import DefinitionError

OPTIONS = ("name", "pool", "lane", "timeout", "retries", "backoff", "kind")
"""What `@aq.step` takes."""

_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def check_options(function: Callable[..., Any], given: Iterable[str]) -> None:
    """Do nothing where *given* are options of a step.

    Raises:
        DefinitionError: one is not; the text has those that are, and the nearest.
    """
    for option in given:
        if option in OPTIONS:
            continue
        near = get_close_matches(option, OPTIONS, 1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise DefinitionError(
            f"step {_name(function)!r}: there is no option {option!r}; {meant}"
            f"There are {', '.join(OPTIONS)}"
        )


def check_function(function: Any) -> None:
    """Do nothing where *function* takes at most one argument after an optional Context.

    Raises:
        DefinitionError: it asks for more, has an unannotated ``ctx``, or is a task already.
    """
    if isinstance(function, CeleryTask):
        raise DefinitionError(
            f"step {function.name!r} is a task already: use @aq.step alone, without @app.task"
        )
    parameters = list(inspect.signature(function).parameters.values())
    if (
        parameters
        and parameters[0].name == "ctx"
        and parameters[0].annotation is parameters[0].empty
    ):
        raise DefinitionError(
            f"step {_name(function)!r}: annotate its first parameter, ctx: Context, or name it "
            "otherwise: only so annotated it is given the context"
        )
    needed = [one for one in parameters if one.default is one.empty and one.kind not in _MANY]
    rest = needed[1:] if needed and _is_context(needed[0]) else needed
    if len(rest) > 1 or any(one.kind is one.KEYWORD_ONLY for one in rest):
        raise DefinitionError(
            f"step {_name(function)!r} asks for {', '.join(one.name for one in rest)}: a step "
            "takes one argument, after an optional ctx: Context; put several values into a model"
        )


def refuse_steps(arguments: Iterable[Any]) -> None:
    """Do nothing where none of *arguments* of `@app.task` is a step.

    Raises:
        DefinitionError: one is.
    """
    for one in arguments:
        if isinstance(one, CeleryTask) and getattr(one, "step", None) is not None:
            raise DefinitionError(
                f"step {one.name!r} is a task already: drop @app.task above its @aq.step"
            )


def duration(step: str, option: str, value: DurationLike) -> timedelta:
    """Return *value* as a timedelta.

    Raises:
        DefinitionError: it is none; the text names step and option.
    """
    try:
        return parse_duration(value)
    except ValueError as error:
        raise DefinitionError(f"step {step!r}: {option}: {error}") from error


def _is_context(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return name.rpartition(".")[2] == "Context"


def asks_for_context(function: Callable[..., Any]) -> bool:
    """Whether the first parameter is annotated `Context`, as it stands there: unresolved."""
    return any(map(_is_context, list(inspect.signature(function).parameters.values())[:1]))


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", function))
