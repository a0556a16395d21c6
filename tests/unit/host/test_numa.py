"""Memory policies, set and read back, and the share of memory on other nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentq.errors import PlatformUnsupported, SettingsError
from agentq.host.numa import Pages, pages, policy, set_policy, starting_on
from tests.unit.host.machines import write

_SET = """
import sys
from agentq.host.numa import policy, set_policy
set_policy(sys.argv[1], [int(node) for node in sys.argv[2:]])
print(policy())
"""

_MAPS = """\
55d0c0a00000 default file=/usr/bin/python3.11 mapped=400 N0=400 kernelpagesize_kB=4
55d0c1a00000 bind:1 heap anon=60 dirty=60 N0=10 N1=50 kernelpagesize_kB=4
7f0000000000 bind:1 anon=1 dirty=1 N1=1 kernelpagesize_kB=2048
7f1000000000 bind:1
7ffd00000000 bind:1 stack anon=3 dirty=3 N1=3 kernelpagesize_kB=4
"""


def has_nodes() -> bool:
    try:
        policy()
    except PlatformUnsupported:
        return False
    return True


@pytest.mark.skipif(not has_nodes(), reason="no memory policies on this kernel")
@pytest.mark.parametrize(
    ("arguments", "holds"),
    [
        (("bind", "0"), "('bind', (0,))"),
        (("preferred", "0"), "('preferred', (0,))"),
        (("interleave", "0"), "('interleave', (0,))"),
        (("local",), "('local', ())"),
        (("default",), "('default', ())"),
    ],
)
def test_the_kernel_has_the_policy_that_was_set(arguments: tuple[str, ...], holds: str) -> None:
    command = [sys.executable, "-c", _SET, *arguments]
    assert subprocess.check_output(command, text=True).strip() == holds


@pytest.mark.skipif(not has_nodes(), reason="no memory policies on this kernel")
def test_what_is_started_on_a_node_has_its_policy_and_the_starter_keeps_its_own() -> None:
    before = policy()
    ask = [sys.executable, "-c", "from agentq.host.numa import policy; print(policy())"]
    with starting_on(0):
        assert subprocess.check_output(ask, text=True).strip() == "('bind', (0,))"
    assert policy() == before
    with starting_on(None):
        assert policy() == before


@pytest.mark.skipif(not has_nodes(), reason="no memory policies on this kernel")
def test_a_node_that_is_not_there_is_refused_by_its_number() -> None:
    with pytest.raises(SettingsError, match="memory policy bind on node 999: Invalid argument"):
        set_policy("bind", [999])


def test_pages_are_counted_by_their_size_and_files_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, "proc/42/numa_maps", _MAPS.rstrip())
    found = pages(42, root=tmp_path)
    assert found.by_node == {0: 10 * 4096, 1: 53 * 4096 + 2 * 2**20}


def test_over_a_tenth_of_remote_memory_is_a_finding() -> None:
    assert Pages(by_node={0: 10, 1: 90}).finding(1, process="shared-0", pid=7) is None
    assert Pages(by_node={}).finding(1, process="shared-0", pid=7) is None
    finding = Pages(by_node={0: 11, 1: 89}).finding(1, process="shared-0", pid=7)
    assert finding is not None
    assert finding.seen.startswith("11% of the memory of shared-0 (process 7) is not on node 1")


def test_where_the_kernel_has_no_nodes_or_no_such_process_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(ProcessLookupError):
        pages(42, root=tmp_path)
    write(tmp_path, "proc/42/status", "")
    with pytest.raises(PlatformUnsupported, match="CONFIG_NUMA"):
        pages(42, root=tmp_path)


@pytest.mark.skipif(not Path("/proc/self/numa_maps").exists(), reason="no memory nodes here")
def test_this_process_has_its_memory_somewhere() -> None:
    assert sum(pages(os.getpid()).by_node.values()) > 2**20
