"""The searches find what is there, say nothing of what is not, and no query breaks them."""

from __future__ import annotations

import gc
import json
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstop import ConfigError
from examples.research_assistant.models import DEMO_QUESTION
from examples.research_assistant.ports import Hit
from examples.research_assistant.search import DOCUMENTS, FolderSearch, TavilySearch

SHIPPED = FolderSearch()


def test_a_document_is_found_by_what_it_is_about() -> None:
    """The best first: its file, its title, and its text in one line."""
    best = SHIPPED.search("How does sensorless homing know where the end is?", limit=3)[0]
    assert (best.source, best.title) == ("sensorless-homing.md", "Sensorless homing")
    assert "StallGuard" in best.text
    assert "\n" not in best.text


def test_the_documents_contradict_each_other_on_the_demos_question() -> None:
    """Both sides are found, so that there is something to settle."""
    found = [hit.source for hit in SHIPPED.search(DEMO_QUESTION, limit=3)]
    assert "normally-closed-wiring.md" in found
    assert "club-note-on-switch-wiring.md" in found


@pytest.mark.parametrize("limit", [1, 2])
def test_there_are_at_most_as_many_hits_as_asked_for(limit: int) -> None:
    """Though more documents match."""
    assert len(SHIPPED.search("switch", limit=limit)) == limit


@given(st.text(), st.integers(1, 5))
def test_no_query_breaks_the_search(query: str, limit: int) -> None:
    """Quotes, operators and brackets mean nothing."""
    assert len(SHIPPED.search(query, limit=limit)) <= limit


@pytest.mark.parametrize("query", ["", "?!", "zzzzzz"])
def test_what_is_not_there_is_not_found(query: str) -> None:
    """No hit is no error."""
    assert SHIPPED.search(query, limit=3) == []


def test_short_words_count_where_there_are_no_others(tmp_path: Path) -> None:
    """Else they only blur what the long ones say."""
    (tmp_path / "a.md").write_text("# Of NC and NO\n\nTwo contacts.", encoding="utf-8")
    (tmp_path / "b.md").write_text("# Contacts\n\nOf all kinds.", encoding="utf-8")
    with FolderSearch(tmp_path) as search:
        assert [hit.source for hit in search.search("NC", limit=2)] == ["a.md"]
        assert [hit.source for hit in search.search("of NC contacts", limit=2)] == ["b.md", "a.md"]


def test_threads_may_search_at_once() -> None:
    """As parallel researchers do."""
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: SHIPPED.search("homing switch", limit=3), range(64)))
    assert all(hits == found[0] for hits in found)


def test_a_folder_without_documents_is_refused(tmp_path: Path) -> None:
    """Before anything is asked."""
    with pytest.raises(ConfigError, match="name a folder that holds Markdown documents"):
        FolderSearch(tmp_path)


def test_a_search_that_is_closed_searches_no_more() -> None:
    """Its index is gone."""
    with FolderSearch() as search:
        assert search.search("homing", limit=1)
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        search.search("homing", limit=1)


def test_a_search_that_nobody_holds_closes_itself() -> None:
    """As that of a graph, which is never closed: SQLite warns of a database that was left open."""
    search = FolderSearch()
    close = search.close
    assert close.alive
    del search
    gc.collect()
    assert not close.alive


def test_every_document_has_a_title_and_is_short() -> None:
    """A small model reads three of them at once."""
    for document in DOCUMENTS.glob("*.md"):
        text = document.read_text(encoding="utf-8")
        assert text.startswith("# ")
        assert 60 <= len(text.split()) <= 200


# --- the web ----------------------------------------------------------------------------------------------------------


class Service(BaseHTTPRequestHandler):
    """A search service that answers every key but one."""

    received: list[tuple[str, str | None, object]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.received.append((self.path, self.headers["Authorization"], body))
        self.send_response(401 if self.headers["Authorization"] == "Bearer wrong" else 200)
        self.end_headers()
        page = {"title": "Endstops", "url": "https://example.com/endstops", "content": "A switch.", "score": 0.9}
        self.wfile.write(json.dumps({"query": body["query"], "results": [page]}).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def service() -> Iterator[tuple[str, list[tuple[str, str | None, object]]]]:
    """Its address, and what it was asked."""
    received: list[tuple[str, str | None, object]] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), type("_Service", (Service,), {"received": received})) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", received
        server.shutdown()
        thread.join()


def test_the_web_is_searched_with_the_key(service: tuple[str, list[tuple[str, str | None, object]]]) -> None:
    """Its pages are hits like any others."""
    address, received = service
    with TavilySearch("a-key", base_url=address) as search:
        hits = search.search("endstops", limit=3)
    assert hits == [Hit(source="https://example.com/endstops", title="Endstops", text="A switch.")]
    assert received == [("/search", "Bearer a-key", {"query": "endstops", "max_results": 3})]


def test_a_service_that_refuses_is_an_error(service: tuple[str, list[tuple[str, str | None, object]]]) -> None:
    """A search that could not be made is not one that found nothing."""
    with TavilySearch("wrong", base_url=service[0]) as search, pytest.raises(httpx.HTTPStatusError, match="401"):
        search.search("endstops", limit=3)
