"""What an audit says holds: the limit by how a run is started, what can be asked, and the report."""

from __future__ import annotations

import asyncio
import json
import operator
import os
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, TypedDict, get_args

import pytest
from langchain.agents import create_agent
from langchain_core.runnables import RunnableLambda
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, MessagesState, StateGraph

from endstop import ConfigError
from endstop.langgraph._compat import default_recursion_limit
from endstop.langgraph._costs import costs_of, rounds_under
from endstop.langgraph.audit import EntryPoint, audit
from tests.langgraph.wirings import AllFour, Before, Graph, Rounds, look


class State(TypedDict):
    count: Annotated[int, operator.add]


class Counter:
    """A graph of one node that never stops, and how often it ran."""

    def __init__(self, bound: int | None = None) -> None:
        self.runs = 0
        builder = StateGraph(State)
        builder.add_node("again", self._again)
        builder.add_edge(START, "again")
        builder.add_conditional_edges("again", lambda state: "again", ["again", END])
        self.graph: Graph = builder.compile()
        if bound is not None:
            self.graph = self.graph.with_config({"recursion_limit": bound})

    def _again(self, state: State) -> dict[str, Any]:
        self.runs += 1
        return {"count": 1}


def _drained(stream: AsyncIterator[object]) -> Any:
    async def drain() -> None:
        async for _ in stream:
            pass

    return drain()


INPUT: Any = {"count": 0}

STARTS: dict[EntryPoint, Callable[[Graph], object]] = {
    "invoke": lambda graph: graph.invoke(INPUT),
    "ainvoke": lambda graph: asyncio.run(graph.ainvoke(INPUT)),
    "stream": lambda graph: list(graph.stream(INPUT)),
    "astream": lambda graph: asyncio.run(_drained(graph.astream(INPUT))),
    "stream_events": lambda graph: list(graph.stream_events(INPUT, version="v3")),
    "batch": lambda graph: graph.batch([INPUT]),
    "abatch": lambda graph: asyncio.run(graph.abatch([INPUT])),
    "astream_events": lambda graph: asyncio.run(_drained(graph.astream_events(INPUT, version="v2"))),
    "astream_log": lambda graph: asyncio.run(_drained(graph.astream_log(INPUT))),
    "chain": lambda graph: (RunnableLambda(lambda state: state) | graph).invoke(INPUT),
}


def has(graph: Graph, entry_point: EntryPoint) -> bool:
    return entry_point == "chain" or hasattr(graph, entry_point)


@pytest.mark.parametrize("entry_point", get_args(EntryPoint))
@pytest.mark.parametrize("bound", [None, 40])
@pytest.mark.filterwarnings("ignore")
def test_the_limit_is_that_of_the_real_run(entry_point: EntryPoint, bound: int | None) -> None:
    """Whoever starts the run, and whatever is bound: exactly as many super-steps run as the audit says."""
    counter = Counter(bound)
    if not has(counter.graph, entry_point):
        pytest.skip(f"this langgraph has no {entry_point}")
    limit = audit(counter.graph, entry_point=entry_point).limit
    if limit.super_steps > 1_000:
        assert limit.super_steps == default_recursion_limit()  # run by the next test, with a smaller one
        return
    with pytest.raises(GraphRecursionError):
        STARTS[entry_point](counter.graph)
    assert counter.runs == limit.super_steps


SCRIPT = """
import warnings
from tests.langgraph.test_audit import Counter, STARTS, audit, has
warnings.simplefilter("ignore")
for entry_point in ("invoke", "ainvoke", "stream", "astream", "stream_events"):
    counter = Counter()
    if has(counter.graph, entry_point):
        try:
            STARTS[entry_point](counter.graph)
        except RecursionError:
            print(entry_point, audit(counter.graph, entry_point=entry_point).limit.super_steps, counter.runs)
"""


def test_the_default_is_that_of_the_real_run() -> None:
    """LangGraph reads its default from the environment when it is imported, and so does the audit."""
    environment = {**os.environ, "LANGGRAPH_DEFAULT_RECURSION_LIMIT": "77"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) >= 4
    assert {line.split(" ", 1)[1] for line in lines} == {"77 77"}


@pytest.mark.parametrize("entry_point", get_args(EntryPoint))
def test_a_limit_that_is_given_wins(entry_point: EntryPoint) -> None:
    """Over what is bound and over every default."""
    limit = audit(Counter(40).graph, recursion_limit=12, entry_point=entry_point).limit
    assert (limit.super_steps, limit.source, limit.explicit) == (12, "the run is given it", True)


@pytest.mark.parametrize(
    ("outer", "inner", "options"),
    [
        (None, 40, {}),
        (30, 40, {}),
        (25, 40, {}),
        (None, None, {"recursion_limit": 10}),
        (30, 40, {"recursion_limit": 10}),
        (30, 40, {"recursion_limit": 25}),
        (30, 40, {"entry_point": "batch"}),
    ],
)
def test_the_limit_of_a_subgraph_is_that_of_the_real_run(outer: int | None, inner: int | None, options: Any) -> None:
    """It counts from zero, under the limit that the run around it was given if that is handed on, else its own."""
    counter = Counter(inner)
    builder = StateGraph(State)
    builder.add_node("inner", counter.graph)
    builder.add_edge(START, "inner")
    graph: Graph = builder.compile()
    if outer is not None:
        graph = graph.with_config({"recursion_limit": outer})
    (below,) = audit(graph, **options).subgraphs
    assert below.path == "inner"
    config: Any = {"recursion_limit": options["recursion_limit"]} if "recursion_limit" in options else None
    with pytest.raises(GraphRecursionError):
        graph.batch([INPUT], config) if "entry_point" in options else graph.invoke(INPUT, config)
    assert counter.runs == below.limit.super_steps


def test_the_rounds_of_an_agent() -> None:
    """Those that can finish, and one more in which the model is called in vain."""
    report = audit(create_agent(Rounds(), [look], middleware=[AllFour()]), recursion_limit=25)
    assert report.costs is not None
    assert (report.costs.entry, report.costs.per_round, report.costs.exit, report.costs.per_cycle) == (3, 4, 2, 3)
    assert report.rounds is not None
    assert (report.rounds.finish, report.rounds.called) == (5, 6)


def test_rounds_beside_other_work_are_upper_bounds() -> None:
    """Every run takes as long as its longest branch, and it says that no shortest way is certain."""
    builder, model = StateGraph(MessagesState), Rounds(rounds=1)
    builder.add_node("llm", lambda state: {"messages": [model.invoke(state["messages"])]})
    for name in ("log", "store", "tell"):
        builder.add_node(name, lambda state: {})
    builder.add_edge(START, "llm")
    builder.add_edge(START, "log")
    builder.add_edge("log", "store")
    builder.add_edge("log", "tell")
    graph = builder.compile()
    report = audit(graph, recursion_limit=2)
    assert report.costs is not None
    assert (report.costs.entry, report.costs.exit, report.costs.least, report.costs.exact) == (1, 0, 2, False)
    assert report.rounds is not None
    assert (report.rounds.finish, report.rounds.called) == (0, 1)
    assert "rounds       at most 0 can finish, 'llm' can be called in 1\n" in str(report)
    with pytest.raises(GraphRecursionError):
        graph.invoke({"messages": []}, {"recursion_limit": 2})
    assert graph.invoke({"messages": []}, {"recursion_limit": 3})


def test_the_rounds_without_a_tool_between() -> None:
    """A model that is called again at once, as for a structured answer, fits more often under the same limit."""
    costs = costs_of(audit(create_agent(Rounds(), [look], middleware=[AllFour()])).graph)
    assert costs is not None
    assert rounds_under(costs, 25, any_way=True).called == 1 + (25 - 3) // 3


def team(*models: str) -> Graph:
    """A line of nodes that all come back to the first, those named with a model."""
    model = Rounds()

    def asks(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    def rests(state: MessagesState) -> dict[str, Any]:
        return {}

    builder = StateGraph(MessagesState)
    names = ("model", "writer", "critic")
    for name in names:
        builder.add_node(name, asks if name in models else rests)
    builder.add_edge(START, "model")
    builder.add_edge("model", "writer")
    builder.add_edge("writer", "critic")
    builder.add_conditional_edges("critic", lambda state: END, ["model", END])
    return builder.compile()


def test_the_node_that_calls_the_model_is_found_by_its_code() -> None:
    """A node that is called `model` need not be one; of several none is chosen, but one can be named."""
    report = audit(team("writer"), recursion_limit=10)
    assert report.costs is not None
    assert (report.costs.model, report.costs.entry, report.costs.per_round, report.costs.exit) == ("writer", 2, 3, 1)
    assert audit(team()).costs is None
    assert audit(team("writer", "critic")).rounds is None
    named = audit(team("writer", "critic"), model="critic").costs
    assert named is not None
    assert (named.model, named.entry, named.exit) == ("critic", 3, 0)


def test_nodes_of_a_subgraph_are_named_by_path() -> None:
    """Caps and widths reach the graph that the path leads to, and no other."""
    builder = StateGraph(MessagesState)
    builder.add_node("team", team())
    builder.add_node("model", lambda state: {})
    builder.add_edge(START, "team")
    builder.add_edge("team", "model")
    report = audit(builder.compile(), caps={"team/critic->model": 2, "model": 1}, fan_out={"team/writer": 5})
    assert report.caps == {"model": 1}
    (below,) = report.subgraphs
    assert (dict(below.caps), dict(below.fan_out)) == ({"critic->model": 2}, {"writer": 5})
    assert below.worst_case is not None
    assert (below.worst_case.node_executions.number, below.worst_case.super_steps.number) == (21, 9)


@pytest.mark.parametrize(
    ("graph", "options", "complaint"),
    [
        (StateGraph(State), {}, "graph=.*: it is not compiled yet; give what its compile"),
        (Rounds(), {}, "graph=.*: give a compiled graph"),
        (None, {"recursion_limit": 0}, "recursion_limit=0 .*: use a whole number, 1 or more"),
        (None, {"recursion_limit": True}, "recursion_limit=True .*: use a whole number, 1 or more"),
        (None, {"entry_point": "run"}, "entry_point='run' .*: use one of invoke, ainvoke"),
        (None, {"model": "llm"}, "model='llm' .*: name a node of the graph: model, writer, critic"),
        (
            None,
            {"caps": {"editor": 1}},
            "caps='editor' .*: name a node or an edge, `a->b`; the nodes are model, writer",
        ),
        (None, {"caps": {"critic->writer": 1}}, "caps='critic->writer' .*: name a node or an edge"),
        (None, {"caps": {"team/writer": 1}}, "caps='team/writer' .*: name a node or an edge"),
        (None, {"caps": {"writer": -1}}, "caps\\['writer'\\]=-1 .*: use a whole number, 0 or more"),
        (None, {"caps": {"writer": 2.0}}, "caps\\['writer'\\]=2.0 .*: use a whole number, 0 or more"),
        (None, {"fan_out": {"editor": 1}}, "fan_out='editor' .*: name a node; the nodes are"),
        (None, {"fan_out": {"critic->model": 1}}, "fan_out='critic->model' .*: name a node; the nodes are"),
        (None, {"fan_out": {"writer": 0}}, "fan_out\\['writer'\\]=0 .*: use a whole number, 1 or more"),
    ],
)
def test_what_cannot_be_used_is_refused(graph: object, options: Any, complaint: str) -> None:
    """The error names the field, the value and what to give instead."""
    with pytest.raises(ConfigError, match=complaint):
        audit(graph or team(), **options)


def test_an_audit_is_plain_data() -> None:
    """It can be pickled and compared, and its document holds everything that was found."""
    report = audit(create_agent(Rounds(), [look], middleware=[Before()]), recursion_limit=25)
    assert pickle.loads(pickle.dumps(report)) == report
    document = json.loads(report.to_json())
    assert (document["format"], document["version"]) == ("endstop/audit", 1)
    assert document["rounds"] == {"finish": 12, "called": 12}
    assert document["cycles"] == [{"nodes": ["model", "tools"], "caps": [], "declared": True}]
    assert [finding["code"] for finding in document["findings"]] == [finding.code for finding in report.findings]
    assert document["worst_case"] is None
    assert document["nodes"][1] == {"name": "model", "kind": "model", "hook": None, "tools": []}


def test_the_report_is_for_people() -> None:
    """Figures first, then the findings; no line is longer than a screen is wide."""
    builder = StateGraph(MessagesState)
    builder.add_node("agent", create_agent(Rounds(), [look], middleware=[AllFour()]))
    builder.add_edge(START, "agent")
    report = str(audit(builder.compile(name="desk"), recursion_limit=25))
    head = "desk: 1 node, 1 edge\n  limit        25 super-steps (the run is given it)\n  cycles       none\n"
    assert report.startswith(head)
    assert "agent: 6 nodes, " in report
    assert "  rounds       5 can finish, 'model' can be called in 6\n" in report
    assert "  worst case   unbounded: not every cycle has a cap" in report
    assert "\ninfo: middleware_steps at agent/model\n" in report
    assert max(map(len, report.splitlines())) <= 110
    assert not report.endswith("\n")


def test_a_way_back_without_a_tool_is_reported() -> None:
    """Where it is shorter than a tool round."""
    hooked = create_agent(Rounds(), [look], middleware=[AllFour()])
    assert "3 where the model is called again without a tool" in str(audit(hooked))
    assert "again without a tool" not in str(audit(create_agent(Rounds(), [look])))


def test_many_cycles_are_cut_and_it_is_said() -> None:
    """A graph can have more elementary cycles than there is time for."""
    builder = StateGraph(State)
    names = [f"n{number}" for number in range(30)]
    for name in names:
        builder.add_node(name, lambda state: {})
        builder.add_conditional_edges(name, lambda state: END, [*names, END])
    builder.add_edge(START, names[0])
    report = audit(builder.compile())
    assert report.cycles_cut
    assert len(report.cycles) == 100
    assert "and 92, and more that were not counted" in str(report)


def test_audits_are_the_same_in_every_process() -> None:
    """Nothing depends on the seed of hashes, neither the cycles nor their order nor the formulas."""
    said = "audit(team('writer', 'critic'), caps={'critic->model': 3}, fan_out={'writer': 4}).to_json()"
    script = f"from tests.langgraph.test_audit import audit, team; print({said})"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-c", script]
    other = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    here = audit(team("writer", "critic"), caps={"critic->model": 3}, fan_out={"writer": 4}).to_json()
    assert other == f"{here}\n"
