"""What doctor finds in the settings."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentq.ops.doctor import configured, stock
from agentq.ops.doctor.finding import Finding
from agentq.settings import Settings, load_settings

URL = "agentq+tls://redis.internal:6380/0"


def of(env: str = "production", **overrides: object) -> Settings:
    named = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_settings(env=env, overrides={"broker.url": URL} | named, environ={})


def names(findings: Iterator[Finding]) -> list[str]:
    return [f"{one.severity} {one.subject}" for one in findings]


def test_a_hang_timeout_beyond_the_lease_is_found() -> None:
    assert names(configured.leases(of())) == []
    [found] = configured.leases(of(worker__lease="5s", worker__hang_timeout="12s"))
    assert found.seen == "worker.hang_timeout 12s is longer than worker.lease 5s"
    assert "17s" in found.why


def test_a_lease_that_a_pause_outlasts_is_found() -> None:
    short = of(worker__lease="1s", worker__hang_timeout="500ms")
    assert names(configured.leases(short)) == ["warning settings.lease"]


def test_production_needs_a_broker_and_a_place_for_large_payloads(tmp_path: Path) -> None:
    bare = of(broker__url=None)
    assert names(configured.production(bare)) == ["error settings.broker", "note settings.blobs"]
    assert names(configured.production(of("development", broker__url=None))) == []
    assert names(configured.production(of(blobs__directory=str(tmp_path)))) == []
    assert names(configured.production(of(blobs__store="none"))) == []


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("agentq://redis.internal:6379/0", ["warning settings.tls"]),
        ("agentq://user:a@b@redis.internal/0", ["warning settings.tls"]),
        ("agentq://127.0.0.1:6379/0", []),
        ("agentq://:secret@localhost:6379/0", []),
        ("agentq://[::1]:6379/0", []),
        ("agentq+unix:///run/redis.sock", []),
        (URL, []),
    ],
)
def test_a_broker_elsewhere_is_to_be_reached_by_tls(url: str, found: list[str]) -> None:
    settings = of(broker__url=url, blobs__store="none")
    assert names(configured.production(settings)) == found


def test_a_blobs_folder_that_is_not_there_is_found(tmp_path: Path) -> None:
    assert names(configured.blobs(of(blobs__directory=str(tmp_path)))) == []
    [found] = configured.blobs(of(blobs__directory=str(tmp_path / "mount")))
    assert found.seen == f"blobs.directory {tmp_path / 'mount'} is not there"


def test_a_dashboard_that_others_reach_is_found() -> None:
    assert names(configured.dashboard(of())) == []
    assert names(configured.dashboard(of(dashboard__host="0.0.0.0"))) == [  # noqa: S104 -- refused
        "warning settings.dashboard"
    ]


def test_a_model_server_is_found_where_what_calls_it_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calling = of(model__base_url="http://127.0.0.1:8000/v1")
    assert names(configured.model(calling)) == []
    monkeypatch.setitem(sys.modules, "httpx2", None)
    assert names(configured.model(of())) == []
    [found] = configured.model(calling)
    assert (found.severity, found.subject) == ("error", "settings.model")
    assert "-m pip install 'httpx2>=" in found.remedy


def test_debug_in_production_is_found_and_nowhere_else() -> None:
    assert names(configured.logs(of())) == []
    assert names(configured.logs(of(log__level="DEBUG"))) == ["warning settings.log"]
    assert names(configured.logs(of("development", log__level="DEBUG"))) == []


@pytest.fixture
def slow_logger(tmp_path: Path) -> Iterator[str]:
    handler = logging.FileHandler(tmp_path / "shop.log")
    logger = logging.getLogger("shop.orders")
    logger.addHandler(handler)
    yield logger.name
    logger.removeHandler(handler)
    handler.close()


def test_a_logger_that_writes_synchronously_is_found(slow_logger: str) -> None:
    [found] = configured.logs(of())
    assert found.seen == f"logger {slow_logger!r} has a FileHandler, which writes synchronously"
    assert "QueueHandler" in found.remedy


def test_variables_for_debugging_are_found_in_production() -> None:
    given = {"PYTHONASYNCIODEBUG": "1", "PYTHONDEVMODE": "0", "HOME": "/"}
    [found] = configured.variables(of(), given)
    assert found.remedy == "unset PYTHONASYNCIODEBUG"
    assert names(configured.variables(of("development"), given)) == []
    assert names(configured.variables(of(), {})) == []


def test_an_app_that_is_not_named_is_said_in_production() -> None:
    assert names(configured.app(of(), named=True)) == []
    assert names(configured.app(of(), named=False)) == ["note settings.app"]


@pytest.mark.parametrize("url", ["redis://:secret@h/0", "rediss://h", "sentinel://h/0"])
def test_celerys_own_transport_is_found_with_each_guarantee_that_it_does_not_hold(
    url: str,
) -> None:
    refused, *found = stock.stock(url)
    assert refused.severity == "error"
    assert len(found) == 8
    assert {one.seen.rpartition(": ")[2] for one in found} == set(stock.NOT_HELD)
    assert all("secret" not in str(one) for one in found)


@pytest.mark.parametrize("url", [None, URL, "agentq://h/0"])
def test_our_own_transport_has_no_such_list(url: str | None) -> None:
    assert list(stock.stock(url)) == []
