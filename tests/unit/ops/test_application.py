"""Finding the user's app."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentq.errors import DefinitionError
from agentq.ops.application import DEMO, any_app, demo_folder, load_app

_APP = "from agentq import AgentQ\nshop = AgentQ('shop')\ncelery_app = shop.celery\nnumber = 5\n"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


@pytest.mark.parametrize("attribute", ["shop", "celery_app"])
def test_an_app_is_found_by_itself_or_by_its_celery_app(project: Path, attribute: str) -> None:
    (project / "shop_a.py").write_text(_APP)
    assert load_app(f"shop_a:{attribute}").name == "shop"


def test_an_app_named_aq_needs_no_attribute(project: Path) -> None:
    (project / "shop_b.py").write_text(_APP.replace("shop", "aq"))
    assert load_app("shop_b").name == "aq"


def test_what_an_app_prints_is_no_part_of_an_answer(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "shop_p.py").write_text(f"print('hello')\n{_APP}")
    assert any_app("shop_p:shop").name == "shop"
    assert capsys.readouterr() == ("", "hello\n")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("shop_c", "holds no AgentQ named aq, app, celery; it has shop_c:shop"),
        ("shop_c:other", "has no attribute 'other'; it has shop_c:shop"),
        (
            "shop_c:number",
            "shop_c:number is no AgentQ nor the Celery app of one; it has shop_c:shop",
        ),
        ("absent:app", "there is no module 'absent'"),
        ("shop_c.inner:app", "there is no module 'shop_c.inner'"),
    ],
)
def test_a_wrong_name_says_what_there_is(project: Path, name: str, says: str) -> None:
    (project / "shop_c.py").write_text(_APP)
    with pytest.raises(DefinitionError, match=says):
        load_app(name)


def test_a_missing_import_inside_the_app_is_not_taken_for_a_missing_app(project: Path) -> None:
    (project / "shop_d.py").write_text("import certainly_absent\n")
    with pytest.raises(
        DefinitionError, match=r"No module named 'certainly_a.*' \(shop_d.py, line 1\)$"
    ):
        load_app("shop_d:aq")


def test_an_app_that_raises_says_what_it_raised(project: Path) -> None:
    (project / "shop_e.py").write_text("\n1 / 0\n")
    with pytest.raises(DefinitionError, match=r"Error: division by zero \(shop_e.py, line 2\)$"):
        load_app("shop_e:aq")
    (project / "shop_f.py").write_text("if\n")
    with pytest.raises(DefinitionError, match=r"invalid syntax \(shop_f.py, line 1\)$"):
        load_app("shop_f:aq")


def test_no_name_says_how_to_give_one() -> None:
    with pytest.raises(DefinitionError, match="-A module:attribute"):
        load_app(None)


def test_the_demo_is_found_although_the_user_has_a_module_tasks(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "tasks.py").write_text("raise SystemExit('the wrong one')\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "tasks"]:
        monkeypatch.delitem(sys.modules, name)
    assert load_app(DEMO).name == "research"
    assert (demo_folder() / "tasks/research/steps.py").is_file()
