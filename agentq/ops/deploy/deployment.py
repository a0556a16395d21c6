"""What units are rendered for: the app and where it is, its settings, and the plan for it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import ValidationError

from agentq.errors import DeployError
from agentq.host.plan import Plan, parse_plan
from agentq.settings import Settings, load_settings
from agentq.settings.schema import known_settings
from agentq.settings.sources import CONFIG_VARIABLE, PACKAGED, PREFIX, variable_of

STATE = Path("/var/lib/agentq")
_HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108 -- not to be used
"""What a unit does not see (ProtectHome, PrivateTmp)."""
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,30}")
_PLAN_LIMIT_S = 60


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

    @property
    def environ(self) -> dict[str, str]:
        """Return them as the variables that they may have been."""
        return {**self.plain, **{variable_of(key): text for key, text in self.secret.items()}}


def plan_at(site: Site, given: Given, processes: Mapping[str, int]) -> Plan:
    """Return the plan that the units' own Python makes, of the app, with what is given.

    Raises:
        DeployError: it makes none, since the app can not be imported for example; has its words.
    """
    counts = {variable_of(f"pools.{pool}.processes"): str(n) for pool, n in processes.items()}
    own = {name: text for name, text in os.environ.items() if not name.startswith(PREFIX)}
    try:
        done = subprocess.run(  # noqa: S603 -- the Python that the units run
            [site.python, "-P", "-m", "agentq", "plan", "--json", "-A", site.app],
            cwd=site.folder,
            env={**own, **given.environ, **counts},
            capture_output=True,
            text=True,
            timeout=_PLAN_LIMIT_S,
            check=False,
        )
        said = _said(done)
        if not done.returncode:
            return parse_plan(done.stdout.encode())
    except OSError as error:  # no such folder, no such Python
        said = f"{error.filename}: {error.strerror}"
    except subprocess.TimeoutExpired:
        said = f"no answer within {_PLAN_LIMIT_S} s; its import takes too long"
    except ValidationError:
        said = f"what it prints is none (another version of agentq?): {said}"
    raise DeployError(f"{site.python} makes no plan for {site.app} in {site.folder}: {said}")


def _said(done: subprocess.CompletedProcess[str]) -> str:
    """Return the message of its error, else what it printed."""
    with contextlib.suppress(orjson.JSONDecodeError, TypeError, KeyError):
        return str(orjson.loads(done.stdout)["error"]["message"])
    return (done.stderr or done.stdout).strip()


def load(site: Site, given: Given, processes: Mapping[str, int]) -> Settings:
    """Return the settings as the units read them: in the project's folder, with what is given.

    Raises:
        SettingsError: they are refused there.
    """
    own = site.folder / "config"
    named = given.plain.get(CONFIG_VARIABLE)
    return load_settings(
        config_dir=Path(named) if named else own if (own / "default.toml").is_file() else PACKAGED,
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


def _is_secret(key: str) -> bool:
    known = known_settings(()).get(key)
    return key == "broker.url" or (known is not None and known.secret)


def _below(path: Path, folder: str) -> bool:
    return path.is_relative_to(folder)
