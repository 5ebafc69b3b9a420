"""A researcher is never satisfied, and what its user sees is a stream that breaks."""

from __future__ import annotations

from functools import cache
from typing import Any

from langgraph.graph import END, START, MessagesState, StateGraph

from endstop import PlanLimits
from endstop.langgraph import bound
from tests.cases.fakes import CaseModel, says
from tests.cases.outcomes import ASK, BUDGET, OUT_OF_STEPS, Case, Outcome, measured

CALLS = 12


def researchers() -> tuple[CaseModel, Any]:
    """A planner and a researcher who always finds that something is missing."""
    model = CaseModel(answer=lambda messages: says(f"Source {len(messages)} is missing."), answers_without_tools=False)

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("planner", ask)
    graph.add_node("researcher", ask)
    graph.add_edge(START, "planner")
    graph.add_edge("planner", "researcher")
    graph.add_conditional_edges("researcher", lambda state: "planner", ["planner", END])
    return model, graph.compile()


def streamed(graph: Any, model: CaseModel) -> Outcome:
    """What a web server passes on: how the stream ends, and after how many chunks."""
    chunks: list[Any] = []

    def stream() -> Any:
        # One by one: what came before an error must be counted.
        for chunk in graph.stream(ASK, {"recursion_limit": 25}, stream_mode="values"):
            chunks.append(chunk)
        return chunks[-1]

    outcome = measured(stream, model)
    said = "; ".join(filter(None, [f"{len(chunks)} chunks", outcome.said]))
    return Outcome(end=outcome.end, model_calls=outcome.model_calls, said=said)


@cache
def today() -> Outcome:
    """The graph, as it is."""
    model, graph = researchers()
    return streamed(graph, model)


@cache
def ours() -> Outcome:
    """The graph, bound: the stream has a last chunk of the same kind."""
    model, graph = researchers()
    return streamed(bound(graph, PlanLimits(max_model_calls=CALLS, max_model_rounds=None)), model)


CASES = (Case(symptom="a researcher is never satisfied, and the stream breaks", use="`bound`", today=today, ours=ours),)


def test_today_the_stream_ends_in_an_error() -> None:
    """It comes after the last chunk, when much was sent already."""
    assert today() == Outcome(end=OUT_OF_STEPS, model_calls=25, said="26 chunks")


def test_bound_ends_the_stream_with_a_chunk() -> None:
    """The last one says that and why it was cut; its text is the answer that was held back for."""
    said = "13 chunks; max_model_calls is used up (12 of 12) (model_answer)"
    assert ours() == Outcome(end=BUDGET, model_calls=CALLS, said=said)
