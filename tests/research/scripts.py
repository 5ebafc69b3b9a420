"""Scripts for the assistant's model, and fakes for what it needs besides."""

from __future__ import annotations

from collections.abc import Sequence

from examples.research_assistant.models import ScriptedChat
from examples.research_assistant.nodes import RESEARCH_TEAM, RESEARCHER, REVIEWER, SPLIT, SUMMARIZE, WRITER
from examples.research_assistant.ports import Browsed, Hit

QUESTION = {"question": "How are endstops wired?"}

SUB_QUESTIONS = ["What is normally open?", "What is normally closed?", "What breaks?"]


def script(
    *reviews: str, sub_questions: Sequence[str] = SUB_QUESTIONS, drafts: Sequence[str] = ("A draft.",)
) -> ScriptedChat:
    """A model whose reviewer says these, in order, and the last of them for ever."""
    return ScriptedChat(
        script={
            SPLIT: ["\n".join(sub_questions)],
            RESEARCHER: ["A note."],
            SUMMARIZE: ["A summary."],
            RESEARCH_TEAM: ["Evidence."],
            WRITER: list(drafts),
            REVIEWER: list(reviews),
        }
    )


class FakeSearch:
    """A search that finds a document named after each query, and keeps the queries."""

    def __init__(self) -> None:
        self.queries: list[str] = []

    def search(self, query: str, *, limit: int) -> list[Hit]:
        """One hit."""
        self.queries.append(query)
        return [Hit(source=f"about {query}", title=query, text="Text.")]


class FakeBrowser:
    """A browser that comes home with one page, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def browse(self, question: str, *, max_steps: int) -> Browsed:
        """One page."""
        self.asked.append((question, max_steps))
        return Browsed(text="Seen.", sources=("http://127.0.0.1/a", "http://127.0.0.1/b"), steps=2, truncated=False)
