"""The last step's work: put the report together, and keep it and its notes for the next run."""

from __future__ import annotations

import asyncio

from agentq import Context
from tasks.research.memory import remembered, report_paths, report_written
from tasks.research.models import Report, Review
from tasks.research.report import report_markdown, report_of


async def keep(ctx: Context, review: Review) -> Report:
    """Write notes and report; a folder that cannot be written costs that, not the report."""
    report = report_of(review, files=tuple(str(path) for path in report_paths(review.scope)))
    try:
        with ctx.spent("state"):
            await asyncio.to_thread(_write, review, report)
    except OSError as error:
        lost = f"nothing is remembered: {error.filename}: {error.strerror}"
        return report.model_copy(update={"files": (), "missing": (*report.missing, lost)})
    return report


def _write(review: Review, report: Report) -> None:
    remembered(review.scope, review.notes)
    report_written(review.scope, report, report_markdown(report))
