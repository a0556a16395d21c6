"""Fail-points: which there are, how one is named, and that without one nothing is in the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hiredis import pack_command
from redis.asyncio.connection import UnixDomainSocketConnection as AsyncConnection
from redis.connection import UnixDomainSocketConnection

from agentq.errors import SettingsError
from agentq.settings import load_settings
from agentq.store import calls, fail_points, library
from agentq.store.address import connect, connect_async, parse

ADDRESS = parse("agentq+unix:///nowhere.sock")
FUNCTIONS = Path(library.__file__).parent / "functions"


@pytest.fixture(autouse=True)
def _read_anew() -> Iterator[None]:
    fail_points.chosen.cache_clear()
    yield
    fail_points.chosen.cache_clear()


def test_every_function_has_its_three_points() -> None:
    files = {path.stem for path in FUNCTIONS.glob("[!_]*.lua")}
    assert files < set(library.functions())
    assert set(library.functions()) - files == {"stage_started"}
    assert {"before-complete", "sent-complete", "after-complete"} < set(fail_points.names())
    assert len(fail_points.names()) == 3 * len(library.functions())


def test_without_the_variable_connections_are_redis_pys_own() -> None:
    assert connect(ADDRESS, timeout=None).connection_pool.connection_class is (
        UnixDomainSocketConnection
    )
    assert connect_async(ADDRESS, timeout=None).connection_pool.connection_class is AsyncConnection


def test_with_it_they_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTQ_CRASH", "before-fetch")
    for client in (connect(ADDRESS, timeout=None), connect_async(ADDRESS, timeout=None)):
        assert client.connection_pool.connection_class.__name__ == "Crashing"


def test_a_name_that_there_is_not_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        SettingsError, match=r"no point 'before-dinner': .* one of .*cancel, complete"
    ):
        fail_points.parse("before-dinner")


@pytest.mark.parametrize("text", ["before-fetch:0", "before-fetch:", "before-fetch:x", ":1", "a b"])
def test_another_form_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(
        SettingsError, match=r"write name\[:n\]\[@file\]\[!stop\], such as after-complete:3"
    ):
        fail_points.parse(text)


def test_the_variable_is_known_and_no_setting() -> None:
    with_it = load_settings(env="test", environ={"AGENTQ_CRASH": "before-fetch"})
    assert with_it == load_settings(env="test", environ={})


def test_calls_are_told_from_other_commands_however_they_are_packed() -> None:
    renew = calls.renew("P", "w", 1, first=True, report=b"\r\n$5\r\nFCALL\r\n")
    packed = [pack_command(one) for one in (("PING",), renew, calls.held("P", "w"))]
    assert fail_points.functions_in(packed) == ["", "renew", "held"]
    assert fail_points.functions_in(b"".join(packed)) == ["", "renew", "held"]
