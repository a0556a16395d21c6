"""`agentq pools`: the worker units of this machine and what they do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from agentq.cli.options import Json

if TYPE_CHECKING:
    from agentq.ops.deploy.pools import Process


def pools(as_json: Json = False) -> None:
    """Show each worker unit: state, cores, steps and slots, load, memory, restarts, allocator.

    Cores are what the kernel has, children included, with the plan's where they are others. Load is
    percent of one core, children included, over half a second. Remote, with several memory nodes,
    is the share of the memory that is on other nodes than the cores. As root: others do not see all
    of it.

    Example: agentq pools --json | jq '.[] | select(.restarts > 0)'
    """
    from agentq.ops.deploy.machine import Machine
    from agentq.ops.deploy.pools import read_pools
    from agentq.ops.deploy.systemd import require_systemd

    require_systemd()
    found = read_pools(Machine())
    if as_json:
        import orjson

        typer.echo(orjson.dumps(found).decode())
    else:
        _print(found)


def _print(found: list[Process]) -> None:
    from agentq.cli.tables import plain_console, plain_table, print_table

    several = any(one.remote is not None for one in found)  # nodes, which few machines have
    heads = ("process", "state", "cores", ">running", ">load", ">memory", ">restarts", "allocator")
    table = plain_table(*heads, *([">remote"] if several else []))
    for one in found:
        running = f"{one.running} of {one.slots}" if one.slots is not None else "-"
        load = f"{one.cpu_percent:.0f} %" if one.cpu_percent is not None else "-"
        memory = f"{one.memory / 2**20:.0f} MB" if one.memory is not None else "-"
        table.add_row(
            one.instance, one.state, _cores(one), running, load, memory,
            str(one.restarts), one.allocator or "-",
            *([f"{one.remote:.0%}" if one.remote is not None else "-"] if several else []),
        )  # fmt: skip
    print_table(plain_console(), table)


def _cores(one: Process) -> str:
    from agentq.host.topology import format_cores

    shown = format_cores(one.cores) or "-"
    if set(one.cores) <= set(one.planned):
        return shown
    return f"{shown} (planned: {format_cores(one.planned) or 'none'})"
