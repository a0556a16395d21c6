"""The one look of our tables: columns, a line of heads, nothing else."""

from __future__ import annotations

from typing import Literal

from rich.table import Table


def plain_table(*heads: str, title: str | None = None) -> Table:
    """Return an empty table; a head that begins with ``>`` is a column of figures."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, header_style="dim",
        pad_edge=False, padding=(0, 2, 0, 0),
    )  # fmt: skip
    for place, head in enumerate(heads):
        figures = head.startswith(">")
        justify: Literal["left", "right"] = "right" if figures else "left"
        table.add_column(head.lstrip(">"), justify=justify, no_wrap=figures or place == 0)
    return table
