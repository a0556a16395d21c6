"""Runs Celery's own integration tests for canvas on our transport, with stock prefork.

    python -m tests.contract.celery_canvas [pytest options]

The tests come with Celery's source distribution, fetched by pip into a cache below the system's
temporary folder. Failures are compared with `celery_canvas_expected.toml`, which explains each;
exit status 1 when one is missing there, or listed and passing.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from xml.etree import ElementTree as ET

from agentq.store.server_program import find_program
from tests.support.waiting import wait_until

VERSION = "5.7.0"
ROOT = Path(__file__).parents[2]
EXPECTED = Path(__file__).with_name("celery_canvas_expected.toml")


def tests_folder() -> Path:
    """Return the folder with Celery's `t/`, fetched once."""
    cache = Path(tempfile.gettempdir()) / f"agentq-celery-{VERSION}-tests"
    if not (cache / "t").exists():
        cache.mkdir(exist_ok=True)
        subprocess.run(
            [
                sys.executable, "-m", "pip", "download", "--quiet", "--no-binary", ":all:",
                "--no-deps", "--dest", str(cache), f"celery=={VERSION}",
            ],
            check=True,
        )  # fmt: skip
        with tarfile.open(cache / f"celery-{VERSION}.tar.gz") as archive:
            # Only the tests: the sources beside them would hide the installed Celery.
            head = f"celery-{VERSION}/"
            wanted = [m for m in archive.getmembers() if m.name.startswith(f"{head}t/")]
            for member in wanted:
                member.name = member.name.removeprefix(head)
            archive.extractall(cache, members=wanted, filter="data")
    return cache


def free_port() -> int:
    """Return a port that nobody listens on; Celery's tests connect by port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(options: list[str]) -> dict[str, str]:
    """Run the tests; return each one's outcome: passed, failed or skipped."""
    cache, port = tests_folder(), free_port()
    program = find_program(os.environ.get("AGENTQ_TEST_PROGRAM"))
    with tempfile.TemporaryDirectory(prefix="aq-contract-") as folder:
        report = Path(folder) / "report.xml"
        server = subprocess.Popen(
            [
                program.path,
                "--port",
                str(port),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--dir",
                folder,
            ],
            stdout=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: _listens(port), f"server on port {port}")
            (Path(folder) / "pytest.ini").write_text(
                "[pytest]\npython_classes = test_*\n", encoding="utf-8"
            )
            url = f"agentq://127.0.0.1:{port}/0"
            env = {
                **os.environ, "PYTHONPATH": f"{ROOT}:{cache}", "AGENTQ_BROKER__URL": url,
                "TEST_BROKER": url, "TEST_BACKEND": "redis://", "REDIS_HOST": "127.0.0.1",
                "REDIS_PORT": str(port),
            }  # fmt: skip
            command = [
                sys.executable, "-m", "pytest", "-c", f"{folder}/pytest.ini", "--rootdir", str(cache),
                "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-W", "ignore",
                "-p", "celery.contrib.pytest", "-p", "tests.contract.celery_canvas_plugin",
                "--timeout", "300",
                f"--junitxml={report}",
            ]  # fmt: skip
            targets = [] if any("::" in o for o in options) else ["t/integration/test_canvas.py"]
            subprocess.run([*command, *targets, *options], cwd=cache, env=env, check=False)
            return outcomes(report)
        finally:
            server.terminate()
            server.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def outcomes(report: Path) -> dict[str, str]:
    """Return the outcome of each test of a JUnit report."""
    result = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 -- our own pytest wrote it
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        failed = case.find("failure") is not None or case.find("error") is not None
        skipped = case.find("skipped") is not None
        result[name] = "failed" if failed else "skipped" if skipped else "passed"
    return result


def main() -> int:
    """Compare and print; return the exit status."""
    result = run(sys.argv[1:])
    explained = {
        entry["test"]: entry["why"]
        for entry in tomllib.loads(EXPECTED.read_text(encoding="utf-8")).get("failure", [])
    }
    failed = {name for name, outcome in result.items() if outcome == "failed"}
    new = sorted(failed - explained.keys())
    mended = sorted(name for name in explained if result.get(name) == "passed")
    counts = {
        kind: sum(o == kind for o in result.values()) for kind in ("passed", "failed", "skipped")
    }
    print(f"{counts} of which explained: {len(failed & explained.keys())}")
    for name in new:
        print(f"FAILS, not explained: {name}")
    for name in mended:
        print(f"passes, but listed as failing: {name}")
    return 1 if new or mended or not result else 0


if __name__ == "__main__":
    sys.exit(main())
