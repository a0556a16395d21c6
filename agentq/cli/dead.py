"""`agentq dead`: the dead letters, looked at, replayed, dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentq.cli.options import App, Json

if TYPE_CHECKING:
    from agentq.ops.dead import Letter, Wanted
    from agentq.store.client import Store

dead = typer.Typer(
    name="dead",
    help="Dead letters: what could not be run, kept with its reason.\n\n"
    "A letter is kept for [bold]dead.keep[/bold] (14d), and the newest "
    "[bold]dead.max_number[/bold] (10,000) of [bold]dead.max_bytes[/bold] (64 MiB) together.",
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
Yes = Annotated[
    bool, typer.Option("--yes", help="Do it: drop wants it where no letters are named.")
]
_Act = Callable[["Store", Iterable[str], bool], None]
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
    from agentq.ops.dead import kept, letters, questions, with_obstacles

    store = _store(app)
    found = letters(store, _wanted(reason, task, pool, since))
    all_ = kept(*store.pipeline(questions(store.keys)))
    if as_json:
        plain = [_plain(letter, obstacle) for letter, obstacle in with_obstacles(store, found)]
        _print({"letters": plain, "all": all_})
        return
    from rich.markup import escape

    from agentq.cli.tables import plain_console, plain_table, print_table

    table = plain_table("letter", "died", "task", "queue", ">attempts", "reason", prose="reason")
    for letter in found:
        queue = f"{letter.pool}:{letter.lane}" if letter.pool else "-"
        table.add_row(
            letter.id, f"{letter.died:%Y-%m-%d %H:%M:%S}", escape(letter.task) or "-", queue,
            str(letter.attempts), escape(letter.reason),
        )  # fmt: skip
    console = plain_console()
    if table.row_count:
        print_table(console, table)
    console.print(f"in all: {all_}")


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
    from agentq.ops.dead import with_obstacles

    store = _store(app)
    [(read_, obstacle)] = with_obstacles(store, [read(store, letter)])
    found = _plain(read_, obstacle, whole=True)
    if as_json:
        _print(found)
        return
    for name, value in found.items():
        shown = str(value) if value not in (None, "") else "-"
        cut = f"... ({len(shown)} characters; --json has all)" if len(shown) > _BODY_SHOWN else ""
        typer.echo(f"{name.replace('_', ' ') + ':':<10} {shown[:_BODY_SHOWN]}{cut}")


def _on_letters(*, final: bool) -> Callable[[_Act], Callable[..., None]]:
    """Give a command the arguments that say which letters it is for; *final*: it asks for --yes."""

    def of(act: _Act) -> Callable[..., None]:
        def command(
            ids: Ids = None,
            reason: ByReason = "",
            task: ByTask = "",
            pool: ByPool = "",
            since: BySince = None,
            everything: All = False,
            yes: Yes = False,
            app: App = None,
            as_json: Json = False,
        ) -> None:
            from agentq.ops.dead import Wanted, letters

            wanted = _wanted(reason, task, pool, since)
            if bool(ids) + (wanted != Wanted()) + everything != 1:
                raise typer.BadParameter(
                    "name letters, or say which by filters, or --all", param_hint="ID"
                )
            if final and not ids and not yes:
                raise typer.BadParameter(
                    "it deletes for good: say that you mean it", param_hint="--yes"
                )
            store = _store(app)
            act(store, ids or (letter.id for letter in letters(store, wanted)), as_json)

        command.__doc__ = act.__doc__
        return command

    return of


@dead.command("replay")
@_on_letters(final=False)
def _replay(store: Store, chosen: Iterable[str], as_json: bool) -> None:  # noqa: FBT001 -- the option
    """Move dead letters back into their queues, as new: no delay, no attempts charged, no expiry.

    A letter whose run has ended stays, and so does one of which only the beginning was kept.
    Interrupted, it is just given again: what was moved is no letter any more.

    Example: agentq dead replay --reason "worker died" --since 2h
    """
    from agentq.ops.dead import replay

    done = replay(store, chosen)
    if as_json:
        _print({"replayed": done.moved, "refused": done.refused})
    else:
        typer.echo(f"{_count(done.moved)} replayed")
        for id_, why in done.refused.items():
            typer.echo(f"{id_} left: {why}")
    if done.refused:
        raise typer.Exit(1)


@dead.command("drop")
@_on_letters(final=True)
def _drop(store: Store, chosen: Iterable[str], as_json: bool) -> None:  # noqa: FBT001 -- the option
    """Delete dead letters for good; those that are not named one by one only with --yes.

    Example: agentq dead drop --task shop.old --yes
    """
    from agentq.ops.dead import drop

    count = drop(store, chosen)
    if as_json:
        _print({"dropped": count})
    else:
        typer.echo(f"{_count(count)} dropped")


def _store(app: str | None) -> Store:
    from agentq.ops.application import cell_of

    return cell_of(app)


def _wanted(reason: str, task: str, pool: str, since: str | None) -> Wanted:
    from agentq.cli.options import duration
    from agentq.ops.dead import Wanted

    return Wanted(reason=reason, task=task, pool=pool, since=duration(since, "--since"))


def _count(number: int) -> str:
    return f"{number} dead letter" + ("s" if number != 1 else "")


def _plain(letter: Letter, obstacle: str, *, whole: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": letter.id, "reason": letter.reason, "task": letter.task, "task_id": letter.task_id,
        "pool": letter.pool, "lane": letter.lane, "run": letter.run, "join": letter.join,
        "attempts": letter.attempts, "retries": letter.retries,
        "born": letter.born.isoformat() if letter.born else None, "died": letter.died.isoformat(),
        "size": letter.size, "replayable": not obstacle, "obstacle": obstacle,
    }  # fmt: skip
    if whole:
        found["headers"] = letter.headers.decode(errors="backslashreplace")
        found["body"] = letter.body.decode(errors="backslashreplace")
    return found


def _print(body: object) -> None:
    import orjson

    typer.echo(orjson.dumps(body).decode())
