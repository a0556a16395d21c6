"""Makes the recordings of today's code, and compares them with what was recorded."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any
from zlib import crc32

from agentq.broker import envelope
from agentq.store import library
from tests.contract.wire import blob_scenes  # noqa: F401 -- adds its scenes
from tests.contract.wire.frozen import fixed, freeze
from tests.contract.wire.scenes import SCENES
from tests.contract.wire.values import written
from tests.contract.wire.world import World
from tests.support.ledger import Ledger
from tests.support.redis_server import private_server
from tests.support.running import running

FOLDER = Path(__file__).parent
APP = "tests.contract.wire.app"
VALUES = f"values.{envelope.VERSION}.json"
CELL = f"cell.{library.LIBRARY}.{envelope.VERSION}.json"
CALLS = f"calls.{library.LIBRARY}.{library.REVISION}.json"
FUNCTIONS = f"functions.{library.LIBRARY}.{library.REVISION}.lua"
FILES = (VALUES, CELL, CALLS, FUNCTIONS)
BEFORE = library.REVISION - 1
"""The functions of the build before."""


class Refused(Exception):  # noqa: N818 -- by situation
    """A recording would change; the text says which and what to do."""


def made() -> dict[str, Any]:
    """Return file name -> what today's code writes; takes two seconds."""
    calls: dict[str, Any] = {}
    cells: dict[str, Any] = {}
    with (
        private_server() as server,
        tempfile.TemporaryDirectory() as folder,
        running(
            APP, server.url, Ledger(Path(folder) / "ledger"), BLOBS__DIRECTORY=f"{folder}/blobs"
        ) as producer,
    ):
        freeze(server.client)
        for name, scene in SCENES.items():
            with fixed(producer.app.app, crc32(name.encode()) * 1000):
                world = World(server.url, name, producer.app)
                scene(world)
                cells[name] = world.rest()
                calls[name] = world.store.noted
                world.store.close()
        values = written(producer.app)
    return {VALUES: values, CELL: cells, CALLS: calls, FUNCTIONS: library.source()}


def path_of(file: str) -> Path | None:
    """Return where *file* is recorded, None where it is new.

    A revision that changes no call has no calls of its own: those of an older one are its.
    """
    if file.startswith("calls"):
        _, name, revision, _ = file.split(".")
        found = [n for n in _revisions(f"calls.{name}.*.json") if n <= int(revision)]
        file = f"calls.{name}.{max(found, default=revision)}.json"
    path = FOLDER / file
    return path if path.exists() else None


def recorded(file: str) -> Any:
    """Return what was recorded in *file*, nothing where it is new."""
    path = path_of(file)
    text = path.read_text(encoding="utf-8") if path else ""
    return text if file.endswith(".lua") else json.loads(text or "{}")


def differences(file: str, new: Any) -> list[str]:
    """Return what of a recording is another now; what is only new is no difference."""
    old = recorded(file)
    if isinstance(new, str):
        return [file] if old and old != new else []
    return [f"{file}: {name}" for name in old if old[name] != new.get(name)]


def record(new: dict[str, Any]) -> list[str]:
    """Write what is new; return the files that were written.

    Raises:
        Refused: something that was recorded under this version is another now.
    """
    own = [file for file in new if file != CALLS or (FOLDER / CALLS).exists()]
    changed = [one for file in own for one in differences(file, new[file])]
    if changed:
        raise Refused(
            "changed under a version that is recorded: " + ", ".join(changed) + "; raise "
            "broker.envelope.VERSION (messages, records, results), store.library.REVISION (a "
            "function, with the data as it is) or store.library.LIBRARY (the data in Redis)"
        )
    written_ = [file for file in new if recorded(file) != new[file]]
    for file in written_:
        content = new[file]
        text = content if isinstance(content, str) else _json(content)
        (FOLDER / file).write_text(text, encoding="utf-8")
    _drop_old()
    return written_


def _drop_old() -> None:
    """Drop the functions, and their calls, of builds before the one before."""
    for kind in ("functions.{}.*.lua", "calls.{}.*.json"):
        pattern = kind.format(library.LIBRARY)
        revisions = _revisions(pattern)
        oldest = max((n for n in revisions if n <= BEFORE), default=BEFORE)
        for revision in revisions:
            if revision < oldest:
                (FOLDER / pattern.replace("*", str(revision))).unlink()


def _revisions(pattern: str) -> list[int]:
    return [int(path.name.split(".")[2]) for path in FOLDER.glob(pattern)]


def _json(content: dict[str, Any]) -> str:
    """Return it with a line for each key, call or value."""
    lines = []
    for name, part in content.items():
        if isinstance(part, dict):
            inner = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in part.items()]
            body = "{\n" + ",\n".join(inner) + "\n }"
        elif isinstance(part, list):
            body = "[\n" + ",\n".join(f"  {json.dumps(one)}" for one in part) + "\n ]"
        else:
            body = json.dumps(part)
        lines.append(f" {json.dumps(name)}: {body}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
