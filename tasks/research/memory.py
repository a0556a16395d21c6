"""What is remembered between runs: one file a note, named for everything it depends on."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from tasks.research.documents import digest
from tasks.research.models import Document, Note, Report, Scope

# Raise it when notes are written in another way: older ones are then not found, and not reused.
NOTES_VERSION = "1"
_KEPT_NOTES = 2000  # the newest; the rest are deleted, so that the folder does not grow for ever


def memory_folder(memory: str | None) -> Path:
    """Return the folder given, or the one in the user's state directory; it need not exist."""
    if memory:
        return Path(memory).expanduser().absolute()
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser().absolute() / "agentq" / "research"


def note_name(scope: Scope, document: Document) -> str:
    """Return a file name that changes with document, question, search and version of the notes."""
    depends_on = (NOTES_VERSION, document.kind, document.name, document.digest, scope.question)
    limits = str(scope.limits.passages)
    return f"{digest(*depends_on, limits, *scope.search)}.json"


def recalled(scope: Scope, document: Document, *, asked: bool) -> Note | None:
    """Return the note of this very text and question; None if there is none, or none that is whole.

    With `asked` only a note for which the chat model was asked will do.
    """
    path = Path(scope.memory) / "notes" / note_name(scope, document)
    try:
        note = Note.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    return note if note.document == document and (note.asked or not asked) else None


def remembered(scope: Scope, notes: Iterable[Note]) -> None:
    """Write the notes that are whole; one that lacks a call's answer is made anew next time.

    Raises:
        OSError: the folder cannot be written.

    """
    folder = Path(scope.memory) / "notes"
    folder.mkdir(parents=True, exist_ok=True)
    for note in notes:
        if not note.missing:
            _replace(folder / note_name(scope, note.document), note.model_dump_json(indent=1))
    for path in sorted(folder.glob("*.json"), key=_written_at, reverse=True)[_KEPT_NOTES:]:
        path.unlink(missing_ok=True)


def report_paths(scope: Scope) -> tuple[Path, Path]:
    """Return where the Markdown and the JSON of this question's report are kept."""
    name = f"report-{digest(scope.question, scope.docs or '')[:12]}"
    return Path(scope.memory) / f"{name}.md", Path(scope.memory) / f"{name}.json"


def report_written(scope: Scope, report: Report, markdown: str) -> None:
    """Write the report beside the notes, over the one of an earlier run.

    Raises:
        OSError: the folder cannot be written.

    """
    as_markdown, as_json = report_paths(scope)
    _replace(as_markdown, markdown)
    _replace(as_json, report.model_dump_json(indent=1))


def _written_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another run deleted it
        return 0.0


def _replace(path: Path, text: str) -> None:
    """Write so that a reader sees the old file or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".draft-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
