"""Interrupts on workers' cores, on a written machine of four cores."""

from __future__ import annotations

from agentq.ops.doctor.finding import Finding
from agentq.ops.doctor.interrupts import interrupts
from tests.unit.ops.doctor.kernel import Kernel

ALL = (0, 1, 2, 3)


def found(kernel: Kernel, worker_cores: tuple[int, ...] = (2, 3)) -> list[Finding]:
    return list(interrupts(kernel.roots, worker_cores=worker_cores, allowed=ALL))


def test_interrupts_that_keep_to_other_cores_are_well(kernel: Kernel) -> None:
    assert found(kernel) == []


def test_one_that_may_come_on_a_workers_core_is_found(kernel: Kernel) -> None:
    kernel.write("proc/irq/24/smp_affinity_list", "0-3\n")
    [one] = found(kernel)
    assert one.subject == "interrupts.affinity"
    assert one.seen == "1 interrupts may come on the workers' cores 2-3: 24"  # 25 never came
    assert one.remedy == "for i in 24; do echo 0-1 > /proc/irq/$i/smp_affinity_list; done"


def test_those_that_can_not_be_moved_or_have_no_handler_are_not_found(kernel: Kernel) -> None:
    lines = " 0: 87 0 0 0 IO-APIC 2-edge timer\n 36: 9 0 0 0 PCI-MSIX 1-edge nvme0q1\n"
    kernel.write("proc/interrupts", f"CPU0 CPU1 CPU2 CPU3\n{lines}")
    for number in (0, 2, 36):  # 2, the cascade, has no line
        kernel.write(f"proc/irq/{number}/smp_affinity_list", "0-3\n")
    assert found(kernel)[0].remedy.startswith("for i in 36; ")
    (kernel.roots.proc / "irq/36/smp_affinity_list").chmod(0o444)
    assert found(kernel) == []


def test_without_a_spare_core_there_is_nowhere_to_move_them(kernel: Kernel) -> None:
    kernel.write("proc/irq/24/smp_affinity_list", "0-3\n")
    assert found(kernel, ALL) == []


def test_without_a_worker_it_is_said_that_nothing_was_looked_at(kernel: Kernel) -> None:
    [one] = found(kernel, ())
    assert (one.severity, one.seen) == ("note", "not checked: no worker runs on this machine")


def test_irqbalance_is_found_unless_the_workers_cores_are_banned(kernel: Kernel) -> None:
    kernel.write("proc/77/comm", "irqbalance\n")
    kernel.write("proc/77/environ", "A=1\0IRQBALANCE_BANNED_CPULIST=2\0")
    [one] = found(kernel)
    assert (one.severity, one.subject) == ("warning", "interrupts.irqbalance")
    assert "IRQBALANCE_BANNED_CPULIST=2-3" in one.remedy
    kernel.write("proc/77/environ", "IRQBALANCE_BANNED_CPULIST=1-3\0")
    assert found(kernel) == []


def test_an_irqbalance_that_may_not_be_asked_is_said(kernel: Kernel) -> None:
    kernel.write("proc/77/comm", "irqbalance\n")
    [one] = found(kernel)
    assert (one.severity, one.seen[:12]) == ("note", "not checked:")


def test_a_kernel_that_shows_no_interrupts_is_said(kernel: Kernel) -> None:
    for number in (24, 25):
        kernel.drop(f"proc/irq/{number}/smp_affinity_list")
    assert [one.severity for one in found(kernel)] == ["note"]
