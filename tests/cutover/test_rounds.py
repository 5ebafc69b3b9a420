"""The rounds that a recursion limit stands for are those that the graph reaches."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain.agents.middleware import ToolCallLimitMiddleware
from langgraph.func import entrypoint

from endstop import ConfigError, PlanLimits
from endstop.cutover import rounds
from endstop.cutover.rounds import (
    ENTRY_STEPS,
    MAX_TOOL_ITERATIONS,
    STEPS_PER_ROUND,
    rounds_for_graph,
    rounds_for_recursion_limit,
)
from endstop.langgraph import Rounds
from tests.langgraph.wirings import NEVER, WIRINGS, rounds_run

LISTED = (
    "react v2",
    "create_agent",
    "custom graph with an entry node",
    "before_agent",
    "before_model",
    "after_model",
    "2 before_model",
    "2 after_model",
    "all four hooks",
    "ModelCallLimit",
    "Summarization",
    "ModelCallLimit and ToolCallLimit",
    "wrap_model_call",
    "wrap_tool_call",
    "ToolRetry",
    "ModelFallback",
    "react with pre_model_hook",
    "react with both hooks",
    "react with response_format",
)
NAMED = {wiring.name: wiring for wiring in WIRINGS}


@pytest.mark.parametrize(
    ("recursion_limit", "number"), [(50, 24), (25, 12), (7, 3), (3, 1), (2, 1), (1, 1), (0, 1), (-4, 1)]
)
def test_a_recursion_limit_is_so_many_rounds(recursion_limit: int, number: int) -> None:
    """The entry step is taken off before the division; one round is the least."""
    assert rounds_for_recursion_limit(recursion_limit) == number


@pytest.mark.parametrize("given", [None, "50", 50.0, True, False, [50]])
def test_what_is_no_number_is_the_default_of_the_kernel(given: object) -> None:
    """A truth value is no number of steps."""
    assert rounds_for_recursion_limit(given) == MAX_TOOL_ITERATIONS == PlanLimits().max_model_rounds == 10


@given(st.integers())
def test_the_steps_of_the_rounds_fit_into_the_limit(recursion_limit: int) -> None:
    """As many as fit, and no more."""
    number = rounds_for_recursion_limit(recursion_limit)
    assert number >= 1
    if recursion_limit >= ENTRY_STEPS + STEPS_PER_ROUND:
        assert 0 <= recursion_limit - ENTRY_STEPS - STEPS_PER_ROUND * number < STEPS_PER_ROUND


def differences(name: str, limits: tuple[int, ...]) -> list[str]:
    """Where a wiring's runs do something else than is said of it."""
    wiring = NAMED[name]
    model = wiring.model()
    graph: Any = wiring.build(model)
    wrong: list[str] = []
    for limit in limits:
        said = rounds_for_graph(graph, limit)
        if said.finish and rounds_run(graph, model, said.finish, limit) != (True, said.finish):
            wrong.append(f"{name} at {limit}: {said.finish} rounds do not finish")
        finished, called = rounds_run(graph, model, NEVER if said.called > said.finish + 1 else said.finish + 1, limit)
        if finished or called != said.called:
            wrong.append(f"{name} at {limit}: called in {called} rounds, not in {said.called}")
    return wrong


@pytest.mark.parametrize("name", LISTED)
def test_the_rounds_of_a_graph_are_those_that_it_runs(name: str) -> None:
    """Those that finish and those that call the model, at each of the low limits, where not even one finishes too."""
    assert differences(name, (1, 2, 3, 4, 6)) == []


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(LISTED), st.integers(1, 60))
def test_the_rounds_of_any_graph_are_those_that_it_runs_at_any_limit(name: str, limit: int) -> None:
    """The same, drawn from all limits to 60."""
    assert differences(name, (limit,)) == []


@pytest.mark.parametrize(
    ("name", "at_25", "at_50"),
    [
        ("create_agent", 12, 25),
        ("react v2", 12, 25),
        ("custom graph with an entry node", 12, 24),
        ("before_agent", 12, 24),
        ("before_model", 8, 16),
        ("2 before_model", 6, 12),
        ("all four hooks", 5, 12),
        ("ModelCallLimit", 6, 12),
        ("ModelCallLimit and ToolCallLimit", 5, 10),
    ],
)
def test_the_rounds_at_the_usual_limits_are_these(name: str, at_25: int, at_50: int) -> None:
    """What a caller can look up."""
    if name.endswith("ToolCallLimit") and "before_model" in vars(ToolCallLimitMiddleware):
        pytest.skip("the limit on tools of this langchain has one hook more")
    graph = NAMED[name].build(NAMED[name].model())
    assert [rounds_for_graph(graph, limit).finish for limit in (25, 50)] == [at_25, at_50]


def test_a_run_that_ends_exactly_at_the_limit_does_not_count_as_finished() -> None:
    """LangGraph raises, although all was done; the call of the model was paid."""
    graph = NAMED["create_agent"].build(NAMED["create_agent"].model())
    assert rounds_for_graph(graph, 1) == Rounds(finish=0, called=1)
    assert rounds_for_graph(graph, 2) == Rounds(finish=1, called=1)


@pytest.mark.parametrize("recursion_limit", [0, -4, True, "25", 2.5])
def test_a_limit_that_langgraph_takes_for_no_run_is_refused_by_name(recursion_limit: Any) -> None:
    """Of a graph that exists there is nothing to fall back to."""
    with pytest.raises(ConfigError) as caught:
        rounds_for_graph(NAMED["create_agent"].build(NAMED["create_agent"].model()), recursion_limit)
    assert caught.value.field == "recursion_limit"


def test_a_graph_without_a_limit_has_the_one_that_invoke_gives_it() -> None:
    """The one that is bound to it."""
    graph = NAMED["custom graph"].build(NAMED["custom graph"].model()).with_config(recursion_limit=7)
    assert rounds_for_graph(graph, None) == rounds_for_graph(graph, 7) == Rounds(finish=3, called=4)


def test_what_has_no_loop_around_a_model_is_refused_by_name() -> None:
    """A function as a graph has no wiring to read."""

    @entrypoint()
    def work(question: str) -> str:
        return question

    with pytest.raises(ConfigError, match="one node calls the model"):
        rounds_for_graph(work, 25)
    with pytest.raises(ConfigError, match="compiled graph"):
        rounds_for_graph("a graph", 25)


def test_the_type_of_the_answer_can_be_had_beside_the_functions() -> None:
    """It is that of an audit, and no other name is made up."""
    assert rounds.Rounds is Rounds
    with pytest.raises(AttributeError, match="no attribute 'Sounds'"):
        _ = rounds.Sounds
