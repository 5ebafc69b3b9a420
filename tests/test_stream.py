"""The stream of events: what comes in which order, how it ends, and what happens where its reader is slow."""

from __future__ import annotations

import traceback

import anyio
import anyio.lowlevel
import pytest

from endstop import (
    Agent,
    Budget,
    Cancelled,
    Delta,
    Done,
    ErrorEvent,
    Event,
    LimitExceeded,
    ModelRequest,
    ModelTurn,
    PlanLimits,
    TextDelta,
    Thinking,
    ToolCallEvent,
    ToolFatal,
    ToolResultEvent,
    UsageEvent,
)
from endstop.models.base import OnDelta
from endstop.models.scripted import ScriptedModel, Step, call, turn
from tests.runs import (
    asks,
    assert_nothing_held,
    assert_one_end,
    assert_valid_history,
    events_of,
    kinds,
    look,
    searcher,
    streamed,
)


@pytest.mark.both_backends
async def test_a_run_is_its_events() -> None:
    """Each round is started, asked, charged, and its calls are told and answered; `done` carries the result."""
    agent, _ = searcher(asks(1, text="I look."), "done")
    async with agent.stream("Go.", run_id="r1") as stream:
        events = await events_of(stream)
    round_of_tools = ["round_started", "text_delta", "usage", "tool_call", "tool_result"]
    assert kinds(events) == ["started", *round_of_tools, "round_started", "text_delta", "usage", "done"]
    assert [event.round for event in events] == [0] + [1] * 5 + [2] * 4
    assert {(event.run_id, event.path) for event in events} == {("r1", ("agent",))}
    last = assert_one_end(events)
    assert isinstance(last, Done)
    assert last.result == stream.result


@pytest.mark.both_backends
async def test_pieces_come_as_the_model_writes_them() -> None:
    """Text and thinking are told apart, and joined they are those of the turn."""
    pieces = (Delta(text="hm ", kind="thinking"), Delta(text="so", kind="thinking"), "An ", "answer")
    agent, _ = searcher(Step(deltas=pieces))
    async with agent.stream("Go.") as stream:
        events = await events_of(stream)
    assert "".join(event.text for event in events if isinstance(event, Thinking)) == "hm so"
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == stream.result.text == "An answer"


@pytest.mark.both_backends
async def test_a_model_that_does_not_stream_is_told_in_one_piece() -> None:
    """A reader that only looks at pieces misses no text."""
    agent, _ = searcher("all at once")
    async with agent.stream("Go.") as stream:
        events = await events_of(stream)
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["all at once"]


async def test_an_empty_answer_has_no_pieces() -> None:
    """Nothing written is nothing told; the run completed with it."""
    agent, _ = searcher("")
    async with agent.stream("Go.") as stream:
        events = await events_of(stream)
    assert "text_delta" not in kinds(events)
    assert (stream.result.text, stream.result.stop_reason) == ("", "completed")


@pytest.mark.both_backends
async def test_a_result_is_told_when_it_is_there() -> None:
    """Parallel calls are told in the order asked, their results in the order in which they come."""
    fast = anyio.Event()

    async def first() -> str:
        """Wait for the second."""
        await fast.wait()
        return "first"

    async def second() -> str:
        """Let the first go on."""
        fast.set()
        return "second"

    agent = Agent(ScriptedModel([turn(calls=[call("first"), call("second")]), "done"]), tools=[first, second])
    async with agent.stream("Go.") as stream:
        events = await events_of(stream)
    assert [event.call.name for event in events if isinstance(event, ToolCallEvent)] == ["first", "second"]
    assert [event.call.name for event in events if isinstance(event, ToolResultEvent)] == ["second", "first"]
    contents = [getattr(message, "content", None) for message in stream.result.messages]
    assert contents[2:4] == ["first", "second"]


@pytest.mark.both_backends
async def test_usage_says_what_is_spent_and_left() -> None:
    """After each request, for each limit that is set."""
    agent, _ = searcher(asks(1, usage=(10, 4)), turn("done", usage=(20, 6)))
    limits = PlanLimits(max_model_rounds=5, max_tool_calls=3, max_tokens=1_000)
    async with agent.stream("Go.", limits=limits) as stream:
        told = [event for event in await events_of(stream) if isinstance(event, UsageEvent)]
    assert [event.spent.tokens for event in told] == [14, 40]
    assert told[-1].remaining == {"max_model_rounds": 3, "max_tool_calls": 2, "max_tokens": 960}
    assert told[-1].limits == limits


# --- how a stream ends ----------------------------------------------------------------------------


async def told_until_raised(agent: Agent[str], error: type[BaseException]) -> tuple[list[Event], BaseException]:
    """The events of a run that fails, and what left the block."""
    events: list[Event] = []
    with pytest.raises(error) as raised:  # noqa: PT012  # the events before the error count too
        async with agent.stream("Go.") as stream:
            async for event in stream:
                events.append(event)
    return events, raised.value


class Broken(Exception):
    """An adopter's own error."""


class BrokenModel:
    """An adopter's model with a fault in it."""

    name = "broken"

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def respond(self, request: ModelRequest, on_delta: OnDelta) -> ModelTurn:
        """Writes something and fails."""
        await on_delta(Delta(text="well"))
        raise self.error


@pytest.mark.both_backends
async def test_an_error_of_an_adopters_model_reaches_the_caller_as_it_is() -> None:
    """It is no error of ours to wrap or to swallow: an `error` event names its class, then it is raised itself."""
    error = Broken("out of order")
    events, raised = await told_until_raised(Agent(BrokenModel(error)), Broken)
    last = assert_one_end(events)
    assert isinstance(last, ErrorEvent)
    assert (last.error, last.code) == ("out of order", "Broken")
    assert raised is error
    assert raised.__cause__ is None
    assert "respond" in [frame.name for frame in traceback.extract_tb(raised.__traceback__)]


@pytest.mark.both_backends
async def test_run_raises_it_bare_as_well() -> None:
    """`await agent.run()` has no group around the error either, and nothing stays held."""
    budget = Budget(PlanLimits(max_model_calls=9, max_tokens=90_000))
    error = Broken("out of order")
    with pytest.raises(Broken) as raised:
        await Agent(BrokenModel(error), tools=[look]).run("Go.", budget=budget)
    assert raised.value is error
    assert budget.spent(0).model_calls == 1
    assert_nothing_held(budget)


@pytest.mark.both_backends
async def test_an_error_of_the_readers_body_leaves_the_block_bare() -> None:
    """Whatever is raised between the events is what the caller sees, and the run is over then."""
    agent, _ = searcher(asks(1), Step(text="late", latency_seconds=60))
    error = Broken("in the reader")
    with pytest.raises(Broken) as raised:  # noqa: PT012  # what is raised between two events is the rule
        async with agent.stream("Go.") as stream:
            async for _ in stream:
                raise error
    assert raised.value is error
    assert stream.result.stop_reason == "cancelled"
    assert_valid_history(stream.result.messages)


async def test_the_state_of_a_run_that_failed_has_what_it_spent() -> None:
    """After an adopter's error too, the state of the stream is one to go on from: no count is lost."""
    agent = Agent(BrokenModel(Broken("out of order")))
    stream = agent.stream("Go.")
    with pytest.raises(Broken):
        async with stream:
            await events_of(stream)
    assert (stream.state.spent.model_calls, stream.state.spent.unmeasured) == (1, 1)


async def test_an_error_that_is_raised_twice_is_raised_once() -> None:
    """After the error the stream is over: reading on ends."""
    agent = Agent(BrokenModel(Broken("once")))
    async with agent.stream("Go.") as stream:
        with pytest.raises(Broken):
            await events_of(stream)
        assert await events_of(stream) == []
    with pytest.raises(RuntimeError, match="no result"):
        _ = stream.result


@pytest.mark.both_backends
async def test_a_fatal_tool_ends_the_stream_with_its_error() -> None:
    """`ToolFatal` leaves as itself, with the state."""

    async def explode() -> str:
        """Explode."""
        raise ToolFatal("too hot")

    agent = Agent(ScriptedModel([turn(calls=[call("explode")])]), tools=[explode])
    events, raised = await told_until_raised(agent, ToolFatal)
    last = assert_one_end(events)
    assert isinstance(last, ErrorEvent)
    assert (last.code, str(raised)) == ("tool_fatal", "too hot")


@pytest.mark.both_backends
async def test_the_last_event_is_the_right_one() -> None:
    """`done` for what completed and what a limit ended, `cancelled` for what was cancelled, `error` for what raised."""
    one = PlanLimits(max_model_rounds=1)
    ends = []
    for limits in (None, one):
        agent, _ = searcher("done")
        async with agent.stream("Go.", limits=limits) as stream:
            ends.append(type(assert_one_end(await events_of(stream))))
    agent, _ = searcher(Step(text="late", latency_seconds=60))
    async with agent.stream("Go.") as stream:
        events = [await anext(stream)]
        stream.cancel()
        ends.append(type(assert_one_end(events + await events_of(stream))))
    agent = Agent(searcher()[1], tools=[look], limits=PlanLimits(max_model_rounds=1, on_limit="raise"))
    events, _ = await told_until_raised(agent, LimitExceeded)
    ends.append(type(assert_one_end(events)))
    assert ends == [Done, Done, Cancelled, ErrorEvent]


async def test_there_is_no_result_before_the_end() -> None:
    """Asking too early is misuse that says what to do."""
    agent, _ = searcher("done")
    async with agent.stream("Go.") as stream:
        with pytest.raises(RuntimeError, match="read the stream to its end"):
            _ = stream.result


async def test_a_stream_that_is_never_entered_costs_nothing() -> None:
    """Making one sends nothing and holds nothing."""
    budget = Budget(PlanLimits(max_model_calls=3))
    agent, model = searcher("never")
    agent.stream("Go.", budget=budget)
    assert model.request_count == 0
    assert_nothing_held(budget)


# --- slow readers ---------------------------------------------------------------------------------


@pytest.mark.both_backends
async def test_ten_thousand_pieces_reach_a_slow_reader_whole_and_in_order() -> None:
    """The run waits for a reader that is far behind: nothing is dropped, and memory is bounded."""
    pieces = tuple(f"{n} " for n in range(10_000))
    agent, _ = searcher(Step(deltas=pieces))
    texts, unread = [], []
    async with agent.stream("Go.") as stream:
        async for event in stream:
            if isinstance(event, TextDelta):
                texts.append(event.text)
                unread.append(stream.state.seq - event.seq)
            if event.seq % 100 == 0:
                await anyio.lowlevel.checkpoint()
    assert texts == list(pieces)
    assert stream.result.text == "".join(pieces)
    assert max(unread) < 5_000


@pytest.mark.both_backends
async def test_parallel_tools_that_wait_for_the_reader_all_go_on() -> None:
    """Every task that was held up by a full stream is let go when there is room again; none is forgotten."""

    async def nap(n: int) -> str:
        """Sleep for a moment."""
        await anyio.sleep(0.01)
        return f"woke {n}"

    calls = tuple(call("nap", {"n": n}) for n in range(64))
    agent = Agent(ScriptedModel([Step(deltas=("x",) * 957, tool_calls=calls), "done"]), tools=[nap])
    async with agent.stream("Go.") as stream:
        await anyio.sleep(0.2)
        events = await events_of(stream)
    assert_one_end(events)
    assert kinds(events).count("tool_result") == 64


@pytest.mark.parametrize("pieces", range(1_008, 1_024))
async def test_a_reader_that_falls_behind_anywhere_still_gets_everything(pieces: int) -> None:
    """Whichever event the run waits at, it goes on from there when its reader is back."""
    agent, model = searcher(streamed(pieces, 1, 2), asks(3), "done")
    async with agent.stream("Go.") as stream:
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        events = await events_of(stream)
    assert_one_end(events)
    assert (stream.result.text, model.request_count) == ("done", 3)


async def test_run_needs_no_reader() -> None:
    """`run()` reads the stream itself."""
    agent, _ = searcher(Step(deltas=("x",) * 5_000))
    assert len((await agent.run("Go.")).text) == 5_000


async def test_two_streams_of_one_agent_do_not_mix() -> None:
    """Each has its own events, numbers and result."""
    agent = Agent(ScriptedModel(["one", "two"]))
    async with agent.stream("A.", run_id="a") as a, agent.stream("B.", run_id="b") as b:
        told_b, told_a = await events_of(b), await events_of(a)
    assert {event.run_id for event in told_a} == {"a"}
    assert {event.run_id for event in told_b} == {"b"}
    assert_one_end(told_a)
    assert_one_end(told_b)
    assert {a.result.text, b.result.text} == {"one", "two"}
