"""A draft goes to and fro between two nodes, and only the drafts are to be limited, on the whole thread."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, StateGraph

from endstop.langgraph.step_budget import (
    StepBudgetSettings,
    StepBudgetState,
    honest_truncation_delta,
    should_truncate,
    step_delta,
)
from tests.cases.outcomes import ON_THREAD, OUT_OF_STEPS, Case, Outcome

DRAFTS = 3
TURNS = 3
SETTINGS = StepBudgetSettings(enable_step_budget=True, max_total_steps=DRAFTS, language="en")


class Desk(StepBudgetState):
    """What is written on a thread."""

    drafts: Annotated[int, operator.add]
    review_feedback: str


def write(state: Mapping[str, Any]) -> dict[str, Any]:
    """A draft."""
    return {"drafts": 1}


def write_or_stop(state: Mapping[str, Any]) -> dict[str, Any]:
    """A draft that is counted, where one is left; this node alone counts itself."""
    stop, reason = should_truncate(state, SETTINGS)
    if stop:
        return {**honest_truncation_delta(reason, language="en")}
    return {"drafts": 1, **step_delta("write", "the report")}


def after_writing(state: Mapping[str, Any]) -> str:
    """To the reviewer, who always wants another draft; to the end where the writer stopped."""
    return END if state.get("truncated") else "review"


def turns(writer: Any) -> tuple[list[str], Mapping[str, Any]]:
    """The errors and the last state of so many turns on one thread."""
    graph = StateGraph(Desk)
    graph.add_node("write", writer)
    graph.add_node("review", lambda state: {})
    graph.add_edge(START, "write")
    graph.add_conditional_edges("write", after_writing, ["review", END])
    graph.add_edge("review", "write")
    compiled = graph.compile(checkpointer=InMemorySaver())
    # The nearest that the recursion limit comes to it: that many drafts and reviews.
    config: Any = {"recursion_limit": 2 * DRAFTS if writer is write else 25, **ON_THREAD}
    errors: list[str] = []
    for _ in range(TURNS):
        try:
            compiled.invoke({"drafts": 0}, config)
        except GraphRecursionError as error:
            errors.append(type(error).__name__)
    return errors, compiled.get_state(config).values


@cache
def today() -> Outcome:
    """The nearest there is: a recursion limit of 3 drafts and 3 reviews, and a turn that raises is tried again."""
    errors, state = turns(write)
    assert errors == [OUT_OF_STEPS] * TURNS
    return Outcome(end=OUT_OF_STEPS, said=f"{state['drafts']} drafts on the thread")


@cache
def ours() -> Outcome:
    """The count is a channel of the state, so that it belongs to the thread."""
    errors, state = turns(write_or_stop)
    assert not errors
    return Outcome(end="truncated", said=f"{state['drafts']} drafts on the thread; {state['review_feedback']}")


CASES = (
    Case(
        symptom="one node of a loop is to be limited, on the whole thread", use="`step_budget`", today=today, ours=ours
    ),
)


def test_today_a_limit_is_for_all_nodes_and_for_one_turn() -> None:
    """Each of three turns makes 3 drafts again, and raises."""
    assert today() == Outcome(end=OUT_OF_STEPS, said="9 drafts on the thread")


def test_the_step_budget_counts_one_node_over_all_turns() -> None:
    """Three drafts, then every turn ends at once and says why."""
    said = "3 drafts on the thread; honest ending: step budget exceeded (3/3)"
    assert ours() == Outcome(end="truncated", said=said)
