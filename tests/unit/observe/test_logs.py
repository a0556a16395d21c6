"""What a process says of itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import orjson
import pytest

from agentq.observe import logs


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def test_a_line_of_json_has_time_level_logger_message_process_and_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("INFO", "json", process="shared-0@h")
    try:
        int("no")
    except ValueError:
        logging.getLogger("shop").exception("order %d", 7)
    line = orjson.loads(capsys.readouterr().err)
    error = line.pop("error")
    moment = line.pop("time")
    assert line == {
        "level": "ERROR",
        "logger": "shop",
        "message": "order 7",
        "process": "shared-0@h",
    }
    assert "ValueError: invalid literal" in error
    assert moment.endswith("Z")


def test_text_names_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("INFO", "text", process="shared-0@h")
    logging.getLogger("shop").info("open")
    said = capsys.readouterr().err
    assert said.startswith("shared-0@h ")
    assert said.endswith(" INFO    shop: open\n")


def test_libraries_are_heard_from_warning_on_even_when_everything_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("DEBUG", "text")
    logging.getLogger("kombu.x").info("chatter")
    logging.getLogger("kombu.x").warning("trouble")
    logging.getLogger("shop").debug("detail")
    said = capsys.readouterr().err
    assert "chatter" not in said
    assert "trouble" in said
    assert "detail" in said
