"""Broker URLs: what they mean, and that a password is never shown."""

from __future__ import annotations

import pytest

from agentq.errors import SettingsError
from agentq.store.address import Address, parse


def test_a_plain_url_has_defaults() -> None:
    address = parse("agentq://10.0.0.1")
    assert (address.hosts, address.db, address.cell) == ((("10.0.0.1", 6379),), 0, "main")
    assert str(address) == "agentq://10.0.0.1:6379/0"


def test_a_url_says_database_cell_and_login() -> None:
    address = parse("agentq://user:p%40ss@host:7000/3?cell=two", cell="one")
    assert (address.hosts, address.db, address.cell) == ((("host", 7000),), 3, "two")
    assert (address.username, address.password) == ("user", "p@ss")
    assert parse("agentq://host", cell="one").cell == "one"


def test_a_socket_is_named_by_its_path() -> None:
    address = parse("agentq+unix:///run/a%20b.sock?db=2&cell=c")
    assert (address.path, address.db, address.cell) == ("/run/a b.sock", 2, "c")


def test_a_socket_may_need_a_login() -> None:
    address = parse("agentq+unix://user:secret@/run/b.sock")
    assert (address.path, address.username, address.password) == ("/run/b.sock", "user", "secret")
    assert str(address) == "agentq+unix:///run/b.sock"


def test_sentinel_takes_several_hosts_and_a_service() -> None:
    address = parse("agentq+sentinel://a,b:5000/main")
    assert (address.hosts, address.service) == ((("a", 26379), ("b", 5000)), "main")


def test_a_password_is_neither_in_text_nor_in_repr_nor_in_errors() -> None:
    address = parse("agentq://user:secret@host")
    assert "secret" not in f"{address} {address!r}"
    with pytest.raises(SettingsError) as caught:
        parse("redis://user:secret@host")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://host", "scheme 'redis' is not one of"),
        ("agentq://", "the host is missing"),
        ("agentq+unix://", "the socket's path is missing"),
        ("agentq+unix://run/b.sock", "the socket's path is missing"),
        ("agentq+sentinel://host", "service's name is missing"),
        ("agentq://host/first", "invalid literal"),
        ("agentq://host?colour=red", "option 'colour' is unknown"),
        ("agentq://host?ssl_ca_certs=ca.pem", "ssl_ca_certs is for agentq\\+tls://"),
        ("agentq+tls://host?ssl_cert_reqs=none", "option 'ssl_cert_reqs' is unknown"),
    ],
)
def test_a_wrong_url_is_refused_with_its_reason(url: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        parse(url)


def test_addresses_compare_by_value() -> None:
    assert parse("agentq://h:1/2") == Address("agentq", hosts=(("h", 1),), db=2)
