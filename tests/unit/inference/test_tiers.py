from __future__ import annotations

from datetime import timedelta

import pytest

from agentq.errors import (
    ModelAnswerInvalid,
    ModelError,
    ModelRateLimited,
    ModelRefused,
    ModelTimeout,
    ModelUnavailable,
)
from agentq.inference.tiers import Again, Persistence, Tier, after, tiers_from

ONCE_MORE = Persistence(retries=1, backoff=timedelta(seconds=1), patience=timedelta(seconds=2))


def verdict(error: ModelError, *, tier: int = 0, attempt: int = 1, tiers: int = 2) -> Again | None:
    return after(error, tier=tier, attempt=attempt, tiers=tiers, persistence=ONCE_MORE, jitter=0.0)


@pytest.mark.parametrize("error", [ModelTimeout("x"), ModelUnavailable("x")])
def test_a_passing_failure_is_tried_again_on_the_same_tier_first(error: ModelError) -> None:
    assert verdict(error) == Again(0, 2, timedelta(seconds=1))


def test_after_its_retries_the_next_tier_is_called_at_once() -> None:
    assert verdict(ModelTimeout("x"), attempt=2) == Again(1, 1, timedelta(0))


def test_the_last_tier_gives_up_after_its_retries() -> None:
    assert verdict(ModelTimeout("x"), tier=1, attempt=1) == Again(1, 2, timedelta(seconds=1))
    assert verdict(ModelTimeout("x"), tier=1, attempt=2) is None


@pytest.mark.parametrize("error", [ModelRefused("x"), ModelAnswerInvalid("x")])
def test_a_refused_request_is_not_made_again(error: ModelError) -> None:
    assert verdict(error) is None


def test_a_short_rate_limit_is_sat_out_and_never_cut_short() -> None:
    error = ModelRateLimited("x", retry_after=timedelta(seconds=2))
    assert verdict(error) == Again(0, 2, timedelta(seconds=3))


def test_a_long_rate_limit_leads_to_the_next_tier_at_once() -> None:
    error = ModelRateLimited("x", retry_after=timedelta(seconds=2.1))
    assert verdict(error) == Again(1, 1, timedelta(0))


def test_a_long_rate_limit_on_the_last_tier_is_the_caller_s() -> None:
    error = ModelRateLimited("x", retry_after=timedelta(minutes=1))
    assert verdict(error, tier=1) is None


def test_jitter_takes_up_to_half_of_a_pause_that_doubles() -> None:
    stubborn = Persistence(retries=9, backoff=timedelta(seconds=1))
    pauses = [
        after(ModelTimeout("x"), tier=0, attempt=n, tiers=1, persistence=stubborn, jitter=jitter)
        for n, jitter in ((1, 1.0), (2, 0.0), (3, 0.5), (9, 0.0))
    ]
    assert [again.pause.total_seconds() for again in pauses if again] == [0.5, 2.0, 3.0, 30.0]


def test_the_same_model_under_two_names_is_one_tier() -> None:
    assert tiers_from("large", large="m", small="m") == (Tier("large", "m"),)
    assert tiers_from("large", large="m", small=None) == (Tier("large", "m"),)
    assert tiers_from("large", large="m", small="s") == (Tier("large", "m"), Tier("small", "s"))
    assert tiers_from("small", large="m", small="s") == (Tier("small", "s"),)
    assert tiers_from("small", large="m", small=None) == (Tier("small", "m"),)


def test_an_unknown_tier_is_named() -> None:
    with pytest.raises(ValueError, match="'medium'"):
        tiers_from("medium", large="m", small=None)
