"""What some work needs, by the figures that were measured."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from agentq.cli.main import app
from agentq.host import measured
from agentq.ops.sizing import Workload, judge, size
from tests.unit.host.machines import GB, written

FIELD = Workload(runs=500, steps_per_day=1_000_000, model_time=timedelta(seconds=3))


def test_a_million_steps_a_day_need_what_little_and_the_measured_shares_say() -> None:
    needed = size(FIELD)
    rate = 1_000_000 / 86_400 * 3
    assert needed.steps_per_second == pytest.approx(rate)
    assert needed.model_slots == 105  # 34.7 a second x 3 s
    assert needed.worker_cores == pytest.approx(rate * (measured.STEP_CPU_S + measured.CALL_CPU_S))
    assert needed.cores_per_model_slot == pytest.approx(needed.worker_cores / 105)
    assert (needed.critical, needed.shared, needed.cores) == (1, 1, 2)
    assert needed.worker_bytes == 2 * measured.WORKER_BYTES + 500 * 96 * 1024
    # A week of runs of 20 steps, those that run, and as much again for the fork.
    assert needed.broker_bytes == 2 * (7 * 50_000 * 17_000 + 500 * 21_200)


def test_one_machine_is_enough_for_what_the_field_says_it_is(tmp_path: Path) -> None:
    verdict = judge(size(FIELD), written(tmp_path, cores=4, memory=32 * GB))
    assert verdict.enough
    assert verdict.reasons[0] == "yes: cores: 2 needed, 4 here"
    assert verdict.reasons[-1].startswith("the field's rule: below 500 runs at once and 1,000,000")


def test_what_is_too_little_is_named(tmp_path: Path) -> None:
    machine = written(tmp_path, cores=1, memory=8 * GB)
    verdict = judge(size(FIELD), machine)
    assert not verdict.enough
    assert [reason[:10] for reason in verdict.reasons[:3]] == [
        "no: cores:",
        "no: memory",
        "yes: broke",
    ]
    thousandfold = replace(FIELD, steps_per_day=1_000_000_000)
    assert judge(size(thousandfold), machine).reasons[2].startswith("no: broker: 132% of its one")


def test_a_large_fleet_leaves_an_eighth_to_the_system_and_has_a_tenth_critical() -> None:
    needed = size(replace(FIELD, runs=40_000))
    assert (needed.critical, needed.shared) == (4, 36)
    assert needed.cores == 46  # 40 and an eighth


def test_the_command_prints_it_for_people_and_scripts() -> None:
    asked = ["plan", "--runs", "500", "--steps-per-day", "1000000"]
    assert "Is this machine enough?" in CliRunner().invoke(app, asked).stdout
    found = orjson.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert found["needed"]["model_slots"] == 70
    assert isinstance(found["verdict"]["enough"], bool)


_MOST = ["--steps-per-day", str(10**12), "--model-seconds", "86400", "--model-calls", "1000"]


def test_the_command_sizes_what_no_machine_could_do_and_refuses_what_is_no_number() -> None:
    told = CliRunner().invoke(app, ["plan", "--runs", str(10**12), *_MOST, "--json"])
    assert orjson.loads(told.stdout)["verdict"]["enough"] is False
    for wrong in ("--runs=0", "--runs=-1", "--peak=inf", "--model-seconds=inf", "--peak=nan"):
        assert CliRunner().invoke(app, ["plan", "--runs=5", wrong]).exit_code == 2, wrong


def test_the_command_shows_each_core() -> None:
    found = orjson.loads(CliRunner().invoke(app, ["plan", "--load", "--json"]).stdout)
    assert all(0 <= core["busy"] <= 1 for core in found["load"]["cores"])
