"""What each role needs in a cell, as a line of Redis' ACL file or the arguments of ACL SETUSER.

No role but the admin's may load functions, none may EVAL: the functions are loaded once, by
`agentq broker init`. What a function does is checked against its caller's rights, so a role has the
commands that its functions use, on the cell's keys alone; what such a password is good for in wrong
hands, `deploy/redis/README.md` says. A producer can not publish to the channels by which workers
are controlled.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from secrets import token_hex

from agentq.errors import SettingsError
from agentq.store.keys import REPLICATED, RESULT_PREFIX, Keys
from agentq.store.library import NAME_PREFIX

PASSWORD = "PASSWORD"  # noqa: S105 -- to be filled in

NOBODY = "user default off resetpass ~* &* +@all"
"""Nobody can be this user, and without its line anybody is. Yet it must have all rights: a server
that starts replays its append-only file as this user, and leaves out every transaction, which a
function's writes are, that this user may not make (redis #14541, valkey #3983)."""


class Role(StrEnum):
    """Who talks to a cell."""

    PRODUCER = "producer"
    """Submits, watches and cancels runs; sends Celery tasks and reads their results."""
    WORKER = "worker"
    """All that a producer does, and workers, events, remote control; it may pause and purge."""
    DASHBOARD = "dashboard"
    """Looks: `agentq dashboard`, `metrics`, `status`, `events`, `why`; asks workers by remote
    control."""
    ADMIN = "admin"
    """All of these; loads the functions, asks the server."""


_PATTERNS = ("celery.pidbox", "celeryev/*", "celeryev/worker.*")
_CONNECTED = "auth hello ping quit select"
_LOOKED_AT = (
    "time info exists get mget hget hmget hgetall hlen hexists hkeys hscan llen lrange xlen "
    "xrange xrevrange xread xinfo|groups xpending zcard zrange zrangebyscore smembers memory|usage "
    "subscribe unsubscribe publish"
)
_SENT = (
    "unlink pexpire rename persist set hset hincrby hdel hsetnx sadd srem xadd xgroup|create zadd "
    "zrem zscore zpopmin rpush lpop lindex setex multi exec wait "
    "scard spop srandmember"
)
_HEARD = "psubscribe punsubscribe blpop del"
_WORKED = "xreadgroup xack xdel xgroup|delconsumer pttl lrem"
_ADMINISTERED = (
    "function|load function|list function|delete config|get slowlog|get latency|latest "
    "latency|history client|list acl|whoami acl|getuser acl|cat acl|log acl|load"
)
_COMMANDS = {
    Role.PRODUCER: (_CONNECTED, _LOOKED_AT, _SENT, "del"),
    Role.WORKER: (_CONNECTED, _LOOKED_AT, _SENT, _HEARD, _WORKED),
    Role.DASHBOARD: (_CONNECTED, _LOOKED_AT, _HEARD),
    Role.ADMIN: (_CONNECTED, _LOOKED_AT, _SENT, _HEARD, _WORKED, _ADMINISTERED),
}

_FUNCTIONS = {
    Role.PRODUCER: "about enqueue stage open complete cancel find",
    Role.DASHBOARD: "about find held",
}
"""The only ones that a role may call. Workers and the admin may call all: they have the commands of
all functions anyway. Servers warn at their start that they may do away with such rules; then these
two roles get a plain ``+fcall``, and are held by their commands and keys alone."""


def rules(role: Role, *, cell: str, db: int = 0) -> list[str]:
    """Return the rules of *role* in a cell, without a name and a password."""
    prefix = Keys(cell).prefix
    results = [f"{prefix}{RESULT_PREFIX}*", f"{prefix}celery-taskset-meta-*"]
    # A subscription to a pattern needs that very pattern: remote control, events, gossip.
    control = [f"{prefix}/{db}.{name}" for name in _PATTERNS]
    everything = [f"{prefix}*", *control]
    channels = {
        Role.PRODUCER: [*results, f"{prefix}{REPLICATED}"],
        Role.WORKER: everything,
        Role.DASHBOARD: [*results, *control],
        Role.ADMIN: everything,
    }[role]
    keys = [f"~{prefix}*"]
    if role is Role.DASHBOARD:
        # It takes answers to its questions from their lists. A function's one key is the prefix,
        # under which nothing is kept. All else it may only read.
        keys = [f"%R~{prefix}*", f"~{prefix}reply:*", f"~{prefix}"]
    commands = [f"+{name}" for names in _COMMANDS[role] for name in names.split()]
    names = _FUNCTIONS.get(role)
    called = [f"+fcall|{NAME_PREFIX}{name}" for name in names.split()] if names else ["+fcall"]
    given = [*keys, *(f"&{one}" for one in channels), *commands, *called]
    return ["resetchannels", "-@all", *given]


def lines(*, cell: str, db: int = 0, passwords: Mapping[Role, str] | None = None) -> list[str]:
    """Return the lines of an ACL file; it knows nobody without a password.

    Of *passwords* it holds the hashes; without, each line has a place for one.
    """
    users = [NOBODY]
    for role in Role:
        secret = f"#{sha256(passwords[role].encode()).hexdigest()}" if passwords else f">{PASSWORD}"
        users.append(f"user agentq-{role} on {secret} {' '.join(rules(role, cell=cell, db=db))}")
    return users


def kept_passwords(file: Path) -> dict[Role, str]:
    """Return the passwords in *file*, a line ``agentq-<role> <password>`` each; made where missing.

    So whoever prints the users of a newer build changes nobody's password.

    Raises:
        SettingsError: the file can not be read or written.
    """
    try:
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        known = dict(line.split(maxsplit=1) for line in text.splitlines() if " " in line)
        found = {role: known.get(f"agentq-{role}") or token_hex(24) for role in Role}
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
            out.writelines(f"agentq-{role} {password}\n" for role, password in found.items())
    except OSError as error:
        raise SettingsError(f"passwords in {file}: {error.strerror}") from error
    return found
