"""What to install for an optional part: lines to paste, which name no stranger."""

from __future__ import annotations

import asyncio
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from agentq.broker.services import Services
from agentq.errors import ModelUnavailable
from agentq.extras import pip_install
from agentq.settings import load_settings

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", ["worker", "cli", "dashboard", "inference", "embedded"])
def test_an_extra_is_installed_by_its_packages_own_names(extra: str) -> None:
    pip, install, *packages = shlex.split(pip_install(extra))
    assert (pip, install) == ("pip", "install")
    names = {package.partition(">")[0].partition("<")[0] for package in packages}
    assert names == {package.partition(">")[0].partition("<")[0] for package in EXTRAS[extra]}


def test_what_our_metadata_does_not_know_is_installed_from_our_folder() -> None:
    assert pip_install("no-such") == "pip install '/path/to/agentq[no-such]'"


async def _client() -> object:
    settings = load_settings(overrides={"model.base_url": "http://127.0.0.1:1"}, environ={})
    return await Services(settings=settings).calls()


def test_a_model_call_without_its_packages_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    monkeypatch.delitem(sys.modules, "agentq.inference.client", raising=False)
    with pytest.raises(ModelUnavailable, match=r"no httpx2: pip install 'httpx2>=") as raised:
        asyncio.run(_client())
    assert raised.value.__suppress_context__
