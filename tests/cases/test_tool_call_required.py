"""The provider is told that a tool call is required, so that every answer is one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ToolCallLimitMiddleware

from endstop import PlanLimits
from endstop.langgraph import BoundMiddleware, bound
from tests.cases.fakes import CaseModel, Counted, asks
from tests.cases.outcomes import ANSWERED, ASK, BUDGET, FAR, NOT_ENDED, OLD_TOOL_LIMIT, Case, Outcome, measured

ALLOWED = 2
LIMITS = PlanLimits(max_tool_calls=ALLOWED)


def forced() -> tuple[CaseModel, Counted]:
    """A model that can't answer in words, also where it is offered no tools."""

    def answer(messages: Any) -> Any:
        return asks("search", query=f"page {len(search.made) + 1}")

    search = Counted("search", "40 orders")
    return CaseModel(answer=answer, most_calls=100, answers_without_tools=False), search


@cache
def today() -> Outcome:
    """Two tool calls are allowed, set as the middleware comes."""
    model, search = forced()
    agent = create_agent(model, [search.tool], middleware=[ToolCallLimitMiddleware(run_limit=ALLOWED)])
    return measured(lambda: agent.invoke(ASK, FAR), model, search)


@cache
def in_the_middleware() -> Outcome:
    """The same limit, as our middleware."""
    model, search = forced()
    agent = create_agent(model, [search.tool], middleware=[BoundMiddleware(LIMITS)])
    return measured(lambda: agent.invoke(ASK, FAR), model, search)


@cache
def ours() -> Outcome:
    """The same limit, around the graph."""
    model, search = forced()
    agent = bound(create_agent(model, [search.tool]), LIMITS)
    return measured(lambda: agent.invoke(ASK, FAR), model, search)


CASES = (Case(symptom="every answer must be a tool call", use="`bound`, `BoundMiddleware`", today=today, ours=ours),)


def test_today_the_tools_are_refused_and_the_model_asks_on() -> None:
    """100 calls are paid for two results. Old versions end with a stock phrase instead."""
    if OLD_TOOL_LIMIT:
        assert (today().end, today().model_calls, today().tool_calls) == (ANSWERED, 2, 2)
    else:
        assert today() == Outcome(end=NOT_ENDED, model_calls=100, tool_calls=ALLOWED)


@pytest.mark.parametrize("run", [ours, in_the_middleware])
def test_the_run_ends_with_what_the_tools_found(run: Callable[[], Outcome]) -> None:
    """The model is asked once without tools; it has no words, and the results are handed over."""
    outcome = run()
    assert (outcome.end, outcome.tool_calls) == (BUDGET, ALLOWED)
    assert outcome.model_calls == ALLOWED + 2
    assert outcome.said.startswith("max_tool_calls is used up (2 of 2)")
    assert outcome.said.endswith("(tool_digest)")
