"""A graph as plain data: what an audit computes with, and what a picture draws. It knows nothing of LangGraph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias
from weakref import WeakKeyDictionary

from endstop._budget import allowed_by_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from endstop._limits import PlanLimits

START = "__start__"
END = "__end__"

NodeKind: TypeAlias = Literal["start", "end", "model", "tools", "hook", "subgraph", "node"]
"""`model` calls a chat model, `tools` runs tools, `hook` belongs to a middleware, `subgraph` is a graph itself."""

EdgeKind: TypeAlias = Literal["edge", "join", "branch", "command", "send", "jump"]
"""`edge` is always taken; `join` waits for all its sources; of a `branch` one target is taken; `command` is a target
that a node names itself; `send` is a branch or command that may start several tasks of its target at once; `jump` is
the way that a middleware takes only when it cuts a run short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCall:
    """A graph that a node calls from its own code, or from the code of one of its tools, `tool`.

    `takes_config` says that the code is handed the caller's config, and may hand it on.
    """

    graph: GraphMap
    tool: str | None = None
    takes_config: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node.

    `middleware` and `hook` say whose it is and when it runs (`before_agent`, `before_model`, `after_model`,
    `after_agent`); `tools` are the names of the tools it can run; `subgraph` is the graph that it is; `calls` are the
    graphs that its code calls; `pauses` says that it may ask a person. `deferred` nodes wait until nothing else runs.
    `drops_calls` says that the model node, out of steps, answers instead of asking for tools. `run_limit` is what the
    limit middleware allows in one run whose hook this is; `cap` how often such a middleware lets this node run in one
    run, and `cap_source` the class of that middleware.
    """

    name: str
    kind: NodeKind = "node"
    middleware: str | None = None
    hook: str | None = None
    tools: tuple[str, ...] = ()
    subgraph: GraphMap | None = None
    calls: tuple[GraphCall, ...] = ()
    pauses: bool = False
    deferred: bool = False
    drops_calls: bool = False
    run_limit: int | None = None
    cap: int | None = None
    cap_source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """One declared edge.

    `label` is the branch's own word for this target, where it is not the target's name. The edges of one branch share
    their `source` and `group`: one of them is taken. The edges of one join share their `target` and `group`: all are.
    """

    source: str
    target: str
    kind: EdgeKind = "edge"
    label: str | None = None
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A place from which the run may go to any node, because it does not say where to.

    A `branch` without path map or annotation (`name` is its function), or a `command` without annotation (`name` is
    the tool that returns it, or empty for the node itself). A `parent` command leaves this graph for a node of the
    graph around it.
    """

    node: str
    kind: Literal["branch", "command", "parent"]
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """What bounds every run of a graph, whatever it does: what it is bounded by, and the limits in words."""

    by: Literal["bound", "BoundMiddleware"]
    limits: str


_bounded: WeakKeyDictionary[object, Bounded] = WeakKeyDictionary()


def note_bounded(
    holder: object, by: Literal["bound", "BoundMiddleware"], limits: PlanLimits, thread_limits: PlanLimits | None
) -> None:
    """Note for audits that a graph, or a middleware, holds runs to limits; those of one tool or node bound no run."""
    of_run, of_thread = (_in_words(each) for each in (limits, thread_limits))
    words = ", ".join([*of_run, *(f"{each} a thread" for each in of_thread)])
    if words:
        _bounded[holder] = Bounded(by=by, limits=words)


def bounded_of(holder: object) -> Bounded | None:
    """What was noted of a graph or a middleware; `None` where nothing was."""
    return _bounded.get(holder)


def _in_words(limits: PlanLimits | None) -> list[str]:
    allowed = {} if limits is None else allowed_by_limit(limits)
    of_runs = {name: most for name, most in allowed.items() if not name.startswith(("tool_limits", "node_limits"))}
    return [name if name == "deadline" else f"{name}={most}" for name, most in of_runs.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphMap:
    """A compiled graph. `edges` are the declared ones; from the nodes in `unknown` the run may go anywhere.

    `api` is `functional` for an `@entrypoint`, whose tasks are not nodes and leave no edges. `bound_recursion_limit`
    was bound to the graph with `with_config`; `misplaced_recursion_limit` was put under `configurable`, where LangGraph
    does not look. `nodes` has `START` first and `END` last. `again` marks a graph that calls itself, where it stands
    inside itself: it has no nodes there. `bounded` says what limits of endstop's its runs are held to.
    """

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    unknown: tuple[Unknown, ...] = ()
    api: Literal["graph", "functional"] = "graph"
    bound_recursion_limit: int | None = None
    misplaced_recursion_limit: int | None = None
    again: bool = False
    bounded: Bounded | None = None

    def node(self, name: str) -> Node:
        """The node of this name; a `KeyError` where there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)

    def of_kind(self, kind: NodeKind) -> tuple[Node, ...]:
        """The nodes of one kind, in the order in which they were added."""
        return tuple(node for node in self.nodes if node.kind == kind)

    def below(self) -> Iterator[tuple[str, GraphMap]]:
        """Each graph that is a node of this one, or of one below it, with its path: `outer/inner`."""
        for node in self.nodes:
            if node.subgraph is not None:
                yield node.name, node.subgraph
                yield from ((f"{node.name}/{path}", graph) for path, graph in node.subgraph.below())
