"""Scenes whose payloads lie in blob storage: Redis has references to them."""

from __future__ import annotations

from tests.contract.wire.scenes import scene
from tests.contract.wire.world import World


@scene
def large_argument(w: World) -> None:
    w.app.echoed.submit(w.app.Brief(text=w.app.LARGE), key="large argument")


@scene
def large_result(w: World) -> None:
    w.app.echoed.submit(w.app.Brief(text=w.app.LARGE), key="large result")
    w.work()


@scene
def large_outcome(w: World) -> None:
    """Of one member; the other one waits."""
    w.app.grown.submit(2, key="large outcome")
    w.work("critical")
    w.work()


@scene
def large_letter(w: World) -> None:
    w.app.echoed.submit(w.app.Brief(text=w.app.LARGE), key="large letter")
    w.lease()
    w.died(w.take()[0], limit=1)
