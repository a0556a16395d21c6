"""A step's context without a worker: embeddings by hashed words, one answer a prompt."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from agentq.errors import ModelUnavailable
from tasks.research.likeness import stem_list

_DIMENSIONS = 512


Vectors = Callable[[Sequence[str]], list[list[float]]]


def by_words(texts: Sequence[str]) -> list[list[float]]:
    vectors = [[0.0] * _DIMENSIONS for _ in texts]
    for text, vector in zip(texts, vectors, strict=True):
        for stem in stem_list(text):
            vector[zlib.crc32(stem.encode()) % _DIMENSIONS] += 1.0
    return vectors


@dataclass
class Answer:
    text: str
    model: str = "test-model"


@dataclass
class Desk:
    """`answer` is what the chat model says to a prompt; None: no model server can be reached."""

    answer: Callable[[str], str] | None = None
    vectors: Vectors = by_words
    embeds: bool = True
    embedded: list[list[str]] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    progressed: list[str] = field(default_factory=list)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        if not self.embeds:
            raise ModelUnavailable("connection refused", call="POST http://model/v1/embeddings")
        self.embedded.append(list(texts))
        return self.vectors(texts)

    def model(self, _tier: str) -> Desk:
        return self

    async def chat(self, prompt: str, **_limits: Any) -> Answer:
        self.prompts.append(prompt)
        if self.answer is None:
            raise ModelUnavailable("connection refused", call="POST http://model/v1/chat")
        return Answer(self.answer(prompt))

    async def progress(self, message: str, **_counts: int) -> None:
        self.progressed.append(message)

    @contextmanager
    def spent(self, _kind: str) -> Iterator[None]:
        yield
