"""Loops in whole runs: one nudge a streak, then an end through the ladder. What a loop is: `tests/test_loops.py`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest

from endstop import (
    Agent,
    AgentResult,
    ConfigError,
    Event,
    LimitExceeded,
    LoopDetected,
    LoopPolicy,
    Message,
    ModelError,
    ModelRequest,
    PlanLimits,
    RunState,
    Tool,
    ToolCall,
    Truncated,
    UserMessage,
    tool,
)
from endstop.models.scripted import ScriptedModel, ScriptStep, call, forever, turn
from tests.runs import assert_one_end, assert_valid_history, events_of
from tests.shop import APPROVE, answers_to, assert_all_answered, returns, stored

MANY = PlanLimits(max_model_rounds=50)
SAME = "the same call (look) came {} times running and returned nothing new"
LAST = "what I have"


@tool(read_only=True)
async def look(n: int) -> str:
    """Look at a page: it never changes."""
    return f"page {n}"


@tool
async def write(draft: str) -> str:
    """Write a draft."""
    return "written"


def until_told(*steps: ScriptStep) -> ScriptedModel:
    """A model that takes these steps in turn, for ever, and answers only where it is asked for the final answer."""

    def taking(step: ScriptStep) -> Callable[[ModelRequest], ScriptStep]:
        return lambda request: LAST if request.final else step

    return ScriptedModel([forever(*map(taking, steps))])


def looping(*calls: ToolCall, limits: PlanLimits = MANY, tools: Sequence[Tool] = (look, write)) -> Agent[str]:
    """An agent whose model asks for these calls, one a turn, over and over; by default to look at one page."""
    asked = calls or (call("look", {"n": 1}),)
    return Agent(until_told(*(turn(calls=[each]) for each in asked)), tools=tools, limits=limits)


async def watched(agent: Agent[str]) -> tuple[AgentResult[str], list[Event]]:
    async with agent.stream("go") as run:
        events = await events_of(run)
    return run.result, events


def findings(events: Sequence[Event]) -> list[tuple[int, int, bool]]:
    """Round, repeats and whether the model was told, of each `loop_detected`."""
    return [(event.round, event.repeats, event.nudged) for event in events if isinstance(event, LoopDetected)]


def nudges(messages: Sequence[Message]) -> list[str]:
    """What the kernel told the model about repeating itself."""
    told = [m.content for m in messages if isinstance(m, UserMessage) and m.source == "kernel"]
    return [text for text in told if isinstance(text, str) and text.startswith("You are repeating yourself: ")]


# -- nudge, then end -------------------------------------------------------------------------------


async def test_a_loop_is_told_to_the_model_once_and_ends_the_run_if_it_goes_on() -> None:
    """At the third repeat a nudge, three steps later the end, with the final answer from the reserve."""
    agent = looping()
    result, events = await watched(agent)
    assert findings(events) == [(3, 3, True), (6, 6, False)]
    assert [event.reason for event in events if isinstance(event, LoopDetected)] == [SAME.format(3), SAME.format(6)]
    assert nudges(result.messages) == [
        f"You are repeating yourself: {SAME.format(3)}. Try something else, or answer from what you have."
    ]
    assert (result.stop_reason, result.truncated, result.text) == ("loop", True, LAST)
    assert result.ending is not None
    assert (result.ending.limit, result.ending.used, result.ending.allowed) == ("loop", 6, 3)
    assert result.ending.rung == "model_answer"
    assert str(result).startswith(f"[TRUNCATED: the run repeats itself; {SAME.format(6)}; this is a partial answer")
    assert result.spent.model_calls == 7
    assert_valid_history(result.messages)
    assert_one_end(events)
    assert [event.kind for event in events][-2:] == ["truncated", "done"]
    (truncated,) = [event for event in events if isinstance(event, Truncated)]
    assert truncated.ending == result.ending


async def test_the_nudge_stands_after_the_returns_of_its_round() -> None:
    """The model reads it next, before it is asked again."""
    agent = looping()
    await agent.run("go")
    assert isinstance(agent.model, ScriptedModel)
    fourth = agent.model.requests[3].messages
    assert [message.kind for message in fourth[-3:]] == ["model", "tool", "user"]
    assert len(nudges(fourth)) == 1


async def test_a_model_that_heeds_the_nudge_comes_to_its_answer() -> None:
    """A first finding ends nothing."""
    model = ScriptedModel(
        [forever(lambda asked: "page 1" if nudges(asked.messages) else turn(calls=[call("look", {"n": 1})]))]
    )
    result, events = await watched(Agent(model, tools=[look], limits=MANY))
    assert (result.stop_reason, result.text, result.ending) == ("completed", "page 1", None)
    assert findings(events) == [(3, 3, True)]


async def test_a_new_streak_gets_a_nudge_of_its_own() -> None:
    """Something new in between ends a streak."""
    same = [turn(calls=[call("look", {"n": 1})])] * 4
    new = [turn(calls=[call("look", {"n": 2})])]
    result, events = await watched(Agent(ScriptedModel([*same, *new, *same, "done"]), tools=[look], limits=MANY))
    assert (result.stop_reason, len(nudges(result.messages))) == ("completed", 2)
    assert [told for _, _, told in findings(events)] == [True, True]


@pytest.mark.parametrize(
    "limits",
    [PlanLimits(max_model_rounds=4), PlanLimits(max_model_rounds=None, max_model_calls=4)],
    ids=["rounds", "calls"],
)
async def test_the_model_is_nudged_only_where_a_round_is_left_for_it(limits: PlanLimits) -> None:
    """Before the final answer there is nothing to try any more; the loop is told to the reader all the same."""
    result, events = await watched(looping(limits=limits))
    assert findings(events) == [(3, 3, False)]
    assert nudges(result.messages) == []
    assert result.text == LAST
    assert result.spent.model_calls == 4


async def test_the_last_answer_of_a_loop_is_inside_the_limits() -> None:
    """Seven rounds are six that repeat and the one that was kept."""
    result = await looping(limits=PlanLimits(max_model_rounds=7)).run("go")
    assert (result.stop_reason, result.text, result.spent.model_rounds) == ("loop", LAST, 7)


async def test_at_a_loop_a_run_may_stop_without_a_last_answer() -> None:
    """`on_limit="stop"`: the tool results are handed over."""
    result = await looping(limits=PlanLimits(max_model_rounds=50, on_limit="stop")).run("go")
    assert result.ending is not None
    assert (result.stop_reason, result.ending.rung, result.spent.model_calls) == ("loop", "tool_digest", 6)


async def test_at_a_loop_a_run_may_raise() -> None:
    """`on_limit="raise"`: the error carries the whole partial result."""
    with pytest.raises(LimitExceeded, match=r"^the run repeats itself; the same call") as raised:
        await looping(limits=PlanLimits(max_model_rounds=50, on_limit="raise")).run("go")
    assert raised.value.result.stop_reason == "loop"
    assert raised.value.ending.limit == "loop"


# -- what counts -----------------------------------------------------------------------------------


async def test_a_writer_and_a_reviewer_that_take_turns_are_a_loop() -> None:
    """Never two equal calls in a row, and nothing new all the same."""
    result, events = await watched(looping(call("write", {"draft": "a"}), call("look", {"n": 1})))
    assert result.stop_reason == "loop"
    assert [told for _, _, told in findings(events)] == [True, False]


async def test_looking_at_page_after_page_is_none() -> None:
    """Arguments are compared whole."""
    pages = itertools.count()
    model = ScriptedModel(
        [forever(lambda asked: LAST if asked.final else turn(calls=[call("look", {"n": next(pages)})]))]
    )
    result, events = await watched(Agent(model, tools=[look], limits=MANY))
    assert (result.stop_reason, findings(events)) == ("tool_limit", [])


async def test_the_same_call_with_a_new_result_is_progress() -> None:
    """Waiting for something that moves is no loop."""
    levels = itertools.count()

    async def level() -> str:
        """Read the level."""
        return f"{next(levels)} litres"

    agent = Agent(until_told(turn(calls=[call("level")])), tools=[level], limits=PlanLimits(max_model_rounds=30))
    result, events = await watched(agent)
    assert (result.stop_reason, findings(events)) == ("tool_limit", [])


async def test_one_parallel_batch_is_one_step() -> None:
    """Whatever the order of its calls."""
    pair = [call("look", {"n": 1}), call("look", {"n": 2})]
    agent = Agent(until_told(turn(calls=pair), turn(calls=pair[::-1])), tools=[look], limits=MANY)
    result, events = await watched(agent)
    assert (result.stop_reason, findings(events)) == ("loop", [(3, 3, True), (6, 6, False)])


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ([call("fly", {"n": n}) for n in range(60)], "called tools that do not exist"),
        ([call("look", {"n": f"x{n}"}) for n in range(60)], "failed with errors that had come before"),
    ],
    ids=["unknown tool", "equal errors"],
)
async def test_failing_in_ever_new_ways_is_a_loop(asked: list[ToolCall], kind: str) -> None:
    """Calls of no tool, and the same error under changing arguments, are streaks of their own."""
    result, events = await watched(looping(*asked))
    assert result.stop_reason == "loop"
    (first, _) = [event for event in events if isinstance(event, LoopDetected)]
    assert kind in first.reason


async def test_the_same_answer_to_ever_new_questions_is_advice_alone() -> None:
    """Working off a list looks the same: the run is never ended for it."""

    async def check(item: int) -> str:
        """Check an item."""
        return "in order"

    asked = [turn(calls=[call("check", {"item": n})]) for n in range(20)]
    result, events = await watched(Agent(ScriptedModel([*asked, "all in order"]), tools=[check], limits=MANY))
    assert (result.stop_reason, result.text) == ("completed", "all in order")
    assert findings(events) == [(8, 8, True)]


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({"polling": True}, ("loop", [(10, 10, True), (20, 20, False)])),
        ({"repeatable": True}, ("tool_limit", [])),
        ({}, ("loop", [(3, 3, True), (6, 6, False)])),
    ],
    ids=["polling", "repeatable", "neither"],
)
async def test_a_tool_says_how_often_it_may_repeat(
    declared: dict[str, bool], expected: tuple[str, list[tuple[int, int, bool]]]
) -> None:
    """Polling may more often, a repeatable tool as often as it likes."""

    async def ready() -> str:
        """Ask whether it is ready."""
        return "not yet"

    result, events = await watched(looping(call("ready"), tools=[tool(**declared)(ready)]))
    assert (result.stop_reason, findings(events)) == expected


async def test_without_a_policy_nothing_is_a_loop() -> None:
    """`loops=None`: only the limits end such a run."""
    agent = Agent(until_told(turn(calls=[call("look", {"n": 1})])), tools=[look], loops=None)
    result, events = await watched(agent)
    assert (result.stop_reason, result.spent.model_rounds, findings(events)) == ("tool_limit", 10, [])


async def test_the_policy_is_the_agent_s() -> None:
    """Its numbers are those of the findings; one that cannot be used is refused by name."""
    asked = turn(calls=[call("look", {"n": 1})])
    agent = Agent(until_told(asked), tools=[look], limits=MANY, loops=LoopPolicy(repeats=2, patience=1))
    result, events = await watched(agent)
    assert (result.stop_reason, findings(events)) == ("loop", [(2, 2, True), (3, 3, False)])
    with pytest.raises(ConfigError, match="repeats"):
        LoopPolicy(repeats=1)


async def test_a_child_that_loops_ends_and_its_parent_goes_on() -> None:
    """The finding is an event of the child; its partial answer is the tool's return."""
    helper = Agent(until_told(turn(calls=[call("look", {"n": 1})])), tools=[look], name="helper", limits=MANY)
    model = ScriptedModel([turn(calls=[call("helper", {"task": "look"}, call_id="helper")]), "the end"])
    result, events = await watched(Agent(model, tools=[helper.as_tool()], name="boss", limits=MANY))
    assert (result.stop_reason, result.text) == ("completed", "the end")
    assert {event.path for event in events if isinstance(event, LoopDetected)} == {("boss", "helper")}
    partial = "this is a partial answer from what was found so far"
    assert returns(result) == {"helper": f"[TRUNCATED: the run repeats itself; {SAME.format(6)}; {partial}]\n\n{LAST}"}


# -- going on --------------------------------------------------------------------------------------


async def test_a_run_that_looped_may_go_on() -> None:
    """Whoever goes on has looked at it, so it is counted anew: another six steps, and the same limits hold."""
    agent = looping()
    first = stored(await agent.run("go"))
    second, events = await resumed(agent, first)
    assert (second.stop_reason, findings(events)) == ("loop", [(10, 3, True), (13, 6, False)])
    third = await agent.resume(stored(second), limits=PlanLimits(max_model_rounds=17))
    assert (third.stop_reason, third.spent.model_rounds) == ("tool_limit", 17)


async def resumed(agent: Agent[str], result: AgentResult[str]) -> tuple[AgentResult[str], list[Event]]:
    async with agent.resume_stream(result) as run:
        events = await events_of(run)
    return run.result, events


@tool(requires_approval=True)
async def pay(amount: int) -> str:
    """Pay an amount."""
    return "declined"


async def test_the_counts_survive_every_pause() -> None:
    """Each step in a process of its own: the third is told, the sixth is the last."""
    agent = Agent(until_told(turn(calls=[call("pay", {"amount": 5})])), tools=[pay], limits=MANY)
    result = await agent.run("go")
    legs = 0
    while result.stop_reason == "paused":
        result = await agent.resume(stored(result), answers=answers_to(result, APPROVE))
        legs += 1
        assert len(nudges(result.messages)) == (legs >= 3)
    assert (result.stop_reason, legs, result.text) == ("loop", 6, LAST)
    assert_all_answered(result.messages)


async def test_a_batch_that_pauses_is_one_step_when_it_is_whole() -> None:
    """A part of it is no step, so the model is nudged where the batch is answered and it can be told."""
    asked = turn(calls=[call("look", {"n": 1}), call("pay", {"amount": 5})])
    agent = Agent(until_told(asked), tools=[look, pay], limits=MANY)
    result = await agent.run("go")
    legs = 0
    while result.stop_reason == "paused":
        result, events = await resumed_with(agent, result)
        legs += 1
        assert [told for _, _, told in findings(events)] == {3: [True], 6: [False]}.get(legs, [])
    assert (result.stop_reason, legs, len(nudges(result.messages))) == ("loop", 6, 1)


async def resumed_with(agent: Agent[str], paused: AgentResult[str]) -> tuple[AgentResult[str], list[Event]]:
    async with agent.resume_stream(stored(paused), answers=answers_to(paused, APPROVE)) as run:
        events = await events_of(run)
    return run.result, events


async def test_the_counts_survive_an_error() -> None:
    """A run that goes on after a failure has repeated itself as often as before."""
    step = turn(calls=[call("look", {"n": 1})])
    agent = Agent(ScriptedModel([step, step, ModelError("down"), step, "done"]), tools=[look], limits=MANY)
    with pytest.raises(ModelError) as failed:
        await agent.run("go")
    assert failed.value.state is not None
    result = await agent.resume(RunState.from_json(failed.value.state.to_json()))
    assert len(nudges(result.messages)) == 1


async def test_a_question_to_a_person_is_no_loop_if_the_answers_differ() -> None:
    """What people say is a result like any other."""
    answers = itertools.count()
    agent = Agent(
        until_told(turn(calls=[call("pay", {"amount": 5})])), tools=[pay], limits=PlanLimits(max_model_rounds=12)
    )
    result = await agent.run("go")
    while result.stop_reason == "paused":
        said = {"type": "respond", "message": f"answer {next(answers)} of many"}
        result = await agent.resume(stored(result), answers=answers_to(result, said))
    assert (result.stop_reason, nudges(result.messages)) == ("tool_limit", [])
