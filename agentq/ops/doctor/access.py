"""Who may do what at the server: the users of `agentq broker acl` beside what they need today."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentq.errors import AgentQError
from agentq.ops.acl import Role, rules
from agentq.ops.doctor.facts import Facts
from agentq.ops.doctor.finding import Finding, unchecked, warning
from agentq.ops.replies import text
from agentq.store.client import Store

_AS_ADMIN = "agentq doctor as a user with +acl|getuser"


def access(store: Store, facts: Facts) -> Iterator[Finding]:
    """Find a server that is open to all, and users of a role that lack what it needs."""
    names = ("default", *(f"agentq-{role}" for role in Role))
    answers = store.pipeline([("ACL", "GETUSER", name) for name in names])
    if isinstance(answers[0], Exception):
        yield unchecked("broker.acl", answers[0], fix=_AS_ADMIN)
        return
    users = dict(zip(names, map(_User, answers), strict=True))
    if facts.production and users["default"].open:
        yield warning(
            "broker.acl",
            "user default has no password and may do anything",
            why="whoever reaches the server reads every argument and result, and may stop all work",
            fix="agentq broker acl >> /etc/redis/users.acl; ACL LOAD; ACL SETUSER default off",
        )
    for role in Role:
        user = users[f"agentq-{role}"]
        wanted = rules(role, cell=store.address.cell, db=store.address.db)
        if user.there and (missing := user.lacks(wanted)):
            yield warning(
                "broker.acl",
                f"user agentq-{role} lacks {' '.join(missing)}",
                why="calls that this build makes are refused with NOPERM",
                fix=f"redis-cli ACL SETUSER agentq-{role} {' '.join(missing)}; ACL SAVE",
            )


class _User:
    """One user, as ACL GETUSER tells it."""

    def __init__(self, answer: Any) -> None:
        if isinstance(answer, Exception):
            raise AgentQError(f"ACL GETUSER: {answer}")
        pairs = (
            answer
            if isinstance(answer, dict)
            else dict(zip((answer or ())[::2], (answer or ())[1::2], strict=True))
        )
        told = {text(key): value for key, value in pairs.items()}
        self.there = bool(told)
        self.flags = {text(flag) for flag in told.get("flags", ())}
        self.commands = text(told.get("commands", b"")).split()
        self.keys = text(told.get("keys", b"")).split()

    @property
    def open(self) -> bool:
        """Whether anybody is this user, and it may do anything."""
        return {"on", "nopass"} <= self.flags and "+@all" in self.commands

    def lacks(self, wanted: list[str]) -> list[str]:
        """Return those of the *wanted* commands and keys that this user has not."""
        commands = [one for one in wanted if one.startswith("+")]
        keys = [one for one in wanted if one.startswith("~")]
        everything = "+@all" in self.commands
        return [
            *(one for one in commands if not everything and not self._may(one)),
            *(one for one in keys if one not in self.keys and "~*" not in self.keys),
        ]

    def _may(self, command: str) -> bool:
        whole = command.partition("|")[0]
        return command in self.commands or whole in self.commands
