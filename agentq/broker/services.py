"""What every step of a process shares: the model client and its retries.

Made when first asked for, on the loop that asks, so that a worker whose steps call no model opens
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentq.errors import ModelUnavailable
from agentq.extras import pip_install

if TYPE_CHECKING:
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

    async def client(self) -> ModelClient:
        """Return the started model client.

        Raises:
            ModelUnavailable: no model server is set, or what calls one is not installed.
        """
        if self._client is None:
            model = self._settings.model
            if not model.base_url:
                raise ModelUnavailable(
                    "no model server is set: set model.base_url or AGENTQ_MODEL__BASE_URL to an "
                    "OpenAI-compatible server, or run `agentq up --models` for the local one"
                )
            try:
                from agentq.inference.client import ModelClient  # noqa: PLC0415 -- an extra
            except ModuleNotFoundError as error:
                raise ModelUnavailable(
                    f"this worker has no {error.name}: {pip_install('inference')}"
                ) from None
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
            client = await self.client()
            from agentq.inference.calls import ModelCalls  # noqa: PLC0415 -- httpx2 is an extra
            from agentq.inference.tiers import Persistence  # noqa: PLC0415

            model = self._settings.model
            self._calls = ModelCalls(
                client=client,
                large=model.large,
                small=model.small,
                persistence=Persistence(retries=model.retries, backoff=model.backoff),
                at_once=model.at_once or model.connections,
            )
        return self._calls

    async def embed(self, texts: list[str]) -> Sequence[list[float]]:
        """Return one vector for each text, in one call."""
        client = await self.client()
        return await client.embed(texts, model=self._settings.model.embedding)

    async def close(self) -> None:
        """End what was opened; safe twice."""
        if self._client is not None:
            await self._client.close()
        self._client = self._calls = None
