"""What starts what: the edges of a graph as the obligations and the choices of each node."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from endstop.langgraph._graph_map import END, START

if TYPE_CHECKING:
    from endstop.langgraph._graph_map import GraphMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """What each node starts in the next super-step.

    `always` are its plain edges; of each group in `choices` it takes one. A join, `(sources, target)`, starts its
    target when all its sources have run. The `unknown` nodes may also start any node, or none.
    """

    names: tuple[str, ...]
    always: dict[str, tuple[str, ...]]
    choices: dict[str, tuple[tuple[str, ...], ...]]
    joins: tuple[tuple[tuple[str, ...], str], ...]
    deferred: frozenset[str]
    unknown: frozenset[str]

    def groups(self, node: str) -> tuple[tuple[str, ...], ...]:
        """What the node starts: of each group one target. Joins are left out."""
        anywhere = ((*self.names[1:-1], END),) if node in self.unknown else ()
        return *((target,) for target in self.always.get(node, ())), *self.choices.get(node, ()), *anywhere

    def targets(self, node: str) -> tuple[str, ...]:
        """The nodes that this one says it may start, alone or as part of a join, and END; each once."""
        chosen = (target for group in self.choices.get(node, ()) for target in group)
        joined = (target for sources, target in self.joins if node in sources)
        return tuple(dict.fromkeys((*self.always.get(node, ()), *chosen, *joined)))

    def starts_several(self, node: str) -> bool:
        """Whether the node may start more than one other at once."""
        certain = {*self.always.get(node, ()), *(group[0] for group in self.choices.get(node, ()) if len(group) == 1)}
        open_groups = sum(len(group) > 1 for group in self.choices.get(node, ()))
        return len(certain - {END}) + open_groups > 1


def wiring(graph: GraphMap, *, jumps: bool = True) -> Wiring:
    """The wiring of a graph; without `jumps`, that of runs which no middleware cuts short."""
    always: dict[str, list[str]] = {}
    choices: dict[str, dict[str, list[str]]] = {}
    joins: dict[tuple[str, str], list[str]] = {}
    for edge in graph.edges:
        if edge.kind == "edge":
            always.setdefault(edge.source, []).append(edge.target)
        elif edge.kind == "join":
            joins.setdefault((edge.group, edge.target), []).append(edge.source)
        elif edge.kind != "jump" or jumps:
            choices.setdefault(edge.source, {}).setdefault(edge.group, []).append(edge.target)
    return Wiring(
        names=tuple(node.name for node in graph.nodes),
        always={source: tuple(targets) for source, targets in always.items()},
        choices={
            source: tuple(tuple(dict.fromkeys(targets)) for targets in groups.values())
            for source, groups in choices.items()
        },
        joins=tuple((tuple(sources), target) for (_, target), sources in joins.items()),
        deferred=frozenset(node.name for node in graph.nodes if node.deferred),
        unknown=frozenset(unknown.node for unknown in graph.unknown if unknown.kind != "parent"),
    )


def arrivals(wired: Wiring, origin: str) -> dict[str, int]:
    """The least number of super-steps from a node to each that it leads to: to itself too, if there is a way back."""
    found: dict[str, int] = {}
    missing = [set(sources) for sources, _ in wired.joins]
    queue, distance = deque([origin]), {origin: 0}
    while queue:
        node = queue.popleft()
        started = [*wired.always.get(node, ()), *(name for group in wired.choices.get(node, ()) for name in group)]
        if node in wired.unknown:
            started += wired.names
        for sources, (_, target) in zip(missing, wired.joins, strict=True):
            if node in sources:
                sources.remove(node)
                started += [] if sources else [target]
        for target in started:
            if target not in found and target not in (START, END):
                found[target] = distance[node] + 1
                if target != origin:
                    distance[target] = found[target]
                    queue.append(target)
    return found


def endings(wired: Wiring) -> dict[str, int]:
    """The least number of super-steps from a node, itself counted, until nothing runs any more; 0 for END.

    All plain edges of a node are followed, and of each choice the shortest. Nodes from which no run ends are left out.
    """
    waits: dict[str, int] = {}
    heard: dict[str, list[tuple[str, int]]] = {}
    for node in wired.names:
        joined = (target for sources, target in wired.joins if node in sources)
        groups = [*((target,) for target in (*wired.always.get(node, ()), *joined)), *wired.choices.get(node, ())]
        waits[node] = len(groups)
        for number, group in enumerate(groups):
            for target in group:
                heard.setdefault(target, []).append((node, number))
    found = {END: 0, **{node: 1 for node in wired.names if not waits[node] and node != END}}
    queue, answered = deque(found), set[tuple[str, int]]()
    while queue:
        target = queue.popleft()
        for node, number in heard.get(target, ()):
            if (node, number) not in answered:
                answered.add((node, number))
                waits[node] -= 1
                if not waits[node]:
                    found[node] = found[target] + 1
                    queue.append(node)
    return found
