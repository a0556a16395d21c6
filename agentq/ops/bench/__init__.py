"""`agentq bench`: plain Celery prefork and agentq, measured in one run on the same server.

Beside it, what can be said of agentq alone: `functions`, `herd`, `delayed`, `reconnect`, `shares`,
`memory`, `coldstart`, `isolation`, `slots`.

The measured processes import this package for their steps, so its public names load when they are
first used: plain Celery is measured with nothing of agentq's broker in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentq.ops.bench.coldstart import measure_coldstart
    from agentq.ops.bench.delayed import measure_delayed
    from agentq.ops.bench.driver import run_bench
    from agentq.ops.bench.figures import figures_as_json, render_figures
    from agentq.ops.bench.functions import functions_as_json, measure_functions, render_functions
    from agentq.ops.bench.herd import measure_herd
    from agentq.ops.bench.isolation import measure_isolation
    from agentq.ops.bench.memory import measure_memory
    from agentq.ops.bench.reconnect import measure_reconnect
    from agentq.ops.bench.report import as_json, render
    from agentq.ops.bench.rows import Row, Test
    from agentq.ops.bench.shares import measure_shares
    from agentq.ops.bench.slots import measure_slots

__all__ = [
    "Row", "Test", "as_json", "figures_as_json", "functions_as_json", "measure_coldstart",
    "measure_delayed", "measure_functions", "measure_herd", "measure_isolation", "measure_memory",
    "measure_reconnect", "measure_shares", "measure_slots", "render",
    "render_figures", "render_functions", "run_bench",
]  # fmt: skip

_HOMES = {
    "Row": "rows",
    "Test": "rows",
    "as_json": "report",
    "figures_as_json": "figures",
    "functions_as_json": "functions",
    "measure_delayed": "delayed",
    "measure_herd": "herd",
    "measure_reconnect": "reconnect",
    "measure_memory": "memory",
    "measure_slots": "slots",
    "measure_isolation": "isolation",
    "measure_coldstart": "coldstart",
    "measure_shares": "shares",
    "render_figures": "figures",
    "measure_functions": "functions",
    "render_functions": "functions",
    "render": "report",
    "run_bench": "driver",
}


def __getattr__(name: str) -> Any:
    """Load a public name's module when it is first asked for."""
    from importlib import import_module  # noqa: PLC0415

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
