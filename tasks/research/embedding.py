"""The embedding calls of a step; when they fail the step goes on with words and says so."""

from __future__ import annotations

import agentq
from agentq import Context
from tasks.research.likeness import Likeness


async def embedded(ctx: Context, texts: list[str]) -> tuple[Likeness, tuple[str, ...]]:
    """Embed `texts` in one call; return how they compare and what is missing, if anything.

    Texts of many steps are grouped by the worker's batcher, so a step hands over all it has.
    """
    wanted = list(dict.fromkeys(texts))
    try:
        vectors = await ctx.embed(wanted)
    except agentq.errors.ModelError as error:
        return Likeness(), (f"embeddings: {failure(error)}; compared by words instead",)
    return Likeness(dict(zip(wanted, vectors, strict=True))), ()


def failure(error: agentq.errors.ModelError) -> str:
    """Name the call that failed and how."""
    kind = type(error).__name__
    return f"{error.call} failed ({kind}: {error})" if error.call else f"{kind}: {error}"
