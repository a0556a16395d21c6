"""What a table looks like where there is little room, much, and no terminal at all."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from agentq.cli.tables import plain_table, print_table

STEP = "a_step_whose_name_has_forty_characters12"
POOL = "pool_whose_name_has_32_letters_1"
WHY = "shared with another process: fewer cores are left than there are shared processes"


def printed(width: int, *, terminal: bool) -> str:
    table = plain_table("step", "pool", ">waited", ">ran", "why", prose="why", title="Steps")
    table.add_row(STEP, POOL, "0/1234/5678 ms", "99 ms", WHY)
    table.add_row("", POOL, "3 ms", "1.25 s", f"[red]{POOL}[/red]")
    console = Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)
    print_table(console, table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "piped"])
@pytest.mark.parametrize("width", [60, 80, 100, 160, 240])
def test_no_name_and_no_figure_is_ever_cut(width: int, *, terminal: bool) -> None:
    text = printed(width, terminal=terminal)
    words = [STEP, POOL, "0/1234/5678 ms", "99 ms", "3 ms", "1.25 s", *WHY.split()]
    assert [word for word in words if word not in text] == []
    assert "…" not in text
    assert text.count(POOL) == 3


@pytest.mark.parametrize("width", [60, 80, 100, 160, 240])
def test_a_terminal_is_never_given_more_than_its_width(width: int) -> None:
    lines = printed(width, terminal=True).splitlines()
    assert max(map(len, lines)) <= width


def test_without_a_terminal_each_row_is_one_line() -> None:
    title, heads, *rows = printed(80, terminal=False).splitlines()
    assert (title.strip(), heads.split()) == ("Steps", ["step", "pool", "waited", "ran", "why"])
    assert len(rows) == 2
    assert rows[0].rstrip().endswith(WHY)


def test_where_a_table_fits_only_its_prose_is_wrapped() -> None:
    _, heads, first, more, *_ = printed(150, terminal=True).splitlines()
    assert heads.split() == ["step", "pool", "waited", "ran", "why"]
    assert first.split()[:5] == [STEP, POOL, "0/1234/5678", "ms", "99"]
    assert more.split() == WHY.split()[-len(more.split()) :]


def test_where_it_does_not_a_row_is_broken_between_its_cells() -> None:
    lines = printed(80, terminal=True).splitlines()
    assert [line.rstrip() for line in lines[1:4]] == [
        STEP,
        f"  pool {POOL}  waited 0/1234/5678 ms  ran 99 ms",
        "  why shared with another process: fewer cores are left than there are shared",
    ]
