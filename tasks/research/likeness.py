"""How near two texts are: by their embeddings, or by shared words where there are none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import sqrt

_WORD = re.compile(r"[^\W_]+(?:[./-][^\W_]+)*")
_STOP = frozenset(
    _WORD.findall("""
    a about all also an and any are as at be been being but by can could do does each for from had
    has have how if in into is it its like may more most no not of on one only or other our own so
    some such than that the their them then there these they this those through to under up use
    used uses using via was we were what when which while who why will with you your
    """)
)
_SUFFIXES = ("ations", "ation", "ings", "ing", "ers", "ies", "er", "ed", "es", "ly", "s", "e", "y")
_SHORTEST_STEM = 4
_WINDOW = 3


def stem_list(text: str) -> list[str]:
    """Return the stems of the words of `text` that carry meaning, in order."""
    return [_stem(word) for word in _WORD.findall(text.casefold()) if word not in _STOP]


def stems(text: str) -> frozenset[str]:
    """Return the stems of the words of `text` that carry meaning."""
    return frozenset(stem_list(text))


def _stem(word: str) -> str:
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= _SHORTEST_STEM:
            return word[: -len(suffix)]
    return word


def coverage(part: str, whole: str) -> float:
    """Return the share (0 to 1) of the meaning words of `part` that `whole` has too."""
    wanted = stems(part)
    return len(wanted & stems(whole)) / len(wanted) if wanted else 0.0


def shared(one: str, other: str) -> float:
    """Return how much two texts share of all their meaning words (Jaccard, 0 to 1)."""
    left, right = stems(one), stems(other)
    return len(left & right) / len(left | right) if left | right else 0.0


def pairs_kept(part: str, whole: str) -> float:
    """Return the share (0 to 1) of neighbouring meaning words of `part` that are near in `whole`.

    Near is at most `_WINDOW` meaning words apart, in either order: a sentence made of a text's
    words in new company says something else.
    """
    spelled = stem_list(whole)
    near = {
        frozenset((word, other))
        for place, word in enumerate(spelled)
        for other in spelled[place + 1 : place + 1 + _WINDOW]
    }
    wanted = [frozenset(pair) for pair in pairwise(stem_list(part))]
    return sum(pair in near for pair in wanted) / len(wanted) if wanted else 1.0


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the cosine of two vectors of the same length (-1 to 1); 0 where one has no length."""
    length = sqrt(sum(x * x for x in one)) * sqrt(sum(x * x for x in other))
    return sum(x * y for x, y in zip(one, other, strict=True)) / length if length else 0.0


@dataclass(frozen=True)
class Likeness:
    """Compares texts by the vectors it holds; a text without one is compared by its words."""

    vectors: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def between(self, one: str, other: str) -> float:
        """Return how near two texts are, 0 (not at all) to 1 (the same)."""
        left, right = self.vectors.get(one), self.vectors.get(other)
        if left is None or right is None:
            return coverage(one, other)
        return max(0.0, cosine(left, right))

    def to_any(self, phrases: Iterable[str], text: str) -> float:
        """Return how near `text` is to the phrase that it is nearest to."""
        return max((self.between(phrase, text) for phrase in phrases), default=0.0)

    def extended(self, other: Likeness) -> Likeness:
        """Return one that holds the vectors of both."""
        return Likeness({**self.vectors, **other.vectors})
