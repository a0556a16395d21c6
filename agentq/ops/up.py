"""Everything of one machine: embedded server, model server, workers, dashboard, as one thing.

broker  ->  models  ->  workers, dashboard      started in this order, ended in the reverse
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from agentq.clock import format_duration
from agentq.errors import AgentQError
from agentq.extras import pip_install
from agentq.host.affinity import pin
from agentq.host.numa import starting_on
from agentq.host.supervisor import LeaseNote
from agentq.inference.launcher import ModelServer
from agentq.inference.presence import why_silent
from agentq.ops.children import Children, Spec
from agentq.ops.dashboard_port import address_in_use, is_taken
from agentq.ops.embedded_broker import data_folder, describe, start_embedded
from agentq.ops.imitation import AS_IT_IS, Imitation, Small
from agentq.ops.kept import Kept
from agentq.ops.lost_worker import found_dead
from agentq.ops.plan import plan_of
from agentq.ops.worker_process import RELAUNCHED, launch_variables
from agentq.settings import Settings
from agentq.settings.masking import mask
from agentq.store.embedded import EmbeddedServer
from agentq.store.locate import broker_url

_START_LIMIT = timedelta(seconds=60)
_DASHBOARD = "dashboard"
_STOP_SLACK = timedelta(seconds=5)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What is wanted."""

    app: str | None
    """``module:attribute``; without one there are no workers and no dashboard."""
    pools: tuple[str, ...]
    models: bool
    dashboard: bool
    dashboard_port: int | None = None
    """None: as the settings say; 0: any free one."""
    any_port: bool = False
    """Whether the dashboard takes any free port where its own is in use, and says so."""
    data_dir: Path | None = None
    """Of the embedded server; None: as the settings say, and no server where a broker is set."""
    drain: timedelta | None = None
    """What running steps may take at the end; None: as the settings say."""
    logs: Path | None = None
    """Folder for what the parts write; None: they write where this process does."""
    small: Small = AS_IT_IS
    """The machine that is imitated."""


class Up:
    """Started and watched from the main thread; `with` ends it, whatever happens."""

    def __init__(self, *, settings: Settings, parts: Parts, say: Callable[[str], None]) -> None:
        """Take the parts; nothing runs before `start`. *say* gets one line for each."""
        self.environment: dict[str, str] = {}
        """What children, and whoever submits, need to find broker and models."""
        self.missing: tuple[str, ...] = ()
        """A line for each model that the local server lacks."""
        self.models: tuple[str, ...] = ()
        """The names of the models that the local server has."""
        self.dashboard_address: str | None = None
        chosen = parts.dashboard_port
        self._dashboard_port = settings.dashboard.port if chosen is None else chosen
        self._settings = settings
        self._parts = parts
        self._say = say
        self._server: EmbeddedServer | None = None
        self._broker: Kept | None = None
        self._models: Kept | None = None
        self._drain = settings.worker.drain_timeout
        if parts.drain is not None:
            self._drain = parts.drain
            self.environment["AGENTQ_WORKER__DRAIN_TIMEOUT"] = format_duration(parts.drain)
        self._imitation = Imitation(small=parts.small, settings=settings)
        self._children = Children(
            stop_limit=self._drain + _STOP_SLACK, start_limit=_START_LIMIT * parts.small.slowness
        )
        self._running = ExitStack()

    @property
    def pids(self) -> dict[str, int]:
        """Return name -> process id of workers and dashboard."""
        return self._children.pids

    def start(self) -> None:
        """Start all and return when all take work.

        Raises:
            AgentQError: what could not be started; everything else is ended again.
        """
        try:
            self._look_at_port()
            self._running.callback(self._imitation.stop)
            for line in self._imitation.start():
                self._say(line)
            self.environment |= self._imitation.variables()
            self._start_broker()
            if self._parts.models:
                self._start_models()
            folder = TemporaryDirectory(prefix="agentq-", dir=self._parts.data_dir)
            self._runtime = Path(self._running.enter_context(folder))
            self._running.callback(self._children.stop, self._say_who_drains)
            self._start_children()
        except BaseException:
            self.stop()
            raise

    def round(self, timeout: float) -> None:
        """Watch for at most *timeout* seconds; what has died is started again and said.

        Raises:
            AgentQError: something cannot be kept running.
        """
        if self._broker is not None and self._server is not None:
            for line in self._broker.round():
                self._say(line)
            self._imitation.spare(self._server.pid)
        if self._models is not None:
            self._keep_models(self._models)
        for line in (*self._imitation.round(), *self._children.round(timeout)):
            self._say(line)

    def stop(self) -> None:
        """End all, in the reverse order; safe twice."""
        self._running.close()

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and say so."""
        try:
            self.stop()
        finally:
            self._say_at_the_end("Ended; nothing is left running.")

    def _say_who_drains(self, names: list[str]) -> None:
        if workers := [name for name in names if name != _DASHBOARD]:
            self._say_at_the_end(
                f"ending: {', '.join(workers)} may finish running steps within "
                f"{format_duration(self._drain)} (worker.drain_timeout); Ctrl-C again ends at once"
            )

    def _say_at_the_end(self, line: str) -> None:
        with suppress(OSError):  # the terminal has gone, and what runs still is to end in order
            self._say(line)

    def _look_at_port(self) -> None:
        """Before anything runs: found in use later it would end all that runs by then."""
        wanted = self._parts.dashboard and self._parts.app is not None and _has_flower()
        host, port = self._settings.dashboard.host, self._dashboard_port
        if wanted and port and not self._parts.any_port and is_taken(host, port):
            raise address_in_use(host, port)

    def _start_broker(self) -> None:
        if self._parts.data_dir is None and (url := self._settings.require_broker()):
            elsewhere = ", not imitated" if self._parts.small != AS_IT_IS else ""
            self._say(f"broker: {mask(url)} (broker.url){elsewhere}")
            return
        app = self._parts.app or "MODULE:NAME"
        seat = plan_of(self._settings, cpu_steps=True).broker
        with starting_on(seat.node):
            server = start_embedded(
                self._settings,
                data_dir=self._parts.data_dir,
                maxmemory=self._parts.small.broker_memory,
                remedy=", or start one more worker beside it: "
                f"agentq worker --pool shared --index 1 -A {app}",
            )
        self._server, self._broker = server, Kept(name="broker", server=server)
        self._running.callback(server.stop)
        self.environment["AGENTQ_BROKER__URL"] = server.url
        where = f", {pin(seat.cores, pid=server.pid)}" if seat.cores else ""
        self._say(f"broker: {describe(server)}{where}")

    def _start_models(self) -> None:
        if url := self._settings.model.base_url:
            why = why_silent(url)
            silent = f" answers nothing: {why}; calls to a model will fail" if why else ""
            self._say(f"models: {mask(url)} (model.base_url){silent}")
            return
        kept = data_folder(self._settings) / "models.log"
        log = self._log("models") or kept
        server = ModelServer(log=log)
        try:
            self._running.enter_context(server)
        except AgentQError as error:
            self.missing = (str(error),)
            where = f"; its log: {log}" if log == kept else ""  # else it goes with its folder
            self._say(f"models: none: {error}; or set model.base_url to another server{where}")
            return
        self._models = Kept(name="models", server=server)
        served = server.models
        assert served is not None  # noqa: S101 -- it has started
        self.missing = served.missing
        self.models = tuple(name for name in (served.chat, served.embedding) if name)
        self.environment["AGENTQ_MODEL__BASE_URL"] = served.url
        for setting, name in (
            ("LARGE", served.chat), ("SMALL", served.chat), ("EMBEDDING", served.embedding),
        ):  # fmt: skip
            if name:
                self.environment[f"AGENTQ_MODEL__{setting}"] = name
        self._say(f"models: {', '.join(self.models) or 'none'}, process {server.pid}, {served.url}")
        for line in served.missing:
            self._say(f"models: missing: {line}")

    def _keep_models(self, models: Kept) -> None:
        try:
            for line in models.round():
                self._say(line)
        except AgentQError as error:  # all that needs no model goes on
            self._models = None
            self._say(f"models: given up: {error}")

    def _start_children(self) -> None:
        if self._parts.app is None:
            self._say(
                "workers: none, since no app is named: -A module:attribute, or the setting app"
            )
            return
        for name in self._parts.pools:
            for index in range(self._settings.pools[name].processes):
                self._children.start(self._worker(name, index))
        if self._parts.dashboard and self._has_dashboard():
            self._children.start(self._dashboard())
        for name, line in self._children.await_ready().items():
            if name == _DASHBOARD:
                self._say_where(line)
            else:
                self._say(line)

    def _say_where(self, address: str) -> None:
        self.dashboard_address = address
        port = self._dashboard_port
        if self._parts.any_port and f":{port}/" not in address:
            self._say(f"dashboard: port {port} is in use; it took another")
        self._say(f"dashboard: {address}")

    def _worker(self, pool: str, index: int) -> Spec:
        own = launch_variables(self._settings.pools[pool], self._settings)
        runtime = self._runtime / f"{pool}-{index}"
        runtime.mkdir(exist_ok=True)
        own["RUNTIME_DIRECTORY"] = str(runtime)
        return Spec(
            name=f"{pool}-{index}",
            arguments=(
                "worker", "--pool", pool, "--index", str(index), "-A", str(self._parts.app)
            ),
            environment={**self.environment, **own, RELAUNCHED: "1"},
            log=self._log(f"{pool}-{index}"),
            on_end=lambda status: self._hand_back(LeaseNote(environ=own), status),
        )  # fmt: skip

    def _hand_back(self, note: LeaseNote, status: int) -> str:
        """Have what a dead worker held start elsewhere at once, not when its lease runs out."""
        url = self.environment.get("AGENTQ_BROKER__URL") or broker_url(self._settings)
        return found_dead(note, self._settings, url=url, suspects=status != 0)

    def _has_dashboard(self) -> bool:
        if not (found := _has_flower()):
            self._say(f"dashboard: none; for Flower: {pip_install('dashboard')}")
        return found

    def _dashboard(self) -> Spec:
        return Spec(
            name=_DASHBOARD,
            arguments=(
                "dashboard", "-A", str(self._parts.app), "--port", str(self._dashboard_port),
                *(("--any-port",) if self._parts.any_port else ()),
            ),
            environment=self.environment,
            log=self._log(_DASHBOARD),
            essential=False,
        )  # fmt: skip

    def _log(self, name: str) -> Path | None:
        return self._parts.logs / f"{name}.log" if self._parts.logs else None


def _has_flower() -> bool:
    return all(map(find_spec, ("flower", "agentq.dashboard.command")))
