"""What the tests of `agentq doctor` share: facts of a server, and workers that say what is wanted."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import replace

import orjson

from agentq.broker.build import build
from agentq.ops.doctor.facts import Facts, read_facts
from agentq.ops.doctor.finding import Finding
from agentq.settings import Settings, load_settings
from agentq.store import calls
from tests.support.cell import Cell

HOST = socket.gethostname()


def settings(env: str = "production", **overrides: object) -> Settings:
    named = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_settings(env=env, overrides=named, environ={})


def facts(cell: Cell, **overrides: object) -> Facts:
    named = {"broker__url": str(cell.store.address), **overrides}
    return read_facts(cell.store, settings(**named))  # type: ignore[arg-type]  # env is a str


def told(found: Facts, **info: object) -> Facts:
    """Return facts as a server would give them that says this of itself."""
    return replace(found, info={**found.info, **{key: str(value) for key, value in info.items()}})


def names(findings: Iterable[Finding]) -> list[str]:
    return [f"{one.severity} {one.subject}" for one in findings]


def reporting(cell: Cell, name: str, **report: object) -> None:
    """Take a lease for a worker that says this of itself."""
    said = {"pools": ["shared"], "pid": 1, "host": HOST, "build": build(), **report}
    call = calls.renew(
        cell.prefix,
        f"{name}#1",
        60_000,
        first=True,
        report=orjson.dumps({"hostname": name, **said}),
    )
    cell.store.call(call)
