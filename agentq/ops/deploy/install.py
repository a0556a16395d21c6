"""Puts rendered files in place and takes them away again; what somebody has edited is kept.

The record (`etc/agentq/deploy.json`) says what was written: path -> the hashes that are ours. It
names old and new while files are being replaced, so that an installation that was cut off is
neither half ours nor somebody's edit: the next one completes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from agentq.errors import DeployError
from agentq.ops.deploy.deployment import Site
from agentq.ops.deploy.render import CREDENTIALS, File
from agentq.settings.installed import RECORD

_SUFFIX = ".agentq-new"
_OPEN = 0o005


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is installed."""

    site: Site
    processes: Mapping[str, int]
    """Pool -> worker processes."""
    hashes: Mapping[str, tuple[str, ...]]


@dataclass(kw_only=True)
class Changes:
    """What an installation did, by path below the root."""

    written: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """Edited since we wrote them: left as they are."""
    removed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """What the system did not take, in its own words; the rest holds."""
    notes: list[str] = field(default_factory=list)
    """Of where the units' rights and settings come from."""


def read_record(root: Path) -> Record | None:
    """Return what is installed below *root*; None: nothing.

    Raises:
        DeployError: the record can not be read.
    """
    path = root / RECORD
    try:
        said = orjson.loads(path.read_bytes())
        site = said["site"]
        return Record(
            site=Site(
                app=site["app"], folder=Path(site["folder"]), python=Path(site["python"]),
                user=site["user"],
            ),
            processes=said["processes"],
            hashes={name: tuple(hashes) for name, hashes in said["files"].items()},
        )  # fmt: skip
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DeployError(
            f"{path} can not be read ({error}): remove it, then agentq deploy install -A "
            "MODULE:NAME takes what is as rendered for its own again"
        ) from error


def install(
    root: Path, files: Mapping[str, File], *, site: Site, processes: Mapping[str, int]
) -> Changes:
    """Write *files* below *root*, remove what was installed and is no longer among them.

    All or nothing as far as can be checked before: each is written beside its place first.

    Raises:
        DeployError: a file can not be written; nothing has changed then.
    """
    before = read_record(root)
    _sweep(root)
    ours = dict(before.hashes) if before else {}
    changes = _compare(root, files, ours)
    hashes = {name: (_hash(files[name].text.encode()),) for name in files}
    both = {name: (*ours.get(name, ()), *hashes.get(name, ())) for name in {*ours, *hashes}}
    edited = {name: ours[name] for name in changes.kept if name in ours}
    written = {name: files[name] for name in changes.written}
    # The record first: it is true of what is there at every moment after.
    write_files(root, {RECORD: _record(site, processes, both), **written})
    for name in changes.removed:
        _remove(root, name)
    with contextlib.suppress(DeployError):  # no room: the one that is there is true as well
        write_files(root, {RECORD: _record(site, processes, {**hashes, **edited})})
    folder = (root / RECORD).parent
    if folder.stat().st_mode & _OPEN != _OPEN:
        changes.notes.append(
            f"{folder} was there and is closed to user {site.user}, whose workers look for their "
            f"plan in it: chmod 755 {folder}"
        )
    return changes


def remove(root: Path, names: Collection[str]) -> None:
    """Remove those of *names* that are as they were written."""
    record = read_record(root)
    written = record.hashes if record else {}
    ours = {name: hashes for name, hashes in written.items() if name in names}
    for name in _compare(root, {}, ours).removed:
        _remove(root, name)


def write_files(folder: Path, files: Mapping[str, File]) -> None:
    """Write *files* below *folder*, whatever is there, and put them in place in their order.

    Raises:
        DeployError: one can not be written; nothing has changed then.
    """
    for new, place in _stage(folder, files):
        new.replace(place)


def uninstall(root: Path) -> Changes:
    """Remove all that was installed and not edited, and the record."""
    record = read_record(root)
    _sweep(root)
    changes = _compare(root, {}, record.hashes if record else {})
    for name in (*changes.removed, RECORD):
        _remove(root, name)
    there = [*(root / RECORD).parent.rglob("*"), *root.glob("etc/systemd/system/agentq*.d/*")]
    left = {str(path.relative_to(root)) for path in there if path.is_file()} - {*changes.kept}
    changes.notes += [f"left, since it is not of our writing: /{name}" for name in sorted(left)]
    return changes


def _compare(root: Path, files: Mapping[str, File], ours: Mapping[str, tuple[str, ...]]) -> Changes:
    changes = Changes()
    for name in sorted({*files, *ours}):
        found = _hash_of(root / name)
        wanted = _hash(files[name].text.encode()) if name in files else None
        if found is not None and found == wanted:
            changes.same.append(name)
        elif found is not None and found not in ours.get(name, ()):
            changes.kept.append(name)
        elif wanted is not None:
            changes.written.append(name)
        elif found is not None:
            changes.removed.append(name)
    return changes


def _stage(root: Path, files: Mapping[str, File]) -> list[tuple[Path, Path]]:
    staged = []
    try:
        for name, file in files.items():
            place = root / name
            _make(place.parent)
            new = place.with_name(place.name + _SUFFIX)
            staged.append((new, place))
            _write(new, file)
    except OSError as error:
        for new, _ in staged:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
        raise DeployError(
            f"{error.filename or place} can not be written ({error.strerror}); nothing was changed"
        ) from error
    return staged


def _make(folder: Path) -> None:
    """Make a folder that others may read, whatever root's umask is: workers look for their plan."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)


def _write(path: Path, file: File) -> None:
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file.mode)
    with os.fdopen(handle, "w", encoding="utf-8") as output:
        os.fchmod(handle, file.mode)
        output.write(file.text)
        output.flush()
        os.fsync(handle)


def _record(
    site: Site, processes: Mapping[str, int], hashes: Mapping[str, tuple[str, ...]]
) -> File:
    body = {
        "about": "what `agentq deploy install` wrote; it is how local edits are told",
        "site": {
            "app": site.app, "folder": str(site.folder), "python": str(site.python),
            "user": site.user,
        },
        "processes": dict(processes),
        "files": {name: list(ours) for name, ours in sorted(hashes.items())},
    }  # fmt: skip
    return File(text=orjson.dumps(body, option=orjson.OPT_INDENT_2).decode() + "\n")


def _remove(root: Path, name: str) -> None:
    """Remove a file, and the folders that it leaves empty; the system's own stay."""
    path = root / name
    path.unlink(missing_ok=True)
    for folder in path.parents:
        if "agentq" not in str(folder.relative_to(root)):
            return
        with contextlib.suppress(OSError):
            folder.rmdir()


def _sweep(root: Path) -> None:
    """Remove what an installation that was cut off had begun: a secret may be in it."""
    walked = list(os.walk(root / "etc"))
    for name in (f"{folder}/{file}" for folder, _, files in walked for file in files):
        if name.endswith(_SUFFIX):
            _remove(root, os.path.relpath(name, root))
    for folder in (*root.glob("etc/systemd/system/agentq-*.d"), root / CREDENTIALS):
        with contextlib.suppress(OSError):  # it holds something
            folder.rmdir()


def is_ours(path: Path, hashes: Collection[str]) -> bool:
    """Whether a file is there and as it was written: *hashes* are the record's of it."""
    return _hash_of(path) in hashes


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _hash_of(path: Path) -> str | None:
    try:
        return _hash(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DeployError(f"{path} can not be read ({error.strerror}); nothing changed") from error
