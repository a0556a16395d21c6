"""Documents are listed, read, refused with a reason; licences come from metadata."""

from __future__ import annotations

import os
from email.message import Message
from importlib import metadata
from pathlib import Path

import pytest

from tasks.research.documents import (
    DocumentChangedError,
    NothingToReadError,
    listed,
    package_licence,
    reread,
)
from tasks.research.models import Document, Limits, Skipped

LIMITS = Limits()


def _about(**fields: str | list[str]) -> Message:
    about = Message()
    for name, values in fields.items():
        for value in [values] if isinstance(values, str) else values:
            about[name.replace("_", "-")] = value
    return about


def _files(folder: Path, limits: Limits = LIMITS) -> tuple[list[str], dict[str, str]]:
    read, skipped = [], {}
    for found in listed(str(folder), limits):
        if isinstance(found, Skipped):
            skipped[found.name] = found.reason
        else:
            read.append(found[0].name)
    return read, skipped


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ({"License_Expression": "MIT OR Apache-2.0", "License": "other"}, "MIT OR Apache-2.0"),
        ({"License": "BSD-3-Clause"}, "BSD-3-Clause"),
        ({"License": "MIT License\n\nPermission is hereby granted"}, "MIT License"),
        (
            {"License": "UNKNOWN", "Classifier": "License :: OSI Approved :: MIT License"},
            "MIT License",
        ),
        (
            {
                "License": "Dual License",
                "Classifier": [
                    "License :: OSI Approved :: BSD License",
                    "License :: OSI Approved :: Apache Software License",
                ],
            },
            "Dual License (BSD License, Apache Software License)",
        ),
        ({"Classifier": "Programming Language :: Python"}, "not stated"),
    ],
)
def test_a_licence_is_what_the_metadata_states(
    fields: dict[str, str | list[str]], licence: str
) -> None:
    assert package_licence(_about(**fields)) == licence


def test_installed_distributions_are_listed_with_version_licence_and_words() -> None:
    found = {item[0].name: item for item in listed(None, LIMITS) if not isinstance(item, Skipped)}
    document, text = found["redis"]
    assert document.version == metadata.version("redis")
    assert document.licence.startswith("MIT")
    assert text.startswith("Python client for Redis database and key-value store")
    assert len(found) > 10


def test_a_package_is_read_again_by_name_and_its_change_is_noticed() -> None:
    document, text = next(
        item
        for item in listed(None, LIMITS)
        if not isinstance(item, Skipped) and item[0].name == "redis"
    )
    assert reread(document, None, LIMITS) == text
    with pytest.raises(DocumentChangedError, match=r"redis .* changed while it was read"):
        reread(document.model_copy(update={"digest": "0" * 32}), None, LIMITS)


def test_files_are_listed_in_order_and_hidden_ones_left_out(tmp_path: Path) -> None:
    for name in ("b.md", "a.txt", "sub/c.py", ".hidden/d.md", "__pycache__/e.txt", ".f"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("Some words.")
    assert _files(tmp_path) == (["a.txt", "b.md", "sub/c.py"], {})


def test_what_is_not_text_is_skipped_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "nul.bin").write_bytes(b"a\0b")
    (tmp_path / "blank.md").write_text(" \n\n")
    (tmp_path / "large.md").write_text("word " * 30)
    (tmp_path / "good.md").write_text("Some words.")
    os.mkfifo(tmp_path / "pipe")
    assert _files(tmp_path, Limits(file_bytes=100)) == (
        ["good.md"],
        {
            "latin.txt": "not text: byte 3 is not UTF-8",
            "nul.bin": "not text: it holds NUL bytes",
            "blank.md": "it holds no words",
            "large.md": "150 bytes, over the 100 allowed",
            "pipe": "not a regular file",
        },
    )


def test_a_name_that_is_not_text_is_skipped(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.md")).write_text("Some words.")
    read, skipped = _files(tmp_path)
    assert read == []
    assert list(skipped.values()) == ["its name is not printable text"]
    assert all(name.isascii() for name in skipped)


def test_files_beyond_the_limit_are_skipped_by_name(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text("Some words.")
    assert _files(tmp_path, Limits(listed=2)) == (["a", "b"], {"c": "beyond the first 2 files"})


def test_a_folder_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(NothingToReadError, match="nowhere is not a folder"):
        list(listed(str(tmp_path / "nowhere"), LIMITS))


def test_a_file_that_is_gone_is_noticed(tmp_path: Path) -> None:
    gone = Document(kind="file", name="a.md", digest="0" * 32)
    with pytest.raises(DocumentChangedError, match=r"a\.md can no longer be read"):
        reread(gone, str(tmp_path), LIMITS)
