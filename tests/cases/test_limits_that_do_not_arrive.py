"""A recursion limit is set, and the run is under another one: nobody is told."""

from __future__ import annotations

from functools import cache
from typing import Any

from langgraph.graph import END, START, MessagesState, StateGraph

from endstop.langgraph import GraphLimits, bound
from endstop.langgraph.audit import audit
from tests.cases.fakes import CaseModel, says
from tests.cases.outcomes import ASK, BUDGET, NOT_ENDED, OLD_DEFAULT, OUT_OF_STEPS, Case, Outcome, measured


def looping() -> tuple[CaseModel, Any]:
    """A model, and a graph of one node that calls it in every super-step and never stops."""
    model = CaseModel(answer=lambda messages: says(f"Page {len(messages)}."), answers_without_tools=False)
    graph = StateGraph(MessagesState)
    graph.add_node("read", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_edge(START, "read")
    graph.add_conditional_edges("read", lambda state: "read", ["read", END])
    return model, graph.compile()


@cache
def rebound() -> Outcome:
    """25, the default of LangChain, set on a graph that had 40."""
    model, graph = looping()
    graph = graph.with_config(recursion_limit=40).with_config(recursion_limit=25)
    return measured(lambda: graph.invoke(ASK), model)


@cache
def behind_a_retry() -> Outcome:
    """The same limit, given to the call of a graph with a retry around it."""
    model, graph = looping()
    graph = graph.with_config(recursion_limit=40).with_retry(stop_after_attempt=1)
    return measured(lambda: graph.invoke(ASK, {"recursion_limit": 25}), model)


@cache
def in_configurable() -> Outcome:
    """A limit of 5, put where everything else that is configured goes."""
    model, graph = looping()
    return measured(lambda: graph.invoke(ASK, {"configurable": {"recursion_limit": 5}}), model)


@cache
def bound_behind_a_retry() -> Outcome:
    """The limit is in the graph, and not in a config that others merge."""
    model, graph = looping()
    graph = bound(graph, GraphLimits(max_super_steps=25, max_model_rounds=None)).with_config(recursion_limit=40)
    return measured(lambda: graph.with_retry(stop_after_attempt=1).invoke(ASK, {"recursion_limit": 25}), model)


@cache
def bound_in_configurable() -> Outcome:
    """What is in the config makes no difference."""
    model, graph = looping()
    graph = bound(graph, GraphLimits(max_super_steps=5, max_model_rounds=None))
    return measured(lambda: graph.invoke(ASK, {"configurable": {"recursion_limit": 50}}), model)


CASES = (
    Case(
        symptom="a limit of 25, the library's default, is dropped behind a retry",
        use="`bound` with `max_super_steps`",
        today=behind_a_retry,
        ours=bound_behind_a_retry,
    ),
    Case(
        symptom="a limit of 5 in `configurable` is ignored",
        use="`bound` with `max_super_steps`; `audit`",
        today=in_configurable,
        ours=bound_in_configurable,
    ),
)


def test_today_a_limit_that_equals_the_default_is_dropped() -> None:
    """It is taken for one that was not set: by old versions at once, by later ones behind a retry."""
    assert rebound() == Outcome(end=OUT_OF_STEPS, model_calls=40 if OLD_DEFAULT else 25)
    assert behind_a_retry() == Outcome(end=OUT_OF_STEPS, model_calls=40)


def test_today_a_limit_in_configurable_is_ignored() -> None:
    """Without a word, the run has the default of the version."""
    if OLD_DEFAULT:
        assert in_configurable() == Outcome(end=OUT_OF_STEPS, model_calls=25)
    else:
        assert in_configurable() == Outcome(end=NOT_ENDED, model_calls=60)


def test_super_steps_are_bounded_whatever_the_config_says() -> None:
    """25 are 25, and 5 are 5, each with a call in it; the final answer after them takes no super-step."""
    said = "max_super_steps is used up ({0} of {0}) (model_answer)"
    assert bound_behind_a_retry() == Outcome(end=BUDGET, model_calls=25 + 1, said=said.format(25))
    assert bound_in_configurable() == Outcome(end=BUDGET, model_calls=5 + 1, said=said.format(5))


def test_the_audit_names_the_limit_that_is_ignored() -> None:
    """And the one that holds instead."""
    _, graph = looping()
    found = audit(graph.with_config(configurable={"recursion_limit": 5}))
    assert "configurable_limit_ignored" in {finding.code for finding in found.findings}
    assert found.limit.super_steps == (25 if OLD_DEFAULT else 10_007)
