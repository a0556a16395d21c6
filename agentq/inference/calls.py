"""Chat with retries and fallback: carries out what `tiers` decides, within the caller's limit."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta

from agentq.errors import ModelError, ModelTimeout
from agentq.inference.client import Messages, ModelClient
from agentq.inference.reply import Reply
from agentq.inference.tiers import Again, Persistence, after, tiers_from

logger = logging.getLogger(__name__)


class ModelCalls:
    """The way steps call chat models: a tier by name, tried as stubbornly as the settings say."""

    def __init__(  # noqa: PLR0913 -- the fields of settings.model, and the two things a test replaces
        self,
        *,
        client: ModelClient,
        large: str,
        small: str | None = None,
        persistence: Persistence | None = None,
        at_once: int = 100,
        jitter: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Take the parts.

        Args:
            client: a started client.
            large: name of the model for tier ``large``.
            small: name of the model to fall back to; None for no fallback.
            persistence: how often and with what pauses.
            at_once: calls in flight; more wait here, where waiting costs none of a call's timeout.
                Set it to the slots of a server that has few.
            jitter: returns a number from 0 to 1.
            sleep: waits that many seconds.
        """
        self._client = client
        self._large = large
        self._small = small
        self._persistence = persistence or Persistence()
        self._at_once = at_once
        self._free = asyncio.Semaphore(at_once)
        self._jitter = jitter
        self._sleep = sleep

    async def chat(
        self,
        messages: Messages,
        *,
        tier: str = "large",
        max_tokens: int = 512,
        temperature: float = 0.0,
        stop: Sequence[str] | None = None,
        within: timedelta | None = None,
    ) -> Reply:
        """Return the answer, with the tier that gave it and what the failures before it cost.

        Args:
            messages: a text, or messages with ``role`` and ``content``.
            tier: ``large`` or ``small``.
            max_tokens: longest answer.
            temperature: 0 for the likeliest answer.
            stop: texts at which the model stops.
            within: limit for everything together, pauses and retries too; None for none. A pause
                that would not fit is not begun.

        Raises:
            ModelError: the last failure, with `attempts` set.
            ValueError: an unknown tier.
        """
        tiers = tiers_from(tier, large=self._large, small=self._small)
        call = functools.partial(
            self._client.chat, messages, max_tokens=max_tokens, temperature=temperature, stop=stop
        )
        budget, lost, now = _Budget(within), 0.0, Again(0, 1, timedelta(0))
        for attempts in itertools.count(1):
            async with self._slot(budget):
                began = time.monotonic()
                try:
                    timeout = budget.at_most(self._client.timeout)
                    reply = await call(model=tiers[now.tier].model, timeout=timeout)
                    return dataclasses.replace(
                        reply,
                        tier=tiers[now.tier].name,
                        attempts=attempts,
                        retrying=timedelta(seconds=lost),
                    )
                except ModelError as error:
                    error.attempts = attempts
                    now = self._next(error, now, len(tiers), budget)
                    logger.warning("%s; next in %s: %s", error, now.pause, tiers[now.tier])
            await self._sleep(now.pause.total_seconds())
            lost += time.monotonic() - began
        raise AssertionError("unreachable: the loop returns or raises")

    def _next(self, error: ModelError, last: Again, tiers: int, budget: _Budget) -> Again:
        again = after(
            error,
            tier=last.tier,
            attempt=last.attempt,
            tiers=tiers,
            persistence=self._persistence,
            jitter=self._jitter(),
        )
        if again is None or not budget.allows(again.pause):
            raise error
        return again

    @contextlib.asynccontextmanager
    async def _slot(self, budget: _Budget) -> AsyncIterator[None]:
        """Hold one of the `at_once` places."""
        try:
            async with asyncio.timeout(budget.left()):
                await self._free.acquire()
        except TimeoutError as error:
            raise ModelTimeout(
                f"no place among {self._at_once} model calls at once came free in time"
            ) from error
        try:
            yield
        finally:
            self._free.release()


class _Budget:
    """What is left of the caller's time, seconds on this process' monotonic clock."""

    def __init__(self, within: timedelta | None) -> None:
        self._end = None if within is None else time.monotonic() + within.total_seconds()

    def left(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def allows(self, pause: timedelta) -> bool:
        left = self.left()
        return left is None or pause.total_seconds() < left

    def at_most(self, limit: timedelta) -> timedelta:
        left = self.left()
        return limit if left is None else min(limit, timedelta(seconds=left))
