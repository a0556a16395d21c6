"""The first step's work: list the documents, rank them against the question, choose."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from agentq import Context
from tasks.research.documents import NothingToReadError, listed
from tasks.research.embedding import embedded
from tasks.research.likeness import Likeness, coverage, stems
from tasks.research.memory import memory_folder
from tasks.research.models import (
    DEFAULT_QUESTION,
    Brief,
    Document,
    Limits,
    Overview,
    Plan,
    Scope,
    Skipped,
    Task,
)
from tasks.research.passages import passages

# The default question in the words a README would use: a small embedding model finds statements
# by statements far better than by a question with three parts.
_DEFAULT_SEARCH = (
    "client or server that talks over a network: HTTP, sockets, messaging",
    "client for a database or key-value store server",
)
_OPENING_WORDS = 40  # a document is ranked by short passages; it is read in `execute`
_CLAUSE = re.compile(r"[,;:?]\s*(?:and\s+)?|\s+and\s+(?=(?:what|which|who|how|why|when|where)\b)")
_LICENCE = stems("licence license")
_CLAUSE_STEMS = 2  # "for what" says nothing by itself
_OVERVIEWS = 3  # so many tasks carry the overview: it outlives two that fail, and costs little
_NAMED_SKIPS = 20
_NAME_LENGTH = 120


@dataclass(frozen=True)
class Candidate:
    """A document and the short passages that it is ranked by."""

    document: Document
    openings: tuple[str, ...]


async def make_plan(ctx: Context, brief: Brief) -> Plan:
    """Choose the documents worth reading, best first.

    Raises:
        NothingToReadError: there is no folder, or no document in it that is text.

    """
    search = brief.search or search_phrases(brief.question)
    with ctx.spent("tools"):
        candidates, skipped = await asyncio.to_thread(survey, brief, search)
    if not candidates:
        raise NothingToReadError(nothing_found(brief.docs, skipped))
    await ctx.progress(f"ranking {len(candidates)} documents")
    texts = [text for candidate in candidates for text in candidate.openings]
    near, missing = await embedded(ctx, [*search, *texts])
    chosen = choose(candidates, search, near, brief.limits)
    await ctx.progress(f"{len(chosen)} of {len(candidates)} documents are worth reading")
    scope = Scope(
        question=brief.question,
        search=search,
        docs=brief.docs,
        memory=str(memory_folder(brief.memory)),
        limits=brief.limits,
    )
    overview = Overview(
        considered=len(candidates),
        chosen=tuple(document.label[:_NAME_LENGTH] for document in chosen),
        skipped=tuple(_short(skip) for skip in skipped[:_NAMED_SKIPS]),
        skipped_more=max(0, len(skipped) - _NAMED_SKIPS),
        missing=tuple(f"ranking: {call}" for call in missing),
    )
    with ctx.spent("state"):
        return await asyncio.to_thread(tasks_for, scope, chosen, overview)


def search_phrases(question: str) -> tuple[str, ...]:
    """Return what to rank documents by: the question and those of its parts that say something.

    Parts that ask for a licence are left out: licences are read from metadata.
    """
    if question == DEFAULT_QUESTION:
        return _DEFAULT_SEARCH
    parts = [part.strip() for part in _CLAUSE.split(question)]
    about_licence = [part for part in parts if _LICENCE & stems(part)]
    wanted = [
        part for part in parts if len(stems(part)) >= _CLAUSE_STEMS and part not in about_licence
    ]
    if not about_licence and question.strip("? ") not in wanted:
        wanted.insert(0, question)
    return tuple(wanted[:8]) or (question,)


def survey(brief: Brief, search: tuple[str, ...]) -> tuple[list[Candidate], list[Skipped]]:
    """List the documents; of each, keep the passages that it is ranked by, never its text."""
    candidates: list[Candidate] = []
    skipped: list[Skipped] = []
    for found in listed(brief.docs, brief.limits):
        if isinstance(found, Skipped):
            skipped.append(found)
        else:
            document, text = found
            candidates.append(Candidate(document, openings(text, search)))
    if (over := len(candidates) - brief.limits.ranked) > 0:
        candidates.sort(key=lambda c: -Likeness().to_any(search, " ".join(c.openings)))
        reason = f"shares fewer words with the question than the {brief.limits.ranked} ranked"
        skipped += [Skipped(name=c.document.label, reason=reason) for c in candidates[-over:]]
        del candidates[-over:]
    return candidates, skipped


def openings(text: str, search: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first passage and, where another shares words with the search, the best such."""
    first, *rest = passages(text, max_words=_OPENING_WORDS)
    best = max(rest, key=lambda part: _shared(search, part), default="")
    return (first, best) if _shared(search, best) else (first,)


def _shared(search: tuple[str, ...], text: str) -> float:
    return max(coverage(phrase, text) for phrase in search)


def choose(
    candidates: list[Candidate], search: tuple[str, ...], near: Likeness, limits: Limits
) -> list[Document]:
    """Return the documents near enough to the best one, best first, within the limits."""
    scored = sorted(
        (
            (-max(near.to_any(search, text) for text in candidate.openings), place)
            for place, candidate in enumerate(candidates)
        )
    )
    floor = -scored[0][0] * limits.threshold
    enough = sum(-score >= floor for score, _ in scored)
    count = min(max(enough, limits.chosen_at_least), limits.chosen)
    return [candidates[place].document for _, place in scored[:count]]


def tasks_for(scope: Scope, chosen: list[Document], overview: Overview) -> Plan:
    """Make a task of each document; the best ones go to the chat model.

    A document whose note is remembered keeps its place among them, so that the same documents are
    asked about in every run.
    """
    return Plan(
        tasks=[
            Task(
                scope=scope,
                document=document,
                ask=place < scope.limits.glosses,
                overview=overview if place < _OVERVIEWS else None,
            )
            for place, document in enumerate(chosen)
        ]
    )


def nothing_found(docs: str | None, skipped: list[Skipped]) -> str:
    """Say why there is nothing to read, and what to do."""
    where = f"the folder {docs}" if docs else "this environment"
    if not skipped:
        return f"{where} holds no documents; pass a folder with text files (.md, .rst, .txt, ...)"
    first = skipped[0]
    return (
        f"none of the {len(skipped)} documents in {where} can be read; "
        f"the first, {first.name}: {first.reason}"
    )


def _short(skip: Skipped) -> Skipped:
    return Skipped(name=skip.name[:_NAME_LENGTH], reason=skip.reason[:_NAME_LENGTH])
