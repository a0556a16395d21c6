"""What is said where the broker does not answer."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from agentq.errors import BrokerUnavailable
from agentq.store import calls
from agentq.store.address import parse
from agentq.store.client import AsyncStore, Store
from tests.support.worker_process import ROOT

SHORT = timedelta(milliseconds=200)
SUBMIT = ("FCALL", "aq1_enqueue", 1, "x")


def refusal(url: str, *, submit: bool = False) -> str:
    store = Store(address=parse(url), timeout=SHORT)
    with pytest.raises(BrokerUnavailable) as refused:
        store.call(SUBMIT if submit else calls.cancel("x", "r", 1))
    return str(refused.value)


def test_where_nothing_listens_the_address_and_the_way_out_are_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    for url in (f"agentq://127.0.0.1:{port}/0", f"agentq+unix://{tmp_path}/no.sock"):
        expected = (
            f"nothing listens at {url}: start it, or unset broker.url to use the embedded server "
            "of `agentq up`"
        )
        assert refusal(url) == expected
        assert refusal(url, submit=True) == expected
        store = AsyncStore(address=parse(url), timeout=SHORT)
        with pytest.raises(BrokerUnavailable) as refused:
            asyncio.run(store.command("PING"))
        assert str(refused.value) == expected


def test_where_the_embedded_server_has_ended_nobody_is_told_to_unset_what_was_never_set(
    tmp_path: Path,
) -> None:
    url = f"agentq+unix://{tmp_path}/b.sock"
    assert refusal(url) == (
        f"nothing listens at {url}: the embedded server there has ended; `agentq up` starts it"
    )


def test_where_no_sentinel_answers_or_no_host_has_the_name_nothing_was_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url = f"agentq+sentinel://127.0.0.1:{port}/mine"
    expected = f"no Sentinel of {url} answers, or none knows a primary 'mine'"
    assert refusal(url, submit=True) == expected
    nowhere = refusal("agentq://no.such.host.invalid:6379/0", submit=True)
    assert "can not be reached: [Errno " in nowhere
    assert "taken the work" not in nowhere


def test_a_silent_broker_is_a_time_out_and_only_a_submit_is_told_of_repeating() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"agentq://127.0.0.1:{silent.getsockname()[1]}/0"
        expected = f"the broker at {url} did not answer within 200ms"
        assert refusal(url) == expected
        assert refusal(url, submit=True) == (
            f"{expected}; it may have taken the work all the same: "
            "the same key or task id is taken once"
        )


_SUBMITS = """
from agentq import AgentQ

aq = AgentQ("shop", overrides={"broker.url": "agentq://127.0.0.1:1/0"})

@aq.step
async def double(x: int) -> int:
    return 2 * x

aq.flow("double", double).submit(1)
"""


def test_from_python_a_broker_that_is_away_is_one_short_traceback(tmp_path: Path) -> None:
    (tmp_path / "caller.py").write_text(_SUBMITS)
    done = subprocess.run(
        [sys.executable, "caller.py"], cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=25, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    lines = done.stderr.splitlines()
    assert "BrokerUnavailable: nothing listens at agentq://127.0.0.1:1/0" in lines[-1]
    assert len(lines) <= 15
    assert sum(line.startswith("Traceback") for line in lines) == 1
