"""How a table of settings and its fields are declared."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

T = TypeVar("T")

MS = timedelta(milliseconds=1)
S = timedelta(seconds=1)
DAY = timedelta(days=1)

Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]


def setting(
    default: T,
    unit: str,
    reason: str,
    *,
    at_least: int | timedelta | None = None,
    at_most: int | timedelta | None = None,
) -> T:
    """Declare a field: its default, what it is counted in, why it is there, and its limits."""
    return Field(
        default,
        description=reason,
        ge=at_least,
        le=at_most,
        json_schema_extra={"unit": unit},
    )


class Section(BaseModel):
    """A table of settings: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
