"""Runs and screens that the tests of the views share."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from decimal import Decimal
from typing import Any

from rich.cells import cell_len
from rich.console import Console

from endstop import Agent, AgentResult, Event, PlanLimits, RunState, Spent, UsageEvent, tool
from endstop.models.scripted import ScriptedModel, call, forever, turn
from endstop.views.base import View
from endstop.views.live import LiveView
from endstop.views.plain import PlainView
from endstop.views.words import Redactor

PLAIN = Redactor({})
NO_LIMITS = PlanLimits(max_model_rounds=None)
SEARCH = call("search", {"query": "endstops"}, call_id="1")
LIMITS = PlanLimits(
    max_model_rounds=4,
    max_tool_calls=20,
    tool_limits={"search": 2},
    max_tokens=2_000,
    max_cost=Decimal("0.25"),
    max_seconds=60,
)
SPENT = Spent(
    model_rounds=1,
    model_calls=1,
    tool_calls=2,
    tools={"search": 2},
    input_tokens=1_600,
    cost=Decimal("0.01"),
    seconds=12.5,
)


@tool(read_only=True)
async def search(query: str) -> str:
    """Search."""
    return f"All about {query}."


class Screen(io.StringIO):
    """A terminal of a given width, as far as the live view needs one: what was printed ends up in `rows`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.raw = ""
        self.rows = [""]
        self.row = 0

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.raw += text
        for command, argument, final in re.findall(r"(\x1b\[([\d;?]*)([A-Za-z])|[^\x1b])", text):
            if command == "\n":
                self.row += 1
                self.rows += [""] * (self.row + 1 - len(self.rows))
            elif final == "A":
                self.row -= int(argument or 1)
            elif final == "K":
                self.rows[self.row] = ""
            elif not final and command != "\r":
                self.rows[self.row] += command
        return len(text)

    def lines(self) -> list[str]:
        """What can be read on it."""
        assert all(cell_len(row) <= self.width for row in self.rows)
        return "\n".join(row.rstrip() for row in self.rows).strip("\n").split("\n")


def live_view(
    width: int = 80, limits: PlanLimits = NO_LIMITS, *, stream: bool = True, color: Any = None
) -> tuple[Screen, LiveView]:
    """A live view of a run that has lasted no time, on a terminal of this width."""
    screen = Screen(width)
    console = Console(
        file=screen, force_terminal=True, width=width, height=40, color_system=color, legacy_windows=False
    )
    return screen, LiveView(console, limits, Spent(), stream=stream, redact=PLAIN, clock=lambda: 100.0)


def plain_view(limits: PlanLimits = NO_LIMITS, *, stream: bool = True) -> tuple[io.StringIO, PlainView]:
    """A plain view and where it writes."""
    out = io.StringIO()
    return out, PlainView(out, limits, Spent(), stream=stream, redact=PLAIN)


async def shown(agent: Agent[Any], view: View, limits: PlanLimits | None = None) -> AgentResult[Any]:
    """Shows a whole run; its times are taken for zero, so that what is shown is always the same."""
    async with agent.stream("go", limits=limits, run_id="r1") as run:
        async for event in run:
            timeless = event
            if isinstance(event, UsageEvent):
                timeless = replace(event, spent=replace(event.spent, seconds=0.0))
            view.show(timeless)
    result = run.result
    state = result.state.copy()
    state.spent = replace(state.spent, seconds=0.0)
    view.end(replace(result, state=state))
    return result


def researcher(*, stream: bool = False) -> Agent[str]:
    """An agent that never comes to an answer by itself."""
    steps = forever(
        lambda request: (
            "They stop the axis.\nThat is all."
            if request.final
            else turn("Let me see.", calls=[call("search", {"query": "endstops"}), call("look")], usage=(90, 10))
        )
    )
    limits = PlanLimits(max_model_rounds=2, max_tool_calls=20)
    return Agent(ScriptedModel([steps], stream=stream), tools=[search], name="researcher", limits=limits)


def play(view: View, events: list[Event], kept: AgentResult[Any] | RunState | None) -> None:
    """Shows events that were made up."""
    for event in events:
        view.show(replace(event, run_id="r1", path=event.path or ("agent",), round=1))
    view.end(kept)
