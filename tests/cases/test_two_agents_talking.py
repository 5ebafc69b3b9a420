"""Two agents ask each other for clarification, without tools and without end, and somebody pays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langgraph.graph import START, MessagesState, StateGraph

from endstop import PlanLimits, Price, Usage
from endstop.langgraph import bound
from tests.cases.fakes import Answer, CaseModel, in_turn, says
from tests.cases.outcomes import ASK, BUDGET, FAR, LOOP, NOT_ENDED, Case, Outcome, measured

PRICE = Price(input_per_million=3, output_per_million=15)
DOLLARS = 0.05


def ping_pong() -> Answer:
    """The same two sentences, again and again."""
    return in_turn(lambda: says("Please clarify what you need."), lambda: says("I did. Please confirm it."))


def ever_new(messages: Sequence[BaseMessage]) -> AIMessage:
    """A question in other words each time."""
    return says(f"Please clarify point {len(messages)}.")


def talking(answer: Answer) -> tuple[CaseModel, Any]:
    """An analyst and a verifier who hand the conversation to each other."""
    model = CaseModel(answer=answer, answers_without_tools=False)

    def speak(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("analyst", speak)
    graph.add_node("verifier", speak)
    graph.add_edge(START, "analyst")
    graph.add_edge("analyst", "verifier")
    graph.add_edge("verifier", "analyst")
    return model, graph.compile()


@cache
def today() -> Outcome:
    """No tool is called, so that nothing that counts tool calls sees it."""
    model, graph = talking(ping_pong())
    return measured(lambda: graph.invoke(ASK, FAR), model)


@cache
def ours() -> Outcome:
    """Messages loop too."""
    model, graph = talking(ping_pong())
    return measured(lambda: bound(graph, PlanLimits(max_model_rounds=None)).invoke(ASK, FAR), model)


CASES = (Case(symptom="two agents ask each other to clarify, for ever", use="`bound`", today=today, ours=ours),)


def test_today_they_talk_on() -> None:
    """Each answer is paid, with all that was said before."""
    assert today() == Outcome(end=NOT_ENDED, model_calls=60)


def test_bound_ends_the_same_words_as_a_loop() -> None:
    """The cycle of two messages is seen when it opens for the third time, and ends when it goes on."""
    said = "the run repeats itself; a cycle of 2 steps (newest: verifier) opened 4 times running"
    assert ours() == Outcome(end=LOOP, model_calls=9, said=f"{said} and returned nothing new (model_answer)")


def test_bound_ends_ever_new_words_at_the_price() -> None:
    """What no comparison finds, money bounds: five cents, at the price that the caller names."""
    model, graph = talking(ever_new)
    limits = PlanLimits(max_model_rounds=None, max_cost=DOLLARS, assume_price=PRICE)
    outcome = measured(lambda: bound(graph, limits).invoke(ASK, FAR), model)
    assert outcome.end == BUDGET
    assert outcome.said.startswith("max_cost leaves no room")
    assert PRICE.cost(Usage(input_tokens=sum(model.read), output_tokens=sum(model.written))) <= DOLLARS
