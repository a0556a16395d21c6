"""Prints config/default.toml: every setting with its default, unit and reason.

``python -m agentq.settings.template > config/default.toml``, then copy it to
``agentq/settings/defaults/``; a test holds the three equal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from textwrap import wrap

from agentq.settings.model import Settings
from agentq.settings.schema import Known, default_of, known_settings
from agentq.settings.written import written

_HEAD = """\
# Every setting, its default, its unit and its reason. A line that starts with "# name =" is unset.
# Written by `python -m agentq.settings.template`; what differs stands in <env>.toml beside it.
# Each can be set by a variable too: worker.slots is AGENTQ_WORKER__SLOTS. `agentq settings` shows
# what is live and where it came from.
"""


def render() -> str:
    """Return the text of default.toml."""
    return "".join(f"{line}\n" for line in [_HEAD, *_lines()])


def _lines() -> Iterator[str]:
    settings = [
        known for known in known_settings(sorted(Settings().pools)).values() if known.key != "env"
    ]
    for section, members in groupby(settings, key=lambda known: known.key.rpartition(".")[0]):
        if section:
            yield f"\n[{section}]"
        for known in members:
            yield from _setting(known)


def _setting(known: Known) -> Iterator[str]:
    yield from wrap(
        f"{known.description} ({known.unit})", 98, initial_indent="# ", subsequent_indent="#   "
    )
    name = known.key.rpartition(".")[2]
    value = written(default_of(known.key))
    yield f"{name} = {value}" if value else f"# {name} ="


if __name__ == "__main__":
    sys.stdout.write(render())
