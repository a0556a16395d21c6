"""Hides secrets in anything that is shown."""

from __future__ import annotations

import re

MASK = "***"
# A password may hold anything, so it ends at the last "@", and an address that was refused may
# lack its scheme: rather too much hidden than too little.
_USERINFO = re.compile(r"^(\W*(?:[a-z][a-z0-9+.-]*://)?[^:@]*):.*@", re.DOTALL)
_QUERY = re.compile(r"([?&][^=&]*(?:password|token|secret|key)[^=&]*=)[^&#]*", re.IGNORECASE)


def mask(text: str) -> str:
    """Return *text* with the password of an address replaced: ``agentq://:***@host:6379/0``."""
    return _QUERY.sub(rf"\1{MASK}", _USERINFO.sub(rf"\1:{MASK}@", text))
