"""The one look of our tables and lines, and the one place that decides how wide they are.

Nothing is ever cut: a name or a figure that ends in an ellipsis is of no use.

    no terminal (a pipe, a file)   as wide as the longest cells, so that a line is a row for grep
    a terminal                     the same where it fits; prose, which one column may hold, wraps
    a terminal too narrow for it   each row is its first cell and, below it, "head value" for the
                                   others, as many a line as fit
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_GAP = 2
_PROSE = 24
"""Columns of the terminal that prose is to have at least, or the row is broken instead."""


def plain_console() -> Console:
    """Return where people are told something: lines end where we end them."""
    return Console(highlight=False, soft_wrap=True)


def plain_table(*heads: str, prose: str | None = None, title: str | None = None) -> Table:
    """Return an empty table.

    Args:
        heads: of the columns; one that begins with ``>`` is a column of figures.
        prose: the head whose cells may be wrapped between words.
        title: above it.
    """
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, header_style="dim",
        pad_edge=False, padding=(0, _GAP, 0, 0),
    )  # fmt: skip
    for head in heads:
        justify: Literal["left", "right"] = "right" if head.startswith(">") else "left"
        table.add_column(head.lstrip(">"), justify=justify, no_wrap=head != prose)
    return table


def print_table(console: Console, table: Table) -> None:
    """Print *table*, whole."""
    widths = [max(map(_width, cells)) for cells in _columns(table)]
    gaps = _GAP * (len(widths) - 1)
    least = [
        width if column.no_wrap else max(min(width, _PROSE), *map(_longest_word, cells))
        for width, column, cells in zip(widths, table.columns, _columns(table), strict=True)
    ]
    if not console.is_terminal:
        table.width = max(sum(widths) + gaps, _width(table.title), _width(table.caption))
        console.print(table, soft_wrap=False, crop=False)
    elif sum(least) + gaps <= console.width:
        console.print(table, soft_wrap=False)
    else:
        _print_broken(console, table)


def _print_broken(console: Console, table: Table) -> None:
    if table.title:
        console.print(table.title, style="bold")
    heads, *rows = zip(*_columns(table), strict=True)
    for first, *others in rows:
        if first:
            console.print(first)
        pieces = [_piece(head, cell) for head, cell in zip(heads[1:], others, strict=True) if cell]
        for line in _lines(pieces, console.width - _GAP):
            console.print(Padding(line, (0, 0, 0, _GAP), expand=False), soft_wrap=False)
    if table.caption:
        console.print(table.caption, style="dim")


def _lines(pieces: Sequence[Text], width: int) -> Iterator[Text]:
    """Yield *pieces* side by side; one that is wider than *width* has a line of its own."""
    line = Text()
    for piece in pieces:
        if line and line.cell_len + _GAP + piece.cell_len > width:
            yield line
            line = Text()
        line = Text(" " * _GAP).join([line, piece]) if line else piece
    yield line


def _piece(head: str, cell: str) -> Text:
    return Text.assemble((f"{head} " if head else "", "dim"), Text.from_markup(cell))


def _columns(table: Table) -> list[list[str]]:
    """Return each column's head and cells; we make them all of text."""
    return [[str(column.header), *map(str, column.cells)] for column in table.columns]


def _longest_word(cell: str) -> int:
    return max((cell_len(word) for word in Text.from_markup(cell).plain.split()), default=0)


def _width(text: object) -> int:
    return Text.from_markup(str(text or "")).cell_len
