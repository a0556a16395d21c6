"""`agentq status`: the cell as a whole, or one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agentq.cli.options import App, Json

if TYPE_CHECKING:
    from rich.console import Console

    from agentq.ops.status import CellStatus

_GOOD = {"done", "up"}
_BAD = {"failed", "lost", "expired"}


def status(
    run: Annotated[str | None, typer.Argument(help="A run's id; without: everything.")] = None,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Show broker, queues, workers and runs, or the state and the timeline of one run.

    Needs no worker and, without -A, no app.

    Where a run's time went counts every second that its steps waited or ran, those side by side
    each: queue (queued, not started), model and tools (as the steps' calls took), state and
    messages (state, and hand-over between steps), context (putting prompts together), retries
    (failed attempts and pauses, whatever they spent), own code (the rest).

    Example: agentq status --json | jq '.queues[] | select(.waiting > 1000)'
    """
    if run is not None:
        _show_run(app, run, as_json=as_json)
    else:
        _show_cell(app, as_json=as_json)


def _show_run(app: str | None, run_id: str, *, as_json: bool) -> None:
    import orjson

    from agentq.cli.show_run import print_run, run_as_json
    from agentq.cli.tables import plain_console
    from agentq.cli.why import lines
    from agentq.ops.application import any_app
    from agentq.ops.why import explain

    aq = any_app(app)
    handle = aq.run(run_id)
    found, events = handle.status(), handle.history()
    if as_json:
        typer.echo(orjson.dumps(run_as_json(found, events)).decode())
        return
    console = plain_console()
    took = f", took {found.took.total_seconds():.2f} s" if found.took else ""
    console.print(f"{found.flow} {found.id}: {_coloured(found.state.value)}{took}")
    print_run(console, found, events)
    if not found.state.ended:
        console.print("\nNot ended yet")
        for line in lines(explain(aq, run_id)):
            console.print(f"  {line}", markup=False)


def _show_cell(app: str | None, *, as_json: bool) -> None:
    from agentq.ops.application import cell_of
    from agentq.ops.status import read_status

    found = read_status(cell_of(app))
    if as_json:
        import orjson

        typer.echo(orjson.dumps(found).decode())
        return
    from agentq.cli.tables import plain_console

    _print_cell(plain_console(), found)


def _print_cell(console: Console, found: CellStatus) -> None:
    broker = found.broker
    limit = f" of {broker.memory_limit / 2**20:.0f} MB" if broker.memory_limit else ", no limit"
    console.print(f"[bold]Broker[/bold] {broker.server} at {broker.address}")
    console.print(f"  {broker.persistence}")
    console.print(f"  {broker.replication}")
    for replica in broker.replicas:
        state = "online" if replica.online else "[yellow]loading[/yellow]"
        console.print(
            f"  replica {replica.address} {state}, {replica.behind} bytes behind, "
            f"last heard {replica.silent_s} s ago"
        )
    console.print(
        f"  memory {broker.memory / 2**20:.1f} MB{limit}; {broker.connections} connections"
    )
    _print_queues(console, found)
    _print_stopped(console, found)
    _print_workers(console, found)
    runs = ", ".join(f"{count} {_coloured(state)}" for state, count in found.runs.items())
    newest = sum(found.runs.values())
    of = f" (the newest {newest} of {found.runs_known})" if found.runs_known > newest else ""
    console.print(f"[bold]Runs[/bold] {runs or 'none'}{of}")
    _print_recent(console, found)


def _print_queues(console: Console, found: CellStatus) -> None:
    from agentq.cli.show_run import seconds
    from agentq.cli.tables import plain_table, print_table

    console.print(f"[bold]Queues[/bold] {found.delayed} delayed, {found.dead}")
    if not found.queues:
        return
    table = plain_table("pool", "lane", ">waiting", ">oldest", ">with workers")
    for queue in found.queues:
        oldest = seconds(queue.oldest_ms) if queue.oldest_ms is not None else "-"
        table.add_row(queue.pool, queue.lane, str(queue.waiting), oldest, str(queue.held))
    print_table(console, table)


def _print_stopped(console: Console, found: CellStatus) -> None:
    """Print what is paused, and what waits for the retry budget or for code that no worker has."""
    from rich.markup import escape

    from agentq.cli.show_run import seconds

    for pause in found.pauses:
        aside = f", {pause.aside} put aside" if pause.aside else ""
        ending = ", being resumed" if pause.ending else ""
        what = f"{pause.kind} {escape(pause.name)} for {seconds(pause.for_ms)}"
        unknown = ", which no worker has" if pause.unknown else ""
        console.print(f"  [yellow]paused[/yellow] {what}{aside}{ending}{unknown}")
    for pool, count in found.retries.items():
        console.print(
            f"  [yellow]held[/yellow] {count} retries of pool {escape(pool)}: "
            "they are at their budget (retry.budget)"
        )
    for parked in found.parked:
        whose = "a worker has by now, it is offered again:" if parked.known else "no worker has"
        console.print(
            f"  [yellow]parked[/yellow] {parked.count} for {seconds(parked.for_ms)}: "
            f"{whose} {escape(parked.lacking)}"
        )


def _print_workers(console: Console, found: CellStatus) -> None:
    from agentq.cli.tables import plain_table, print_table
    from agentq.host.topology import format_cores
    from agentq.ops.units_here import start

    if not found.workers:
        console.print(f"[bold]Workers[/bold] none: {start()}")
        return
    console.print("[bold]Workers[/bold]")
    table = plain_table(
        "worker",
        "pools",
        ">process",
        "cores",
        ">running",
        ">slots",
        ">done",
        ">memory",
        "allocator",
        "lease",
    )
    for worker in found.workers:
        lease = f"{worker.lease_ms / 1000:.0f} s left" if worker.lease_ms > 0 else "[red]lost[/red]"
        table.add_row(
            worker.name, ", ".join(worker.pools), str(worker.pid), format_cores(worker.cores),
            str(worker.running), str(worker.slots), str(worker.done),
            f"{worker.memory / 2**20:.0f} MB", worker.allocator.partition(" ")[0], lease,
        )  # fmt: skip
    print_table(console, table)
    _print_troubles(console, found)


def _print_troubles(console: Console, found: CellStatus) -> None:
    """Print what is to be said of single workers."""
    from agentq.store.skew import SKEW_SHOWN_MS

    builds = {worker.build for worker in found.workers if worker.state == "up"}
    for worker in found.workers if len(builds) > 1 else ():
        console.print(f"  [yellow]build[/yellow] of {worker.name}: {worker.build or 'not said'}")
    for worker in found.workers:
        if worker.state == "stalled":
            console.print(
                f"  [red]stalled[/red] {worker.name} has room and has taken nothing for "
                f"{worker.still_ms / 1000:.0f} s, while work waits: see its log"
            )
        if worker.unwritten:
            console.print(
                f"  [yellow]blobs[/yellow] of {worker.unwritten} ended steps of {worker.name} "
                "can not be written (its log says why)"
            )
        if worker.near:
            console.print(f"  [yellow]limit[/yellow] of {worker.name} nearly met: {worker.near}")
        if abs(worker.skew_ms) <= SKEW_SHOWN_MS:
            continue
        off = f"{abs(worker.skew_ms) / 1000:.0f} s {'ahead of' if worker.skew_ms > 0 else 'behind'}"
        console.print(f"  [yellow]clock[/yellow] of {worker.name}: {off} the broker's")


def _print_recent(console: Console, found: CellStatus) -> None:
    from rich.markup import escape

    from agentq.cli.show_run import seconds
    from agentq.cli.tables import plain_table, print_table

    if not found.recent:
        return
    table = plain_table("run", "flow", "state", ">age")
    for run in found.recent:
        table.add_row(run.id, escape(run.flow), _coloured(run.state), seconds(run.age_ms))
    print_table(console, table)


def _coloured(state: str) -> str:
    colour = "green" if state in _GOOD else "red" if state in _BAD else "yellow"
    return f"[{colour}]{state}[/{colour}]"
