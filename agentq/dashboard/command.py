"""Starts the dashboard: `agentq dashboard`, and `celery -A module:app agentq` with Flower's flags.

Flower's own options come from its flags or `FLOWER_*` variables in both, e.g. a login from
`FLOWER_BASIC_AUTH=user:password`. It is read-only unless control is asked for, and without a login
it stays on this machine and takes no orders.
"""

from __future__ import annotations

import errno
import logging
import signal
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

import click
import flower.command
import flower.urls
from celery.bin.base import CeleryCommand
from tornado.options import options

from agentq.broker.app import App
from agentq.dashboard.application import Dashboard
from agentq.errors import AgentQError, SettingsError
from agentq.ops.dashboard_port import address_in_use

MAX_TASKS = 10_000
"""Tasks that Flower keeps in memory, the oldest go first; its own limit is 100,000."""

_LOGIN = "set FLOWER_BASIC_AUTH=user:password"


def serve(
    aq: App,
    *,
    host: str,
    port: int,
    announce: Callable[[str], None],
    control: bool = False,
    any_port: bool = False,
) -> None:
    """Run Flower in this thread, the main one, until SIGTERM or SIGINT.

    Args:
        aq: the app whose cell is shown.
        host: where it listens; anything but loopback needs a login.
        port: 0 takes any free one.
        announce: called with the address, `http://host:port/`, once it listens.
        control: whether pages may shut down workers, revoke tasks and the like; needs a login.
        any_port: take any free port where *port* is in use.

    Raises:
        AddressInUse: something listens there.
        SettingsError: it cannot listen there, or a login is needed and there is none.
        BrokerNotConfigured: there is no cell to show.
    """
    _presets(aq)
    flower.command.apply_env_options()
    options.address, options.port = host, port
    _run(aq, announce=announce, control=control, any_port=any_port)


@click.command("agentq", cls=CeleryCommand, context_settings={"ignore_unknown_options": True})
@click.option("--control", is_flag=True, help="Let pages give orders to workers; needs a login.")
@click.argument("flower_arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def agentq_flower(ctx: click.Context, control: bool, flower_arguments: tuple[str, ...]) -> None:  # noqa: FBT001 -- click's
    """Flower with agentq's pages; takes Flower's options."""
    aq = getattr(ctx.obj.app, "aq", None)
    if aq is None:
        raise click.UsageError("-A names no AgentQ app: name the module that has `aq = AgentQ()`")
    _presets(aq)
    flower.command.apply_env_options()
    flower.command.apply_options("agentq", flower_arguments)
    try:
        _run(aq, announce=click.echo, control=control)
    except AgentQError as error:
        raise click.ClickException(str(error)) from error


def _presets(aq: App) -> None:
    """Set what differs from Flower's defaults; its flags and variables come after this."""
    options.address = aq.settings.dashboard.host
    options.port = aq.settings.dashboard.port
    options.max_tasks = MAX_TASKS


def _run(
    aq: App, *, announce: Callable[[str], None], control: bool, any_port: bool = False
) -> None:
    _ = aq.address  # fails here, and not on every page, where there is no broker
    _require_login(control=control)
    options.read_only = not control
    flower.command.extract_settings()
    flower.command.setup_logging()
    # It warns four times per round where no worker answers, which the pages show anyway.
    logging.getLogger("flower.inspector").setLevel(logging.ERROR)
    dashboard = Dashboard(aq=aq, options=options, settings=flower.urls.settings)
    port = _listen(dashboard, any_port=any_port)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: dashboard.io_loop.add_callback_from_signal(dashboard.stop))
    announce(_address(port))
    try:
        dashboard.start()
    finally:
        dashboard.stop()


def _require_login(*, control: bool) -> None:
    if options.basic_auth or options.auth:
        return
    if control:
        raise SettingsError(
            f"control of workers needs a login: {_LOGIN}, or stay read-only without --control"
        )
    if not _is_loopback(options.address):
        raise SettingsError(
            f"dashboard.host {options.address!r} would show all runs to the network without a "
            f"login: {_LOGIN}, or dashboard.host to 127.0.0.1 behind a proxy that has one"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(dashboard: Dashboard, *, any_port: bool) -> int | None:
    try:
        port: int | None = dashboard.start_http_server()
    except OSError as error:
        if error.errno == errno.EADDRINUSE and any_port:
            options.port = 0
            return _listen(dashboard, any_port=False)
        if error.errno == errno.EADDRINUSE:
            raise address_in_use(options.address, options.port) from error
        raise SettingsError(
            f"the dashboard cannot listen on {options.address}:{options.port}: {error.strerror}; "
            "set dashboard.host and dashboard.port to an address of this machine"
        ) from error
    return port


def _address(port: int | None) -> str:
    if port is None:
        return str(options.unix_socket)
    host: Any = f"[{options.address}]" if ":" in options.address else options.address
    scheme = "https" if "ssl_options" in flower.urls.settings else "http"
    prefix = f"{options.url_prefix.strip('/')}/" if options.url_prefix else ""
    return f"{scheme}://{host}:{port}/{prefix}"
