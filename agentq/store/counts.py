"""The cell's hash `counts`: how runs and steps ended so far, by name.

Fields are ``<kind>:<name>|<what>``: of a flow the state in which its runs ended; of a step or task
a `Happened`, or ``le<n>``: how many returned and had run so long that they belong into bucket n.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from enum import StrEnum

BUCKETS_S = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0)
"""Upper ends; what ran longer is in the bucket behind the last."""

MOST_NAMES = 200
"""Steps and tasks that one process tells by name; the rest is told as `OTHERS`. The functions, too,
stop at a number of fields."""

OTHERS = "(others)"


class Happened(StrEnum):
    """What became of attempts that did not return, and how long the others took."""

    FAILED = "failed"
    """For good."""
    RETRIED = "retried"
    TIMEOUT = "timeout"
    """Ended by the step's own time limit; it is one that failed or is retried as well."""
    LOST = "lost"
    """With the process that ran it."""
    MILLISECONDS = "ms"
    """That those ran which returned, together."""


def bucket(number: int) -> str:
    """Return what counts those that belong into a bucket."""
    return f"le{number}"


def field_of(kind: str, name: str, what: str) -> str:
    """Return the field that counts *what* of a name."""
    return f"{kind}:{name}|{what}"


def by_name(fields: Mapping[str, str], kind: str) -> dict[str, dict[str, int]]:
    """Return name -> what -> how often, of one kind."""
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for field, count in sorted(fields.items()):
        of, _, rest = field.partition(":")
        name, _, what = rest.rpartition("|")
        if of == kind:
            found[name][what] = int(count)
    return dict(found)
