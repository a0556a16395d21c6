"""Which layer wins, and what is remembered about it."""

from datetime import timedelta
from pathlib import Path

import pytest

from agentq.errors import BrokerNotConfigured, SettingsError
from agentq.settings import Settings, explain, load_settings


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "default.toml").write_text("[worker]\nslots = 1\nthreads = 1\npoll = '1s'\n")
    (tmp_path / "test.toml").write_text("[worker]\nslots = 2\nthreads = 2\n")
    return tmp_path


def source(settings: Settings, key: str) -> str:
    return next(one.source for one in explain(settings) if one.key == key)


def test_each_layer_wins_over_the_one_before_and_is_named_as_the_source(config: Path) -> None:
    settings = load_settings(
        config_dir=config,
        environ={
            "AGENTQ_ENV": "test",
            "AGENTQ_WORKER__THREADS": "3",
            "AGENTQ_WORKER__CPU_PROCESSES": "3",
        },
        overrides={"worker.cpu_processes": 4},
    )
    worker = settings.worker
    assert (worker.gc_threshold, source(settings, "worker.gc_threshold")) == (50_000, "default")
    assert worker.poll == timedelta(seconds=1)
    assert source(settings, "worker.poll") == str(config / "default.toml")
    assert (worker.slots, source(settings, "worker.slots")) == (2, str(config / "test.toml"))
    assert (worker.threads, source(settings, "worker.threads")) == (3, "AGENTQ_WORKER__THREADS")
    assert (worker.cpu_processes, source(settings, "worker.cpu_processes")) == (4, "overrides")
    assert (settings.env, source(settings, "env")) == ("test", "AGENTQ_ENV")


def test_argument_chooses_the_environment_before_the_variable(config: Path) -> None:
    settings = load_settings(env="development", config_dir=config, environ={"AGENTQ_ENV": "test"})
    assert (settings.env, settings.worker.slots) == ("development", 1)


def test_agentq_config_names_the_folder(config: Path) -> None:
    settings = load_settings(environ={"AGENTQ_CONFIG": str(config)})
    assert settings.worker.slots == 1


def test_config_beside_the_caller_is_read_and_named_relative_to_it(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.rename(config.parent / "config")
    monkeypatch.chdir(config.parent)
    settings = load_settings(environ={})
    assert settings.worker.slots == 1
    assert source(settings, "worker.slots") == "config/default.toml"


def test_a_config_of_one_environments_file_adds_to_the_packaged_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/production.toml").write_text("[worker]\nslots = 200\n")
    monkeypatch.chdir(tmp_path)
    for environ in ({}, {"AGENTQ_CONFIG": "config"}):
        settings = load_settings(environ={"AGENTQ_ENV": "production", **environ})
        assert settings.worker.slots == 200
        assert source(settings, "worker.slots") == "config/production.toml"
        assert source(settings, "worker.poll") == "default.toml (in agentq)"
    assert load_settings(env="test", environ={}).worker.drain_timeout.total_seconds() == 5
    with pytest.raises(SettingsError, match=r"there is no config/prodution\.toml; known are dev"):
        load_settings(env="prodution", environ={})


def test_packaged_defaults_are_read_where_there_is_no_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings(env="production", environ={})
    assert settings.log.level == "WARNING"
    assert source(settings, "log.level") == "production.toml (in agentq)"


def test_empty_variable_unsets(config: Path) -> None:
    (config / "development.toml").write_text("[broker]\nurl = 'agentq://a:1/0'\n")
    settings = load_settings(config_dir=config, environ={"AGENTQ_BROKER__URL": ""})
    assert settings.broker.url is None


def test_one_word_about_a_pool_leaves_the_rest_of_it_and_the_other_pools(config: Path) -> None:
    settings = load_settings(
        config_dir=config,
        environ={"AGENTQ_POOLS__CRITICAL__PROCESSES": "2", "AGENTQ_POOLS__GPU__CPUS": "2, 3"},
    )
    assert list(settings.pools) == ["critical", "shared", "gpu"]
    critical, gpu = settings.pools["critical"], settings.pools["gpu"]
    assert (critical.purpose, critical.processes) == ("exclusive", 2)
    assert (gpu.purpose, gpu.processes, gpu.cpus) == ("shared", 1, (2, 3))
    assert gpu.lanes == ("high", "normal", "long", "low")


def test_empty_pool_table_makes_a_plain_pool_and_takes_nothing_away(config: Path) -> None:
    (config / "default.toml").write_text("[pools.gpu]\nprocesses = 3\n")
    (config / "development.toml").write_text("[pools.gpu]\n[pools.tpu]\n")
    pools = load_settings(config_dir=config, environ={}).pools
    assert (pools["gpu"].processes, pools["tpu"].processes) == (3, 1)


def test_other_variables_are_left_alone(config: Path) -> None:
    settings = load_settings(config_dir=config, environ={"PATH": "/bin", "agentq_x": "1"})
    assert settings.worker.slots == 1


def test_production_refuses_to_run_without_a_broker() -> None:
    settings = load_settings(env="production", environ={})
    with pytest.raises(BrokerNotConfigured, match=r"broker\.url .*AGENTQ_BROKER__URL"):
        settings.require_broker()


def test_production_runs_on_the_broker_it_is_given() -> None:
    url = "agentq://:pw@redis.internal:6379/0"
    settings = load_settings(env="production", environ={"AGENTQ_BROKER__URL": url})
    assert settings.require_broker() == url


@pytest.mark.parametrize("env", ["development", "test"])
def test_elsewhere_no_broker_means_the_embedded_server(env: str) -> None:
    assert load_settings(env=env, environ={}).require_broker() is None


def test_settings_are_frozen() -> None:
    settings = load_settings(environ={})
    with pytest.raises(ValueError, match="frozen"):
        settings.worker.slots = 5  # type: ignore[misc]


def test_folder_without_default_toml_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"AGENTQ_CONFIG names .*has no default\.toml"):
        load_settings(environ={"AGENTQ_CONFIG": str(tmp_path)})


def test_environment_without_a_file_is_refused_with_those_that_exist(config: Path) -> None:
    (config / "staging.toml").write_text("")
    with pytest.raises(SettingsError) as refused:
        load_settings(env="prodution", config_dir=config, environ={})
    assert "env 'prodution' is unknown" in str(refused.value)
    assert "known are development, production, staging, test" in str(refused.value)


@pytest.fixture
def credentials(tmp_path: Path) -> Path:
    """What systemd hands a service, one of another program's among it."""
    folder = tmp_path / "credentials"
    folder.mkdir()
    (folder / "agentq.broker.url").write_text("agentq://:hunter2@db:6379/0\n")
    (folder / "tls.key").write_text("not ours")
    return folder


def test_a_credential_beats_the_files_and_a_variable_beats_it(credentials: Path) -> None:
    environ = {"CREDENTIALS_DIRECTORY": str(credentials)}
    settings = load_settings(environ=environ)
    assert settings.broker.url == "agentq://:hunter2@db:6379/0"
    assert source(settings, "broker.url") == "credential agentq.broker.url"
    other = load_settings(environ={**environ, "AGENTQ_BROKER__URL": "agentq://other"})
    assert other.broker.url == "agentq://other"


def test_a_credential_that_is_no_setting_is_refused_without_its_text(credentials: Path) -> None:
    (credentials / "agentq.broker.ulr").write_text("agentq://:hunter2@db")
    with pytest.raises(SettingsError, match=r"broker\.ulr") as caught:
        load_settings(environ={"CREDENTIALS_DIRECTORY": str(credentials)})
    assert "hunter2" not in str(caught.value)
