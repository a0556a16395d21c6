"""`deploy/prometheus/agentq.rules.yml`: what it asks for is told, and each rule fires for its fault."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from agentq.cli.main import app as command_line
from agentq.ops.metrics import page
from tests.support.ledger import Ledger
from tests.support.running import running
from tests.support.scraping import Scrape
from tests.support.worker_process import ROOT

RULES = ROOT / "deploy/prometheus/agentq.rules.yml"
CASES = ROOT / "tests/support/alert_cases.yml"
PROMTOOL = shutil.which("promtool")


def rules() -> list[dict[str, str]]:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def test_every_metric_that_a_rule_names_is_scraped(url: str, ledger: Ledger) -> None:
    with running("tests.support.apps.both", url, ledger) as app:
        told = Scrape.of(page(app.app.aq).decode()).names
    for rule in rules():
        named = set(re.findall(r"agentq_\w+", rule["expr"]))
        assert named
        assert named <= told, (rule["alert"], named - told)


def test_every_rule_says_what_to_do_with_commands_that_there_are() -> None:
    for rule in rules():
        told = rule["annotations"]
        runbook = told["runbook"]  # type: ignore[index]
        named = re.findall(r"agentq ([a-z]+)(?: (list|show|replay|init|tenant)\b)?", runbook)
        assert named, runbook
        for command in named:
            words = [word for word in command if word and word != "tenant"]
            shown = CliRunner().invoke(command_line, [*words, "--help"])
            assert shown.exit_code == 0, words


@pytest.mark.skipif(not PROMTOOL, reason="promtool is not installed (apt install prometheus)")
def test_each_rule_fires_for_its_fault_and_not_without(tmp_path: Path) -> None:
    assert PROMTOOL
    for name in (RULES, CASES):
        (tmp_path / name.name).write_text(name.read_text())
    for arguments in (("check", "rules", RULES.name), ("test", "rules", CASES.name)):
        done = subprocess.run(
            [PROMTOOL, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
