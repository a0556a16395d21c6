"""Which of a message's arguments is a reference to a fan-in's outcomes."""

from __future__ import annotations

from agentq import AgentQ
from agentq.broker import joins


def test_only_what_the_header_names_is_a_reference() -> None:
    claim, reference = {"$join": "another"}, joins.reference("mine", nested=True)

    assert joins.referenced([claim, reference], "mine") == (1, reference)
    assert joins.referenced([claim, {"a": reference}, [reference]], "mine") is None


def test_a_message_whose_header_names_no_join_is_given_its_arguments_without_asking() -> None:
    aq = AgentQ("joins", overrides={"broker.url": "agentq://127.0.0.1:1"})
    claim = {"$join": "another", "flow": True}

    assert aq.resolve_joins([claim], {"flow": "f"}) == (claim,)
    assert aq.resolve_joins([claim], None) == (claim,)
