"""Measures the four kernel settings that deploy/ writes, in network namespaces of its own; as root.

    python -m tests.bench.kernel_settings

somaxconn     2,000 clients connect at once while the server is busy for 0.3 s (it forks, it loads),
              as a fleet does whose broker was away: when has the last one its first answer?
tcp_tw_reuse  1,000 connections a second to one address for 5 s, each closed by its client, as calls
              of a tool or model server without keep-alive, from 2,000 ports (of the usual 28,232,
              so that it takes seconds): how many before the client has no port left?
receive, send 512 MiB over one connection between two namespaces, with the buffer that the kernel
              finds by itself, and with one that a program asks for, which net.core.rmem_max and
              wmem_max bound (they are the machine's, and not touched here).
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

_CLIENTS, _BUSY_S = 2000, 0.3
_CONNECTIONS, _PACE_S, _PORTS = 5000, 0.001, "40000 41999"
_BYTES = 512 << 20
_HERE, _THERE, _PORT = "10.9.0.1", "10.9.0.2", 6379
_NET = Path("/proc/sys/net")


def _run(*words: str) -> None:
    subprocess.run(["/usr/bin/env", *words], check=True)


def _serve(address: str, backlog: int, *, busy_s: float = 0.0) -> None:
    """Answer a byte to each connection; in a thread, after *busy_s*."""
    with socket.create_server((address, _PORT), backlog=backlog) as server:
        time.sleep(busy_s)
        while True:
            link, _ = server.accept()
            link.sendall(b".")
            threading.Thread(target=_until_closed, args=(link,), daemon=True).start()


def _until_closed(link: socket.socket) -> None:
    with link:
        while link.recv(1):
            pass


def storm(somaxconn: int) -> str:
    """Return when the last of the clients was answered, in the namespace this runs in."""
    (_NET / "core/somaxconn").write_text(str(somaxconn))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    threading.Thread(
        target=_serve, args=("127.0.0.1", 65_535), kwargs={"busy_s": _BUSY_S}, daemon=True
    ).start()
    time.sleep(0.1)
    times = asyncio.run(_connect_all())
    half, last = sorted(times)[len(times) // 2], max(times)
    return f"somaxconn {somaxconn}: half of {_CLIENTS} after {half:.2f} s, the last {last:.2f} s"


async def _connect_all() -> list[float]:
    began = time.monotonic()

    async def one() -> float:
        reader, writer = await asyncio.open_connection("127.0.0.1", _PORT)
        writer.write(b"?")  # the client speaks first, as Redis' clients do
        await reader.readexactly(1)
        took = time.monotonic() - began
        writer.close()
        return took

    return list(await asyncio.gather(*(one() for _ in range(_CLIENTS))))


def ports(reuse: int) -> str:
    """Return how many connections one client got, with the other end in another namespace."""
    (_NET / "ipv4/tcp_tw_reuse").write_text(str(reuse))
    (_NET / "ipv4/ip_local_port_range").write_text(_PORTS)
    done = 0
    try:
        for _ in range(_CONNECTIONS):
            with socket.create_connection((_THERE, _PORT)) as link:
                link.recv(1)
            done += 1
            time.sleep(_PACE_S)
    except OSError as error:
        return f"tcp_tw_reuse {reuse}: {done} connections, then: {error.strerror}"
    return f"tcp_tw_reuse {reuse}: all {done} connections"


def receive(asked: int) -> str:
    """Return how fast bytes come with a receive buffer of *asked* bytes, 0: the kernel's own."""
    return _transfer("receive", socket.SO_RCVBUF, asked, _PORT + 1, _take)


def send(asked: int) -> str:
    """Return how fast bytes go with a send buffer of *asked* bytes, 0: the kernel's own."""
    return _transfer("send", socket.SO_SNDBUF, asked, _PORT + 2, _give)


def _take(link: socket.socket) -> None:
    left = _BYTES
    while left:
        left -= len(link.recv(min(left, 1 << 20)))


def _give(link: socket.socket) -> None:
    link.sendall(bytes(_BYTES))
    link.shutdown(socket.SHUT_WR)
    link.recv(1)  # the other end has had it all


def _transfer(
    name: str, option: int, asked: int, port: int, move: Callable[[socket.socket], None]
) -> str:
    with socket.socket() as link:
        if asked:
            link.setsockopt(socket.SOL_SOCKET, option, asked // 2)  # the kernel doubles
        link.connect((_THERE, port))
        began = time.monotonic()
        move(link)
        took = time.monotonic() - began
        size = link.getsockopt(socket.SOL_SOCKET, option)
    who = f"asked for {asked}" if asked else "left to the kernel"
    return f"{name} buffer {who}: {_BYTES / took / 1e6:.0f} MB/s, {size} bytes at the end"


def _each(port: int, answer: Callable[[socket.socket], None]) -> None:
    """Answer connections, one after the other; in a thread."""
    with socket.create_server((_THERE, port)) as server:
        while True:
            link, _ = server.accept()
            with link:
                answer(link)


def _give_all(link: socket.socket) -> None:
    link.sendall(bytes(_BYTES))


def _swallow(link: socket.socket) -> None:
    while link.recv(1 << 20):
        pass
    link.sendall(b".")


def _other_end() -> None:
    """Be the server in a namespace of its own."""
    sys.stdin.readline()  # the link is there now
    _run("ip", "addr", "add", f"{_THERE}/24", "dev", "v1")
    _run("ip", "link", "set", "v1", "up")
    servers: list[tuple[Callable[..., None], int | str, object]] = [
        (_serve, _THERE, 4096), (_each, _PORT + 1, _give_all), (_each, _PORT + 2, _swallow),
    ]  # fmt: skip
    threads = [threading.Thread(target=one, args=rest) for one, *rest in servers]
    for thread in threads:
        thread.start()
    time.sleep(0.2)  # until all listen
    print("ready", flush=True)
    threads[0].join()


def _measure(name: str, value: int) -> None:
    """Run one measurement in the namespace of this process and print its line."""
    _run("ip", "link", "set", "lo", "up")
    measured: dict[str, Callable[[int], str]] = {"ports": ports, "receive": receive, "send": send}
    if name == "storm":
        print(storm(value))
        return
    other = subprocess.Popen(
        ["/usr/bin/unshare", "--net", sys.executable, "-m", __spec__.name, "other-end"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert other.stdin is not None
    assert other.stdout is not None
    try:
        time.sleep(0.3)  # until it is in its namespace
        _run("ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1")
        _run("ip", "link", "set", "v1", "netns", str(other.pid))
        _run("ip", "addr", "add", f"{_HERE}/24", "dev", "v0")
        _run("ip", "link", "set", "v0", "up")
        other.stdin.write("\n")
        other.stdin.flush()
        other.stdout.readline()
        print(measured[name](value))
    finally:
        other.kill()
        other.wait()


def main(arguments: list[str]) -> None:
    """Measure everything, or what a child of this program is told."""
    if arguments == ["other-end"]:
        _other_end()
    if arguments:
        _measure(arguments[0], int(arguments[1]))
        return
    print(f"{os.cpu_count()} cores, Linux {os.uname().release}", flush=True)
    for name, values in (
        ("storm", (128, 511, 4096)), ("ports", (0, 2, 1)),
        ("receive", (0, 212_992, 4_194_304)), ("send", (0, 212_992, 4_194_304)),
    ):  # fmt: skip
        for value in values:
            child = [sys.executable, "-m", __spec__.name, name, str(value)]
            _run("unshare", "--net", *child)


if __name__ == "__main__":
    main(sys.argv[1:])
