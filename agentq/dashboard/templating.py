"""Finds our templates beside Flower's, and adds our tab to its navigation."""

from __future__ import annotations

from pathlib import Path

from tornado.template import BaseLoader, Template

_OURS = Path(__file__).parent / "templates"
_NAVIGATION = "navbar.html"


class Overlay(BaseLoader):
    """Tornado knows one folder of templates; this looks in ours first, then in *flower*'s."""

    def __init__(self, *, flower: Path) -> None:
        """Take Flower's folder."""
        super().__init__()
        self._folders = (_OURS, flower)

    def resolve_path(self, name: str, parent_path: str | None = None) -> str:  # noqa: ARG002 -- Tornado's
        """Return the name: templates of both folders see each other."""
        return name

    def _create_template(self, name: str) -> Template:
        text = self._text(name)
        if name == _NAVIGATION:
            # The first list holds the tabs. Ours is added to whatever this Flower has.
            text = text.replace("</ul>", self._text("agentq_tab.html") + "</ul>", 1)
        return Template(text, name=name, loader=self)

    def _text(self, name: str) -> str:
        for folder in self._folders:
            if (path := folder / name).is_file():
                return path.read_text(encoding="utf-8")
        raise FileNotFoundError(name)
