"""`agentq up` and what goes with it, as a person uses it."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import orjson
import pytest

from agentq.host.allocator import find_jemalloc
from agentq.host.process import descendants
from tests.support.command_line import Home, RunningCommand, home
from tests.support.waiting import wait_until

_APP = """
import asyncio
import os
from agentq import AgentQ, Context, each

aq = AgentQ("shop")

@aq.step(pool="critical")
async def plan(ctx: Context, width: int) -> dict:
    await ctx.progress("counting")
    return {"parts": list(range(width))}

@aq.step
async def double(part: int) -> int:
    return 2 * part

@aq.step(pool="critical")
async def total(parts: list) -> int:
    return sum(part.value for part in parts)

@aq.step
async def wait(ctx: Context, what: str) -> None:
    await ctx.progress("began")
    await asyncio.sleep(60)

@aq.step
async def deadly() -> None:
    os.kill(os.getpid(), 9)

dying = aq.flow("dying", deadly)
orders = aq.flow("orders", plan >> each(double, of="parts") >> total)
waiting = aq.flow("waiting", wait)
"""
_OTHER_APP = """
from agentq import AgentQ

aq = AgentQ("other")

@aq.step
async def nowhere() -> None: ...

strange = aq.flow("strange", nowhere)
"""
_ONLY_WORKERS = """
import os, sys, threading
if "worker" in sys.argv:
"""
APP = ("-A", "shop:aq")


@pytest.fixture(scope="module")
def user() -> Iterator[Home]:
    with home() as found:
        (found.work / "shop.py").write_text(_APP)
        yield found


@pytest.fixture(scope="module")
def up(user: Home) -> Iterator[RunningCommand]:
    with user.running("up", *APP, "--no-dashboard", until="up; Ctrl-C ends it") as running:
        yield running


@pytest.mark.usefixtures("up")
def test_submit_waits_for_the_result_and_prints_it(user: Home) -> None:
    done = user.run("submit", "orders", "5", "--wait", "--deadline", "20s", *APP)
    assert (done.stdout, done.returncode) == ("20\n", 0)
    assert re.fullmatch(r"run [0-9a-f]{32}\n", done.stderr)


@pytest.mark.usefixtures("up")
def test_doctor_finds_nothing_wrong_with_what_up_has_started(user: Home) -> None:
    found = user.json("doctor", *APP)["findings"]
    assert [one for one in found if one["severity"] == "error"] == []
    names = {one["subject"] for one in found if not one["seen"].startswith("not checked")}
    assert not {"workers.pool", "workers.lease", "workers.builds", "broker.functions"} & names


@pytest.mark.skipif(
    tuple(map(int, os.uname().release.split(".")[:2])) < (6, 12), reason="slices came with 6.12"
)
def test_the_broker_and_the_critical_worker_take_a_core_soon(up: RunningCommand) -> None:
    slices: dict[str, int] = {}
    for pid in descendants(up.process.pid):
        command = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").replace("\0", " ")
        role = re.search(r"server(?= unixsocket)|--pool \w+", command)
        found = re.search(
            r"^se\.slice +: +(\d+)", Path(f"/proc/{pid}/sched").read_text(), re.MULTILINE
        )
        if role and found:
            slices[role[0]] = int(found[1])
    shared = slices.pop("--pool shared")
    assert slices == {"server": 100_000, "--pool critical": 100_000}
    assert shared > 100_000


@pytest.mark.usefixtures("up")
def test_submit_with_the_same_key_is_the_same_run(user: Home) -> None:
    first = user.json("submit", "orders", "1", "--key", "k", *APP)
    again = user.json("submit", "orders", "1", "--key", "k", *APP)
    assert again == {"run": first["run"], "duplicate": True}
    assert first["duplicate"] is False


@pytest.mark.usefixtures("up")
def test_waiting_for_a_run_that_existed_says_so(user: Home) -> None:
    run = user.json("submit", "orders", "1", "--key", "twice", *APP)["run"]
    again = user.run("submit", "orders", "4", "--key", "twice", "--wait", *APP)
    assert (again.stdout, again.stderr) == ("0\n", f"run {run} existed already: the same key\n")


@pytest.mark.usefixtures("up")
def test_ctrl_c_while_waiting_says_that_the_run_goes_on(user: Home) -> None:
    before = user.json("status")["recent"]
    with RunningCommand(
        user.command("submit", "waiting", '"y"', "--key", "c", "--wait", *APP), user, {},
        log="submit.log",
    ) as waiting:  # fmt: skip
        listed = wait_until(
            lambda: {r["id"] for r in user.json("status")["recent"]} - {r["id"] for r in before},
            "the run is listed",
        )
        [run] = listed
        assert waiting.end() == 130
        assert waiting.output == (
            f"run {run}\nrun {run} goes on:\n  agentq status {run} -A shop:aq\n"
            f"  agentq events {run} -A shop:aq\n  agentq cancel {run} -A shop:aq\n"
        )
    assert user.json("status", run)["state"] == "running"
    user.run("cancel", run)


def test_a_wait_for_pools_that_nobody_serves_says_so_once(user: Home, url: str) -> None:
    words = user.command("submit", "orders", "2", "--wait", *APP)
    env = {"AGENTQ_BROKER__URL": url}
    with RunningCommand(words, user, env, log="unserved.log") as waiting:
        waiting.wait_for("serves pool 'shared' (agentq worker --pool shared")
        assert waiting.output.count("no worker serves pool 'critical'") == 1
        [run] = [one["id"] for one in user.json("status", env=env)["recent"]]
        assert f"run {run} waits: no worker" in waiting.output
        assert waiting.end() == 130


@pytest.mark.usefixtures("up")
def test_a_wait_for_what_is_parked_or_paused_says_so_once(user: Home) -> None:
    (user.work / "other.py").write_text(_OTHER_APP)
    user.run("pause", "pool", "critical")
    parked, paused = (
        RunningCommand(user.command("submit", *words, "--wait"), user, {}, log=f"{words[0]}.log")
        for words in (("strange", "-A", "other:aq"), ("orders", "2", *APP))
    )
    with parked, paused:
        paused.wait_for("waits: shop.plan: waits in queue critical:normal, place 1 of 1; pool crit")
        parked.wait_for("waits: other.nowhere: is parked: no worker has task other.nowhere")
        user.run("resume", "pool", "critical")
        assert paused.process.wait(20) == 0
        assert paused.output.count("waits:") == parked.output.count("waits:") == 1
        run = parked.output.split()[1]
        assert parked.end() == 130
    user.run("cancel", run)


@pytest.mark.usefixtures("up")
def test_a_step_that_kills_its_workers_is_told_of_by_name_each_time(user: Home) -> None:
    failed = user.run("submit", "dying", "--wait", *APP)
    assert "failed in step 'shop.deadly': WorkerLost: its worker died 3 times" in failed.stderr
    run = failed.stderr.split()[1]
    told = user.run("events", run, *APP).stdout.splitlines()
    assert [line.partition("lost      ")[2].partition(" on shared")[0] for line in told[:-1]] == [
        "shop.deadly"
    ] * 4
    assert "its worker died; not charged, it runs alone from now on" in told[0]
    assert [line.rpartition(": ")[2] for line in told[1:4]] == [
        f"its process died, {death} of 3" for death in (1, 2, 3)
    ]
    shown = user.json("status", run, *APP)
    assert {(step["step"], step["state"]) for step in shown["steps"]} == {("shop.deadly", "lost")}
    assert shown["shares"]["lost with a worker"] > 0


@pytest.mark.usefixtures("up")
def test_events_of_a_run_are_printed_line_by_line(user: Home) -> None:
    run = user.json("submit", "orders", "2", "--wait", *APP)["run"]
    for more in ((), ("--follow",)):
        lines = user.run("events", run, *more).stdout.splitlines()
        assert [line.split()[2] for line in lines] == [
            "progress", "step", "fanout", "step", "step", "step", "end",
        ]  # fmt: skip
        assert lines[0].endswith("shop.plan: counting")
    kinds = [
        orjson.loads(line)["kind"] for line in user.run("events", run, "--json").stdout.splitlines()
    ]
    assert kinds[-1] == "end"
    assert user.json("events", "nobody")["error"]["kind"] == "RunNotFound"


@pytest.mark.usefixtures("up")
def test_a_cancelled_run_shows_what_there_is_of_it(user: Home) -> None:
    run = user.json("submit", "waiting", '"y"', *APP)["run"]
    wait_until(lambda: "began" in user.run("events", run).stdout, "it runs")
    title, line = user.run("status", run).stdout.splitlines()[-2:]
    assert title == "Not ended yet"
    assert re.fullmatch(
        r"  shop\.wait: runs on shared-0@\S+, lease ends in \S+ s \(\S+ m?s so far\)", line
    )
    user.run("cancel", run)
    lines = user.run("events", run).stdout.splitlines()
    assert [line.split(maxsplit=2)[2] for line in lines] == [
        "progress  shop.wait: began", "end       cancelled",
    ]  # fmt: skip
    first, submitted, said, cut = user.run("status", run).stdout.splitlines()
    assert first.startswith(f"waiting {run}: cancelled, took ")
    assert submitted.startswith("  submitted 20")
    assert said == "  shop.wait had not ended; it last said: began"
    assert cut == "  cancelled before its end: no step of it had ended"


def test_a_run_that_expired_without_a_worker_has_its_end(user: Home, url: str) -> None:
    env = {"AGENTQ_BROKER__URL": url}
    run = user.json("submit", "orders", "2", "--deadline", "10ms", *APP, env=env)["run"]
    wait_until(lambda: user.json("status", run, env=env)["state"] == "expired", "it expires")
    for more in ((), ("--follow",)):
        [line] = user.run("events", run, *more, env=env).stdout.splitlines()
        assert re.fullmatch(r" *\d+ ms  end       expired", line)
    shown = user.run("status", run, env=env).stdout.splitlines()
    assert shown[2].startswith("  deadline  20")
    assert shown[3] == "  expired before its end: no step of it had ended"


@pytest.mark.usefixtures("up")
def test_status_lists_the_newest_runs(user: Home) -> None:
    run = user.json("submit", "orders", "2", "--wait", *APP)["run"]
    newest = user.json("status")["recent"][0]
    assert (newest["id"], newest["flow"], newest["state"]) == (run, "orders", "done")
    assert run in user.run("status").stdout


@pytest.mark.usefixtures("up")
def test_an_argument_that_the_step_forbids_is_refused_before_anything_runs(user: Home) -> None:
    error = user.json("submit", "orders", '"five"', *APP)["error"]
    assert error["kind"] == "InvalidArgument"
    assert "shop.plan" in error["message"]


@pytest.mark.usefixtures("up")
def test_status_of_a_run_has_its_steps_and_shares(user: Home) -> None:
    run = user.json("submit", "orders", "6", "--wait", *APP)["run"]
    found = user.json("status", run)
    assert found["state"] == "done"
    steps = [(step["step"], step["worker"].partition("@")[0]) for step in found["steps"]]
    assert steps[0] == ("shop.plan", "critical-0")
    assert steps[1:-1] == [("shop.double", "shared-0")] * 6
    assert steps[-1] == ("shop.total", "critical-0")
    assert sum(found["shares"].values()) == pytest.approx(100, abs=0.1)
    shown = user.run("status", run).stdout
    assert "double x 6" in shown
    assert "Where the time went" in shown


@pytest.mark.usefixtures("up")
def test_status_shows_broker_persistence_queues_workers_and_runs(user: Home) -> None:
    user.run("submit", "orders", "2", "--wait", *APP)
    found = user.json("status")
    assert found["broker"]["persistence"].startswith("append-only file, fsync every second")
    lanes = {(queue["pool"], queue["lane"]): queue for queue in found["queues"]}
    assert lanes["shared", "normal"]["oldest_ms"] is None
    assert lanes["shared", "normal"]["waiting"] == 0
    workers = {worker["name"].partition("@")[0]: worker for worker in found["workers"]}
    assert set(workers) == {"critical-0", "shared-0"}
    for name, worker in workers.items():
        assert worker["pid"] == user.one_process(f"--pool {name.removesuffix('-0')} ")
        assert set(worker["cores"]) == os.sched_getaffinity(worker["pid"])
        assert worker["lease_ms"] > 0
        assert worker["allocator"].partition(" ")[0] == ("jemalloc" if find_jemalloc() else "glibc")
        assert 20e6 < worker["memory"] < 2e9
    assert found["runs"]["done"] >= 1


@pytest.mark.usefixtures("up")
def test_without_an_app_a_name_that_no_worker_has_is_told_and_paused(user: Home) -> None:
    slip = user.run("pause", "step", "shop.dubble")
    assert slip.stdout == "step shop.dubble paused\n"
    assert slip.stderr.startswith("but no worker has step 'shop.dubble'; did you mean shop.double?")
    assert ", which no worker has" in user.run("status").stdout
    assert user.run("resume", "step", "shop.dubble").returncode == 0


@pytest.mark.usefixtures("up")
def test_cancel_ends_a_run_once(user: Home) -> None:
    run = user.json("submit", "waiting", '"x"', *APP)["run"]
    assert user.json("cancel", run) == {"run": run, "cancelled": True, "state": "cancelled"}
    assert user.json("cancel", run) == {"run": run, "cancelled": False, "state": "cancelled"}
    assert user.json("cancel", "nobody")["error"]["kind"] == "RunNotFound"


def test_up_says_which_core_and_allocator_each_worker_has(up: RunningCommand) -> None:
    lines = [line for line in up.output.splitlines() if "open files:" in line][:2]
    assert [line.partition("@")[0] for line in lines] == ["critical-0", "shared-0"]
    live = "jemalloc" if find_jemalloc() else "glibc"
    for line in lines:
        assert ": core" in line
        assert f"; {live} " in line


@pytest.mark.usefixtures("up")
def test_a_second_up_is_refused_and_the_first_one_named(user: Home) -> None:
    done = user.run("up", *APP)
    assert done.returncode == 1
    assert f"agentq up already runs on {user.folder / 'agentq'}" in done.stderr
    assert done.stderr.endswith("agentq worker --pool shared --index 1 -A shop:aq\n")


def test_a_killed_worker_is_started_again(user: Home, up: RunningCommand) -> None:
    killed = user.one_process("--pool shared ")
    os.kill(killed, signal.SIGKILL)
    up.wait_for(f"shared-0 (process {killed}) ended by signal 9 and is started again; shared-0@")
    up.wait_for(" is gone: 0 messages handed out again")
    assert user.run("submit", "orders", "3", "--wait", *APP).stdout == "6\n"


@pytest.mark.usefixtures("up")
def test_a_worker_by_hand_starts_itself_again_under_its_allocator(user: Home) -> None:
    if not find_jemalloc():
        pytest.skip("there is no jemalloc here")
    arguments = ("worker", "--pool", "shared", "--index", "7", "--cores", "0", *APP)
    url = f"agentq+unix://{user.folder}/agentq/b.sock"
    with RunningCommand(
        user.command(*arguments), user, {"AGENTQ_BROKER__URL": url}, log="hand.log"
    ) as worker:
        worker.wait_for("open files:")
        maps = Path(f"/proc/{worker.process.pid}/maps").read_text()
        assert "libjemalloc" in maps
        assert os.sched_getaffinity(worker.process.pid) == {0}
        assert "shared-7@" in worker.output
        assert worker.end(signal.SIGTERM) == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_up_ends_all_it_started(number: int, code: int) -> None:
    with home() as own:
        (own.work / "shop.py").write_text(_APP)
        with own.running("up", *APP, "--no-dashboard", until="up; Ctrl-C") as running:
            assert len(own.processes()) == 4
            assert running.end(number) == code
        assert own.processes() == {}
        assert not (own.folder / "agentq/b.sock").exists()


def test_at_the_end_up_says_who_drains_and_a_second_ctrl_c_ends_at_once() -> None:
    with home() as own:
        (own.work / "shop.py").write_text(_APP)
        shared = ("--no-dashboard", "--pool", "shared")
        with own.running("up", *APP, *shared, until="up; Ctrl-C") as running:
            run = own.json("submit", "waiting", '"x"', *APP)["run"]
            began = ("events", run, "--follow")
            with RunningCommand(own.command(*began), own, {}, log="events.log") as events:
                events.wait_for("began")
            os.kill(running.process.pid, signal.SIGINT)
            running.wait_for(
                "ending: shared-0 may finish running steps within 30s (worker.drain_timeout); "
                "Ctrl-C again ends at once\n"
            )
            assert running.end() == 130
            assert "Ended; nothing is left running.\n" in running.output
        assert own.processes() == {}


def test_a_killed_up_leaves_no_process() -> None:
    with home() as own:
        (own.work / "shop.py").write_text(_APP)
        with own.running("up", *APP, "--no-dashboard", until="up; Ctrl-C") as running:
            assert running.end(signal.SIGKILL) == -signal.SIGKILL
            wait_until(lambda: not own.processes(), lambda: f"gone: {own.processes()}")


def test_up_starts_flower_and_says_where_it_is() -> None:
    with home() as own:
        (own.work / "shop.py").write_text(_APP)
        port = str(free_port())
        with own.running("up", *APP, "--port", port, until="up; Ctrl-C ends it") as running:
            [address] = re.findall(r"^dashboard: (http\S+)$", running.output, re.MULTILINE)
            assert address == f"http://127.0.0.1:{port}/"
            with urlopen(address) as page:  # noqa: S310 -- on loopback
                assert page.status == 200
            assert running.end() == 0
        assert own.processes() == {}


def test_a_port_in_use_is_named_before_anything_starts() -> None:
    with home() as own, socket.create_server(("127.0.0.1", 0)) as taken:
        (own.work / "shop.py").write_text(_APP)
        port = taken.getsockname()[1]
        done = own.run("up", *APP, env={"AGENTQ_DASHBOARD__PORT": str(port)})
        assert done.returncode == 1
        assert (
            f"the dashboard cannot listen on 127.0.0.1:{port}: port {port} is in use" in done.stderr
        )
        assert done.stdout == ""
        assert own.processes() == {}


def test_up_without_an_app_runs_the_broker_and_says_that_there_are_no_workers() -> None:
    with home() as own, own.running("up", until="up; Ctrl-C ends it") as running:
        assert "workers: none, since no app is named" in running.output
        assert len(own.json("status")["workers"]) == 0


@pytest.fixture(scope="module")
def servers() -> Iterator[RunningCommand]:
    with home() as own, own.running("up", "--models", until="up; Ctrl-C ends it") as running:
        yield running


@pytest.mark.parametrize("name", ["broker", "models"])
def test_a_killed_server_is_started_again_where_it_was(servers: RunningCommand, name: str) -> None:
    [(pid, where)] = re.findall(
        rf"^{name}: .*process (\d+), (?:agentq\+unix://)?(\S+)$", servers.output, re.MULTILINE
    )
    os.kill(int(pid), signal.SIGKILL)
    servers.wait_for(f"{name} (process {pid}) ended by signal 9 and is started again\n")
    servers.wait_for(f"again: {name}, process ")
    [(again, there)] = re.findall(
        rf"^again: {name}, process (\d+), (?:agentq\+unix://)?(\S+)$", servers.output, re.MULTILINE
    )
    assert again != pid
    assert there == where
    assert Path(f"/proc/{again}").exists()


def test_a_model_server_that_can_not_start_is_told_with_its_log_in_the_data_folder() -> None:
    with home() as own:
        (own.folder / "m").mkdir()
        (own.folder / "m/h11.py").write_text("raise ModuleNotFoundError('no h11')\n")
        path = f"{own.folder}/m{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        env = {"PYTHONPATH": path, "AGENTQ_EMBEDDED__DATA_DIR": f"{own.folder}/d"}
        with own.running("up", "--models", until="up; Ctrl-C ends it", env=env) as running:
            [said] = re.findall(r"^models: none: .*$", running.output, re.MULTILINE)
    assert "ended with status 1: ModuleNotFoundError: no h11; pip install" in said
    assert said.endswith(f"; its log: {own.folder}/d/models.log")


def test_a_worker_that_can_not_start_ends_up_with_its_reason() -> None:
    with home() as own:
        (own.work / "shop.py").write_text(_APP + _ONLY_WORKERS + "    raise OSError('no disk')\n")
        done = own.run("up", *APP, "--no-dashboard")
        assert done.returncode == 1
        assert "agentq: app 'shop:aq' cannot be imported: OSError: no disk" in done.stderr
        said = r"agentq: (critical|shared)-0 ended with status 1; it said why above"
        assert re.search(said, done.stderr)
        assert own.processes() == {}


def test_a_worker_that_dies_again_and_again_is_given_up() -> None:
    dying = "    threading.Timer(1.5, os._exit, [3]).start()\n"
    with home() as own:
        (own.work / "shop.py").write_text(_APP + _ONLY_WORKERS + dying)
        done = own.run("up", *APP, "--no-dashboard", "--pool", "shared")
        assert done.returncode == 1
        assert done.stdout.count("ended with status 3 and is started again") == 2
        assert "agentq: shared-0 ended with status 3 again and again" in done.stderr
        assert own.processes() == {}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
