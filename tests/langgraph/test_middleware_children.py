"""Sub-agents that tools run spend what their bounded parent may spend, whether they have limits themselves or not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from endstop import PlanLimits
from endstop.langgraph.middleware import BoundMiddleware
from tests.langgraph.fakes import ASKED, FINAL, FakeChat, Looker, asks, forever, in_order, says, unanswered

State = Mapping[str, Any]
THREAD: Any = {"configurable": {"thread_id": "1"}}

both_ways = pytest.mark.parametrize("is_async", [False, True])
bound_or_not = pytest.mark.parametrize("is_bound", [True, False])


def limits(**fields: Any) -> PlanLimits:
    """These limits and no other."""
    return replace(PlanLimits(max_model_rounds=None), **fields)


def delegating(child: Any) -> StructuredTool:
    """A tool that hands a task to a sub-agent and gives back its last word."""

    def delegate(place: str) -> str:
        """Delegate."""
        return str(child.invoke(ASKED)["messages"][-1].text)

    async def adelegate(place: str) -> str:
        """Delegate."""
        return str((await child.ainvoke(ASKED))["messages"][-1].text)

    return StructuredTool.from_function(delegate, adelegate, name="delegate")


def agent_of(model: FakeChat, tools: list[Any], bounds: PlanLimits | None, **options: Any) -> Any:
    return create_agent(model, tools, middleware=[BoundMiddleware(bounds)] if bounds is not None else [], **options)


def go(agent: Any, *, is_async: bool) -> State:
    return asyncio.run(agent.ainvoke(ASKED)) if is_async else agent.invoke(ASKED)


@both_ways
@bound_or_not
def test_what_a_child_spends_is_spent_by_its_parent(is_bound: bool, is_async: bool) -> None:
    """It works with what the parent has left beside its final answer, and the parent ends with one."""
    model, child_model, look = forever("delegate"), forever("look"), Looker()
    child = agent_of(child_model, [look.tool], limits() if is_bound else None)
    state = go(agent_of(model, [delegating(child)], limits(max_model_calls=6)), is_async=is_async)
    spent = state["endstop"]["spent"]
    assert model.requests + child_model.requests == spent["model_calls"] == 6
    assert spent["tools"] == {"delegate": 1, "look": look.started}
    assert (state["endstop"]["limit"], state["messages"][-1].text) == ("max_model_calls", FINAL)
    assert unanswered(state["messages"]) == []


@both_ways
def test_a_bounded_child_ends_honestly_and_its_parent_goes_on(is_async: bool) -> None:
    """Its partial answer is the result of the tool."""
    model, child_model = in_order(asks("delegate"), says("Done.")), forever("look")
    child = agent_of(child_model, [Looker().tool], limits(max_model_calls=3))
    state = go(agent_of(model, [delegating(child)], limits(max_model_calls=9)), is_async=is_async)
    (answer,) = [message for message in state["messages"] if isinstance(message, ToolMessage)]
    assert (answer.text, state["messages"][-1].text) == (FINAL, "Done.")
    assert "endstop" not in state
    assert model.requests + child_model.requests == 5


@both_ways
def test_a_child_without_bounds_is_cut_and_its_call_answered(is_async: bool) -> None:
    """There is nothing that it could be asked; the parent is told, and ends."""
    model, child_model = forever("delegate"), forever("look")
    child = agent_of(child_model, [Looker().tool], None)
    state = go(agent_of(model, [delegating(child)], limits(max_model_calls=4)), is_async=is_async)
    (answer,) = [message for message in state["messages"] if isinstance(message, ToolMessage)]
    assert answer.text.startswith("Stopped before it was done, it may have had an effect: max_model_calls")
    assert (model.requests, child_model.requests) == (2, 2)


@both_ways
@bound_or_not
def test_children_at_once_cannot_overrun_it(is_bound: bool, is_async: bool) -> None:
    """Eight of them take no more than there is, and every call is answered."""
    model, child_model = forever(*["delegate"] * 8), forever("look")
    child_model.latency_seconds = 0.005
    child = agent_of(child_model, [Looker(seconds=0.005).tool], limits() if is_bound else None)
    state = go(agent_of(model, [delegating(child)], limits(max_model_calls=9, max_tool_calls=20)), is_async=is_async)
    assert model.requests + child_model.requests == state["endstop"]["spent"]["model_calls"] <= 9
    assert unanswered(state["messages"]) == []
    assert state["messages"][-1].text == FINAL


@both_ways
@pytest.mark.parametrize(("allowed", "reached"), [(0, (0, 0)), (1, (2, 0)), (2, (2, 1))])
def test_levels_are_bounded(allowed: int, reached: tuple[int, int], is_async: bool) -> None:
    """An agent below the last level that is allowed is not asked; the call that would start it is told."""
    deepest_model, middle_model = in_order(says("deepest")), in_order(asks("delegate"), says("middle"))
    deepest = agent_of(deepest_model, [Looker().tool], limits())
    middle = agent_of(middle_model, [delegating(deepest)], limits())
    model = in_order(asks("delegate"), says("top"))
    state = go(agent_of(model, [delegating(middle)], limits(max_depth=allowed)), is_async=is_async)
    assert (middle_model.requests, deepest_model.requests) == reached
    assert unanswered(state["messages"]) == []
    assert state["messages"][-1].text == "top"


def test_a_childs_own_level_counts_from_itself() -> None:
    """What it allows below itself has nothing to do with how deep it is."""
    child_model = in_order(says("child"))
    child = agent_of(child_model, [Looker().tool], limits(max_depth=0))
    model = in_order(asks("delegate"), says("top"))
    agent_of(model, [delegating(child)], limits(max_depth=1)).invoke(ASKED)
    assert child_model.requests == 1


def test_the_time_of_a_child_is_the_parents() -> None:
    """It is cut off with what its parent must have for the final answer left."""
    model, child_model = forever("delegate"), forever("look")
    child = agent_of(child_model, [Looker(seconds=30).tool], limits())
    agent = agent_of(model, [delegating(child)], limits(max_seconds=1))
    state = asyncio.run(agent.ainvoke(ASKED))
    assert (state["endstop"]["limit"], state["messages"][-1].text) == ("max_seconds", FINAL)
    assert state["endstop"]["spent"]["seconds"] < 1.5


@pytest.mark.parametrize("new_process", [False, True])
def test_a_child_that_waits_for_a_person_is_charged_once(new_process: bool) -> None:
    """What it spent before the pause and after it, in one process and in two."""
    saver = InMemorySaver()

    @tool
    def ask(place: str) -> str:
        """Ask a person."""
        return interrupt(place)

    child_model, model = in_order(asks("ask"), asks("ask"), says("child")), in_order(asks("delegate"), says("top"))

    def made() -> Any:
        child = agent_of(child_model, [ask], limits())
        return agent_of(model, [delegating(child)], limits(max_model_calls=9), checkpointer=saver)

    agent = made()
    state = agent.invoke(ASKED, THREAD)
    for answer in ("yes", "no"):
        assert "__interrupt__" in state
        agent = made() if new_process else agent
        state = agent.invoke(Command(resume=answer), THREAD)
    assert state["messages"][-1].text == "top"
    spent = agent.get_state(THREAD).values["endstop_run"]["record"]["spent"]
    assert (model.requests, child_model.requests) == (2, 3)
    assert (spent["model_calls"], spent["tools"]) == (5, {"delegate": 1, "ask": 2})


def test_a_bounded_agent_is_a_node_like_any_other() -> None:
    """In a graph, each time that the node runs is a run of its own."""
    model = forever("look")
    agent = agent_of(model, [Looker().tool], limits(max_model_calls=2))
    builder = StateGraph(MessagesState)
    builder.add_node("one", agent)
    builder.add_node("two", agent)
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    state: Any = builder.compile(checkpointer=InMemorySaver()).invoke(ASKED, THREAD)
    assert model.requests == 4
    marks = [message.response_metadata.get("endstop") for message in state["messages"]]
    assert [mark["used"] for mark in marks if mark is not None] == [2, 2]


def test_a_model_that_a_tool_asks_is_inside_the_limit() -> None:
    """Without any agent around it."""
    helper = FakeChat(rule=lambda messages: says("helped"))

    @tool
    def help_out(place: str) -> str:
        """Help."""
        return str(helper.invoke("help").text)

    model = forever("help_out")
    state = agent_of(model, [help_out], limits(max_model_calls=6)).invoke(ASKED)
    assert model.requests + helper.requests == state["endstop"]["spent"]["model_calls"] == 6
