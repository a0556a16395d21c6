"""Research over real documents: the worked example, and what `agentq demo` runs."""

from tasks.research.models import DEFAULT_QUESTION, Brief, Limits, Report
from tasks.research.report import report_markdown
from tasks.research.steps import aq, flow

__all__ = ["DEFAULT_QUESTION", "Brief", "Limits", "Report", "aq", "flow", "report_markdown"]
