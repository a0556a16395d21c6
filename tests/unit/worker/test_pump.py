"""How completions are put into few calls."""

from __future__ import annotations

from agentq.store import calls, effects
from agentq.worker.pump import GROUP_BYTES, GROUP_MOST, Outgoing, group


def ended(task_id: str, result: bytes = b"1") -> Outgoing:
    meta = effects.meta(task_id, 1000, result)
    return Outgoing([calls.complete("x", "s", task_id, "", 1000, [meta])], task_id)


def test_completions_go_together_up_to_a_number() -> None:
    found = group([ended(str(number)) for number in range(GROUP_MOST + 1)])
    assert [len(ids) for _, ids in found] == [GROUP_MOST, 1]


def test_large_results_do_not_go_together() -> None:
    large = b"x" * (GROUP_BYTES // 2)
    found = group([ended("a", large), ended("b", large), ended("c", large), ended("d")])
    assert [ids for _, ids in found] == [["a", "b"], ["c", "d"]]


def test_large_results_do_not_go_together_where_something_follows_them() -> None:
    end = effects.end("r", "done", b"x" * (GROUP_BYTES // 2), 1000)
    each = [Outgoing([calls.complete("x", "s", one, "r", 1000, [end])], one) for one in "abc"]
    assert [ids for _, ids in group(each)] == [["a", "b"], ["c"]]
