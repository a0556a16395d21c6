"""Who may do what at the server: the users of `agentq broker acl` beside what they need today."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from agentq.ops.acl import NOBODY, Role, rules
from agentq.ops.doctor.cli import commands
from agentq.ops.doctor.facts import Facts
from agentq.ops.doctor.finding import Finding, error, unchecked, warning
from agentq.ops.replies import pairs
from agentq.store.client import Store

_ALL = "*"


def access(store: Store, facts: Facts) -> Iterator[Finding]:
    """Find a server that is open to all, and users of a role that lack what it needs."""
    names = ("default", *(f"agentq-{role}" for role in Role))
    answers = store.pipeline([("ACL", "GETUSER", name) for name in names])
    if isinstance(answers[0], Exception):
        remedy = "run agentq doctor as a user with +acl|getuser +acl|cat"
        yield unchecked("broker.acl", answers[0], remedy=remedy)
        return
    users = {name: pairs(answer or ()) for name, answer in zip(names, answers, strict=True)}
    given = " ".join(user.get("commands", "") for user in users.values())
    categories = _categories(store, given)
    if facts.production and _is_open(users["default"]):
        yield warning(
            "broker.acl",
            "user default has no password and may do anything",
            why="whoever reaches the server reads every argument and result, and may stop all work",
            remedy="agentq broker acl --passwords /root/agentq-passwords > /etc/redis/users.acl; "
            "the line `aclfile /etc/redis/users.acl` in redis.conf and a restart",
        )
    if facts.number("aof_enabled") and lacking(users["default"], ["+@all", "~*"], {}):
        yield error(
            "broker.acl",
            "user default, as whom the server replays its append-only file, may not do all",
            why="at its next start it may leave out what functions wrote, which is every run and "
            "message since the file was last rewritten; it says so only in its log (NOPERM)",
            remedy=commands(facts, shlex.join(["ACL", "SETUSER", *NOBODY.split()[1:]]), "ACL SAVE")
            + ", before any restart; nobody can log in as it either way",
        )
    for role in Role:
        user = users[f"agentq-{role}"]
        wanted = rules(role, cell=store.address.cell, db=store.address.db)
        if user and (missing := lacking(user, wanted, categories)):
            yield warning(
                "broker.acl",
                f"user agentq-{role} lacks {' '.join(missing)}",
                why="calls that this build makes are refused with NOPERM",
                remedy=commands(
                    facts, shlex.join(["ACL", "SETUSER", f"agentq-{role}", *missing]), "ACL SAVE"
                ),
            )


def lacking(
    user: Mapping[str, str], wanted: list[str], categories: Mapping[str, set[str]]
) -> list[str]:
    """Return those of the *wanted* commands and keys that a user has not.

    Args:
        user: as ACL GETUSER tells it; servers sum up commands as categories where that is shorter.
        wanted: rules as `agentq.ops.acl` has them.
        categories: the members of those that the user's rules name.
    """
    may = _Commands(user.get("commands", ""), categories)
    keys = {*user.get("keys", "").split()}
    return [
        one
        for one in wanted
        if (one[0] == "+" and not may.do(one[1:]))
        or (one[0] in "~%" and not {one, one.removeprefix("%R"), "~*"} & keys)
    ]


class _Commands:
    """What a user may call, by its rules in their order."""

    def __init__(self, text: str, categories: Mapping[str, set[str]]) -> None:
        self._allowed: set[str] = set()
        self._denied: set[str] = set()
        for rule in text.split():
            name = rule[1:]
            members = {_ALL} if name == "@all" else categories.get(name, {name})
            if rule == "-@all":
                self._allowed, self._denied = set(), set()
            elif rule[0] == "+":
                self._allowed, self._denied = self._allowed | members, self._denied - members
            else:
                self._allowed, self._denied = self._allowed - members, self._denied | members

    def do(self, command: str) -> bool:
        """Whether it may; *command* may be ``container|sub``."""
        whole = command.partition("|")[0]
        granted = {command, whole, _ALL} & self._allowed
        return bool(granted) and (command in self._allowed or not {command, whole} & self._denied)


def _categories(store: Store, commands: str) -> dict[str, set[str]]:
    names = sorted(set(re.findall(r"[+-](@\w+)", commands)) - {"@all"})
    answers = store.pipeline([("ACL", "CAT", name[1:]) for name in names])
    return {
        name: {member.decode() for member in answer}
        for name, answer in zip(names, answers, strict=True)
        if not isinstance(answer, Exception)
    }


def _is_open(user: Mapping[str, Any]) -> bool:
    """Whether anybody is this user, and it may do anything."""
    flags = str(user.get("flags", ""))
    return "nopass" in flags and "off" not in flags and "+@all" in user.get("commands", "")
