"""The work on one document: find the passages that bear on the question, claim, quote, gloss."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import agentq
from agentq import Context
from tasks.research import gloss
from tasks.research.documents import reread
from tasks.research.embedding import embedded, failure
from tasks.research.likeness import Likeness, coverage
from tasks.research.memory import recalled
from tasks.research.models import Document, Note, Reading, Task
from tasks.research.passages import is_prose, opening, passages, sentences

_KEPT_PASSAGES = 5
_FIRST_PASSAGES = 4  # how a document opens is always looked at
_FLOOR = 0.2  # below this MiniLM finds no bearing on the question at all
# How near the opening must be, as a share of the nearest sentence, to be the claim: a package's
# summary says what it is for, a file may open with anything.
_OPENING_WORTH = {"package": 0.3, "file": 0.8}
_QUOTABLE = 0.6  # share of the claim's score that another sentence needs to bear it out
_NAMED = 0.2  # a sentence that names its document is more likely to be about it


async def read_document(ctx: Context, task: Task) -> Reading:
    """Return the remembered note of an unchanged document, else read it and write one.

    Raises:
        DocumentChangedError: the document is not what it was when the run was planned.

    """
    with ctx.spent("state"):
        note = await asyncio.to_thread(recalled, task.scope, task.document, asked=task.ask)
    reused = note is not None
    return Reading(
        scope=task.scope,
        note=note or await _written(ctx, task),
        reused=reused,
        overview=task.overview,
    )


async def _written(ctx: Context, task: Task) -> Note:
    search, document = task.scope.search, task.document
    with ctx.spent("tools"):
        first, parts = await asyncio.to_thread(_split, task)
    near, missing = await embedded(ctx, [*search, *parts])
    best = nearest(parts, search, near)
    candidates = quotable(best)
    also, lost = await embedded(ctx, [first, *candidates])
    claim, quotation, score = claimed(document, first, candidates, search, near.extended(also))
    note = Note(
        document=document,
        claim=f"{document.name}: {claim}" if claim else "",
        quotation=quotation,
        score=round(score, 3),
        asked=task.ask,
        missing=tuple(dict.fromkeys(missing + lost)),
    )
    if not (task.ask and claim):
        return note
    passage = next((part for part in best if quotation in part), quotation)
    return await _glossed(ctx, note, "\n".join(dict.fromkeys((claim, *quotable([passage])))))


def _split(task: Task) -> tuple[str, list[str]]:
    """Return how the document opens, and its passages worth embedding."""
    scope = task.scope
    text = reread(task.document, scope.docs, scope.limits)
    return opening(text), shortlist(passages(text), scope.search, count=scope.limits.passages)


async def _glossed(ctx: Context, note: Note, passage: str) -> Note:
    """Ask the chat model for a sentence, and keep it where the passage supports it."""
    try:
        reply = await ctx.model("large").chat(
            gloss.prompt(note.document, passage), max_tokens=gloss.MAX_TOKENS, temperature=0
        )
    except agentq.errors.ModelError as error:
        lost = f"gloss: {failure(error)}"
        return note.model_copy(update={"missing": (*note.missing, lost), "unanswered": True})
    said = gloss.tidied(reply.text)
    if not said:
        return note.model_copy(update={"doubt": gloss.EMPTY})
    near, missing = await embedded(ctx, [said, passage])
    doubt = gloss.doubt(
        said,
        name=note.document.name,
        passage=passage,
        shown=(note.statement, note.quotation),
        near=near.between(said, passage),
    )
    said_or_why = {"doubt": doubt} if doubt else {"gloss": said, "gloss_model": reply.model}
    missing = tuple(dict.fromkeys(note.missing + missing))
    return note.model_copy(update={"missing": missing, **said_or_why})


def shortlist(parts: Sequence[str], search: Sequence[str], *, count: int) -> list[str]:
    """Return at most `count` passages worth embedding: the first, then by shared words."""
    by_words = Likeness()
    order = sorted(
        range(len(parts)),
        key=lambda at: (at >= _FIRST_PASSAGES, -by_words.to_any(search, parts[at]), at),
    )
    return [parts[at] for at in sorted(order[:count])]


def nearest(parts: Sequence[str], search: Sequence[str], near: Likeness) -> list[str]:
    """Return the passages that bear most on the search, best first."""
    return sorted(parts, key=lambda part: -near.to_any(search, part))[:_KEPT_PASSAGES]


def quotable(parts: Sequence[str]) -> list[str]:
    """Return the sentences of the passages that can stand as a quotation."""
    found = (sentence for part in parts for sentence in sentences(part) if is_prose(sentence))
    return list(dict.fromkeys(found))


def claimed(
    document: Document,
    first: str,
    candidates: Sequence[str],
    search: Sequence[str],
    near: Likeness,
) -> tuple[str, str, float]:
    """Return a claim, the sentence that bears it out, and their score (0 to 1).

    All three are empty where nothing comes near the search. The quotation is another sentence of
    the document where one bears on both search and claim; otherwise it is the claim's own.
    """
    scores = {text: near.to_any(search, text) for text in (first, *candidates)}
    claim = max(scores, key=lambda text: scores[text])
    best = scores[claim]
    if best < _FLOOR:
        return "", "", 0.0
    if scores[first] >= _OPENING_WORTH[document.kind] * best:
        claim = first
    bearing = {
        text: scores[text]
        + near.between(claim, text)
        + _NAMED * (coverage(document.name, text) == 1)
        for text in candidates
        if text != claim and scores[text] >= _QUOTABLE * scores[claim]
    }
    quotation = max(bearing, key=lambda text: bearing[text], default=claim)
    return claim, quotation, (best + scores[quotation]) / 2
