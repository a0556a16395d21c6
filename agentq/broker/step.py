"""A step as it was declared: where it runs, how long, how often, and what types it takes and gives.

The types are the annotations; pydantic checks them at both ends. A step takes at most one value
from the flow (its argument), after an optional first parameter annotated `Context`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

import orjson
from celery.exceptions import TaskRevokedError
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from agentq.broker import serializer
from agentq.broker.declared import asks_for_context
from agentq.broker.joins import Outcomes
from agentq.errors import DefinitionError, InvalidArgument, InvalidResult, RunError
from agentq.outcome import outcome_of

if TYPE_CHECKING:
    from agentq.broker.context import Context

Kind = Literal["async", "thread", "cpu"]

_UNTYPED = (Any, list, list[Any])
"""Annotations that say nothing of a fan-in's members: they come as `Ok` and `Err`."""

_LONGEST_BACKOFF = timedelta(minutes=10)
_SHOWN = 80  # characters of a refused value


@dataclass(frozen=True)
class Step:
    """One declared step."""

    name: str
    function: Callable[..., Any]
    kind: Kind
    pool: str
    lane: str
    timeout: timedelta | None
    """One attempt; None: only the run's deadline bounds it."""
    retries: int
    """Further attempts after an exception."""
    backoff: timedelta
    """Before the first retry; doubles, with jitter."""

    @cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            return get_type_hints(self.function)
        except NameError as error:
            raise DefinitionError(
                f"step {self.name!r}: an annotation can not be resolved: {error}; "
                "its types must be importable from the module that declares the step"
            ) from error

    @cached_property
    def _parameters(self) -> list[inspect.Parameter]:
        return list(inspect.signature(self.function).parameters.values())

    @cached_property
    def takes_context(self) -> bool:
        """Whether the first parameter is annotated `Context`."""
        if not self._parameters:
            return False
        annotation = self._hints.get(self._parameters[0].name)
        return getattr(annotation, "__name__", "") == "Context"

    @cached_property
    def takes_argument(self) -> bool:
        """Whether it takes the value of the step before it."""
        return len(self._parameters) > int(self.takes_context)

    @cached_property
    def _argument(self) -> TypeAdapter[Any] | None:
        if not self.takes_argument or self._annotation is Any:
            return None
        return TypeAdapter(self._annotation)

    @cached_property
    def _annotation(self) -> Any:
        return self._hints.get(self._parameters[int(self.takes_context)].name, Any)

    @property
    def argument_type(self) -> Any:
        """Return the argument's annotation, `Any` where there is none, or none that resolves."""
        try:
            return self._annotation if self.takes_argument else Any
        except (DefinitionError, TypeError):
            return Any

    @property
    def result_type(self) -> Any:
        """Return the result's annotation, `Any` as above."""
        try:
            return self._hints.get("return", Any)
        except (DefinitionError, TypeError):
            return Any

    @cached_property
    def result_adapter(self) -> TypeAdapter[Any] | None:
        """Return what checks and writes the result, None where it is not annotated."""
        annotation = self._hints.get("return", Any)
        return None if annotation is Any else TypeAdapter(annotation)

    def decode(self, value: Any, *, outcomes: bool = False) -> Any:
        """Return the argument that JSON *value* stands for; *outcomes*: a list of a fan-in's.

        Raises:
            InvalidArgument: the annotation forbids it; the text names step, place and reason.
        """
        if outcomes and self._annotation in _UNTYPED:
            return [outcome_of(item) for item in value]
        if self._argument is None:
            return value
        try:
            return self._argument.validate_python(value)
        except ValidationError as error:
            hint = "; after each() annotate list[Ok[T] | Err]" if outcomes else ""
            raise InvalidArgument(
                f"step {self.name!r} takes {_summary(error, 'was given')}{hint}"
            ) from None

    def encode_argument(self, value: Any) -> bytes:
        """Return a caller's argument as JSON, checked against the annotation.

        Raises:
            InvalidArgument: the annotation forbids it, or JSON has no form for it.
        """
        try:
            return _written(self._argument, value)
        except InvalidArgument as error:
            raise InvalidArgument(f"step {self.name!r} was given: {error}") from None
        except (ValidationError, PydanticSerializationError) as error:
            raise InvalidArgument(
                f"step {self.name!r} takes {_summary(error, 'was given')}"
            ) from None

    def encode(self, value: Any) -> bytes:
        """Return the step's result as JSON, checked against the annotation.

        Raises:
            InvalidResult: the annotation forbids it, or JSON has no form for it.
        """
        try:
            return _written(self.result_adapter, value)
        except (ValidationError, PydanticSerializationError, InvalidArgument) as error:
            if inspect.iscoroutine(value):
                value.close()  # else Python warns once more that it was never awaited
                raise InvalidResult(
                    f"step {self.name!r} returned a coroutine: did you forget await?"
                ) from None
            if not isinstance(error, ValidationError):
                raise InvalidResult(f"step {self.name!r} returned: {error}") from None
            raise InvalidResult(
                f"step {self.name!r} returns {_summary(error, 'returned')}"
            ) from None

    def arguments(self, context: Context, args: Sequence[Any]) -> list[Any]:
        """Return what the function is called with; *args* are the message's, resolved."""
        result: list[Any] = [context] if self.takes_context else []
        if self.takes_argument:
            value = args[0] if args else None
            result.append(self.decode(value, outcomes=isinstance(value, Outcomes)))
            result += args[1:]
        return result

    def again(self, error: Exception, retries: int, *, jitter: float) -> timedelta | None:
        """Return after how long an attempt that raised *error* is followed by one more.

        Backoff * 2^retries, spread over half to one and a half of it by *jitter* from 0 to 1. It
        begins behind the `retry_after` of an error that has one: a model server's Retry-After, a
        full queue's. None: that was the last.
        """
        if isinstance(error, RunError | TaskRevokedError) or retries >= self.retries:
            return None
        pause = min(self.backoff * 2**retries, _LONGEST_BACKOFF)
        spread: timedelta = pause * (0.5 + jitter)
        asked = getattr(error, "retry_after", None)
        return spread + asked if isinstance(asked, timedelta) else spread

    def plain(self, value: Any) -> Any:
        """Return the step's result as JSON values, checked; for Celery's own tracer."""
        return orjson.loads(self.encode(value))


def _written(adapter: TypeAdapter[Any] | None, value: Any) -> bytes:
    """Return *value* as JSON, checked by *adapter* where there is one."""
    if adapter is None:
        return serializer.dumps(value)
    checked = adapter.validate_python(value)
    data = adapter.dump_json(checked)
    # What a number that is not finite is written as, by default or by the model's own choice.
    if checked is None:
        return data
    if b"null" in data or b"NaN" in data or b"Infinity" in data:
        serializer.refuse_lost(adapter.dump_python(checked, mode="json"), data)
    return data


def _summary(error: Exception, verb: str) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    place = "".join(f"{part}." for part in first["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    shown = repr(first["input"])
    shown = shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 3]}..."
    at = f"{place[:-1]}: " if place else ""
    return f"{error.title}: {at}{first['msg']}, {verb} {shown}{more}"


def kind_of(function: Callable[..., Any], kind: str | None) -> Kind:
    """Return how *function* runs: what the declaration says, else what it is.

    Raises:
        DefinitionError: the kind is unknown or does not fit the function.
    """
    is_async = inspect.iscoroutinefunction(function)
    if kind not in (None, "async", "thread", "cpu"):
        raise DefinitionError(f"step {function.__name__!r}: kind {kind!r} is not thread or cpu")
    if is_async and kind in ("thread", "cpu"):
        raise DefinitionError(
            f'step {function.__name__!r} is async: kind="{kind}" needs a plain def'
        )
    if kind == "cpu" and asks_for_context(function):
        raise DefinitionError(
            f'step {function.__name__!r}: kind="cpu" runs in another process, where there is no '
            'Context: drop that parameter, or use kind="thread"'
        )
    if not is_async and kind == "async":
        raise DefinitionError(f"step {function.__name__!r} is a plain def: it can not be async")
    return "async" if is_async else kind or "thread"  # type: ignore[return-value]


def members_of(result: Any, of: str | None, step: str) -> list[Any]:
    """Return what a fan-out runs over: the result itself, or its attribute or key *of*.

    Raises:
        InvalidResult: there is no such list in the result.
    """
    items = result
    if of is not None:
        if isinstance(result, dict):
            items = result.get(of)
        elif isinstance(result, BaseModel) or hasattr(result, of):
            items = getattr(result, of, None)
        else:
            items = None
    if not isinstance(items, list | tuple):
        where = f"its {of!r}" if of else "its result"
        raise InvalidResult(
            f"step {step!r} feeds each(): {where} must be a list, got {type(items).__name__}"
        )
    return list(items)
