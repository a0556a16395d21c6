"""What each role needs in a cell, as a line of Redis' ACL file or the arguments of ACL SETUSER.

No role but the admin's may load functions, none may EVAL: the functions are loaded once, by
`agentq broker init`. What a function does is checked against its caller's rights, so a role has the
commands that its functions use, on the cell's keys alone. A producer can not publish to the
channels by which workers are controlled.
"""

from __future__ import annotations

from enum import StrEnum

from agentq.store.keys import REPLICATED, RESULT_PREFIX, Keys

PASSWORD = "PASSWORD"  # noqa: S105 -- to be filled in


class Role(StrEnum):
    """Who talks to a cell."""

    PRODUCER = "producer"
    """Submits, watches and cancels runs; sends Celery tasks and reads their results."""
    WORKER = "worker"
    """All that a producer does, and workers, events and remote control; status and operations."""
    ADMIN = "admin"
    """Loads the functions: `agentq broker init`."""


_PATTERNS = ("celery.pidbox", "celeryev/*", "celeryev/worker.*")
_CONNECTED = "auth hello ping quit select"
_CALLED = "fcall time"
_SENT = (
    "exists unlink pexpire rename persist set get hset hget hmget hgetall hincrby hdel hsetnx "
    "sadd xadd xlen xgroup|create xinfo|groups zadd zrem zscore zpopmin rpush lpop lrange llen "
    "lindex info memory|usage zrange zrangebyscore smembers hexists srem zcard"
)
_READ = "xread mget del subscribe unsubscribe setex multi exec publish wait"
_WORKED = (
    "blpop xreadgroup xack xdel xrange xrevrange xpending xgroup|delconsumer pttl hlen "
    "hkeys hscan lrem spop srandmember psubscribe punsubscribe"
)
_COMMANDS = {
    Role.PRODUCER: (_CONNECTED, _CALLED, _SENT, _READ),
    Role.WORKER: (_CONNECTED, _CALLED, _SENT, _READ, _WORKED),
    Role.ADMIN: (_CONNECTED, _CALLED, "function|load function|list function|delete info"),
}


def rules(role: Role, *, cell: str, db: int = 0) -> list[str]:
    """Return the rules of *role* in a cell, without a name and a password."""
    prefix = Keys(cell).prefix
    channels = {
        Role.PRODUCER: [
            f"{prefix}{RESULT_PREFIX}*",
            f"{prefix}celery-taskset-meta-*",
            f"{prefix}{REPLICATED}",
        ],
        # A subscription to a pattern needs that very pattern: remote control, events, gossip.
        Role.WORKER: [f"{prefix}*", *(f"{prefix}/{db}.{name}" for name in _PATTERNS)],
        Role.ADMIN: [],
    }[role]
    keys = [] if role is Role.ADMIN else [f"~{prefix}*"]
    commands = [f"+{name}" for names in _COMMANDS[role] for name in names.split()]
    return ["resetchannels", "-@all", *keys, *(f"&{one}" for one in channels), *commands]


def line(role: Role, *, cell: str, db: int = 0) -> str:
    """Return the line for an ACL file, with a place for the password."""
    return f"user agentq-{role} on >{PASSWORD} {' '.join(rules(role, cell=cell, db=db))}"
