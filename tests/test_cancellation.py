"""Ending a run from outside: by `cancel()`, by leaving the block, by cancelling the task that awaits it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from endstop import (
    Agent,
    AgentResult,
    Budget,
    Cancelled,
    Event,
    LimitExceeded,
    ModelTurn,
    PlanLimits,
    ResumeError,
    RunState,
    RunStream,
    ToolReturn,
)
from endstop.models.scripted import ScriptedModel, Step, call, turn
from tests.runs import (
    AT_ONCE,
    asks,
    assert_nothing_held,
    assert_one_end,
    assert_valid_history,
    events_of,
    kinds,
    look,
    searcher,
    searches,
    streamed,
    until,
)

LIMITS = PlanLimits(max_model_rounds=None, max_model_calls=900, max_tool_calls=900, max_tokens=900_000)
FOREVER = Step(text="never", latency_seconds=60)


async def nap(n: int) -> str:
    """Sleep."""
    await anyio.sleep(60)
    return f"woke {n}"


def napper(*steps: object) -> Agent[str]:
    """An agent that has a tool which takes longer than anybody waits."""
    return Agent(ScriptedModel(steps), tools=[look, nap], retry=AT_ONCE)


async def cancelled_at(kind: str, agent: Agent[str], budget: Budget) -> tuple[list[Event], RunStream[str]]:
    """A run that is cancelled when its reader comes to the first event of this kind, read to its end."""
    events: list[Event] = []
    async with agent.stream("Go.", budget=budget) as stream:
        async for event in stream:
            events.append(event)
            if event.kind == kind:
                stream.cancel()
    return events, stream


@pytest.mark.both_backends
async def test_a_run_is_cancelled_in_its_model_call() -> None:
    """The request in flight ends and is paid; what was done before is in the result."""
    budget = Budget(LIMITS)
    events, stream = await cancelled_at("tool_result", napper(asks(1, text="One."), FOREVER), budget)
    last = assert_one_end(events)
    assert isinstance(last, Cancelled)
    assert last.result == stream.result
    result = stream.result
    assert (result.stop_reason, result.truncated, result.text) == ("cancelled", False, "One.")
    assert (result.spent.model_calls, result.spent.tool_calls) == (2, 1)
    assert_valid_history(result.messages)
    assert_nothing_held(budget)


@pytest.mark.both_backends
async def test_a_run_is_cancelled_in_its_tools() -> None:
    """Tools in flight end, their calls are answered, and those that were done keep their returns."""
    budget = Budget(LIMITS)
    calls = [call("look", {"n": 1}), call("nap", {"n": 2}), call("nap", {"n": 3})]
    events, stream = await cancelled_at("tool_result", napper(turn(calls=calls)), budget)
    assert_one_end(events)
    result = stream.result
    assert [m.status for m in result.messages if isinstance(m, ToolReturn)] == ["ok", "not_run", "not_run"]
    assert result.ending is not None
    assert result.ending.pending == tuple(calls[1:])
    assert result.ending.effects == ("look", "nap")
    assert (result.ending.limit, result.ending.reason) == (None, "the run was cancelled")
    assert str(result).startswith("[CANCELLED: ")
    assert_valid_history(result.messages)
    assert_nothing_held(budget)


@pytest.mark.both_backends
async def test_each_call_that_was_told_of_is_told_to_have_ended() -> None:
    """A reader that shows calls as running learns of each that it is not any more."""
    calls = [call("nap", {"n": n}) for n in range(3)]
    events, _ = await cancelled_at("tool_call", napper(turn(calls=calls)), Budget(LIMITS))
    assert kinds(events).count("tool_call") == kinds(events).count("tool_result")


@pytest.mark.both_backends
async def test_a_run_is_cancelled_before_it_began() -> None:
    """Nothing is asked, and the one end is `cancelled`."""
    agent, model = searcher("never")
    async with agent.stream("Go.") as stream:
        stream.cancel()
        events = await events_of(stream)
    assert isinstance(assert_one_end(events), Cancelled)
    assert (model.request_count, stream.result.stop_reason) == (0, "cancelled")


@pytest.mark.both_backends
async def test_cancelling_a_run_that_is_over_changes_nothing() -> None:
    """A late `cancel()`, or a second one, adds no second end."""
    agent, _ = searcher("done")
    async with agent.stream("Go.") as stream:
        events = await events_of(stream)
        stream.cancel()
        stream.cancel()
        events += await events_of(stream)
    stream.cancel()
    assert_one_end(events)
    assert (stream.result.stop_reason, stream.result.text) == ("completed", "done")


@pytest.mark.both_backends
async def test_a_tool_may_cancel_the_run_it_is_in() -> None:
    """`cancel()` from inside: the tool's own call is answered like any other, and no round follows."""
    streams: list[RunStream[str]] = []

    async def stop() -> str:
        """Stop the run."""
        streams[0].cancel()
        return "stopped"

    model = ScriptedModel([turn(calls=[call("stop")]), "never"])
    async with Agent(model, tools=[stop]).stream("Go.") as stream:
        streams.append(stream)
        events = await events_of(stream)
    assert isinstance(assert_one_end(events), Cancelled)
    assert model.request_count == 1
    assert_valid_history(stream.result.messages)


@pytest.mark.both_backends
@pytest.mark.parametrize("kind", ["started", "round_started", "text_delta", "usage", "tool_call", "tool_result"])
async def test_leaving_the_block_early_cancels(kind: str) -> None:
    """`break` is enough: the run ends before the block is left, with a valid history, a result and nothing held."""
    budget = Budget(LIMITS)
    agent = napper(asks(1, text="One."), turn(calls=[call("nap", {"n": 2})]))
    async with agent.stream("Go.", budget=budget) as stream:
        async for event in stream:
            if event.kind == kind:
                break
    assert stream.result.stop_reason == stream.state.stop_reason == "cancelled"
    assert_valid_history(stream.result.messages)
    assert_nothing_held(budget)


@pytest.mark.both_backends
async def test_a_result_of_a_block_left_early_goes_on() -> None:
    """Nothing that was done is lost."""
    agent, _ = searcher(asks(1), FOREVER, "done")
    async with agent.stream("Go.") as stream:
        async for event in stream:
            if event.kind == "tool_result":
                break
    stored = RunState.from_json(stream.result.state.to_json())
    last = await agent.resume(stored)
    assert (last.text, last.spent.model_calls, last.spent.tool_calls) == ("done", 3, 1)


@pytest.mark.both_backends
@pytest.mark.parametrize("steps", [(FOREVER,), (turn(calls=[call("nap", {"n": 1})]),)], ids=["model", "tool"])
async def test_cancelling_the_task_that_awaits_a_run_ends_it(steps: tuple[object, ...]) -> None:
    """The cancellation goes through, at once; nothing stays held and what was sent is paid."""
    budget, agent = Budget(LIMITS), napper(*steps)
    ended: list[str] = []
    async with anyio.create_task_group() as group:

        async def go() -> None:
            try:
                await agent.run("Go.", budget=budget)
            except anyio.get_cancelled_exc_class():
                ended.append("cancelled")
                raise

        group.start_soon(go)
        await until(lambda: budget.spent(0).tool_calls or agent.model.request_count)
        group.cancel_scope.cancel()
    assert ended == ["cancelled"]
    assert budget.spent(0).model_calls == 1
    assert_nothing_held(budget)


@pytest.mark.both_backends
async def test_a_task_that_reads_a_stream_may_be_cancelled() -> None:
    """The stream's result is there afterwards, for whoever kept the stream."""
    budget = Budget(LIMITS)
    agent = napper(asks(1, text="One."), FOREVER)
    stream = agent.stream("Go.", budget=budget)
    await read_until(stream, lambda: agent.model.request_count == 2)
    assert (stream.result.stop_reason, stream.result.text) == ("cancelled", "One.")
    assert_valid_history(stream.result.messages)
    assert_nothing_held(budget)


@pytest.mark.parametrize("steps", [(FOREVER,), (turn(calls=[call("nap", {"n": 1})]),)], ids=["model", "tool"])
async def test_asyncios_own_time_out_ends_a_run(steps: tuple[object, ...]) -> None:
    """Cancelled by the event loop itself, the run gives back what it held as well."""
    budget = Budget(LIMITS)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await napper(*steps).run("Go.", budget=budget)
    assert budget.spent(0).model_calls == 1
    assert_nothing_held(budget)


async def test_a_callers_own_time_out_is_no_limit_of_the_run() -> None:
    """`fail_after` around a run raises as it does around anything else."""
    with pytest.raises(TimeoutError), anyio.fail_after(0.05):
        await napper(FOREVER).run("Go.")


@pytest.mark.both_backends
async def test_a_sync_tool_is_left_to_its_thread() -> None:
    """A thread can't be stopped, but nobody waits for it; its call is answered as one that may have had an effect."""
    release, entered = threading.Event(), threading.Event()

    def block() -> str:
        """Block a thread."""
        entered.set()
        release.wait(60)
        return "never"

    agent = Agent(ScriptedModel([turn(calls=[call("block")])]), tools=[block])
    started = time.monotonic()
    try:
        async with agent.stream("Go.") as stream:
            async for event in stream:
                if event.kind == "tool_call":
                    await anyio.to_thread.run_sync(entered.wait, 20)
                    stream.cancel()
    finally:
        release.set()
    assert time.monotonic() - started < 50
    returned = stream.result.messages[-1]
    assert isinstance(returned, ToolReturn)
    assert (returned.status, "may have had an effect" in returned.content) == ("not_run", True)


@pytest.mark.both_backends
async def test_clean_up_of_a_tool_runs_when_it_is_cancelled() -> None:
    """`finally` and shielded clean-up inside a tool are done before the run is over."""
    log: list[str] = []

    async def careful() -> str:
        """Clean up."""
        try:
            await anyio.sleep(60)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.01)
                log.append("clean")
        return "never"

    agent = Agent(ScriptedModel([turn(calls=[call("careful")])]), tools=[careful])
    async with agent.stream("Go.") as stream:
        async for event in stream:
            if event.kind == "tool_call":
                await anyio.sleep(0.01)
                break
    assert log == ["clean"]


# --- wherever the run is: every event of a backed-up stream as the point of the cut ---------------

PLACES = range(1_010, 1_024)
"""How long a streamed turn must be for each kind of event after it to be the one at which the run waits for room."""


@pytest.mark.both_backends
@pytest.mark.parametrize("pieces", PLACES)
@pytest.mark.parametrize("how", ["cancel", "leave", "task"])
async def test_a_run_that_waits_for_its_reader_can_be_cancelled_anywhere(how: str, pieces: int) -> None:
    """Whichever event it waits at: a valid history, one end, nothing held, every request paid."""
    budget = Budget(LIMITS)
    model = ScriptedModel([streamed(pieces, 1, 2), searches(2)])
    stream = Agent(model, tools=[look], limits=PlanLimits(max_model_rounds=30)).stream("Go.", budget=budget)
    events: list[Event] = []
    with anyio.CancelScope() as scope:
        async with stream:
            await backed_up(stream, model)
            if how == "cancel":
                stream.cancel()
                events = await events_of(stream)
            elif how == "task":
                scope.cancel()
                await anyio.lowlevel.checkpoint()
    if how == "cancel":
        assert_one_end(events)
    assert stream.result.stop_reason == "cancelled"
    assert_valid_history(stream.result.messages)
    assert stream.result.spent.model_calls == budget.spent(0).model_calls == model.request_count
    assert_nothing_held(budget)


@pytest.mark.parametrize("pieces", range(1_014, 1_020))
async def test_an_answer_that_is_there_is_not_lost_to_a_slow_reader(pieces: int) -> None:
    """A turn that the model has given is part of what was done, although the run waits for its reader."""
    agent, model = searcher(streamed(pieces, 1), "the answer")
    async with agent.stream("Go.") as stream:
        await backed_up(stream, model)
    texts = [message.text for message in stream.result.messages if isinstance(message, ModelTurn)]
    assert len(texts) == model.request_count


@pytest.mark.parametrize("pieces", [1_021, 1_022])
async def test_time_that_ends_while_the_reader_is_slow_takes_no_answer_back(pieces: int) -> None:
    """The model had answered within the limit: the run is completed, however long its reader takes."""
    agent, model = searcher(streamed(pieces), "never")
    async with agent.stream("Go.", limits=PlanLimits(max_seconds=0.3)) as stream:
        await backed_up(stream, model)
        await anyio.sleep(0.4)
        await events_of(stream)
    assert (stream.result.stop_reason, stream.result.ending, model.request_count) == ("completed", None, 1)


async def backed_up(stream: RunStream[str], model: ScriptedModel) -> None:
    """Wait until the run does nothing more because nobody reads: these models and tools never wait for anything."""
    for _ in range(100):
        await anyio.lowlevel.checkpoint()
    assert model.request_count


async def read_until(stream: RunStream[str], happened: Callable[[], object]) -> None:
    """Read the stream in a task that is cancelled once something has happened."""

    async def read() -> None:
        async with stream:
            await events_of(stream)

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await until(happened)
        group.cancel_scope.cancel()


# --- with other endings ---------------------------------------------------------------------------


@pytest.mark.both_backends
async def test_a_run_is_cancelled_in_its_final_answer() -> None:
    """A limit was hit and then the caller cancelled: the result names both, and is not truncated but cancelled."""
    agent, model = searcher(asks(1, text="One."), FOREVER)
    stream = agent.stream("Go.", limits=PlanLimits(max_model_rounds=2))
    await read_until(stream, lambda: model.request_count == 2)
    result: AgentResult[str] = stream.result
    assert (result.stop_reason, result.text) == ("cancelled", "One.")
    assert result.ending is not None
    assert result.ending.limit == "max_model_rounds"
    assert_valid_history(result.messages)


async def test_a_cancelled_final_answer_is_not_asked_for_again_without_a_higher_limit() -> None:
    """It was asked for once; storing the state does not buy it again."""
    agent, model = searcher(asks(1), FOREVER)
    stream = agent.stream("Go.", limits=PlanLimits(max_model_rounds=2))
    await read_until(stream, lambda: model.request_count == 2)
    state = RunState.from_json(stream.result.state.to_json())
    with pytest.raises(ResumeError, match="max_model_rounds"):
        await agent.resume(state)
    assert model.request_count == 2


async def test_a_hundred_runs_are_cancelled_together() -> None:
    """Each has its own end; the budget above them has everything back that was not spent."""
    budget = Budget(LIMITS)
    agent = napper(*[turn(calls=[call("nap", {"n": n})]) for n in range(100)])
    streams = [agent.stream("Go.", budget=budget) for _ in range(100)]

    async def go(stream: RunStream[str]) -> None:
        async with stream:
            await events_of(stream)

    async with anyio.create_task_group() as group:
        for stream in streams:
            group.start_soon(go, stream)
        await until(lambda: budget.spent(0).tool_calls == 100)
        group.cancel_scope.cancel()
    assert {stream.result.stop_reason for stream in streams} == {"cancelled"}
    assert all(isinstance(stream.result.messages[1], ModelTurn) for stream in streams)
    assert_nothing_held(budget)


async def test_a_limit_that_raises_is_no_cancellation() -> None:
    """`cancel()` after the limit was found does not hide the error."""
    agent, _ = searcher(searches())
    with pytest.raises(LimitExceeded):
        await agent.run("Go.", limits=PlanLimits(max_model_rounds=1, on_limit="raise"))
