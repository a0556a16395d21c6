"""The TOML files say what the models say, and the wheel carries them."""

import subprocess
import sys
import tomllib
from datetime import timedelta
from pathlib import Path

import pytest

import agentq.settings
from agentq.settings import Settings, load_settings
from agentq.settings.template import render

CONFIG = Path(__file__).parents[3] / "config"
PACKAGED = Path(agentq.settings.__file__).parent / "defaults"
NAMES = ["default.toml", "development.toml", "production.toml", "test.toml"]


def test_default_toml_is_what_the_models_say() -> None:
    assert (CONFIG / "default.toml").read_text() == render(), (
        "run `python -m agentq.settings.template > config/default.toml`"
    )


def test_default_toml_alone_gives_the_defaults() -> None:
    settings = load_settings(config_dir=CONFIG, env="development", environ={})
    plain = settings.model_dump(exclude={"log"})
    assert plain == Settings().model_dump(exclude={"log"})


@pytest.mark.parametrize("name", NAMES)
def test_packaged_file_has_the_same_bytes(name: str) -> None:
    assert (PACKAGED / name).read_bytes() == (CONFIG / name).read_bytes()


def test_no_file_stands_in_one_folder_only() -> None:
    assert sorted(path.name for path in CONFIG.glob("*.toml")) == NAMES
    assert sorted(path.name for path in PACKAGED.iterdir()) == NAMES


@pytest.mark.parametrize("name", NAMES[1:])
def test_environment_file_holds_only_what_differs(name: str) -> None:
    default = tomllib.loads((CONFIG / "default.toml").read_text())
    own = tomllib.loads((CONFIG / name).read_text())
    same = [
        f"{section}.{key}"
        for section, table in own.items()
        for key, value in table.items()
        if default[section].get(key) == value
    ]
    assert same == []


@pytest.mark.parametrize("env", ["development", "test", "production"])
def test_each_environment_loads(env: str) -> None:
    assert load_settings(config_dir=CONFIG, env=env, environ={}).env == env


def test_defaults_are_those_of_the_field() -> None:
    settings = Settings()
    model, tools, state, batch = settings.model, settings.tools, settings.state, settings.batch
    assert (model.timeout, model.retries, model.connections) == (timedelta(seconds=30), 1, 100)
    assert (tools.timeout, tools.retries) == (timedelta(seconds=10), 2)
    assert tools.database_timeout == timedelta(seconds=2)
    assert (state.timeout, state.retries) == (timedelta(seconds=5), 3)
    assert (batch.max_items, batch.window) == (16, timedelta(milliseconds=15))


def test_importing_settings_loads_neither_celery_nor_redis() -> None:
    code = (
        "import sys, agentq.settings\n"
        "print(sorted({'celery', 'kombu', 'redis', 'pydantic_settings'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20
    )
    assert done.stdout == "[]\n"
