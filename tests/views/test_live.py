"""A terminal shows what happens now at its bottom, and keeps what has happened."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from endstop import (
    Agent,
    LimitHit,
    LimitWarning,
    PlanLimits,
    RoundStarted,
    Spent,
    Started,
    TextDelta,
    Thinking,
    ToolCall,
    ToolCallEvent,
    ToolResultEvent,
    ToolReturn,
    UsageEvent,
    tool,
)
from endstop.models.scripted import ScriptedModel, call, turn
from endstop.views.live import LiveView
from tests.views.screens import (
    LIMITS,
    NO_LIMITS,
    PLAIN,
    SEARCH,
    SPENT,
    Screen,
    live_view,
    researcher,
    search,
    shown,
)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("width", [40, 80, 200])
async def test_a_terminal_ends_with_what_happened_and_no_status(width: int, stream: bool) -> None:
    """Nothing of the status is left, and nothing is wider than the screen."""
    agent = researcher(stream=True)
    screen, view = live_view(width, agent.limits, stream=stream)
    await shown(agent, view)
    text = " ".join(" ".join(screen.lines()).split())
    assert re.fullmatch(
        r"researcher starts with scripted, run r1 round 1 of 2 Let me see\. "
        r"✗ look\(\) error: There is no tool 'look'; .*"
        r'✓ search\(query="endstops"\) 19 characters: All about endst.* '
        r"round 2 of 2: the final answer, without tools They stop the axis\. That is all\. "
        r"warning: 2 of 2 used of max_model_rounds "
        r"\[TRUNCATED: max_model_rounds is used up \(2 of 2\); this is a partial answer from what was found so far\] "
        r"truncated: 2/2 rounds, 1/20 tool calls, \d+ tokens \(1 request estimated\), 0 s",
        text,
    )
    assert "█" not in text
    assert "░" not in text


def status(screen: Screen, after: str) -> list[str]:
    """The rows of the screen below the row that ends with this text."""
    rows = screen.lines()
    return rows[max(at for at, row in enumerate(rows) if row.endswith(after)) + 1 :]


def test_the_status_shows_what_runs_and_what_is_left() -> None:
    """A gauge a limit, two side by side where there is room, and the tools that are running."""
    screen, view = live_view(80, LIMITS)
    view.show(Started(model="m", path=("agent",)))
    view.show(RoundStarted(path=("agent",), round=1))
    assert status(screen, "round 1 of 4")[0] == "⠋ the model is answering, 0 s"
    view.show(Thinking(text="hm" * 600, path=("agent",)))
    view.show(UsageEvent(spent=SPENT, limits=LIMITS, path=("agent",)))
    assert status(screen, "round 1 of 4") == [
        "⠋ working, 0 s, 1,200 characters of thinking",
        "rounds ███████░░░░░░░░░░░░░░░░░░░░ 1/4  tool calls ██░░░░░░░░░░░░░░░░░░░░ 2/20",
        "search calls █████████████████████ 2/2  tokens ███████████████░░░░ 1,600/2,000",
        "cost █░░░░░░░░░░░░░░░░░░░░ $0.01/$0.25  seconds █████░░░░░░░░░░░░░░░░░ 12.5/60",
    ]
    for number in range(6):
        view.show(
            ToolCallEvent(call=ToolCall(call_id=f"{number}", name=f"look{number}", arguments={}), path=("agent",))
        )
    assert status(screen, "round 1 of 4")[:6] == [
        "⠋ 6 tool calls running, 0 s",
        "  look0(), 0 s",
        "  look1(), 0 s",
        "  look2(), 0 s",
        "  look3(), 0 s",
        "rounds ███████░░░░░░░░░░░░░░░░░░░░ 1/4  tool calls ██░░░░░░░░░░░░░░░░░░░░ 2/20",
    ]
    view.end(None)


def test_a_narrow_terminal_has_a_gauge_a_row() -> None:
    """Forty columns are enough, also for a tool with a long name."""
    limits = replace(LIMITS, tool_limits={"a_tool_with_quite_a_long_name_of_its_own": 3})
    screen, view = live_view(40, limits)
    view.show(RoundStarted(path=("agent",), round=1))
    assert status(screen, "round 1 of 4") == [
        "⠋ the model is answering, 0 s",
        "rounds ░░░░░░░░░░░░░░░░░░░░░░░░░░░ 0/4",
        "tool calls ░░░░░░░░░░░░░░░░░░░░░░ 0/20",
        "a_tool_with_quite_a_long_name_of_its_ow…",
        "tokens ░░░░░░░░░░░░░░░░░░░░░░░ 0/2,000",
        "cost ░░░░░░░░░░░░░░░░░░░░░░░░ $0/$0.25",
        "seconds ░░░░░░░░░░░░░░░░░░░░░░░░░ 0/60",
    ]
    view.end(None)


def test_a_long_line_is_printed_as_it_is_written() -> None:
    """A line of any length keeps one row of the status, and none of it is shown twice or lost."""
    words = [f"word{number:03}" for number in range(60)]
    screen, view = live_view(40)
    view.show(RoundStarted(path=("agent",), round=1))
    for word in words:
        view.show(TextDelta(text=f"{word} ", path=("agent",)))
    view.show(ToolCallEvent(call=SEARCH, path=("agent",)))
    assert len(status(screen, "word054")) == 3
    view.end(None)
    assert " ".join(" ".join(screen.lines()).split()).count(" ".join(words)) == 1


def test_wide_characters_are_counted_as_the_terminal_counts_them() -> None:
    """Half of the characters fit, and the screen's width is kept (`lines` checks it)."""
    screen, view = live_view(40)
    text = "終端停止装置は軸を止める。" * 20
    view.show(RoundStarted(path=("agent",), round=1))
    for character in text:
        view.show(TextDelta(text=character, path=("agent",)))
    view.end(None)
    assert text in "".join(screen.lines())


def test_without_color_nothing_is_told_by_color_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR is honoured, and the gauges and outcomes can be read all the same."""
    monkeypatch.setenv("NO_COLOR", "1")
    screen, view = live_view(80, LIMITS, color="truecolor")
    view.show(UsageEvent(spent=SPENT, limits=LIMITS, path=("agent",)))
    view.show(ToolResultEvent(call=SEARCH, result=ToolReturn(call_id="1", name="search", content="no", status="error")))
    view.show(LimitWarning(hit=LimitHit(limit="max_tokens", used=1_600, allowed=2_000), path=("agent",)))
    view.end(None)
    colors = {code for codes in re.findall(r"\x1b\[([\d;]*)m", screen.raw) for code in codes.split(";")}
    assert colors <= {"", "0", "1", "2"}
    assert '  ✗ search(query="endstops")  error: no' in screen.lines()


def test_with_color_a_gauge_turns_from_green_to_yellow_to_red() -> None:
    """The warning share of the limits is where yellow begins."""
    screen, view = live_view(80, LIMITS, color="standard")
    view.show(UsageEvent(spent=SPENT, limits=LIMITS, path=("agent",)))
    view.end(None)
    assert re.search(r"rounds \x1b\[32m█", screen.raw)
    assert re.search(r"tokens \x1b\[33m█", screen.raw)
    assert re.search(r"search calls \x1b\[31m█", screen.raw)


def test_a_terminal_without_unicode_gets_ascii() -> None:
    """Marks, bars and spinner are of its character set."""
    binary = io.BytesIO()
    out = io.TextIOWrapper(binary, encoding="ascii", newline="\n")
    console = Console(file=out, force_terminal=True, width=80, color_system=None, legacy_windows=False)
    view = LiveView(console, LIMITS, Spent(), stream=True, redact=PLAIN, clock=lambda: 100.0)
    view.show(UsageEvent(spent=SPENT, limits=LIMITS, path=("agent",)))
    view.show(ToolResultEvent(call=SEARCH, result=ToolReturn(call_id="1", name="search", content="yes")))
    view.end(None)
    out.flush()
    text = binary.getvalue().decode("ascii")
    assert "rounds #######--------------------" in text
    assert '  + search(query="endstops")  3 characters: yes' in text


def test_a_deadline_is_told_in_seconds() -> None:
    """It is a time, so that there is no share of it to draw."""
    limits = replace(NO_LIMITS, deadline=datetime.now(UTC) + timedelta(seconds=90.4))
    screen, view = live_view(80, limits)
    view.show(RoundStarted(path=("agent",), round=1))
    assert re.fullmatch(r"deadline in (90|89|8\d) s", status(screen, "round 1")[-1])
    view.end(None)


def test_the_cursor_is_never_left_hidden() -> None:
    """Whatever ends the program, the terminal is as it was."""
    screen, view = live_view()
    view.show(RoundStarted(path=("agent",), round=1))
    assert screen.raw.rfind("\x1b[?25h") > screen.raw.rfind("\x1b[?25l")
    view.end(None)


async def test_a_completed_run_ends_with_its_answer_and_figures() -> None:
    """There is no banner."""
    screen, view = live_view()
    await shown(Agent(ScriptedModel([turn("Hello.", usage=(5, 2))]), limits=NO_LIMITS), view)
    assert screen.lines()[-2:] == ["Hello.", "completed: 1 round, 0 tool calls, 7 tokens, 0 s"]


async def test_a_terminal_repeats_text_of_an_earlier_round_below_the_banner() -> None:
    """As plain lines do."""
    steps = [turn("Found it.", calls=[call("search", {"query": "a"})]), turn(calls=[call("search", {"query": "b"})])]
    screen, view = live_view(120)
    await shown(Agent(ScriptedModel(steps), tools=[search]), view, PlanLimits(max_model_rounds=2, on_limit="stop"))
    banner = "[TRUNCATED: max_model_rounds is used up (2 of 2); this is the last text of an unfinished run]"
    assert screen.lines()[-4:-1] == [banner, "", "Found it."]


async def test_what_waits_for_a_person_stands_out_at_the_end() -> None:
    """The question, and the id to answer it by."""

    @tool(requires_approval=True)
    async def fire() -> str:
        return "fired"

    screen, view = live_view()
    await shown(Agent(ScriptedModel([turn(calls=[call("fire", call_id="f")])]), tools=[fire]), view)
    assert screen.lines().count("asks: May fire be called?") == 1
    assert "asks: May fire be called? [r1:f:approval]" in screen.lines()
