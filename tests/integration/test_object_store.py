"""The adapter for S3 and its like, against moto's server: a mock of S3's HTTP API.

It shows that the adapter is used rightly and what it makes of errors, nothing of S3 itself. Skipped
where `obstore` (agentq[objects]) and moto are not installed.
"""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("obstore", reason="agentq[objects] is not installed")
pytest.importorskip("moto", reason="moto[s3,server] is not installed")

from agentq.blobs import Blobs, chosen
from agentq.errors import BlobMissing, BlobsUnavailable, SettingsError
from agentq.settings import load_settings
from tests.support.ledger import Ledger
from tests.support.running import running
from tests.support.waiting import wait_until
from tests.unit.blobs.test_payloads import CellOfTest

URL = "s3://bucket/some/prefix"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("moto") / "log"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            yield wait_until(lambda: address(log), lambda: f"moto runs\n{log.read_text()}")
        finally:
            process.kill()


def address(log: Path) -> str:
    found = [word for word in log.read_text().split() if word.startswith("http://127")]
    return found[0] if found else ""


@pytest.fixture
def blobs(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Blobs:
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
    }.items():
        monkeypatch.setenv(name, value)
    request = urllib.request.Request(f"{endpoint}/bucket", method="PUT")  # noqa: S310 -- ours
    with urllib.request.urlopen(request, timeout=10):  # noqa: S310
        return made(URL)


def made(url: str) -> Blobs:
    settings = load_settings(environ={}, overrides={"blobs.store": url})
    return Blobs(
        store=chosen(settings, default=Path), cell=CellOfTest(), max_payload=100,
        max_size=10 << 20, timeout=timedelta(seconds=10),
    )  # fmt: skip


def stored(found: Blobs, run: str, data: bytes) -> str:
    reference = found.refer(run, data, what="it")
    found.put({reference: data})
    return reference


def test_what_is_put_is_got_and_what_is_not_there_is_missing(blobs: Blobs) -> None:
    data = b"x" * (6 << 20)
    assert blobs.get(stored(blobs, "run", data)) == data
    with pytest.raises(BlobMissing, match=r"is not in s3://bucket/some/prefix \(blobs.store\)"):
        blobs.get(blobs.refer("run", b"never put", what="it"))


def test_runs_of_days_before_are_listed_and_dropped_with_all_they_have(blobs: Blobs) -> None:
    assert blobs.store is not None
    for data in (b"1", b"2"):
        stored(blobs, "a", data)
    kept = stored(blobs, "b", b"3")
    day = kept.partition("/")[0]
    assert list(blobs.store.folders("cell", before=day)) == []
    folders = sorted(blobs.store.folders("cell", before="99991231"))
    assert [folder for folder in folders if not folder.endswith("/run")] == [
        f"cell/{day}/a", f"cell/{day}/b",
    ]  # fmt: skip
    blobs.store.drop(f"cell/{day}/a")
    blobs.store.drop(f"cell/{day}/a")
    assert f"cell/{day}/a" not in set(blobs.store.folders("cell", before="99991231"))
    assert blobs.get(kept) == b"3"


def test_a_bucket_that_is_not_there_or_not_the_others_is_no_missing_blob(blobs: Blobs) -> None:
    reference = stored(blobs, "run", b"data")
    nowhere = made("s3://nowhere")
    with pytest.raises(BlobsUnavailable, match=r"s3://nowhere \(blobs.store\) can not be written"):
        nowhere.put({reference: b"data"})
    with pytest.raises(BlobsUnavailable, match=r"s3://nowhere \(blobs.store\) can not be read"):
        nowhere.get(reference)
    with pytest.raises(BlobsUnavailable, match="no blob of this cell was ever here"):
        made("s3://bucket/another").get(reference)


def test_a_server_that_is_down_is_no_missing_blob(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = stored(blobs, "run", b"data")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(BlobsUnavailable, match=r"\(blobs.store\)"):
        made(URL).get(reference)


def test_a_flow_goes_through_it(blobs: Blobs, url: str, ledger: Ledger) -> None:
    assert blobs.store is not None
    text = "x" * 300_000
    with running("tests.support.apps.large", url, ledger, BLOBS__STORE=URL) as found:
        found.worker()
        run = found.app.research.submit(text)
        assert run.result(timeout=20) == [f"{number}{text}"[::-1] for number in range(3)]


def test_a_url_of_no_known_kind_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"blobs\.store"):
        made("nothing://known")
