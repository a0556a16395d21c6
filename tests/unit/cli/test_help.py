"""What the command line says of itself."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from agentq import __version__
from agentq.cli.main import app

COMMANDS = (
    "demo",
    "up",
    "worker",
    "submit",
    "status",
    "doctor",
    "events",
    "cancel",
    "dashboard",
    "settings",
    "bench",
    "tune",
)
_HEAVY = ("celery", "kombu", "pydantic", "redis", "agentq.settings", "uvloop", "httpx2")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from agentq.cli.main import app\n"
        "app(['--help'], standalone_mode=False)\n"
        "print('loaded', *sys.modules)\n"
        f"for command in {COMMANDS}: app([command, '--help'], standalone_mode=False)\n"
        "print('loaded', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("loaded ")]
    first, then = (set(_HEAVY) & set(line.split()) for line in lines)
    assert first == set()
    assert then <= {"pydantic"}  # newer releases of typer read a command's options with it


def test_help_lists_every_command() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    listed = [
        command for command in COMMANDS if re.search(rf"^\W+{command}\s", shown, re.MULTILINE)
    ]
    assert listed == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_teaches_by_an_example(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"])
    assert shown.exit_code == 0
    assert f"Example: agentq {command}" in re.sub(r"\s+", " ", shown.output)


def test_what_only_up_and_demo_use_is_not_shown() -> None:
    shown = CliRunner().invoke(app, ["worker", "--help"]).output
    assert "--parent" not in shown
    assert "--announce" not in shown


def test_the_version_is_told() -> None:
    told = CliRunner().invoke(app, ["--version"])
    assert (told.exit_code, told.output) == (0, f"agentq {__version__}\n")
