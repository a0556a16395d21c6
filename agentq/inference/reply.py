"""What a chat call returns, and how it is put together from the chunks of its stream (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from agentq.errors import ModelAnswerInvalid, ModelRefused, ModelUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A model's whole answer.

    Attributes:
        text: what the model wrote; empty when it had nothing to say.
        model: the name the server gave the model that answered.
        prompt_tokens: as the server counted; 0 where it sends no usage.
        completion_tokens: likewise.
        finish_reason: ``stop``, ``length`` (cut at `max_tokens`), or what else the server said.
        tier: ``large`` or ``small`` where tiers were asked for, else empty.
        attempts: calls made until this one succeeded, 1 at least.
        retrying: time spent in failed calls and in the pauses after them.
    """

    text: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    tier: str = ""
    attempts: int = 1
    retrying: timedelta = timedelta(0)

    def __str__(self) -> str:
        """Return what the model wrote."""
        return self.text


class ReplyBuilder:
    """Takes the chunks of one stream in order; `reply` is there once the model has finished."""

    def __init__(self, call: str) -> None:
        """Keep *call*, the method and URL that errors name."""
        self._call = call
        self._texts: list[str] = []
        self._model = ""
        self._finish_reason: str | None = None
        self._usage: dict[str, Any] = {}

    def add(self, chunk: object) -> None:
        """Take one decoded chunk.

        Raises:
            ModelRefused: the server gave up on this request for a reason of its own (4xx).
            ModelUnavailable: likewise, for any other reason.
            ModelAnswerInvalid: the chunk is not one of the chat completions API.
        """
        try:
            self._add(chunk)
        except (TypeError, KeyError, AttributeError, IndexError) as error:
            shown = repr(chunk)[:200]
            raise ModelAnswerInvalid(
                f"{self._call} streamed a chunk that is no chat completion: {shown}",
                call=self._call,
            ) from error

    def reply(self) -> Reply:
        """Return the answer.

        Raises:
            ModelUnavailable: the stream ended before the model had finished.
        """
        if self._finish_reason is None:
            raise ModelUnavailable(
                f"{self._call} broke off after {len(self._texts)} chunks, before the answer's end",
                call=self._call,
            )
        return Reply(
            text="".join(self._texts),
            model=self._model,
            prompt_tokens=int(self._usage.get("prompt_tokens", 0)),
            completion_tokens=int(self._usage.get("completion_tokens", 0)),
            finish_reason=self._finish_reason,
        )

    def _add(self, chunk: Any) -> None:
        if error := chunk.get("error"):
            self._give_up(error)
        self._model = chunk.get("model") or self._model
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk["choices"][:1]:  # the last chunk carries usage and no choice
            text = (choice.get("delta") or {}).get("content")
            if text:
                self._texts.append(text)
            self._finish_reason = choice.get("finish_reason") or self._finish_reason

    def _give_up(self, error: Any) -> None:
        code = error.get("code")
        message = f"{self._call} gave up: {error.get('message', error)}"
        refused = isinstance(code, int) and 400 <= code < 500  # noqa: PLR2004 -- HTTP's client errors
        raise (ModelRefused if refused else ModelUnavailable)(message, call=self._call)
