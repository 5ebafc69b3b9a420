"""A run breaks between a tool call and its result, and the thread can't go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import create_react_agent

from endstop import PlanLimits
from endstop.langgraph import BoundMiddleware, bound
from tests.cases.fakes import CaseModel, Counted, always, asks, dangling, results, says
from tests.cases.outcomes import ANSWERED, ASK, BUDGET, ON_THREAD, REFUSED, Case, Outcome, measured

Bind = Callable[[Any], Any]

NEXT: Any = {"messages": [("user", "And last year?")]}
ODD: Any = {"recursion_limit": 5, **ON_THREAD}
FOUND = "40 orders"


class Aborted(BaseException):
    """The worker is told to stop, in the middle of a tool."""


def as_it_is(graph: Any) -> Any:
    """The graph, without endstop."""
    return graph


def bounded(graph: Any) -> Any:
    """The graph, bound."""
    return bound(graph, PlanLimits())


def with_middleware(model: Any, tools: Any, *, checkpointer: Any) -> Any:
    """An agent that is bound by a middleware."""
    return create_agent(model, tools, middleware=[BoundMiddleware(PlanLimits())], checkpointer=checkpointer)


@cache
def at_the_limit(bind: Bind) -> Outcome:
    """The first turn is cut at an odd limit; this tells of the next one."""
    model, search = CaseModel(answer=always("search", query="orders"), strict=True), Counted("search", "no hits")
    agent = bind(create_agent(model, [search.tool], checkpointer=InMemorySaver()))
    measured(lambda: agent.invoke(ASK, ODD), model, search)
    return next_turn(agent, model, ODD)


@cache
def after_an_abort(bind: Bind, build: Any) -> Outcome:
    """The first turn is aborted in a tool; this tells of the next one, in which the tool works."""

    def search_or_abort(query: str) -> str:
        if len(search.made) == 1:
            raise Aborted(query)
        return FOUND

    def answer(messages: Sequence[BaseMessage]) -> AIMessage:
        found = any(result.content == FOUND for result in results(messages))
        return says(FOUND) if found else asks("search", query="orders")

    model, search = CaseModel(answer=answer, strict=True), Counted("search", search_or_abort)
    agent = bind(build(model, [search.tool], checkpointer=InMemorySaver()))
    with pytest.raises(Aborted):
        agent.invoke(ASK, ON_THREAD)
    return next_turn(agent, model, ON_THREAD)


def next_turn(agent: Any, model: CaseModel, config: Any) -> Outcome:
    """What the turn before has left, and what comes of the next thing that the user says."""
    left = dangling(agent.get_state(config).values["messages"])
    end = measured(lambda: agent.invoke(NEXT, config), model).end
    return Outcome(end=f"next turn: {end}", said=f"calls without a result that were saved: {left}")


CASES = (
    Case(
        symptom="a run is cut at an odd limit: the provider refuses the thread",
        use="`bound`",
        today=partial(at_the_limit, as_it_is),
        ours=partial(at_the_limit, bounded),
    ),
    Case(
        symptom="a run is aborted in a tool: `create_react_agent` refuses the thread",
        use="`bound`",
        today=partial(after_an_abort, as_it_is, create_react_agent),
        ours=partial(after_an_abort, bounded, create_react_agent),
    ),
)


def test_today_an_odd_limit_poisons_the_thread() -> None:
    """The provider refuses the conversation, now and on every later turn."""
    assert at_the_limit(as_it_is) == Outcome(
        end=f"next turn: {REFUSED}", said="calls without a result that were saved: 1"
    )


def test_bound_answers_the_open_call_at_the_limit() -> None:
    """The recursion limit is a limit like any other; the next turn comes to the same one."""
    assert at_the_limit(bounded) == Outcome(
        end=f"next turn: {BUDGET}", said="calls without a result that were saved: 0"
    )


@pytest.mark.parametrize(("build", "end"), [(create_react_agent, "ValueError"), (create_agent, REFUSED)])
def test_today_an_abort_poisons_the_thread(build: Any, end: str) -> None:
    """`create_react_agent` refuses it itself; `create_agent` sends it as it is."""
    said = "calls without a result that were saved: 1"
    assert after_an_abort(as_it_is, build) == Outcome(end=f"next turn: {end}", said=said)


@pytest.mark.parametrize(
    ("bind", "build"), [(bounded, create_react_agent), (bounded, create_agent), (as_it_is, with_middleware)]
)
def test_a_call_that_an_abort_has_left_open_is_answered(bind: Bind, build: Any) -> None:
    """Nobody could save a result when the worker stopped; the next turn finds the call and answers it first."""
    assert after_an_abort(bind, build).end == f"next turn: {ANSWERED}"
