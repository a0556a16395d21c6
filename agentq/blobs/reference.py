"""What a message carries in place of a payload: where its bytes are, how many, and their digest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Self

_WRITTEN = re.compile(r"(\d{8})/([\w-]{1,64})/([0-9a-f]{64})-(\d{1,15})", re.ASCII)


def day_of(seconds: float) -> str:
    """Return the day of an instant (Unix seconds), UTC, as references have it: days sort."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%d")


@dataclass(frozen=True, slots=True)
class Reference:
    """One blob."""

    day: str
    owner: str
    """The run it belongs to."""
    digest: str
    size: int
    """Bytes."""

    def __str__(self) -> str:
        """Return it as messages carry it."""
        return f"{self.day}/{self.owner}/{self.digest}-{self.size}"

    @classmethod
    def to(cls, data: bytes, *, owner: str, day: str) -> Self:
        """Return the reference to *data*."""
        return cls(day, owner, sha256(data).hexdigest(), len(data))

    @classmethod
    def parse(cls, text: object) -> Self:
        """Read one: whatever a stranger wrote, it names nothing outside of the store.

        Raises:
            ValueError: it is none.
        """
        match = _WRITTEN.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ValueError(f"{text!r:.100} is no reference to a blob")
        return cls(match[1], match[2], match[3], int(match[4]))

    def fits(self, data: bytes) -> bool:
        """Whether *data* is what was stored."""
        return len(data) == self.size and sha256(data).hexdigest() == self.digest
