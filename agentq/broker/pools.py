"""Which pool a worker has, and so which worker: the one with our loop, or with Celery's own."""

from __future__ import annotations

from typing import Any

import click
from celery.concurrency import get_implementation
from click.core import ParameterSource

OUR_POOL = "agentq.worker.pool:TaskPool"
_OUR_WORKER = "agentq.worker.controller:Worker"
_STOCK_WORKER = "agentq.worker.stock:Worker"


def chosen(given: Any, *, stock: str | None) -> Any:
    """Return the pool: the one asked for, else the settings' *stock* pool, else ours.

    Celery's command line always names one; that it was not asked for only click knows.
    """
    context = click.get_current_context(silent=True)
    source = context.get_parameter_source("pool") if context is not None else None
    if given is not None and source is not ParameterSource.DEFAULT:
        return get_implementation(given)
    return get_implementation(stock or OUR_POOL)


def worker_of(pool: Any) -> str:
    """Return which worker runs *pool*."""
    return _OUR_WORKER if pool.__module__.startswith("agentq.") else _STOCK_WORKER
