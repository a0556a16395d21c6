"""Which store the settings choose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentq.blobs import chosen
from agentq.errors import SettingsError
from agentq.settings import load_settings

DEFAULT = Path("/the/default")


class Own:
    place = "mine"


def store(env: str = "development", **settings: Any) -> Any:
    overrides = {f"blobs.{name}": value for name, value in settings.items()}
    return chosen(load_settings(env=env, environ={}, overrides=overrides), default=lambda: DEFAULT)


def test_in_development_it_is_a_folder_beside_the_embedded_server() -> None:
    assert store().place == "/the/default (blobs.directory)"


def test_in_production_it_is_none_unless_a_folder_is_set() -> None:
    assert store("production") is None
    assert store("production", directory="/shared").place == "/shared (blobs.directory)"


def test_none_is_none_and_the_default_is_not_asked_for() -> None:
    assert store(store="none") is None


def test_a_class_of_the_users_own_is_named_by_its_path() -> None:
    assert store(store="tests.unit.blobs.test_store:Own").place == "mine"


@pytest.mark.parametrize("name", ["no.such:Class", "agentq.clock:Nothing"])
def test_a_class_that_can_not_be_had_is_refused_by_name(name: str) -> None:
    with pytest.raises(SettingsError, match=f"blobs.store: '{name}' can not be had"):
        store(store=name)


@pytest.mark.parametrize("name", ["folder", "s3:/bucket", "two words", "x:"])
def test_a_store_that_is_written_wrongly_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="write directory, none, a URL"):
        store(store=name)
