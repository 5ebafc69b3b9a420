"""The views show what happened, all of it and nothing else, on any terminal, in any pipe."""

from __future__ import annotations

import io
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from endstop import (
    Agent,
    AgentResult,
    Done,
    Event,
    LimitExceeded,
    LimitHit,
    LimitWarning,
    ModelError,
    PlanLimits,
    Price,
    RoundStarted,
    RunState,
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
from endstop._events import AskUser, LoopDetected, Resumed, RetrievedEvent
from endstop._pauses import Pause
from endstop.models.scripted import ScriptedModel, Step, call, forever, turn
from endstop.views.base import View
from endstop.views.follow import follow
from endstop.views.live import LiveView
from endstop.views.plain import JsonView, PlainView
from endstop.views.words import (
    Gauge,
    Redactor,
    call_text,
    cut_at_width,
    gauges,
    notice,
    outcome_text,
    printable,
    shorten,
    spent_text,
)

PLAIN = Redactor({})
NO_LIMITS = PlanLimits(max_model_rounds=None)
SEARCH = call("search", {"query": "endstops"}, call_id="1")


@tool(read_only=True)
async def search(query: str) -> str:
    """Search."""
    return f"All about {query}."


# --- a terminal ---------------------------------------------------------------------------------------------------


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


# --- plain lines --------------------------------------------------------------------------------------------------

TRUNCATED = """\
· researcher starts with scripted, run r1
· round 1 of 2
Let me see.
· spent: 1/2 rounds, 0/20 tool calls, 100 tokens, 0 s
· search(query="endstops")
· look()
· look() -> error: There is no tool 'look'; the tools are: search.
· search(query="endstops") -> 19 characters: All about endstops.
· round 2 of 2: the final answer, without tools
They stop the axis.
That is all.
· spent: 2/2 rounds, 1/20 tool calls, TOKENS tokens (1 request estimated), 0 s
· warning: 2 of 2 used of max_model_rounds
[TRUNCATED: max_model_rounds is used up (2 of 2); this is a partial answer from what was found so far]
· truncated: 2/2 rounds, 1/20 tool calls, TOKENS tokens (1 request estimated), 0 s
"""


@pytest.mark.parametrize("stream", [True, False])
async def test_plain_lines_tell_a_truncated_run(stream: bool) -> None:
    """What is about the run is marked, its text is not, and the banner comes last: it cannot be missed."""
    agent = researcher(stream=True)
    out, view = plain_view(agent.limits, stream=stream)
    result = await shown(agent, view)
    assert out.getvalue() == TRUNCATED.replace("TOKENS", f"{result.spent.tokens}")


async def test_plain_lines_tell_a_completed_run() -> None:
    """There is no banner, and the answer is written once."""
    out, view = plain_view()
    await shown(Agent(ScriptedModel([turn("Hello.", usage=(5, 2))]), limits=NO_LIMITS), view)
    assert out.getvalue() == (
        "· agent starts with scripted, run r1\n"
        "· round 1\n"
        "Hello.\n"
        "· spent: 1 round, 0 tool calls, 7 tokens, 0 s\n"
        "· completed: 1 round, 0 tool calls, 7 tokens, 0 s\n"
    )


async def test_text_of_an_earlier_round_is_repeated_below_the_banner() -> None:
    """The result's text is there to be read, also where other things were shown after it."""
    steps = [turn("Found it.", calls=[call("search", {"query": "a"})]), turn(calls=[call("search", {"query": "b"})])]
    out, view = plain_view()
    await shown(Agent(ScriptedModel(steps), tools=[search]), view, PlanLimits(max_model_rounds=2, on_limit="stop"))
    banner = "[TRUNCATED: max_model_rounds is used up (2 of 2); this is the last text of an unfinished run]"
    assert f"\n{banner}\n\nFound it.\n· " in out.getvalue()


def play(view: View, events: list[Event], kept: AgentResult[Any] | RunState | None) -> None:
    """Shows events that were made up."""
    for event in events:
        view.show(replace(event, run_id="r1", path=event.path or ("agent",), round=1))
    view.end(kept)


RETRY: list[Event] = [
    RoundStarted(),
    TextDelta(text="Hel"),
    RoundStarted(attempt=2),
    TextDelta(text="Hello."),
    TextDelta(text="\n"),
]


def test_text_that_a_retry_voids_is_marked_or_held_back() -> None:
    """As it streams it cannot be taken back, so that the next attempt says so; round by round it is never written."""
    out, view = plain_view()
    play(view, RETRY, None)
    again = "· round 1, attempt 2; what the attempt before wrote is void\n"
    end = "[FAILED: there is no answer]\n· failed: 0 rounds, 0 tool calls, 0 tokens, 0 s\n"
    assert out.getvalue() == f"· round 1\nHel\n{again}Hello.\n{end}"
    out, view = plain_view(stream=False)
    play(view, RETRY, None)
    assert out.getvalue() == f"· round 1\n{again}{end}"


CHILD = ("agent", "helper")
PAUSE = Pause(pause_id="p1", kind="ask_user", question="Which\none?", call=SEARCH, call_id="1", path=("agent",))


def test_every_other_event_has_its_line() -> None:
    """Children are named, their text and figures are theirs, and nothing that a person should know is left out."""
    out, view = plain_view(PlanLimits(max_model_rounds=9))
    events: list[Event] = [
        Resumed(model="m"),
        RetrievedEvent(counts={"memories": 1_200, "facts": 2}),
        RetrievedEvent(counts={}),
        RoundStarted(path=CHILD),
        TextDelta(text="I am the child.\n", path=CHILD),
        UsageEvent(spent=Spent(model_rounds=1, model_calls=2), limits=NO_LIMITS, path=CHILD),
        ToolCallEvent(call=SEARCH, path=CHILD),
        ToolResultEvent(
            call=SEARCH, result=ToolReturn(call_id="1", name="search", content="Not run: no", status="not_run")
        ),
        LimitWarning(hit=LimitHit(limit="max_cost", used=Decimal("0.081"), allowed=Decimal("0.10"))),
        LoopDetected(reason="the same call came 3 times", repeats=3, nudged=True),
        LoopDetected(reason="the same call came 6 times", repeats=6, nudged=False),
        AskUser(pause=PAUSE),
        Thinking(text="hm"),
    ]
    play(view, events, None)
    assert out.getvalue().splitlines() == [
        "· agent goes on with m, run r1",
        "· recalled memories 1,200, facts 2",
        "· recalled nothing",
        "· helper > round 1",
        "· helper > spent: 1 round, 2 model calls, 0 tool calls, 0 tokens, 0 s",
        '· helper > search(query="endstops")',
        '· search(query="endstops") -> Not run: no',
        "· warning: 0.081 of 0.1 used of max_cost",
        "· warning: the same call came 3 times; the model was told",
        "· warning: the same call came 6 times",
        "· asks: Which one?",
        "[FAILED: there is no answer]",
        "· failed: 0/9 rounds, 0 tool calls, 0 tokens, 0 s",
    ]


async def test_a_failed_run_says_what_it_had_spent() -> None:
    """The figures are those of its state, which has the request that failed."""
    agent = Agent(ScriptedModel([ModelError("no")]))
    out, view = plain_view(agent.limits)
    with pytest.raises(ModelError) as caught:
        await agent.run("go")
    view.end(caught.value.state)
    assert out.getvalue().startswith("[FAILED: there is no answer]\n· failed: 1/10 rounds, 0 tool calls, 0 tokens, 0")


async def test_the_ending_names_what_a_person_should_check() -> None:
    """Tools that may have changed something, calls that were not run, and questions that wait."""

    @tool
    async def pay(euros: int) -> str:
        return "paid"

    @tool(requires_approval=True)
    async def fire() -> str:
        return "fired"

    steps = [
        turn(calls=[call("pay", {"euros": 5})]),
        turn(calls=[call("fire", call_id="f"), call("pay", {"euros": 6})]),
    ]
    out, view = plain_view()
    await shown(Agent(ScriptedModel(steps), tools=[pay, fire]), view, PlanLimits(max_tool_calls=2))
    end = out.getvalue().splitlines()
    assert "· asks: May fire be called? [r1:f:approval]" in end
    assert "· tools that ran and may have changed something: pay" in end
    assert end[-1].startswith("· paused: 2 rounds, 2 tool calls")
    out, view = plain_view()
    await shown(
        Agent(ScriptedModel([*steps[:1], *steps[:1]]), tools=[pay]), view, PlanLimits(max_tool_calls=1, on_limit="stop")
    )
    assert "· asked for and not run: pay(euros=5)" in out.getvalue().splitlines()


# --- JSON ---------------------------------------------------------------------------------------------------------


def json_view(*, stream: bool = True, redact: Redactor = PLAIN) -> tuple[Callable[[], list[dict[str, Any]]], JsonView]:
    """A JSON view, and what it wrote, line by line."""
    out = io.StringIO()
    return lambda: [json.loads(line) for line in out.getvalue().splitlines()], JsonView(
        out, stream=stream, redact=redact
    )


async def test_json_lines_are_the_events() -> None:
    """Each has its kind, and the last one carries the result, money and times included."""
    deadline = datetime.now(UTC) + timedelta(hours=1)
    price = Price(input_per_million=Decimal("0.10"), output_per_million=Decimal(1))
    limits = PlanLimits(max_model_rounds=2, max_cost=Decimal("0.50"), deadline=deadline, assume_price=price)
    lines, view = json_view()
    agent = researcher(stream=True)
    result = await shown(agent, view, limits)
    kinds = [line["kind"] for line in lines()]
    assert kinds[:2] == ["started", "round_started"]
    assert kinds[-2:] == ["truncated", "done"]
    assert {"text_delta", "usage", "tool_call", "tool_result", "limit_warning"} <= set(kinds)
    assert [line["seq"] for line in lines()] == list(range(1, len(kinds) + 1))
    last = lines()[-1]["result"]
    assert last["text"] == result.text
    assert last["stop_reason"] == "tool_limit"
    assert last["ending"]["limit"] == "max_model_rounds"
    assert Decimal(last["state"]["spent"]["cost"]) == result.spent.cost > 0
    assert datetime.fromisoformat(last["state"]["limits"]["deadline"]) == deadline


async def test_json_lines_without_streaming_leave_the_pieces_out() -> None:
    """The whole text is in the result."""
    lines, view = json_view(stream=False)
    agent = Agent(ScriptedModel([Step(text="Hello there.", thinking="Hm, hm.")], stream=True))
    result = await shown(agent, view)
    assert [line["kind"] for line in lines()] == ["started", "round_started", "usage", "done"]
    assert lines()[-1]["result"]["text"] == result.text


def test_json_lines_stay_lines() -> None:
    """Whatever a text holds, one event is one line of valid JSON."""
    text = 'a\nb\r\x1b[0m"\\é\u2028終'
    lines, view = json_view()
    play(view, [TextDelta(text=text)], None)
    assert [line["text"] for line in lines()] == [text]


# --- the live view ------------------------------------------------------------------------------------------------


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


# --- words --------------------------------------------------------------------------------------------------------


def test_a_text_cannot_command_the_terminal() -> None:
    """Escapes, bells, carriage returns and what turns the direction of writing are shown as `?`."""
    assert printable("a\x1b[2J\x07b\rc\r\nd\te\u202ef\x9b0m\ud800") == "a?[2J?b?c\nd\te?f?0m?"
    assert printable("é終🙂") == "é終🙂"


def test_a_secret_of_the_environment_is_not_shown() -> None:
    """Its name stands in its place, also inside JSON; short values and other names are left alone."""
    redact = Redactor(
        {"OPENAI_API_KEY": 'sk-"12345', "API_TOKEN": "short", "HOME": "not-a-secret-at-all", "DB_PASSWORD": "é-é-é-é-é"}
    )
    assert redact('the key sk-"12345!') == "the key [OPENAI_API_KEY]!"
    assert redact(json.dumps(['sk-"12345', "é-é-é-é-é"])) == '["[OPENAI_API_KEY]", "[DB_PASSWORD]"]'
    assert redact(json.dumps("é-é-é-é-é", ensure_ascii=False)) == '"[DB_PASSWORD]"'
    assert redact("short not-a-secret-at-all") == "short not-a-secret-at-all"


@pytest.mark.parametrize("kind", ["plain", "json", "live"])
def test_no_view_shows_a_secret(kind: str) -> None:
    """Wherever a text comes from: the model, a tool's arguments, its result."""
    redact = Redactor({"MY_SECRET": "hush-hush"})
    screen = Screen(200)
    console = Console(file=screen, force_terminal=True, width=200, color_system=None)
    views: dict[str, View] = {
        "plain": PlainView(screen, NO_LIMITS, Spent(), stream=True, redact=redact),
        "json": JsonView(screen, stream=True, redact=redact),
        "live": LiveView(console, NO_LIMITS, Spent(), stream=True, redact=redact),
    }
    asked = call("search", {"query": "hush-hush"}, call_id="1")
    events: list[Event] = [
        TextDelta(text="It is hush-hush"),
        ToolCallEvent(call=asked),
        ToolResultEvent(call=asked, result=ToolReturn(call_id="1", name="search", content="hush-hush")),
    ]
    play(views[kind], events, None)
    assert "hush" not in screen.raw
    assert "[MY_SECRET]" in screen.raw


@given(st.text(), st.integers(min_value=2, max_value=20))
def test_cutting_loses_nothing_but_the_spaces_at_the_cuts(text: str, width: int) -> None:
    """Each line fits; a character that is wider than the screen stands alone."""
    lines, rest = cut_at_width(text, width)
    assert "".join([*lines, rest]).replace(" ", "") == text.replace(" ", "")
    assert all(cell_len(line) <= width for line in [*lines, rest])


def test_cutting_prefers_spaces() -> None:
    """A word is only cut where it is longer than the line."""
    assert cut_at_width("one two three", 8) == (["one two"], "three")
    assert cut_at_width("onetwothree four", 8) == (["onetwoth"], "ree four")
    assert cut_at_width("終終", 1) == (["終", "終"], "")


@pytest.mark.parametrize(
    ("text", "short"),
    [("a  b\nc", "a b c"), ("abcdefghij", "abcdefghij"), ("abcdefghijk", "abcdefghi…"), (" " * 99 + "x", "…")],
)
def test_a_text_is_shortened_to_one_line(text: str, short: str) -> None:
    """White space is one space, and a cut is marked."""
    assert shorten(text, 10) == short


def test_a_call_is_shown_as_it_is_written() -> None:
    """Long arguments are cut, broken ones are shown as they came."""
    assert call_text(call("f", {"a": 1, "b": ["é", None]})) == 'f(a=1, b=["é", null])'
    assert call_text(ToolCall(call_id="1", name="f", arguments={}, invalid_arguments='{"a": ')) == 'f({"a":)'
    assert len(call_text(call("f", {"a": "x" * 10_000}))) <= 102


def test_an_outcome_says_how_much_came() -> None:
    """A long result is cut, its length is not."""
    assert outcome_text(ToolReturn(call_id="1", name="f", content="x" * 5_000)).startswith("5,000 characters: xxx")
    assert len(outcome_text(ToolReturn(call_id="1", name="f", content="x" * 5_000))) < 200


def test_a_limit_of_nothing_is_used_up() -> None:
    """Zero allowed is a full gauge, not a division by zero."""
    assert gauges(PlanLimits(max_model_rounds=None, max_tool_calls=0), Spent()) == [
        Gauge(label="tool calls", figure="0/0", share=1.0)
    ]
    over = gauges(PlanLimits(max_model_rounds=None, deadline=datetime.now(UTC) - timedelta(seconds=1)), Spent())
    assert over == [Gauge(label="deadline", figure="has come", share=None)]


def test_figures_name_each_limit_that_is_set() -> None:
    """An amount without a limit stands alone; one with a limit stands against it."""
    spent = replace(SPENT, output_tokens=400, price_source="a table", unmeasured=2)
    limits = replace(LIMITS, max_model_calls=9, max_output_tokens=500)
    assert spent_text(spent, limits) == (
        "1/4 rounds, 1/9 model calls, 2/20 tool calls, 2/2 search calls, 2,000/2,000 tokens (2 requests estimated), "
        "400/500 output tokens, $0.01/$0.25, 12.5/60 s"
    )
    assert spent_text(spent, NO_LIMITS) == "1 round, 2 tool calls, 2,000 tokens (2 requests estimated), $0.01, 12.5 s"


async def test_how_a_run_ends_has_no_line_of_its_own() -> None:
    """The closing words say it."""
    result = await Agent(ScriptedModel(["hi"])).run("go")
    assert notice(Done(result=result, path=("agent",)), NO_LIMITS) == ""


# --- following a run ----------------------------------------------------------------------------------------------


class Recorder:
    """A view that keeps what it is shown, or breaks at the first event."""

    def __init__(self, breaks: bool = False) -> None:
        self.kinds: list[str] = []
        self.kept: AgentResult[object] | RunState | None = None
        self.breaks = breaks

    def show(self, event: Event) -> None:
        """Keeps the event's kind."""
        self.kinds.append(event.kind)
        if self.breaks:
            raise BrokenPipeError

    def end(self, kept: AgentResult[object] | RunState | None) -> None:
        """Keeps what is known at the end."""
        self.kept = kept


async def followed(agent: Agent[Any], view: Recorder, save: Path | None = None) -> AgentResult[object]:
    """A run followed to its end, where a second Ctrl-C would not be asked for."""
    return await follow(
        lambda: agent.stream("go"), view, save=save, on_interrupt=lambda: view.kinds.append("interrupt")
    )


async def test_a_run_is_shown_and_saved(tmp_path: Path) -> None:
    """The file has the result, whole, and nothing beside it is left over."""
    view = Recorder()
    result = await followed(Agent(ScriptedModel(["hi"])), view, tmp_path / "run.json")
    assert view.kept is result
    assert view.kinds[-1] == "done"
    assert AgentResult.from_json((tmp_path / "run.json").read_bytes()) == result
    assert os.listdir(tmp_path) == ["run.json"]


async def test_a_failure_leaves_its_state(tmp_path: Path) -> None:
    """What was done before is in the file, for a run to go on from."""
    view = Recorder()
    agent = Agent(ScriptedModel([turn(calls=[call("search", {"query": "a"})]), ModelError("no")]), tools=[search])
    with pytest.raises(ModelError) as caught:
        await followed(agent, view, tmp_path / "run.json")
    assert view.kept is caught.value.state
    assert RunState.from_json((tmp_path / "run.json").read_bytes()) == caught.value.state


async def test_a_limit_that_raises_leaves_its_result(tmp_path: Path) -> None:
    """The partial result is shown and saved, whatever the caller makes of the error."""
    view = Recorder()
    agent = replace(researcher(), limits=PlanLimits(max_model_rounds=1, on_limit="raise"))
    with pytest.raises(LimitExceeded) as caught:
        await followed(agent, view, tmp_path / "run.json")
    assert view.kept is caught.value.result
    assert AgentResult.from_json((tmp_path / "run.json").read_bytes()).stop_reason == "tool_limit"


async def test_an_error_of_somebody_else_leaves_nothing(tmp_path: Path) -> None:
    """What a run had spent is not known then, so that it cannot be gone on with honestly."""
    view = Recorder()
    with pytest.raises(ValueError, match="wrong"):
        await followed(Agent(ScriptedModel([ValueError("wrong")])), view, tmp_path / "run.json")
    assert view.kept is None
    assert os.listdir(tmp_path) == []


async def test_a_view_that_breaks_ends_the_run_and_loses_nothing(tmp_path: Path) -> None:
    """Where the reader of a pipe goes away the run is cancelled, and saved."""
    view = Recorder(breaks=True)
    with pytest.raises(BrokenPipeError):
        await followed(Agent(ScriptedModel(["hi"], latency_seconds=600)), view, tmp_path / "run.json")
    assert isinstance(view.kept, AgentResult)
    assert view.kept.stop_reason == "cancelled"
    assert AgentResult.from_json((tmp_path / "run.json").read_bytes()).stop_reason == "cancelled"


@tool
async def interrupt() -> str:
    """Press Ctrl-C."""
    signal.raise_signal(signal.SIGINT)
    await anyio.sleep(60)
    return "not reached"


@pytest.fixture
async def at_ctrl_c() -> AsyncIterator[Callable[[Any], None]]:
    """Sets what Ctrl-C does, and sets it back."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler) and None
    signal.signal(signal.SIGINT, before)


async def test_ctrl_c_ends_a_run_in_order(at_ctrl_c: Callable[[Any], None]) -> None:
    """The run is cancelled, has a result, and Ctrl-C does what it did before."""
    at_ctrl_c(signal.default_int_handler)
    view = Recorder()
    agent = Agent(ScriptedModel([turn("On it.", calls=[call("interrupt")])]), tools=[interrupt])
    result = await followed(agent, view)
    assert result.stop_reason == "cancelled"
    assert result.text == "On it."
    assert view.kinds.count("interrupt") == 1
    assert view.kinds[-1] == "cancelled"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


async def test_ctrl_c_that_is_ignored_stays_ignored(at_ctrl_c: Callable[[Any], None]) -> None:
    """A program that a shell started in the background is not ended by the Ctrl-C for another."""
    at_ctrl_c(signal.SIG_IGN)
    view = Recorder()

    @tool
    async def press() -> str:
        signal.raise_signal(signal.SIGINT)
        return "pressed"

    result = await followed(Agent(ScriptedModel([turn(calls=[call("press")]), "done"]), tools=[press]), view)
    assert result.stop_reason == "completed"
    assert "interrupt" not in view.kinds
