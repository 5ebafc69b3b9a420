"""What the assistant needs of the world outside: a search, and where it is asked to, a browser. One method each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One thing that a search found: where it stands, its title, and the text that matters."""

    source: str
    title: str
    text: str


class Search(Protocol):
    """Anything that finds text by words, the best first."""

    def search(self, query: str, *, limit: int) -> list[Hit]:
        """At most `limit` hits; none where nothing matches."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Browsed:
    """What a browser brought home.

    `text` is what it read that bears on the question, `sources` the addresses of the pages, in the order visited.
    `steps` counts its actions, never more than it was allowed; `truncated` says that it was cut there, and that
    `text` is what it had by then.
    """

    text: str
    sources: tuple[str, ...]
    steps: int
    truncated: bool


class Browser(Protocol):
    """Anything that looks a question up on pages, within a number of steps. It is called from a worker thread."""

    def browse(self, question: str, *, max_steps: int) -> Browsed:
        """Look the question up. Running out of steps is an ending like any other, and never an error."""
        ...
