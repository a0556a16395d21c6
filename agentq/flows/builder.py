"""`each(...)`: the fan-out of the flow notation."""

from __future__ import annotations

from agentq.broker.sequence import Each, Part, sequence_of
from agentq.errors import DefinitionError


def each(
    part: Part, *, of: str | None = None, at_once: int | None = None, join: str = "all"
) -> Each:
    """Run *part* for each item of the result before it, side by side; the next step sees all.

    Args:
        part: a step, or steps joined by ``>>``; it may fan out again.
        of: attribute (or key) of the result that holds the items; None: the result is the list.
        at_once: members queued or running at the same time; None: ``runs.at_once``.
        join: ``"all"``: the next step gets one `Ok` or `Err` for each item, in order.

    Raises:
        DefinitionError: *part* is no step, *at_once* is not positive, or *join* is unknown.
    """
    if at_once is not None and at_once < 1:
        raise DefinitionError(f"each(at_once={at_once}): at least one member must be under way")
    if join != "all":
        raise DefinitionError(f'each(join={join!r}): only join="all" exists')
    return Each(sequence_of(part), of, at_once, "all")
