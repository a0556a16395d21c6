"""The default store: whole or not there, as private as its folder, and nothing else removed."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest

from agentq.blobs.directory import Directory
from agentq.blobs.store import NeverHere

NAME = "cell/20261130/run/blob"


def begun(root: Path) -> Directory:
    store = Directory(root)
    store.begin("cell")
    return store


def modes(root: Path) -> set[int]:
    return {path.stat().st_mode & 0o7777 for path in root.rglob("*")}


def test_what_is_put_is_got_and_lies_under_its_name(tmp_path: Path) -> None:
    store = begun(tmp_path / "new" / "root")
    store.put(NAME, b"data")
    assert store.get(NAME) == b"data"
    assert [path.name for path in (tmp_path / "new/root/cell/20261130/run").iterdir()] == ["blob"]


def test_put_again_it_is_the_same_file(tmp_path: Path) -> None:
    store = begun(tmp_path)
    store.put(NAME, b"data")
    before = (tmp_path / NAME).stat()
    store.put(NAME, b"data")
    assert (tmp_path / NAME).stat() == before


def test_one_that_was_cut_is_put_anew(tmp_path: Path) -> None:
    store = begun(tmp_path)
    store.put(NAME, b"data")
    (tmp_path / NAME).write_bytes(b"da")
    store.put(NAME, b"data")
    assert store.get(NAME) == b"data"


def test_a_reader_sees_all_of_it_or_nothing(tmp_path: Path) -> None:
    store, data, seen = begun(tmp_path), b"x" * (8 << 20), set[int]()
    store.put("cell/20261130/run/other", b"")
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                seen.add(len(store.get(NAME)))
            except FileNotFoundError:
                seen.add(0)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(20):
        store.put(NAME, data)
        (tmp_path / NAME).unlink()
    done.set()
    reader.join()
    assert seen <= {0, len(data)}


def test_a_folder_of_its_own_making_is_for_its_user_alone(tmp_path: Path) -> None:
    begun(tmp_path / "root").put(NAME, b"data")
    assert (tmp_path / "root").stat().st_mode & 0o7777 == 0o700
    assert modes(tmp_path / "root") == {0o700, 0o600}


def test_in_a_folder_that_a_group_shares_the_group_reads_and_writes(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root").chmod(0o2775)
    begun(tmp_path / "root").put(NAME, b"data")
    assert modes(tmp_path / "root") == {0o2770, 0o660}


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    (tmp_path / "cell/20261130/run").mkdir(parents=True)
    with pytest.raises(OSError, match="No space left"):
        begun(tmp_path).put(NAME, b"data")
    assert list((tmp_path / "cell/20261130/run").iterdir()) == []


def test_a_missing_blob_is_told_from_a_folder_that_never_had_one_of_the_cell(
    tmp_path: Path,
) -> None:
    store = Directory(tmp_path)
    with pytest.raises(NeverHere, match="must be the place that the others use"):
        store.get(NAME)
    store.begin("cell")
    with pytest.raises(FileNotFoundError):
        store.get(NAME)


def test_nothing_is_put_where_the_cell_was_never_begun(tmp_path: Path) -> None:
    store = Directory(tmp_path / "mount point")
    told = f"begin a new one: mkdir -p '{tmp_path}/mount point/cell'"
    for _ in range(2):
        with pytest.raises(NeverHere, match=re.escape(told)):
            store.put(NAME, b"data")
        assert list(tmp_path.rglob("*")) in ([], [tmp_path / "mount point"])
        (tmp_path / "mount point").mkdir(exist_ok=True)


def test_runs_of_days_before_are_listed_and_dropped_with_all_they_have(tmp_path: Path) -> None:
    store = begun(tmp_path)
    for name in ("20261128/a/1", "20261128/a/2", "20261129/b/1", "20261130/c/1"):
        store.put(f"cell/{name}", b"data")
    store.begin("other")
    store.put("other/20261128/d/1", b"data")
    store.put("cell/.snapshot/e/1", b"data")
    assert sorted(store.folders("cell", before="20261130")) == [
        "cell/20261128/a",
        "cell/20261129/b",
    ]
    store.drop("cell/20261128/a")
    store.drop("cell/20261128/a")
    assert list(store.folders("cell", before="20261130")) == ["cell/20261129/b"]
    assert sorted(path.name for path in tmp_path.glob("cell/*")) == [
        ".snapshot", "20261129", "20261130",
    ]  # fmt: skip
    assert list(store.folders("unknown", before="20261130")) == []
