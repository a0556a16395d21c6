"""The installed Celery and kombu still have what we use of their insides."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import pytest
from celery import Celery

from agentq.broker.private_names import NAMES, PrivateName


def resolve(where: str) -> Any:
    module, _, path = where.partition(":")
    found: Any = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.where)
def test_private_name_exists_and_takes_what_we_give_it(name: PrivateName) -> None:
    if name.set_by is not None:
        owner, _, attribute = name.where.rpartition(".")
        source = inspect.getsource(getattr(resolve(owner), name.set_by))
        assert f"self.{attribute} = " in source
        return
    found = resolve(name.where)
    if name.parameters is not None:
        assert tuple(inspect.signature(found).parameters) == name.parameters


def test_autoretry_calls_orig_run() -> None:
    app = Celery("autoretry", set_as_current=False)

    @app.task(autoretry_for=(ValueError,), shared=False)
    def task() -> str:
        return "wrapped"

    task._orig_run = lambda: "ours"  # noqa: SLF001 -- what this test is about
    assert task.run() == "ours"


def test_each_name_says_why() -> None:
    assert [name.where for name in NAMES if not name.why] == []
    assert len({name.where for name in NAMES}) == len(NAMES)
