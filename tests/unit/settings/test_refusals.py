"""What is wrong is named: key, value, source, limit, way out; and no secret is shown."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from agentq.errors import SettingsError
from agentq.settings import load_settings


def refusal(
    *,
    toml: str | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
    config: Path | None = None,
) -> str:
    if config is not None:
        (config / "default.toml").write_text(toml or "")
    with pytest.raises(SettingsError) as refused:
        load_settings(config_dir=config, environ=environ or {}, overrides=overrides)
    return str(refused.value)


def test_unknown_key_in_a_file_is_refused_with_file_and_nearest_key(tmp_path: Path) -> None:
    text = refusal(config=tmp_path, toml="[worker]\nslot = 5\n")
    where = tmp_path / "default.toml"
    assert text == f"unknown setting worker.slot ({where}): did you mean worker.slots?"


def test_unknown_variable_is_refused_with_the_nearest_variable() -> None:
    text = refusal(environ={"AGENTQ_BROKER_URL": "agentq://:secret@a:1/0"})
    assert text == "AGENTQ_BROKER_URL sets no known setting: did you mean AGENTQ_BROKER__URL?"


def test_unknown_override_is_refused_and_a_far_one_points_at_the_list() -> None:
    text = refusal(overrides={"zebra": 1})
    assert text == "unknown setting zebra (overrides): see `agentq settings`"


def test_unknown_empty_table_is_refused(tmp_path: Path) -> None:
    assert "unknown setting brokr" in refusal(config=tmp_path, toml="[brokr]\n")


def test_key_below_a_setting_is_refused(tmp_path: Path) -> None:
    text = refusal(config=tmp_path, toml="[worker.slots]\nmax = 1\n")
    assert "unknown setting worker.slots.max" in text
    assert text.endswith("did you mean worker.slots?")


def test_unknown_key_within_a_new_pool_is_refused(tmp_path: Path) -> None:
    text = refusal(config=tmp_path, toml="[pools.gpu]\nprocesess = 1\n")
    assert text.endswith("did you mean pools.gpu.processes?")


def test_value_for_a_whole_section_is_refused(tmp_path: Path) -> None:
    text = refusal(config=tmp_path, toml="worker = 5\n")
    assert text.endswith("is a group of settings, not one: set worker.slots and the like")


def test_pool_that_no_variable_could_name_is_refused(tmp_path: Path) -> None:
    text = refusal(config=tmp_path, toml="[pools.big-gpu]\nprocesses = 1\n")
    assert text.startswith("pool 'big-gpu'")
    assert text.endswith("write lower-case letters, digits and single underscores, at most 32")


def test_env_in_a_file_is_refused_since_it_chooses_the_file(tmp_path: Path) -> None:
    text = refusal(config=tmp_path, toml="env = 'test'\n")
    assert text.endswith("chooses the files: set AGENTQ_ENV or pass --env")


def test_value_out_of_its_limits_names_key_value_source_limit_unit_and_default() -> None:
    assert refusal(environ={"AGENTQ_WORKER__SLOTS": "0"}) == (
        "worker.slots = '0' (AGENTQ_WORKER__SLOTS): must be at least 1; unit: steps."
        " Correct it there or leave it out for the default, 1000"
    )


def test_every_wrong_value_is_named_at_once() -> None:
    text = refusal(environ={"AGENTQ_WORKER__SLOTS": "0", "AGENTQ_STATE__TIMEOUT": "soon"})
    assert [line.split(" = ")[0] for line in text.splitlines()] == ["worker.slots", "state.timeout"]


@pytest.mark.parametrize(
    ("key", "value", "limit"),
    [
        ("batch.window", "0ms", 'must be at least "1ms"'),
        ("batch.window", "1001ms", 'must be at most "1s"'),
        ("worker.poll", "10.0005s", "is finer than a millisecond"),
        ("runs.keep", "99999999999d", "is longer than any duration can be"),
        ("runs.keep", float("inf"), "is longer than any duration can be"),
        ("runs.keep", "-1s", "is not a duration: write 250ms, 30s, 2m, 1h or 7d"),
        ("worker.slots", True, "true is not a whole number"),
        ("worker.slots", 1.5, "input should be a valid integer"),
        ("worker.loop", "trio", "input should be 'uvloop' or 'asyncio'"),
        ("pools.shared.lanes", ["high", "high"], "names something twice"),
        ("pools.shared.lanes", [], "name at least one"),
        ("pools.shared.lanes", "high,urgent", "input should be 'high', 'normal', 'long' or 'low'"),
        ("pools.shared.cpus", [0, -1], "must be at least 0"),
        ("broker.url", "localhost:6379", "an address starts with a scheme"),
        ("app", "tasks.research", "write module:attribute"),
        ("log.level", "loud", "input should be 'DEBUG'"),
        ("dashboard.port", 65_536, "must be at most 65535"),
    ],
)
def test_wrong_value_is_refused_with_its_limit(key: str, value: object, limit: str) -> None:
    text = refusal(overrides={key: value})
    assert text.startswith(f"{key} = {value!r} (overrides): ")
    assert limit in text
    assert "\n" not in text


def test_file_that_is_not_toml_is_refused_with_line_and_column(tmp_path: Path) -> None:
    text = refusal(config=tmp_path, toml="[worker]\nslots = \n")
    assert text.startswith(f"{tmp_path / 'default.toml'} is not TOML: ")
    assert "line 2" in text


def test_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "default.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match=r"default\.toml is not TOML: .*utf-8"):
        load_settings(config_dir=tmp_path, environ={})


@pytest.mark.parametrize(
    "overrides",
    [
        {"model.api_key": ["hunter2"]},
        {"model.api_key": {"value": "hunter2"}},
        {"model.apikey": "hunter2"},
        {"broker.url": "user:hunter2@host:6379"},
        {"broker.url": "agentq://user:hunter2@host:6379/0 with a space"},
        {"broker.timeout": "agentq://:hunter2@host"},
    ],
)
def test_refusal_shows_no_secret(overrides: dict[str, object]) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(environ={}, overrides=overrides)
    assert "hunter2" not in str(refused.value)
    assert refused.value.__context__ is None  # pydantic's own text would show it
