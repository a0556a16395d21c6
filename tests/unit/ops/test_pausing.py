"""Names that may be no names are paused, and told."""

from __future__ import annotations

import pytest

from agentq import AgentQ
from agentq.ops.known import Known
from agentq.ops.pausing import Kind, doubt

OTHERS = Known(steps=frozenset({"bank.pay"}), flows=frozenset({"lend"}), workers=1)


def shop() -> AgentQ:
    aq = AgentQ("shop", overrides={"broker.url": "agentq://127.0.0.1:1/0"})

    @aq.step(name="shop.pay")
    async def pay(amount: int) -> int:
        return amount

    aq.flow("buy", pay)
    return aq


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        (Kind.STEP, "shop.pay", None),
        (Kind.STEP, "pay", "app 'shop' has no step 'pay'; did you mean shop.pay?"),
        (Kind.FLOW, "buy", None),
        (Kind.FLOW, "by", "app 'shop' has no flow 'by'; did you mean buy?"),
        (Kind.POOL, "critical", None),
        (Kind.POOL, "nope", "app 'shop' has no pool 'nope'"),
        (Kind.TENANT, "anyone", None),
    ],
)
def test_a_name_that_the_app_lacks_is_doubted(kind: Kind, name: str, told: str | None) -> None:
    assert doubt(shop(), kind, name, named=True, workers=Known()) == told


def test_without_an_app_and_a_worker_nobody_knows() -> None:
    told = doubt(AgentQ("agentq"), Kind.STEP, "pay", named=False, workers=Known())
    assert told == "no app is named (-A), so whether there is a step 'pay' is not known"


@pytest.mark.parametrize("named", [True, False])
def test_what_a_worker_has_is_not_doubted(*, named: bool) -> None:
    assert doubt(shop(), Kind.STEP, "bank.pay", named=named, workers=OTHERS) is None
    assert doubt(shop(), Kind.FLOW, "lend", named=named, workers=OTHERS) is None


def test_without_an_app_the_workers_are_asked() -> None:
    told = doubt(AgentQ("agentq"), Kind.STEP, "pay", named=False, workers=OTHERS)
    assert told == "no worker has step 'pay'; did you mean bank.pay?"
