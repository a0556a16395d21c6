"""What every step of a process shares: the model client, its retries, and the embedding batcher.

Made when first asked for, on the loop that asks, so that a worker whose steps call no model opens
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentq.errors import ModelUnavailable

if TYPE_CHECKING:
    from agentq.inference.batcher import Batcher
    from agentq.inference.calls import ModelCalls
    from agentq.inference.client import ModelClient
    from agentq.settings import Settings


class Services:
    """Belongs to one event loop."""

    def __init__(self, *, settings: Settings) -> None:
        """Keep the settings; nothing is opened yet."""
        self._settings = settings
        self._client: ModelClient | None = None
        self._calls: ModelCalls | None = None
        self._embeddings: Batcher[str, list[float]] | None = None

    async def client(self) -> ModelClient:
        """Return the started model client.

        Raises:
            ModelUnavailable: no model server is set.
        """
        if self._client is None:
            from agentq.inference.client import ModelClient  # noqa: PLC0415 -- httpx2 is an extra

            model = self._settings.model
            if not model.base_url:
                raise ModelUnavailable(
                    "no model server is set: set model.base_url or AGENTQ_MODEL__BASE_URL to an "
                    "OpenAI-compatible server, or run `agentq up --models` for the local one"
                )
            client = ModelClient(
                base_url=model.base_url,
                api_key=model.api_key.get_secret_value() if model.api_key else None,
                timeout=model.timeout,
                idle_timeout=model.idle_timeout,
                connect_timeout=model.connect_timeout,
                connections=model.connections,
            )
            await client.start()
            self._client = client
        return self._client

    async def calls(self) -> ModelCalls:
        """Return chat with retries and fallback."""
        if self._calls is None:
            from agentq.inference.calls import ModelCalls  # noqa: PLC0415 -- httpx2 is an extra
            from agentq.inference.tiers import Persistence  # noqa: PLC0415

            model = self._settings.model
            self._calls = ModelCalls(
                client=await self.client(),
                large=model.large,
                small=model.small,
                persistence=Persistence(retries=model.retries, backoff=model.backoff),
                at_once=model.connections,
            )
        return self._calls

    async def embeddings(self) -> Batcher[str, list[float]]:
        """Return the batcher in front of the embedding model."""
        if self._embeddings is None:
            from agentq.inference.batcher import Batcher  # noqa: PLC0415 -- httpx2 is an extra
            from agentq.inference.policy import BatchLimits  # noqa: PLC0415

            batch, model, client = self._settings.batch, self._settings.model, await self.client()

            async def embed(texts: list[str]) -> Sequence[list[float]]:
                return await client.embed(texts, model=model.embedding)

            batcher: Batcher[str, list[float]] = Batcher(
                name="embeddings",
                run=embed,
                limits=BatchLimits(
                    max_items=batch.max_items, window_ms=batch.window.total_seconds() * 1000
                ),
                length=len,
            )
            await batcher.start()
            self._embeddings = batcher
        return self._embeddings

    async def close(self) -> None:
        """End what was opened; safe twice."""
        if self._embeddings is not None:
            await self._embeddings.stop()
        if self._client is not None:
            await self._client.close()
        self._client = self._calls = self._embeddings = None
