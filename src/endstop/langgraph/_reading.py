"""Reads a compiled graph into a `GraphMap`, without running it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MethodType
from typing import TYPE_CHECKING, Literal

from langchain_core.tools import BaseTool
from langgraph.types import Command, Send, interrupt

from endstop._errors import ConfigError
from endstop.langgraph._agents import (
    REACT_HOOKS,
    hook_of,
    is_chat_model,
    is_output_tool,
    middleware_of,
    parts_of,
    run_limit_of,
    tool_functions,
    tools_of,
)
from endstop.langgraph._compat import (
    RawGraph,
    RawNode,
    bound_config,
    bound_configurable,
    drops_calls,
    functional_entry,
    is_builder,
    is_graph,
    is_library_code,
    is_model_function,
    is_wrapped,
    paused_nodes,
    raw_graph,
    task_name,
    way_without_jump,
)
from endstop.langgraph._graph_map import END, START, Edge, GraphCall, GraphMap, Node, NodeKind, Unknown, bounded_of
from endstop.langgraph._reach import mentions, reachable, takes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from endstop.langgraph._agents import RunLimit
    from endstop.langgraph._compat import AnyPregel
    from endstop.langgraph._graph_map import Bounded


_INVOKE = ("invoke", "ainvoke")


def read_graph(graph: object) -> GraphMap:
    """The graph as plain data.

    Raises:
        ConfigError: it is no compiled graph, or one whose edges are written nowhere; the message says what to give.
    """
    return _Reader().read(graph)


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names of all nodes and tools that a run of a graph can come to, in the graphs below it too, sorted.

    `None` where that cannot be told: of an `@entrypoint`, and of a graph whose edges are written nowhere; of tools also
    where no node runs tools, where middleware stands around them, and where the code of a tool or of a node invokes
    something itself. A graph that code makes or is handed while it runs is not seen.
    """

    nodes: tuple[str, ...] | None
    tools: tuple[str, ...] | None


def names_of(graph: AnyPregel) -> Names:
    """The names that the limits of a graph can be about."""
    reader = _Reader()
    try:
        reader.read(graph)
    except ConfigError:  # its edges are written nowhere
        return Names(nodes=None, tools=None)
    graphs = reader.graphs.values()
    if any(read.api == "functional" for read in graphs):
        return Names(nodes=None, tools=None)
    nodes = {node.name for read in graphs for node in read.nodes if node.kind not in ("start", "end")}
    return Names(
        nodes=tuple(sorted(nodes | reader.tasks)), tools=tuple(sorted(reader.tools)) if reader.knows_tools else None
    )


@dataclass(slots=True)
class _Reader:
    """Reads a graph and those below it: each once, however many use it, and one that stands inside itself not again."""

    graphs: dict[int, GraphMap] = field(default_factory=dict[int, GraphMap])
    around: set[int] = field(default_factory=set[int])
    tools: set[str] = field(default_factory=set[str])
    tasks: set[str] = field(default_factory=set[str])
    runs_others: bool = False
    reached: dict[int, tuple[object, list[object]]] = field(default_factory=dict[int, tuple[object, list[object]]])

    @property
    def knows_tools(self) -> bool:
        """Whether `tools` are all that nodes which run tools can run; they are none where there is no such node."""
        runs_tools = any(node.kind == "tools" for graph in self.graphs.values() for node in graph.nodes)
        return runs_tools and not self.runs_others

    def read(self, graph: object) -> GraphMap:
        if is_builder(graph):
            raise ConfigError("graph", graph, "it is not compiled yet; give what its compile() returns")
        if not is_graph(graph):
            raise ConfigError("graph", graph, "give a compiled graph: of StateGraph, create_agent or @entrypoint")
        if id(graph) in self.around:
            return GraphMap(name=graph.get_name(), nodes=(), edges=(), again=True)
        if id(graph) not in self.graphs:
            self.around.add(id(graph))
            self.graphs[id(graph)] = self._read(graph)
            self.around.remove(id(graph))
        return self.graphs[id(graph)]

    def _read(self, graph: AnyPregel) -> GraphMap:
        raw = raw_graph(graph)
        if raw is not None:
            nodes = self._nodes(raw, paused_nodes(graph))
            edges = (*_plain_edges(raw), *self._chosen_edges(raw, nodes))
            unknown = tuple(self._unknown(raw, nodes))
        elif (entry := functional_entry(graph)) is not None:
            name, functions = entry
            nodes = [Node(name=name, calls=self._calls(functions))]
            edges = (Edge(source=START, target=name), Edge(source=name, target=END))
            unknown = ()
        else:
            raise ConfigError("graph", graph, "its edges are written nowhere; build it with StateGraph")
        return GraphMap(
            name=graph.get_name(),
            nodes=(Node(name=START, kind="start"), *nodes, Node(name=END, kind="end")),
            edges=edges,
            unknown=unknown,
            api="functional" if raw is None else "graph",
            bound_recursion_limit=_number(bound_config(graph).get("recursion_limit")),
            misplaced_recursion_limit=_number(bound_configurable(graph).get("recursion_limit")),
            bounded=bounded_of(graph) or self._bounded_inside(raw),
        )

    def _bounded_inside(self, raw: RawGraph | None) -> Bounded | None:
        """What a middleware of an agent, which wraps its model's calls, holds it to."""
        return next(filter(None, map(bounded_of, self._wrapping(raw))), None) if raw else None

    def _wrapping(self, raw: RawGraph) -> list[object]:
        """The middleware around the model calls of an agent."""
        functions = (function for node in raw.nodes for function in node.functions)
        methods = (one for one in self._reach(filter(is_model_function, functions)) if isinstance(one, MethodType))
        return [method.__self__ for method in methods if middleware_of([method])]

    def _may_ask_again(self, raw: RawGraph, router: object) -> bool:
        """Whether the model of an agent may be called again without a tool; what only bounds it never asks for that."""
        wrapping = self._wrapping(raw)
        return not wrapping or not all(map(bounded_of, wrapping)) or any(map(is_output_tool, self._reach([router])))

    def _nodes(self, raw: RawGraph, pausing: frozenset[str]) -> list[Node]:
        """All nodes, those capped that a limit middleware guards."""
        # Only beside the model node of `create_react_agent` do names of nodes say what they are.
        named = REACT_HOOKS if any(drops_calls(function) for node in raw.nodes for function in node.functions) else {}
        nodes = [self._node(node, named.get(node.name), pauses=node.name in pausing) for node in raw.nodes]
        for node in raw.nodes:
            middleware = middleware_of(node.functions)
            limit = run_limit_of(middleware)
            if limit is not None and limit.ends:
                nodes = [_capped(other, limit, type(middleware).__name__) for other in nodes]
        return nodes

    def _node(self, raw: RawNode, hook: str | None, *, pauses: bool) -> Node:
        if is_graph(raw.runnable):
            graph = self.read(raw.runnable)
            return Node(name=raw.name, kind="subgraph", subgraph=graph, pauses=pauses, deferred=raw.deferred)
        objects = self._reach(raw.functions)
        middleware, hook = middleware_of(raw.functions), hook or hook_of(raw.functions)
        limit = run_limit_of(middleware)
        calls_model = any(map(is_model_function, raw.functions)) or any(map(is_chat_model, objects))
        held = list(filter(None, map(tools_of, (raw.runnable, *objects))))
        kind: NodeKind = "hook" if hook else "model" if calls_model else "tools" if held else "node"
        tools = list(held[0].values()) if kind == "tools" else []
        asked = [*objects, *(found for tool in tools for found in self._reach(tool_functions(tool)))]
        self.tools.update(tool.name for tools_held in held for tool in tools_held.values())
        self.tools.update(found.name for found in asked if isinstance(found, BaseTool))
        self.tasks.update(filter(None, map(task_name, asked)))
        code = raw.functions if kind == "node" else [function for tool in tools for function in tool_functions(tool)]
        wrapped = any(map(is_wrapped, (raw.runnable, *objects)))
        self.runs_others = self.runs_others or wrapped or any(mentions(one, word) for one in code for word in _INVOKE)
        calls = (*self._calls(raw.functions), *(call for tool in tools for call in self._calls_of_tool(tool)))
        return Node(
            name=raw.name,
            kind=kind,
            middleware=None if middleware is None else type(middleware).__name__,
            hook=hook,
            tools=tuple(tool.name for tool in tools),
            calls=calls,
            pauses=pauses or any(found is interrupt for found in asked),
            deferred=raw.deferred,
            drops_calls=any(map(drops_calls, raw.functions)),
            run_limit=None if limit is None else limit.most,
        )

    def _calls_of_tool(self, tool: BaseTool) -> Iterator[GraphCall]:
        yield from (replace(call, tool=tool.name) for call in self._calls(tool_functions(tool)))

    def _calls(self, functions: Iterable[object]) -> tuple[GraphCall, ...]:
        calls: dict[int, GraphCall] = {}
        for function in functions:
            for found in self._reach([function]):
                if is_graph(found) and (raw_graph(found) or functional_entry(found)):
                    calls[id(found)] = GraphCall(graph=self.read(found), takes_config=takes(function, "config"))
        return tuple(calls.values())

    def _chosen_edges(self, raw: RawGraph, nodes: Iterable[Node]) -> Iterator[Edge]:
        """The edges of branches and commands, of which a router or a node chooses."""
        tools = frozenset(node.name for node in nodes if node.kind == "tools")
        for branch in raw.branches:
            plain = Edge(source=branch.source, target=END, kind="branch", group=branch.name)
            default = way_without_jump(branch.function)
            for edge in self._chosen(plain, branch.ends or {}, (branch.function,), tools):
                if edge.target == edge.source and not self._may_ask_again(raw, branch.function):
                    continue
                yield edge if default in (None, edge.target) else replace(edge, kind="jump")
        for node in raw.nodes:
            plain = Edge(source=node.name, target=END, kind="command", group="Command")
            yield from self._chosen(plain, node.ends, node.functions, tools)

    def _chosen(
        self, plain: Edge, ends: Mapping[str, str], functions: Iterable[object], tools: frozenset[str]
    ) -> Iterator[Edge]:
        """An edge like the plain one to each target; to those that tasks may be sent to it is one that sends."""
        senders = [function for function in functions if any(found is Send for found in self._reach([function]))]
        anywhere = any(not is_library_code(function) for function in senders)
        for label, target in ends.items():
            sends = anywhere or (target in tools and senders)
            edge = replace(plain, target=target, label=None if label == target else label)
            yield replace(edge, kind="send") if sends else edge

    def _unknown(self, raw: RawGraph, nodes: Iterable[Node]) -> Iterator[Unknown]:
        for branch in raw.branches:
            if branch.ends is None:
                yield Unknown(node=branch.source, kind="branch", name=branch.name)
        for node, read in zip(raw.nodes, nodes, strict=True):
            if node.ends:
                continue
            yield from self._undeclared(node.name, "", node.functions)
            for tool in (tools_of(node.runnable) or {}).values():
                yield from self._undeclared(node.name, tool.name, tool_functions(tool))
            below = [call.graph for call in read.calls] + ([read.subgraph] if read.subgraph else [])
            left = {unknown.name for graph in below for unknown in graph.unknown if unknown.kind == "parent"}
            yield from (Unknown(node=node.name, kind="command", name=name) for name in sorted(left))

    def _undeclared(self, node: str, name: str, functions: Iterable[object]) -> Iterator[Unknown]:
        """The commands of functions that say where to go next, in this graph or in the one around it."""
        for function in functions:
            if is_library_code(function):
                continue
            if any(found is Command for found in self._reach([function])) and mentions(function, "goto"):
                kind: Literal["command", "parent"] = "parent" if mentions(function, "PARENT") else "command"
                yield Unknown(node=node, kind=kind, name=name)
                return

    def _reach(self, functions: Iterable[object]) -> tuple[object, ...]:
        """All that the code of functions or chains can get at."""
        found: list[object] = []
        for function in functions:
            if id(function) not in self.reached:
                near = [part for one in parts_of(function) for part in (one, *reachable(one))]
                # Kept with the function, so that no other one can have its id.
                self.reached[id(function)] = function, [part for one in near for part in parts_of(one)]
            found += self.reached[id(function)][1]
        return tuple(found)


def _plain_edges(raw: RawGraph) -> Iterator[Edge]:
    for source, target in raw.edges:
        yield Edge(source=source, target=target)
    for sources, target in raw.joins:
        for source in sources:
            yield Edge(source=source, target=target, kind="join", group="+".join(sources))


def _capped(node: Node, limit: RunLimit, source: str) -> Node:
    if node.kind != limit.kind or (node.cap is not None and node.cap <= limit.most):
        return node
    return replace(node, cap=limit.most, cap_source=source)


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, int) else None
