"""One loop budget expressed as the other: LangGraph's super-steps as the kernel's model rounds.

A model round is one call of the model and the tool calls that its answer asks for. A super-step is what LangGraph
counts: every node that runs at once is one together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from endstop._errors import ConfigError
from endstop._limits import MAX_TOOL_ITERATIONS

if TYPE_CHECKING:
    from endstop.langgraph import Rounds

__all__ = [
    "ENTRY_STEPS",
    "MAX_TOOL_ITERATIONS",
    "STEPS_PER_ROUND",
    "Rounds",
    "rounds_for_graph",
    "rounds_for_recursion_limit",
]

ENTRY_STEPS = 1
"""Super-steps of the `react_loop` wiring before its first round: the entry node."""

STEPS_PER_ROUND = 2
"""Super-steps of one of its rounds: the model node, then the tool node."""


def rounds_for_recursion_limit(recursion_limit: object) -> int:
    """The model rounds that a `recursion_limit` allows in the `react_loop` wiring, for `PlanLimits.max_model_rounds`.

    Never more rounds than that graph reaches: one too many is a model call that it would not have paid for. And never
    the kernel's own default where the graph allows more: a long tool loop would be cut short, and its empty answer
    taken for the real one. At 1 and 2 the graph finishes nothing; the kernel needs one round to answer at all, so 1 is
    the least. What is no whole number (a `bool` is none) says nothing about a budget: `MAX_TOOL_ITERATIONS`.

    It holds for that wiring alone. Wirings that spend more steps a round are refused before they get here;
    `rounds_for_graph` reads the costs of any graph.
    """
    if isinstance(recursion_limit, bool) or not isinstance(recursion_limit, int):
        return MAX_TOOL_ITERATIONS
    return max(1, (recursion_limit - ENTRY_STEPS) // STEPS_PER_ROUND)


def rounds_for_graph(graph: object, recursion_limit: int | None) -> Rounds:
    """The rounds of a compiled graph that can finish under a `recursion_limit`, and those in which it calls the model.

    A run that needs exactly as many super-steps as the limit has done its work and raises all the same, so it does not
    count as finished; 0 finish where not even one round can. They are upper bounds where `audit` says that the graph's
    costs are not exact. A limit of `None` is the one that `invoke` gives a run whose caller names none.

    Raises:
        ConfigError: it is no compiled graph, or not one with a single loop around a model; or the limit is no whole
            number of 1 or more.
    """
    from endstop.langgraph.audit import audit  # noqa: PLC0415 - the other function does without LangGraph

    rounds = audit(graph, recursion_limit=recursion_limit).rounds
    if rounds is None:
        remedy = "give a graph in which one node calls the model; audit(graph, model=...) can be told which"
        raise ConfigError("graph", graph, remedy)
    return rounds


def __getattr__(name: str) -> object:
    """`Rounds`, imported where it is asked for: the conversion by the formula does without LangGraph."""
    if name != "Rounds":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from endstop.langgraph import Rounds  # noqa: PLC0415 - only graphs need it

    return Rounds
