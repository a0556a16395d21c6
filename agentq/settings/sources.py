"""Reads each place a setting can come from into `Given` values that remember that place.

    default.toml < <env>.toml < credentials < environment < overrides

Every reader returns flat dotted keys; nothing here knows which keys exist.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agentq.errors import SettingsError

PREFIX = "AGENTQ_"
ENV_VARIABLE = "AGENTQ_ENV"
CONFIG_VARIABLE = "AGENTQ_CONFIG"
CREDENTIALS_VARIABLE = "CREDENTIALS_DIRECTORY"
"""Where systemd puts what a unit names in LoadCredential=."""
CREDENTIAL_PREFIX = "agentq."
"""``agentq.broker.url`` is the credential of broker.url."""
CRASH_VARIABLE = "AGENTQ_CRASH"
"""For tests alone: see `agentq.store.fail_points`."""
COMMAND_LINE = "command line"
OVERRIDES = "overrides"
"""Of `AgentQ` and `load_settings`."""

# The first two choose what is read, so they are no settings themselves.
_NO_SETTINGS = frozenset({ENV_VARIABLE, CONFIG_VARIABLE, CRASH_VARIABLE})
PACKAGED = Path(__file__).parent / "defaults"
"""The files inside the package."""
# These may have no file; any other environment without one is a slip of the pen.
_USUAL = frozenset({"development", "test", "production"})


@dataclass(frozen=True)
class Given:
    """One value as it was written, and where."""

    key: str
    value: object = field(repr=False)  # it may be a secret
    source: str


def find_config(config_dir: Path | None, environ: Mapping[str, str]) -> Path:
    """Return the folder of TOML files: argument, AGENTQ_CONFIG, ./config, else the wheel's own.

    Raises:
        SettingsError: the folder that was asked for has none.
    """
    asked = config_dir or (Path(named) if (named := environ.get(CONFIG_VARIABLE)) else None)
    if asked is None:
        here = Path("config")
        return here if has_settings(here) else PACKAGED
    if not has_settings(asked):
        by = "config_dir" if config_dir else CONFIG_VARIABLE
        raise SettingsError(
            f"{by} names {asked}, which has no default.toml and no other: copy the project's"
            f" config/ there, or leave {by} out to use the packaged defaults"
        )
    return asked


def has_settings(folder: Path) -> bool:
    """Whether *folder* is one of TOML files; default.toml need not be among them."""
    return any(folder.glob("*.toml"))


def read_files(config_dir: Path, env: str) -> Iterator[Given]:
    """Yield what default.toml and <env>.toml say, in this order.

    In a folder that has no default.toml each that is missing is the wheel's.

    Raises:
        SettingsError: no such environment; a file cannot be read or is not TOML.
    """
    base = config_dir if (config_dir / "default.toml").is_file() else PACKAGED
    yield from _read_toml(base / "default.toml")
    own = config_dir / f"{env}.toml"
    chosen = own if own.is_file() else base / own.name
    if env == "default" or not (chosen.is_file() or env in _USUAL):
        there = {path.stem for path in config_dir.glob("*.toml")} - {"default"}
        known = ", ".join(sorted(_USUAL | there))
        raise SettingsError(
            f"env {env!r} is unknown: there is no {_named(own)}; known are {known}."
            f" Set {ENV_VARIABLE} to one of them or write that file"
        )
    if chosen.is_file():
        yield from _read_toml(chosen)


def read_environment(environ: Mapping[str, str]) -> Iterator[Given]:
    """Yield what AGENTQ_SECTION__NAME variables say; an empty one says "unset"."""
    for variable, text in sorted(environ.items()):
        if variable.startswith(PREFIX) and variable not in _NO_SETTINGS:
            key = variable.removeprefix(PREFIX).lower().replace("__", ".")
            yield Given(key, text or None, variable)


def read_credentials(environ: Mapping[str, str]) -> Iterator[Given]:
    """Yield what systemd hands this service as credentials: secrets that are in no variable.

    Raises:
        SettingsError: one can not be read.
    """
    named = environ.get(CREDENTIALS_VARIABLE)
    for path in sorted(Path(named).glob(f"{CREDENTIAL_PREFIX}*")) if named else ():
        source = f"credential {path.name}"
        try:
            text = path.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise SettingsError(f"{source} can not be read: {error}") from error
        yield Given(path.name.removeprefix(CREDENTIAL_PREFIX), text, source)


def read_overrides(overrides: Mapping[str, object]) -> Iterator[Given]:
    """Yield what the caller says, by dotted key."""
    yield from _flat(overrides, "", OVERRIDES)


def variable_of(key: str) -> str:
    """Return the environment variable of a setting: ``AGENTQ_WORKER__SLOTS``."""
    return PREFIX + key.upper().replace(".", "__")


def _read_toml(path: Path) -> Iterator[Given]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{_named(path)} cannot be read: {error.strerror}") from error
    except ValueError as error:  # not UTF-8, or not TOML: the message names line and column
        raise SettingsError(f"{_named(path)} is not TOML: {error}") from error
    return _flat(tables, "", _named(path))


def _flat(table: Mapping[str, object], prefix: str, source: str) -> Iterator[Given]:
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.", source)
        else:
            yield Given(prefix + name, value, source)  # an empty table too: its name may be wrong


def _named(path: Path) -> str:
    if path.parent == PACKAGED:
        return f"{path.name} (in agentq)"
    absolute = path.absolute()
    here = Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else path)
