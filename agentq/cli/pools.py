"""`agentq pools`: the worker units of this machine and what they do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agentq.cli.options import Json

if TYPE_CHECKING:
    from agentq.ops.deploy.pools import Process


_UNWELL = 1
Check = Annotated[
    bool, typer.Option("--check", help="Exit code 1 where one does not take work; says which.")
]


def pools(check: Check = False, as_json: Json = False) -> None:
    """Show each worker unit: state, cores, steps and slots, load, memory, restarts, allocator.

    Cores are what the kernel has, children included, with the plan's where they are others. Load is
    percent of one core, children included, over half a second. Remote, with several memory nodes,
    is the share of the memory that is on other nodes than the cores. As root: others do not see all
    of it. Up is for how long it runs, with the code as it was then; builds are shown where they
    differ. What is not in the plan, since a scale or its pool is over, agentq rollout ends.

    Example: agentq pools --json | jq '.[] | select(.restarts > 0)'
    """
    from agentq.ops.deploy.machine import Machine
    from agentq.ops.deploy.pools import read_pools, unwell
    from agentq.ops.deploy.systemd import require_systemd

    require_systemd()
    found = read_pools(Machine())
    if as_json:
        import orjson

        typer.echo(orjson.dumps(found).decode())
    else:
        _print(found)
    if check and (lines := unwell(found)):
        for line in lines:
            typer.echo(f"not well: {line}", err=True)
        raise typer.Exit(_UNWELL)


def _print(found: list[Process]) -> None:
    from agentq.cli.show_run import seconds
    from agentq.cli.tables import plain_console, plain_table, print_table

    several = any(one.remote is not None for one in found)  # nodes, which few machines have
    mixed = len({one.build for one in found if one.build}) > 1
    heads = ["process", "state", "cores", ">running", ">load", ">memory", ">up", ">restarts"]
    heads += ["allocator", *([">remote"] if several else []), *(["build"] if mixed else [])]
    table = plain_table(*heads)
    for one in found:
        running = f"{one.running} of {one.slots}" if one.slots else "-"
        load = f"{one.cpu_percent:.0f} %" if one.cpu_percent is not None else "-"
        memory = f"{one.memory / 2**20:.0f} MB" if one.memory is not None else "-"
        up = seconds(one.up_s * 1000) if one.up_s is not None else "-"
        table.add_row(
            one.instance, one.state, _cores(one), running, load, memory, up,
            str(one.restarts), one.allocator or "-",
            *([f"{one.remote:.0%}" if one.remote is not None else "-"] if several else []),
            *([one.build or "-"] if mixed else []),
        )  # fmt: skip
    print_table(plain_console(), table)


def _cores(one: Process) -> str:
    from agentq.host.topology import format_cores

    shown = format_cores(one.cores) or "-"
    if set(one.cores) <= set(one.planned):
        return shown
    return f"{shown} (planned: {format_cores(one.planned) or 'none'})"
