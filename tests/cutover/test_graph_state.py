"""The state of a turn: LangGraph's own channels, of which a copy can be asked what they would hold."""

from __future__ import annotations

import operator
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.channels import EphemeralValue
from langgraph.graph import StateGraph
from langgraph.managed import RemainingSteps
from typing_extensions import TypedDict

from endstop.cutover._graph_state import GraphState
from endstop.cutover._pregel import Write, scratch

KEYS = ("numbers", "newest", "passing", "remaining")


class State(TypedDict):
    """One key of each kind."""

    numbers: Annotated[list[int], operator.add]
    newest: int
    passing: Annotated[int, EphemeralValue]
    remaining: RemainingSteps


def fresh() -> GraphState:
    builder: Any = StateGraph(State)
    return GraphState({key: channel.copy() for key, channel in builder.channels.items()}, builder.managed)


def read(state: GraphState) -> dict[str, object]:
    return state.read(KEYS, scratch(2, 10))


def test_keys_without_a_value_are_left_out() -> None:
    """Reducers begin with their type's empty value; what the run knows itself is always there."""
    assert read(fresh()) == {"numbers": [], "remaining": 8}


def test_writes_go_through_the_reducers() -> None:
    """Several writes of one step are taken in order."""
    state = fresh()
    state.apply([("numbers", [1]), ("newest", 7), ("numbers", [2])])
    assert read(state) == {"numbers": [1, 2], "newest": 7, "remaining": 8}


def test_what_is_passing_lives_for_one_step() -> None:
    """The next step empties it, whatever else it writes."""
    state = fresh()
    state.apply([("passing", 3)])
    assert read(state)["passing"] == 3
    state.apply([("newest", 1)])
    assert "passing" not in read(state)


def test_two_writes_of_a_key_without_reducer_are_refused() -> None:
    """As the graph refuses them, and the state is as it was."""
    state = fresh()
    with pytest.raises(Exception, match="newest"):
        state.apply([("newest", 1), ("newest", 2)])
    assert "newest" not in read(state)


writes: st.SearchStrategy[list[Write]] = st.lists(
    st.one_of(
        st.tuples(st.just("numbers"), st.lists(st.integers(), max_size=2)),
        st.tuples(st.just("passing"), st.integers()),
        st.tuples(st.just("newest"), st.integers()),
    ),
    max_size=3,
    unique_by=lambda write: write[0],
)


@given(first=writes, second=writes)
def test_looking_ahead_shows_what_comes_and_changes_nothing(first: list[Write], second: list[Write]) -> None:
    """The state with writes is what the state becomes when it takes them."""
    state = fresh()
    state.apply(first)
    before = read(state)
    ahead = state.with_writes(second)
    assert read(state) == before
    state.apply(second)
    assert read(state) == read(ahead)
