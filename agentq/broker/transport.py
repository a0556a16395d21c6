"""The kombu transport `agentq://` (`+tls`, `+unix`, `+sentinel`), for Celery's own consumer.

Kombu's Redis transport brings the poller and the event loop; `channel` replaces what concerns
queues and says why.
"""

from __future__ import annotations

from typing import Any, ClassVar

from celery import current_app
from kombu import Connection
from kombu.exceptions import OperationalError
from kombu.transport import redis as kombu_redis

from agentq.broker.channel import Channel
from agentq.broker.terms import Terms
from agentq.errors import BrokerUnavailable
from agentq.store.address import Address, parse
from agentq.store.client import Store
from agentq.store.wrong_url import NO_REDIS

SCHEME = "agentq"


class Transport(kombu_redis.Transport):  # type: ignore[misc]
    """What kombu makes of `agentq://`."""

    Channel = Channel
    can_parse_url = True  # kombu's parser knows neither socket paths nor lists of Sentinels
    driver_name = SCHEME
    supports_batch_publish = False
    implements = kombu_redis.Transport.implements.extend(batch_publish=False)
    connection_errors: ClassVar[tuple[type[BaseException], ...]] = (
        *kombu_redis.Transport.connection_errors, BrokerUnavailable,
        NO_REDIS,  # an error of the channel to kombu, which would end the worker
        OperationalError,  # what kombu has made of one already: else it ends a worker in its start
    )  # fmt: skip

    def __init__(self, client: Connection, **options: Any) -> None:
        """Take the cell's address and terms from the connection's options, else from its URL."""
        given = client.transport_options
        self.terms: Terms = given.get("terms") or Terms()
        self.address: Address = given.get("address") or _address_of(client)
        self.store = Store(address=self.address, timeout=self.terms.timeout)
        super().__init__(client, **options)
        self.brpop_timeout = self.terms.wait_s

    def close_connection(self, connection: Any) -> None:
        """Close the channels, then the store they share."""
        super().close_connection(connection)
        self.store.close()

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:  # noqa: ARG002, FBT001, FBT002 -- kombu's
        """Return where the cell is, without its password."""
        return str(self.address)


def _address_of(client: Connection) -> Address:
    url = client.hostname
    if url == f"{SCHEME}://" and (app := getattr(current_app, "aq", None)) is not None:
        return app.address  # type: ignore[no-any-return]  # the configuration's placeholder
    if client.uri_prefix:
        url = f"{client.uri_prefix}+{url}"
    return parse(url)


def kombu_connection(app: Any, address: Address, options: dict[str, Any]) -> Connection:
    """Return a connection of *app* to the cell at *address*.

    Args:
        app: a `CeleryApp`; its settings are the terms.
        address: where the cell is.
        options: as `Celery.connection` takes them; only `transport_options`, `heartbeat` and
            `connect_timeout` mean anything here.
    """
    given = {**app.conf.broker_transport_options, **(options.get("transport_options") or {})}
    return app.amqp.Connection(
        f"{SCHEME}://",
        transport_options={**given, "address": address, "terms": Terms.of(app.aq.settings)},
        heartbeat=options.get("heartbeat"),
        connect_timeout=options.get("connect_timeout") or app.conf.broker_connection_timeout,
    )
