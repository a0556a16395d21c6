"""The known keys, read off the models: which exist, and which is nearest to a wrong one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from agentq.settings.model import Pool, Settings


@dataclass(frozen=True)
class Known:
    """One setting: its dotted key and its field."""

    key: str
    field: FieldInfo

    @property
    def unit(self) -> str:
        """What it is counted in, e.g. ``bytes``."""
        extra = self.field.json_schema_extra
        return str(extra["unit"]) if isinstance(extra, dict) else ""

    @property
    def description(self) -> str:
        """Why it is there, one line."""
        return self.field.description or ""

    @property
    def secret(self) -> bool:
        """Whether its value is never shown."""
        return SecretStr in (self.field.annotation, *_arguments(self.field.annotation))


def _arguments(annotation: object) -> tuple[object, ...]:
    return getattr(annotation, "__args__", ())


def _walk(model: type[BaseModel], prefix: str, pools: Iterable[str]) -> Iterator[Known]:
    for name, field in model.model_fields.items():
        if name == "pools":
            for pool in pools:
                yield from _walk(Pool, f"{prefix}{name}.{pool}.", ())
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _walk(field.annotation, f"{prefix}{name}.", ())
        else:
            yield Known(prefix + name, field)


def known_settings(pools: Iterable[str]) -> dict[str, Known]:
    """Return every setting by its dotted key, in the order of the models, for these pools."""
    return {known.key: known for known in _walk(Settings, "", pools)}


def pool_of(key: str) -> str | None:
    """Return the pool's name in ``pools.<name>.<setting>``."""
    parts = key.split(".")
    return parts[1] if parts[0] == "pools" and len(parts) > 1 else None


def nearest(key: str, known: Iterable[str]) -> str | None:
    """Return the known key that *key* was most likely meant to be."""
    matches = get_close_matches(key, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def default_of(key: str) -> object:
    """Return the default of a known setting; a pool that has none of its own is a plain `Pool`."""
    section, _, name = key.rpartition(".")
    settings = Settings()
    pool = pool_of(key)
    if pool is not None:
        return getattr(settings.pools.get(pool, Pool()), name)
    return getattr(getattr(settings, section) if section else settings, name)
