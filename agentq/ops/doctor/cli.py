"""Remedies at the server, as lines to paste: they reach that server and no other on the machine."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from agentq.ops.doctor.facts import Facts
from agentq.store.address import Address

_TLS = {"ssl_ca_certs": "--cacert", "ssl_certfile": "--cert", "ssl_keyfile": "--key"}


def client(address: Address, info: Mapping[str, str]) -> str:
    """Return the server's own client with all it needs to reach it, but for the password."""
    words = ["valkey-cli" if info.get("server_name") == "valkey" else "redis-cli"]
    if address.path:
        words += ["-s", address.path]
    else:
        host, port = address.hosts[0]
        if address.service:  # PRIMARY is to be filled in: who that is changes
            host, port = "PRIMARY", int(info.get("tcp_port", port))
        words += ["-h", host, "-p", str(port)]
    if address.scheme == "agentq+tls" or address.tls:
        words.append("--tls")
        words += [word for option, file in address.tls for word in (_TLS[option], file)]
    if address.username:
        words += ["--user", address.username]
    if address.password:
        words.append("--askpass")
    return shlex.join(words)


def commands(facts: Facts, *each: str) -> str:
    """Return a line that sends the server *each* command in turn."""
    to = client(facts.address, facts.info)
    return " && ".join(f"{to} {command}" for command in each)


def setting(facts: Facts, name: str, value: object) -> str:
    """Return how the server is given a setting to stay.

    One without a configuration file can not write it down; of `deploy/redis` no user may set it.
    """
    line, file = f"{name} {value}", facts.info.get("config_file")
    if not file:
        return f"{commands(facts, f'CONFIG SET {line}')}; to stay: --{line} where it is started"
    both = commands(facts, f"CONFIG SET {line}", "CONFIG REWRITE")
    return f"the line `{line}` in {file} and a restart; or, as a user who may: {both}"
