"""Requests that fail: which are sent again, after what wait, and who pays."""

from __future__ import annotations

import time

import anyio
import pytest

from endstop import (
    Agent,
    Budget,
    ContextOverflow,
    ErrorEvent,
    ModelError,
    PlanLimits,
    RetryPolicy,
    RoundStarted,
    RunState,
    TextDelta,
)
from endstop.models.scripted import ScriptedModel, Step, forever, turn
from tests.runs import (
    AT_ONCE,
    PATIENCE_SECONDS,
    asks,
    assert_nothing_held,
    assert_one_end,
    assert_valid_history,
    events_of,
    kinds,
    look,
    searcher,
)


def busy(retry_after_seconds: float | None = None) -> ModelError:
    """A failure in passing."""
    return ModelError("too many requests", retryable=True, retry_after_seconds=retry_after_seconds, status=429)


@pytest.mark.both_backends
async def test_a_failure_in_passing_is_sent_again_and_each_attempt_is_paid() -> None:
    """Three attempts are three model calls in one model round; nothing of the failures is in the history."""
    agent, model = searcher(busy(), busy(), "done")
    result = await agent.run("Go.")
    assert (result.text, result.stop_reason) == ("done", "completed")
    assert (result.spent.model_calls, result.spent.model_rounds) == (3, 1)
    assert len(result.messages) == 2
    assert model.requests[0] == model.requests[2]


@pytest.mark.both_backends
async def test_attempts_end_with_the_policy() -> None:
    """After the last attempt the error itself is raised, with everything done so far."""
    agent, model = searcher(asks(1), forever(busy()))
    with pytest.raises(ModelError, match="too many requests") as raised:
        await agent.run("Go.")
    assert model.request_count == 1 + AT_ONCE.max_attempts
    state = raised.value.state
    assert state is not None
    assert (state.spent.model_calls, state.spent.tool_calls) == (1 + AT_ONCE.max_attempts, 1)
    assert_valid_history(state.messages)


@pytest.mark.parametrize("error", [ModelError("bad request", status=400), ContextOverflow("too long", status=400)])
async def test_a_final_error_is_not_sent_again(error: ModelError) -> None:
    """What can't succeed later is raised at once, as the class it is."""
    agent, model = searcher(error, "never")
    with pytest.raises(type(error), match=str(error)):
        await agent.run("Go.")
    assert model.request_count == 1


async def test_a_refused_request_costs_a_call_and_no_tokens() -> None:
    """A provider that never began to answer bills nothing."""
    agent, _ = searcher(busy(), turn("done", usage=(7, 2)))
    spent = (await agent.run("Go.", limits=PlanLimits(max_tokens=100_000))).spent
    assert (spent.model_calls, spent.tokens, spent.unmeasured) == (2, 9, 0)


@pytest.mark.both_backends
async def test_an_answer_that_broke_off_is_estimated_and_counted() -> None:
    """A provider bills what it wrote before it failed: the attempt is charged by an estimate."""
    agent, _ = searcher(Step(deltas=("half ", "an ", "answer"), error=busy()), turn("done", usage=(7, 2)))
    spent = (await agent.run("Go.")).spent
    assert (spent.model_calls, spent.unmeasured) == (2, 1)
    assert spent.tokens > 9


@pytest.mark.both_backends
async def test_a_reader_can_tell_the_text_of_a_failed_attempt_from_the_answer() -> None:
    """`round_started` with a higher `attempt` voids the pieces that came before it."""
    agent, _ = searcher(Step(deltas=("wro", "ng"), error=busy()), Step(deltas=("ri", "ght")))
    async with agent.stream("Go.") as stream:
        events = await events_of(stream)
    assert_one_end(events)
    text, attempts = "", []
    for event in events:
        if isinstance(event, RoundStarted):
            text = ""
            attempts.append((event.round, event.attempt))
        elif isinstance(event, TextDelta):
            text += event.text
    assert (text, attempts) == ("right", [(1, 1), (1, 2)])
    assert stream.result.text == "right"


@pytest.mark.parametrize("limit", ["max_model_calls", "max_tokens"])
async def test_a_limit_between_attempts_ends_the_run_honestly(limit: str) -> None:
    """No attempt is made beyond it: the run ends by the ladder, and the reason names the failure behind it."""
    limits = PlanLimits(max_model_calls=3) if limit == "max_model_calls" else PlanLimits(max_tokens=600)
    steps = [asks(1, usage=(60, 20)), Step(deltas=("x" * 400,), error=busy()), turn("so far", usage=(90, 10))]
    agent, model = searcher(*steps)
    result = await agent.run("Go.", limits=limits)
    assert (result.truncated, model.request_count, result.text) == (True, 3, "so far")
    assert result.ending is not None
    assert result.ending.limit == limit
    assert "too many requests" in result.ending.reason
    assert limit in result.ending.reason


async def test_a_limit_between_attempts_ends_the_run_honestly_without_a_reserve() -> None:
    """Under `stop` every call may go into attempts, and what is there is the result."""
    agent, model = searcher(asks(1), forever(busy()))
    result = await agent.run("Go.", limits=PlanLimits(max_model_calls=3, on_limit="stop"))
    assert (model.request_count, result.stop_reason) == (3, "budget")
    assert result.ending is not None
    assert (result.ending.rung, "too many requests" in result.ending.reason) == ("tool_digest", True)


@pytest.mark.both_backends
async def test_a_wait_that_the_provider_asks_for_is_kept() -> None:
    """`Retry-After` is the least that is waited, where it is longer than the policy's own wait."""
    agent, _ = searcher(busy(retry_after_seconds=0.2), "done")
    started = time.monotonic()
    assert (await agent.run("Go.")).text == "done"
    assert time.monotonic() - started >= 0.2


async def test_the_policys_wait_is_kept_where_the_provider_asks_for_less() -> None:
    """The longer of the two counts."""
    model = ScriptedModel([busy(retry_after_seconds=0.01), "done"])
    agent = Agent(model, retry=RetryPolicy(initial_wait_seconds=0.2, jitter_seconds=0))
    started = time.monotonic()
    await agent.run("Go.")
    assert time.monotonic() - started >= 0.2


async def test_a_wait_that_is_too_long_is_raised_with_its_length() -> None:
    """Who asks to wait for longer than the policy allows is not waited for; the error says how long it would be."""
    agent, model = searcher(busy(retry_after_seconds=3_600), "never")
    with pytest.raises(ModelError) as raised, anyio.fail_after(PATIENCE_SECONDS):
        await agent.run("Go.")
    assert (raised.value.retry_after_seconds, model.request_count) == (3_600, 1)
    assert raised.value.state is not None


async def test_a_wait_that_the_time_limit_has_no_room_for_is_not_begun() -> None:
    """The run ends at once with the time that is left, for the final answer, and says what failed."""
    agent, model = searcher(asks(1), busy(retry_after_seconds=100), "so far")
    started = time.monotonic()
    result = await agent.run("Go.", limits=PlanLimits(max_seconds=60))
    assert time.monotonic() - started < 50
    assert (result.text, model.request_count) == ("so far", 3)
    assert result.ending is not None
    assert (result.ending.limit, result.ending.rung) == ("max_seconds", "model_answer")
    assert "too many requests" in result.ending.reason


async def test_a_reason_never_says_used_up_of_what_is_left() -> None:
    """Of a limit that is not used up yet the reason must not say that it is."""
    agent, _ = searcher(busy(retry_after_seconds=100), "so far")
    result = await agent.run("Go.", limits=PlanLimits(max_seconds=60))
    assert result.ending is not None
    assert "is used up" not in result.ending.reason


@pytest.mark.both_backends
async def test_a_wait_between_attempts_ends_with_the_time() -> None:
    """Waiting is working time, and is cut like any other work."""
    model = ScriptedModel([forever(busy())])
    policy = RetryPolicy(max_attempts=1_000, initial_wait_seconds=0.05, max_wait_seconds=0.05, jitter_seconds=0)
    result = await Agent(model, retry=policy).run("Go.", limits=PlanLimits(max_seconds=0.2, on_limit="stop"))
    assert result.ending is not None
    assert (result.ending.limit, result.ending.rung) == ("max_seconds", "empty")


async def test_the_error_event_says_what_was_raised() -> None:
    """The last event of a failed stream has the text and the class of the error that leaves it."""
    agent, _ = searcher(ModelError("the key is wrong", status=401))
    events = []
    with pytest.raises(ModelError, match="the key is wrong"):  # noqa: PT012  # the events before the error count too
        async with agent.stream("Go.") as stream:
            async for event in stream:
                events.append(event)
    last = assert_one_end(events)
    assert isinstance(last, ErrorEvent)
    assert (last.error, last.code) == ("the key is wrong", "model")


@pytest.mark.both_backends
async def test_the_state_of_a_model_error_goes_on_when_the_provider_is_back() -> None:
    """Retries that were used up are no end of the run."""
    agent, _ = searcher(asks(1), *[busy()] * AT_ONCE.max_attempts, asks(2), "done")
    with pytest.raises(ModelError) as raised:
        await agent.run("Go.")
    assert raised.value.state is not None
    last = await agent.resume(RunState.from_json(raised.value.state.to_json()))
    assert (last.text, last.spent.tool_calls) == ("done", 2)
    assert last.spent.model_calls == 3 + AT_ONCE.max_attempts


@pytest.mark.parametrize("ending", ["fails", "is cancelled", "runs out"])
async def test_nothing_stays_held_when_attempts_are_given_up(ending: str) -> None:
    """Whatever ends the attempts, a shared budget has what was not spent."""
    budget = Budget(PlanLimits(max_model_rounds=None, max_model_calls=20, max_tokens=10_000, max_output_tokens=9_000))
    wait = 0 if ending == "fails" else 0.02
    policy = RetryPolicy(max_attempts=5 if ending == "fails" else 99, initial_wait_seconds=wait, jitter_seconds=0)
    model = ScriptedModel([asks(1, usage=(9, 9)), forever(busy())])
    agent = Agent(model, tools=[look], retry=policy)
    limits = PlanLimits(max_model_calls=4) if ending == "runs out" else None
    if ending == "fails":
        with pytest.raises(ModelError):
            await agent.run("Go.", budget=budget)
    else:
        with anyio.move_on_after(0.2 if ending == "is cancelled" else None):
            await agent.run("Go.", budget=budget, limits=limits)
    assert budget.spent(0).model_calls == model.request_count
    assert_nothing_held(budget)


async def test_the_pieces_of_a_round_are_in_order() -> None:
    """Started, round, pieces, usage, end: nothing of a failed attempt comes after the next has begun."""
    agent, _ = searcher(Step(deltas=("a",), error=busy()), Step(deltas=("b",)))
    async with agent.stream("Go.") as stream:
        events = await events_of(stream)
    assert kinds(events) == ["started", "round_started", "text_delta", "round_started", "text_delta", "usage", "done"]
