"""An agent does the same again although it has read the result: one shell command, a fixed idea, or two in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage

from endstop import PlanLimits
from endstop.langgraph import bound
from tests.cases.fakes import CaseModel, Counted, always, asks, in_turn, says
from tests.cases.outcomes import ANSWERED, ASK, FAR, LOOP, NOT_ENDED, Case, Outcome, measured

Scenario = tuple[CaseModel, Counted]


def shell() -> Scenario:
    """The same command, with the same output."""
    return CaseModel(answer=always("bash", query="ls")), Counted("bash", "report.md")


def deaf() -> Scenario:
    """The result is the answer, as of a time that is always another; the model calls again."""
    weather = Counted("weather", lambda query: f"21 degrees, as of 12:00:{len(weather.made):02}")
    return CaseModel(answer=always("weather", query="Oslo")), weather


def alternating() -> Scenario:
    """One page, the other, and the first again: no two calls running are equal."""
    pages = in_turn(lambda: asks("read", query="page 1"), lambda: asks("read", query="page 2"))

    def answer(messages: Sequence[BaseMessage]) -> AIMessage:
        told = any("repeating yourself" in str(message.content) for message in messages)
        return says("Neither page says how many.") if told else pages(messages)

    return CaseModel(answer=answer), Counted("read", lambda query: f"{query} says nothing of orders")


@cache
def today(scenario: Callable[[], Scenario]) -> Outcome:
    """The agent, as it is."""
    model, tool = scenario()
    agent = create_agent(model, [tool.tool])
    return measured(lambda: agent.invoke(ASK, FAR), model, tool)


@cache
def ours(scenario: Callable[[], Scenario]) -> Outcome:
    """The agent, bound without any limit but that it must not repeat itself."""
    model, tool = scenario()
    agent = bound(create_agent(model, [tool.tool]), PlanLimits(max_model_rounds=None))
    return measured(lambda: agent.invoke(ASK, FAR), model, tool)


SYMPTOMS = {
    shell: "identical shell commands until the limit",
    deaf: "the model ignores the result and calls again",
    alternating: "two calls in turn, A, B, A, B: wanted is a nudge",
}
CASES = tuple(
    Case(symptom=symptom, use="`bound`", today=partial(today, scenario), ours=partial(ours, scenario))
    for scenario, symptom in SYMPTOMS.items()
)


@pytest.mark.parametrize("scenario", [shell, deaf, alternating])
def test_today_it_goes_on_without_end(scenario: Callable[[], Scenario]) -> None:
    """Nothing compares what is done with what was done before."""
    assert today(scenario) == Outcome(end=NOT_ENDED, model_calls=60, tool_calls=60)


@pytest.mark.parametrize(("scenario", "tool"), [(shell, "bash"), (deaf, "weather")])
def test_bound_ends_a_repeat(scenario: Callable[[], Scenario], tool: str) -> None:
    """A clock in the result is nothing new."""
    said = f"the run repeats itself; the same call ({tool}) came 6 times running and returned nothing new"
    assert ours(scenario) == Outcome(end=LOOP, model_calls=7, tool_calls=6, said=f"{said} (model_answer)")


def test_bound_tells_the_model_of_a_cycle() -> None:
    """This model listens, so that the run is completed by an answer, after the cycle has opened for the third time."""
    said = "Neither page says how many."
    assert ours(alternating) == Outcome(end=ANSWERED, model_calls=6, tool_calls=5, said=said)
