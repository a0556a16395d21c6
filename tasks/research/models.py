"""The values that travel between the steps; a document travels by name and digest, not whole."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

DEFAULT_QUESTION = (
    "which of these packages talk to a network or a database, for what, and under which licence?"
)


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True)


class Limits(_Value):
    """How much one run may read and ask."""

    listed: int = Field(default=2000, ge=1, description="documents listed at most")
    ranked: int = Field(default=200, ge=1, description="documents ranked by embeddings at most")
    chosen: int = Field(default=40, ge=1, le=100, description="documents read at most")
    chosen_at_least: int = Field(default=12, ge=1, description="read where there are as many")
    threshold: float = Field(default=0.35, ge=0, le=1, description="share of the best score")
    passages: int = Field(default=24, ge=1, le=200, description="passages of a document embedded")
    glosses: int = Field(default=16, ge=0, description="documents that go to the chat model")
    file_bytes: int = Field(default=2_000_000, ge=1, description="largest file that is read")


class Brief(_Value):
    """What is asked, and over what.

    `docs` is a folder; None means the Python distributions installed here. `memory` is the folder
    notes and reports are kept in; None means the user's state directory. `search` are the phrases
    documents are ranked by; empty means that they are taken from the question.
    """

    question: str = Field(default=DEFAULT_QUESTION, min_length=3, max_length=600)
    docs: str | None = None
    memory: str | None = None
    search: tuple[str, ...] = Field(default=(), max_length=8)
    limits: Limits = Limits()


class Document(_Value):
    """A reference to one document; `digest` is of its text, version and licence."""

    kind: Literal["package", "file"]
    name: str
    version: str = ""
    licence: str = ""
    digest: str

    @property
    def label(self) -> str:
        """How a report names it: name and version of a package, relative path of a file."""
        return f"{self.name} {self.version}".strip()


class Skipped(_Value):
    """A document that was not read, and why."""

    name: str
    reason: str


class Scope(_Value):
    """What every step of one run needs to know."""

    question: str
    search: tuple[str, ...]
    docs: str | None
    memory: str
    limits: Limits


class Overview(_Value):
    """What `plan` saw, for the report; the labels of the chosen are in the order of the tasks."""

    considered: int
    chosen: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    skipped_more: int
    missing: tuple[str, ...]


class Task(_Value):
    """One document to read; `ask` sends its best passage to the chat model."""

    scope: Scope
    document: Document
    ask: bool
    overview: Overview | None = None


class Plan(_Value):
    """The documents worth reading, best first."""

    tasks: list[Task]


class Note(_Value):
    """What one document says about the question: a claim and the words that bear it out.

    `claim` is empty where nothing in the document bears on the question. `score` is the claim's
    nearness to the search phrases, 0 to 1. `gloss` is the chat model's sentence, `doubt` why it was
    not kept. `missing` names the calls that failed, `unanswered` says that the chat model's was one
    of them: such a note is not remembered.
    """

    document: Document
    claim: str = ""
    quotation: str = ""
    score: float = 0.0
    asked: bool = False
    gloss: str = ""
    gloss_model: str = ""
    doubt: str = ""
    unanswered: bool = False
    missing: tuple[str, ...] = ()

    @property
    def statement(self) -> str:
        """The claim without the document's name; all of it where it does not name the document."""
        return self.claim.removeprefix(f"{self.document.name}: ")


class Reading(_Value):
    """What `execute` hands to `review`."""

    scope: Scope
    note: Note
    reused: bool = False
    overview: Overview | None = None


class Claim(_Value):
    """A note that passed the review; `also` are documents that say the same."""

    note: Note
    also: tuple[Document, ...] = ()


class Review(_Value):
    """What is kept of the notes, and what became of the rest."""

    scope: Scope
    overview: Overview | None
    claims: tuple[Claim, ...]
    dropped: tuple[Skipped, ...]
    missing: tuple[str, ...]
    notes: tuple[Note, ...]
    reused: int


class Report(_Value):
    """The answer: claims by relevance, and everything a reader needs to judge them."""

    question: str
    docs: str | None
    claims: tuple[Claim, ...]
    considered: int
    read: int
    reused: int
    glosses_asked: int
    glosses_kept: int
    glosses_failed: int = 0
    doubts: tuple[Skipped, ...]
    dropped: tuple[Skipped, ...]
    missing: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    skipped_more: int
    files: tuple[str, ...] = ()
