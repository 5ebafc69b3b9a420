"""The model's output cap cuts a tool call's arguments, and the error that it is told hides that."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool

from endstop import PlanLimits
from endstop.langgraph import BoundMiddleware, bound
from tests.cases.fakes import CaseModel, asks, results
from tests.cases.outcomes import ASK, FAR, LOOP, NOT_ENDED, Case, Outcome, measured

LIMITS = PlanLimits(max_model_rounds=None)


@tool
def write_file(path: str, content: str) -> str:
    """Write a file."""
    raise AssertionError("no call here is whole")


def cutter(most_calls: int = 250) -> CaseModel:
    """A model whose file is longer than its answers may be, so that the content never arrives."""
    return CaseModel(
        answer=lambda messages: asks("write_file", finish="length", path="report.md"), most_calls=most_calls
    )


@cache
def today() -> Outcome:
    """The model is told that a field is missing, and tries again."""
    model = cutter()
    agent = create_agent(model, [write_file])
    outcome = measured(lambda: agent.invoke(ASK, FAR), model)
    told = str(results(model.sent[-1])[-1].content)
    assert "cut" not in told
    assert "max_tokens" not in told
    return outcome


@cache
def in_a_bound_graph() -> Outcome:
    """The same agent, bound from outside."""
    model = cutter()
    agent = bound(create_agent(model, [write_file]), LIMITS)
    return measured(lambda: agent.invoke(ASK, FAR), model)


@cache
def in_the_middleware() -> Outcome:
    """The same agent, with a middleware."""
    model = cutter()
    agent = create_agent(model, [write_file], middleware=[BoundMiddleware(LIMITS)])
    return measured(lambda: agent.invoke(ASK, FAR), model)


CASES = (
    Case(
        symptom="an output cap cuts a call's arguments, for ever",
        use="`BoundMiddleware`",
        today=today,
        ours=in_the_middleware,
    ),
)


def test_today_it_is_tried_249_times_more() -> None:
    """`content: Field required` is all that anybody is told."""
    assert today() == Outcome(end=NOT_ENDED, model_calls=250)


@pytest.mark.parametrize("run", [in_a_bound_graph, in_the_middleware])
def test_it_ends_and_the_reason_names_the_cap(run: Callable[[], Outcome]) -> None:
    """The reason says that the model's answers were cut, which no error of the tool does."""
    repeat = "the run repeats itself; the same call (write_file) came 6 times running and returned nothing new"
    cut = "the model's answers were cut at its output cap, so that their tool calls are not whole"
    assert run() == Outcome(end=LOOP, model_calls=7, said=f"{repeat}; {cut} (model_answer)")
