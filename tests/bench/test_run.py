"""A benchmark runs to its end at a small size, leaves nothing behind and says why it failed."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentq.errors import BenchFailed, ServerNotFound
from agentq.ops.bench import Test, run_bench
from agentq.ops.bench.arena import Arena
from agentq.ops.bench.ledger import PATH_VARIABLE
from agentq.ops.bench.systems import SYSTEMS, System, system
from agentq.ops.bench.trials import run_test
from tests.support.waiting import wait_until

SCALE = 0.01
MEASURES = {
    Test.ENQUEUE: {"one by one: producer CPU", "one by one", "in bulk"},
    Test.DRAIN: {"worker + Redis CPU", "rate", "Redis round trips", "peak RSS"},
    Test.LATENCY: {"round trip p50", "round trip p99", "pick-up p50", "pick-up p99"},
    Test.SLEEP: {"50 sleeps of 1 s", "50 sleeps: peak RSS", "50 sleeps: PSS"},
    Test.FANIN: {"fan-in of 10"},
    Test.PIPELINE: {"one pipeline alone", "2 pipelines", "worker + Redis CPU"},
}


@pytest.fixture(autouse=True)
def scratch(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have the benchmark's folder in one of the test's own; short, for its socket's path."""
    folder = tmp_path_factory.mktemp("b")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr("agentq.ops.bench.arena._SHARED_MEMORY", folder)
    return folder


class Broken(System):
    """A system whose worker ends at once."""

    def worker(self, test: Test) -> list[str]:
        return [sys.executable, "-c", f"raise SystemExit('no {test} today')"]


def leftovers(scratch: Path) -> list[str]:
    """Return the files in *scratch* and the processes that work there: all of them do."""
    processes = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            folder = str((process / "cwd").readlink())
            if folder.startswith(str(scratch)):
                processes.append(f"{process} in {folder}")
    return [*map(str, scratch.iterdir()), *processes]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("test", list(Test))
def test_a_test_gives_its_figures_and_leaves_nothing_behind(
    test: Test, name: str, scratch: Path
) -> None:
    if name == "agentq" and importlib.util.find_spec("agentq.__main__") is None:
        pytest.skip("agentq has no worker yet")
    # A drain is sampled while it lasts, and agentq is through a few hundred steps in no time.
    scale = 0.1 if (test, name) == (Test.DRAIN, "agentq") else SCALE
    rows = run_bench([test], systems=[name], scale=scale)
    assert [row.note for row in rows if row.value is None] == []
    assert {row.measure for row in rows} >= MEASURES[test]
    assert {(row.test, row.system) for row in rows} == {(test, name)}
    assert leftovers(scratch) == []


def test_a_worker_that_ends_is_reported_with_its_log(scratch: Path) -> None:
    broken = Broken("celery", "Broken", system("celery", scale=SCALE).sizes)
    with (
        pytest.raises(BenchFailed, match=r"ended with status 1\nworker log:\n  no drain today"),
        Arena(system=broken, test=Test.DRAIN) as arena,
    ):
        run_test(arena)
    assert leftovers(scratch) == []


def test_a_benchmark_told_to_terminate_ends_all_it_started(scratch: Path) -> None:
    code = "from agentq.ops.bench import run_bench; run_bench(['sleep'], systems=['celery'])"
    environment = {**os.environ, "TMPDIR": str(scratch)}
    bench = subprocess.Popen([sys.executable, "-c", code], env=environment)
    try:
        while not any(scratch.glob("aqb-*/worker-*.log")):
            assert bench.poll() is None
        bench.terminate()
        assert bench.wait(20) == 128 + signal.SIGTERM
    finally:
        bench.kill()
    wait_until(lambda: not leftovers(scratch), lambda: f"nothing is left of {leftovers(scratch)}")


_TOLD_BEFORE_IT_IS_KNOWN = """
import signal, subprocess

class Popen(subprocess.Popen):
    def __init__(self, command, **options):
        super().__init__(command, **options)
        if "worker" in command:
            signal.raise_signal(signal.SIGTERM)

subprocess.Popen = Popen
from agentq.ops.bench import run_bench
run_bench(["sleep"], systems=["celery"])
"""


def test_a_worker_is_ended_though_the_signal_came_before_it_was_known(scratch: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(scratch)}
    done = subprocess.run(
        [sys.executable, "-c", _TOLD_BEFORE_IT_IS_KNOWN], env=environment, check=False, timeout=25
    )
    assert done.returncode == 128 + signal.SIGTERM
    wait_until(lambda: not leftovers(scratch), lambda: f"nothing is left of {leftovers(scratch)}")


def test_plain_celery_is_measured_with_nothing_of_agentqs_broker_in_memory() -> None:
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "import agentq.ops.bench.celery_app, sys; print(*sorted(sys.modules))",
        ],
        env={**os.environ, PATH_VARIABLE: "/none", "BENCH_AGENTQ_CELERY_URL": "redis://none"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    ours = {module.split(".")[1] for module in found if module.startswith("agentq.")}
    assert not ours & {"worker", "flows", "store", "runs", "timing"}
    # kombu asks every installed package for its serializers and is told of our URLs; no more.
    assert {module for module in found if module.startswith("agentq.broker.")} <= {
        "agentq.broker.register",
        "agentq.broker.serializer",
    }


def test_unknown_names_and_sizes_are_refused_before_anything_runs() -> None:
    with pytest.raises(BenchFailed, match="unknown test 'drian': choose from enqueue, drain"):
        run_bench(["drian"])
    with pytest.raises(BenchFailed, match="or, by itself, one of functions, herd, delayed"):
        run_bench(["pickup"])
    with pytest.raises(BenchFailed, match="unknown system 'rq': choose from celery, agentq"):
        run_bench(["drain"], systems=["rq"])
    with pytest.raises(BenchFailed, match="scale is -1"):
        run_bench(["drain"], scale=-1)
    with pytest.raises(ServerNotFound):
        run_bench(["drain"], systems=["celery"], server=Path("/no/such/server"))
