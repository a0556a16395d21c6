"""Interrupts on the cores of workers: each one stops the step that runs there."""

from __future__ import annotations

import stat
from collections.abc import Collection, Iterator

from agentq.host.topology import format_cores, parse_cores
from agentq.ops.doctor.finding import Finding, unchecked, warning
from agentq.ops.doctor.roots import Roots
from agentq.ops.units_here import start

_NAMED = 5


def interrupts(
    roots: Roots, *, worker_cores: Collection[int], allowed: Collection[int]
) -> Iterator[Finding]:
    """Find interrupts that may come on *worker_cores* while another of *allowed* has no worker."""
    if not worker_cores:
        yield unchecked("interrupts.affinity", "no worker runs on this machine", remedy=start())
        return
    spare = sorted(set(allowed) - set(worker_cores))
    if not spare:
        return  # no place would be better
    lists = sorted(
        (path for path in roots.proc.glob("irq/[0-9]*/smp_affinity_list")),
        key=lambda path: int(path.parent.name),
    )
    if not lists:
        yield unchecked(
            "interrupts.affinity",
            "no /proc/irq here",
            remedy="run agentq doctor outside a container",
        )
        return
    used = _used(roots)
    hit = [
        path.parent.name
        for path in lists
        if set(parse_cores(path.read_text(encoding="ascii"))) & set(worker_cores)
        and path.stat().st_mode & stat.S_IWUSR  # else the kernel spreads them itself
        and (used is None or path.parent.name in used)
    ]
    if hit:
        yield warning(
            "interrupts.affinity",
            f"{len(hit)} interrupts may come on the workers' cores {format_cores(worker_cores)}: "
            f"{', '.join(hit[:_NAMED])}{', ...' if len(hit) > _NAMED else ''}",
            why="a network card's or disk's interrupts stop the step that runs on the core they "
            "come on",
            remedy=f"for i in {' '.join(hit)}; do echo {format_cores(spare)} > "
            "/proc/irq/$i/smp_affinity_list; done",
        )
    yield from _balancer(roots, worker_cores)


def _used(roots: Roots) -> set[str] | None:
    """Return the interrupts that ever came and can be moved; None: that is not shown.

    Those without a handler have no line; the timer of the boot has one and stays where it is.
    """
    try:
        head, *lines = (roots.proc / "interrupts").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    cores = len(head.split())
    split = [line.split() for line in lines]
    came = [words for words in split if any(count != "0" for count in words[1 : cores + 1])]
    return {words[0].rstrip(":") for words in came if words[-1] != "timer"}


def _balancer(roots: Roots, worker_cores: Collection[int]) -> Iterator[Finding]:
    line = f"IRQBALANCE_BANNED_CPULIST={format_cores(worker_cores)}"
    remedy = f"add {line} to /etc/default/irqbalance; systemctl restart irqbalance"
    for pid in roots.named("irqbalance"):
        try:
            environ = (roots.proc / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError as error:
            yield unchecked("interrupts.irqbalance", f"irqbalance runs; {error}", remedy=remedy)
            continue
        given = [one for one in environ if one.startswith(b"IRQBALANCE_BANNED_CPULIST=")]
        banned = parse_cores(given[0].partition(b"=")[2].decode()) if given else ()
        if not set(worker_cores) <= set(banned):
            yield warning(
                "interrupts.irqbalance",
                f"irqbalance (process {pid}) may move interrupts to the workers' cores "
                f"{format_cores(worker_cores)}",
                why="it spreads interrupts over all cores every ten seconds, whatever was set "
                "by hand",
                remedy=remedy,
            )
