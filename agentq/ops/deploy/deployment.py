"""What units are rendered for: the app and where it is, its settings, and the plan for it."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import orjson
from pydantic import ValidationError

from agentq.errors import DeployError
from agentq.host.plan import Plan, parse_plan
from agentq.settings import Settings, explain, load_settings
from agentq.settings.masking import MASK
from agentq.settings.schema import known_settings
from agentq.settings.sources import CONFIG_VARIABLE, PACKAGED, PREFIX, has_settings, variable_of

T = TypeVar("T")

STATE = Path("/var/lib/agentq")
_HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108 -- not to be used
"""What a unit does not see (ProtectHome, PrivateTmp)."""
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,30}")
_PASSWORDS = ("broker.url", "dashboard.broker_url")
"""Addresses that have one."""
_ANSWER_LIMIT_S = 60


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where things are on the machine."""

    app: str
    """``module:attribute``."""
    folder: Path
    """The user's project: the app is imported from here, ./config is read here."""
    python: Path
    """The interpreter of the environment that has agentq and the app."""
    user: str = "agentq"

    def __post_init__(self) -> None:
        """Refuse what can not be written into a unit.

        Raises:
            DeployError: a path is relative or has blanks, a user has what no name has.
        """
        if not _USER.fullmatch(self.user):
            raise DeployError(f"user {self.user!r}: units need a name of letters, digits, _ and -")
        for what, path in self._paths().items():
            if not path.is_absolute() or any(c in str(path) for c in " \t\n\"'\\"):
                raise DeployError(f"{what} {path}: units need an absolute path without blanks")

    def require_visible(self) -> None:
        """Refuse what a service does not see.

        Raises:
            DeployError: a path is below a home or a temporary folder.
        """
        for what, path in self._paths().items():
            real = Path(os.path.realpath(path))
            if hidden := next((h for h in _HIDDEN for p in (path, real) if _below(p, h)), None):
                raise DeployError(
                    f"{what} {path} is below {hidden}, which services do not see (ProtectHome, "
                    "PrivateTmp): put the project and its environment elsewhere, as /opt/agentq, "
                    "and name them with --folder and --python"
                )

    def _paths(self) -> dict[str, Path]:
        return {"the project's folder": self.folder, "Python": self.python}


@dataclass(frozen=True, kw_only=True)
class Given:
    """Settings that are in no file of the project, as the units are to have them."""

    plain: Mapping[str, str]
    """Variables."""
    secret: Mapping[str, str]
    """By dotted key: they become credentials."""
    code: Mapping[str, str] = field(default_factory=dict)
    """Variables that say what the app's code sets: it beats the others, there as here."""

    @property
    def environ(self) -> dict[str, str]:
        """Return them as the variables that they may have been."""
        secret = {variable_of(key): text for key, text in self.secret.items()}
        return {**self.plain, **secret, **self.code}


def plan_at(site: Site, given: Given, processes: Mapping[str, int]) -> Plan:
    """Return the plan that the units' own Python makes, of the app, with what is given.

    Raises:
        DeployError: it makes none, since the app can not be imported for example; has its words.
            Or the app's code says how many *processes* a pool has.
    """
    counts = {variable_of(f"pools.{pool}.processes"): str(n) for pool, n in processes.items()}
    plan = _answer(site, given.environ | counts, "plan", parse_plan)
    for pool, count in processes.items():
        if (planned := sum(one.pool == pool for one in plan.processes)) != count:
            raise DeployError(
                f"pools.{pool}.processes is {planned} in the code of {site.app}, which no number "
                "from elsewhere changes: take it out of the code, or change it there"
            )
    return plan


def with_code(site: Site, given: Given, *, as_user: bool = False) -> Given:
    """Return *given* and what the app's code sets (``AgentQ(overrides=...)``, ``settings=``).

    What differs from files and variables is the code's.

    Args:
        site: where the app is.
        given: what the units are given.
        as_user: root imports it as the units' user, where there is that user already: what root
            alone may read is no worker's.

    Raises:
        DeployError: the app can not be imported; or its code has a secret, which is told nobody.
    """
    given = replace(given, code={})
    elsewhere = {one.key: one.value for one in explain(load(site, given, {}))}
    user = _user_of(site) if as_user else None
    live = _answer(site, given.environ, "settings", _values, user)
    absent = object()
    code = {key: value for key, value in live.items() if elsewhere.get(key, absent) != value}
    if hidden := [key for key, value in code.items() if MASK in str(value)]:
        raise DeployError(
            f"{', '.join(hidden)}: set in the code of {site.app}, with a secret. Take it out of "
            f"there and run this with {variable_of(hidden[0])} set: it becomes a credential"
        )
    return replace(given, code={variable_of(key): _as_variable(code[key]) for key in sorted(code)})


def _user_of(site: Site) -> pwd.struct_passwd | None:
    """Return who the units run as; None: there is no such user yet, or this is not root."""
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(site.user) if os.geteuid() == 0 else None
    return None


def _answer(
    site: Site,
    environ: Mapping[str, str],
    question: str,
    read: Callable[[bytes], T],
    user: pwd.struct_passwd | None = None,
) -> T:
    """Return what the units' own Python says of the app, read by *read*; errors as `plan_at`."""
    own = {name: text for name, text in os.environ.items() if not name.startswith(PREFIX)}
    uid = gid = groups = None
    if user:
        uid, gid, groups = user.pw_uid, user.pw_gid, os.getgrouplist(user.pw_name, user.pw_gid)
        own |= {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
    try:
        done = subprocess.run(  # noqa: S603 -- the Python that the units run
            [site.python, "-P", "-m", "agentq", question, "--json", "-A", site.app],
            cwd=site.folder,
            env={**own, **environ},
            user=uid,
            group=gid,
            extra_groups=groups,
            capture_output=True,
            text=True,
            timeout=_ANSWER_LIMIT_S,
            check=False,
        )
        said = _said(done)
        if not done.returncode:
            return read(done.stdout.encode())
    except OSError as error:  # no such folder, no such Python
        said = f"{error.filename}: {error.strerror}"
    except subprocess.TimeoutExpired:
        said = f"no answer within {_ANSWER_LIMIT_S} s; its import takes too long"
    except (ValidationError, orjson.JSONDecodeError, TypeError, KeyError):
        said = f"what it prints is none (another version of agentq?): {said}"
    who = f", as user {user.pw_name}" if user else ""
    raise DeployError(
        f"{site.python} has no {question} of {site.app} in {site.folder}{who}: {said}"
    )


def _said(done: subprocess.CompletedProcess[str]) -> str:
    """Return the message of its error, else what it printed."""
    with contextlib.suppress(orjson.JSONDecodeError, TypeError, KeyError):
        return str(orjson.loads(done.stdout)["error"]["message"])
    return (done.stderr or done.stdout).strip()


def _values(text: bytes) -> dict[str, object]:
    return {one["key"]: one["value"] for one in orjson.loads(text)}


def _as_variable(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case list():
            return ",".join(map(str, value))
        case _:
            return str(value)


def load(site: Site, given: Given, processes: Mapping[str, int]) -> Settings:
    """Return the settings as the units read them: in the project's folder, with what is given.

    Raises:
        SettingsError: they are refused there.
    """
    own = site.folder / "config"
    named = given.plain.get(CONFIG_VARIABLE)
    return load_settings(
        config_dir=Path(named) if named else own if has_settings(own) else PACKAGED,
        environ=given.environ,
        overrides={f"pools.{pool}.processes": count for pool, count in processes.items()},
    )


def given_by(environ: Mapping[str, str]) -> Given:
    """Return what *environ* says of agentq's settings, secrets apart."""
    plain, secret = {}, {}
    for variable, value in sorted(environ.items()):
        key = variable.removeprefix(PREFIX).lower().replace("__", ".")
        if variable == CONFIG_VARIABLE:
            plain[variable] = str(Path(value).absolute())
        elif variable.startswith(PREFIX) and (_is_secret(key)):
            secret[key] = value
        elif variable.startswith(PREFIX):
            plain[variable] = value
    return Given(plain=plain, secret=secret)


def is_address(key: str) -> bool:
    """Whether a setting is an address that has a password in it."""
    return key in _PASSWORDS


def _is_secret(key: str) -> bool:
    known = known_settings(()).get(key)
    return is_address(key) or (known is not None and known.secret)


def _below(path: Path, folder: str) -> bool:
    return path.is_relative_to(folder)
