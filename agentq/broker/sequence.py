"""The notation of flows: `plan >> each(execute, of="tasks") >> review`.

Only what was written, in order; `flows.graph` gives it meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from agentq.errors import DefinitionError

if TYPE_CHECKING:
    from agentq.broker.task import Task


@dataclass(frozen=True)
class Each:
    """One fan-out: *part* runs for each item."""

    part: Sequence
    of: str | None
    at_once: int | None
    join: Literal["all"]

    def __rshift__(self, other: Part) -> Sequence:
        """Return this fan-out, followed by *other*."""
        return Sequence((self,)) >> other


@dataclass(frozen=True)
class Sequence:
    """Parts that follow each other."""

    parts: tuple[Task | Each, ...]

    def __rshift__(self, other: Part) -> Sequence:
        """Return these parts, followed by *other*.

        Raises:
            DefinitionError: *other* is neither a step nor an `each(...)`.
        """
        return Sequence((*self.parts, *sequence_of(other).parts))


Part: TypeAlias = "Task | Each | Sequence"


def sequence_of(part: object) -> Sequence:
    """Return *part* as a sequence.

    Raises:
        DefinitionError: it is neither a step, an `each(...)` nor a sequence of them.
    """
    if isinstance(part, Sequence):
        return part
    if isinstance(part, Each) or getattr(part, "step", None) is not None:
        return Sequence((part,))  # type: ignore[arg-type]
    name = getattr(part, "__name__", None) or repr(part)
    if hasattr(part, "apply_async") and hasattr(part, "signature"):
        raise DefinitionError(
            f"{name} is a Celery task and no step: declare it with @aq.step instead of "
            "@app.task before it joins a flow"
        )
    raise DefinitionError(f"{name} is no step: declare it with @aq.step before it joins a flow")
