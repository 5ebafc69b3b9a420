"""A folder of Markdown documents as three tools that a small model can use: search, open, quote.

A document is cut into sections at its headings. A section has an id that is also a working link:
`limits.md#how-a-run-ends`; the text before a document's second heading is the document's opening
and has the document's name alone (`limits.md`).

Every answer is short text, because the reader may take in 20 tokens a second; nothing that a model
can pass raises: an unknown id, an odd query or a phrase that is not there is answered in words that
say what to try next.
"""

from __future__ import annotations

import difflib
import re
import sqlite3
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self, TypeAlias

from pydantic import Field

from endstop._errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from types import TracebackType

SECTION_CHARACTERS = 1200
"""How much of a section `open` shows at most."""

QUOTE_CHARACTERS = 500
"""How much text `quote` returns at most."""

SNIPPET_WORDS = 14
"""How much of a hit `search` shows."""

MAX_WORDS = 40
"""How many words of a query or a phrase count; the rest is ignored."""

# The lengths end a small model that repeats itself: a server that holds it to the schema closes the text there.
Query: TypeAlias = Annotated[str, Field(max_length=80)]
"""A few words to search for."""

SectionId: TypeAlias = Annotated[str, Field(max_length=120)]
"""The id of a section."""

Phrase: TypeAlias = Annotated[str, Field(max_length=120)]
"""Words of a section."""

_HEADING = re.compile(r"(#{1,6})[ \t]+(.+?)[ \t]*#*[ \t]*$")
_FENCE = re.compile(r"[ ]{0,3}(```+|~~~+)")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=\S)|\n(?=\s*(?:[-*+|]|\d+\.)\s?)|\n\s*\n")
_WORD = re.compile(r"\w+")

_COMMON_WORDS = frozenset(
    {
        *("a", "an", "and", "any", "are", "as", "at", "be", "been", "by", "can", "could", "did", "do", "does", "for"),
        *("from", "had", "has", "have", "how", "i", "if", "in", "is", "it", "its", "of", "on", "or", "so", "than"),
        *("that", "the", "their", "then", "there", "they", "this", "to", "was", "were", "what", "when", "where"),
        *("which", "who", "why", "will", "with", "would", "you"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section of a document: its id, its heading (under its parents' headings) and its own text."""

    section_id: str
    title: str
    text: str


class Library:
    """Sections in a full-text index, searched, opened and quoted by id; safe to call from several threads.

    `search`, `open` and `quote` are made to be given to an agent as they are, and their docstrings are
    what its model reads. `search` returns the best `hits` sections, a line each: the id, and a snippet of the
    section. Any word of the query may match; operators and punctuation mean nothing. `open` cuts a long
    section, and says so. `quote` looks for the words of the phrase, whatever stands between them (blanks, line
    breaks, punctuation, marks) and in whatever case, and gives the document's own sentence.

    `database` is a file that is built anew, or memory (the default). Close the library, or use it as
    a context manager, to let go of the database.
    """

    def __init__(self, sections: Iterable[Section], *, hits: int = 5, database: str | Path = ":memory:") -> None:
        if hits < 1:
            raise ConfigError("hits", hits, "use a whole number, 1 or more")
        self._hits = hits
        self._sections = {section.section_id: section for section in sections}
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(str(database), check_same_thread=False)
        with self._connection as connection:
            connection.execute("DROP TABLE IF EXISTS sections")
            connection.execute(
                "CREATE VIRTUAL TABLE sections "
                "USING fts5(section_id UNINDEXED, title, text, tokenize = 'porter unicode61')"
            )
            connection.executemany(
                "INSERT INTO sections VALUES (?, ?, ?)",
                [(section.section_id, section.title, section.text) for section in self._sections.values()],
            )

    @classmethod
    def from_folder(
        cls, folder: str | Path, *, hits: int = 5, database: str | Path = ":memory:", without: Collection[str] = ()
    ) -> Library:
        """The library of all `*.md` files under a folder, but for those of the names in `without`.

        Raises:
            ConfigError: there is no such file.
        """
        root = Path(folder)
        documents = sorted(path for path in root.rglob("*.md") if path.is_file() and path.name not in without)
        if not documents:
            raise ConfigError("folder", str(root), "name a folder that holds Markdown documents (*.md)")
        return cls(
            (
                section
                for path in documents
                for section in split_document(
                    path.relative_to(root).as_posix(), path.read_text(encoding="utf-8", errors="replace")
                )
            ),
            hits=hits,
            database=database,
        )

    def __len__(self) -> int:
        return len(self._sections)

    def __repr__(self) -> str:
        return f"<Library of {len(self)} sections>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the database; searching afterwards is an error."""
        self._connection.close()

    @property
    def section_ids(self) -> tuple[str, ...]:
        """The ids of all sections, in the order of the documents."""
        return tuple(self._sections)

    def search(self, query: Query) -> str:
        """Finds sections by words, the best first."""
        every = list(dict.fromkeys(_WORD.findall(query)))
        words = ([word for word in every if word.lower() not in _COMMON_WORDS] or every)[:MAX_WORDS]
        if not words:
            return "The query has no words. Search for two or three words of the question."
        matches = " OR ".join(f'"{word}"' for word in words)
        with self._lock:
            hits: list[tuple[str, str]] = self._connection.execute(
                "SELECT section_id, snippet(sections, 2, '', '', '...', ?) FROM sections "
                "WHERE sections MATCH ? ORDER BY bm25(sections, 0.0, 4.0, 1.0), rowid LIMIT ?",
                (SNIPPET_WORDS, matches, self._hits),
            ).fetchall()
        if not hits:
            return f"No section has any of the words: {' '.join(words)[:80]}. Try other words."
        return "\n".join(f"{section_id}: {_one_line(snippet)}" for section_id, snippet in hits)

    def open(self, section_id: SectionId) -> str:
        """Reads one section that search found."""
        section = self._find(section_id)
        if section is None:
            return self._unknown(section_id)
        if len(section.text) <= SECTION_CHARACTERS:
            return section.text
        shown = section.text[:SECTION_CHARACTERS]
        if " " in shown:
            shown = shown[: shown.rindex(" ")].rstrip()
        return f"{shown}\n[cut: {len(shown)} of {len(section.text)} characters shown; quote also finds the rest]"

    def quote(self, section_id: SectionId, phrase: Phrase) -> str:
        """Gives the sentence that has the phrase, word for word."""
        section = self._find(section_id)
        if section is None:
            return self._unknown(section_id)
        words = _WORD.findall(phrase)[:MAX_WORDS]
        if not words:
            return "The phrase is empty. Give a few words that stand in the section."
        pattern = re.compile(r"\W+".join(words), re.IGNORECASE)
        found = list(_sentences_with(section.text, pattern))
        if not found:
            nearest = _nearest_sentence(section.text, words)
            return f"Not in {section.section_id}: {_cut(' '.join(words), 80)}. The nearest sentence there: {nearest}"
        return f'"{_cut(" ... ".join(found), QUOTE_CHARACTERS)}" ({section.section_id})'

    def _find(self, section_id: str) -> Section | None:
        """The section that an id means: as it is, or in the spellings that models give it."""
        wanted = section_id.strip().strip("[]()<>`'\"")
        document, _, anchor = wanted.partition("#")
        for candidate in (wanted, f"{document}#{_slug(anchor)}", f"{document}#{_slug(anchor)}".lower()):
            if candidate in self._sections:
                return self._sections[candidate]
        return None

    def _unknown(self, section_id: str) -> str:
        near = difflib.get_close_matches(section_id[:200], self._sections, n=3, cutoff=0.4)
        remedy = f"Near: {', '.join(near)}." if near else "Search for its words to get ids."
        return f"There is no section {_cut(section_id, 80)!r}. {remedy}"


def split_document(name: str, markdown: str) -> Iterator[Section]:
    """Cut a document at its headings. A heading without text of its own only titles what stands under it."""
    used: dict[str, int] = {}
    for number, (titles, text) in enumerate(_blocks(markdown)):
        if not text:
            continue
        is_opening = number <= 1 and name not in used
        section_id = name if is_opening else f"{name}#{_slug(titles[-1]) or 'section'}"
        repeats = used.get(section_id, 0)
        used[section_id] = repeats + 1
        yield Section(
            section_id=f"{section_id}-{repeats}" if repeats else section_id,
            title=" / ".join(titles) or name,
            text=text,
        )


def _blocks(markdown: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """The headings in force and the text under them, block by block; headings inside code fences are text."""
    titles: list[tuple[int, str]] = []
    lines: list[str] = []
    fence = ""
    for line in markdown.splitlines():
        mark = _FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence) and line.strip() == mark[1]:
            fence = ""
        heading = None if fence or mark else _HEADING.match(line)
        if heading is None:
            lines.append(line)
            continue
        yield tuple(title for _, title in titles), "\n".join(lines).strip()
        lines = []
        level = len(heading[1])
        titles = [(above, title) for above, title in titles if above < level]
        titles.append((level, heading[2]))
    yield tuple(title for _, title in titles), "\n".join(lines).strip()


def _slug(heading: str) -> str:
    """The anchor that Markdown renderers give a heading: lower case, words joined by hyphens."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def _sentences(text: str) -> Iterator[tuple[int, int]]:
    """Where each sentence, list item and table row stands in a text."""
    start = 0
    for end in _SENTENCE_END.finditer(text):
        yield start, end.start()
        start = end.end()
    yield start, len(text)


def _sentences_with(text: str, pattern: re.Pattern[str]) -> Iterator[str]:
    """The runs of sentences that the matches of a pattern touch, each run once, in the order of the text."""
    spans = list(_sentences(text))
    done = 0
    for match in pattern.finditer(text):
        touched = [(start, end) for start, end in spans if start < match.end() and end > match.start()]
        if touched and touched[-1][1] > done:
            yield _one_line(text[max(touched[0][0], done) : touched[-1][1]])
            done = touched[-1][1]


def _nearest_sentence(text: str, words: list[str]) -> str:
    """The sentence that shares the most words with a phrase; the first of equals."""
    wanted = {word.lower() for word in words}

    def shared(span: tuple[int, int]) -> int:
        return len(wanted.intersection(_WORD.findall(text[slice(*span)].lower())))

    start, end = max(_sentences(text), key=shared)
    return _cut(_one_line(text[start:end]), QUOTE_CHARACTERS // 2)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[: characters - 3]}..."
