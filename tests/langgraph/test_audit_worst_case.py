"""The worst case of a graph is a number that a real run reaches and none passes."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypedDict

from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from endstop.langgraph._audits import Worst, WorstCase
from endstop.langgraph._graph_map import END as END_NAME
from endstop.langgraph._graph_map import START as START_NAME
from endstop.langgraph._graph_map import Edge, EdgeKind, GraphMap, Node, Unknown
from endstop.langgraph._reading import read_graph
from endstop.langgraph._worst import worst_case

MOST_RUNS = 100
"""Runs that a graph may have in the comparison with real ones."""


class State(TypedDict):
    seen: Annotated[list[str], operator.add]


@dataclass
class Plan:
    """A small graph: plain edges, one branch a node, caps of its edges, a join, a deferred node, a fan-out."""

    nodes: list[str]
    plain: list[tuple[str, str]] = field(default_factory=list)
    branches: dict[str, list[str]] = field(default_factory=dict)
    caps: dict[str, int] = field(default_factory=dict)
    join: tuple[list[str], str] | None = None
    deferred: str | None = None
    fan_out: dict[str, int] = field(default_factory=dict)


@dataclass
class Choices:
    """Decides for the routers of one run after the other, until every run there can be was made."""

    made: list[int] = field(default_factory=list)
    options: list[int] = field(default_factory=list)
    at: int = 0

    def choose(self, options: int) -> int:
        if self.at == len(self.made):
            self.made.append(0)
            self.options.append(options)
        self.at += 1
        return self.made[self.at - 1]

    def next_run(self) -> bool:
        """Prepare the next run; false where there is none."""
        while self.made and self.made[-1] + 1 == self.options[-1]:
            self.made.pop()
            self.options.pop()
        if self.made:
            self.made[-1] += 1
        self.at = 0
        return bool(self.made)


@dataclass
class Run:
    """What happened in one run."""

    choices: Choices
    left: dict[str, int]
    executions: int = 0
    last_step: int = 0


def compiled(plan: Plan, runs: list[Run]) -> Any:
    """The plan as a LangGraph graph whose newest run is the last of `runs`."""
    builder = StateGraph(State)
    for name in plan.nodes:
        builder.add_node(name, _node(runs), defer=name == plan.deferred)
    builder.add_edge(START, plan.nodes[0])
    for source, target in plan.plain:
        builder.add_edge(source, target)
    if plan.join is not None:
        builder.add_edge(*plan.join)
    for name, targets in plan.branches.items():
        builder.add_conditional_edges(name, _router(name, plan, runs), targets)
    return builder.compile()


def _node(runs: list[Run]) -> Callable[..., dict[str, Any]]:
    def node(state: State, config: RunnableConfig) -> dict[str, Any]:
        runs[-1].executions += 1
        runs[-1].last_step = config["metadata"]["langgraph_step"]
        return {}

    return node


def _router(name: str, plan: Plan, runs: list[Run]) -> Callable[[State], Any]:
    def router(state: State) -> Any:
        run = runs[-1]
        open_ones = [target for target in plan.branches[name] if run.left.get(f"{name}->{target}", 1)]
        if not open_ones:
            return []
        target = open_ones[run.choices.choose(len(open_ones))]
        if f"{name}->{target}" in run.left:
            run.left[f"{name}->{target}"] -= 1
        return [Send(target, state)] * plan.fan_out[target] if target in plan.fan_out else target

    return router


def most_of_all_runs(plan: Plan) -> tuple[int, int] | None:
    """The most node executions and super-steps of all runs that there are; `None` where there are too many."""
    runs: list[Run] = []
    graph = compiled(plan, runs)
    choices, more = Choices(), True
    while more:
        if len(runs) == MOST_RUNS:
            return None
        runs.append(Run(choices, dict(plan.caps)))
        graph.invoke({"seen": []}, {"recursion_limit": 200, "max_concurrency": 1})
        more = choices.next_run()
    return max(run.executions for run in runs), max(run.last_step for run in runs)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Graphs of up to 4 nodes; an edge back is one of a branch, and has a cap."""
    names = ["a", "b", "c", "d"][: draw(st.integers(2, 4))]
    plan = Plan(nodes=names)
    for number, name in enumerate(names):
        later = names[number + 1 :]
        plan.plain += [(name, target) for target in later if draw(st.integers(0, 3)) == 0]
        targets = draw(st.lists(st.sampled_from([*names, END]), max_size=3, unique=True))
        if targets:
            plan.branches[name] = targets
            back = [target for target in targets if target in names[: number + 1]]
            plan.caps.update({f"{name}->{target}": draw(st.integers(0, 2)) for target in back})
    if len(names) > 2 and draw(st.booleans()):
        plan.join = (names[:-1][: draw(st.integers(2, 3))], names[-1])
    if draw(st.integers(0, 3)) == 0:
        plan.deferred = draw(st.sampled_from(names))
    if draw(st.booleans()):
        _fan_out(plan, names[0], names[1])
    return plan


def _fan_out(plan: Plan, router: str, worker: str) -> None:
    """Let one router alone start tasks of the worker, which does not go back."""
    plan.plain = [edge for edge in plan.plain if edge[1] != worker]
    for name, targets in plan.branches.items():
        back = plan.nodes[: plan.nodes.index(worker) + 1] if name == worker else [worker]
        plan.branches[name] = [target for target in targets if target not in back]
    plan.branches[router] = [*plan.branches.get(router, []), worker]
    plan.branches = {name: targets for name, targets in plan.branches.items() if targets}
    plan.fan_out[worker] = 2


def flat(plan: Plan) -> GraphMap:
    return read_graph(compiled(plan, []))


@settings(deadline=None, max_examples=80, suppress_health_check=list(HealthCheck))
@given(plans())
def test_the_worst_case_is_that_of_the_real_runs(plan: Plan) -> None:
    """All runs of small graphs are made: branches, caps, joins, deferred nodes. The formula is never less."""
    found = worst_case(flat(plan), plan.caps, plan.fan_out)
    assert found is not None
    real = most_of_all_runs(plan)
    assume(real is not None)
    note(f"{found}")
    assert (found.node_executions.number, found.super_steps.number) == real
    assert found.node_executions.exact
    assert found.super_steps.exact
    assert found.node_executions.formula_number >= found.node_executions.number
    assert found.super_steps.formula_number >= found.super_steps.number


def mapped(*edges: str, unknown: str | None = None) -> GraphMap:
    """A graph of edges `a b`, of branches `a ? b` and of sends `a * b`; `>` is the start and `.` the end."""
    kinds: dict[str, EdgeKind] = {"?": "branch", "*": "send"}
    ends = {">": START_NAME, ".": END_NAME}
    read: list[Edge] = []
    for edge in edges:
        source, *mark, target = (ends.get(word, word) for word in edge.split())
        read.append(Edge(source=source, target=target, kind=kinds[mark[0]] if mark else "edge", group="".join(mark)))
    names = dict.fromkeys(name for edge in read for name in (edge.source, edge.target) if not name.startswith("__"))
    nodes = (Node(name=START_NAME, kind="start"), *(Node(name=name) for name in names), Node(name=END_NAME, kind="end"))
    where = () if unknown is None else (Unknown(node=unknown, kind="branch"),)
    return GraphMap(name="graph", nodes=nodes, edges=tuple(read), unknown=where)


def worst(graph: GraphMap, caps: dict[str, int], fan_out: dict[str, int] | None = None) -> WorstCase:
    found = worst_case(graph, caps, fan_out or {})
    assert found is not None
    return found


def evaluated(worst: Worst, caps: dict[str, int], fan_out: dict[str, int]) -> int:
    """What the formula comes to with other caps."""
    text = re.sub(r"\[([^]]+)\]", r"['\1']", worst.formula)
    return int(eval(text, {"caps": caps, "fan_out": fan_out}))


ASSISTANT = mapped(
    "> split", "split * researcher", "researcher summarize", "summarize team", "team writer", "writer reviewer",
    "reviewer ? writer", "reviewer ? team", "reviewer ? .",
)  # fmt: skip


def test_two_loops_back_from_one_node() -> None:
    """A rewrite costs two nodes and a new research three; parallel researchers are one super-step."""
    found = worst(ASSISTANT, {"reviewer->writer": 3, "reviewer->team": 2}, {"researcher": 3})
    assert found.node_executions == Worst(
        number=20,
        exact=True,
        formula="5 + fan_out[researcher] + 2 * caps[reviewer->writer] + 3 * caps[reviewer->team]",
        formula_number=20,
    )
    assert (found.super_steps.number, found.super_steps.exact) == (18, True)
    assert found.super_steps.formula == "6 + 2 * caps[reviewer->writer] + 3 * caps[reviewer->team]"


@given(st.integers(0, 6), st.integers(0, 6), st.integers(1, 9))
def test_the_formula_holds_for_other_caps(rewrites: int, researches: int, width: int) -> None:
    """It is made once, and says the number for all caps and widths."""
    formula = worst(ASSISTANT, {"reviewer->writer": 1, "reviewer->team": 1}, {"researcher": 2})
    caps, fan_out = {"reviewer->writer": rewrites, "reviewer->team": researches}, {"researcher": width}
    real = worst(ASSISTANT, caps, fan_out)
    assert evaluated(formula.node_executions, caps, fan_out) == real.node_executions.number
    assert evaluated(formula.super_steps, caps, fan_out) == real.super_steps.number


def test_a_cap_of_a_node_counts_its_runs() -> None:
    """An inner loop's cap is one for the whole run: it does not begin again with each round of the outer loop."""
    nested = mapped("> a", "a b", "b ? a", "b ? b", "b ? .")
    assert worst(nested, {"a": 2, "b": 5}).super_steps.number == 7
    assert worst(nested, {"b->b": 2, "b->a": 3}).super_steps.number == 2 + 2 + 2 * 3


def test_a_cap_of_nothing_takes_the_node_out() -> None:
    """What a cap forbids is not done, and what follows from it is not either."""
    assert worst(mapped("> a", "a ? b", "a ? .", "b ."), {"b": 0}).node_executions.number == 1


def test_loops_that_exclude_each_other_do_not_add_up() -> None:
    """The number knows that one branch was taken; the formula adds both, and is only a bound here."""
    apart = mapped("> a", "a ? b", "a ? c", "b ? b", "b ? .", "c ? c", "c ? .")
    steps = worst(apart, {"b->b": 3, "c->c": 4}).super_steps
    assert (steps.number, steps.exact) == (6, True)
    assert (steps.formula, steps.formula_number) == ("2 + caps[b->b] + caps[c->c]", 9)


def test_a_cycle_without_a_cap_has_no_worst_case() -> None:
    """If a run can come to it; one that nothing leads to is no matter."""
    assert worst_case(mapped("> a", "a ? a", "a ? ."), {}, {}) is None
    assert worst_case(mapped("> a", "a ? b", "b ? a", "b ? ."), {"b->a": 1}, {}) is not None
    assert worst_case(mapped("> a", "a .", "b ? b"), {}, {}) is not None


def test_a_node_that_may_go_anywhere_needs_a_cap_itself() -> None:
    """With one it is counted as often as the cap says, and every node after it."""
    anywhere = mapped("> a", "a b", "b .", unknown="a")
    assert worst_case(anywhere, {}, {}) is None
    assert worst(anywhere, {"a": 3}).super_steps.number == 4


def test_a_router_may_start_several_nodes_that_fan_out() -> None:
    """Those that have a width are counted as started together, others one at a time."""
    both = mapped("> a", "a * b", "a * c", "a * d", "b e", "c e", "d e", "e .")
    assert worst(both, {}, {"b": 4, "c": 5}).node_executions.number == 1 + 4 + 5 + 1
    assert worst(both, {}, {"b": 4}).node_executions.number == 1 + 4 + 1


def test_a_join_can_be_capped() -> None:
    """By the edge of one of its sources: it does not run without all of them."""
    edges = ("> s", "s a", "s b", "c ? s", "c ? .")
    join = tuple(Edge(source=source, target="c", kind="join", group="a+b") for source in ("a", "b"))
    graph = mapped(*edges)
    graph = replace(graph, edges=(*graph.edges, *join))
    assert worst_case(graph, {"a->c": 2}, {}) is None
    found = worst(graph, {"a->c": 2, "b->c": 9})
    assert (found.super_steps.number, found.super_steps.exact) == (3 * 2 + 2, True)
    assert (found.node_executions.number, found.node_executions.exact) == (4 * 2 + 3, True)


def test_tasks_of_one_node_choose_apart() -> None:
    """While one goes back another goes on, so that the next node runs each time; the cap counts them as one."""
    apart = mapped("> a", "a * b", "b ? b", "b ? c", "c .")
    found = worst(apart, {"b->b": 2}, {"b": 3}).node_executions
    assert (found.number, found.exact) == (1 + 3 * 3 + 3, True)
    assert (found.formula, found.formula_number) == ("2 + fan_out[b] + (1 + fan_out[b]) * caps[b->b]", 13)


def test_too_many_ways_leave_the_formula() -> None:
    """The search is given up, and the number is an upper bound that says so."""
    names = [f"n{number}" for number in range(40)]
    wide = mapped(*(f"> {name}" for name in names), *(f"{name} ? {way}" for name in names for way in ("left", "right")))
    found = worst(wide, {})
    assert (found.node_executions.number, found.node_executions.exact) == (80, False)
    assert (found.super_steps.number, found.super_steps.formula) == (2, "2")


def test_a_large_cap_is_searched_without_recursion() -> None:
    """A loop of thousands is no deeper for the interpreter than one of three."""
    assert worst(mapped("> a", "a ? a", "a ? ."), {"a": 5_000}).super_steps == Worst(
        number=5_000, exact=True, formula="caps[a]", formula_number=5_000
    )
