"""The AGENTQ_ variables of a shell beside what is installed: they change it only where asked to.

Who looks at a cell has the admin's URL in his shell, which must not become the workers'.
"""

from __future__ import annotations

from dataclasses import replace

from agentq.ops.deploy.deployment import Given, is_address
from agentq.settings.masking import MASK, mask
from agentq.settings.sources import variable_of


def taken(installed: Given, shell: Given) -> Given:
    """Return *installed* with what *shell* says in its place; an empty secret takes one out."""
    secret = {**installed.secret, **shell.secret}
    return replace(
        installed,
        plain={**installed.plain, **shell.plain},
        secret={key: text for key, text in secret.items() if text},
    )


def differences(installed: Given, shell: Given) -> list[str]:
    """Return ``NAME: what is installed -> what the shell has`` of each, without passwords."""
    plain = [
        f"{name}: {_or_nothing(installed.plain.get(name))} -> {_or_nothing(text)}"
        for name, text in shell.plain.items()
        if installed.plain.get(name) != text
    ]
    secret = [
        f"{variable_of(key)}: {_shown(key, installed.secret.get(key, ''), text)}"
        for key, text in shell.secret.items()
        if installed.secret.get(key, "") != text
    ]
    return plain + secret


def _shown(key: str, was: str, text: str) -> str:
    before, after = (mask(one) if is_address(key) else one and MASK for one in (was, text))
    if before == after:
        return "another password" if is_address(key) else "another one"
    return f"{_or_nothing(before)} -> {_or_nothing(after)}"


def _or_nothing(text: str | None) -> str:
    return text or "nothing"
