"""`agentq rollout`: a new build or new settings, one worker process at a time."""

from __future__ import annotations

from typing import Annotated

import typer


def rollout(
    pools: Annotated[
        list[str] | None, typer.Argument(metavar="[POOL...]", help="Only these. Default: all.")
    ] = None,
) -> None:
    """Restart the worker units of this machine one after the other; as root.

    Nothing is stopped unless the app can be imported and the broker takes the units' login. Each
    drains, starts, takes work and keeps its lease before the next one; shared pools go first. It
    stops at the first that is not well, and says so: exit code 1. What the plan no longer has, as
    an agentq scale is over, drains and ends last.

    Example: agentq deploy install && agentq rollout
    """
    from agentq.ops.deploy.alone import alone
    from agentq.ops.deploy.machine import ROOT, Machine
    from agentq.ops.deploy.rollout import rollout as restart
    from agentq.ops.deploy.systemd import require_root

    require_root()
    with alone(ROOT):
        restart(Machine(), tuple(pools or ()), say=typer.echo)
