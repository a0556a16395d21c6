"""Every name of Celery, kombu and billiard that we use and they do not promise to keep.

`tests/contract/test_private_names.py` holds this list against the installed releases: each name
must exist, and take what we give it. A new release that breaks one is seen there and not in a run.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrivateName:
    """One name we lean on."""

    where: str
    """`module:qualified.name` of a class, function or attribute."""
    why: str
    parameters: tuple[str, ...] | None = None
    """What a function must take, in order; None: it is no function."""
    set_by: str | None = None
    """The method that sets an attribute which the class itself lacks."""


_CHANNEL = "kombu.transport.redis:Channel"
_VIRTUAL = "kombu.transport.virtual.base:Channel"
_QOS = "kombu.transport.virtual.base:QoS"
_BACKEND = "celery.backends.base:Backend"

NAMES = (
    PrivateName(
        f"{_CHANNEL}._brpop_start", "sends our question instead of BRPOP", ("self", "timeout")
    ),
    PrivateName(f"{_CHANNEL}._brpop_read", "takes the answer to it", ("self", "options")),
    PrivateName(f"{_CHANNEL}._in_poll", "whether a question is under way"),
    PrivateName(f"{_CHANNEL}._brpop_sent_at", "kombu's check for a half-open link reads it"),
    PrivateName(f"{_CHANNEL}._registered", "a channel not yet polled", set_by="__init__"),
    PrivateName(f"{_CHANNEL}._queue_cycle", "fair order of pools", set_by="__init__"),
    PrivateName(f"{_CHANNEL}._fanout_queues", "queues of remote control and events"),
    PrivateName(
        f"{_CHANNEL}._on_connection_disconnect",
        "takes a lost socket out of the poller",
        ("self", "connection"),
    ),
    PrivateName(
        f"{_CHANNEL}._get_pool", "our addresses instead of kombu's", ("self", "asynchronous")
    ),
    PrivateName(f"{_CHANNEL}._flush_brpop_reauth", "not for our addresses", ("self",)),
    PrivateName(f"{_CHANNEL}.keyprefix_fanout", "names of fan-out topics"),
    PrivateName(f"{_CHANNEL}.global_keyprefix", "keeps fan-out in its cell"),
    PrivateName(f"{_VIRTUAL}._put", "enqueue"),
    PrivateName(f"{_VIRTUAL}._get", "basic_get"),
    PrivateName(f"{_VIRTUAL}._size", "messages that wait", ("self", "queue")),
    PrivateName(f"{_VIRTUAL}._purge", "delete what waits", ("self", "queue")),
    PrivateName(f"{_VIRTUAL}._delete", "a queue that is deleted"),
    PrivateName(f"{_VIRTUAL}._has_queue", "passive declaration"),
    PrivateName(f"{_VIRTUAL}._new_queue", "declaration"),
    PrivateName(
        f"{_VIRTUAL}._lookup",
        "bindings without keys",
        ("self", "exchange", "routing_key", "default"),
    ),
    PrivateName(
        f"{_CHANNEL}._queue_bind",
        "the same",
        ("self", "exchange", "routing_key", "pattern", "queue"),
    ),
    PrivateName(f"{_QOS}._delivered", "what a channel holds"),
    PrivateName(f"{_QOS}._dirty", "what of it was acked"),
    PrivateName(f"{_QOS}._flush", "drops what was acked", ("self",)),
    PrivateName(
        "kombu.transport.virtual.base:Transport._deliver",
        "hands a message to its consumer",
        ("self", "message", "queue"),
    ),
    PrivateName(
        "kombu.message:Message._decoded_cache", "a body is decoded once", set_by="__init__"
    ),
    PrivateName("kombu.transport:TRANSPORT_ALIASES", "kombu has no entry points for transports"),
    PrivateName("celery.app.backends:BACKEND_ALIASES", "a checkout that is not installed"),
    PrivateName(
        "celery.app.base:Celery._connection", "the placeholder URL becomes where the broker is now"
    ),
    PrivateName(
        "celery.app.amqp:AMQP._create_task_sender", "remote control keeps Celery's path", ("self",)
    ),
    PrivateName(
        "celery.app.amqp:AMQP._retry_publish",
        "what a task's end publishes is part of it",
        ("self", "publish", "args", "kwargs"),
    ),
    PrivateName(f"{_BACKEND}._get_result_meta", "Celery's own result document"),
    PrivateName(
        "celery.backends.base:BaseKeyValueStoreBackend._store_result", "it becomes an effect"
    ),
    PrivateName(
        "celery.utils.functional:_regen", "a header that is a generator is not to be walked"
    ),
    PrivateName("celery.app.task:get_actual_ignore_result", "whether a retry will be stored"),
    PrivateName("celery.worker.state:active_requests", "what the pool runs survives a lost link"),
    PrivateName("celery.worker.state:reserved_requests", "what the pool was given is asked of it"),
    PrivateName("celery.worker.request:Request._apply_result", "the pool's side of a request"),
    PrivateName("celery.concurrency.thread:ApplyResult", "has its future as `f`", ("future",)),
    PrivateName("billiard.pool:ApplyResult._write_to", "the child it was written to"),
    PrivateName(
        "billiard.pool:ApplyResult._ack",
        "what is in a child's pipe counts as begun",
        ("self", "i", "time_accepted", "pid", "synqW_fd"),
    ),
    PrivateName("billiard.pool:ApplyResult._accept_callback", "called once", set_by="__init__"),
    PrivateName("celery.concurrency.prefork:TaskPool._pool", "its children", set_by="on_start"),
    PrivateName("billiard.pool:Pool._pool", "all children", set_by="__init__"),
    PrivateName(
        "celery.concurrency.asynpool:AsynPool._all_inqueues", "those that are up", set_by="__init__"
    ),
    PrivateName("celery.worker.state:should_terminate", "unless the worker is told to drop it"),
    PrivateName(
        "celery.worker.request:Request._context", "an expired one's letter goes with its end"
    ),
    PrivateName("celery._state:_task_stack", "steps on one thread have a stack each"),
    PrivateName("celery.app.trace:build_tracer", "threads run Celery's own tracer"),
    PrivateName(
        "celery.app.trace:TraceInfo.handle_error_state", "failures end as Celery ends them"
    ),
    PrivateName("celery.app.trace:info", "Celery's line for a task that ended", ("fmt", "context")),
    PrivateName("celery.app.trace:LOG_SUCCESS", "its text"),
    PrivateName("celery.app.trace:task_has_custom", "hooks nobody defined cost nothing"),
)
"""All of them; `_orig_run`, which `autoretry_for` sets on a task, is tested by its behaviour."""
