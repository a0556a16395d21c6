"""What a step's end brings about in its run: next messages, a chord, a counted outcome, the end.

A fan-out becomes a chord on the wire when the step before it completes: each member's message has
Celery's `group`, `group_index` and `chord` as canvas would have put them, so Flower and
`AsyncResult` see an ordinary chord. They are written here and not by `chord(...)`, because canvas
spends over a millisecond a member (290/s measured) where this spends 20 us, and because the join
is opened by the same `complete` that ends the step before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from secrets import token_hex
from typing import Any, NamedTuple, Protocol

import orjson

from agentq.broker import envelope, joins, routing, serializer
from agentq.broker.outbox import Outbox
from agentq.broker.publisher import CHUNK, CHUNK_BYTES
from agentq.broker.step import Step, members_of
from agentq.errors import RunTooLarge
from agentq.flows.graph import EachNode, Frames, Graph, StepNode, join_id, task_id
from agentq.outcome import Err
from agentq.runs.record import REFERS, RunState
from agentq.store import effects
from agentq.store.effects import Message


class Limits(Protocol):
    """The settings `runs` that the compiler keeps to."""

    @property
    def at_once(self) -> int: ...  # noqa: D102 -- see settings
    @property
    def max_members(self) -> int: ...  # noqa: D102
    @property
    def max_bytes(self) -> int: ...  # noqa: D102


class Refers(Protocol):
    """What names a payload that is too large for Redis; see `Blobs.refer`."""

    def refer(self, run: str, data: bytes, *, what: str) -> str: ...  # noqa: D102 -- see there


class Place(NamedTuple):
    """Where in a run a step stands."""

    run: str
    flow: str
    node: int
    frames: Frames
    parent: str | None
    join: str = ""
    """The join whose outcomes this step was given: forgotten when it ends."""

    @classmethod
    def of(cls, ours: Mapping[str, Any], id_: str) -> Place:
        """Return the place that header `aq` names."""
        frames = tuple((join, index) for join, index in ours.get("path", ()))
        return cls(ours["run"], ours["flow"], ours["node"], frames, id_, ours.get("join", ""))


class Compiler:
    """Turns the end of a step into effects."""

    def __init__(
        self,
        *,
        steps: Mapping[str, Step],
        limits: Limits,
        max_payload: int,
        blobs: Refers,
        keep_ms: int,
        join_ttl_ms: int,
    ) -> None:
        """Keep the parts.

        *max_payload*: bytes of one message's body, or of one outcome, beyond which *blobs* has it.
        """
        self._steps = steps
        self._limits = limits
        self._max_payload = max_payload
        self._blobs = blobs
        self._keep_ms = keep_ms
        self._join_ttl_ms = join_ttl_ms

    def first(self, graph: Graph, run: str, argument: bytes, blobs: dict[str, bytes]) -> Message:
        """Return the message that a run begins with; a large argument is added to *blobs*.

        Raises:
            PayloadTooLarge: it is larger than blob storage takes.
        """
        place = Place(run, graph.name, graph.first.id, (), None)
        return self._message(graph.first, place, argument, blobs)

    def ended(self, graph: Graph, place: Place, result: bytes | Err, box: Outbox) -> None:
        """Add to *box* what follows when the step at *place* ended; its blobs are to be written.

        Raises:
            InvalidResult: the step feeds a fan-out, and its result holds no such list.
            RunTooLarge: the fan-out alone has more than `runs.max_members` or `runs.max_bytes`.
            PayloadTooLarge: what goes on from here is larger than blob storage takes.
        """
        if place.join:
            box.effects.append(effects.forget(place.join))
        if isinstance(result, Err):
            self._failed(place, result, box)
            return
        self._succeeded(graph, place, result, box)
        if box.blobs:
            box.effects.append(effects.spend(sum(map(len, box.blobs.values()))))

    def reference_to(self, run: str, result: bytes, blobs: dict[str, bytes]) -> str:
        """Return the reference for the result's own document, where *blobs* went on from it, or "".

        Raises:
            PayloadTooLarge: its members went on, and together they are larger than a blob may be.
        """
        known = next((name for name, data in blobs.items() if data is result), "")
        if known or len(result) <= self._max_payload:
            return known
        return self._stored("the result", run, result, blobs)

    def _succeeded(self, graph: Graph, place: Place, result: bytes, box: Outbox) -> None:
        node = graph.nodes[place.node]
        assert isinstance(node, StepNode)  # noqa: S101 -- only steps have messages
        if node.next is None:
            self._leave(place, result, box)
            return
        following = graph.nodes[node.next]
        if isinstance(following, StepNode):
            box.effects.append(effects.put(self._message(following, place, result, box.blobs)))
        else:
            self._fan_out(graph, following, place, result, box)

    def _leave(self, place: Place, result: bytes, box: Outbox) -> None:
        """End of a member's part, or of the run."""
        large = len(result) > self._max_payload
        reference = self._stored("the result", place.run, result, box.blobs) if large else ""
        if place.frames:
            join, index = place.frames[-1]
            outcome = joins.refers(reference) if large else b'{"value":' + result + b"}"
            box.effects.append(effects.part(join, index, outcome))
        else:
            data = REFERS + reference.encode() if large else result
            box.effects.append(effects.end(place.run, RunState.DONE, data, self._keep_ms))

    def _failed(self, place: Place, error: Err, box: Outbox) -> None:
        wire = serializer.dumps(
            {
                "kind": error.kind,
                "message": error.message,
                "step": error.step,
                "attempts": error.attempts,
            }
        )
        # A plan gone wrong ends the run wherever in it that was.
        if place.frames and error.kind != RunTooLarge.__name__:
            join, index = place.frames[-1]
            box.effects.append(effects.part(join, index, wire))
        else:
            box.effects.append(effects.end(place.run, RunState.FAILED, wire, self._keep_ms))

    def _fan_out(
        self, graph: Graph, node: EachNode, place: Place, result: bytes, box: Outbox
    ) -> None:
        decided = graph.nodes[place.node]
        assert isinstance(decided, StepNode)  # noqa: S101 -- as above
        items = members_of(orjson.loads(result), node.of, decided.step)
        width = len(items)
        if width > (most := graph.max_members or self._limits.max_members):
            raise RunTooLarge(
                f"step {decided.step!r} asks for {width} members; "
                f"{_limit(graph, 'max_members', most)}: split the work over several runs or "
                "raise it"
            )
        join = join_id(place.run, node.id, place.frames)
        body_node, first = graph.nodes[node.next], graph.nodes[node.first]
        assert isinstance(body_node, StepNode)  # noqa: S101 -- `graph_of` puts steps there
        assert isinstance(first, StepNode)  # noqa: S101
        reference = orjson.dumps(joins.reference(join, nested=False))
        body = self._message(body_node, place, reference, box.blobs, join=join)
        chord = orjson.dumps({"task": body_node.step, "options": {"task_id": body.id}})
        members = [
            self._member(first, place, (join, index), orjson.dumps(item), chord, box.blobs)
            for index, item in enumerate(items)
        ]
        at_once = min(node.at_once or self._limits.at_once, CHUNK)
        group = ""
        size = sum(len(m.headers) + len(m.body) for m in members)
        whole = size + sum(map(len, box.blobs.values()))
        if whole > (most := graph.max_bytes or self._limits.max_bytes):
            raise RunTooLarge(
                f"step {decided.step!r} asks for {width} members of {whole} bytes; "
                f"{_limit(graph, 'max_bytes', most)}: pass references (a path, a key) instead or "
                "raise it"
            )
        if width > CHUNK or size > CHUNK_BYTES:
            # Of this attempt alone: one that died while it staged may have decided otherwise.
            group = f"{join}@{token_hex(4)}"
            box.staged[group] = members
        box.effects.append(
            effects.join(
                join,
                width=width,
                at_once=at_once,
                ttl_ms=self._join_ttl_ms,
                run=place.run,
                body=[body],
                members=group or members,
                staged_bytes=size,
            )
        )
        fan_out = {"step": first.step, "width": width, "at_once": at_once}
        box.effects.append(effects.event(place.run, "fanout", serializer.dumps(fan_out)))

    def _message(
        self,
        node: StepNode,
        place: Place,
        argument: bytes,
        blobs: dict[str, bytes],
        *,
        join: str = "",
    ) -> Message:
        """Return the message of *node*, one level with *place*."""
        step = self._steps[node.step]
        id_ = task_id(place.run, node.id, place.frames)
        ours = self._ours(place, node, place.frames)
        if join:
            ours["join"] = join
        headers = envelope.step_headers(
            step.name, id_, ours=ours, parent=place.parent, root=task_id(place.run, 0, ())
        )
        if place.frames:
            headers["group"], headers["group_index"] = place.frames[-1]
        body = self._body(headers, argument, blobs)
        return self._wire(step, id_, place.run, place.frames, headers, body)

    def _member(
        self,
        node: StepNode,
        place: Place,
        frame: tuple[str, int],
        argument: bytes,
        chord: bytes,
        blobs: dict[str, bytes],
    ) -> Message:
        """Return the message of one member of a fan-out."""
        step = self._steps[node.step]
        frames = (*place.frames, frame)
        id_ = task_id(place.run, node.id, frames)
        headers = envelope.step_headers(
            step.name,
            id_,
            ours=self._ours(place, node, frames),
            parent=place.parent,
            root=task_id(place.run, 0, ()),
        )
        headers["group"], headers["group_index"] = frame
        body = self._body(headers, argument, blobs, chord)
        return self._wire(step, id_, place.run, frames, headers, body)

    def _ours(self, place: Place, node: StepNode, frames: Frames) -> dict[str, Any]:
        return {
            "v": envelope.VERSION,
            "run": place.run,
            "flow": place.flow,
            "node": node.id,
            "path": frames,
        }

    def _wire(
        self, step: Step, id_: str, run: str, frames: Frames, headers: dict[str, Any], body: bytes
    ) -> Message:
        properties = envelope.step_properties(id_, step.pool, routing.priority_of(step.lane))
        join = f"{frames[-1][0]}|{frames[-1][1]}" if frames else ""
        return Message(
            step.pool, step.lane, 0, id_, run, join, envelope.pack(headers, properties), body
        )

    def _body(
        self,
        headers: dict[str, Any],
        argument: bytes,
        blobs: dict[str, bytes],
        chord: bytes = b"null",
    ) -> bytes:
        """Return a message's body; a large argument becomes a blob that its header refers to."""
        body = envelope.step_body(argument, chord)
        if len(body) <= self._max_payload:
            return body
        ours, what = headers["aq"], f"what step {headers['task']!r} is given"
        ours["blob"] = self._stored(what, ours["run"], argument, blobs)
        ours["v"] = envelope.WITH_BLOB
        return envelope.step_body(b"null", chord)

    def _stored(self, what: str, run: str, data: bytes, blobs: dict[str, bytes]) -> str:
        reference = self._blobs.refer(run, data, what=what)
        blobs[reference] = data
        return reference


def _limit(graph: Graph, option: str, most: int) -> str:
    """Say whose limit it is: the flow's own, else the setting of that name."""
    own = getattr(graph, option) is not None
    return f"flow {graph.name!r} allows {most} ({option}=)" if own else f"runs.{option} is {most}"
