"""Puts the layers together and says clearly what is wrong with them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from agentq.settings.model import DEFAULT, Settings
from agentq.settings.quantities import is_label
from agentq.settings.refusal import refused, settings_error, unknown
from agentq.settings.schema import known_settings, pool_of
from agentq.settings.sources import (
    COMMAND_LINE,
    ENV_VARIABLE,
    Given,
    find_config,
    read_credentials,
    read_environment,
    read_files,
    read_overrides,
)


def load_settings(
    *,
    env: str | None = None,
    config_dir: Path | None = None,
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Return the settings, each layer over the ones before it.

    defaults < default.toml < <env>.toml < systemd's credentials < environment < *overrides*.

    Args:
        env: chooses <env>.toml; else AGENTQ_ENV, else ``development``.
        config_dir: folder of the TOML files; else AGENTQ_CONFIG, else ./config where it has
            any, else the files inside the package. One without default.toml adds to theirs.
        overrides: by dotted key: ``{"worker.slots": 100}``; None unsets.
        environ: the environment variables; ``os.environ`` when left out.

    Raises:
        SettingsError: a key is unknown, a value is refused, a file is missing or not TOML. Every
            wrong setting is named in one error, with its source.
    """
    environ = os.environ if environ is None else environ
    chosen, chosen_by = _environment(env, environ)
    given = [
        *read_files(find_config(config_dir, environ), chosen),
        *read_credentials(environ),
        *read_environment(environ),
        *read_overrides(overrides or {}),
    ]
    return _validated(given, chosen, chosen_by)


def _environment(env: str | None, environ: Mapping[str, str]) -> tuple[str, str]:
    if env:
        return env, COMMAND_LINE
    if named := environ.get(ENV_VARIABLE):
        return named, ENV_VARIABLE
    return Settings().env, DEFAULT


def _validated(given: list[Given], env: str, env_source: str) -> Settings:
    pools = Settings().pools
    named = {pool for one in given if (pool := pool_of(one.key)) and is_label(pool)}
    known = known_settings([*pools, *sorted(named - pools.keys())])
    if lines := unknown(given, known):
        raise settings_error(lines)

    latest = {one.key: one for one in given}
    # A file that says one thing about pool critical does not take the rest from it.
    values = {f"pools.{name}.purpose": pool.purpose for name, pool in pools.items()}
    tables = _nested(values | {key: one.value for key, one in latest.items()})
    try:
        settings = Settings.model_validate(tables | {"env": env})
    except ValidationError as error:
        # Raised below, so that no traceback carries pydantic's own text, which shows secrets.
        lines = refused(error, latest, known)
    else:
        settings.remember({"env": env_source} | {key: one.source for key, one in latest.items()})
        return settings
    raise settings_error(lines)


def _nested(values: Mapping[str, object]) -> dict[str, object]:
    tables: dict[str, object] = {}
    for key, value in values.items():
        *path, name = key.split(".")
        table = tables
        for part in path:
            table = cast("dict[str, object]", table.setdefault(part, {}))
        if isinstance(value, Mapping):
            table.setdefault(name, {})
        else:
            table[name] = value
    return tables
