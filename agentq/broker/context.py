"""What a step is given beside its argument: who it is, how long it has, models, progress."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from agentq.broker import serializer
from agentq.timing.deadline import NEVER, BrokerClock, Deadline

if TYPE_CHECKING:
    from agentq.broker.batched import Batches
    from agentq.broker.services import Services
    from agentq.inference.reply import Reply

Spending = Literal["model", "tools", "state", "context", "retries"]
Emit = Callable[[str, bytes], Awaitable[None]]


@dataclass(slots=True)
class Ledger:
    """Where one attempt's time went, for the run's timeline."""

    spent: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds by `Spending`; calls side by side each count, as a step's cost does."""
    batches: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Items by the size of the batch that answered them."""

    def as_json(self) -> dict[str, Any]:
        """Return it for an event: whole milliseconds, only what is there."""
        result: dict[str, Any] = {}
        if self.spent:
            result["spent"] = {kind: round(s * 1000) for kind, s in self.spent.items()}
        if self.batches:
            result["batches"] = {str(size): items for size, items in self.batches.items()}
        return result


class ModelHandle:
    """One tier of chat models, as a step calls it."""

    def __init__(self, *, context: Context, tier: str) -> None:
        """Keep the parts."""
        self._context = context
        self._tier = tier

    async def chat(
        self,
        messages: str | Sequence[dict[str, Any]],
        *,
        max_tokens: int = 512,
        temperature: float = 0.0,
        stop: Sequence[str] | None = None,
    ) -> Reply:
        """Return the answer; retried, then asked of the smaller model, within the step's time.

        Raises:
            ModelError: the last failure: `ModelTimeout`, `ModelUnavailable`, `ModelRefused`, ...
        """
        context = self._context
        calls = await context._services.calls()  # noqa: SLF001 -- its other half
        with context.spent("model"):
            reply = await calls.chat(
                messages,
                tier=self._tier,
                max_tokens=max_tokens,
                temperature=temperature,
                stop=stop,
                within=context.remaining(),
            )
        retrying = reply.retrying.total_seconds()
        context.ledger.spent["retries"] += retrying
        context.ledger.spent["model"] -= retrying
        return reply


class Context:
    """Given to a step whose first parameter is annotated with it; valid while the step runs."""

    def __init__(  # noqa: PLR0913 -- plain facts of one attempt
        self,
        *,
        run_id: str,
        step: str,
        task_id: str,
        attempt: int,
        worker: str,
        services: Services,
        embeddings: Batches,
        clock: BrokerClock,
        deadline: Deadline = NEVER,
        emit: Emit | None = None,
    ) -> None:
        """Keep the parts."""
        self.run_id = run_id
        """The run this step belongs to, or empty outside of one."""
        self.step = step
        self.task_id = task_id
        """The same at each attempt: the idempotency key for work outside."""
        self.attempt = attempt
        """1 at the first."""
        self.worker = worker
        self.deadline = deadline
        self.ledger = Ledger()
        self._services = services
        self._embeddings = embeddings
        self._clock = clock
        self._emit = emit

    def remaining(self) -> timedelta | None:
        """Return the time left until the run's deadline, None without one."""
        return self.deadline.remaining(self._clock.now_ms(time.monotonic()))

    def model(self, tier: str = "large") -> ModelHandle:
        """Return the chat models of *tier*: ``large`` or ``small``."""
        return ModelHandle(context=self, tier=tier)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector for each text; calls of many steps share a batch.

        Raises:
            ModelError: the first failure; the other texts' batches are not affected.
        """
        batcher = await self._embeddings.batcher()
        left = self.remaining()
        with self.spent("model"):
            results = await asyncio.gather(
                *(
                    batcher.submit(text, timeout=left, group=self.task_id, siblings=len(texts))
                    for text in texts
                )
            )
        for result in results:
            self.ledger.batches[result.size] += 1
        return [result.value for result in results]

    async def progress(
        self, message: str, *, done: int | None = None, total: int | None = None
    ) -> None:
        """Append to the run's events; a watcher sees it at once. Outside of a run: nothing."""
        if self._emit is not None:
            data: dict[str, Any] = {
                "step": self.step, "task": self.task_id, "message": message,
            }  # fmt: skip
            counts = {"done": done, "total": total}
            data |= {key: value for key, value in counts.items() if value is not None}
            await self._emit("progress", serializer.dumps(data))

    @contextmanager
    def spent(self, kind: Spending) -> Iterator[None]:
        """Attribute the wall time of the block to *kind* in the run's timeline."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.ledger.spent[kind] += time.monotonic() - began
