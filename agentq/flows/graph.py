"""A flow as nodes that point to the next, and what follows when one of them ends. Pure.

Nodes are numbered in the order they were written. A `StepNode` runs a step. An `EachNode` runs
nothing: it stands for the join between the step that decides the fan-out and the step that gets
the outcomes. Where a member's part ends, `next` is None and the member's frame says which join
counts it.

    plan >> each(search >> read, of="tasks") >> review

    0 step plan   -> 1
    1 each tasks: first 2, next 4
    2 step search -> 3
    3 step read   -> (join)
    4 step review -> (end)
"""

from __future__ import annotations

from dataclasses import dataclass

from agentq.broker.sequence import Each, Sequence
from agentq.errors import DefinitionError

COLLECT = "agentq.collect"
"""The step behind an `each()` that ends a flow or a member's part: it returns the outcomes."""

Frames = tuple[tuple[str, int], ...]
"""The joins that a step's outcome is on its way to, innermost last: (join id, index)."""


@dataclass(frozen=True, slots=True)
class StepNode:
    """Runs one step."""

    id: int
    step: str
    next: int | None


@dataclass(frozen=True, slots=True)
class EachNode:
    """Fans out over the result of the step before it."""

    id: int
    of: str | None
    at_once: int | None
    first: int
    next: int


Node = StepNode | EachNode


@dataclass(frozen=True, slots=True)
class Graph:
    """One flow."""

    name: str
    nodes: tuple[Node, ...]
    max_members: int | None = None
    """Budget of a run of this flow; None: ``runs.max_members``."""
    max_bytes: int | None = None

    @property
    def first(self) -> StepNode:
        """Return the step that a run begins with."""
        node = self.nodes[0]
        assert isinstance(node, StepNode)  # noqa: S101 -- `graph_of` refuses others
        return node

    def runs(self, node: int, step: str) -> bool:
        """Whether *node* of this flow runs *step*: a worker of another version may differ."""
        if not 0 <= node < len(self.nodes):
            return False
        found = self.nodes[node]
        return isinstance(found, StepNode) and found.step == step

    def steps(self) -> list[str]:
        """Return the names of the steps, in order."""
        return [node.step for node in self.nodes if isinstance(node, StepNode)]


def graph_of(name: str, sequence: Sequence) -> Graph:
    """Return the graph of what was written.

    Raises:
        DefinitionError: it begins with a fan-out (nothing decides over what), or is empty.
    """
    if not sequence.parts or isinstance(sequence.parts[0], Each):
        raise DefinitionError(
            f"flow {name!r} must begin with a step: each() fans out over the result before it"
        )
    nodes: list[Node | None] = []
    _lay(name, sequence, nodes)
    return Graph(name, tuple(node for node in nodes if node is not None))


def _lay(name: str, sequence: Sequence, nodes: list[Node | None]) -> int:
    """Append the nodes of *sequence*, the last one pointing nowhere; return the first's number."""
    first = len(nodes)
    parts = sequence.parts
    for place, part in enumerate(parts):
        last = place == len(parts) - 1
        number = len(nodes)
        nodes.append(None)
        if isinstance(part, Each):
            if place == 0:
                raise DefinitionError(
                    f"flow {name!r}: each(each(...)) needs a step between: "
                    "the inner one fans out over that step's result"
                )
            inner = _lay(name, part.part, nodes)
            if last:
                nodes.append(StepNode(len(nodes), COLLECT, None))
                follower = len(nodes) - 1
            else:
                follower = len(nodes)
            nodes[number] = EachNode(number, part.of, part.at_once, inner, follower)
        else:
            nodes[number] = StepNode(number, part.name, None if last else number + 1)
    return first


def task_id(run: str, node: int, frames: Frames) -> str:
    """Return the id of a node's task in a run: the same at each attempt and after a crash."""
    return f"{run}:{node}" + "".join(f".{index}" for _, index in frames)


def join_id(run: str, node: int, frames: Frames) -> str:
    """Return the id of a fan-out's join, which is its Celery group id."""
    return f"{run}:j{node}" + "".join(f".{index}" for _, index in frames)
