"""A limit on tool calls falls into a batch of parallel calls, and the thread can't go on."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ToolCallLimitMiddleware
from langgraph.checkpoint.memory import InMemorySaver

from endstop import PlanLimits
from endstop.langgraph import BoundMiddleware, bound
from tests.cases.fakes import CaseModel, Counted, asks_all, dangling
from tests.cases.outcomes import ASK, BUDGET, OLD_TOOL_LIMIT, ON_THREAD, REFUSED, Case, Outcome, measured

ALLOWED = 3
LIMITS = PlanLimits(max_tool_calls=ALLOWED)
NEXT: Any = {"messages": [("user", "And last year?")]}


def pairs() -> tuple[CaseModel, Counted]:
    """A model that always asks for two calls at once, at a provider that refuses a call without a result."""
    two = ("search", {"query": "orders"}), ("search", {"query": "returns"})
    return CaseModel(answer=lambda messages: asks_all(*two), strict=True), Counted("search", "no hits")


@cache
def today(exit_behavior: Literal["end", "error"] = "error") -> Outcome:
    """The first turn meets the limit, the second one is what this tells of."""
    model, search = pairs()
    limit = ToolCallLimitMiddleware(run_limit=ALLOWED, exit_behavior=exit_behavior)
    agent = create_agent(model, [search.tool], middleware=[limit], checkpointer=InMemorySaver())
    return two_turns(agent, model, search)


def two_turns(agent: Any, model: CaseModel, search: Counted) -> Outcome:
    """The tool calls of the first turn, what it left behind, and how the second one ends."""
    first = measured(lambda: agent.invoke(ASK, ON_THREAD), model, search)
    left = dangling(agent.get_state(ON_THREAD).values["messages"])
    second = measured(lambda: agent.invoke(NEXT, ON_THREAD), model, search)
    return Outcome(
        end=f"next turn: {second.end}",
        tool_calls=first.tool_calls,
        said=f"calls without a result that were saved: {left}",
    )


@cache
def in_the_middleware() -> Outcome:
    """The limit as a middleware."""
    model, search = pairs()
    agent = create_agent(model, [search.tool], middleware=[BoundMiddleware(LIMITS)], checkpointer=InMemorySaver())
    return two_turns(agent, model, search)


@cache
def ours() -> Outcome:
    """The limit around the graph."""
    model, search = pairs()
    return two_turns(bound(create_agent(model, [search.tool], checkpointer=InMemorySaver()), LIMITS), model, search)


CASES = (
    Case(
        symptom="a limit on tool calls in a parallel batch: the next turn is refused",
        use="`bound`, `BoundMiddleware`",
        today=today,
        ours=ours,
    ),
)


def test_today_the_saved_thread_is_refused_by_the_provider() -> None:
    """With `exit_behavior="error"`. Old versions have looked before the batch, and run one call too many."""
    if OLD_TOOL_LIMIT:
        assert (today().tool_calls, today().said) == (ALLOWED + 1, "calls without a result that were saved: 0")
    else:
        assert today() == Outcome(
            end=f"next turn: {REFUSED}", tool_calls=2, said="calls without a result that were saved: 2"
        )


def test_today_ending_softly_leaves_no_such_call() -> None:
    """With `exit_behavior="end"` every pending call is answered."""
    assert today("end").said == "calls without a result that were saved: 0"


@pytest.mark.parametrize("run", [ours, in_the_middleware])
def test_what_fits_runs_and_what_does_not_is_answered(run: Callable[[], Outcome]) -> None:
    """Three of four calls run, the thread is valid, and the next turn has limits of its own."""
    assert run() == Outcome(
        end=f"next turn: {BUDGET}", tool_calls=ALLOWED, said="calls without a result that were saved: 0"
    )
