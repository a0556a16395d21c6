"""Which model is asked next after a failed call, and after what pause (pure).

    timeout, unreachable, broken off, 5xx   the same tier `retries` more times, then the next
    429 with a wait of at most `patience`   the same, never sooner than the server asked
    429 with a longer wait                  the next tier at once
    refused (4xx), invalid answer           no other model would take it: fail at once

Fallbacks that first sit out a long Retry-After, or whose limiter hides the 429 from them, are the
two usual bugs of this kind of code; hence one table in one place.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from agentq.errors import ModelError, ModelRateLimited

_LONGEST_BACKOFF = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Tier:
    """A rank (``large``, ``small``) and the model that holds it."""

    name: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Persistence:
    """How stubbornly to call.

    Attributes:
        retries: more calls to the same tier after the first.
        backoff: pause before the first of them, doubled for each further one, up to 30 s; jitter
            takes up to half of it away, so that callers who failed together do not return together.
        patience: longest Retry-After that is sat out for the same tier.
    """

    retries: int = 1
    backoff: timedelta = timedelta(milliseconds=500)
    patience: timedelta = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Again:
    """Call *tier*, as its attempt number *attempt*, after *pause*."""

    tier: int
    attempt: int
    pause: timedelta


def tiers_from(name: str, *, large: str, small: str | None) -> tuple[Tier, ...]:
    """Return the tiers to try, best first, for a caller who asked for *name*.

    The same model under two names is one tier: it would only be asked twice as often.

    Raises:
        ValueError: *name* is neither ``large`` nor ``small``.
    """
    if name not in {"large", "small"}:
        raise ValueError(f"unknown model tier {name!r}: 'large' or 'small'")
    if name == "small":
        return (Tier("small", small or large),)
    if small in {None, large}:
        return (Tier("large", large),)
    return (Tier("large", large), Tier("small", str(small)))


def after(
    error: ModelError,
    *,
    tier: int,
    attempt: int,
    tiers: int,
    persistence: Persistence,
    jitter: float,
) -> Again | None:
    """Return what to do after attempt *attempt* (from 1) at *tier* (from 0) ended with *error*.

    Args:
        error: how the last call ended.
        tier: index of the tier that was called.
        attempt: which call to this tier it was.
        tiers: how many there are.
        persistence: the limits.
        jitter: a number from 0 to 1, random for each call.

    Returns:
        The next call, or None to give the error to the caller.
    """
    if not error.retryable:
        return None
    asked = error.retry_after if isinstance(error, ModelRateLimited) else None
    asked = asked or timedelta(0)
    if attempt <= persistence.retries and asked <= persistence.patience:
        return Again(tier, attempt + 1, asked + _backoff(attempt, persistence, jitter))
    if tier + 1 < tiers:
        return Again(tier + 1, 1, timedelta(0))
    return None


def _backoff(attempt: int, persistence: Persistence, jitter: float) -> timedelta:
    pause = persistence.backoff * float(2 ** min(attempt - 1, 16))
    return min(_LONGEST_BACKOFF, pause) * (1 - jitter / 2)
