"""CPU of `audit` on agents and on large graphs: it is to be run in every build, so it may take no time."""

from __future__ import annotations

import asyncio
from typing import Any, TypedDict

from langchain.agents import create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware, ToolCallLimitMiddleware
from langchain_core.language_models import GenericFakeChatModel
from langgraph.graph import END, START, StateGraph

from benchmarks.measure import Effort, Goal, Table, event_loop, interleaved, millis, plain
from benchmarks.task import Job
from endstop.langgraph.audit import audit

MOST_SECONDS = {"`create_agent`": 0.005, "500 nodes, 200 branches": 2.0}


class State(TypedDict):
    """The state of the large graphs."""

    count: int


def look(place: str) -> str:
    """Look somewhere."""
    return place


def run(effort: Effort) -> Table:
    """Audit each graph several times."""
    model = GenericFakeChatModel(messages=iter([]))
    limits = [ModelCallLimitMiddleware(run_limit=5), ToolCallLimitMiddleware(run_limit=5)]
    graphs = {
        "`create_agent`": create_agent(model, [look]),
        "`create_agent` with both limit middlewares": create_agent(model, [look], middleware=limits),
        "500 nodes in a line": _large(500, branches=0),
        "500 nodes, 200 branches": _large(500, branches=200),
    }
    with event_loop() as runner:
        jobs = {name: _job(graph) for name, graph in graphs.items()}
        samples = interleaved(runner, jobs, effort, units=1)
    goals = [
        Goal(
            text=f"the audit of {name} takes at most {plain(most * 1e3)} ms",
            measured=samples.median(name) * 1e3,
            allowed=most * 1e3,
        )
        for name, most in MOST_SECONDS.items()
    ]
    return Table(header=["", "CPU"], rows=[[name, millis(samples.median(name))] for name in graphs], goals=goals)


def _job(graph: object) -> Job:
    async def job() -> int:
        audit(graph, recursion_limit=25)
        await asyncio.sleep(0)
        return 1

    return job


def _large(nodes: int, *, branches: int) -> Any:
    """A line of nodes; of those that branch, each may also go to three others, most of them earlier ones."""
    builder = StateGraph(State)
    for number in range(nodes):
        builder.add_node(f"n{number}", _nothing)
    builder.add_edge(START, "n0")
    for number in range(nodes - 1):
        builder.add_edge(f"n{number}", f"n{number + 1}")
    for number in range(branches):
        targets = [f"n{(number * step) % nodes}" for step in (7, 11, 13)]
        builder.add_conditional_edges(f"n{nodes - 1 - number}", _end, [*dict.fromkeys(targets), END])
    return builder.compile()


def _nothing(state: State) -> dict[str, Any]:
    return {}


def _end(state: State) -> str:
    return END
