"""One channel of `agentq://`: what Celery's consumer asks of a queue, put to pools and streams.

Subclasses kombu's Redis channel, because what is tested there is worth keeping: the integration
with Celery's event loop, re-registration after a lost socket, fan-out by pub/sub, the checks for
half-open connections. Everything that concerns queues is replaced, since kombu pops a message and
only then notes who has it: here a queue is a pool's streams, and taking is one function call.

A consuming channel asks on one connection, never two questions at a time, so the event loop never
blocks:

    fetch(pool 1) -> fetch(pool 2) -> ... -> all short? -> BLPOP wake:<worker> -> fetch(pool 1) ...
                     a full answer: ask that pool again once there is room

Replies to remote control (`<id>.reply.<name>.pidbox`) are lists that live a minute, read by the
same BLPOP. Bindings are known to the process that declared them and no other; a message to an
unknown direct exchange goes to the queue of its routing key.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter, deque
from collections.abc import Sequence
from queue import Empty
from time import monotonic
from typing import Any

from kombu.exceptions import ChannelError
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from kombu.utils.json import dumps, loads

from agentq.broker import backlog, publisher, received, routing, worker_app
from agentq.broker.lease_keeper import LeaseKeeper, keeper_of
from agentq.broker.message import Message, message_of
from agentq.broker.policy import InOrder
from agentq.broker.qos import QoS
from agentq.broker.received import Letter, Verdict, judge
from agentq.broker.terms import Terms
from agentq.clock import wall_ms
from agentq.store import calls, effects, library
from agentq.store.address import Address, connect
from agentq.store.client import Store

logger = logging.getLogger(__name__)

_REPLY_TTL_MS = 60_000
_UNLIMITED = 16  # messages fetched at a time where the consumer sets no prefetch

_SELECTION = InOrder(routing.LANES)


def is_reply(queue: str) -> bool:
    """Whether *queue* is for the replies to remote control."""
    return ".reply." in queue and queue.endswith(".pidbox")


class Channel(kombu_redis.Channel):  # type: ignore[misc]
    """One channel; producers use it for fan-out and plain Celery apps for their tasks."""

    QoS = QoS
    Message = Message
    body_encoding = None
    default_priority = routing.DEFAULT_PRIORITY  # kombu's 0 is the highest
    supports_batch_publish = False
    from_transport_options = (
        *virtual.Channel.from_transport_options, "fanout_prefix", "fanout_patterns",
        "health_check_interval",
    )  # fmt: skip

    def __init__(self, connection: Any, **options: Any) -> None:
        """Connect, as kombu's does."""
        self.address: Address = connection.address
        self.terms: Terms = connection.terms
        self.store: Store = connection.store
        self.prefix = self.store.keys.prefix
        self.global_keyprefix = self.prefix
        self.asking = False
        """Whether a fetch is under way: its answer is read whatever the prefetch says by then."""
        self.ahead_ms = 0  # this machine's clock, of the broker's
        self._asked: tuple[str, int] = ("", 0)
        self._turns: Counter[str] = Counter()
        self._to_ask: deque[str] = deque()
        self._moment = 0.0  # seconds to let others go first
        self._unacked: set[str] = set()
        self._keeper: LeaseKeeper | None = None
        super().__init__(connection, **options)

    @property
    def keeper(self) -> LeaseKeeper:
        """Return this process' lease, taken when a channel first consumes."""
        if self._keeper is None:
            self._keeper = keeper_of(self.address, self.terms)
        return self._keeper

    # -- publishing -------------------------------------------------------------------------------

    def prepare_message(
        self, body: Any, priority: int | None = None, *args: Any, **options: Any
    ) -> dict[str, Any]:
        """Do as kombu does, but keep a priority of 0."""
        message: dict[str, Any] = super().prepare_message(body, priority, *args, **options)
        if priority is not None:
            message["properties"]["priority"] = priority
        return message

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        if is_reply(queue):
            key = self.store.keys.reply(queue)
            push = ("RPUSH", key, dumps(message))
            self.store.pipeline([push, ("PEXPIRE", key, _REPLY_TTL_MS)])
            return
        publisher.enqueue(self.store, self.terms, *message_of(queue, message))

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str]:
        if not exchange:
            return [routing_key or default or ""]
        if is_reply(f"{routing_key}.{exchange}"):
            return [f"{routing_key}.{exchange}"]
        kind = self.typeof(exchange)
        found = kind.lookup(self.get_table(exchange), exchange, routing_key, default)
        return list(found) or ([routing_key] if kind.type == "direct" else [])

    def get_table(self, exchange: str) -> list[Any]:
        """Return the bindings of *exchange* that this process declared."""
        table: list[Any] = self.state.exchanges.get(exchange, {}).get("table", [])
        return table

    def _queue_bind(
        self,
        exchange: str,
        routing_key: str,
        pattern: str,  # noqa: ARG002 -- kombu's
        queue: str,
    ) -> None:
        if self.typeof(exchange).type == "fanout":
            self._fanout_queues[queue] = (exchange, routing_key.replace("#", "*"))

    def _new_queue(self, queue: str, auto_delete: bool = False, **_: Any) -> None:  # noqa: FBT001, FBT002 -- kombu's
        if ":" in queue and queue not in self._fanout_queues and not is_reply(queue):
            raise ChannelError(f"queue {queue!r}: its name must not hold a colon")
        if auto_delete:
            self.auto_delete_queues.add(queue)

    # -- consuming --------------------------------------------------------------------------------

    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **options: Any) -> Any:  # noqa: FBT001 -- kombu's
        """Consume from *queue*, which is a pool."""
        result = super().basic_consume(queue, no_ack, *args, **options)
        if queue in self._streams():
            if no_ack:
                self._unacked.add(queue)
            self.keeper.consumes(queue, self.qos)
            self._to_ask.append(queue)
        return result

    def _streams(self) -> list[str]:
        return [queue for queue in self.active_queues if not is_reply(queue)]

    def _brpop_start(self, timeout: float | None = None) -> None:  # noqa: ARG002 -- kombu's
        """Ask the next pool for work; once all had less than there was room for, wait."""
        streams = self._streams()
        while self._to_ask and self._to_ask[0] not in streams:  # cancelled meanwhile
            self._to_ask.popleft()
        asks = self._to_ask and not self._moment
        call = self._fetch(self._to_ask.popleft()) if asks else self._wait(streams)
        self._in_poll = self.client.connection
        self._brpop_sent_at = monotonic()
        self.client.connection.send_command(*call)

    def _fetch(self, queue: str) -> calls.Call:
        room = self.qos.room(_UNLIMITED)
        self.asking, self._asked = True, (queue, room)
        self._turns[queue] += 1
        quotas = _SELECTION.quotas(room, self._turns[queue])
        return calls.fetch(self.prefix, self.keeper.name, queue, room, self.qos.load, quotas)

    def _wait(self, streams: list[str]) -> calls.Call:
        keys = [self.store.keys.reply(queue) for queue in self.active_queues if is_reply(queue)]
        if streams:
            keys.insert(0, self.store.keys.wake(self.keeper.name))
        seconds, self._moment = self._moment or self.terms.wait_s, 0.0
        return ("BLPOP", *keys, str(seconds))

    def _brpop_read(self, **_: Any) -> bool:
        """Take the answer to what was asked: it is asked until all of it is in some hands."""
        try:
            answer = self.client.connection.read_response()
        except self.connection_errors:
            self.asking = False
            self.client.connection.disconnect()
            raise
        except self.ResponseError as error:
            if not library.is_missing(error):
                raise
            self.keeper.ensure_functions()  # the server was flushed or is new
            answer = None
        finally:
            self._in_poll = None
        try:
            if self._fetched(answer) if self.asking else self._woken(answer):
                return True
        finally:
            self.asking = False
        raise Empty

    def _woken(self, answer: list[bytes] | None) -> bool:
        self._to_ask.extend(queue for queue in self._round() if queue not in self._to_ask)
        replies = self.store.keys.reply("")
        if answer is None or not answer[0].decode().startswith(replies):
            return False  # its wake key; who only waits for replies takes no lease for this
        queue = answer[0].decode().removeprefix(replies)
        self.connection._deliver(loads(answer[1].decode()), queue)  # noqa: SLF001 -- kombu's way
        return True

    def _round(self) -> list[str]:
        streams = self._streams()
        order: list[str] = [
            queue
            for queue in self._queue_cycle.consume(len(self.active_queues))
            if queue in streams
        ]
        if order:
            self._queue_cycle.rotate(order[0])
        return order

    def _fetched(self, answer: list[Any] | None) -> bool:
        queue, room = self._asked
        if answer is None:
            return False
        if monotonic() - self._brpop_sent_at >= self.terms.lease_ms / 1000:
            # Stopped meanwhile: others may have by now what came, so it counts as never arrived.
            self._to_ask.append(queue)
            return False
        now_ms, entries = answer
        self.ahead_ms = wall_ms() - now_ms
        if entries is None:  # nil: no lease
            self.keeper.retake()
            self._to_ask.append(queue)
            return False
        if len(entries) >= room:
            self._to_ask.append(queue)
        waiting: deque[Verdict] = deque()
        for entry in entries:  # all, before solo runs the first of them
            verdict = judge(entry, pool=queue, now_ms=now_ms, terms=self.terms)
            if self.qos.takes(verdict, beside=len(waiting)):
                waiting.append(verdict)
        try:
            while waiting:
                self._hand_in(queue, waiting[0])
                waiting.popleft()
        finally:
            self._return(waiting)
        return bool(entries)

    def _return(self, verdicts: deque[Any]) -> None:
        """Hand back what did not reach the consumer, which is shutting down or disconnected."""
        for verdict in verdicts:
            fence = verdict.fence
            if fence.tag not in self.qos._delivered:  # noqa: SLF001 -- kombu's bookkeeping
                self.qos.give_back(fence)

    def _park(self, fence: received.Fence, id_: str, lacking: str) -> None:
        parking = self.keeper.parking
        parking.say(lacking)
        call = calls.park(
            self.prefix, f"{fence.pool}:{fence.lane}", fence.stream, fence.entry,
            after_ms=parking.after_ms(id_.encode()), name=lacking, limit_ms=self.terms.park_ms,
            keep_ms=self.terms.keep_ms,
        )  # fmt: skip
        self.keeper.hand_back(call)
        self._moment = parking.moment

    def _hand_in(self, queue: str, verdict: Verdict) -> None:
        match verdict:
            case received.Received(fence, payload) if not worker_app.knows(
                payload["headers"]["task"]
            ):
                self._park(fence, payload["letter"].id, f"task {payload['headers']['task']}")
            case received.Unknown(fence, id_, lacking):
                self._park(fence, id_, lacking)
            case received.Received(fence, payload):
                self._deliver_checked(queue, fence, payload)
            case received.Exhausted(fence, payload, attempts):
                reason = f"its worker died {attempts} times while it ran"
                worker_app.give_up(payload, reason)
                self.bury(fence, reason, payload["letter"])
            case received.Unreadable(fence, reason, letter):
                logger.error("dead letter %s: %s", letter.id or fence.entry, reason)
                self.bury(fence, reason, letter, letter.followers(reason, self.terms.keep_ms))
            case received.Dropped(fence, run):
                self.end(fence, run=run)

    def _deliver_checked(self, queue: str, fence: received.Fence, payload: dict[str, Any]) -> None:
        """Give a message to the consumer; what it chokes on must not end its loop."""
        try:
            self.connection._deliver(payload, queue)  # noqa: SLF001 -- kombu's way
        except Exception as error:
            # kombu counts a KeyError among them; here it is a message that Celery chokes on.
            if isinstance(error, self.connection_errors) and not isinstance(error, KeyError):
                raise
            logger.exception("dead letter %s", payload["headers"]["id"])
            self.bury(fence, f"{type(error).__name__}: {error}", payload["letter"])
            virtual.QoS.ack(self.qos, fence.tag)
        else:
            if queue in self._unacked:
                self.end(fence)

    def _get(self, queue: str) -> dict[str, Any]:
        """Take one message, for `basic_get`."""
        quotas = tuple(arg for lane in routing.LANES for arg in (lane, 1))
        call = calls.fetch(self.prefix, self.keeper.name, queue, 1, self.qos.load, quotas)
        now_ms, entries = self.store.call(call)
        for entry in entries or ():
            verdict = judge(entry, pool=queue, now_ms=now_ms, terms=self.terms)
            if isinstance(verdict, received.Received):
                return verdict.payload
            self._hand_in(queue, verdict)
        raise Empty

    # -- ending -----------------------------------------------------------------------------------

    def end(self, fence: received.Fence, *, run: str = "") -> None:
        """End a delivery without effects; sent again until the broker has taken it."""
        keep = self.terms.keep_ms
        call = calls.complete(self.prefix, fence.stream, fence.entry, run, keep, ())
        self.keeper.hand_back(call)

    def bury(
        self,
        fence: received.Fence,
        reason: str,
        letter: Letter,
        followers: Sequence[effects.Effect] = (),
    ) -> None:
        """End a delivery as a dead letter, kept also where its task's failure was stored first."""
        effect, keep = letter.dead(reason), self.terms.keep_ms
        ending = [effect, *followers]
        call = calls.complete(self.prefix, fence.stream, fence.entry, "", keep, ending)
        if self.store.call(call) == b"stale":
            self.store.call(calls.complete(self.prefix, "", "", "", keep, [effect]))

    # -- queues -----------------------------------------------------------------------------------

    def _size(self, queue: str) -> int:
        if is_reply(queue) or queue in self._fanout_queues:
            return 0
        return backlog.size(self.store, queue)

    def _has_queue(self, queue: str, **_: Any) -> bool:
        return is_reply(queue) or backlog.exists(self.store, queue)

    def _purge(self, queue: str) -> int:
        return backlog.purge(self.store, queue)

    def _delete(self, queue: str, *_: Any, **__: Any) -> None:
        self.auto_delete_queues.discard(queue)
        if is_reply(queue):
            self.store.command("DEL", self.store.keys.reply(queue))
        elif queue not in self._fanout_queues:
            self._purge(queue)

    # -- connecting -------------------------------------------------------------------------------

    def _get_pool(self, asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002 -- kombu's
        pool: Any = connect(self.address, timeout=self.terms.timeout).connection_pool
        pool.connection_kwargs["health_check_interval"] = self.health_check_interval
        prefix: str = self.keyprefix_fanout  # type: ignore[has-type]
        self.keyprefix_fanout = prefix.format(db=self.address.db)
        if asynchronous:
            pool.connection_class = _watched(pool.connection_class, self)
        return pool

    def maybe_reauth(self) -> None:
        """Do nothing: our addresses have no rotating credentials."""

    def _flush_brpop_reauth(self) -> None:
        pass

    def close(self) -> None:
        """Close without waiting for an answer: what was asked for is handed back by `release`."""
        if self._in_poll:
            with contextlib.suppress(*self.connection_errors):
                self._in_poll.disconnect()
            self._in_poll = None
        super().close()


def _watched(connection_class: type, channel: Channel) -> type:
    """Return a connection class that tells *channel* when it disconnects, as kombu's does."""

    class Connection(connection_class):  # type: ignore[misc]
        def disconnect(self, *args: Any, **options: Any) -> None:
            super().disconnect(*args, **options)
            if channel._registered:  # noqa: SLF001 -- kombu's flag
                channel._on_connection_disconnect(self)  # noqa: SLF001

    return Connection
