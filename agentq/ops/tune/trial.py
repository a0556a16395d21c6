"""One trial: a server, workers and callers of its own under some settings, gone afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from agentq.errors import BenchFailed
from agentq.host.process import descendants
from agentq.ops.bench.server import private_server
from agentq.ops.children import Children, Spec
from agentq.ops.tune.loopback import over_loopback
from agentq.ops.tune.parameters import Parameter
from agentq.ops.tune.verdict import Sample
from agentq.ops.worker_process import RELAUNCHED, launch_variables
from agentq.settings import Settings, load_settings

CHAINS = 150
_WARM = 20
_APP = "agentq.ops.tune.chain:aq"
_CALLERS = "agentq.ops.tune.callers"
_POOLS = ("critical", "shared")
_START = timedelta(seconds=60)
_STOP = timedelta(seconds=20)
_CALL_S = 120
_LOOK_S = 0.2
_LOG_LINES = 8


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What is tried."""

    variables: Mapping[str, str]
    """Beside what the user's settings say."""
    chains: int = CHAINS
    program: Path | None = None
    """The server; None: the embedded one."""
    tcp: bool = False
    """Whether it is reached over loopback; else over a unix socket."""

    def run(self) -> Sample:
        """Measure; from the main thread, for some five seconds.

        Raises:
            BenchFailed: a chain failed, or took too long.
            AgentQError: server or workers did not start.
        """
        with private_server(self.program) as server, _folder() as folder:
            url = over_loopback(server) if self.tcp else server.url
            given = {**self.variables, "AGENTQ_BROKER__URL": url}
            with _workers(given, folder) as workers:
                _call(_WARM, given, workers, folder)
                watched = (server.pid or 0, *workers.pids.values())
                before = _switches(watched)
                wall, took = _call(self.chains, given, workers, folder)
                switches = _switches(watched) - before
        took.sort()
        return Sample(
            throughput=len(took) / wall,
            p50_ms=took[len(took) // 2],
            p99_ms=took[len(took) * 99 // 100],
            switches=switches / len(took),
        )


@contextmanager
def _folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="aqt-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def _workers(given: Mapping[str, str], folder: Path) -> Iterator[Children]:
    settings = load_settings(environ={**os.environ, **given})
    children = Children(stop_limit=_STOP, start_limit=_START)
    try:
        for pool in _POOLS:
            for index in range(max(1, settings.pools[pool].processes)):
                children.start(_worker(pool, index, given, settings, folder))
        children.await_ready()
        yield children
    finally:
        children.stop()


def _worker(
    pool: str, index: int, given: Mapping[str, str], settings: Settings, folder: Path
) -> Spec:
    name = f"{pool}-{index}"
    own = launch_variables(settings.pools[pool], settings)
    return Spec(
        name=name,
        arguments=("worker", "--pool", pool, "--index", str(index), "-A", _APP),
        environment={**given, **own, RELAUNCHED: "1"},
        log=folder / f"{name}.log",
    )


def _call(
    count: int, given: Mapping[str, str], workers: Children, folder: Path
) -> tuple[float, list[float]]:
    """Return the seconds that *count* chains took together, and the milliseconds of each."""
    seen, log = folder / "seen.json", folder / "callers.log"
    with seen.open("wb") as output, log.open("wb") as errors:
        callers = subprocess.Popen(  # noqa: S603 -- this package's own
            [sys.executable, "-P", "-m", _CALLERS, str(count), str(os.getpid())],
            env={**os.environ, **given}, stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
        )  # fmt: skip
    try:
        _await_end(callers, count, workers, folder)
    finally:
        callers.kill()
        callers.wait()
    if callers.returncode:
        raise BenchFailed(f"{count} chains failed:\n{_tail(log)}")
    wall, took = json.loads(seen.read_bytes())
    return wall, took


def _await_end(
    callers: subprocess.Popen[bytes], count: int, workers: Children, folder: Path
) -> None:
    until = time.monotonic() + _CALL_S
    while callers.poll() is None:
        if said := workers.round(_LOOK_S):
            raise BenchFailed(f"while chains ran {said[0]}")
        if time.monotonic() > until:
            logs = "\n".join(_tail(folder / f"{name}.log") for name in workers.pids)
            raise BenchFailed(f"{count} chains did not end within {_CALL_S} s; workers:\n{logs}")


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-_LOG_LINES:])


def trying(*, chains: int, program: Path | None) -> Callable[[Parameter, str], Sample]:
    """Return what runs a trial of a parameter's value; kernel settings are tried over TCP."""

    def run(parameter: Parameter, value: str) -> Sample:
        with parameter.holding(value) as variables:
            tcp = parameter.hold is not None
            return Trial(variables=variables, chains=chains, program=program, tcp=tcp).run()

    return run


def _switches(roots: tuple[int, ...]) -> int:
    """Return how often all threads of these processes and their descendants left a core."""
    total = 0
    for root in roots:
        for pid in (root, *descendants(root)):
            for status in Path(f"/proc/{pid}/task").glob("*/status"):
                with suppress(OSError):  # it has ended
                    total += _switches_of(status.read_text(encoding="utf-8"))
    return total


def _switches_of(status: str) -> int:
    lines = (line.split(":") for line in status.splitlines())
    return sum(int(line[1]) for line in lines if line[0].endswith("ctxt_switches"))
