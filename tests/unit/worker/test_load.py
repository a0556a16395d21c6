"""The watch of a worker's memory follows a limit that changes while it runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from agentq.host.process import rss_bytes
from agentq.worker.load import LoadWatch

if TYPE_CHECKING:
    from agentq.worker.hands import Hands


class Idle:
    """Hands of a worker that runs nothing."""

    slots = 5

    def __len__(self) -> int:
        return 0


def test_a_worker_takes_work_by_the_limit_that_it_has_now() -> None:
    hands, own = Idle(), rss_bytes(os.getpid())
    woken: list[int] = []
    watch = LoadWatch(
        hands=cast("Hands", hands), limit_bytes=2 * own, children=lambda: (), adaptive=False,
        on_room=lambda: woken.append(hands.slots), on_full=lambda: None,
    )  # fmt: skip
    for limit, slots in ((2 * own, 5), (own * 11 // 10, 0), (3 * own, 5)):
        watch.limit(limit)
        watch.round(0, 0)
        assert hands.slots == slots
    assert woken == [5]
