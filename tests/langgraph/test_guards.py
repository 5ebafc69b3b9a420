"""A graph can say itself what its own code bounds, and every audit of it knows."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph

from endstop import ConfigError
from endstop.langgraph import GraphLimits, audit, bound, guarded


class State(TypedDict):
    draft: str


def write(state: State) -> dict[str, Any]:
    return {}


def team() -> Any:
    """A writer whose reviewer may send the draft back."""
    builder = StateGraph(State)
    builder.add_node("writer", write)
    builder.add_node("reviewer", write)
    builder.add_edge(START, "writer")
    builder.add_edge("writer", "reviewer")
    builder.add_conditional_edges("reviewer", lambda state: END, ["writer", END])
    return builder.compile()


def longest(graph: Any, **given: Any) -> int:
    """The super-steps of the worst case."""
    worst = audit(graph, **given).worst_case
    assert worst is not None
    return worst.super_steps.number


def test_what_a_graph_says_of_itself_need_not_be_said_again() -> None:
    """Twice back is three passes of two nodes."""
    assert audit(team()).worst_case is None
    assert longest(guarded(team(), caps={"reviewer->writer": 2})) == 6


def test_what_an_audit_is_given_goes_before() -> None:
    """The caller may know better, of one bound and not of the others."""
    graph = guarded(team(), caps={"reviewer->writer": 2, "writer": 9})
    assert longest(graph, caps={"reviewer->writer": 3}) == 8


def test_it_holds_for_every_graph_that_is_made_of_it() -> None:
    """With another config, and bound to limits."""
    graph = guarded(team(), caps={"reviewer->writer": 1})
    assert longest(graph.with_config(recursion_limit=7)) == 4
    assert longest(bound(graph, GraphLimits(max_super_steps=50))) == 4


def test_it_returns_the_same_graph_and_changes_nothing_of_it() -> None:
    """It runs as it did."""
    graph = team()
    before = graph.invoke({"draft": "x"})
    assert guarded(graph, caps={"writer": 1}, fan_out={"writer": 2}) is graph
    assert graph.invoke({"draft": "x"}) == before


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"caps": {"writer": -1}}, r"caps\['writer'\]=-1"),
        ({"caps": {"writer": True}}, r"caps\['writer'\]=True"),
        ({"fan_out": [3]}, r"fan_out=\[3\]"),
    ],
)
def test_a_bound_that_is_none_is_refused(given: Any, message: str) -> None:
    """The error names the field and the value."""
    with pytest.raises(ConfigError, match=message):
        guarded(team(), **given)


def test_only_a_compiled_graph_has_guards() -> None:
    """A builder is compiled first; a name that the graph does not have is found by the audit."""
    with pytest.raises(ConfigError, match="give a compiled graph"):
        guarded(StateGraph(State))
    with pytest.raises(ConfigError, match="caps='editor'"):
        audit(guarded(team(), caps={"editor": 1}))
