"""`agentq tune`: which settings make the whole chain faster on this machine, if any do.

One parameter at a time is moved away from what is set, down and up, for as long as that helps. Each
value is tried in turn with the one before it, in the same minutes, several times; only what stands
clear of the spread counts. Nothing is adopted: the settings that would be changed are printed.

Kernel settings are tried as root, and put back whatever happens (`sysctls`).

A trial is a server, workers and callers of its own (`trial`) on the built-in `chain`: plan, ten
steps side by side that wait and share batches of a model's calls, review.
"""

from __future__ import annotations

from agentq.ops.tune.climb import Comparison, Tuning
from agentq.ops.tune.machine import tune_machine
from agentq.ops.tune.report import as_json, render

__all__ = ["Comparison", "Tuning", "as_json", "render", "tune_machine"]
