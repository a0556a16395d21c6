"""Kernel settings that are put back, on files of the test's own."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from agentq.errors import BenchFailed
from agentq.ops.tune.sysctls import NAMES, Sysctls

SOMAXCONN = "net.core.somaxconn"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number, name in enumerate(NAMES):
        path = tmp_path / "sys" / name.replace(".", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number}00\n")
    return tmp_path / "sys"


def somaxconn(root: Path) -> str:
    return (root / "net/core/somaxconn").read_text().strip()


def sysctls(root: Path) -> Sysctls:
    return Sysctls(root=root, note=root / "note")


def test_a_value_holds_for_a_block_and_an_error_puts_it_back(root: Path) -> None:
    with sysctls(root) as found:
        assert found.found == dict(zip(NAMES, ("000", "100", "200", "300"), strict=True))
        with suppress(ValueError), found.holding(SOMAXCONN, "512"):
            assert somaxconn(root) == "512"
            raise ValueError("in it")
        assert somaxconn(root) == "000"
    assert not (root / "note").exists()


def test_the_next_start_puts_back_what_a_killed_one_left(root: Path) -> None:
    (root / "net/core/somaxconn").write_text("512")
    (root / "note").write_text(f'{{"name": "{SOMAXCONN}", "found": "4096", "tried": "512"}}')
    with sysctls(root) as found:
        assert found.said == f"{SOMAXCONN} = 4096: a tuning that was killed had left it"
        assert somaxconn(root) == found.found[SOMAXCONN] == "4096"


@pytest.mark.parametrize(
    "note",
    [
        f'{{"name": "{SOMAXCONN}", "found": "4096", "tried": "512"}}',  # set by somebody since
        f'{{"name": "{SOMAXCONN}", "fou',  # not whole: nothing had been touched
        "",
    ],
)
def test_what_it_did_not_set_it_leaves(root: Path, note: str) -> None:
    (root / "note").write_text(note)
    with sysctls(root) as found:
        assert found.said == ""
    assert somaxconn(root) == "000"


def test_two_do_not_try_them_at_once(root: Path) -> None:
    with sysctls(root), sysctls(root) as second:
        assert second.found == {}
        [why] = second.left_out
        assert why == f"{', '.join(NAMES)}: not tried, another agentq tune tries them"
    with sysctls(root) as third:
        assert third.left_out == ()


def test_one_that_the_kernel_lacks_or_refuses_is_named(root: Path) -> None:
    (root / "net/core/wmem_max").unlink()
    with sysctls(root) as found:
        assert found.left_out == ("net.core.wmem_max: not tried, this kernel does not show it",)
        (root / "net/core/somaxconn").unlink()
        (root / "net/core/somaxconn").mkdir()
        with (
            pytest.raises(BenchFailed, match="can not be set to 512: Is a directory"),
            found.holding(SOMAXCONN, "512"),
        ):
            pass
