"""Where documents come from: the distributions installed here, or the text files of a folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from tasks.research.models import Document, Limits, Skipped
from tasks.research.passages import plain

_MARKUP = frozenset({"", ".md", ".markdown", ".rst", ".txt", ".html", ".htm"})
_UNSTATED = frozenset({"", "unknown", "none"})
_LICENCE_WORDS = 12  # a longer `License` field is the licence's text: its first line names it


class NothingToReadError(ValueError):
    """The folder cannot be read, or holds no document that could be."""


class DocumentChangedError(RuntimeError):
    """A document is not what it was when the run was planned."""


def listed(docs: str | None, limits: Limits) -> Iterator[tuple[Document, str] | Skipped]:
    """Yield every document with its plain text, or why it is skipped, ordered by name.

    `docs` is a folder, None the installed distributions.

    Raises:
        NothingToReadError: `docs` is no folder that can be listed.

    """
    return _packages() if docs is None else _files(Path(docs), limits)


def reread(document: Document, docs: str | None, limits: Limits) -> str:
    """Return the plain text that `document` refers to.

    Raises:
        DocumentChangedError: it is gone, no longer text, or not what it was.

    """
    found = _package(document.name) if docs is None else _file(Path(docs), document.name, limits)
    if isinstance(found, Skipped):
        raise DocumentChangedError(f"{document.label} can no longer be read: {found.reason}")
    if found[0].digest != document.digest:
        raise DocumentChangedError(f"{document.label} changed while it was read; run again")
    return found[1]


def digest(*parts: str) -> str:
    """Return 32 hexadecimal digits that stand for `parts`."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


# -- packages -------------------------------------------------------------------------------------


def _packages() -> Iterator[tuple[Document, str] | Skipped]:
    names = {_name(found) for found in metadata.distributions()} - {""}
    for name in sorted(names, key=str.casefold):
        yield _package(name)


def _name(found: metadata.Distribution) -> str:
    try:
        return found.metadata["Name"] or ""
    except ValueError:  # not UTF-8: it has no name to speak of
        return ""


def _package(name: str) -> tuple[Document, str] | Skipped:
    try:
        found = metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError):
        return Skipped(name=name, reason="its metadata cannot be read")
    text = package_text(found)
    if not text:
        return Skipped(name=name, reason="its metadata describes nothing")
    licence = package_licence(found.metadata)
    document = Document(
        kind="package",
        name=name,
        version=found.version,
        licence=licence,
        digest=digest(found.version, licence, text),
    )
    return document, text


def package_text(found: metadata.Distribution) -> str:
    """Return summary, description, keywords and requirements as plain paragraphs, in that order.

    Empty where a distribution has neither summary nor description: the rest alone says nothing.
    """
    about = found.metadata
    said = [_field(about, "Summary"), plain(_field(about, "Description"))]
    if not any(said):
        return ""
    needs = sorted({_required(line) for line in found.requires or () if "extra ==" not in line})
    said += [f"Keywords: {words}" if (words := _field(about, "Keywords")) else ""]
    said += [f"Requires: {', '.join(needs)}" if needs else ""]
    return "\n\n".join(part for part in said if part)


def package_licence(about: metadata.PackageMetadata) -> str:
    """Return the licence as metadata states it: License-Expression, License, then classifiers.

    A `License` field that holds a whole licence is given by its first line; where several
    classifiers say more than the field, they stand behind it in brackets.
    """
    if expression := _field(about, "License-Expression"):
        return expression
    classified = [
        line.rsplit("::", 1)[-1].strip()
        for line in about.get_all("Classifier") or ()
        if line.startswith("License :: OSI Approved ::")
    ]
    lines = _field(about, "License").splitlines()
    named = " ".join(lines[0].split()[:_LICENCE_WORDS]) if lines else ""
    if not named:
        return " or ".join(classified) or "not stated"
    return f"{named} ({', '.join(classified)})" if len(classified) > 1 else named


def _field(about: metadata.PackageMetadata, name: str) -> str:
    value = (about.get_all(name) or [""])[0]
    return "" if value.strip().casefold() in _UNSTATED else value.strip()


def _required(line: str) -> str:
    """Return the bare name of a requirement such as ``redis[hiredis]>=5; python_version > "3"``."""
    name = line.strip()
    for stop in " [(<>=!~;@":
        name = name.split(stop, 1)[0]
    return name


# -- files ----------------------------------------------------------------------------------------


def _files(folder: Path, limits: Limits) -> Iterator[tuple[Document, str] | Skipped]:
    if not folder.is_dir():
        raise NothingToReadError(f"{folder} is not a folder; pass one that holds text files")
    for count, name in enumerate(_names(folder)):
        if count < limits.listed:
            yield _file(folder, name, limits)
        else:
            yield Skipped(name=name, reason=f"beyond the first {limits.listed} files")


def _names(folder: Path) -> Iterator[str]:
    """Yield the paths of all files below `folder`, relative to it; hidden ones are left out."""

    def refuse(error: OSError) -> None:
        if Path(error.filename) == folder:
            raise NothingToReadError(f"{folder} cannot be listed: {error.strerror}") from error

    for at, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(n for n in folders if not n.startswith(".") and n != "__pycache__")
        yield from (
            (Path(at) / name).relative_to(folder).as_posix()
            for name in sorted(names)
            if not name.startswith(".")
        )


def _file(folder: Path, name: str, limits: Limits) -> tuple[Document, str] | Skipped:
    path = folder / name
    if not name.isprintable():  # it could not travel as UTF-8, nor be shown
        return Skipped(name=ascii(name), reason="its name is not printable text")
    try:
        text = _read(path, limits.file_bytes)
    except OSError as error:
        return Skipped(name=name, reason=f"cannot be read: {error.strerror}")
    except ValueError as error:
        return Skipped(name=name, reason=str(error))
    words = plain(text, markup=path.suffix.lower() in _MARKUP)
    if not words:
        return Skipped(name=name, reason="it holds no words")
    return Document(kind="file", name=name, digest=digest(words)), words


def _read(path: Path, largest: int) -> str:
    if not path.is_file():  # a pipe would be waited for
        raise ValueError("not a regular file")
    if (size := path.stat().st_size) > largest:
        raise ValueError(f"{size} bytes, over the {largest} allowed")
    return decoded(path.read_bytes())


def decoded(raw: bytes) -> str:
    """Return the text of a file.

    Raises:
        ValueError: it is not text; the message says what gives it away.

    """
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not text: byte {error.start} is not UTF-8") from error
    if "\0" in text:
        raise ValueError("not text: it holds NUL bytes")
    return text
