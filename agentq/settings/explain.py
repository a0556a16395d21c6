"""Says what each setting is, and where its value came from; behind `agentq settings`."""

from __future__ import annotations

from dataclasses import dataclass

from agentq.settings.masking import mask
from agentq.settings.model import Settings
from agentq.settings.schema import known_settings

Plain = str | int | float | bool | list[str] | list[int] | None


@dataclass(frozen=True)
class Explained:
    """One setting as it is live; `value` is JSON (durations ``"30s"``), secrets masked."""

    key: str
    value: Plain
    unit: str
    source: str
    description: str


def explain(settings: Settings) -> list[Explained]:
    """Return every setting in the order of the models, pools by name, with its source.

    The source is a file, a variable, ``overrides``, or ``default`` for what nobody set.
    """
    plain = settings.model_dump(mode="json")
    return [
        Explained(
            key=known.key,
            value=_value(plain, known.key),
            unit=known.unit,
            source=settings.source_of(known.key),
            description=known.description,
        )
        for known in known_settings(settings.pools).values()
    ]


def _value(plain: object, key: str) -> Plain:
    for name in key.split("."):
        plain = plain[name]  # type: ignore[index]  # known keys lead through tables
    return mask(plain) if isinstance(plain, str) else plain  # type: ignore[return-value]
