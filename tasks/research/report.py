"""The report: what it holds, and how it reads as Markdown."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from tasks.research.models import Claim, Document, Report, Review, Skipped

_SPECIAL = re.compile(r"([\\`*<\[])")
_NAMED = 12  # documents named per reason; the rest are counted


def report_of(review: Review, *, files: tuple[str, ...] = ()) -> Report:
    """Put a review into the shape that is kept and printed."""
    overview, notes = review.overview, review.notes
    return Report(
        question=review.scope.question,
        docs=review.scope.docs,
        claims=review.claims,
        considered=overview.considered if overview else len(notes),
        read=len(notes),
        reused=review.reused,
        glosses_asked=sum(note.asked and bool(note.claim) for note in notes),
        glosses_kept=sum(bool(claim.note.gloss) for claim in review.claims),
        glosses_failed=sum(note.unanswered for note in notes),
        doubts=tuple(Skipped(name=n.document.label, reason=n.doubt) for n in notes if n.doubt),
        dropped=review.dropped,
        missing=review.missing,
        skipped=overview.skipped if overview else (),
        skipped_more=overview.skipped_more if overview else 0,
        files=files,
    )


def report_markdown(report: Report) -> str:
    """Return the report as Markdown, ending in a newline."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield from (f"# {_escaped(report.question)}", "", _counted(report), "")
    yield from ("## Answer", "")
    if not report.claims:
        yield from ("No document says anything about it.", "")
    for number, claim in enumerate(report.claims, start=1):
        yield from _claim_lines(number, claim)
    if any(claim.note.document.kind == "package" for claim in report.claims):
        yield from _section("Licences, as the packages' metadata states them", _licences(report))
    yield from _section("Missing", (_escaped(line) for line in report.missing))
    yield from _section("Dropped by the review", _grouped(report.dropped))
    yield from _section("Model's sentences not kept", _grouped(report.doubts))
    yield from _section("Skipped documents", _skips(report))
    yield from _section("Written to", (f"`{path}`" for path in report.files))


def _counted(report: Report) -> str:
    cited = sum(1 + len(claim.also) for claim in report.claims)
    where = f"in {report.docs}" if report.docs else "installed here"
    failed = f" {report.glosses_failed} calls failed: see Missing." if report.glosses_failed else ""
    return (
        f"{cited} documents cited, of {report.considered} {where}; "
        f"{report.read} read, {report.reused} of them reused from an earlier run. "
        f"The model was asked for {report.glosses_asked} sentences; "
        f"{report.glosses_kept} were borne out by their passage.{failed}"
    )


def _claim_lines(number: int, claim: Claim) -> Iterator[str]:
    note = claim.note
    also = f" Also: {', '.join(map(_cited, claim.also))}." if claim.also else ""
    yield f"{number}. {_cited(note.document)}: {_escaped(note.statement)}{also}"
    yield ""
    yield f"    > {_escaped(note.quotation)}"
    yield ""
    if note.gloss:
        yield from (f"    In the words of {note.gloss_model}: *{_escaped(note.gloss)}*", "")


def _cited(document: Document) -> str:
    licence = f" (licence: {_escaped(document.licence)})" if document.licence else ""
    return f"**{_escaped(document.label)}**{licence}"


def _licences(report: Report) -> Iterator[str]:
    held: dict[str, list[str]] = defaultdict(list)
    for claim in report.claims:
        for document in (claim.note.document, *claim.also):
            held[document.licence].append(document.name)
    for licence, names in sorted(held.items(), key=lambda item: (-len(item[1]), item[0])):
        yield f"{_escaped(licence)}: {', '.join(sorted(names, key=str.casefold))}"


def _grouped(skips: Iterable[Skipped]) -> Iterator[str]:
    by_reason: dict[str, list[str]] = defaultdict(list)
    for skip in skips:
        by_reason[skip.reason].append(skip.name)
    for reason, names in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield f"{len(names)}: {_escaped(reason)} ({', '.join(names[:_NAMED])}{more})"


def _skips(report: Report) -> Iterator[str]:
    yield from _grouped(report.skipped)
    if report.skipped_more:
        yield f"{report.skipped_more} more"


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    items = [f"- {line}" for line in lines]
    if items:
        yield from (f"## {title}", "", *items, "")


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)
