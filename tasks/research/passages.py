"""From a README to sentences and passages: markup goes, the words stay as they were written."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator

MAX_WORDS = 60  # of a passage: MiniLM's cost grows faster than its worth beyond that
_LONGEST_WORD = 200
SENTENCE_WORDS = (5, 45)  # shorter says nothing, longer is no quotation

# Whole stretches that hold no prose.
_BLOCKS = (
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n]*\n.*?^[ \t]*\1[ \t]*$", re.DOTALL | re.MULTILINE),
    re.compile(r"<(script|style|pre)\b.*?</\1>", re.DOTALL | re.IGNORECASE),
)
# What stands around words, and what is left of it.
_INLINE = (
    (re.compile(r"!\[[^\]]*\](\([^)]*\)|\[[^\]]*\])"), ""),  # image
    (re.compile(r"\[([^\[\]]*)\]\([^()\s]*(?:\([^()]*\)[^()\s]*)?(?:\s+\"[^\"]*\")?\)"), r"\1"),
    (re.compile(r"\[([^\[\]]+)\]\[[^\]]*\]"), r"\1"),  # link by reference
    (re.compile(r"</?(br|p|div|li|ul|ol|tr|td|th|table|h\d)\b[^>]*>", re.IGNORECASE), "\n\n"),
    (re.compile(r"</?[a-zA-Z][^<>]*>(?!`)"), lambda hit: _autolink(hit.group())),
    (re.compile(r":[\w:+-]+:`([^`<]*?)(?:\s*<[^`>]*>)?`"), r"\1"),  # reST role
    (re.compile(r"`([^`<>]+?)\s*<[^`>]+>`_{1,2}"), r"\1"),  # reST link
    (re.compile(r"`{1,2}([^`]+)`{1,2}_{0,2}"), r"\1"),
    (re.compile(r"\|[\w .-]+\|_{0,2}"), ""),  # reST substitution
    (re.compile(r"(?<=[^\W_])_{1,2}(?=[\s.,;:)]|$)"), ""),  # reST reference
    (re.compile(r"(\*\*|__)(?=\S)(.+?)(?<=\S)\1"), r"\2"),
    (re.compile(r"(?<![\w*])[*_](?=[^\s*_])([^*_\n]+?)(?<=\S)[*_](?![\w*])"), r"\1"),
)
_DIRECTIVE = re.compile(r"^\s*\.\.(\s|$)")
_PROSE_DIRECTIVE = re.compile(
    r"^\s*\.\. (note|warning|tip|important|attention|hint)::", re.IGNORECASE
)
_NOT_PROSE = re.compile(
    r"^\s*(?:"
    r"[=\-~^\"'#*+.:`_]{3,}\s*$"  # underline of a heading, rule
    r"|[+|][-=+|: ]+[+|]\s*$"  # rule of a table
    r"|\[[^\]]+\]:\s"  # definition of a link
    r"|(?:>>>|\.\.\.|\$|In \[\d+\]:)\s"  # session
    r")"
)
_ROW = re.compile(r"^\s*\|(.*)\|\s*$")
_ITEM = re.compile(r"^\s*(?:[-*+•]|\d{1,2}[.)])\s+")
_QUOTED = re.compile(r"^\s*>[\s>]*")
_HEADING = re.compile(r"^\s{0,3}#{1,6}\s+(.*?)\s*#*$")
_END = re.compile(r"(?<=[.!?])[\"')\]]?\s+(?=[\"'(\[]?[A-Z0-9])")
_ABBREVIATED = re.compile(r"\b(?:e\.g|i\.e|etc|vs|cf|Mr|Dr|No|Inc|[A-Z])\.$")
_CODE = re.compile(r"[{};\\|]|\w = |\w\(\w*\)|://|^(?:import|from|pip|def|class)\s")
_LABEL = re.compile(r"^[\w ]{1,24}:\s")  # "Keywords: ...": a field, not a sentence
_POINTER = re.compile(
    r"^(?:for (?:more|full|further|details|the|a) |see |check out|read |please |here\b|if you )"
    r"|^the (?:above|following)\b|\bsee the\b|:$",
    re.IGNORECASE,
)


def plain(text: str, *, markup: bool = True) -> str:
    """Return the prose of `text` as paragraphs parted by an empty line.

    Markdown, reStructuredText and HTML are taken off, code blocks and images are left out; an item
    of a list and a cell of a table are paragraphs of their own. With `markup=False` (a program, a
    log) every line stays. Words are never changed or reordered; those no one would read (encoded
    data, over 200 characters) are left out.
    """
    if not markup:
        return _paragraphs(text)
    for block in _BLOCKS:
        text = block.sub("\n\n", text)
    text = "\n".join(_prose_lines(_visible(text.splitlines())))
    for pattern, replacement in _INLINE:
        text = pattern.sub(replacement, text)
    return _paragraphs(html.unescape(text))


def _paragraphs(text: str) -> str:
    parts = (
        " ".join(word for word in part.split() if len(word) <= _LONGEST_WORD)
        for part in re.split(r"\n\s*\n", text)
    )
    return "\n\n".join(part for part in parts if part)


def _autolink(tag: str) -> str:
    return tag[1:-1] if "://" in tag else ""


def _visible(lines: list[str]) -> Iterator[str]:
    """Leave out reST directives and literal blocks, which reach as far as they are indented."""
    hidden_below: int | None = None
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if hidden_below is not None and line.strip():
            if indent > hidden_below:
                continue
            hidden_below = None
        if _DIRECTIVE.match(line):
            hidden_below = None if _PROSE_DIRECTIVE.match(line) else indent
            yield ""
        elif line.rstrip().endswith("::"):
            hidden_below = indent
            yield from (line.rstrip()[:-1], "")
        else:
            yield line


def _prose_lines(lines: Iterable[str]) -> Iterator[str]:
    """Leave out what only means something to a renderer; end a paragraph at headings and items."""
    for line in lines:
        if _NOT_PROSE.match(line):
            yield ""
        elif heading := _HEADING.match(line):
            yield from ("", heading.group(1), "")
        elif row := _ROW.match(line):
            yield from (part for cell in row.group(1).split("|") for part in ("", cell))
            yield ""
        elif item := _ITEM.match(line):
            yield from ("", line[item.end() :])
        else:
            yield _QUOTED.sub("", line)


def sentences(text: str) -> list[str]:
    """Return the sentences of plain text, in order; the end of a line always ends one."""
    found: list[str] = []
    for paragraph in text.split("\n"):
        held = ""
        for part in _END.split(paragraph.strip()):
            held = f"{held} {part}" if held else part
            if not _ABBREVIATED.search(held):
                found.append(held)
                held = ""
        if held:
            found.append(held)
    return [sentence for sentence in found if sentence]


def opening(text: str) -> str:
    """Return how plain text begins: its first sentence, or as much of it as makes a quotation."""
    first = next(iter(sentences(text)), "")
    return " ".join(first.split()[: SENTENCE_WORDS[1]])


def passages(text: str, *, max_words: int = MAX_WORDS) -> list[str]:
    """Pack the sentences of plain text, in order, into passages of at most `max_words` words.

    A passage holds one sentence a line; a sentence longer than `max_words` is cut into several.
    """
    packed: list[list[str]] = []
    room = 0
    for sentence in _cut(sentences(text), max_words):
        length = len(sentence.split())
        if not packed or length > room:
            packed.append([])
            room = max_words
        packed[-1].append(sentence)
        room -= length
    return ["\n".join(held) for held in packed]


def _cut(whole: list[str], max_words: int) -> Iterator[str]:
    for sentence in whole:
        words = sentence.split()
        for start in range(0, len(words), max_words):
            yield " ".join(words[start : start + max_words])


def is_prose(sentence: str) -> bool:
    """Tell a sentence that states something from a heading, a field, code or a "see there"."""
    shortest, longest = SENTENCE_WORDS
    words = sentence.split()
    if not shortest <= len(words) <= longest:
        return False
    if any(pattern.search(sentence) for pattern in (_CODE, _LABEL, _POINTER)):
        return False
    spelled = sum(word.strip(".,:;!?()'\"").replace("-", "").isalpha() for word in words)
    return spelled >= 0.7 * len(words)


def occurs(quotation: str, text: str) -> bool:
    """Whether `quotation` stands in plain `text` word for word; only white space may differ."""
    words = " ".join(quotation.split())
    return bool(words) and words in " ".join(text.split())
