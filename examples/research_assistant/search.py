"""Two searches: full text over the folder of documents that ships with the assistant, and Tavily's over the web.

The documents are about endstops, in our own words. Two of them contradict each other on purpose: the club note says
that a broken wire to a normally open switch stops the machine, which is false. That gives research a reason to go back.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import weakref
from pathlib import Path
from typing import Self

import httpx

from endstop import ConfigError

from .ports import Hit

DOCUMENTS = Path(__file__).with_name("documents")
"""The folder that ships with the assistant."""

MAX_WORDS = 40
"""How many words of a query count; the rest is ignored."""

SHORT_WORD = 3
"""Words up to this length hardly tell documents apart; they count only where a query has no others."""

TAVILY_URL = "https://api.tavily.com"

TAVILY_SECONDS = 30.0
"""How long a search of the web may take."""

_WORD = re.compile(r"\w+")


class FolderSearch:
    """SQLite's full-text index (FTS5) over the `*.md` files of a folder, one hit a document; safe among threads.

    Close it, or use it as a context manager, to let go of the index; one that nobody holds any more closes itself,
    which is what a graph's own search does.
    """

    def __init__(self, folder: str | Path = DOCUMENTS) -> None:
        files = sorted(Path(folder).glob("*.md"))
        if not files:
            raise ConfigError("folder", str(folder), "name a folder that holds Markdown documents (*.md)")
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self.close = weakref.finalize(self, self._connection.close)
        self._connection.execute(
            "CREATE VIRTUAL TABLE documents USING fts5(source UNINDEXED, title, text, tokenize = 'porter unicode61')"
        )
        for file in files:
            title, _, text = file.read_text(encoding="utf-8").partition("\n")
            row = (file.name, title.lstrip("# "), " ".join(text.split()))
            self._connection.execute("INSERT INTO documents VALUES (?, ?, ?)", row)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def search(self, query: str, *, limit: int) -> list[Hit]:
        """The documents that have any word of the query, the best first; operators and punctuation mean nothing."""
        every = list(dict.fromkeys(_WORD.findall(query)))
        words = ([word for word in every if len(word) > SHORT_WORD] or every)[:MAX_WORDS]
        with self._lock:
            rows: list[tuple[str, str, str]] = self._connection.execute(
                "SELECT source, title, text FROM documents WHERE documents MATCH ? "
                "ORDER BY bm25(documents, 0.0, 4.0, 1.0), rowid LIMIT ?",
                (" OR ".join(f'"{word}"' for word in words) or '""', limit),
            ).fetchall()
        return [Hit(source=source, title=title, text=text) for source, title, text in rows]


class TavilySearch:
    """The web search of Tavily; close it, or use it as a context manager, to let go of its connections.

    Raises:
        httpx.HTTPError: the service could not be reached, or refused; the run ends with it.
    """

    def __init__(self, api_key: str, *, base_url: str = TAVILY_URL) -> None:
        self._client = httpx.Client(
            base_url=base_url, headers={"Authorization": f"Bearer {api_key}"}, timeout=TAVILY_SECONDS
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def search(self, query: str, *, limit: int) -> list[Hit]:
        """The pages that the service finds, in its order."""
        response = self._client.post("/search", json={"query": query, "max_results": limit})
        response.raise_for_status()
        return [
            Hit(source=found["url"], title=found["title"], text=found["content"])
            for found in response.json()["results"]
        ]
