"""A graph is read as it is built: nodes by what they do, edges by how they are taken, and what is not declared."""

from __future__ import annotations

import operator
import pickle
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware, SummarizationMiddleware, ToolCallLimitMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import BaseTool, tool
from langgraph.channels import LastValue
from langgraph.func import entrypoint
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.pregel import NodeBuilder, Pregel
from langgraph.types import Command, Send, interrupt

from endstop import ConfigError
from endstop.langgraph._graph_map import Edge, GraphMap, Node, Unknown
from endstop.langgraph._reading import read_graph
from tests.langgraph.wirings import AroundModel, Graph, Rounds, look

MODEL = Rounds()


class State(TypedDict):
    count: Annotated[int, operator.add]


def rest(state: State) -> dict[str, Any]:
    return {}


def only(node: Any, **options: Any) -> Node:
    """The one node of a graph that is made of it, as it is read."""
    builder = StateGraph(State)
    builder.add_node("it", node, **options)
    builder.add_edge(START, "it")
    return read_graph(builder.compile()).node("it")


def edges(graph: GraphMap, source: str) -> set[tuple[str, str]]:
    """Where a node leads, and how."""
    return {(edge.target, edge.kind) for edge in graph.edges if edge.source == source}


def test_an_agent_is_read_with_its_hooks_and_tools() -> None:
    """The hooks of middleware are nodes; the model is the node that LangChain calls it in."""
    graph = read_graph(create_agent(MODEL, [look], middleware=[AroundModel()]))
    kinds = {node.name: node.kind for node in graph.nodes}
    assert kinds == {
        "__start__": "start",
        "model": "model",
        "tools": "tools",
        "AroundModel.before_model": "hook",
        "AroundModel.after_model": "hook",
        "__end__": "end",
    }
    assert graph.node("tools").tools == ("look",)
    hook = graph.node("AroundModel.after_model")
    assert (hook.middleware, hook.hook) == ("AroundModel", "after_model")
    assert edges(graph, "model") == {("AroundModel.after_model", "edge")}
    ways = {("tools", "send"), ("__end__", "branch"), ("AroundModel.before_model", "branch")}
    assert edges(graph, "AroundModel.after_model") == ways
    assert graph.unknown == ()
    assert graph.bound_recursion_limit == (create_agent(MODEL, []).config or {}).get("recursion_limit")


def test_the_way_that_a_middleware_jumps_is_told_apart() -> None:
    """It is taken only where the middleware cuts the run short."""
    graph = read_graph(create_agent(MODEL, [look], middleware=[ModelCallLimitMiddleware(run_limit=7)]))
    ways = {("model", "branch"), ("__end__", "jump")}
    assert edges(graph, "ModelCallLimitMiddleware.before_model") == ways


def test_limit_middleware_caps_the_nodes_that_it_guards() -> None:
    """The lowest of several; one that lets the run go on caps nothing."""
    limits = [ModelCallLimitMiddleware(run_limit=7), ModelCallLimitMiddleware(run_limit=5)]
    limits[1].__class__ = type("Stricter", (ModelCallLimitMiddleware,), {})
    ends = ToolCallLimitMiddleware(run_limit=3, exit_behavior="end")
    of_one_tool = ToolCallLimitMiddleware(tool_name="look", run_limit=2)
    graph = read_graph(create_agent(MODEL, [look], middleware=[*limits, ends, of_one_tool]))
    assert (graph.node("model").cap, graph.node("model").cap_source) == (5, "Stricter")
    assert (graph.node("tools").cap, graph.node("tools").cap_source) == (3, "ToolCallLimitMiddleware")
    assert graph.node("ModelCallLimitMiddleware.before_model").run_limit == 7


def test_a_hook_that_calls_a_model_is_a_hook() -> None:
    """Such as a summary; it is no round of the agent."""
    graph = read_graph(create_agent(MODEL, [look], middleware=[SummarizationMiddleware(MODEL)]))
    assert graph.node("SummarizationMiddleware.before_model").kind == "hook"


@dataclass(slots=True)
class Desk:
    """A node that is a method, of an object that keeps its attributes in slots."""

    model: BaseChatModel

    def answer(self, state: State) -> dict[str, Any]:
        return self._ask(state)

    def _ask(self, state: State) -> dict[str, Any]:
        return {"messages": [self.model.invoke([])]}


class Caller:
    """A node that is an object which is called."""

    def __init__(self, model: BaseChatModel) -> None:
        self.model = model

    def __call__(self, state: State) -> dict[str, Any]:
        return {"messages": [self.model.invoke([])]}


def counted(node: Any) -> Any:
    """A decorator that does not say what it wraps."""

    def count(state: State) -> dict[str, Any]:
        return {**node(state), "count": 1}

    return count


def by_global(state: State) -> dict[str, Any]:
    return {"messages": [MODEL.invoke([])]}


CHAIN = ChatPromptTemplate.from_messages([("user", "{count}")]) | MODEL.with_retry()


@pytest.mark.parametrize(
    "node",
    [
        by_global,
        Desk(MODEL).answer,
        Caller(MODEL),
        counted(by_global),
        counted(Desk(MODEL).answer),
        RunnableLambda(by_global),
        CHAIN,
        MODEL.with_fallbacks([MODEL]),
        lambda state: CHAIN.invoke(state),
    ],
    ids=["global", "slots", "called", "decorated", "decorated method", "lambda", "chain", "fallbacks", "chain inside"],
)
def test_a_node_that_calls_a_model_is_found(node: Any) -> None:
    """By what its code refers to or has captured, near and far."""
    assert only(node).kind == "model"


def test_a_node_that_only_knows_models_is_none() -> None:
    """The class of a model is no model, and a name says nothing."""

    def model(state: State) -> dict[str, Any]:
        return {"count": isinstance(state, BaseChatModel)}

    assert only(model).kind == "node"


def test_tools_in_a_function_are_found() -> None:
    """A node that calls a ToolNode runs tools."""
    tools = ToolNode([look])
    found = only(lambda state: tools.invoke(state))
    assert (found.kind, found.tools) == ("tools", ("look",))


class Later(BaseTool):
    """A tool that is a class, and asks a person."""

    name: str = "later"
    description: str = "Ask a person."

    def _run(self, place: str) -> str:
        return str(interrupt(place))


def test_where_a_person_is_asked_is_found() -> None:
    """In the code of a node, in a tool, and where the graph was compiled to stop."""
    assert only(lambda state: interrupt("Really?")).pauses
    assert only(ToolNode([Later()])).pauses
    assert not only(ToolNode([look])).pauses
    builder = StateGraph(State)
    builder.add_node("a", rest)
    builder.add_node("b", rest)
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    stops = read_graph(builder.compile(interrupt_before=["a"]))
    assert [node.pauses for node in stops.nodes] == [False, True, False, False]
    everywhere = read_graph(builder.compile(interrupt_after="*"))
    assert [node.pauses for node in everywhere.nodes] == [False, True, True, False]


def test_graphs_below_are_found() -> None:
    """As a node, called by a node, called by a tool, and whether the caller's config is at hand."""
    inner = create_agent(MODEL, [look], name="inner")

    @tool
    def ask(place: str) -> str:
        """Ask the agent."""
        return str(inner.invoke({"messages": [("user", place)]}))

    def calls(state: State, config: RunnableConfig) -> dict[str, Any]:
        return {"messages": [inner.invoke({"messages": []}, config)]}

    (call,) = only(RunnableLambda(rest) | inner).calls
    assert (call.graph.name, call.takes_config) == ("inner", False)
    below = only(inner).subgraph
    assert below is not None
    assert below.name == "inner"
    (call,) = only(calls).calls
    assert (call.graph.name, call.tool, call.takes_config) == ("inner", None, True)
    (call,) = only(ToolNode([look, ask])).calls
    assert (call.graph.name, call.tool, call.takes_config) == ("inner", "ask", False)


def test_a_graph_that_calls_itself_is_read_once() -> None:
    """Inside itself it stands without nodes."""
    held: list[Graph] = []

    @tool
    def ask(place: str) -> str:
        """Ask again."""
        return str(held[0].invoke({"messages": [("user", place)]}))

    held.append(create_agent(MODEL, [ask]))
    (call,) = read_graph(held[0]).node("tools").calls
    assert call.graph.again
    assert call.graph.nodes == ()


def test_edges_are_read_by_how_they_are_taken() -> None:
    """Plain edges, joins, branches with the router's words, commands, and tasks that are sent."""

    def routes(state: State) -> str:
        return "on"

    def spreads(state: State) -> list[Send]:
        return [Send("work", state)]

    def commands(state: State) -> Command[Literal["a", "__end__"]]:
        return Command(goto="a")

    builder = StateGraph(State)
    for name in ("a", "b", "work", "late"):
        builder.add_node(name, rest, defer=name == "late")
    builder.add_node("chief", commands)
    builder.add_edge(START, "chief")
    builder.add_conditional_edges("a", routes, {"on": "b", "off": END})
    builder.add_conditional_edges("b", spreads, ["work"])
    builder.add_edge(["a", "work"], "late")
    graph = read_graph(builder.compile())
    assert edges(graph, "chief") == {("a", "command"), ("__end__", "command")}
    assert edges(graph, "b") == {("work", "send")}
    assert [edge for edge in graph.edges if edge.target == "late"] == [
        Edge(source="a", target="late", kind="join", group="a+work"),
        Edge(source="work", target="late", kind="join", group="a+work"),
    ]
    words = [edge.label for edge in graph.edges if edge.source == "a" and edge.kind == "branch"]
    assert words == ["on", "off"]
    assert [node.name for node in graph.nodes if node.deferred] == ["late"]


def test_what_is_not_declared_is_unknown() -> None:
    """A branch without path map has its function's name."""

    def somewhere(state: State) -> str:
        return "a"

    builder = StateGraph(State)
    builder.add_node("a", rest)
    builder.add_conditional_edges(START, somewhere)
    graph = read_graph(builder.compile())
    assert graph.unknown == (Unknown(node="__start__", kind="branch", name="somewhere"),)
    assert graph.edges == ()


def test_an_entrypoint_is_one_node() -> None:
    """Its tasks leave no edges."""
    inner = create_agent(MODEL, [look], name="inner")

    @entrypoint()
    def work(place: str) -> str:
        return str(inner.invoke({"messages": [("user", place)]}))

    graph = read_graph(work)
    assert (graph.api, [node.name for node in graph.nodes]) == ("functional", ["__start__", "work", "__end__"])
    (call,) = graph.node("work").calls
    assert call.graph.name == "inner"


def test_a_graph_without_edges_is_refused() -> None:
    """One that is put together from channels says nowhere what follows what."""
    nodes = {name: NodeBuilder().subscribe_only("in").do(lambda x: x).write_to("out") for name in ("a", "b")}
    channels: Any = {"in": LastValue(int), "out": LastValue(int)}
    plain: Any = Pregel(nodes=nodes, channels=channels, input_channels="in", output_channels="out")
    with pytest.raises(ConfigError, match="its edges are written nowhere; build it with StateGraph"):
        read_graph(plain)


def test_limits_that_are_bound_are_read() -> None:
    """In their place, and under `configurable`, where they do nothing."""
    graph = create_agent(MODEL, []).with_config({"recursion_limit": 30, "configurable": {"recursion_limit": 9}})
    read = read_graph(graph)
    assert (read.bound_recursion_limit, read.misplaced_recursion_limit) == (30, 9)


def test_the_graphs_below_have_paths() -> None:
    """Through all levels."""
    inner = create_agent(MODEL, [look], name="inner")
    builder = StateGraph(MessagesState)
    builder.add_node("helper", inner)
    builder.add_edge(START, "helper")
    outer = StateGraph(MessagesState)
    outer.add_node("team", builder.compile(name="team"))
    outer.add_edge(START, "team")
    read = read_graph(outer.compile())
    assert [(path, graph.name) for path, graph in read.below()] == [("team", "team"), ("team/helper", "inner")]


def test_a_map_is_plain_data() -> None:
    """It knows nothing of the graph that it was read from."""
    read = read_graph(create_agent(MODEL, [look]))
    assert pickle.loads(pickle.dumps(read)) == read
    with pytest.raises(KeyError):
        read.node("nothing")
