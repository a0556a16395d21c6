"""What a shell's AGENTQ_ variables do to what is installed, by the command itself; and what is said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentq.cli.main import app
from agentq.ops.deploy import deployment
from agentq.ops.deploy.deployment import Given
from agentq.ops.deploy.machine import Machine
from agentq.ops.deploy.shell import differences, taken
from tests.unit.ops.deploy.plans import plan_of, planned
from tests.unit.ops.deploy.test_deployment import site

WORKER, ADMIN = (f"agentq://agentq-{who}:hunter-{who}@127.0.0.1:7/0" for who in ("worker", "admin"))


def test_the_admins_url_in_a_shell_does_not_become_the_workers_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, root = site(tmp_path, {}), tmp_path / "root"
    monkeypatch.setattr(deployment, "_HIDDEN", ())
    # What the app says is not the question here, and asking takes seconds.
    monkeypatch.setattr(deployment, "with_code", lambda _, given, **__: given)
    monkeypatch.setattr(deployment, "plan_at", lambda *_: plan_of(planned("shared", (0,))))
    for name in [name for name in os.environ if name.startswith("AGENTQ_")]:
        monkeypatch.delenv(name)

    def install(*words: str, **environ: str) -> str:
        where = ["-A", shop.app, "--folder", str(tmp_path), "--root", str(root)]
        done = CliRunner().invoke(app, ["deploy", "install", *where, *words], env=environ)
        assert done.exit_code == 0, done.output
        assert "hunter" not in done.output
        return done.stdout

    first = {"AGENTQ_ENV": "production", "AGENTQ_BROKER__URL": WORKER}
    assert "note: left" not in install(**first)
    kept = Machine(root=root).given()
    install()
    assert Machine(root=root).given() == kept
    said = install(AGENTQ_BROKER__URL=ADMIN, AGENTQ_ENV="test")
    assert "left as installed, this shell has another: AGENTQ_ENV: production -> test (--" in said
    assert "agentq://agentq-worker:***@127.0.0.1:7/0 -> agentq://agentq-admin:***@127.0.0." in said
    assert Machine(root=root).given() == kept
    said = install("--from-shell", AGENTQ_BROKER__URL=ADMIN)
    assert "note: changed: AGENTQ_BROKER__URL: agentq://agentq-worker:***@127.0.0.1:7/0 -> " in said
    now = Machine(root=root).given()
    assert now.secret == {"broker.url": ADMIN}
    assert now.plain == {"AGENTQ_ENV": "production"}


def test_another_password_is_said_and_not_shown_and_an_empty_one_takes_it_out() -> None:
    was = Given(plain={}, secret={"broker.url": WORKER, "model.api_key": "sk-hunter"})
    now = Given(
        plain={}, secret={"broker.url": WORKER.replace("er-w", "er-x"), "model.api_key": ""}
    )
    assert differences(was, now) == [
        "AGENTQ_BROKER__URL: another password", "AGENTQ_MODEL__API_KEY: *** -> nothing",
    ]  # fmt: skip
    assert taken(was, now).secret == {"broker.url": now.secret["broker.url"]}
