"""`agentq deploy`: systemd units for this machine, written to read or put in place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentq.cli.options import App, Json

if TYPE_CHECKING:
    from agentq.ops.deploy.deployment import Given, Site
    from agentq.ops.deploy.install import Changes
    from agentq.ops.deploy.machine import Machine

deploy = typer.Typer(
    name="deploy",
    help="systemd units for this machine: render them to read, install and uninstall them.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Folder = Annotated[
    Path | None,
    typer.Option("--folder", help="Your project: app and config/. Default: this folder."),
]
Python = Annotated[
    Path | None,
    typer.Option("--python", help="Of the environment that has both. Default: this one's."),
]
User = Annotated[str | None, typer.Option("--user", help="Who they run as. Default: agentq.")]
FromShell = Annotated[
    bool,
    typer.Option("--from-shell", help="Take this shell's AGENTQ_ variables over installed ones."),
]
Root = Annotated[
    Path, typer.Option("--root", help="Write below this folder instead of /, and run nothing.")
]


@deploy.command("render")
def render(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where; made if missing.")],
    app: App = None,
    folder: Folder = None,
    python: Python = None,
    user: User = None,
) -> None:
    """Write what [bold]install[/bold] would put below / into DIR, to be read; changes nothing else.

    The values are those of the settings, the app's code included, and of this machine's placement.
    AGENTQ_ variables of this shell become those of the units, as at the first installation;
    broker.url, dashboard.broker_url and model.api_key become credentials.

    Example: agentq deploy render --out units -A myproject.flows:aq
    """
    from agentq.ops.deploy.deployment import given_by, load, plan_at, with_code
    from agentq.ops.deploy.install import write_files
    from agentq.ops.deploy.machine import Machine, render_all
    from agentq.ops.deploy.render import notes

    site = _site(Machine(), app, folder, python, user)
    given = with_code(site, given_by(os.environ))
    settings = load(site, given, {})
    files = render_all(site, settings, plan_at(site, given, {}), given)
    write_files(out, files)
    for name in files:
        typer.echo(out / name)
    for line in notes(settings, given):
        typer.echo(f"note: {line}", err=True)


@deploy.command("install")
def install(
    app: App = None,
    folder: Folder = None,
    python: Python = None,
    user: User = None,
    root: Root = Path("/"),
    from_shell: FromShell = False,
    as_json: Json = False,
) -> None:
    """Put units, settings, user and kernel settings in place; as root. Again, it brings up to date.

    A file that was edited since is left as it is, and said. Nothing is started or restarted:
    [bold]systemctl start agentq.target[/bold], or [bold]agentq rollout[/bold] where it runs, which
    also ends what an agentq scale has added. What runs goes over to the cores and the memory limit
    that it has now.

    The first time AGENTQ_ variables of this shell become those of the units. Later they change
    nothing without [bold]--from-shell[/bold]; in what they differ is said, passwords apart.

    Example: agentq deploy install -A myproject.flows:aq
    """
    from agentq.ops.deploy.deployment import load, plan_at, with_code
    from agentq.ops.deploy.machine import Machine, next_steps
    from agentq.ops.deploy.render import notes as rights
    from agentq.ops.deploy.reseat import install_seated

    with _allowed(root):
        machine = Machine(root=root)
        given, notes = _given(machine, from_shell=from_shell)
        site = _site(machine, app, folder, python, user)
        site.require_visible()
        given = with_code(site, given, as_user=root == Path("/"))
        settings = load(site, given, {})
        plan = plan_at(site, given, {})
        put = install_seated if root == Path("/") else Machine.install
        changes = put(machine, site, settings, plan, given)
    changes.notes += [*notes, *rights(settings, given), *next_steps(machine)]
    _report(changes, as_json=as_json)


@deploy.command("uninstall")
def uninstall(root: Root = Path("/"), as_json: Json = False) -> None:
    """Stop all in order and remove what install has written; as root.

    What was edited or put beside it, the data in /var/lib/agentq and the user stay, and are said.
    """
    from agentq.ops.deploy.machine import Machine

    with _allowed(root):
        machine = Machine(root=root)
        site = machine.require().site
        changes = machine.uninstall()
    _report(changes, as_json=as_json)
    if not as_json and root == Path("/"):
        typer.echo(f"left: data in /var/lib/agentq; user {site.user} (userdel -r {site.user})")
        typer.echo("left: the kernel settings, until the next boot")


def _given(machine: Machine, *, from_shell: bool) -> tuple[Given, list[str]]:
    """Return the settings that the units get beside their files, and what is to be said of them."""
    from agentq.ops.deploy.deployment import given_by
    from agentq.ops.deploy.shell import differences, taken

    shell = given_by(os.environ)
    if machine.record is None:
        return shell, []
    installed = machine.given()
    differ = differences(installed, shell)
    if from_shell:
        return taken(installed, shell), [f"changed: {line}" for line in differ]
    return installed, [
        f"left as installed, this shell has another: {line} (--from-shell takes it)"
        for line in differ
    ]


def _site(
    machine: Machine, app: str | None, folder: Path | None, python: Path | None, user: str | None
) -> Site:
    """Return what is asked for; what is left out is as it is installed, else as it is here."""
    import sys

    from agentq.errors import DeployError
    from agentq.ops.deploy.deployment import Site
    from agentq.settings import load_settings

    before = machine.record.site if machine.record else None
    app = app or (before.app if before else load_settings().app)
    if not app:
        raise DeployError("no app is named: -A MODULE:NAME, or the setting app")
    return Site(
        app=app,
        folder=(folder.absolute() if folder else before.folder if before else Path.cwd()),
        python=python.absolute() if python else before.python if before else Path(sys.executable),
        user=user or (before.user if before else "agentq"),
    )


@contextmanager
def _allowed(root: Path) -> Iterator[None]:
    """Change what is below *root*: the machine itself as root only, and nobody else meanwhile."""
    from agentq.ops.deploy.alone import alone
    from agentq.ops.deploy.machine import ROOT
    from agentq.ops.deploy.systemd import require_root

    if root == ROOT:
        require_root()
    with alone(root):
        yield


def _report(changes: Changes, *, as_json: bool) -> None:
    if as_json:
        import orjson

        typer.echo(orjson.dumps(changes).decode())
        return
    for what, names in (
        ("written", changes.written), ("removed", changes.removed),
        ("edited, kept", changes.kept),
    ):  # fmt: skip
        for name in names:
            typer.echo(f"{what}: /{name}")
    for line in changes.refused:
        typer.echo(f"refused: {line}")
    for line in changes.notes:
        typer.echo(f"note: {line}")
    if changes.same:
        typer.echo(f"unchanged: {len(changes.same)} files")
