"""`agentq scale`: how many worker processes this machine's pools have."""

from __future__ import annotations

from typing import Annotated

import typer


def scale(
    pools: Annotated[list[str], typer.Argument(metavar="POOL=NUMBER...", help="critical=4")],
) -> None:
    """Start worker processes of installed units, or drain and stop them; as root.

    Returns when the added ones take work and the removed ones have ended: what they ran has ended,
    or was handed back uncharged after worker.drain_timeout. Those that stay go over to the cores
    that the plan has for them now; what changes for them only at their next start is said. It lasts
    until the next agentq deploy install; for good, set pools.NAME.processes.

    Example: agentq scale critical=4 shared=12
    """
    from agentq.ops.deploy.alone import alone
    from agentq.ops.deploy.machine import ROOT, Machine
    from agentq.ops.deploy.scale import scale as change
    from agentq.ops.deploy.systemd import require_root

    require_root()
    wanted = dict(_wanted(text) for text in pools)
    with alone(ROOT):
        change(Machine(), wanted, say=typer.echo)


def _wanted(text: str) -> tuple[str, int]:
    pool, _, number = text.partition("=")
    if not pool or not number.isdecimal():
        raise typer.BadParameter(f"{text!r} says no number of processes; write POOL=NUMBER")
    return pool, int(number)
