"""The picture of an audit shows the graph, its loops and where the limit bites, as one SVG that stands alone."""

from __future__ import annotations

import operator
import random
import time
from dataclasses import replace
from itertools import combinations, product
from typing import Annotated, Literal, TypedDict
from xml.etree.ElementTree import Element, fromstring

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, AgentState, ModelCallLimitMiddleware
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command, Send

from endstop.langgraph._audits import Audit, Costs, Cycle, EffectiveLimit, Finding, Rounds, Worst, WorstCase
from endstop.langgraph._graph_map import Edge, EdgeKind, GraphCall, GraphMap, Node, NodeKind, Unknown
from endstop.langgraph._picture import render_svg
from endstop.langgraph._picture._layout import Box
from endstop.langgraph._picture._svg import cut, text_width, wrapped
from endstop.langgraph.audit import audit

SVG = "{http://www.w3.org/2000/svg}"


class State(TypedDict, total=False):
    """What the nodes of these graphs hand on."""

    done: Annotated[list[str], operator.add]


class AllHooks(AgentMiddleware):
    """A middleware with a node at each place."""

    def before_agent(self, state: AgentState[object], runtime: Runtime[None]) -> None: ...

    def before_model(self, state: AgentState[object], runtime: Runtime[None]) -> None: ...

    def after_model(self, state: AgentState[object], runtime: Runtime[None]) -> None: ...

    def after_agent(self, state: AgentState[object], runtime: Runtime[None]) -> None: ...


class Model(FakeListChatModel):
    """A model that takes tools."""

    def bind_tools(self, tools: object, *, tool_choice: object = None) -> Runnable:
        return self


@tool
def search(query: str) -> str:
    """Search."""
    return query


def agent(*middleware: AgentMiddleware) -> object:
    return create_agent(Model(responses=["done"]), [search], middleware=middleware)


def nothing(state: State) -> State:
    return {}


def supervisor() -> object:
    def choose(state: State) -> Command[Literal["researcher", "coder", "__end__"]]:
        return Command(goto=END)

    builder = StateGraph(State)
    builder.add_node("supervisor", choose)
    builder.add_node("researcher", agent())
    builder.add_node("coder", nothing)
    builder.add_edge(START, "supervisor")
    builder.add_edge("researcher", "supervisor")
    builder.add_edge("coder", "supervisor")
    return builder.compile(name="supervisor")


def map_reduce() -> object:
    def fan_out(state: State) -> list[Send]:
        return [Send("worker", {})]

    def enough(state: State) -> str:
        return "yes"

    builder = StateGraph(State)
    for name in ("split", "worker", "reduce"):
        builder.add_node(name, nothing)
    builder.add_edge(START, "split")
    builder.add_conditional_edges("split", fan_out, ["worker"])
    builder.add_edge("worker", "reduce")
    builder.add_conditional_edges("reduce", enough, {"not yet": "split", "yes": END})
    return builder.compile(name="map_reduce")


def thirty() -> object:
    """30 nodes with branches back and on, each a word long."""
    chance = random.Random(3)
    builder = StateGraph(State)
    names = [f"{chance.choice(['fetch', 'rank', 'review', 'summarise_findings'])}_{number}" for number in range(30)]
    for name in names:
        builder.add_node(name, nothing)
    builder.add_edge(START, names[0])
    for number, name in enumerate(names[1:], 1):
        builder.add_edge(names[max(0, number - chance.randint(1, 4))], name)
    for number in range(0, 30, 4):
        back, on = names[max(0, number - chance.randint(0, 9))], names[min(29, number + chance.randint(1, 9))]
        builder.add_conditional_edges(names[number], lambda state: "on", {"again": back, "on": on})
    builder.add_edge(names[-1], END)
    return builder.compile(name="thirty")


REAL = {
    "agent": lambda: audit(agent(), recursion_limit=25),
    "all hooks": lambda: audit(agent(AllHooks()), recursion_limit=25),
    "model calls limited": lambda: audit(agent(ModelCallLimitMiddleware(run_limit=5)), recursion_limit=50),
    "supervisor": lambda: audit(supervisor(), entry_point="batch"),
    "map-reduce": lambda: audit(map_reduce(), caps={"reduce": 3}, fan_out={"worker": 4}, recursion_limit=8),
    "thirty nodes": lambda: audit(thirty(), recursion_limit=10),
}


def of(
    *edges: Edge,
    nodes: tuple[Node, ...] = (),
    unknown: tuple[Unknown, ...] = (),
    cycles: tuple[Cycle, ...] = (),
    caps: dict[str, int] | None = None,
    limit: int = 25,
) -> Audit:
    """An audit of a graph written down; nodes that are not described are plain ones."""
    described = {node.name for node in nodes}
    ends = dict.fromkeys(end for edge in edges for end in (edge.source, edge.target) if end not in (START, END))
    plain = tuple(Node(name=name) for name in ends if name not in described)
    start, end = Node(name=START, kind="start"), Node(name=END, kind="end")
    return Audit(
        graph=GraphMap(name="drawn", nodes=(start, *nodes, *plain, end), edges=edges, unknown=unknown),
        limit=EffectiveLimit(super_steps=limit, source="the run is given it", explicit=True),
        costs=None,
        rounds=None,
        cycles=cycles,
        cycles_cut=False,
        worst_case=None,
        findings=(),
        caps=caps or {},
        fan_out={},
    )


def edge(source: str, target: str, kind: EdgeKind = "edge", label: str | None = None) -> Edge:
    return Edge(source=source, target=target, kind=kind, label=label)


def drawn(audited: Audit) -> Element:
    """The root of the picture, read as any XML reader would."""
    return fromstring(render_svg(audited))


def groups(root: Element, kind: str) -> list[Element]:
    """The groups of one class: `node`, `edge`, `unknown`, `label`."""
    return [group for group in root.iter(f"{SVG}g") if group.get("class") == kind]


def words(root: Element) -> list[str]:
    """What is written in the picture, in the order in which it is."""
    return [text.text or "" for text in root.iter(f"{SVG}text")]


def titles(root: Element) -> list[str]:
    """What is shown on hovering."""
    return [title.text or "" for title in root.iter(f"{SVG}title")]


def text_boxes(root: Element) -> list[tuple[str, Box]]:
    """Where each text is, from its size and place, with all shifts of the groups around it."""
    found: list[tuple[str, Box]] = []

    def walk(element: Element, dx: float, dy: float) -> None:
        if shift := element.get("transform"):
            x, y = map(float, shift.removeprefix("translate(").removesuffix(")").split())
            dx, dy = dx + x, dy + y
        if element.tag == f"{SVG}text":
            size, said = float(element.attrib["font-size"]), element.text or ""
            width = text_width(said, size, bold=element.get("font-weight") == "bold")
            left = {"start": 0.0, "middle": width / 2, "end": width}[element.attrib["text-anchor"]]
            x, y = float(element.attrib["x"]) + dx - left, float(element.attrib["y"]) + dy
            found.append((said, Box(x=x + width / 2, y=y - 0.36 * size, width=width, height=size)))
        for child in element:
            walk(child, dx, dy)

    walk(root, 0.0, 0.0)
    return found


def overlapping(root: Element) -> list[tuple[str, str]]:
    """The pairs of texts that run into each other."""
    pairs = combinations(text_boxes(root), 2)
    return [(one, other) for (one, first), (other, second) in pairs if first.overlaps(second)]


@st.composite
def audits(draw: st.DrawFn) -> Audit:
    """Audits of graphs of up to 30 nodes with every kind of node, edge and loop, and names of any characters."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    names = draw(st.lists(st.text(min_size=1, max_size=60), max_size=6, unique=True))
    names += [f"{chance.choice(['find', 'write', 'review'])}_{number}" for number in range(chance.randint(1, 24))]
    kinds: tuple[NodeKind, ...] = ("model", "tools", "hook", "subgraph", "node")
    nodes = tuple(Node(name=name, kind=chance.choice(kinds), pauses=chance.random() < 0.3) for name in names)
    labels = [None, *draw(st.lists(st.text(max_size=40), min_size=1, max_size=5))]
    lines: tuple[EdgeKind, ...] = ("edge", "join", "branch", "command", "send", "jump")
    edges = [
        edge(chance.choice([START, *names]), chance.choice([*names, END]), chance.choice(lines), chance.choice(labels))
        for _ in range(chance.randint(0, 2 * len(names)))
    ]
    ways = {(one.source, one.target) for one in edges}
    loops = [Cycle(nodes=(name,)) for name in names if (name, name) in ways]
    loops += [
        Cycle(nodes=pair, caps=pair[:1] if pair[0] in names[:3] else ())
        for pair in combinations(names, 2)
        if {pair, pair[::-1]} <= ways
    ]
    return of(*edges, nodes=nodes, cycles=tuple(loops), caps=dict.fromkeys(names[:3], 3), limit=chance.randint(1, 60))


@given(audits())
@settings(max_examples=100)
def test_no_two_texts_overlap(audited: Audit) -> None:
    """However many nodes, edges and loops there are, and whatever they are called."""
    assert overlapping(drawn(audited)) == []


@pytest.mark.parametrize("name", REAL)
def test_no_two_texts_of_a_real_graph_overlap(name: str) -> None:
    """Agents, supervisors, map-reduce and thirty nodes."""
    root = drawn(REAL[name]())
    assert len(text_boxes(root)) > 10
    assert overlapping(root) == []


@given(audits())
@settings(max_examples=50)
def test_what_is_written_in_a_node_stays_inside_it(audited: Audit) -> None:
    """Its name and its note, with some space to the outline."""
    for group in groups(drawn(audited), "node"):
        outline = group.find(f"{SVG}rect")
        if outline is not None:
            left, width = float(outline.attrib["x"]), float(outline.attrib["width"])
        else:
            corners = [float(point.split(",")[0]) for point in group[1].attrib["points"].split()]
            left, width = min(corners), max(corners) - min(corners)
        for _, box in text_boxes(group):
            assert left + 8 <= box.left
            assert box.right <= left + width - 8


@given(audits())
@settings(max_examples=50)
def test_every_node_and_every_edge_is_drawn_once(audited: Audit) -> None:
    """Each is a group of its own that says what it is."""
    root = drawn(audited)
    assert len(groups(root, "node")) == len(audited.graph.nodes)
    assert len(groups(root, "edge")) == len(audited.graph.edges)
    assert [group.get("data-kind") for group in groups(root, "node")] == [node.kind for node in audited.graph.nodes]
    assert [group.get("data-kind") for group in groups(root, "edge")] == [one.kind for one in audited.graph.edges]


@pytest.mark.parametrize("name", REAL)
def test_the_nodes_and_edges_of_a_real_graph_are_all_there(name: str) -> None:
    """By their names, those of the graphs inside it too."""
    audited = REAL[name]()
    graphs = [audited.graph, *(graph for _, graph in audited.graph.below())]
    root = drawn(audited)
    assert [group.get("data-name") for group in groups(root, "node")] == [n.name for g in graphs for n in g.nodes]
    ends = [(group.get("data-source"), group.get("data-target")) for group in groups(root, "edge")]
    assert ends == [(one.source, one.target) for graph in graphs for one in graph.edges]


@given(audits())
@settings(max_examples=30)
def test_the_same_audit_gives_the_same_picture(audited: Audit) -> None:
    """Byte for byte, so that a picture in a repository changes only with the graph."""
    assert render_svg(audited) == render_svg(audited)


def test_the_picture_stands_alone() -> None:
    """No script, no style sheet, no other file, and a ground of its own for any background."""
    root = drawn(REAL["all hooks"]())
    used = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert used <= {"svg", "g", "title", "desc", "rect", "circle", "line", "path", "polygon", "polyline", "text"}
    assert not [name for element in root.iter() for name in element.attrib if "href" in name or name.startswith("on")]
    ground = root.find(f"{SVG}rect")
    assert ground is not None
    assert (ground.get("width"), ground.get("height")) == (root.get("width"), root.get("height"))
    assert ground.get("fill") == "#ffffff"


def test_it_says_what_it_is_to_those_who_cannot_see_it() -> None:
    """A title, and a description with the figures."""
    root = drawn(REAL["agent"]())
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == "LangGraph: what it can do under a limit of 25 super-steps"
    assert root.findtext(f"{SVG}desc") == (
        "Nodes: 4, edges: 4, loops: 1. Limit: 25 super-steps; the run is given it. "
        "12 rounds can finish; call 13 of the model is paid for and lost. "
        "Nothing but the limit ends the loops without a cap."
    )


def test_names_are_escaped() -> None:
    """Markup in a name is shown and never read; what XML cannot hold is replaced."""
    name = "<script>alert('&')</script>\x00\ud800"
    root = drawn(of(edge(START, name), edge(name, END, label='"<b>&'), nodes=(Node(name=name),)))
    assert groups(root, "node")[1].get("data-name") == "<script>alert('&')</script>\ufffd\ufffd"
    assert '"<b>&' in words(root)
    assert not list(root.iter(f"{SVG}script"))


def test_a_long_name_is_cut_and_shown_whole_on_hovering() -> None:
    """The node does not grow with it."""
    name = "a_very_long_name_for_a_node_that_nobody_would_want_to_read_twice"
    root = drawn(of(edge(START, name), edge(name, END)))
    shown = next(word for word in words(root) if word.startswith("a_very_long"))
    assert shown.endswith("…")
    assert len(shown) < 40
    assert f"{name}: node; first in super-step 1" in titles(root)


def test_a_node_says_its_kind_its_first_step_and_its_cap() -> None:
    """The hook of a middleware stands below the name of the middleware."""
    said = words(drawn(REAL["model calls limited"]()))
    assert said.count("ModelCallLimitMiddleware") == 2
    for note in ("before_model · step 1", "model · step 2 · max 5", "after_model · step 3", "tools · step 4"):
        assert note in said


def test_what_a_node_calls_and_who_caps_it_is_told_on_hovering() -> None:
    """Its tools, the graphs that it calls, its cap, and that it may ask a person or waits."""
    inner = GraphMap(name="inner", nodes=(), edges=())
    calls = (GraphCall(graph=inner, tool="ask"), GraphCall(graph=inner))
    tools = Node(name="t", kind="tools", tools=("ask", "find"), calls=calls, cap_source="Limiter", pauses=True)
    last = Node(name="z", deferred=True)
    root = drawn(of(edge(START, "t"), edge("t", "z"), nodes=(tools, last)))
    assert "t: tools; first in super-step 1; tools: ask, find; calls inner in ask, inner; capped by Limiter" in titles(
        root
    )
    assert "tools · step 1 · may pause" in words(root)
    assert "step 2 · waits" in words(root)


@pytest.mark.parametrize(("limit", "beyond"), [(1, ["a", "b"]), (2, ["b"]), (3, [])])
def test_nodes_that_the_limit_keeps_from_finishing_are_marked(limit: int, beyond: list[str]) -> None:
    """A run must be done one super-step before the limit, so a node that first runs in it is beyond."""
    root = drawn(of(edge(START, "a"), edge("a", "b"), edge("b", END), limit=limit))
    marked = [title.split(":")[0] for title in titles(root) if "a run that comes here raises" in title]
    assert marked == beyond
    assert ("a run that comes here raises" in words(root)) == bool(beyond)


def test_a_loop_has_its_number_its_cost_and_its_cap_where_it_closes() -> None:
    """Filled where nothing caps it, outlined where something does; the panel has its whole way."""
    cycles = (Cycle(nodes=("a", "b")), Cycle(nodes=("a", "b", "c"), caps=("c",)))
    root = drawn(
        of(
            edge(START, "a"),
            edge("a", "b"),
            edge("b", "a"),
            edge("b", "c"),
            edge("c", "a"),
            cycles=cycles,
            caps={"c": 3},
        )
    )
    said = words(root)
    assert [word for word in said if word.startswith("loop ")] == ["loop 1 · no cap", "loop 2 · max 3"]
    for shown in ("LOOPS: 2", "a → b → a", "2 super-steps each time · no cap", "3 super-steps each time · max 3"):
        assert shown in said
    assert "b → a (always taken); loop 1" in titles(root)
    filled = {
        label.findtext(f"{SVG}text"): label.findall(f"{SVG}rect")[-1].get("fill") for label in groups(root, "label")
    }
    assert filled["loop 1 · no cap"] != "#ffffff"
    assert filled["loop 2 · max 3"] == "#ffffff"


def test_a_line_that_closes_several_loops_names_the_loosest_cap() -> None:
    """One without a cap outweighs the others."""
    ends = (edge(START, "a"), edge("a", "b"), edge("a", "c"), edge("b", "d"), edge("c", "d"), edge("d", "a"))
    capped, open_ended = Cycle(nodes=("a", "b", "d"), caps=("b",)), Cycle(nodes=("a", "c", "d"))
    also_capped = Cycle(nodes=("a", "c", "d"), caps=("c",))
    caps = {"b": 2, "c": 5}
    for cycles, said in (
        ((capped, open_ended), "loops 1, 2 · no cap"),
        ((capped, also_capped), "loops 1, 2 · capped"),
        ((capped, capped), "loops 1, 2 · max 2"),
        ((capped,) * 5, "loops 1, 2 +3 · max 2"),
    ):
        assert said in words(drawn(of(*ends, cycles=cycles, caps=caps)))


def test_only_the_first_loops_are_listed() -> None:
    """The panel says how many more there are, and that nobody counted all."""
    cycles = tuple(Cycle(nodes=("a", f"b{number}")) for number in range(11))
    ends = [edge(*way) for loop in cycles for way in (loop.nodes, loop.nodes[::-1])]
    said = words(drawn(of(edge(START, "a"), *ends, cycles=cycles)))
    assert "LOOPS: 11" in said
    assert "and 3 more" in said
    assert "loop 8 · no cap" in said
    assert "loop 9 · no cap" not in said


def test_an_undeclared_target_is_a_dashed_line_to_a_question_mark() -> None:
    """Loops over it are closed there, as nobody knows where they are."""
    unknown = (Unknown(node="b", kind="branch", name="route"), Unknown(node="a", kind="parent"))
    loops = (Cycle(nodes=("a", "b"), declared=False),)
    root = drawn(of(edge(START, "a"), edge("a", "b"), unknown=unknown, cycles=loops))
    lines = [group for group in groups(root, "edge") if group.get("data-kind") == "unknown"]
    assert [line.get("data-source") for line in lines] == ["b", "a"]
    assert all(path.get("stroke-dasharray") for line in lines for path in line.findall(f"{SVG}path"))
    assert words(root).count("?") == len(groups(root, "unknown")) == 2
    assert {"route", "loop 1 · no cap", "needs an edge that is not declared"} <= set(words(root))
    assert "b → any node: the branch route does not say where it goes; loop 1" in titles(root)
    assert "a → a node of the graph around it: the parent does not say where it goes" in titles(root)


def test_kinds_differ_in_shape_and_dashes_and_not_only_in_colour() -> None:
    """Printed in grey, or seen by people who see few colours, they are still told apart."""
    kinds: tuple[NodeKind, ...] = ("model", "tools", "hook", "subgraph", "node")
    nodes = tuple(Node(name=kind, kind=kind) for kind in kinds)
    lines: tuple[EdgeKind, ...] = ("edge", "join", "branch", "command", "send", "jump")
    ways = [edge(START, kind, line) for kind, line in product(kinds, lines)]
    root = drawn(of(*ways, nodes=nodes))
    outlines = {
        group.get("data-kind"): [
            (part.tag, part.get("rx")) for part in group if part.tag not in (f"{SVG}text", f"{SVG}title")
        ]
        for group in groups(root, "node")
    }
    assert len({str(outline) for outline in outlines.values()}) == 7
    strokes = {
        group.get("data-kind"): [(part.tag, part.get("stroke-dasharray"), part.get("stroke-width")) for part in group]
        for group in groups(root, "edge")
    }
    assert len({str(stroke) for stroke in strokes.values()}) == 6


def test_the_legend_explains_what_is_in_the_picture_and_nothing_else() -> None:
    """Once, for all graphs of the picture."""
    said = words(drawn(REAL["supervisor"]()))
    assert said.count("LEGEND") == 1
    for meaning in ("calls a model", "runs tools", "a graph itself", "parallel tasks", "a node's own choice"):
        assert said.count(meaning) == 1
    assert "hook of a middleware" not in said
    assert "waits for all its sources" not in said


def test_a_subgraph_has_a_picture_of_its_own_below() -> None:
    """With its path as the title, its own rounds and loops; findings stand with the whole."""
    said = words(drawn(REAL["supervisor"]()))
    assert said.index("supervisor") < said.index("researcher", said.index("LEGEND"))
    assert said.count("WHERE THE LIMIT BITES") == 2
    assert len([word for word in said if word.startswith("FINDINGS")]) == 1


def test_a_fan_out_says_how_many_tasks_it_may_start() -> None:
    """What was given, or N where nobody said."""
    assert "\N{MULTIPLICATION SIGN}4" in words(drawn(REAL["map-reduce"]()))
    assert "\N{MULTIPLICATION SIGN}N" in words(drawn(REAL["agent"]()))


def test_findings_are_named_with_their_place_and_explained_on_hovering() -> None:
    """Nine are listed as eight and one more."""
    finding = Finding(code="unknown_targets", severity="error", explanation="Who knows.", remedy="Say it.", where="b")
    base = of(edge(START, "b"))
    root = drawn(replace(base, findings=(finding, *[replace(finding, severity="info", where="")] * 8)))
    assert "unknown_targets · b" in words(root)
    assert words(root).count("unknown_targets") == 7
    assert {"FINDINGS: 9", "and 1 more"} <= set(words(root))
    assert "Who knows. Say it." in titles(root)


def bar(root: Element) -> list[tuple[int, str]]:
    """The coloured stretches of the bar in the panel: share of the whole in percent, and colour."""
    found = next(g for g in root.iter(f"{SVG}g") if (g.findtext(f"{SVG}title") or "").startswith("What fits into"))
    *parts, whole = found.findall(f"{SVG}rect")
    width = float(whole.attrib["width"])
    return [(round(100 * float(part.attrib["width"]) / width), part.attrib["fill"]) for part in parts]


def test_the_bar_shows_the_rounds_that_fit_and_what_is_lost() -> None:
    """25 super-steps, entry 1 and 2 a round: 12 rounds, and 2 super-steps that end in the error."""
    costs = Costs(model="m", entry=1, exit=0, per_round=2, per_cycle=2)
    counted = replace(of(edge(START, "m")), costs=costs, rounds=Rounds(finish=12, called=13))
    parts = bar(drawn(counted))
    assert [share for share, _ in parts] == [4, *[8] * 11, 0, 8]
    assert parts[-1][1] == "#b3261e"
    assert "12 rounds can finish; call 13 of the" in " ".join(words(drawn(counted)))


def test_a_bar_for_thousands_of_super_steps_shows_shares() -> None:
    """Nobody can see one of 10,007."""
    costs = Costs(model="m", entry=1, exit=1, per_round=2, per_cycle=2, exact=False)
    many = replace(of(edge(START, "m"), limit=10_007), costs=costs, rounds=Rounds(finish=5_003, called=5_004))
    root = drawn(many)
    assert [share for share, _ in bar(root)] == [100, 0, 0]
    assert "At most 5,003 rounds can finish;" in " ".join(words(root))


def test_a_limit_that_no_round_fits_into_is_lost_as_a_whole() -> None:
    """The model may be called, and never for an answer."""
    costs = Costs(model="m", entry=2, exit=0, per_round=None, per_cycle=None)
    none = replace(of(edge(START, "m"), limit=2), costs=costs, rounds=Rounds(finish=0, called=1))
    assert bar(drawn(none)) == [(100, "#b3261e")]
    assert "0 rounds can finish; call 1 of the" in " ".join(words(drawn(none)))


@pytest.mark.parametrize(
    ("limit", "parts", "raises"), [(25, [72, 28], False), (18, [94, 6], True), (9, [44, 56], True)]
)
def test_without_rounds_the_bar_shows_the_worst_case(limit: int, parts: list[int], raises: bool) -> None:
    """18 super-steps at most: a limit of 18 is one too few, as a run must be done one before it."""
    steps = Worst(number=18, exact=True, formula="18", formula_number=18)
    worst = WorstCase(super_steps=steps, node_executions=replace(steps, number=20))
    root = drawn(replace(of(edge(START, "a"), limit=limit), worst_case=worst))
    assert [share for share, _ in bar(root)] == parts
    said = " ".join(words(root))
    assert "Worst case: 18 super-steps, 20 node executions." in said
    assert ("The worst case raises before it finishes." in said) == raises


def test_graphs_without_anything_in_them_are_drawn() -> None:
    """One that calls itself has no nodes where it stands inside itself, and one may have no edges."""
    bare = of()
    assert words(drawn(bare)).count("start") == 1
    empty = drawn(replace(bare, graph=GraphMap(name="inner", nodes=(), edges=(), again=True)))
    assert "inner" in words(empty)
    assert groups(empty, "node") == []


def test_five_hundred_nodes_are_drawn_in_two_seconds() -> None:
    """With a thousand edges and as many loops as an audit lists; texts stay apart."""
    chance = random.Random(7)
    names = [f"step_{number}" for number in range(500)]
    ways = {(names[max(0, min(499, n + chance.randint(-9, 12)))], names[n]) for n in range(500) for _ in range(2)}
    loops = tuple(Cycle(nodes=(a, b)) for a, b in sorted(ways) if a < b and (b, a) in ways)[:100]
    nodes = tuple(Node(name=name) for name in names)
    large = of(edge(START, names[0]), *(edge(*way) for way in sorted(ways)), nodes=nodes, cycles=loops)
    start = time.process_time()
    svg = render_svg(large)
    assert time.process_time() - start < 2.0
    assert len(groups(fromstring(svg), "node")) == 502


def test_texts_are_measured_rather_too_wide() -> None:
    """A width for every character; full-width ones count more, marks that combine count nothing."""
    assert text_width("model", 10) == pytest.approx(10 * (1.0 + 3 * 0.64 + 0.36))
    assert text_width("m", 10, bold=True) > text_width("m", 10)
    assert text_width("\u6f22", 10) > text_width("o", 10) == text_width("o\u0301", 10)


def test_texts_are_cut_to_a_width() -> None:
    """At a character, with an ellipsis; a text that fits is left alone."""
    assert cut("short", 10, 100) == "short"
    assert cut("rather long", 10, 40) == "rathe…"
    assert text_width(cut("x" * 99, 10, 40), 10) <= 40


def test_texts_are_wrapped_at_words() -> None:
    """A word that is longer than a line is cut."""
    assert list(wrapped("one two three", 10, 45)) == ["one two", "three"]
    assert list(wrapped("a " + "x" * 30, 10, 45)) == ["a", "xxxxx…"]
    assert list(wrapped(" ", 10, 45)) == []
