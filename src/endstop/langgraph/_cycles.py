"""The cycles of a graph, and what bounds them."""

from __future__ import annotations

import itertools
import warnings
from typing import TYPE_CHECKING, TypeAlias

import networkx as nx

from endstop.langgraph._audits import Cycle
from endstop.langgraph._graph_map import START
from endstop.langgraph._wiring import wiring

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from endstop.langgraph._graph_map import GraphMap
    from endstop.langgraph._wiring import Wiring

DiGraph: TypeAlias = "nx.DiGraph[int]"

MOST_CYCLES = 100
"""Elementary cycles that are listed; a graph can have more of them than atoms."""

_LEAST_CYCLES = 10
_MOST_EDGES = 1_000_000
"""To find one more cycle can take as many looks as the graph has edges: of a large graph fewer cycles are listed."""


def loops_of(wired: Wiring, caps: Iterable[str] = ()) -> list[frozenset[str]]:
    """The sets of nodes that can come back to one another without a step that is capped."""
    names, digraph = _digraph(wired, caps)
    components: Iterable[set[int]] = nx.strongly_connected_components(digraph)
    looping = (one for one in components if len(one) > 1 or any(digraph.has_edge(number, number) for number in one))
    return [frozenset(names[number] for number in component if number in names) for component in looping]


def order_of(wired: Wiring, caps: Iterable[str], among: Iterable[str]) -> list[str]:
    """Some nodes, each before those that it starts by a step that is not capped; there is no loop among them."""
    names, digraph = _digraph(wired, caps)
    wanted = set(among)
    anywhere = len(names)
    kept = digraph.subgraph(number for number in digraph if number == anywhere or names[number] in wanted)
    return [names[number] for number in nx.topological_sort(kept) if number != anywhere]


def cycles_of(graph: GraphMap, caps: Mapping[str, int]) -> tuple[tuple[Cycle, ...], bool]:
    """The elementary cycles, the shortest first, and whether there are more.

    A cycle begins with the node that was added first. One that needs an edge which the graph does not declare says so.
    """
    wired = wiring(graph)
    names, digraph = _digraph(wired, ())
    found: list[tuple[int, ...]] = []
    most = max(_LEAST_CYCLES, min(MOST_CYCLES, _MOST_EDGES // (digraph.number_of_edges() + 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImportWarning)  # old releases tell which optional package they do without
        for numbers in itertools.islice(nx.simple_cycles(digraph), most + 1):
            first = numbers.index(min(numbers))
            found.append((*numbers[first:], *numbers[:first]))
    cycles = (
        Cycle(
            nodes=(nodes := tuple(names[number] for number in numbers if number in names)),
            caps=tuple(cap for cap in caps if _bounds(cap, nodes)),
            declared=len(nodes) == len(numbers),
        )
        for numbers in sorted(found[:most], key=lambda numbers: (len(numbers), numbers))
    )
    return tuple(dict.fromkeys(cycles)), len(found) > most


def _bounds(cap: str, nodes: tuple[str, ...]) -> bool:
    steps = {f"{source}->{target}" for source, target in zip(nodes, (*nodes[1:], nodes[0]), strict=True)}
    return cap in nodes or cap in steps


def _digraph(wired: Wiring, caps: Iterable[str]) -> tuple[dict[int, str], DiGraph]:
    """The nodes by number, so that their order is the same in every process, and the steps between them not capped.

    One more node stands for "anywhere": the nodes that do not say where they go lead to it, and it leads to all.
    """
    capped, anywhere = set(caps), len(wired.names)
    index = {name: number for number, name in enumerate(wired.names)}
    digraph: DiGraph = nx.DiGraph()
    digraph.add_nodes_from(index.values())
    for name, number in index.items():
        free = (target for target in wired.targets(name) if target not in capped and f"{name}->{target}" not in capped)
        digraph.add_edges_from((number, index[target]) for target in free)
    if wired.unknown:
        digraph.add_edges_from((index[name], anywhere) for name in wired.unknown)
        digraph.add_edges_from((anywhere, number) for name, number in index.items() if name not in (START, *capped))
    return {number: name for name, number in index.items()}, digraph
