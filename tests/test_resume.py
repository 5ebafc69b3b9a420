"""Going on with a run that ended early: from a result, a state or JSON, in this or another process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import anyio
import pytest

from endstop import (
    Agent,
    AgentResult,
    Budget,
    LimitExceeded,
    LimitWarning,
    ModelError,
    ModelRequest,
    ModelTurn,
    PlanLimits,
    Price,
    ResumeError,
    RunState,
    ToolContext,
    ToolFatal,
    ToolReturn,
    UsageEvent,
    UserMessage,
)
from endstop._messages import JsonObject
from endstop.models.scripted import ScriptedModel, ScriptStep, Step, call, forever, turn
from tests.runs import (
    asks,
    assert_nothing_held,
    assert_one_end,
    assert_valid_history,
    events_of,
    look,
    searcher,
    searches,
    total_spent,
)

CENT_A_TOKEN = Price(input_per_million=Decimal(10_000), output_per_million=Decimal(10_000))

RAISES = {
    "max_model_rounds": (PlanLimits(max_model_rounds=3), PlanLimits(max_model_rounds=8)),
    "max_model_calls": (PlanLimits(max_model_calls=3), PlanLimits(max_model_calls=8)),
    "max_tool_calls": (PlanLimits(max_tool_calls=2), PlanLimits(max_tool_calls=9)),
    "tool_limits['look']": (PlanLimits(tool_limits={"look": 2}), PlanLimits(tool_limits={"look": 9})),
    "max_tokens": (PlanLimits(max_tokens=2_000), PlanLimits(max_tokens=20_000)),
    "max_output_tokens": (PlanLimits(max_output_tokens=400), PlanLimits(max_output_tokens=4_000)),
    "max_cost": (
        PlanLimits(max_cost=20, assume_price=CENT_A_TOKEN),
        PlanLimits(max_cost=200, assume_price=CENT_A_TOKEN),
    ),
}
"""Limits that end a run which looks at page after page, and limits with which it comes to its end."""


async def cut_short(limits: PlanLimits, *, pages: int = 9) -> tuple[Agent[str], ScriptedModel, AgentResult[str]]:
    """A run that these limits ended, of an agent that answers `done` once it looked at enough pages."""

    def step(request: object) -> ModelTurn:
        assert isinstance(request, ModelRequest)
        looked = sum(isinstance(message, ToolReturn) and message.status == "ok" for message in request.messages)
        if request.final:
            return turn("partial", usage=(150, 20))
        return turn("done", usage=(150, 20)) if looked >= pages else asks(looked, usage=(150, 100))

    model = ScriptedModel([forever(step)])
    agent = Agent(model, tools=[look])
    return agent, model, await agent.run("Go.", limits=limits)


def assert_goes_on_from(first: AgentResult[str], last: AgentResult[str]) -> None:
    """All that was said and done is there still, but for the answer that the limit forced: it was the result's."""
    done = list(first.messages)
    notice = next(i for i, m in enumerate(done) if isinstance(m, UserMessage) and m.source == "kernel")
    assert list(last.messages[:notice]) == done[:notice]
    assert not any(isinstance(m, ModelTurn) and m.text == "partial" for m in last.messages)
    assert_valid_history(last.messages)


@pytest.mark.both_backends
@pytest.mark.parametrize("limit", RAISES)
async def test_a_higher_limit_takes_the_run_to_its_end(limit: str) -> None:
    """Any limit can be raised: what was spent is kept, nothing is done twice, and the answer has no mark."""
    low, high = RAISES[limit]
    agent, model, first = await cut_short(low, pages=4)
    assert first.ending is not None
    assert first.ending.limit == limit
    sent = model.request_count
    last = await agent.resume(first, limits=high)
    assert (last.text, last.stop_reason, last.ending) == ("done", "completed", None)
    assert last.run_id == first.run_id
    assert last.spent.model_calls == model.request_count > sent
    assert last.spent.tool_calls == 4
    looked = [m.content for m in last.messages if isinstance(m, ToolReturn) and m.status == "ok"]
    assert looked == ["page 0", "page 1", "page 2", "page 3"]
    assert_goes_on_from(first, last)


@pytest.mark.parametrize("limit", RAISES)
async def test_without_a_higher_limit_a_run_is_not_continued(limit: str) -> None:
    """The error names the limit that is used up, and nothing is sent."""
    low, _ = RAISES[limit]
    agent, model, first = await cut_short(low)
    sent = model.request_count
    for limits in (None, low):
        with pytest.raises(ResumeError) as refused:
            await agent.resume(first, limits=limits)
        assert refused.value.limit == limit
        assert limit in str(refused.value)
    assert model.request_count == sent


async def test_raising_another_limit_is_not_enough() -> None:
    """It must be the one that is used up."""
    agent, _, first = await cut_short(PlanLimits(max_model_rounds=3, max_tool_calls=50))
    with pytest.raises(ResumeError, match="max_model_rounds"):
        await agent.resume(first, limits=PlanLimits(max_model_rounds=3, max_tool_calls=500))


async def test_taking_the_limit_away_is_more_than_raising_it() -> None:
    """`None` is no limit."""
    agent, _, first = await cut_short(PlanLimits(max_model_calls=3), pages=5)
    assert (await agent.resume(first, limits=PlanLimits())).stop_reason == "completed"


@pytest.mark.parametrize("kind", ["max_seconds", "deadline"])
async def test_more_time_takes_the_run_on(kind: str) -> None:
    """Seconds that were worked stay worked; a later deadline is a higher one."""

    def limits(seconds: float) -> PlanLimits:
        due = datetime.now(UTC) + timedelta(seconds=seconds)
        return PlanLimits(max_seconds=seconds) if kind == "max_seconds" else PlanLimits(deadline=due, answer_seconds=0)

    def step(request: ModelRequest) -> ScriptStep:
        if request.final:
            return "partial"
        return Step(text="late", latency_seconds=60) if model.request_count < 3 else "done"

    low = limits(0.3)
    agent, model = searcher(asks(1), forever(step))
    first = await agent.run("Go.", limits=low)
    assert first.ending is not None
    assert first.ending.limit == kind
    with pytest.raises(ResumeError) as refused:
        await agent.resume(first, limits=low)
    assert refused.value.limit == kind
    last = await agent.resume(first, limits=limits(600))
    assert last.stop_reason == "completed"
    assert last.spent.seconds >= first.spent.seconds > 0


async def test_a_cost_limit_that_comes_later_counts_what_was_spent_before() -> None:
    """The tokens of an unpriced leg are not free: the limit is one of the whole run."""
    agent, _, first = await cut_short(PlanLimits(max_model_rounds=3))
    assert first.spent.tokens == 670
    limits = PlanLimits(max_model_rounds=50, max_cost=8, assume_price=CENT_A_TOKEN)
    last = await agent.resume(first, limits=limits)
    assert last.spent.cost == Decimal("0.01") * last.spent.tokens
    assert last.spent.cost <= 8


async def test_a_completed_run_is_not_continued() -> None:
    """A new run with its messages as the history is what is wanted then."""
    agent, _ = searcher("done", "again")
    first = await agent.run("Go.")
    with pytest.raises(ResumeError, match=r"completed.*history=") as refused:
        await agent.resume(first)
    assert refused.value.limit is None
    second = await agent.run("And now?", history=first.messages)
    assert len(second.messages) == 4
    assert len(second.new_messages) == 2


@pytest.mark.both_backends
async def test_result_state_and_json_are_the_same_to_go_on_from() -> None:
    """Whatever the run was kept as, it goes on alike; what it is resumed from stays as it was."""
    agent, _, first = await cut_short(PlanLimits(max_model_rounds=3), pages=4)
    stored = first.state.to_json()
    more = PlanLimits(max_model_rounds=9)
    ends = [
        await agent.resume(given, limits=more)
        for given in (first, first.state, RunState.from_json(stored), AgentResult.from_json(first.to_json()))
    ]
    assert len({end.text for end in ends}) == 1
    # A script gives each call an id that it has not given before, so the texts are what can be compared.
    assert len({tuple(getattr(m, "content", getattr(m, "text", "")) for m in end.messages) for end in ends}) == 1
    assert all(total_spent([end.spent]) == total_spent([ends[0].spent]) for end in ends)
    assert first.state.to_json() == stored


CHILD = """
import sys
from endstop import Agent, PlanLimits, RunState
from endstop.models.scripted import ScriptedModel, call, turn

async def look(n: int) -> str:
    return f"page {n}"

with open(sys.argv[1], encoding="utf-8") as file:
    state = RunState.from_json(file.read())
model = ScriptedModel([turn(calls=[call("look", {"n": 77})]), "done elsewhere"])

async def go():
    return await Agent(model, tools=[look]).resume(state, limits=PlanLimits(max_model_rounds=6))

import anyio
result = anyio.run(go)
with open(sys.argv[1], "w", encoding="utf-8") as file:
    file.write(result.to_json())
"""


async def test_another_process_goes_on_from_the_stored_state(tmp_path: Path) -> None:
    """The JSON of the state is all that is needed; spent amounts, numbers and history come along."""
    _, _, first = await cut_short(PlanLimits(max_model_rounds=3))
    store = tmp_path / "run.json"
    store.write_text(first.state.to_json(), encoding="utf-8")
    command = [sys.executable, "-c", CHILD, str(store)]
    await anyio.run_process(command, env=dict(os.environ), stderr=subprocess.PIPE)
    last = AgentResult.from_json(store.read_text(encoding="utf-8"))
    assert (last.text, last.stop_reason, last.run_id) == ("done elsewhere", "completed", first.run_id)
    assert (last.spent.model_rounds, last.spent.tool_calls) == (5, first.spent.tool_calls + 1)
    assert_goes_on_from(first, last)


async def test_pause_and_go_on_never_resets_a_count() -> None:
    """However often a run is taken up again, its limit is the sum of all its legs."""
    agent, model, result = await cut_short(PlanLimits(max_model_rounds=2), pages=100)
    for allowed in range(3, 15):
        state = RunState.from_json(result.state.to_json())
        result = await agent.resume(state, limits=PlanLimits(max_model_rounds=allowed))
        assert result.spent.model_rounds == allowed
    assert model.request_count == 14


async def test_a_leg_of_one_round_is_its_final_answer() -> None:
    """The final answer of a resumed run is new: it is asked for once in each leg that a limit ends."""
    agent, model, first = await cut_short(PlanLimits(max_model_rounds=3))
    sent = model.request_count
    second = await agent.resume(first, limits=PlanLimits(max_model_rounds=4))
    assert [request.final for request in model.requests[sent:]] == [True]
    assert second.ending is not None
    assert (second.ending.rung, second.ending.used, second.ending.allowed) == ("model_answer", 4, 4)


async def test_a_resumed_run_has_its_tools_again() -> None:
    """The model goes on from what it had found, and not from the answer that it was made to give."""
    agent, model, first = await cut_short(PlanLimits(max_model_rounds=3), pages=4)
    sent = model.request_count
    await agent.resume(first, limits=PlanLimits(max_model_rounds=9))
    request = model.requests[sent]
    assert request.tools
    assert not isinstance(request.messages[-1], ModelTurn)


@pytest.mark.both_backends
async def test_numbers_and_warnings_go_on_where_they_were() -> None:
    """`seq` rises by one over all legs, and a limit that was warned of is not warned of again."""
    low = PlanLimits(max_model_rounds=4, max_tool_calls=4, warn_at=0.5)
    agent, _ = searcher(asks(1), asks(2), asks(3), "partial", asks(4), "done")
    async with agent.stream("Go.", limits=low) as stream:
        first = await events_of(stream)
    state = RunState.from_json(stream.result.state.to_json())
    async with agent.resume_stream(state, limits=replace(low, max_model_rounds=40)) as stream:
        second = await events_of(stream)
    assert_one_end(first)
    assert_one_end(second)
    assert second[0].seq == first[-1].seq + 1
    warned = [event.hit.limit for event in first + second if isinstance(event, LimitWarning)]
    assert sorted(warned) == ["max_model_rounds", "max_tool_calls"]


@pytest.mark.both_backends
async def test_an_error_leaves_a_state_to_go_on_from() -> None:
    """After a final error of the model nothing that was done is lost or done again."""
    agent, _ = searcher(asks(1), ModelError("down", status=400), "done")
    with pytest.raises(ModelError) as raised:
        await agent.run("Go.")
    assert raised.value.state is not None
    state = RunState.from_json(raised.value.state.to_json())
    assert (state.spent.model_calls, state.spent.tool_calls) == (2, 1)
    last = await agent.resume(state)
    assert (last.text, last.spent.model_calls, last.spent.tool_calls) == ("done", 3, 1)
    assert_valid_history(last.messages)


async def test_an_error_that_numbers_events_goes_on_after_them() -> None:
    """The `error` event has a number too, which no later leg gives out again."""
    agent, _ = searcher(asks(1), ModelError("down", status=400), "done")
    events = []
    stream = agent.stream("Go.")
    with pytest.raises(ModelError) as raised:  # noqa: PT012  # the events before the error count too
        async with stream:
            async for event in stream:
                events.append(event)
    assert raised.value.state is not None
    async with agent.resume_stream(raised.value.state) as stream:
        second = await events_of(stream)
    assert second[0].seq == events[-1].seq + 1


async def test_a_fatal_tool_leaves_a_state_to_go_on_from() -> None:
    """The siblings of the tool finished, and the history is valid."""

    async def explode(n: int) -> str:
        """Explode."""
        raise ToolFatal(f"{n} is too hot")

    calls = [call("look", {"n": 1}), call("explode", {"n": 2}), call("look", {"n": 3})]
    agent = Agent(ScriptedModel([turn(calls=calls), "done"]), tools=[look, explode])
    with pytest.raises(ToolFatal, match="2 is too hot") as raised:
        await agent.run("Go.")
    state = raised.value.state
    assert state is not None
    assert_valid_history(state.messages)
    assert [m.status for m in state.messages if isinstance(m, ToolReturn)] == ["ok", "error", "ok"]
    assert (await agent.resume(state)).text == "done"


async def test_a_limit_that_raised_is_taken_up_from_its_error() -> None:
    """The state of `LimitExceeded` is one to go on from, with a higher limit only."""
    agent, _ = searcher(searches())
    limits = PlanLimits(max_model_rounds=2, on_limit="raise")
    with pytest.raises(LimitExceeded) as raised:
        await agent.run("Go.", limits=limits)
    assert raised.value.state is not None
    with pytest.raises(ResumeError, match="max_model_rounds"):
        await agent.resume(raised.value.state)
    more = await agent.resume(raised.value.state, limits=PlanLimits(max_model_rounds=5))
    assert (more.text, more.spent.model_rounds) == ("what there is", 5)


async def test_a_cancelled_run_goes_on_without_a_higher_limit() -> None:
    """Nothing was used up."""
    agent, _ = searcher(asks(1), Step(text="late", latency_seconds=60), "done")
    async with agent.stream("Go.") as stream:
        async for event in stream:
            if event.kind == "tool_result":
                stream.cancel()
    assert stream.result.stop_reason == "cancelled"
    last = await agent.resume(stream.result)
    assert (last.text, last.spent.tool_calls, last.spent.model_calls) == ("done", 1, 3)
    assert_valid_history(last.messages)


@pytest.mark.both_backends
async def test_deps_and_budget_are_given_anew() -> None:
    """Live things are no part of a state; a budget is charged for its own leg alone."""
    seen: list[object] = []

    async def note(n: int, context: ToolContext[str]) -> str:
        """Note whose run it is."""
        seen.append(context.deps)
        return f"{n}"

    steps = [turn(calls=[call("note", {"n": n})]) for n in range(2)]
    agent = Agent(ScriptedModel([steps[0], "partial", steps[1], "done"]), tools=[note])
    one, two = Budget(PlanLimits(max_model_calls=50)), Budget(PlanLimits(max_model_calls=50))
    first = await agent.run("Go.", limits=PlanLimits(max_model_rounds=2), budget=one, deps="first")
    last = await agent.resume(first, limits=PlanLimits(max_model_rounds=5), budget=two, deps="second")
    assert seen == ["first", "second"]
    assert (one.spent(0).model_calls, two.spent(0).model_calls, last.spent.model_calls) == (2, 2, 4)
    assert_nothing_held(one)
    assert_nothing_held(two)


async def test_a_run_that_a_shared_budget_ended_goes_on_with_another_budget() -> None:
    """Its own limits were not used up, so that they need not be raised."""
    agent, _ = searcher(asks(1), "partial", asks(2), "done")
    shared = Budget(PlanLimits(max_model_rounds=12))
    await searcher(searches())[0].run("First.", budget=shared)
    first = await agent.run("Go.", budget=shared)
    assert first.ending is not None
    assert (first.ending.limit, first.ending.allowed) == ("max_model_rounds", 12)
    assert first.spent.model_rounds < 10
    last = await agent.resume(first, budget=Budget(PlanLimits(max_model_rounds=12)))
    assert last.stop_reason in ("completed", "tool_limit")
    assert last.spent.model_rounds > first.spent.model_rounds


async def test_the_state_of_a_running_run_has_what_it_spent() -> None:
    """A state that is stored while the run goes on is no way to have its counts reset."""
    go_on = anyio.Event()

    async def wait() -> str:
        """Wait."""
        await go_on.wait()
        return "waited"

    agent = Agent(ScriptedModel([turn(calls=[call("wait")], usage=(9, 3)), "done"]), tools=[wait])
    async with agent.stream("Go.") as stream:
        async for event in stream:
            if isinstance(event, UsageEvent) and not go_on.is_set():
                stored = RunState.from_json(stream.state.to_json())
                assert (stored.spent.model_calls, stored.spent.tokens) == (1, 12)
                assert stored.seq >= event.seq
                go_on.set()


async def test_limits_are_kept_where_none_are_given() -> None:
    """A cancelled or failed run goes on under the limits that it had, not under the agent's own."""
    agent, model = searcher(asks(1), ModelError("down", status=400), searches())
    with pytest.raises(ModelError) as raised:
        await agent.run("Go.", limits=PlanLimits(max_model_rounds=5))
    assert raised.value.state is not None
    last = await agent.resume(raised.value.state)
    assert (last.spent.model_rounds, last.truncated) == (5, True)
    assert model.request_count == 5


class Notebook:
    """A post-model stage that keeps what it is handed."""

    def __init__(self) -> None:
        self.ops: list[object] = []

    async def apply(self, ops: Sequence[JsonObject]) -> None:
        """Keep the operations."""
        self.ops += ops


async def test_operations_of_a_later_leg_are_applied_once() -> None:
    """What a resumed run extracts is handed over like the rest, and nothing twice."""
    notebook = Notebook()

    def noting(number: int, text: str) -> str:
        return f'{text}<MEMORY_EXTRACT>{{"ops": [{{"n": {number}}}]}}</MEMORY_EXTRACT>'

    model = ScriptedModel([asks(1, text=noting(1, "One.")), noting(2, "partial"), noting(3, "done")])
    agent = Agent(model, tools=[look], post_model=notebook)
    first = await agent.run("Go.", limits=PlanLimits(max_model_rounds=2))
    last = await agent.resume(first, limits=PlanLimits(max_model_rounds=5))
    assert (first.text, last.text) == ("partial", "done")
    assert notebook.ops == [{"n": 1}, {"n": 2}, {"n": 3}]


async def test_a_state_without_a_message_is_refused() -> None:
    """There is nothing to go on from."""
    agent, _ = searcher("done")
    state = (await agent.run("Go.")).state
    state.messages.clear()
    state.first_message, state.applied, state.stop_reason = 0, 0, None
    with pytest.raises(ResumeError, match="no message to go on from"):
        await agent.resume(state)
