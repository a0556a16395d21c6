"""How the checks of `agentq doctor` word a finding: a line for each severity.

The subject of each is ``part.check``, the same in every release.
"""

from __future__ import annotations

from dataclasses import replace

from agentq.host.finding import Finding

__all__ = ["Finding", "error", "note", "of_machine", "unchecked", "warning"]


def error(subject: str, seen: str, *, why: str, remedy: str) -> Finding:
    """Return an error."""
    return Finding(severity="error", subject=subject, seen=seen, why=why, remedy=remedy)


def warning(subject: str, seen: str, *, why: str, remedy: str) -> Finding:
    """Return a warning."""
    return Finding(severity="warning", subject=subject, seen=seen, why=why, remedy=remedy)


def note(subject: str, seen: str, *, why: str, remedy: str) -> Finding:
    """Return a note."""
    return Finding(severity="note", subject=subject, seen=seen, why=why, remedy=remedy)


def unchecked(subject: str, because: object, *, remedy: str) -> Finding:
    """Return what stands for a check that could not be made: silence would look like health."""
    return note(subject, f"not checked: {because}", why="nothing is known of it", remedy=remedy)


def of_machine(finding: Finding) -> Finding:
    """Return what the plan or the load of cores found under a subject of ours."""
    return replace(finding, subject=f"machine.{finding.subject.replace(' ', '_')}")
