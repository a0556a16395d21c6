"""`agentq broker`: what an administrator does at a server, once for each build."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentq.cli.options import App, Json

if TYPE_CHECKING:
    from agentq.store.library import Functions

broker = typer.Typer(
    name="broker",
    help="The server: load agentq's functions into it, print the rights that each role needs.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

_MISSING = 1


@broker.command("init")
def init(
    check: Annotated[
        bool, typer.Option("--check", help="Load nothing: exit code 1 where they are missing.")
    ] = False,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Load the functions of this build into the broker; newer ones that are there stay.

    In development workers and producers load them themselves. Where their users may not, run this
    as one who may (the admin of [bold]agentq broker acl[/bold]) before a new build starts; its
    workers wait for it. Workers of the build before go on: old code may call newer functions.

    Example: AGENTQ_BROKER__URL=agentq://agentq-admin:PASSWORD@host:6379/0 agentq broker init
    """
    from agentq.ops.application import cell_of
    from agentq.store import library

    store = cell_of(app)
    found = store.find_functions() if check else store.ensure_functions()
    there = found is not None and found.revision >= library.REVISION
    if as_json:
        import orjson

        body = {
            "library": library.LIBRARY, "needed": library.REVISION,
            "revision": found.revision if found else None, "there": there,
            "loaded": found is not None and found.loaded, "functions": library.names(),
        }  # fmt: skip
        typer.echo(orjson.dumps(body).decode())
    else:
        typer.echo(_said(found))
    raise typer.Exit(0 if there else _MISSING)


def _said(found: Functions | None) -> str:
    from agentq.store import library

    if found is None:
        return f"the functions {library.LIBRARY} are missing: agentq broker init loads them"
    what = f"functions {library.LIBRARY}, revision {found.revision}"
    if found.loaded:
        return f"{what}: loaded, {len(library.names())} of them"
    if found.revision < library.REVISION:
        return f"{what}; this build needs revision {library.REVISION}: agentq broker init loads it"
    return f"{what}: there already"


@broker.command("serve")
def serve(
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", help="Default: embedded.data_dir, else this user's own."),
    ] = None,
) -> None:
    """Run the embedded server alone, for workers that others start; Ctrl-C or SIGTERM ends it.

    It listens on a socket in its data directory, for this user only, and is started again when it
    dies. [bold]agentq up[/bold] does this itself.

    Example: agentq broker serve --data-dir /var/lib/agentq
    """
    from agentq.cli.announcing import announcer
    from agentq.cli.told_to_end import ending_in_order
    from agentq.ops.embedded_broker import describe, start_embedded
    from agentq.settings import load_settings

    with ending_in_order(), ExitStack() as stack:
        server = start_embedded(load_settings(), data_dir=data_dir, remedy="")
        stack.callback(server.stop)
        announcer(-1)(f"broker: {describe(server)}")
        while True:
            time.sleep(1)
            server.start()  # does nothing while it runs


@broker.command("acl")
def acl(
    app: App = None,
    passwords: Annotated[
        Path | None,
        typer.Option(
            "--passwords", help="Keep passwords in this file, made where missing; print hashes."
        ),
    ] = None,
) -> None:
    """Print a server's ACL file: users for producers, workers, the dashboard and the admin.

    Its first line turns off the user that needs no password. No user may EVAL or leave this cell;
    only the admin may load functions, pause, purge and handle dead letters.

    Example: agentq broker acl --passwords /root/agentq-passwords > /etc/redis/users.acl
    """
    from agentq.ops.acl import kept_passwords, lines
    from agentq.ops.application import cell_of

    address = cell_of(app).address
    kept = kept_passwords(passwords) if passwords else None
    for line in lines(cell=address.cell, db=address.db, passwords=kept):
        typer.echo(line)
