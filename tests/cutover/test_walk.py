"""Where a graph goes next, read from its edges, its branches and what its nodes return."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from langgraph.errors import InvalidUpdateError, ParentCommand
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send
from typing_extensions import TypedDict

from endstop.cutover._walk import Roads, Visit, input_writes, visits_sent, writes_of


class State(TypedDict):
    """Two keys."""

    a: int
    b: int


def nothing(state: State) -> None:
    """Do nothing."""


def graph() -> Any:
    """`first` leads to `second` and, by a branch, where the state says; nothing leads on from `third`."""
    builder: Any = StateGraph(State)
    for name in ("first", "second", "third"):
        builder.add_node(name, nothing)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    builder.add_edge("second", END)
    builder.add_conditional_edges("first", lambda state: state, {"go": "third", "stop": END})
    return builder


async def after(node: str, named: object) -> list[Visit]:
    async def ask(number: int, branch: Any) -> object:
        assert number == 0
        return named

    return await Roads(graph()).after(node, ask)


SECOND = Visit(node="second")
"""What the plain edge of `first` leads to."""


@pytest.mark.parametrize(
    ("named", "visits"),
    [
        ("go", [SECOND, Visit(node="third")]),
        ("stop", [SECOND]),
        (["go", "go"], [SECOND, Visit(node="third"), Visit(node="third")]),
        (Send("third", 1), [SECOND, Visit(node="third", sent=True, input=1)]),
    ],
)
async def test_edges_and_branches_lead_on(named: object, visits: list[Visit]) -> None:
    """Plain edges first, then what the branch names, by its own words."""
    assert await after("first", named) == visits
    assert await after("second", "never asked") == []


@pytest.mark.parametrize(("named", "error"), [("else", KeyError), (Send(END, 1), InvalidUpdateError)])
async def test_a_branch_that_leads_nowhere_is_an_error(named: object, error: type[Exception]) -> None:
    """As it is for the graph."""
    with pytest.raises(error):
        await after("first", named)


async def test_a_branch_that_names_nothing_is_an_error() -> None:
    """Without a map of its ends, whatever it returns is taken for the name of a node."""
    builder = graph()
    builder.add_conditional_edges("second", lambda state: None)

    async def ask(number: int, branch: Any) -> object:
        return None

    with pytest.raises(ValueError, match="valid destination"):
        await Roads(builder).after("second", ask)


def test_a_step_has_what_was_sent_first_and_every_other_node_once() -> None:
    """In the order of the names, whichever node named it first."""
    sent = Visit(node="third", sent=True, input=1)
    due = [Visit(node="second"), sent, Visit(node="first"), Visit(node="second")]
    assert Roads(graph()).merged(due) == [sent, Visit(node="first"), Visit(node="second")]


def test_a_node_that_does_not_exist_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The graph goes on without it too."""
    with caplog.at_level(logging.WARNING):
        assert Roads(graph()).merged([Visit(node="nowhere")]) == []
    assert "nowhere" in caplog.text


@pytest.mark.parametrize(
    ("returned", "writes"),
    [
        (None, []),
        ({"a": 1, "other": 2}, [("a", 1)]),
        (Command(update={"a": 1}), [("a", 1)]),
        (Command(update=[("a", 1), ("a", 2)]), [("a", 1), ("a", 2)]),
        (Command(graph=Command.PARENT, update={"a": 1}), []),
        ([Command(update={"a": 1}), {"b": 2}], [("a", 1), ("b", 2)]),
    ],
)
def test_what_a_node_returns_is_written(returned: object, writes: list[Any]) -> None:
    """Only keys of the state, in order."""
    assert writes_of(graph(), returned) == writes


@pytest.mark.parametrize("returned", [1, "text", [{"a": 1}]])
def test_what_a_node_may_not_return_is_an_error(returned: object) -> None:
    """In LangGraph's words."""
    with pytest.raises(InvalidUpdateError, match="Expected dict, got"):
        writes_of(graph(), returned)


def test_what_a_node_returns_may_say_where_to_go() -> None:
    """One target, several, packets, and the end, which needs no visit."""
    assert visits_sent({"a": 1}) == []
    assert visits_sent(Command(goto="first")) == [Visit(node="first")]
    assert visits_sent([Command(goto=["first", END]), Command(goto=[Send("third", 1)])]) == [
        Visit(node="first"),
        Visit(node="third", sent=True, input=1),
    ]


def test_a_command_for_a_graph_above_is_raised_to_it() -> None:
    """There it is taken."""
    with pytest.raises(ParentCommand):
        visits_sent(Command(graph=Command.PARENT, goto="elsewhere"))


def test_an_input_writes_what_the_graph_takes() -> None:
    """Other keys are left out."""
    assert input_writes(graph(), {"a": 1, "c": 2}) == [("a", 1)]
