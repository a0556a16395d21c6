"""The review: keep what the sources support, once, by relevance, and say what is missing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from agentq import Err, Ok
from tasks.research.documents import DocumentChangedError, NothingToReadError, reread
from tasks.research.likeness import coverage, shared
from tasks.research.models import Claim, Note, Overview, Reading, Review, Scope, Skipped
from tasks.research.passages import occurs

_BEARING = 0.4  # share of the best note's score that a note needs
_NAMED = 12  # documents named per failure; the rest are counted
_SAME = 0.9  # share of meaning words at which two claims say the same


def reviewed(outcomes: Sequence[Ok[Reading] | Err]) -> Review:
    """Check each note against its document, read again, and put the sound ones in order.

    Raises:
        NothingToReadError: no document at all could be read.

    """
    readings = [outcome.value for outcome in outcomes if isinstance(outcome, Ok)]
    if not readings:
        raise NothingToReadError(_all_failed(outcomes))
    scope = readings[0].scope
    overview = next((r.overview for r in readings if r.overview), None)
    floor = _BEARING * max(reading.note.score for reading in readings)
    sound: list[Note] = []
    dropped: list[Skipped] = []
    for reading in readings:
        if objection := objection_to(reading.note, scope, floor=floor):
            dropped.append(Skipped(name=reading.note.document.label, reason=objection))
        else:
            sound.append(reading.note)
    return Review(
        scope=scope,
        overview=overview,
        claims=tuple(merged(sound)),
        dropped=tuple(dropped),
        missing=tuple(missing_from(outcomes, overview)),
        notes=tuple(reading.note for reading in readings),
        reused=sum(reading.reused for reading in readings),
    )


def objection_to(note: Note, scope: Scope, *, floor: float) -> str:
    """Return why a note cannot stand in the report; empty where its source supports it.

    `floor` is the score (0 to 1) below which a note bears too little on the question.
    """
    if not note.claim or note.score < floor:
        return "nothing in it bears on the question" if not note.claim else "bears too little on it"
    try:
        text = reread(note.document, scope.docs, scope.limits)
    except DocumentChangedError as error:
        return str(error)
    return unsupported(note, text)


def unsupported(note: Note, text: str) -> str:
    """Return what in `note` its document's plain `text` does not bear out; empty for nothing."""
    if not note.claim.startswith(f"{note.document.name}: "):
        return "its claim does not name the document"
    if not occurs(note.quotation, text):
        return "its quotation does not occur in the document"
    if coverage(note.statement, text) < 1:
        return "its claim has words that the document has not"
    return ""


def merged(notes: Iterable[Note]) -> list[Claim]:
    """Return the notes by relevance, those that say the same as a better one folded into it."""
    claims: list[Claim] = []
    for note in sorted(notes, key=lambda n: (-n.score, n.document.name.casefold())):
        for at, claim in enumerate(claims):
            if _same(claim.note, note):
                claims[at] = Claim(note=claim.note, also=(*claim.also, note.document))
                break
        else:
            claims.append(Claim(note=note))
    return claims


def _same(one: Note, other: Note) -> bool:
    return (
        min(shared(one.statement, other.statement), shared(one.quotation, other.quotation)) >= _SAME
    )


def missing_from(outcomes: Sequence[Ok[Reading] | Err], overview: Overview | None) -> Iterable[str]:
    """Yield what the report lacks: documents whose step failed, and calls that failed in others."""
    yield from overview.missing if overview else ("what the plan saw: its first steps failed",)
    names = overview.chosen if overview else ()
    lacking: dict[str, list[str]] = defaultdict(list)
    for place, outcome in enumerate(outcomes):
        name = names[place] if place < len(names) else f"document {place + 1}"
        if isinstance(outcome, Ok):
            for call in outcome.value.note.missing:
                lacking[call].append(outcome.value.note.document.label)
        else:
            lacking[f"not read: {outcome.kind}: {outcome.message}"].append(name)
    for reason, lost in lacking.items():
        more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
        yield f"{reason} ({len(lost)} documents: {', '.join(lost[:_NAMED])}{more})"


def _all_failed(outcomes: Sequence[Ok[Reading] | Err]) -> str:
    first = next((outcome for outcome in outcomes if isinstance(outcome, Err)), None)
    if first is None:
        return "there was no document to read"
    return f"none of {len(outcomes)} documents could be read; {first.kind}: {first.message}"
