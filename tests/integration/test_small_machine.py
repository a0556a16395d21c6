"""`agentq up --cpus --memory`, as a user who may do nothing special."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentq.host.process import descendants, usage
from tests.support.command_line import Home, RunningCommand, home
from tests.support.waiting import wait_until

_APP = """
import time
from agentq import AgentQ

aq = AgentQ("small")

@aq.step
def burn(name: int) -> int:
    with open("ledger", "a") as ledger:
        ledger.write(f"{name}\\n")
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass
    return name

@aq.step
async def hoard(megabytes: int) -> int:
    kept = bytearray(megabytes << 20)
    time.sleep(3)
    return len(kept)

burning = aq.flow("burning", burn)
hoarding = aq.flow("hoarding", hoard)
"""
APP = ("-A", "small:aq")
READY = "up; Ctrl-C ends it"
SHARE = 0.15
"""Less than what a busy machine leaves: they are stopped on any."""

RUNS = 16
DRAIN = {"AGENTQ_WORKER__DRAIN_TIMEOUT": "1s"}
# Without any capability root is an ordinary user here: of its own processes, and of nothing else.
_ORDINARY = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
PREFIX = _ORDINARY if os.geteuid() == 0 else ()

pytestmark = pytest.mark.skipif(
    bool(PREFIX) and shutil.which("setpriv") is None, reason="setpriv (util-linux) is missing"
)


@pytest.fixture
def user() -> Iterator[Home]:
    with home() as found:
        (found.work / "small.py").write_text(_APP)
        yield found


def start(user: Home, *options: str) -> RunningCommand:
    command = [*PREFIX, *user.command("up", *APP, "--no-dashboard", "--pool", "shared", *options)]
    running = RunningCommand(command, user, DRAIN)
    try:
        running.wait_for(READY, 40)
    except BaseException:
        running.__exit__()
        raise
    return running


def submit(user: Home, flow: str, value: int) -> None:
    done = user.run("submit", flow, str(value), *APP)
    assert done.returncode == 0, done.stderr


def burn(user: Home) -> None:
    """Submit `RUNS` runs from one process."""
    code = f"import small; small.burning.submit_many(range({RUNS}))"
    found = user.command()
    done = RunningCommand([found[0], "-c", code], user, {}, log="submit.log")
    assert done.process.wait(20) == 0, done.output


def standing(pids: Iterable[int]) -> list[int]:
    """Return those that are stopped."""
    found = []
    for pid in pids:
        with suppress(OSError):
            text = Path(f"/proc/{pid}/stat").read_text()
            if text.rpartition(")")[2].split()[0] == "T":
                found.append(pid)
    return found


def share_until(done: Callable[[], bool], pid: int) -> tuple[float, int]:
    """Return what a process and its descendants use of a core, and how often they stood still."""
    began, before = time.monotonic(), usage(pid).cpu_seconds
    stood = 0
    while not done():
        stood += bool(standing(descendants(pid)))
        time.sleep(0.01)  # a sample of states: there is nothing to wait for
    return (usage(pid).cpu_seconds - before) / (time.monotonic() - began), stood


def nice_in_its_session_alone(pid: int) -> list[int]:
    """Return its workers to which only processes of their own session would give way."""
    found = []
    for child in descendants(pid):
        session = Path(f"/proc/{child}/autogroup")
        if session.exists() and b"\0worker\0" in session.with_name("cmdline").read_bytes():
            nice = int(session.read_text().split()[-1])
            found += [child] if nice != os.getpriority(os.PRIO_PROCESS, child) else []
    return found


def duty(pid: int) -> int:
    """Return the process that stops the others."""
    [found] = [
        child for child in descendants(pid)
        if b"agentq.host.duty" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]  # fmt: skip
    return found


def ledger(user: Home) -> list[str]:
    path = user.work / "ledger"
    return path.read_text().split() if path.exists() else []


@pytest.mark.timeout(120)
def test_all_of_it_gets_its_share_and_each_step_runs_once(user: Home) -> None:
    with start(user, "--cpus", str(SHARE)) as up:
        pid = up.process.pid
        assert f"imitating: {SHARE} CPU on core" in up.output
        assert "not imitated: slower cores" in up.output
        assert nice_in_its_session_alone(pid) == []
        burn(user)
        wait_until(lambda: len(ledger(user)) > 2, "it burns")
        got, stood = share_until(lambda: len(ledger(user)) > RUNS // 2, pid)
        print(f"share {got:.2f} of {SHARE}, seen standing {stood} times")
        assert got < SHARE * 1.4
        assert stood > 5

        # Whoever stops the others is ended in the middle of it: nothing is left standing.
        os.kill(duty(pid), signal.SIGKILL)
        wait_until(lambda: "duty cycle ended" in up.output, "said, and started again")
        wait_until(lambda: len(ledger(user)) == RUNS, lambda: f"all: {len(ledger(user))}", 30)
        assert sorted(map(int, ledger(user))) == list(range(RUNS))
        assert "lease" not in up.output

        burn(user)
        children = descendants(pid)
        wait_until(lambda: standing(children), "they stand still")
        up.process.kill()
        wait_until(lambda: not user.processes(), lambda: f"{user.processes()} end", 20)


@pytest.mark.timeout(90)
def test_what_takes_too_much_memory_is_ended_and_the_broker_is_not(user: Home) -> None:
    with start(user, "--memory", "192M") as up:
        broker = user.one_process("b.sock")
        worker = user.one_process("--pool shared --index")
        submit(user, "hoarding", 250)
        wait_until(lambda: f"process {worker} (" in up.output, lambda: up.output, 20)
        wait_until(lambda: "again: shared-0" in up.output, lambda: up.output, 20)
        assert "was ended, as the kernel would" in up.output
        assert user.one_process("b.sock") == broker
        submit(user, "burning", 1)
        wait_until(lambda: ledger(user) == ["1"], lambda: up.output, 30)
