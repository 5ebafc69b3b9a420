"""The cutover's agents as a typed program uses them: read by mypy and pyright (`make check`), never run."""

# LangChain leaves types of its agents open.
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from typing import Any, assert_type

from langchain.agents import create_agent as original
from langchain_core.language_models import BaseChatModel
from langgraph.graph.state import CompiledStateGraph

from endstop.cutover import Call, Eligible, MemoryTurnLedger, Refusal, Switches, check, create_agent, cut_over

Graph = CompiledStateGraph[Any, Any, Any, Any]


def factories(model: BaseChatModel) -> None:
    """The stand-in takes and gives what the original does."""
    graph: Graph = create_agent(model, [], system_prompt="Find it.", name="Finder")
    assert_type(cut_over(graph, switches=Switches(), ledger=MemoryTurnLedger()), Graph)
    create_agent(model, nope=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue] - no such option
    plain: Graph = original(model)
    assert_type(cut_over(plain), Graph)


def verdicts(graph: Graph, call: Call) -> None:
    """A verdict is one of two things."""
    match check(graph, call):
        case Eligible():
            pass
        case refusals:
            assert_type(refusals, list[Refusal])
            assert_type(refusals[0].code, str)
