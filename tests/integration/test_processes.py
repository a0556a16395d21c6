"""The processes for steps of kind "cpu", as one worker has them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

import pytest

from agentq import AgentQ
from agentq.worker.processes import Processes

aq = AgentQ("processes")


@aq.step(kind="cpu")
def pid_after(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


@aq.step(kind="cpu")
def place_of(_: None) -> tuple[int, list[int]]:
    return os.getpid(), sorted(os.sched_getaffinity(0))


def with_some(
    use: Callable[[Processes], Awaitable[None]], *, cores: tuple[int, ...] = (0,), spare: int = 0
) -> None:
    async def main() -> None:
        processes = Processes(cores=[(core,) for core in cores], modules=[__name__], spare=spare)
        try:
            await processes.start()
            async with asyncio.timeout(30):
                await use(processes)
        finally:
            await processes.stop()

    asyncio.run(main())


async def run(processes: Processes, seconds: float, begun: asyncio.Event | None = None) -> int:
    begins = (begun or asyncio.Event()).set
    value: int = await processes.run(pid_after, [seconds], begins=begins)
    return value


@pytest.mark.parametrize("after", [0, 0.02])
def test_the_place_of_a_process_is_kept_when_its_step_is_cancelled_twice(after: float) -> None:
    async def use(processes: Processes) -> None:
        before = await run(processes, 0)
        for _ in range(2):
            begun = asyncio.Event()
            step = asyncio.create_task(run(processes, 60, begun))
            await begun.wait()
            step.cancel()
            await asyncio.sleep(after)
            step.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step
        assert await run(processes, 0) != before

    with_some(use)


def test_a_process_that_died_while_it_was_free_costs_no_step() -> None:
    async def use(processes: Processes) -> None:
        before = await run(processes, 0)
        os.kill(before, 9)
        await asyncio.sleep(0.5)
        assert await run(processes, 0) != before

    with_some(use)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_process_and_the_one_in_its_place_run_on_the_cores_of_their_slot() -> None:
    cores = tuple(sorted(os.sched_getaffinity(0))[:2])

    async def where(processes: Processes) -> dict[int, int]:
        """Return core -> process, of both."""
        both = [processes.run(place_of, [None], begins=lambda: None) for _ in cores]
        return {core: pid for pid, [core] in await asyncio.gather(*both)}

    async def replace(processes: Processes, core: int, pid: int) -> None:
        os.kill(pid, 9)
        await asyncio.sleep(0.5)  # its executor is to know
        while (await where(processes)).get(core, pid) == pid:
            """Ask until another is in its place."""

    async def use(processes: Processes) -> None:
        first, second = cores
        before = await where(processes)
        assert tuple(sorted(before)) == cores
        await replace(processes, second, before[second])
        now = await where(processes)
        processes.move([(second,), (first,)])
        assert await where(processes) == {second: now[first], first: now[second]}
        await replace(processes, second, now[first])

    with_some(use, cores=cores)


def test_a_spare_process_takes_the_place_of_one_that_is_ended() -> None:
    async def use(processes: Processes) -> None:
        first, *others = await asyncio.gather(*(run(processes, 0.02) for _ in range(4)))
        assert set(others) == {first}, "a spare process takes no step beside those that serve"
        [spare] = set(processes.pids) - {first}
        begun = asyncio.Event()
        step = asyncio.create_task(run(processes, 60, begun))
        await begun.wait()
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        assert await run(processes, 0) == spare
        while len(set(processes.pids)) < 2:  # noqa: ASYNC110 -- another one is being started
            await asyncio.sleep(0.02)
        assert first not in processes.pids
        os.kill(spare, 9)
        await asyncio.sleep(0.1)
        assert await run(processes, 0) not in {first, spare}

    with_some(use, spare=1)
