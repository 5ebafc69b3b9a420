"""What the tests of whole runs share: a tool, scripts that go on without repeating themselves, what always holds."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Callable, Sequence
from decimal import Decimal

import anyio

from endstop import (
    Agent,
    Budget,
    Cancelled,
    Done,
    ErrorEvent,
    Event,
    Message,
    ModelRequest,
    ModelTurn,
    PlanLimits,
    RetryPolicy,
    Spent,
    ToolReturn,
)
from endstop.models.scripted import Forever, ScriptedModel, ScriptStep, Step, call, forever, turn

AT_ONCE = RetryPolicy(initial_wait_seconds=0, jitter_seconds=0)
"""Retries without a wait."""

PATIENCE_SECONDS = 20
"""A run of these tests that takes longer will never end; it allows for a busy machine."""

UNITS = ("model_rounds", "model_calls", "tool_calls", "tokens", "output_tokens", "cost")


async def look(n: int) -> str:
    """Look at a page."""
    return f"page {n}"


def asks(*pages: int, text: str = "", usage: tuple[int, int] | None = None) -> ModelTurn:
    """A turn that asks to look at the pages."""
    return turn(text, calls=[call("look", {"n": n}) for n in pages], usage=usage)


def searches(parallel: int = 1, *, answer: ScriptStep = "what there is") -> Forever:
    """A model that looks at ever new pages, and answers only where it is asked for the final answer."""

    def step(request: ModelRequest) -> ScriptStep:
        if request.final:
            return answer
        first = len(request.messages) * 1_000
        return asks(*range(first, first + parallel))

    return forever(step)


def searcher(*steps: ScriptStep | Forever, limits: PlanLimits | None = None) -> tuple[Agent[str], ScriptedModel]:
    """An agent with one tool on a script, by default on one that never stops of its own accord."""
    model = ScriptedModel(steps or [searches()])
    return Agent(model, tools=[look], limits=limits or PlanLimits(), retry=AT_ONCE), model


async def events_of(stream: AsyncIterable[Event]) -> list[Event]:
    """Every event of a stream; a stream that never comes to its end fails the test instead of hanging it."""
    with anyio.fail_after(PATIENCE_SECONDS):
        return [event async for event in stream]


async def until(happened: Callable[[], object]) -> None:
    """Wait for what a run does at the same time; it fails the test where that never happens."""
    for _ in range(PATIENCE_SECONDS * 1_000):
        if happened():
            return
        await anyio.sleep(0.001)
    raise AssertionError("it never happened")


def kinds(events: Sequence[Event]) -> list[str]:
    """The kinds of events, in order."""
    return [event.kind for event in events]


def assert_one_end(events: Sequence[Event]) -> Done | Cancelled | ErrorEvent:
    """Exactly one of `done`, `error` and `cancelled`, as the last event; numbers that rise by one; one run id."""
    ends = [event for event in events if isinstance(event, Done | Cancelled | ErrorEvent)]
    assert kinds(ends) == kinds(events[-1:]), kinds(events[-8:])
    assert [event.seq for event in events] == list(range(events[0].seq, events[0].seq + len(events)))
    assert len({event.run_id for event in events}) == 1
    return ends[0]


def assert_valid_history(messages: Sequence[Message]) -> None:
    """Every call has one return, in the order asked and before anything else is said; ids are not given twice."""
    open_calls: list[str] = []
    ids: list[str] = []
    for message in messages:
        if isinstance(message, ToolReturn):
            assert open_calls[:1] == [message.call_id], f"{message} answers no open call"
            del open_calls[0]
            continue
        assert not open_calls, f"unanswered before {message}: {open_calls}"
        if isinstance(message, ModelTurn):
            open_calls = [asked.call_id for asked in message.tool_calls]
            ids += open_calls
    assert not open_calls, f"never answered: {open_calls}"
    assert all(ids), "a call has no id"
    assert len(set(ids)) == len(ids), f"an id was given twice: {ids}"


def assert_nothing_held(budget: Budget) -> None:
    """What is left of every limit is what was not spent: nothing stays taken for what is over."""
    spent = budget.spent(time.monotonic())
    for unit, left in zip(UNITS, budget.left(*UNITS), strict=True):
        if left is not None:
            assert left == getattr(budget.limits, f"max_{unit}") - getattr(spent, unit), unit


def total_spent(spents: Sequence[Spent]) -> tuple[int, int, int, int, Decimal]:
    """The counters of several runs together: rounds, calls, tool calls, tokens, dollars."""
    return (
        sum(spent.model_rounds for spent in spents),
        sum(spent.model_calls for spent in spents),
        sum(spent.tool_calls for spent in spents),
        sum(spent.tokens for spent in spents),
        sum((spent.cost for spent in spents), Decimal(0)),
    )


def streamed(pieces: int, *pages: int) -> Step:
    """A turn in so many pieces of one letter, that asks to look at the pages."""
    return Step(deltas=("x",) * pieces, tool_calls=asks(*pages).tool_calls)
