"""Every cache and every registry has a bound: what only ever grows is found, or stands here.

Looked for in the source, since a leak shows only after days: a cache without a size on a function
that takes arguments; a container of a module, a class or an instance that something adds to and
nothing takes from. That something takes away is no proof of a bound: `test_leaks` runs work.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

import agentq

ROOT = Path(agentq.__file__).parent

_DECLARED = "as many as the app declares, at import"
_QUEUES = "one for each queue that is consumed from"
_CELLS = "one for each cell that this process is told of"
_SHORT = "lives as long as one command, call or measurement"
_WEAK = "weak: whose objects are gone leave it"
BOUNDED = {
    "agentq.broker.app:App.batches": _DECLARED,
    "agentq.broker.app:App.steps": _DECLARED,
    "agentq.broker.app:App.warmers": _DECLARED,
    "agentq.broker.channel:Channel._turns": _QUEUES,
    "agentq.broker.channel:Channel._unacked": _QUEUES,
    "agentq.broker.lease_keeper:LeaseKeeper._holders": _WEAK,
    "agentq.broker.lease_keeper:LeaseKeeper.pools": _QUEUES,
    "agentq.broker.lease_keeper:_keepers": _CELLS,
    "agentq.broker.publisher:Publisher._retries": _SHORT,
    "agentq.flows.app:AgentQ.flows": _DECLARED,
    "agentq.inference.reply:ReplyBuilder._texts": _SHORT,
    "agentq.inference.server.minilm:_Encoder.constants": "the model's own",
    "agentq.inference.server.minilm:_Encoder.nodes": "the model's own",
    "agentq.ops.bench.timing:Timing._found": _SHORT,
    "agentq.ops.tune.climb:_Climb.made": _SHORT,
    "agentq.ops.tune.record:Record._samples": _SHORT,
    "agentq.ops.up:Up.environment": "a handful of names",
    "agentq.ops.why:_Search._joins": _SHORT,
    "agentq.store.failover:Watch._links": _WEAK,
    "agentq.store.failover:_watches": _CELLS,
    "agentq.store.skew:_warned": _CELLS,
    "agentq.worker.outcomes:Outcomes._names": "MOST_NAMES of them",
    "agentq.worker.pump:Pump._turns": _QUEUES,
}
"""What only grows, and why it ends."""

_MAKERS = {"dict", "list", "set", "deque", "defaultdict", "OrderedDict", "Counter", "WeakSet"}
_GROWS = {"add", "append", "appendleft", "extend", "extendleft", "insert", "setdefault", "update"}
_SHRINKS = {"pop", "popleft", "popitem", "discard", "remove", "clear", "difference_update"}


@dataclass
class Uses:
    """What happens to the containers of one module or class, by name."""

    made: set[str] = field(default_factory=set)
    grown: set[str] = field(default_factory=set)
    shrunk: set[str] = field(default_factory=set)

    def only_grown(self) -> set[str]:
        return self.made & self.grown - self.shrunk


def is_container(value: ast.expr | None) -> bool:
    """Whether *value* makes a container that can grow, and has no length of its own."""
    if isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp):
        return True
    if not isinstance(value, ast.Call):
        return False
    return name_of(value.func).rpartition(".")[2] in _MAKERS and not any(
        keyword.arg == "maxlen" for keyword in value.keywords
    )


def name_of(node: ast.expr) -> str:
    """Return a dotted name, "" for what is none."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            return f"{name_of(value)}.{attribute}"
        case ast.Subscript(value=value):
            return name_of(value)
        case _:
            return ""


def targets_of(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Assign(targets=targets):
            flat = [t.elts if isinstance(t, ast.Tuple | ast.List) else [t] for t in targets]
            return [target for some in flat for target in some]
        case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
            return [target]
        case _:
            return []


def note(uses: Uses, node: ast.AST, *, beginning: bool) -> None:
    """Note what *node* does; at the *beginning* a container is made, later it is replaced."""
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr=method)) if method in _GROWS:
            if not beginning:
                uses.grown.add(name_of(value))
        case ast.Attribute(value=value, attr=method) if method in _SHRINKS:  # also as a callback
            uses.shrunk.add(name_of(value))
        case ast.Delete(targets=targets):
            uses.shrunk |= {name_of(target) for target in targets}
    for target in targets_of(node):
        if not beginning:
            adds = isinstance(target, ast.Subscript) or is_added_to(node)
            (uses.grown if adds else uses.shrunk).add(name_of(target))
        elif is_container(getattr(node, "value", None)):
            uses.made.add(name_of(target))


def is_added_to(node: ast.AST) -> bool:
    return isinstance(node, ast.AugAssign) and isinstance(node.op, ast.BitOr | ast.Add)


def uses_of_module(tree: ast.Module) -> Uses:
    uses = Uses()
    for node in tree.body:
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for part in ast.walk(node) if inside else [node]:
            note(uses, part, beginning=not inside)
    return uses


def uses_of_class(node: ast.ClassDef) -> Uses:
    uses = Uses()
    for member in node.body:
        begins = isinstance(member, ast.FunctionDef) and member.name == "__init__"
        for part in ast.walk(member):
            note(uses, part, beginning=begins)
    uses.made = {name for name in uses.made if name.startswith("self.")}
    return uses


def unbounded(path: Path) -> Iterator[str]:
    """Yield module:name of what only grows in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
    for name in uses_of_module(tree).only_grown():
        yield f"{module}:{name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for name in uses_of_class(node).only_grown():
                yield f"{module}:{node.name}.{name.removeprefix('self.')}"
        if is_endless(node):
            yield f"{module}:{node.name}"


def is_endless(node: ast.AST) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Whether *node* is a function with arguments whose every answer is kept."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    takes = node.args
    arguments = [*takes.args, *takes.posonlyargs, *takes.kwonlyargs, takes.vararg, takes.kwarg]
    return any(arguments) and any(map(is_endless_cache, node.decorator_list))


def is_endless_cache(decorator: ast.expr) -> bool:
    if name_of(decorator).rpartition(".")[2] == "cache":
        return True
    if isinstance(decorator, ast.Call) and name_of(decorator.func).endswith("lru_cache"):
        sizes = [*decorator.args, *(k.value for k in decorator.keywords if k.arg == "maxsize")]
        return any(isinstance(size, ast.Constant) and size.value is None for size in sizes)
    return False


def test_nothing_only_grows_but_what_has_a_reason() -> None:
    found = {name for path in sorted(ROOT.rglob("*.py")) for name in unbounded(path)}
    assert sorted(found - set(BOUNDED)) == [], "give it a size or an age, or a reason in BOUNDED"
    assert sorted(set(BOUNDED) - found) == [], "gone: take it off the list"


_LEAKS = """
import functools
from collections import deque
seen = {}
few = deque(maxlen=3)
@functools.cache
def one(x): ...
@functools.cache
def none(): ...
@functools.lru_cache(maxsize=None)
def two(x): ...
@functools.lru_cache(maxsize=9)
def three(x): ...
def f(x):
    seen[x] = 1
    few.append(x)
class C:
    def __init__(self):
        self.a, self.b, self.c = [], {}, set()
        self.d = []
        self.e = deque()
        self.e.append(0)
    def g(self, x):
        self.d.append(x)
        self.e.append(x)
        self.e.popleft()
class D:
    def __init__(self):
        self.h: dict[int, int] = {}
        self.i = set()
        self.j = []
    def k(self, x):
        self.h[x] = x
        self.i |= {x}
        self.j += [x]
        self.j = []
"""


def test_what_only_grows_is_found() -> None:
    tree = ast.parse(_LEAKS)
    assert uses_of_module(tree).only_grown() == {"seen"}
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    assert uses_of_class(classes[0]).only_grown() == {"self.d"}
    assert uses_of_class(classes[1]).only_grown() == {"self.h", "self.i"}
    assert [node.name for node in tree.body if is_endless(node)] == ["one", "two"]
