"""A `BoundMiddleware` beside LangChain's own: every attempt counts, whatever its place in the list."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from langchain.agents import create_agent, middleware
from langchain.agents.middleware import (
    AgentMiddleware,
    ModelFallbackMiddleware,
    SummarizationMiddleware,
    ToolRetryMiddleware,
)
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool
from langgraph.errors import GraphBubbleUp
from pydantic import BaseModel

from endstop import LimitExceeded, PlanLimits
from endstop.langgraph.middleware import BoundMiddleware
from tests.langgraph.fakes import ASKED, FINAL, FakeChat, Looker, PlainChat, asks, forever, in_order, says, unanswered

State = Mapping[str, Any]


def limits(**fields: Any) -> PlanLimits:
    """These limits and no other."""
    return replace(PlanLimits(max_model_rounds=None), **fields)


def go(agent: Any, *, is_async: bool) -> State:
    return asyncio.run(agent.ainvoke(ASKED)) if is_async else agent.invoke(ASKED)


both_ways = pytest.mark.parametrize("is_async", [False, True])
in_any_place = pytest.mark.parametrize("first", [True, False])


def placed(bound: BoundMiddleware, other: AgentMiddleware[Any, Any], *, first: bool) -> list[AgentMiddleware[Any, Any]]:
    return [bound, other] if first else [other, bound]


def failing(times: int, then: Any = None) -> FakeChat:
    """A chat model whose first requests fail."""
    failures = [RuntimeError("overloaded")] * times

    def rule(messages: Any) -> AIMessage:
        if failures:
            raise failures.pop()
        return then(messages) if then is not None else asks("look")

    return FakeChat(rule=rule)


# -- retries and other models ----------------------------------------------------------------------


class Retry(AgentMiddleware[Any, Any]):
    """Makes a request up to three times, as LangChain's own does where it is there."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        for _ in range(2):
            try:
                return handler(request)
            except RuntimeError:
                continue
        return handler(request)

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        for _ in range(2):
            try:
                return await handler(request)
            except RuntimeError:
                continue
        return await handler(request)


def retries() -> list[AgentMiddleware[Any, Any]]:
    """LangChain's own retries, where this version has them, and the same by hand."""
    own = getattr(middleware, "ModelRetryMiddleware", None)
    return [Retry(), *([own(initial_delay=0, jitter=False, on_failure="error")] if own is not None else [])]


@both_ways
@in_any_place
@pytest.mark.parametrize("retry", retries(), ids=lambda retry: retry.name)
def test_every_attempt_is_a_model_call(retry: AgentMiddleware[Any, Any], first: bool, is_async: bool) -> None:
    """Two failures and an answer are three of them, and one round."""
    model = failing(2)
    parts = placed(BoundMiddleware(limits(max_model_calls=5)), retry, first=first)
    state = go(create_agent(model, [Looker().tool], middleware=parts), is_async=is_async)
    spent = state["endstop"]["spent"]
    assert (model.requests, spent["model_calls"], spent["model_rounds"]) == (5, 5, 3)
    assert state["messages"][-1].text == FINAL


@both_ways
@in_any_place
def test_attempts_end_at_the_limit(first: bool, is_async: bool) -> None:
    """One that does not fit is not made; what is held back for the final answer is asked all the same."""
    model = failing(2)
    parts = placed(BoundMiddleware(limits(max_model_calls=2)), Retry(), first=first)
    agent = create_agent(model, [Looker().tool], middleware=parts)
    state = go(agent, is_async=is_async)
    assert state["endstop"]["limit"] == "max_model_calls"
    assert state["endstop"]["spent"]["model_calls"] == 2


class Excuses(AgentMiddleware[Any, Any]):
    """Makes a request twice, and an answer of any error."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        try:
            return handler(request)
        except RuntimeError:
            try:
                return handler(request)
            except GraphBubbleUp:  # as some versions of LangChain's own retries do
                return AIMessage("Sorry.")


def test_what_others_make_of_a_refusal_is_no_answer() -> None:
    """The run ends as if it had not been swallowed."""
    model = failing(1)
    parts = [BoundMiddleware(limits(max_model_calls=2)), Excuses()]
    state = create_agent(model, [Looker().tool], middleware=parts).invoke(ASKED)
    assert (state["messages"][-1].text, state["endstop"]["limit"]) == (FINAL, "max_model_calls")
    assert model.requests == 2


class Wraps(AgentMiddleware[Any, Any]):
    """Raises an error of its own for every other one."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        try:
            return Retry().wrap_model_call(request, handler)
        except GraphBubbleUp as error:
            raise KeyError("it did not work") from error


def test_an_error_that_a_refusal_was_turned_into_is_none() -> None:
    """The limit is why there is no answer."""
    model = failing(1)
    parts = [BoundMiddleware(limits(max_model_calls=2)), Wraps()]
    state = create_agent(model, [Looker().tool], middleware=parts).invoke(ASKED)
    assert (state["messages"][-1].text, state["endstop"]["limit"]) == (FINAL, "max_model_calls")


@both_ways
@in_any_place
def test_a_fallback_model_is_inside_the_limit(first: bool, is_async: bool) -> None:
    """Both requests count, and the answer of the second is the round's."""
    broken, model = failing(99), forever("look")
    parts = placed(BoundMiddleware(limits(max_model_calls=5)), ModelFallbackMiddleware(model), first=first)
    state = go(create_agent(broken, [Looker().tool], middleware=parts), is_async=is_async)
    assert state["endstop"]["spent"]["model_calls"] == 5
    assert state["endstop"]["limit"] == "max_model_calls"
    assert unanswered(state["messages"]) == []


@both_ways
@in_any_place
def test_every_execution_of_a_retried_tool_counts(first: bool, is_async: bool) -> None:
    """A tool that fails and is run again has been executed twice."""
    started = []

    def break_down(place: str) -> str:
        """Break down."""
        started.append(place)
        raise ValueError("broken")

    async def abreak_down(place: str) -> str:
        """Break down."""
        return break_down(place)

    tool = StructuredTool.from_function(break_down, abreak_down, name="look")
    retry = ToolRetryMiddleware(max_retries=5, initial_delay=0, jitter=False)
    parts = placed(BoundMiddleware(limits(max_tool_calls=4)), retry, first=first)
    state = go(create_agent(forever("look"), [tool], middleware=parts), is_async=is_async)
    assert len(started) == 4
    assert (state["endstop"]["limit"], state["endstop"]["spent"]["tool_calls"]) == ("max_tool_calls", 4)
    assert state["messages"][-1].text == FINAL


# -- others that touch the conversation ------------------------------------------------------------


def test_a_summary_counts_as_the_call_that_made_it() -> None:
    """It is made in a node of its own, where nothing meters: it is charged when it is seen, as not measured."""
    model = forever("look", tokens=50)
    model.profile = {"max_input_tokens": 100_000}
    summariser = FakeChat(rule=lambda messages: says("They look for a key."))
    part = SummarizationMiddleware(summariser, **summary_options())
    agent = create_agent(model, [Looker().tool], middleware=[BoundMiddleware(limits(max_model_calls=8)), part])
    state = agent.invoke(ASKED)
    assert summariser.requests > 0
    spent = state["endstop"]["spent"]
    assert model.requests + summariser.requests == spent["model_calls"] == 8
    assert spent["unmeasured"] == summariser.requests
    assert unanswered(state["messages"]) == []


def test_a_summary_in_the_place_of_the_question_is_no_new_run() -> None:
    """The run goes on, and its digest is of all that is left."""
    model = forever("look", tokens=50)
    model.profile = {"max_input_tokens": 100_000}
    part = SummarizationMiddleware(FakeChat(rule=lambda messages: says("A key.")), **summary_options())
    bounds = BoundMiddleware(limits(max_model_rounds=6, on_limit="stop"))
    state = create_agent(model, [Looker().tool], middleware=[bounds, part]).invoke(ASKED)
    assert (model.requests, state["endstop"]["rung"]) == (6, "tool_digest")


def summary_options() -> dict[str, Any]:
    """A summary after 4 messages, in the words of this version."""
    if "trigger" in SummarizationMiddleware.__init__.__code__.co_varnames:
        return {"trigger": ("messages", 6), "keep": ("messages", 2)}
    return {"max_tokens_before_summary": 40, "messages_to_keep": 2}


class JumpsBack(AgentMiddleware[Any, Any]):
    """Is never content with an answer."""

    @middleware.hook_config(can_jump_to=["model"])
    def after_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        return None if state["messages"][-1].tool_calls else {"jump_to": "model"}


def test_an_agent_that_takes_no_answer_for_one_is_ended_by_an_error() -> None:
    """It would come back to the model for ever, and costs nothing while it does."""
    model = PlainChat(rule=lambda messages: says("Under the mat."))
    agent = create_agent(model, [Looker().tool], middleware=[BoundMiddleware(limits(max_model_calls=3)), JumpsBack()])
    with pytest.raises(LimitExceeded) as caught:
        agent.invoke(ASKED)
    assert model.requests == 3
    assert caught.value.result.text == "Under the mat."


class AddsTools(AgentMiddleware[Any, Any]):
    """Offers its tools whatever was asked."""

    def __init__(self, tool: Any) -> None:
        super().__init__()
        self._tool = tool

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(request.override(tools=[self._tool]))


def test_tools_that_others_add_to_the_final_answer_are_not_run() -> None:
    """What it asks for is answered as not run."""
    model, look = forever("look", text="Perhaps."), Looker()
    tool = look.tool
    parts = [BoundMiddleware(limits(max_model_calls=2)), AddsTools(tool)]
    state = create_agent(model, [tool], middleware=parts).invoke(ASKED)
    assert (look.started, model.requests) == (1, 2)
    assert (state["messages"][-1].text, state["endstop"]["rung"]) == ("Perhaps.", "model_answer")


class Cached(AgentMiddleware[Any, Any]):
    """Answers without asking."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return AIMessage("From the cache.")


def test_an_answer_that_is_at_hand_costs_no_model_call() -> None:
    """Nor is it any worse for that."""
    model = forever("look")
    parts = [BoundMiddleware(limits(max_model_calls=2)), Cached()]
    agent = create_agent(model, [Looker().tool], middleware=parts)
    state = agent.invoke(ASKED)
    assert (model.requests, state["messages"][-1].text, "endstop" in state) == (0, "From the cache.", False)


# -- answers that have a form ----------------------------------------------------------------------


class Place(BaseModel):
    """Where it is."""

    place: str


def formed(answer: Any) -> PlainChat:
    """A chat model that looks around while it can, and answers in the form when it can do nothing else."""

    def rule(messages: Any) -> AIMessage:
        return asks("look") if "Answer now" not in messages[-1].text else answer

    return PlainChat(rule=rule)


@both_ways
def test_the_final_answer_keeps_its_form_as_a_tool(is_async: bool) -> None:
    """The tool of the form is no tool of the agent's."""
    model, look = formed(asks(("Place", {"place": "mat"}))), Looker()
    agent = create_agent(
        model, [look.tool], response_format=ToolStrategy(Place), middleware=[BoundMiddleware(limits(max_model_calls=3))]
    )
    state = go(agent, is_async=is_async)
    assert state["structured_response"] == Place(place="mat")
    assert model.offered[-1] == ("Place",)
    assert (state["endstop"]["rung"], state["endstop"]["limit"]) == ("model_answer", "max_model_calls")
    assert (model.requests, look.started) == (3, 2)


@both_ways
def test_the_final_answer_keeps_the_form_of_the_provider(is_async: bool) -> None:
    """It is asked for beside no tools at all."""
    model = formed(says('{"place": "mat"}'))
    agent = create_agent(
        model,
        [Looker().tool],
        response_format=ProviderStrategy(Place),
        middleware=[BoundMiddleware(limits(max_model_calls=3))],
    )
    state = go(agent, is_async=is_async)
    assert state["structured_response"] == Place(place="mat")
    assert model.offered[-1] == ()


@both_ways
def test_a_final_answer_of_the_wrong_form_is_no_answer(is_async: bool) -> None:
    """There is no second one to pay: the run ends with what it has."""
    model = formed(asks(("Place", {"plaice": "mat"})))
    agent = create_agent(
        model,
        [Looker().tool],
        response_format=ToolStrategy(Place),
        middleware=[BoundMiddleware(limits(max_model_calls=3))],
    )
    state = go(agent, is_async=is_async)
    assert model.requests == 3
    assert state.get("structured_response") is None
    assert state["endstop"]["rung"] == "tool_digest"
    assert unanswered(state["messages"]) == []


def test_an_agent_of_nothing_but_a_form_ends_as_well() -> None:
    """LangChain asks such an agent again until it has the form, and would for ever."""
    model = PlainChat(rule=lambda messages: asks(("Place", {"plaice": "mat"})))
    agent = create_agent(
        model, [], response_format=ToolStrategy(Place), middleware=[BoundMiddleware(limits(max_model_calls=4))]
    )
    state = agent.invoke(ASKED)
    assert model.requests == 4
    assert (state["endstop"]["limit"], state["endstop"]["rung"]) == ("max_model_calls", "empty")


def test_a_form_within_the_limits_is_as_it_would_be() -> None:
    """The answer in its form on the last unit is a completed run."""
    model = in_order(asks("look"), asks(("Place", {"place": "mat"})))
    agent = create_agent(
        model,
        [Looker().tool],
        response_format=ToolStrategy(Place),
        middleware=[BoundMiddleware(limits(max_model_calls=3))],
    )
    state = agent.invoke(ASKED)
    assert (state["structured_response"], "endstop" in state) == (Place(place="mat"), False)
