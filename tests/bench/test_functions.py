"""Each function is measured and keeps within the time that it may hold the server."""

from __future__ import annotations

import json
from importlib.resources import files

from agentq.ops.bench.functions import (
    LIMIT_US,
    Held,
    functions_as_json,
    measure_functions,
    render_functions,
)

COSTLY = {
    "complete_many",
    "enqueue",
    "reap",
    "fetch",
    "promote",
    "stage_started",
    "open",
    "replay",
    "drop",
}


def test_every_costly_function_is_measured_and_holds_the_server_5_ms_at_most() -> None:
    held = measure_functions(rounds=3)
    assert {f"aq1_{name}" for name in COSTLY} <= {one.name for one in held}
    known = {entry.name for entry in (files("agentq.store") / "functions").iterdir()}
    assert {
        f"{one.name.removeprefix('aq1_').removesuffix('_started')}.lua" for one in held
    } <= known
    assert [one for one in held if not one.within] == []
    assert all(0 < one.longest_us <= one.seen_us for one in held)


def test_what_is_over_the_limit_is_marked() -> None:
    slow, quick = Held("aq1_slow", "much", LIMIT_US + 1, 9000, 3), Held("aq1_quick", "1", 7, 9, 1)
    head, first, second = render_functions([slow, quick]).splitlines()
    assert head.split() == ["function", "given", "longest", "us", "seen", "us"]
    assert first.split() == ["aq1_slow", "much", "5,001", "9,000", "over", "5,000", "us"]
    assert second.split() == ["aq1_quick", "1", "7", "9"]
    assert [one["within"] for one in json.loads(functions_as_json([slow, quick]))] == [False, True]
