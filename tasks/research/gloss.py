"""The chat model's sentence about a passage, and the doubts that keep it out of the report."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

from tasks.research.likeness import coverage, pairs_kept, stem_list
from tasks.research.models import Document
from tasks.research.passages import occurs, sentences

MAX_TOKENS = 48
EMPTY = "empty or cut off"
_SHORTEST = 4
_SUPPORTED = 0.85  # of the gloss's meaning words must stand in the passage
_NEAR = 0.6  # cosine of gloss and passage; MiniLM gives 0.6 and more to a fair paraphrase
_IN_ORDER = 0.8  # of its neighbouring meaning words must be neighbours in the passage too
_REPEATED = 3  # times a meaning word stands in a sentence that goes round in circles
_NUMBER = re.compile(r"\d+(?:\.\d+)*")
_NEGATION = re.compile(r"\b(?:no|not|never|without|cannot)\b|n't\b", re.IGNORECASE)
_LEAD = re.compile(r"^(?:[AQ]:|Answer:|Sure[,!:]?|Here is[^:]*:)\s*", re.IGNORECASE)


def prompt(document: Document, passage: str) -> str:
    """Ask for one sentence about the passage alone; short, as a small model on a CPU needs it."""
    about = f" what {document.name} is for" if document.kind == "package" else ""
    return f"Rewrite in one short sentence{about}:\n{passage}"


def tidied(answer: str) -> str:
    """Return the first whole sentence of a model's answer; empty where it was cut off."""
    text = _LEAD.sub("", " ".join(answer.split())).strip("\"' ")
    first = next(iter(sentences(text)), "")
    return first if first.endswith((".", "!")) else ""


def doubt(gloss: str, *, name: str, passage: str, shown: tuple[str, ...], near: float) -> str:
    """Return why `gloss` must not be shown; empty where the passage supports it.

    `shown` are the sentences that the report prints anyway; `near` is the likeness of gloss and
    passage by embeddings, 0 to 1.
    """
    words = stem_list(gloss)
    if len(gloss.split()) < _SHORTEST or not words:
        return EMPTY
    source = f"{name} {passage}"
    nearest = max(sentences(passage), key=lambda sentence: coverage(gloss, sentence))
    doubts = {
        "repeats itself": max(Counter(words).values()) >= _REPEATED
        or any(one == other for one, other in pairwise(words)),
        "only copies what is quoted": any(occurs(gloss.rstrip("."), text) for text in shown),
        "has a number that the passage has not": not _numbers(gloss) <= _numbers(source),
        "denies, or leaves out a denial": _denies(gloss) != _denies(nearest),
        "says what the passage does not": coverage(gloss, source) < _SUPPORTED
        or pairs_kept(gloss, source) < _IN_ORDER,
        "is far from the passage": near < _NEAR,
    }
    return next((reason for reason, holds in doubts.items() if holds), "")


def _numbers(text: str) -> set[str]:
    return set(_NUMBER.findall(text))


def _denies(text: str) -> bool:
    return bool(_NEGATION.search(text))
