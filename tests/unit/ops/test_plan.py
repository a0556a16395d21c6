"""From settings to a plan, and the plan as other launchers want it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentq.cli.main import app
from agentq.host.machine import Machine, read_machine
from agentq.host.plan import Plan, Process, read_plan
from agentq.ops.plan import Launcher, command_of, plan_of
from agentq.settings import Settings, load_settings
from tests.unit.host.machines import write_host, write_node, written


def settings(**overrides: object) -> Settings:
    dotted = {name.replace("__", "."): value for name, value in overrides.items()}
    return load_settings(environ={}, overrides=dotted)


def on_two_nodes(tmp_path: Path, found: Settings, *, cpu_steps: bool = False) -> Plan:
    return plan_of(found, cpu_steps=cpu_steps, machine=written(tmp_path, nodes=2, cores=2))


def test_without_cpu_steps_no_processes_are_planned_for_them(tmp_path: Path) -> None:
    without = on_two_nodes(tmp_path, settings())
    assert [one.children for one in without.processes] == [(), ()]
    planned = on_two_nodes(tmp_path, settings(), cpu_steps=True)
    assert [one.children for one in planned.processes] == [((2,),) * 4, ((3,),) * 4]
    by_hand = on_two_nodes(tmp_path, settings(worker__cpu_processes=1), cpu_steps=True)
    assert [one.children for one in by_hand.processes] == [((2,),), ((3,),)]


def test_what_is_set_by_hand_is_kept(tmp_path: Path) -> None:
    plan = on_two_nodes(
        tmp_path,
        settings(
            worker__threads=7, pools__critical__slots=9, pools__critical__memory=2**28,
            pools__shared__cpus=(3,), pools__shared__processes=2,
        ),
    )  # fmt: skip
    critical, *shared = plan.processes
    assert (critical.slots, critical.threads, critical.memory_bytes) == (9, 7, 2**28)
    assert [one.cores for one in shared] == [(3,), (3,)]


_WORKER = "agentq worker --pool critical --index 0"
_LAUNCHED: dict[Launcher, str] = {
    "numactl": f"numactl --cpunodebind=0 --membind=0 {_WORKER} --plan plan.json -A shop:aq",
    "taskset": f"taskset -c 1 {_WORKER} --plan plan.json -A shop:aq",
    "docker": (
        "docker run --cpuset-cpus 1 --cpuset-mems 0 --memory 6144m --pids-limit 288 --ulimit "
        f'nofile=65535 -v "$PWD/plan.json:/plan.json:ro" IMAGE {_WORKER} --plan /plan.json '
        "-A shop:aq"
    ),
}


@pytest.mark.parametrize("launcher", _LAUNCHED)
def test_each_process_as_other_launchers_start_it(tmp_path: Path, launcher: Launcher) -> None:
    assert started(written(tmp_path, nodes=2, cores=2), launcher) == _LAUNCHED[launcher]


def started(machine: Machine, launcher: Launcher, process: Process | None = None) -> str:
    one = process or plan_of(settings(), cpu_steps=False, machine=machine).processes[0]
    topology = machine.topology
    return command_of(one, topology=topology, launcher=launcher, app="shop:aq", file="plan.json")


def test_cores_and_memory_of_several_nodes_are_named_to_other_launchers(tmp_path: Path) -> None:
    root = write_host(tmp_path, nodes=3, cores=2)
    write_node(root, 0, memory=0, distances="10 40 20")  # node 2 has the memory of its process
    machine = read_machine(root=root)
    assert started(machine, "numactl").startswith("numactl --cpunodebind=0 --membind=2 agentq ")
    assert " --cpuset-cpus 1 --cpuset-mems 2 " in started(machine, "docker")
    machine = written(tmp_path / "even", nodes=2, cores=2)
    process = plan_of(settings(), cpu_steps=False, machine=machine).processes[0]
    spread = replace(process, children=((3,),))
    assert "numactl --cpunodebind=0-1 --membind=0 " in started(machine, "numactl", spread)
    assert " --cpuset-cpus 1,3 --cpuset-mems 0-1 " in started(machine, "docker", spread)


def test_the_command_prints_the_table_and_json_that_a_worker_reads(tmp_path: Path) -> None:
    table = CliRunner().invoke(app, ["plan"])
    assert table.exit_code == 0
    assert "critical-0" in table.stdout
    asked = CliRunner().invoke(app, ["plan", "--json"])
    kept = tmp_path / "plan.json"
    kept.write_text(asked.stdout, encoding="utf-8")
    assert [one.name for one in read_plan(kept).processes] == ["critical-0", "shared-0"]
    lines = CliRunner().invoke(app, ["plan", "--as", "taskset"]).stdout.splitlines()
    assert lines[0].startswith("# agentq plan ")
    assert [line.split(" ")[0] for line in lines[1:]] == ["taskset", "taskset"]
