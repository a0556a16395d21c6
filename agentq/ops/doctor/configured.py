"""The settings: what is refused, what is odd, and what does not fit production."""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys
from collections.abc import Iterator, Mapping
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from agentq.clock import format_duration
from agentq.extras import pip_install
from agentq.ops.doctor.finding import Finding, error, note, unchecked, warning
from agentq.settings.sources import CRASH_VARIABLE
from agentq.store.address import is_loopback

if TYPE_CHECKING:
    from agentq.settings import Settings

SHORTEST_LEASE = timedelta(seconds=2)
"""A fork of the broker or a pause of the machine takes hundreds of milliseconds."""

_SLOW_HANDLERS = (
    logging.FileHandler,
    logging.handlers.SocketHandler,
    logging.handlers.SysLogHandler,
    logging.handlers.SMTPHandler,
    logging.handlers.HTTPHandler,
)
"""Of Python's own, those that wait for a disk or another machine in the thread that logs."""


def is_production(settings: Settings) -> bool:
    """Whether these are the settings of production."""
    return settings.env == "production"


def leases(settings: Settings) -> Iterator[Finding]:
    """Find a lease and a hang timeout that do not fit."""
    lease, hang = settings.worker.lease, settings.worker.hang_timeout
    if hang > lease:
        yield warning(
            "settings.hang_timeout",
            f"worker.hang_timeout {format_duration(hang)} is longer than worker.lease "
            f"{format_duration(lease)}",
            why="a hung worker's steps start elsewhere after both together: "
            f"{format_duration(hang + lease)}",
            remedy=f'hang_timeout = "{format_duration(lease * 2 / 3)}" under [worker]',
        )
    if lease < SHORTEST_LEASE:
        yield warning(
            "settings.lease",
            f"worker.lease is {format_duration(lease)}",
            why="a pause of the machine or the broker that is longer costs a worker all its steps",
            remedy='lease = "15s" under [worker]',
        )


def production(settings: Settings) -> Iterator[Finding]:
    """Find what production lacks; nothing elsewhere."""
    if not is_production(settings):
        return
    if settings.broker.url is None:
        yield error(
            "settings.broker",
            "production without broker.url",
            why="a server that starts by itself has no replica and no backup: workers and "
            "producers refuse to run on it",
            remedy="AGENTQ_BROKER__URL=agentq://host:6379/0, or url under [broker]",
        )
    if settings.blobs.store is None and settings.blobs.directory is None:
        yield note(
            "settings.blobs",
            "no place for payloads beyond broker.max_payload "
            f"({settings.broker.max_payload:,} bytes)",
            why="they are refused with PayloadTooLarge",
            remedy='directory = "/shared/folder" under [blobs], or store = "s3://bucket/prefix"; '
            'store = "none" where that is meant',
        )
    yield from _in_the_clear(settings)


def _in_the_clear(settings: Settings) -> Iterator[Finding]:
    url = settings.broker.url or ""
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2]
    if parts.scheme != "agentq" or is_loopback(hosts.strip("[")):
        return
    yield warning(
        "settings.tls",
        "broker.url is agentq:// to another machine: neither encrypted nor certified",
        why="arguments, results and the password can be read and changed on the way",
        remedy="agentq+tls://host:6380/0?ssl_ca_certs=ca.pem",
    )


def model(settings: Settings) -> Iterator[Finding]:
    """Find a model server that nothing here can call."""
    if settings.model.base_url and find_spec("httpx2") is None:
        yield error(
            "settings.model",
            f"model.base_url is set and httpx2 is not installed in {sys.prefix}",
            why="each step that calls a model fails with ModelUnavailable",
            remedy=f"{sys.executable} -m {pip_install('inference')}",
        )


def blobs(settings: Settings) -> Iterator[Finding]:
    """Find a blobs folder that this user can not write."""
    folder = settings.blobs.directory
    if folder is None or settings.blobs.store not in {None, "directory"}:
        return
    missing = not folder.is_dir()
    if missing or not os.access(folder, os.W_OK | os.X_OK):
        yield warning(
            "settings.blobs",
            f"blobs.directory {folder} {'is not there' if missing else 'can not be written'}",
            why="a payload beyond broker.max_payload can then be neither sent nor read here; a "
            "folder that a mount should have brought is made beside it instead",
            remedy=f"mount it, or: install -d -m 2770 -o $USER {folder}",
        )


def dashboard(settings: Settings) -> Iterator[Finding]:
    """Find a dashboard that others reach."""
    if not is_loopback(settings.dashboard.host):
        yield warning(
            "settings.dashboard",
            f"dashboard.host is {settings.dashboard.host}",
            why="Flower has no login of its own: who reaches it sees arguments and results, and "
            "can stop workers",
            remedy='host = "127.0.0.1" under [dashboard], and a proxy with a login before it',
        )


def logs(settings: Settings) -> Iterator[Finding]:
    """Find logging that holds up steps; of the user's app, where one was named and is loaded."""
    if not is_production(settings):
        return
    if settings.log.level == "DEBUG":
        yield warning(
            "settings.log",
            "log.level is DEBUG in production",
            why="each step writes lines, synchronously, in the thread that runs all the others",
            remedy='level = "WARNING" under [log] of config/production.toml',
        )
    for name, handler in _handlers():
        yield warning(
            "settings.log",
            f"logger {name!r} has a {type(handler).__name__}, which writes synchronously",
            why="the event loop stands still while a disk or another machine takes the line",
            remedy="put a logging.handlers.QueueHandler and QueueListener between, or log to "
            "standard error alone",
        )


def _handlers() -> Iterator[tuple[str, logging.Handler]]:
    """Yield those that stay in a worker, which gives only the root logger its own."""
    for name, logger in sorted(logging.Logger.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger):
            for handler in logger.handlers:
                if isinstance(handler, _SLOW_HANDLERS):
                    yield name, handler


def variables(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Find variables that have no place in production."""
    if not is_production(settings):
        return
    debugging = {
        "PYTHONASYNCIODEBUG": "asyncio's debug mode makes each step several times as dear",
        "PYTHONDEVMODE": "Python's development mode slows everything down",
        CRASH_VARIABLE: "it ends processes at a chosen place, for tests",
    }
    for name, why in debugging.items():
        if environ.get(name, "0") != "0":
            yield warning(
                "settings.variables",
                f"{name} is set in production",
                why=why,
                remedy=f"unset {name}",
            )


def app(settings: Settings, *, named: bool) -> Iterator[Finding]:
    """Say where the user's app was not looked at."""
    if not named and is_production(settings):
        yield unchecked(
            "settings.app", "no app is named: its settings and its loggers are not known",
            remedy="agentq doctor -A module:attribute, or app in config/default.toml",
        )  # fmt: skip
