"""What `agentq settings` shows."""

import json
import re
from dataclasses import asdict

import pytest

from agentq.settings import Explained, Settings, explain, load_settings
from agentq.settings.masking import mask


def one(key: str, **overrides: object) -> Explained:
    settings = load_settings(
        environ={}, overrides={name.replace("__", "."): value for name, value in overrides.items()}
    )
    return next(each for each in explain(settings) if each.key == key)


def test_every_setting_has_a_unit_and_a_reason() -> None:
    explained = explain(Settings())
    assert [each.key for each in explained if not each.unit or not each.description] == []
    assert len(explained) == len({each.key for each in explained})


def test_setting_is_shown_as_it_is_written() -> None:
    assert one("batch.window", batch__window=0.02) == Explained(
        key="batch.window",
        value="20ms",
        unit="duration",
        source="overrides",
        description="How long a batch waits for company; the field uses 10-20 ms",
    )


def test_pools_are_shown_by_name() -> None:
    assert one("pools.gpu.processes", pools__gpu__processes=2).value == 2
    assert one("pools.critical.purpose").value == "exclusive"


def test_all_is_json() -> None:
    text = json.dumps([asdict(each) for each in explain(load_settings(environ={}))])
    assert '"value": ["high", "normal", "long", "low"]' in text


def test_api_key_is_masked() -> None:
    value = one("model.api_key", model__api_key="hunter2").value
    assert isinstance(value, str)
    assert re.fullmatch(r"\*+", value)


def test_password_in_an_address_is_masked() -> None:
    url = "agentq://user:hunter2@host:6379/0"
    assert one("broker.url", broker__url=url).value == "agentq://user:***@host:6379/0"


def test_printed_settings_show_no_secret() -> None:
    settings = load_settings(
        environ={"AGENTQ_BROKER__URL": "agentq://:hunter2@h/0", "AGENTQ_MODEL__API_KEY": "hunter2"}
    )
    assert "hunter2" not in repr(settings) + str(settings)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("agentq://host:6379/0", "agentq://host:6379/0"),
        ("agentq://:pw@host:6379/0", "agentq://:***@host:6379/0"),
        ("agentq://u:p@ss:w/rd@host:6379/0", "agentq://u:***@host:6379/0"),
        ("redis://host/0?password=pw&x=1", "redis://host/0?password=***&x=1"),
        ("plain", "plain"),
    ],
)
def test_mask_hides_passwords_only(text: str, shown: str) -> None:
    assert mask(text) == shown
