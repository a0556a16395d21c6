"""Which machines are not imitated."""

from __future__ import annotations

import pytest

from agentq.cli.options import size
from agentq.errors import SettingsError
from agentq.host.machine import read_machine
from agentq.host.topology import allowed_cores
from agentq.ops.imitation import AS_IT_IS, SMALLEST_MEMORY, Imitation, Small
from agentq.settings import load_settings


def imitated(small: Small, **worker: str) -> Imitation:
    settings = load_settings(overrides={f"worker.{key}": value for key, value in worker.items()})
    return Imitation(small=small, settings=settings)


@pytest.mark.parametrize("cpus", [0.0, 0.05, -1.0, len(allowed_cores()) + 0.5, float("nan")])
def test_a_share_that_this_machine_can_not_hold_is_refused(cpus: float) -> None:
    with pytest.raises(SettingsError, match=r"--cpus must be from 0\.1 to"):
        imitated(Small(cpus=cpus))


def test_leases_that_standstills_could_break_are_refused() -> None:
    imitated(Small(cpus=0.5), lease="3s", hang_timeout="1s")
    with pytest.raises(SettingsError, match=r"too long for worker\.lease: set it to 3s or more"):
        imitated(Small(cpus=0.5), lease="2s")
    with pytest.raises(SettingsError, match=r"worker\.hang_timeout: set it to 1s or more"):
        imitated(Small(cpus=0.5), hang_timeout="500ms")


def test_memory_that_holds_no_worker_or_that_this_machine_has_not_is_refused() -> None:
    imitated(Small(memory=SMALLEST_MEMORY))
    for memory in (0, SMALLEST_MEMORY - 1, read_machine().memory_bytes + 1):
        with pytest.raises(SettingsError, match="--memory must be from 128M, which"):
            imitated(Small(memory=memory))


def test_workers_are_given_what_the_plan_of_that_machine_gives_them() -> None:
    assert imitated(AS_IT_IS).variables() == {}
    there = load_settings(environ=imitated(Small(memory=2**29)).variables())
    assert {pool.memory for pool in there.pools.values()} == {
        192 * 2**20
    }  # of 512, for each of two


@pytest.mark.parametrize(("text", "wanted"), [("256M", 2**28), ("2g", 2**31), ("1048576", 2**20)])
def test_sizes_are_written_as_people_do(text: str, wanted: int) -> None:
    assert size(text, "--memory") == wanted


@pytest.mark.parametrize("text", ["", "M", "1.5G", "12X", "-1M", "256MB"])
def test_what_is_no_size_is_wrong_usage(text: str) -> None:
    with pytest.raises(Exception, match="is no size: write 256M or 2G"):
        size(text, "--memory")


def test_a_size_that_was_meant_in_megabytes_is_said_so() -> None:
    with pytest.raises(Exception, match="512 is bytes: write 512M"):
        size("512", "--memory")
