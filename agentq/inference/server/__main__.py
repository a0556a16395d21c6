"""Runs the local model server: ``python -m agentq.inference.server --port 8080``.

When it can answer it prints one line of JSON, and nothing else, to its standard output:

    {"ready": true, "url": "http://127.0.0.1:8080/v1", "chat": "smollm2-135m-instruct",
     "embedding": "all-minilm-l6-v2", "slots": 1, "missing": []}

`chat` or `embedding` is null where a package is missing, and `missing` says which and how to
install it. Where it cannot start the line is {"ready": false, "error": kind, "message": text}.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import IO, TypeVar

import orjson

from agentq.errors import ModelPackageMissing
from agentq.inference.server.chat import NAME, ChatEngine
from agentq.inference.server.embedding import load_embedder
from agentq.inference.server.front import Front, Served
from agentq.inference.server.weights import default_cache_dir

T = TypeVar("T")

_ORPHAN_CHECK = timedelta(milliseconds=250)


def main() -> int:
    """Serve until SIGTERM, SIGINT or the end of the parent."""
    options = _parse()
    os.environ["HF_HUB_OFFLINE"] = "1"  # should a package think of downloading, it fails instead
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # onnxruntime's wheels report to Microsoft otherwise
    ready = _take_stdout()
    folder = options.run_dir or Path(tempfile.mkdtemp(prefix="agentq-model-"))
    try:
        return asyncio.run(_serve(options, folder, ready))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m agentq.inference.server",
        description="A local model server with the OpenAI API, on 127.0.0.1 only.",
    )
    add = parser.add_argument
    add("--port", type=int, default=0, help="0, the default, takes any free one")
    add("--slots", type=int, default=1, help="chat calls answered at once (default: 1)")
    add("--context", type=int, default=2048, help="tokens of a call, prompt and answer")
    add("--threads", type=int, default=1, help="of the chat model (default: 1)")
    add("--embedding-threads", type=int, default=1, help="of the embedding model (default: 1)")
    add("--cache", type=Path, default=default_cache_dir(), help="where built weights are kept")
    add(
        "--run-dir", type=Path, help="its own folder, removed at the end (default: a temporary one)"
    )
    add("--parent", type=int, help="end when this process, which started it, has ended")
    return parser.parse_args()


def _take_stdout() -> IO[bytes]:
    """Keep standard output for the ready line: what native libraries print goes to the log."""
    ready = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return ready


async def _serve(options: argparse.Namespace, folder: Path, ready: IO[bytes]) -> int:
    end = _end_event(options.parent)
    chat = ChatEngine(
        cache=options.cache,
        socket=folder / "chat.sock",
        slots=options.slots,
        context=options.context,
        threads=options.threads,
    )
    _, chat_missing = await _load(chat.start)
    embedder, embedder_missing = await _load(
        lambda: load_embedder(options.cache, threads=options.embedding_threads)
    )
    served = Served(
        chat=None if chat_missing else NAME,
        chat_socket=chat.socket,
        chat_missing=chat_missing,
        embedder=embedder,
        embedder_missing=embedder_missing,
    )
    front = Front(served)
    try:
        url = await front.start(options.port)
        _announce(ready, _description(served, url, options.slots))
        await end.wait()
    except OSError as error:
        kind = "AddressInUse" if error.errno == errno.EADDRINUSE else "ServerFailed"
        message = f"port {options.port} of 127.0.0.1: {os.strerror(error.errno or 0)}"
        _announce(ready, {"ready": False, "error": kind, "message": message})
        return 1
    finally:
        await front.stop()
        chat.stop()
        chat.socket.unlink(missing_ok=True)
    return 0


async def _load(load: Callable[[], T]) -> tuple[T | None, str]:
    """Return what *load* returns, or why it is missing; a signal is noticed meanwhile."""
    try:
        return await asyncio.to_thread(load), ""
    except ModelPackageMissing as error:
        return None, str(error)


def _description(served: Served, url: str, slots: int) -> dict[str, object]:
    missing = {"chat": served.chat_missing, "embedding": served.embedder_missing}
    return {
        "ready": True,
        "url": url,
        "chat": served.chat,
        "embedding": served.embedder.name if served.embedder else None,
        "slots": slots,
        "missing": [f"{endpoint}: {reason}" for endpoint, reason in missing.items() if reason],
    }


def _announce(ready: IO[bytes], line: dict[str, object]) -> None:
    with ready:
        ready.write(orjson.dumps(line) + b"\n")


def _end_event(parent: int | None) -> asyncio.Event:
    """Return an event that is set by SIGTERM, SIGINT, or the end of the process *parent*.

    PR_SET_PDEATHSIG would also fire when only the parent's thread that started us ends, and exists
    on Linux alone; being handed to another parent is the same on every system.
    """
    end, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)

    def check() -> None:
        if os.getppid() != parent:
            end.set()
        else:
            loop.call_later(_ORPHAN_CHECK.total_seconds(), check)

    if parent is not None:
        check()
    return end


if __name__ == "__main__":
    sys.exit(main())
