"""What is refused before anything is written: an app that makes no plan, names that do not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agentq.errors import DeployError
from agentq.ops.deploy.deployment import Given, Site, plan_at

SITE = Site(app="shop:aq", folder=Path("/"), python=Path("/bin/echo"))


@pytest.mark.parametrize(
    ("site", "says"),
    [
        (SITE, "what it prints is none .*: -P -m agentq plan --json -A shop:aq"),
        (replace(SITE, python=Path("/nowhere/python")), "/nowhere/python: No such file"),
        (replace(SITE, folder=Path("/nowhere")), "in /nowhere: /nowhere: No such file"),
        (replace(SITE, python=Path("/bin/false")), "makes no plan for shop:aq"),
    ],
)
def test_who_makes_no_plan_is_named_with_what_was_said(site: Site, says: str) -> None:
    with pytest.raises(DeployError, match=says):
        plan_at(site, Given(plain={}, secret={}), {})


@pytest.mark.parametrize("user", ["", "a b", "root\nExecStart=/bin/sh", "-x", "%i"])
def test_a_user_that_no_system_has_is_refused(user: str) -> None:
    with pytest.raises(DeployError, match="units need a name"):
        replace(SITE, user=user)
