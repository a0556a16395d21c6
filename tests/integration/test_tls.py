"""`agentq+tls://`: encrypted, with a CA that is checked and a host name that is checked."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from agentq.errors import BrokerUnavailable, SettingsError
from agentq.store.address import connect, parse
from agentq.store.client import Store
from agentq.store.wrong_url import not_trusted
from tests.support.failover import Process, data_server
from tests.support.ledger import Ledger
from tests.support.running import running
from tests.support.tls import (
    Certificate,
    signed,
    strict_handshake,
    tls_program,
    tls_sentinel,
    tls_server,
)


@dataclass
class Secure:
    """A server that asks for a certificate too, and two CAs: its own and a stranger."""

    server: Process
    program: str
    own: Certificate
    stranger: Certificate
    folder: Path

    def url(self, host: str = "127.0.0.1", trusted: Certificate | None = None) -> str:
        authority, own = (trusted or self.own).authority, self.own
        return (
            f"agentq+tls://{host}:{self.server.port}/0?ssl_ca_certs={authority}"
            f"&ssl_certfile={own.certificate}&ssl_keyfile={own.key}"
        )


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    folder = tmp_path_factory.mktemp("tls")
    program = tls_program()
    own = signed(folder, "own", alternative="IP:127.0.0.1")
    stranger = signed(folder, "stranger", alternative="IP:127.0.0.1")
    server = tls_server(folder, program, own)
    server.start()
    yield Secure(server, program, own, stranger, folder)
    server.kill()


def store_of(url: str) -> Store:
    return Store(address=parse(url), timeout=timedelta(seconds=2))


def test_a_run_ends_over_tls(secure: Secure, ledger: Ledger) -> None:
    with running("tests.support.apps.faults", secure.url(), ledger) as app:
        app.worker()
        assert app.app.aq.get_flow("one").submit(5).result(timeout=10) == 5
        assert app.app.quick.delay(6).get(timeout=10) == 6
        app.app.aq.store.close()


def test_a_certificate_of_another_authority_is_refused(secure: Secure) -> None:
    with pytest.raises(BrokerUnavailable, match=r"certificate of the broker .* refused.*ca_certs"):
        store_of(secure.url(trusted=secure.stranger)).command("PING")


def test_without_its_authority_no_certificate_is_taken(secure: Secure) -> None:
    with pytest.raises(BrokerUnavailable, match=r"certificate of the broker .* is refused"):
        store_of(f"agentq+tls://127.0.0.1:{secure.server.port}").command("PING")


def test_an_authority_that_a_newer_python_refuses_is_to_be_made_anew(secure: Secure) -> None:
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        strict_handshake(secure.own.authority, secure.server.port, host="127.0.0.1")
    said = not_trusted(parse(secure.url()), [caught.value])
    assert "key usage" in said
    assert "make it anew" in said
    assert "ssl_ca_certs" not in said


def test_a_host_that_the_certificate_does_not_name_is_refused(secure: Secure) -> None:
    with pytest.raises(BrokerUnavailable, match=r"Hostname mismatch|IP address mismatch"):
        store_of(secure.url("localhost")).command("PING")


def test_a_client_without_the_certificate_that_the_server_asks_for_is_told(secure: Secure) -> None:
    url = secure.url().partition("&")[0]
    with pytest.raises(BrokerUnavailable, match=r"TLS with the broker|can not be reached"):
        store_of(url).command("PING")


def test_the_wrong_port_is_named_by_either_side(secure: Secure, tmp_path: Path) -> None:
    with pytest.raises(BrokerUnavailable, match=r"is that its TLS port \(agentq\+tls://\)\?$"):
        store_of(f"agentq://127.0.0.1:{secure.server.port}").command("PING")
    plain = data_server(tmp_path)
    plain.start()
    try:
        with pytest.raises(BrokerUnavailable, match="is that its TLS port"):
            store_of(f"agentq+tls://127.0.0.1:{plain.port}").command("PING")
    finally:
        plain.kill()


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(SettingsError, match=r"ssl_ca_certs=/nowhere/ca\.pem is no file"):
        connect(parse("agentq+tls://host?ssl_ca_certs=/nowhere/ca.pem"), timeout=None)


def test_sentinels_and_the_primary_they_name_speak_tls(secure: Secure) -> None:
    sentinel = tls_sentinel(secure.folder, secure.program, secure.own, secure.server)
    sentinel.start()
    query = secure.url().partition("?")[2]
    try:
        store = store_of(f"agentq+sentinel://127.0.0.1:{sentinel.port}/main?{query}")
        assert store.command("PING") in (b"PONG", True)
        store.close()
    finally:
        sentinel.kill()
