"""The one task that every contender does: ask for a search in each round, and answer in the last."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

Job: TypeAlias = Callable[[], Awaitable[int]]
"""One whole run of an agent; it returns how many rounds, or pieces of text, there really were."""

PROMPT = "What keeps the axis of a printer from running past its end? Search as often as you need."
ANSWER = "An endstop: a switch at the end of the axis that says when the carriage has arrived."
PIECE = "word "
TOOL = "search"


async def search(query: str, page: int = 1) -> str:
    """Search the manual."""
    return (
        f"Page {page} on {query}: an endstop is a switch or a sensor at the end of an axis. The firmware stops the "
        "motor when it is triggered."
    )


def arguments(round_number: int) -> dict[str, str | int]:
    """The arguments of the call in this round, counted from 0. They differ, as those of an agent that gets on do."""
    return {"query": "endstop switch on the x axis", "page": round_number + 1}


def call_id(round_number: int) -> str:
    """The id of the call that is asked for in this round, counted from 0."""
    return f"call_{round_number:04d}"


def tokens(round_number: int) -> tuple[int, int]:
    """Input and output tokens that the model reports for this round, counted from 0."""
    return 120 + 55 * round_number, 25
