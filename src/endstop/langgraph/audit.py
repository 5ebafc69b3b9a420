"""See what a LangGraph graph can do under its limits, before anybody pays for it.

::

    report = audit(graph, recursion_limit=25)
    print(report)

A graph is read and never run: its edges, its middleware, its tools and the graphs below it. What cannot be known from
that, such as how many tasks a router starts at once, is asked for or said to be unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from endstop._errors import ConfigError
from endstop.langgraph._audits import Audit, EffectiveLimit
from endstop.langgraph._compat import core_recursion_limit, default_recursion_limit, is_handed_on
from endstop.langgraph._costs import costs_of, rounds_under
from endstop.langgraph._cycles import cycles_of
from endstop.langgraph._findings import Facts, by_gravity, findings_of
from endstop.langgraph._guards import guards_of
from endstop.langgraph._reading import read_graph
from endstop.langgraph._worst import worst_case

if TYPE_CHECKING:
    from endstop.langgraph._graph_map import Bounded, GraphMap

EntryPoint: TypeAlias = Literal[
    "invoke",
    "ainvoke",
    "stream",
    "astream",
    "stream_events",
    "batch",
    "abatch",
    "astream_events",
    "astream_log",
    "chain",
]
"""How a run is started: a method of the graph, or as part of a `chain` (a sequence, `RunnableLambda`, `with_retry`,
`with_fallbacks`, or a tool that is called outside any graph). `stream_events` is that of version v3, and
`astream_events` that of v2, its default."""

_BY_CORE = ("batch", "abatch", "astream_events", "astream_log", "chain")


def audit(
    graph: object,
    *,
    recursion_limit: int | None = None,
    entry_point: EntryPoint = "invoke",
    caps: Mapping[str, int] | None = None,
    fan_out: Mapping[str, int] | None = None,
    model: str | None = None,
) -> Audit:
    """Say what a compiled graph can do: its limit, its rounds, its cycles, its worst case, and what is wrong with them.

    `recursion_limit` is the one that the run is given in its config, `None` for none; what holds then depends on the
    `entry_point`. `caps` are the bounds that the graph's own code keeps: `{"writer": 4}` says that this node runs at
    most 4 times in a run, `{"reviewer->writer": 3}` that this edge is taken at most 3 times in a run. `fan_out` says
    how many tasks of a node run at once at most, where a router starts several: `{"researcher": 3}`. Both name the
    nodes of a subgraph by its path, `"team/writer"`. What `guarded` noted on the graph need not be said again.
    `model` is the node that calls the model, where the graph does not tell.

    Raises:
        ConfigError: it is not a graph that can be read, or a value names no node or edge of it or is no number.
    """
    read = read_graph(graph)
    if entry_point not in get_args(EntryPoint):
        raise ConfigError("entry_point", entry_point, f"use one of {', '.join(get_args(EntryPoint))}")
    if recursion_limit is not None:
        _check_number("recursion_limit", recursion_limit, least=1)
    if model is not None and model not in _names(read):
        raise ConfigError("model", model, f"name a node of the graph: {', '.join(_names(read))}")
    own = guards_of(graph)
    given = _Given(caps={**own.caps, **(caps or {})}, fan_out={**own.fan_out, **(fan_out or {})}, model=model)
    for place, count in given.caps.items():
        _check_number(f"caps[{place!r}]", count, least=0)
        if not _is_place(place, read):
            raise ConfigError("caps", place, f"name a node or an edge, `a->b`; the nodes are {', '.join(_names(read))}")
    for place, count in given.fan_out.items():
        _check_number(f"fan_out[{place!r}]", count, least=1)
        if "->" in place or not _is_place(place, read):
            raise ConfigError("fan_out", place, f"name a node; the nodes are {', '.join(_names(read))}")
    return _audit(read, "", _limit_of(read, recursion_limit, entry_point), given, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """What the caller says of a graph and those below it."""

    caps: Mapping[str, int]
    fan_out: Mapping[str, int]
    model: str | None = None

    def below(self, node: str) -> _Given:
        """What is said of the graph that is this node."""
        return _Given(caps=_below(self.caps, node), fan_out=_below(self.fan_out, node))


def _audit(graph: GraphMap, path: str, limit: EffectiveLimit, given: _Given, around: Bounded | None) -> Audit:
    bounded = graph.bounded or around
    caps = {name: count for name, count in given.caps.items() if _is_own(name, graph)}
    for node in graph.nodes:
        if node.cap is not None:
            caps[node.name] = min(node.cap, caps.get(node.name, node.cap))
    fan_out = {name: count for name, count in given.fan_out.items() if _is_own(name, graph)}
    costs = None if graph.api == "functional" else costs_of(graph, given.model, caps)
    cycles, cycles_cut = cycles_of(graph, caps)
    facts = Facts(
        graph=graph,
        path=path,
        limit=limit,
        costs=costs,
        rounds=None if costs is None else rounds_under(costs, limit.super_steps),
        cycles=cycles,
        worst_case=None if graph.api == "functional" else worst_case(graph, caps, fan_out),
        fan_out=fan_out,
        bounded=bounded,
    )
    subgraphs = tuple(
        _audit(node.subgraph, facts.at(node.name), _limit_below(node.subgraph, limit), given.below(node.name), bounded)
        for node in graph.nodes
        if node.subgraph is not None and not node.subgraph.again
    )
    return Audit(
        graph=graph,
        path=path,
        limit=limit,
        costs=costs,
        rounds=facts.rounds,
        cycles=cycles,
        cycles_cut=cycles_cut,
        worst_case=facts.worst_case,
        caps=caps,
        fan_out=fan_out,
        findings=by_gravity([*findings_of(facts), *(finding for below in subgraphs for finding in below.findings)]),
        bounded=bounded,
        subgraphs=subgraphs,
    )


def _limit_of(graph: GraphMap, recursion_limit: int | None, entry_point: EntryPoint) -> EffectiveLimit:
    """The limit that holds for a graph which nothing else started."""
    if recursion_limit is not None:
        return _named(recursion_limit, "the run is given it")
    if entry_point in _BY_CORE:
        whose = f"LangChain gives it to every run that is started with {entry_point}, whatever is bound"
        return _named(core_recursion_limit(), whose)
    return _own_limit(graph)


def _limit_below(graph: GraphMap, around: EffectiveLimit) -> EffectiveLimit:
    """The limit that holds for a graph which is a node: it counts from zero, under the limit that the run was given."""
    if not around.explicit:
        return _own_limit(graph)
    return _named(around.super_steps, "that of the graph around it")


def _own_limit(graph: GraphMap) -> EffectiveLimit:
    if graph.bound_recursion_limit is not None:
        return _named(graph.bound_recursion_limit, "it is bound to the graph")
    return EffectiveLimit(super_steps=default_recursion_limit(), source="LangGraph's default", explicit=False)


def _named(super_steps: int, source: str) -> EffectiveLimit:
    return EffectiveLimit(super_steps=super_steps, source=source, explicit=is_handed_on(super_steps))


def _is_place(place: str, graph: GraphMap) -> bool:
    """Whether it names a node or an edge of this graph, or of one below it by its path."""
    below = [(node.name, node.subgraph) for node in graph.nodes if node.subgraph is not None]
    return _is_own(place, graph) or any(
        place.startswith(f"{name}/") and _is_place(place.removeprefix(f"{name}/"), subgraph) for name, subgraph in below
    )


def _is_own(place: str, graph: GraphMap) -> bool:
    source, _, target = place.partition("->")
    if not target:
        return place in _names(graph)
    anywhere = any(unknown.node == source for unknown in graph.unknown) and target in _names(graph)
    return anywhere or any(edge.source == source and edge.target == target for edge in graph.edges)


def _names(graph: GraphMap) -> list[str]:
    return [node.name for node in graph.nodes if node.kind not in ("start", "end")]


def _below(places: Mapping[str, int], node: str) -> dict[str, int]:
    prefix = f"{node}/"
    return {place.removeprefix(prefix): count for place, count in places.items() if place.startswith(prefix)}


def _check_number(field: str, value: object, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(field, value, f"use a whole number, {least} or more")
