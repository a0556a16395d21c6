"""Words for what is wrong with settings: the key, the value, the source, the limit, the way out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from agentq.errors import SettingsError
from agentq.settings.masking import MASK, mask
from agentq.settings.quantities import LABEL_RULE, is_label
from agentq.settings.schema import Known, default_of, nearest, pool_of
from agentq.settings.sources import PREFIX, Given, variable_of
from agentq.settings.written import written

_LIMITS = {"greater_than_equal": ("at least", "ge"), "less_than_equal": ("at most", "le")}
_SHOWN = 100


def unknown(given: Iterable[Given], known: Mapping[str, Known]) -> list[str]:
    """Return one line for each key that no setting has, with the nearest one that exists."""
    sections = {key.rpartition(".")[0] for key in known} | {"pools"}
    lines = []
    for one in given:
        if one.key == "env":
            lines.append(f"env ({one.source}) chooses the files: set AGENTQ_ENV or pass --env")
        elif one.key in sections:
            if not isinstance(one.value, Mapping):
                lines.append(_not_a_value(one, known))
        elif one.key not in known:
            lines.append(_unknown(one, known))
    return lines


def refused(
    error: ValidationError, latest: Mapping[str, Given], known: Mapping[str, Known]
) -> list[str]:
    """Return one line for each value that its setting does not take."""
    details = error.errors(include_url=False, include_input=False)
    # A list with three wrong items is one wrong setting.
    found = {_key(detail["loc"], known): detail for detail in reversed(details)}
    return [
        _refused(key, _limit(detail, known.get(key)), latest.get(key), known.get(key))
        for key, detail in reversed(found.items())
    ]


def settings_error(lines: list[str]) -> SettingsError:
    """Return the one error that names every wrong setting."""
    return SettingsError("\n".join(lines))


def _not_a_value(one: Given, known: Mapping[str, Known]) -> str:
    within = next((key for key in known if key.startswith(f"{one.key}.")), f"{one.key}.<name>")
    example = variable_of(within) if one.source.startswith(PREFIX) else within
    return f"{one.key} ({one.source}) is a group of settings, not one: set {example} and the like"


def _unknown(one: Given, known: Mapping[str, Known]) -> str:
    pool = pool_of(one.key)
    if pool is not None and not is_label(pool):
        return f"pool {pool!r} ({one.source}) has no usable name: write {LABEL_RULE}"
    close = nearest(one.key, known)
    if one.source.startswith(PREFIX):
        hint = f"did you mean {variable_of(close)}?" if close else "see `agentq settings`"
        return f"{one.source} sets no known setting: {hint}"
    hint = f"did you mean {close}?" if close else "see `agentq settings`"
    return f"unknown setting {one.key} ({one.source}): {hint}"


def _key(loc: tuple[int | str, ...], known: Mapping[str, Known]) -> str:
    parts = [str(part) for part in loc]
    keys = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((key for key in keys if key in known), ".".join(parts))


def _limit(detail: ErrorDetails, setting: Known | None) -> str:
    if detail["type"] in _LIMITS:
        words, name = _LIMITS[detail["type"]]
        bound = detail["ctx"][name]
        # Of a duration pydantic says "100000 microseconds".
        if isinstance(bound, str) and setting is not None:
            bound = next(getattr(one, name) for one in setting.field.metadata if hasattr(one, name))
        return f"must be {words} {written(bound)}"
    message = mask(detail["msg"].removeprefix("Value error, "))
    return message[:1].lower() + message[1:]


def _refused(key: str, limit: str, one: Given | None, setting: Known | None) -> str:
    if one is None or setting is None:
        return f"{key}: {limit}"
    value = MASK if setting.secret else mask(repr(one.value))[:_SHOWN]
    default = written(default_of(key))
    return (
        f"{key} = {value} ({one.source}): {limit}; unit: {setting.unit}."
        f" Correct it there or leave it out{f' for the default, {default}' if default else ''}"
    )
