"""Lines for people and for programs: all of what happened, in order, and nothing else."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from endstop import (
    Agent,
    Event,
    LimitHit,
    LimitWarning,
    ModelError,
    PlanLimits,
    Price,
    RoundStarted,
    Spent,
    Started,
    TextDelta,
    Thinking,
    ToolCallEvent,
    ToolResultEvent,
    ToolReturn,
    UsageEvent,
    tool,
)
from endstop._events import AskUser, LoopDetected, Resumed, RetrievedEvent
from endstop._pauses import Pause
from endstop.models.scripted import ScriptedModel, Step, call, turn
from endstop.views.plain import JsonView
from endstop.views.words import (
    Redactor,
)
from tests.views.screens import (
    NO_LIMITS,
    PLAIN,
    SEARCH,
    plain_view,
    play,
    researcher,
    search,
    shown,
)

CHILD = ("agent", "helper")
PAUSE = Pause(pause_id="p1", kind="ask_user", question="Which\none?", call=SEARCH, call_id="1", path=("agent",))


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


def test_every_other_event_has_its_line() -> None:
    """Children are named, their text and figures are theirs, and nothing that a person should know is left out."""
    out, view = plain_view(PlanLimits(max_model_rounds=9))
    events: list[Event] = [
        Resumed(model="m"),
        RetrievedEvent(counts={"memories": 1_200, "facts": 2}),
        RetrievedEvent(counts={}),
        Started(model="n", path=CHILD),
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
        "· helper > starts with n",
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
    assert "· asked for, without a result: pay(euros=5)" in out.getvalue().splitlines()


# --- JSON ---


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
