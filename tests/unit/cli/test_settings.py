"""`agentq settings`."""

from __future__ import annotations

import orjson
import pytest
from typer.testing import CliRunner

from agentq.cli.main import app


def test_settings_as_json_name_value_unit_and_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTQ_WORKER__SLOTS", "50")
    shown = CliRunner().invoke(app, ["settings", "worker.slots", "--json"])
    one, *_ = orjson.loads(shown.stdout)  # and those whose name begins so
    assert (one["key"], one["value"], one["unit"], one["source"]) == (
        "worker.slots", 50, "steps", "AGENTQ_WORKER__SLOTS",
    )  # fmt: skip


def test_settings_never_show_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTQ_MODEL__API_KEY", "sk-hidden")
    monkeypatch.setenv("AGENTQ_BROKER__URL", "agentq://:hidden@127.0.0.1:6379/0")
    shown = CliRunner().invoke(app, ["settings"], env={"COLUMNS": "300"})
    assert shown.exit_code == 0
    assert "hidden" not in shown.stdout
    assert "agentq://:***@127.0.0.1:6379/0" in shown.stdout
