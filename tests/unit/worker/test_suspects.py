"""How a child process finds the app."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from agentq import AgentQ
from agentq.worker.suspects import place_of


@pytest.mark.parametrize("given", ["aq", "celery"])
def test_an_app_is_found_where_a_module_has_it_or_its_celery_app(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    app = AgentQ("here")
    module = ModuleType("some_users_module")
    module.anything = app if given == "aq" else app.celery  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert place_of(app) == ("some_users_module", "anything")


def test_an_app_that_no_module_has_can_not_be_found() -> None:
    assert place_of(AgentQ("in a function")) is None


def test_the_main_module_has_another_name_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    app = AgentQ("main")
    monkeypatch.setattr(sys.modules["__main__"], "aq", app, raising=False)
    assert place_of(app) == ("__mp_main__", "aq")
