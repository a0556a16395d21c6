"""Payloads are bounded, checked and awaited within a limit, whatever the store does."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from agentq.blobs import Blobs, BlobStore
from agentq.blobs.directory import Directory
from agentq.errors import BlobAltered, BlobMissing, BlobsUnavailable, PayloadTooLarge

LIMIT = timedelta(seconds=10)


class Memory:
    """A store that can be slow; counts who is in it at a time."""

    place = "memory"

    def __init__(self, *, pause_s: float = 0.0) -> None:
        self.kept: dict[str, bytes] = {}
        self.pause_s = pause_s
        self.most = 0
        self._inside = 0
        self._lock = threading.Lock()
        self.free = threading.Event()

    def _visit(self) -> None:
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)
        self.free.wait(self.pause_s)
        with self._lock:
            self._inside -= 1

    def put(self, name: str, data: bytes) -> None:
        self._visit()
        self.kept[name] = data

    def get(self, name: str) -> bytes:
        self._visit()
        try:
            return self.kept[name]
        except KeyError:
            raise FileNotFoundError(name) from None

    def folders(self, cell: str, *, before: str) -> Iterator[str]:
        raise NotImplementedError

    def drop(self, folder: str) -> None:
        raise NotImplementedError


class CellOfTest:
    """A cell; `begun_` is what its broker keeps."""

    begun_ = False

    def id(self) -> str:
        return "cell"

    def begun(self) -> bool:
        return self.begun_

    def begin(self) -> None:
        self.begun_ = True


def blobs(store: BlobStore | None, *, max_size: int = 1000, timeout: timedelta = LIMIT) -> Blobs:
    return Blobs(
        store=store, cell=CellOfTest(), max_payload=100, max_size=max_size, timeout=timeout
    )


def stored(found: Blobs, data: bytes) -> str:
    reference = found.refer("run", data, what="it")
    found.put({reference: data})
    return reference


def test_what_was_put_is_got_blocking_or_awaited() -> None:
    found = blobs(Memory())
    reference = stored(found, b"data")
    assert found.get(reference) == b"data"
    assert asyncio.run(found.aget(reference)) == b"data"


def test_without_a_store_it_is_refused_and_the_setting_named() -> None:
    text = r"^it: 101 bytes as JSON; broker.max_payload is 100: set blobs.directory to a folder"
    with pytest.raises(PayloadTooLarge, match=text):
        blobs(None).refer("run", b"x" * 101, what="it")
    with pytest.raises(BlobsUnavailable, match=r"blobs.store is none here"):
        blobs(None).get(blobs(Memory()).refer("run", b"x", what="it"))


def test_beyond_the_largest_size_it_is_refused() -> None:
    with pytest.raises(PayloadTooLarge, match=r"it: 1001 bytes as JSON; blobs.max_size is 1000"):
        blobs(Memory()).refer("run", b"x" * 1001, what="it")
    reference = stored(blobs(Memory(), max_size=5000), b"x" * 1001)
    with pytest.raises(BlobMissing, match=r"larger than blobs.max_size"):
        blobs(Memory()).get(reference)


@pytest.mark.parametrize("text", ["", "../../etc/passwd", "20261130/run/abc-1"])
def test_what_is_no_reference_is_missing(text: str) -> None:
    with pytest.raises(BlobMissing, match="is no reference"):
        blobs(Memory()).get(text)


def test_a_missing_blob_names_reference_and_setting(tmp_path: Path) -> None:
    found = blobs(Directory(tmp_path))
    reference = stored(found, b"data")
    (tmp_path / "cell" / reference).unlink()
    with pytest.raises(BlobMissing) as missing:
        found.get(reference)
    assert str(missing.value) == f"blob {reference} is not in {tmp_path} (blobs.directory)"


@pytest.mark.parametrize("bytes_", [b"date", b"dat", b"data ", b""])
def test_an_altered_blob_is_not_read(tmp_path: Path, bytes_: bytes) -> None:
    found = blobs(Directory(tmp_path))
    reference = stored(found, b"data")
    (tmp_path / "cell" / reference).write_bytes(bytes_)
    with pytest.raises(BlobAltered, match=f"{reference} in .* is not what was stored there"):
        found.get(reference)


def test_a_store_that_can_not_be_written_says_why_and_which_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BlobsUnavailable, match=r"blobs.directory\) can not be written: Not a dir"):
        stored(blobs(Directory(tmp_path / "file")), b"data")


def test_who_waits_for_a_store_that_hangs_waits_for_the_time_limit() -> None:
    store = Memory(pause_s=20)
    found = blobs(store, timeout=timedelta(milliseconds=50))
    began = time.monotonic()
    with pytest.raises(BlobsUnavailable, match="memory did not answer within 50ms"):
        stored(found, b"data")
    with pytest.raises(BlobsUnavailable, match="did not answer"):
        asyncio.run(found.aget(found.refer("run", b"x", what="it")))
    store.free.set()
    assert time.monotonic() - began < 10


def test_many_are_read_a_few_at_a_time_while_the_loop_goes_on() -> None:
    store = Memory()
    found = blobs(store)
    references = [stored(found, str(number).encode()) for number in range(200)]
    store.pause_s, store.most = 0.005, 0

    async def read() -> tuple[list[bytes], int]:
        reading = asyncio.gather(*map(found.aget, references))
        ticks = 0
        while not reading.done():
            ticks += 1
            await asyncio.sleep(0.001)
        return await reading, ticks

    values, ticks = asyncio.run(read())
    assert values == [str(number).encode() for number in range(200)]
    assert store.most == 8
    assert ticks > 10


def test_waiting_for_a_turn_is_not_the_stores_time() -> None:
    found = blobs(Memory(pause_s=0.05), timeout=timedelta(milliseconds=500))
    names = [found.refer("run", str(number).encode(), what="it") for number in range(200)]
    blobs_ = {name: str(number).encode() for number, name in enumerate(names)}
    asyncio.run(found.aput(blobs_))
    assert len(found.store.kept) == 200  # type: ignore[union-attr]
