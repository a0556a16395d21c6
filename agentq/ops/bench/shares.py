"""What a step, a run and a model call cost: the figures that `agentq plan --runs` counts with.

One worker process, runs of 20 steps. Redis' memory is measured with the runs waiting, then done;
CPU over a second batch, when everything is warm; a model call's is what a run with 18 of them costs
more, against a server in this process that streams 128 pieces. Memory of a step that waits is the
worker's growth under thousands of sleepers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentq.errors import BenchFailed
from agentq.host.process import rss_bytes
from agentq.ops.bench.figures import Figure
from agentq.ops.bench.gauge import Cost, Gauge
from agentq.ops.bench.processes import end_tree
from agentq.ops.bench.server import private_server
from agentq.ops.bench.shares_app import MEMBERS, declare

if TYPE_CHECKING:
    from agentq.runs.handle import RunHandle

RUNS, SLEEPERS, SLEEP_S = 200, 5000, 8.0
STEPS = MEMBERS + 2

_APP = "agentq.ops.bench.shares_app:aq"
_PIECES = 128
_LIMIT_S = 90.0
_PIECE = b'data: {"model":"m","choices":[{"index":0,"delta":{"content":" river"}}]}\n\n'
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
_END = (
    b'data: {"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"model":"m","choices":[],"usage":{"prompt_tokens":200,"completion_tokens":128}}\n\n'
    b"data: [DONE]\n\n"
)


def measure_shares(
    *,
    runs: int = RUNS,
    sleepers: int = SLEEPERS,
    sleep_s: float = SLEEP_S,
    server: Path | None = None,
) -> list[Figure]:
    """Measure *runs* runs of 20 steps each way; takes about half a minute.

    Raises:
        ServerNotFound: there is no Valkey or Redis to start.
        BenchFailed: the worker ended, or the runs did not.
    """
    with private_server(server) as own, _model_server() as model:
        settings = {"broker.url": own.url, "broker.max_length": 10 * max(runs, sleepers)}
        aq = declare(settings)
        redis = aq.store.client
        empty = redis.info("memory")["used_memory"]
        waiting = aq.get_flow("work").submit_many([MEMBERS] * runs)
        queued = redis.info("memory")["used_memory"]
        with _worker(own.url, model) as worker:
            _await_end(worker, waiting)
            done = redis.info("memory")["used_memory"]
            gauge = Gauge(url=own.url, server=own.pid or 0, workers=(worker.pid,))
            plain = _cost(aq, worker, gauge, "work", runs)
            calling = _cost(aq, worker, gauge, "call", max(1, runs // 4))
            idle = rss_bytes(worker.pid)
            asleep = _asleep(aq, worker, sleepers, sleep_s)
        steps = runs * STEPS
        calls = max(1, runs // 4) * MEMBERS
        per_call = calling.workers_s / calls - plain.workers_s / (runs * MEMBERS)
        return [
            Figure("worker CPU a step of a run", plain.workers_s / steps * 1e6, "us"),
            Figure("Redis CPU a step of a run", plain.server_s / steps * 1e6, "us"),
            Figure(f"worker CPU a model call of {_PIECES} pieces", per_call * 1e6, "us"),
            Figure("Redis' memory, a run that waits", (queued - empty) / runs, "bytes"),
            Figure(f"Redis' memory, a run of {STEPS} steps done", (done - empty) / runs, "bytes"),
            Figure("worker's memory before", idle / 2**20, "MiB"),
            Figure("worker's memory, a step that waits", (asleep - idle) / sleepers, "bytes"),
        ]


def _cost(aq: Any, worker: subprocess.Popen[bytes], gauge: Gauge, flow: str, runs: int) -> Cost:
    before = gauge.read()
    _await_end(worker, aq.get_flow(flow).submit_many([MEMBERS] * runs))
    return gauge.read() - before


def _asleep(aq: Any, worker: subprocess.Popen[bytes], count: int, sleep_s: float) -> int:
    """Return the most that the worker held while *count* of its steps slept, in bytes."""
    handles = aq.get_flow("sleep").submit_many([sleep_s] * count)
    until, most = time.monotonic() + sleep_s, 0
    while time.monotonic() < until:
        most = max(most, rss_bytes(worker.pid))
        time.sleep(0.1)
    _await_end(worker, handles)
    return most


def _await_end(worker: subprocess.Popen[bytes], handles: Sequence[RunHandle]) -> None:
    until = time.monotonic() + _LIMIT_S
    for handle in handles:
        while not handle.status().state.ended:
            if worker.poll() is not None:
                raise BenchFailed(f"the worker ended with status {worker.returncode}")
            if time.monotonic() > until:
                raise BenchFailed(f"{len(handles)} runs did not end within {_LIMIT_S:.0f} s")
            time.sleep(0.1)


@contextlib.contextmanager
def _worker(url: str, model: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "agentq", "worker", "--pool", "shared", "--slots", "5000"]
    process = subprocess.Popen(  # noqa: S603 -- our own module, under this interpreter
        [*command, "-A", _APP],
        env={
            **os.environ,
            "AGENTQ_BROKER__URL": url,
            "AGENTQ_MODEL__BASE_URL": model,
            "AGENTQ_WORKER__EVENTS": "false",
            "AGENTQ_LOG__LEVEL": "WARNING",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        end_tree(process.pid)
        process.wait()


@contextlib.contextmanager
def _model_server() -> Iterator[str]:
    """Serve streamed replies from a thread of this process; yield the address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="agentq-bench-model", daemon=True)
    thread.start()
    serving = asyncio.run_coroutine_threadsafe(asyncio.start_server(_answer, "127.0.0.1", 0), loop)
    server = serving.result(5)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.partition(b":")[2])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length")
    )
    await reader.readexactly(length)
    writer.write(_HEAD)
    for _ in range(_PIECES):  # one by one, as tokens come
        writer.write(_PIECE)
        await asyncio.sleep(0.005)
    writer.write(_END)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
