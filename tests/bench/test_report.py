"""The table and the JSON say which system is better, by how much, and whether targets are met."""

import json
from dataclasses import asdict, replace

from agentq.ops.bench import calibration
from agentq.ops.bench.report import as_json, render
from agentq.ops.bench.rows import Better, Row
from agentq.ops.bench.targets import Verdict, judge


def cpu(system: str, value: float, *, variant: str = "", note: str = "") -> Row:
    row = Row.figure("drain", system, "worker + Redis CPU", "us/step", value, 100)
    return replace(row, variant=variant, note=note)


def line_of(text: str, measure: str) -> str:
    """Return the table's line, each run of blanks as one."""
    return " ".join(next(line for line in text.splitlines() if measure in line).split())


def test_a_lower_cost_is_better_and_a_higher_rate_is_better() -> None:
    rows = [
        cpu("celery", 1200.0),
        Row.figure("drain", "celery", "rate", "steps/s", 500.0, 100),
        cpu("agentq", 90.0),
        Row.figure("drain", "agentq", "rate", "steps/s", 250.0, 100),
    ]
    table = render(rows)
    assert line_of(table, "worker + Redis").endswith("us/step 1,200 90 13.3x better <= 100 met")
    assert line_of(table, "rate").endswith("steps/s 500 250 2x worse")


def test_a_missed_target_is_named() -> None:
    table = render([cpu("celery", 1200.0), cpu("agentq", 101.0)])
    assert line_of(table, "worker + Redis CPU").endswith(" <= 100 MISSED")


def test_a_relative_target_needs_plain_celery_in_the_same_run() -> None:
    (document,) = json.loads(as_json([cpu("agentq", 90.0)]))
    assert document["target"] is None
    assert document["gain"] is None


def test_a_target_speaks_of_the_headline_and_not_of_its_variants() -> None:
    rows = [cpu("celery", 1200.0), cpu("agentq", 90.0), cpu("agentq", 200.0, variant="@app.task")]
    _, headline, variant = json.loads(as_json(rows))
    assert headline["target"] == {"limit": 100.0, "met": True}
    assert variant["target"] is None
    assert variant["gain"] == 6.0


def test_a_bulk_rate_below_its_target_is_missed() -> None:
    row = Row.figure("enqueue", "agentq", "in bulk", "steps/s", 14_999.0, 100)
    (document,) = json.loads(as_json([row]))
    assert document["target"] == {"limit": 15_000, "met": False}


def test_a_failed_test_shows_its_reason() -> None:
    failure = Row("sleep", "celery", "failed", "", None, 0, Better.NEITHER, note="no answer")
    table = render([failure])
    assert line_of(table, "sleep") == "sleep failed failed [1]"
    assert table.endswith("[1] no answer\n")


def test_the_json_has_every_row_in_order() -> None:
    rows = [cpu("celery", 1200.0, note="quiet"), cpu("agentq", 90.0)]
    documents = json.loads(as_json(rows))
    assert [document["system"] for document in documents] == ["celery", "agentq"]
    assert documents[0]["note"] == "quiet"
    assert documents[1]["value"] == 90.0


def test_a_busy_machine_is_named_below_the_table() -> None:
    loop = [
        Row(
            "drain", "celery", calibration.WALL, "ms", 106.4, 1, Better.NEITHER, note="busy: drain"
        ),
        Row("drain", "celery", calibration.CPU, "ms", 57.1, 1, Better.NEITHER, note="busy: drain"),
        Row("sleep", "celery", calibration.WALL, "ms", 59.0, 1, Better.NEITHER),
        Row("sleep", "celery", calibration.CPU, "ms", 58.9, 1, Better.NEITHER),
    ]
    *_, machine, busy = render([cpu("celery", 1200.0), *loop]).splitlines()
    assert machine == "fixed Python loop beside each test: 59-106 ms wall, 57-59 ms CPU"
    assert busy == "busy: drain"


def test_a_rate_that_came_through_json_is_better_when_it_is_higher() -> None:
    rate = Row.figure("enqueue", "agentq", "in bulk", "steps/s", 20_000, 10)

    back = Row.from_json(json.loads(json.dumps(asdict(rate))))

    assert back == rate
    assert judge(back, None) == Verdict(15_000, met=True)
