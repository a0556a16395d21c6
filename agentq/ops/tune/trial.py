"""One trial: a server, workers and callers of its own under some settings, gone afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from agentq.errors import BenchFailed
from agentq.host.allocator import launch_environment
from agentq.host.process import descendants
from agentq.ops.bench.server import private_server
from agentq.ops.children import Children, Spec
from agentq.ops.tune.loopback import over_loopback
from agentq.ops.tune.parameters import Parameter
from agentq.ops.tune.verdict import Sample
from agentq.ops.worker_process import RELAUNCHED
from agentq.settings import Settings, load_settings

CHAINS = 150
_WARM = 20
_APP = "agentq.ops.tune.chain:aq"
_CALLERS = "agentq.ops.tune.callers"
_POOLS = ("critical", "shared")
_START = timedelta(seconds=60)
_STOP = timedelta(seconds=20)
_CALL_S = 120
_LOG_LINES = 10


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
        with private_server(self.program) as server:
            url = over_loopback(server) if self.tcp else server.url
            given = {**self.variables, "AGENTQ_BROKER__URL": url}
            with self._workers(given) as workers:
                self._call(_WARM, given)
                watched = (server.pid or 0, *workers)
                before = _switches(watched)
                wall, took = self._call(self.chains, given)
                switches = _switches(watched) - before
        took.sort()
        return Sample(
            throughput=len(took) / wall,
            p50_ms=took[len(took) // 2],
            p99_ms=took[len(took) * 99 // 100],
            switches=switches / len(took),
        )

    @contextmanager
    def _workers(self, given: Mapping[str, str]) -> Iterator[tuple[int, ...]]:
        settings = _settings_of(given)
        folder = Path(tempfile.mkdtemp(prefix="aqt-"))
        children = Children(stop_limit=_STOP, start_limit=_START)
        try:
            for pool in _POOLS:
                own = {**given, **launch_environment(settings.pools[pool].allocator)}
                for index in range(max(1, settings.pools[pool].processes)):
                    name = f"{pool}-{index}"
                    arguments = ("worker", "--pool", pool, "--index", str(index))
                    children.start(
                        Spec(
                            name=name,
                            arguments=(*arguments, "-A", _APP),
                            environment={**own, RELAUNCHED: "1"},
                            log=folder / f"{name}.log",
                        )
                    )
            children.await_ready()
            yield tuple(children.pids.values())
        finally:
            children.stop()
            shutil.rmtree(folder)

    def _call(self, count: int, given: Mapping[str, str]) -> tuple[float, list[float]]:
        try:
            done = subprocess.run(  # noqa: S603 -- this package's own
                [sys.executable, "-P", "-m", _CALLERS, str(count), str(os.getpid())],
                env={**os.environ, **given},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_CALL_S,
                check=False,
            )
        except subprocess.TimeoutExpired as expired:
            raise BenchFailed(f"{count} chains did not end within {_CALL_S} s") from expired
        if done.returncode:
            tail = "\n".join(done.stderr.splitlines()[-_LOG_LINES:])
            raise BenchFailed(f"{count} chains failed:\n{tail}")
        wall, took = json.loads(done.stdout)
        return wall, took


def trying(*, chains: int, program: Path | None) -> Callable[[Parameter, str], Sample]:
    """Return what runs a trial of a parameter's value; kernel settings are tried over TCP."""

    def run(parameter: Parameter, value: str) -> Sample:
        with parameter.holding(value) as variables:
            tcp = parameter.hold is not None
            return Trial(variables=variables, chains=chains, program=program, tcp=tcp).run()

    return run


def _settings_of(given: Mapping[str, str]) -> Settings:
    return load_settings(environ={**os.environ, **given})


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
