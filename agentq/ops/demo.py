"""`agentq demo` without its face: a whole installation in a temporary folder, and one run on it."""

from __future__ import annotations

import fcntl
import os
import queue
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from agentq.errors import AgentQError, ModelUnavailable, RunError, SettingsError
from agentq.inference.presence import why_silent
from agentq.ops.application import DEMO, load_app
from agentq.ops.up import Parts, Up
from agentq.runs.handle import RunHandle
from agentq.runs.record import RunEvent, RunStatus
from agentq.settings import Settings, load_settings
from agentq.settings.masking import mask
from agentq.store.embedded import default_data_dir

_PREFIX = "agentq-demo-"
_SOCKET_ROOM = 60
"""Bytes of a folder's path beyond which the system's limit for sockets comes near."""
_ROUND_S = 0.25
_DRAIN = timedelta(seconds=2)
"""Nobody waits for a demo's steps once it ends."""
DEADLINE = timedelta(minutes=10)


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked, and over what; None for the example's own."""

    text: str | None = None
    docs: Path | None = None
    fresh: bool = False
    """Whether the notes of earlier runs are forgotten first."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of the run."""

    report: Any
    """`tasks.research.Report`."""
    markdown: str
    events: tuple[RunEvent, ...]
    status: RunStatus


@contextmanager
def installation(
    question: Question, *, say: Callable[[str], None], dashboard: bool, port: int | None = None
) -> Iterator[Up]:
    """Run everything in a temporary folder that is gone afterwards, as are its processes.

    *question* is looked at first, so that nothing starts for one that cannot be asked. *port* is
    the dashboard's; None: that of the settings, or a free one where somebody has it.

    The environment of this process then leads to it, so that the app can be imported.

    Raises:
        AgentQError: what could not be started.
    """
    settings = load_settings()
    _check(question, settings)
    sweep()
    with ExitStack() as stack:
        folder = stack.enter_context(_temporary_folder())
        parts = Parts(
            app=DEMO,
            pools=tuple(settings.pools),
            models=True,
            dashboard=dashboard,
            dashboard_port=port,
            any_port=port is None,
            data_dir=folder,
            drain=_DRAIN,
            logs=folder,
        )
        up = stack.enter_context(Up(settings=settings, parts=parts, say=say))
        os.environ.update(up.environment)
        yield up


def ask(question: Question, *, up: Up, on_event: Callable[[RunEvent], None]) -> Outcome:
    """Run the example and return its report; *on_event* sees each event as it comes.

    Raises:
        RunError: it ended without a report. Left by another exception, the run is cancelled.
    """
    research = _research()
    brief = _brief(research, question)
    run: RunHandle = research.flow.submit(brief, deadline=DEADLINE)
    try:
        events = tuple(_watched(run, up, on_event))
        report = run.result(timeout="5s")
    except RunError:
        raise
    except BaseException:
        _give_up(run)
        raise
    return Outcome(
        report=report,
        markdown=research.report_markdown(report),
        events=events,
        status=run.status(),
    )


def sweep() -> None:
    """Remove the folders of demos that were killed: nobody holds their lock any more."""
    for folder in Path(_roomy()).glob(f"{_PREFIX}{os.geteuid()}-*"):
        try:
            with (folder / "demo.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # it runs, or is not ours


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.geteuid()}-", dir=_roomy()))
    with (folder / "demo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _roomy() -> str:
    """Return a temporary folder whose path leaves room for the name of a socket."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= _SOCKET_ROOM else "/tmp"  # noqa: S108 -- mkdtemp's


def _check(question: Question, settings: Settings) -> None:
    if question.docs is not None and not question.docs.is_dir():
        raise SettingsError(f"--docs {question.docs}: there is no such folder")
    url = settings.model.base_url
    if question.fresh and url and (why := why_silent(url)):
        raise ModelUnavailable(
            f"--fresh would forget the notes of earlier runs, and nobody could write new ones: "
            f"{mask(url)} (model.base_url) answers nothing: {why}",
            call="",
        )


def _research() -> ModuleType:
    load_app(DEMO)  # only now is its folder known
    return import_module(DEMO.partition(":")[0])


def _brief(research: ModuleType, question: Question) -> Any:
    memory = default_data_dir() / "research"
    if question.fresh:
        shutil.rmtree(memory / "notes", ignore_errors=True)
    fields: dict[str, Any] = {"memory": str(memory)}
    if question.text is not None:
        fields["question"] = question.text
    if question.docs is not None:
        fields["docs"] = str(question.docs.absolute())
    try:
        return research.Brief(**fields)
    except ValidationError as error:
        why = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise SettingsError(f"this cannot be asked: {why}") from error


def _watched(run: RunHandle, up: Up, on_event: Callable[[RunEvent], None]) -> Iterator[RunEvent]:
    """Yield the run's events; watch the processes meanwhile, which only this thread may start."""
    arrived: queue.SimpleQueue[RunEvent | AgentQError | None] = queue.SimpleQueue()

    def read() -> None:
        try:
            for event in run.events():
                arrived.put(event)
            arrived.put(None)
        except AgentQError as error:
            arrived.put(error)

    threading.Thread(target=read, name="demo-events", daemon=True).start()
    while True:
        try:
            event = arrived.get(timeout=_ROUND_S)
        except queue.Empty:
            up.round(0.0)
            continue
        if isinstance(event, AgentQError):
            raise event
        if event is None:
            return
        on_event(event)
        yield event


def _give_up(run: RunHandle) -> None:
    """Cancel, so that workers need not finish what nobody waits for."""
    try:
        run.cancel()
    except AgentQError:
        return
