"""`agentq dead`: the dead letters, looked at, replayed, dropped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentq.cli.options import App, Json

if TYPE_CHECKING:
    from agentq.ops.dead import Letter, Wanted
    from agentq.store.client import Store

dead = typer.Typer(
    name="dead",
    help="Dead letters: what could not be run, kept with its reason.\n\n"
    "A letter is kept for [bold]dead.keep[/bold] (14d); the newest 10,000 are.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Ids = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="Letters, as list prints.")
]
ByReason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Part of the reason.")]
ByTask = Annotated[str, typer.Option("--task", metavar="NAME", help="The task's or step's name.")]
ByPool = Annotated[str, typer.Option("--pool", metavar="NAME", help="The pool it was in.")]
BySince = Annotated[
    str | None, typer.Option("--since", metavar="DURATION", help="Died within this, e.g. 1h.")
]
All = Annotated[bool, typer.Option("--all", help="All there are.")]
_BODY_SHOWN = 2000


@dead.command("list")
def list_(
    reason: ByReason = "",
    task: ByTask = "",
    pool: ByPool = "",
    since: BySince = None,
    app: App = None,
    as_json: Json = False,
) -> None:
    """List dead letters, oldest first.

    Example: agentq dead list --since 1h --task shop.pay
    """
    from agentq.ops.dead import letters

    found = letters(_store(app), _wanted(reason, task, pool, since))
    if as_json:
        _print({"letters": [_plain(letter) for letter in found]})
        return
    from rich.console import Console
    from rich.markup import escape

    from agentq.cli.tables import plain_table

    table = plain_table("letter", "died", "task", "queue", ">attempts", "reason")
    for letter in found:
        queue = f"{letter.pool}:{letter.lane}" if letter.pool else "-"
        table.add_row(
            letter.id, f"{letter.died:%Y-%m-%d %H:%M:%S}", escape(letter.task) or "-", queue,
            str(letter.attempts), escape(letter.reason),
        )  # fmt: skip
    Console(highlight=False).print(table if table.row_count else "no dead letters")


@dead.command()
def show(
    letter: Annotated[str, typer.Argument(metavar="ID", help="The letter, as list prints it.")],
    app: App = None,
    as_json: Json = False,
) -> None:
    """Show one dead letter with its headers and body.

    Example: agentq dead show 1764499550123-0
    """
    from agentq.ops.dead import letter as read

    found = _plain(read(_store(app), letter), whole=True)
    if as_json:
        _print(found)
        return
    for name, value in found.items():
        shown = str(value) if value not in (None, "") else "-"
        cut = f"... ({len(shown)} characters; --json has all)" if len(shown) > _BODY_SHOWN else ""
        typer.echo(f"{name.replace('_', ' ') + ':':<10} {shown[:_BODY_SHOWN]}{cut}")


@dead.command()
def replay(
    ids: Ids = None,
    reason: ByReason = "",
    task: ByTask = "",
    pool: ByPool = "",
    since: BySince = None,
    everything: All = False,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Move dead letters back into their queues, as new: no delay, no attempts charged.

    A letter whose run has ended stays, and so does one of which only the beginning was kept.
    Interrupted, it is just given again: what was moved is no letter any more.

    Example: agentq dead replay --reason "worker died" --since 2h
    """
    from agentq.ops.dead import replay as move

    store = _store(app)
    done = move(store, _chosen(store, ids, _wanted(reason, task, pool, since), everything))
    if as_json:
        _print({"replayed": done.moved, "refused": done.refused})
    else:
        typer.echo(f"{_count(done.moved)} replayed")
        for id_, why in done.refused.items():
            typer.echo(f"{id_} left: {why}")
    if done.refused:
        raise typer.Exit(1)


@dead.command()
def drop(
    ids: Ids = None,
    reason: ByReason = "",
    task: ByTask = "",
    pool: ByPool = "",
    since: BySince = None,
    everything: All = False,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Delete dead letters for good.

    Example: agentq dead drop --task shop.old
    """
    from agentq.ops.dead import drop as delete

    store = _store(app)
    count = delete(store, _chosen(store, ids, _wanted(reason, task, pool, since), everything))
    if as_json:
        _print({"dropped": count})
    else:
        typer.echo(f"{_count(count)} dropped")


def _store(app: str | None) -> Store:
    from agentq.ops.application import any_app

    return any_app(app).store


def _wanted(reason: str, task: str, pool: str, since: str | None) -> Wanted:
    from agentq.cli.options import duration
    from agentq.ops.dead import Wanted

    return Wanted(reason=reason, task=task, pool=pool, since=duration(since, "--since"))


def _chosen(
    store: Store,
    ids: list[str] | None,
    wanted: Wanted,
    everything: bool,  # noqa: FBT001 -- as given
) -> Iterable[str]:
    from agentq.ops.dead import Wanted, letters

    filtered = wanted != Wanted()
    if bool(ids) + filtered + everything != 1:
        raise typer.BadParameter("name letters, or say which by filters, or --all", param_hint="ID")
    return ids or (letter.id for letter in letters(store, wanted))


def _count(number: int) -> str:
    return f"{number} dead letter" + ("s" if number != 1 else "")


def _plain(letter: Letter, *, whole: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": letter.id, "reason": letter.reason, "task": letter.task, "task_id": letter.task_id,
        "pool": letter.pool, "lane": letter.lane, "run": letter.run, "join": letter.join,
        "attempts": letter.attempts, "retries": letter.retries,
        "born": letter.born.isoformat() if letter.born else None, "died": letter.died.isoformat(),
        "size": letter.size, "replayable": letter.whole and bool(letter.pool),
    }  # fmt: skip
    if whole:
        found["headers"] = letter.headers.decode(errors="backslashreplace")
        found["body"] = letter.body.decode(errors="backslashreplace")
    return found


def _print(body: object) -> None:
    import orjson

    typer.echo(orjson.dumps(body).decode())
