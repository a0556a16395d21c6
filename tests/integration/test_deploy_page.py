"""`deploy/README.md`: what it has typed at a bare machine works, on a root folder of the test's own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from agentq.store import library
from tests.support.failover import free_port
from tests.support.tls import strict_handshake, tls_program
from tests.support.worker_process import ROOT

PAGE = ROOT / "deploy/README.md"

SYSTEMCTL = """
systemctl() {{
  sed -i 's#/etc/redis#{folder}/etc/redis#; s#/run/redis#{folder}/run/redis#; s#/var/lib#{folder}/var/lib#
    s#^tls-port .*#tls-port {port}#; s#^supervised .*#supervised no#' {folder}/etc/redis/redis.conf
  setpriv --reuid redis --regid redis --clear-groups \\
    {program} {folder}/etc/redis/redis.conf --daemonize yes --pidfile {folder}/run/redis/pid
  until [ -S {folder}/run/redis/redis.sock ]; do sleep 0.05; done
}}
"""
"""Stands for systemd: starts the server as Debian's unit does, as its user."""


@pytest.fixture
def machine() -> Iterator[Path]:
    """A folder that stands for /."""
    if os.geteuid() or not Path("/etc/debian_version").exists() or not shutil.which("redis-server"):
        pytest.skip("the page is for root on Debian with redis-server")
    with tempfile.TemporaryDirectory(prefix="aq-page-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for part in ("etc/redis", "run/redis", "var/lib/redis", "root", "bin"):
            (folder / part).mkdir(parents=True)
        for part in ("run/redis", "var/lib/redis"):
            shutil.chown(folder / part, "redis", "redis")
        (folder / "bin/agentq").write_text(f'#!/bin/sh\nexec {sys.executable} -m agentq "$@"\n')
        (folder / "bin/agentq").chmod(0o755)
        try:
            yield folder
        finally:
            if (pid := folder / "run/redis/pid").exists():
                os.kill(int(pid.read_text()), signal.SIGKILL)


def commands() -> str:
    """Return the block of the page that sets the server up."""
    [block] = re.findall(r"<!-- tried: .*?-->\n```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(block)


def typed(machine: Path, text: str) -> str:
    """Run what is typed on the page as root of *machine*; return what it prints."""
    own = {"/opt/agentq/src": str(ROOT)}
    own |= {path: f"{machine}{path}" for path in ("/etc/redis", "/run/redis", "/root/")}
    for path, there in own.items():
        text = text.replace(path, there)
    systemctl = SYSTEMCTL.format(folder=machine, port=free_port(), program=tls_program())
    done = subprocess.run(
        ["/bin/bash", "-euo", "pipefail", "-c", systemctl + text], cwd=machine, check=False,
        env={**os.environ, "PATH": f"{machine}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(60)
def test_the_server_is_set_up_by_what_the_page_has_typed(machine: Path) -> None:
    said = typed(
        machine, commands() + "AGENTQ_BROKER__URL=$(broker dashboard) agentq metrics --once"
    )
    assert f"functions {library.LIBRARY}, revision {library.REVISION}: loaded" in said
    assert "agentq_broker_up 1.0" in said
    conf = (machine / "etc/redis/redis.conf").read_text()
    [port] = re.findall(r"^tls-port (\d+)$", conf, re.MULTILINE)
    strict_handshake(machine / "etc/redis/tls/ca.crt", int(port), host="broker.internal")
    users = machine / "etc/redis/users.acl"
    assert (users.group(), users.stat().st_mode & 0o777) == ("redis", 0o640)
    assert (machine / "root/agentq-passwords").stat().st_mode & 0o777 == 0o600
    assert (machine / "etc/redis/tls/ca.key").stat().st_mode & 0o777 == 0o600


def test_what_the_page_installs_can_call_a_model() -> None:
    [extras] = re.findall(r"pip install '/opt/agentq/src\[(.*?)\]'", PAGE.read_text())
    assert {"worker", "cli", "dashboard", "inference"} == set(extras.split(","))


APP = """
import asyncio
from pathlib import Path

from agentq import AgentQ, each

aq = AgentQ("shop")

@aq.step(pool="critical")
async def plan(width: int) -> list[int]:
    return list(range(width))

@aq.step
async def double(part: int) -> int:
    return 2 * part

@aq.step(pool="critical")
async def total(parts: list) -> int:
    return sum(part.value for part in parts)

@aq.step
async def hold(mark: str) -> str:
    if Path(mark).exists():
        return "begun again"
    Path(mark).touch()
    await asyncio.sleep(300)

orders = aq.flow("orders", plan >> each(double) >> total)
held = aq.flow("held", hold)
"""
BARE = """
set -e
mount --make-rshared /  # as on a machine: systemd hands credentials over by a mount
printf '#!/bin/sh\\nexec /opt/agentq/venv/bin/python -P -m agentq "$@"\\n' > /opt/agentq/venv/bin/agentq
chmod 755 /opt/agentq/venv/bin/agentq
export PATH=/opt/agentq/venv/bin:$PATH PYTHONPATH=/opt/agentq/src AGENTQ_WORKER__LEASE=100s
mkdir -p /opt/agentq/app /etc/redis
cp /shared/shop.py /opt/agentq/app
cd /opt/agentq/app
systemctl unmask redis-server
"""
"""What the page's first two commands leave, where packages are the test's own."""
USED = """
AGENTQ_BROKER__URL=$(broker producer) agentq submit orders 5 --wait -A shop:aq
python -c 'import urllib.request as u; print(u.urlopen("http://127.0.0.1:9464/metrics").read().decode())'
AGENTQ_BROKER__URL=$(broker admin) agentq status
mark=/var/lib/agentq/begun
AGENTQ_BROKER__URL=$(broker producer) timeout 40 agentq submit held "\\"$mark\\"" --wait -A shop:aq & held=$!
until [ -e $mark ]; do sleep 0.05; done
systemctl kill --kill-who=main -s KILL agentq-worker@shared-0; wait $held  # much sooner than a lease
"""


@pytest.mark.timeout(180)
def test_the_whole_page_brings_up_a_watched_pool_on_a_real_systemd() -> None:
    machines = pytest.importorskip("tests.support.systemd_machine", reason="no harness for systemd")
    if (reason := machines.unsupported()) or not Path("/usr/bin/redis-server").exists():
        pytest.skip(f"no systemd can be booted here: {reason or 'no redis-server'}")
    page = PAGE.read_text().partition("## Day by day")[0]
    _, *blocks = re.findall(r"```\n(.*?)```", page, re.DOTALL)
    steps = [line for line in "".join(blocks).splitlines() if "agentq doctor" not in line]
    with machines.SystemdMachine() as machine:
        (machine.shared / "shop.py").write_text(APP)
        (machine.shared / "typed").write_text("\n".join([BARE, *steps, USED]))
        said = machine.run("bash", "/shared/typed", timeout=150)
        assert "\n20\n" in said
        assert "begun again" in said
        for line in ("broker_up 1.0", 'pool_workers{pool="critical"} 1.0',
                     'pool_workers{pool="shared"} 1.0'):  # fmt: skip
            assert f"\nagentq_{line}\n" in said, said
        assert "append-only file, fsync every second" in said
        for unit in ("metrics", "dashboard"):
            own = machine.run("ls", f"/run/credentials/agentq-{unit}.service").split()
            assert own == ["agentq.dashboard.broker_url"]
        kept = machine.outside("/root/agentq-passwords").read_text()
        password = dict(line.split() for line in kept.splitlines())["agentq-admin"]
        link = redis.Redis(
            unix_socket_path=str(machine.outside("/run/redis/redis.sock")),
            username="agentq-admin", password=password,
        )  # fmt: skip
        users = Counter(one["user"] for one in link.client_list())
        assert users["agentq-dashboard"] >= 2, users
        refused = {entry["object"] for entry in link.acl_log()}
        # The driver's greeting, and how the file is synced: who waits for a run asks for all of it.
        assert refused <= {"client|setinfo", "config|get"}
