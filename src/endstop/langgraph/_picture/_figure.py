"""Draws an audit: for its graph and each subgraph a panel with what there is to know, and the graph beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, tostring

from endstop.langgraph._graph_map import END, START
from endstop.langgraph._picture._layout import lay_out
from endstop.langgraph._picture._marks import ALARM, PAPER, draw_line, draw_shape, draw_unknown
from endstop.langgraph._picture._panel import WIDTH as PANEL_WIDTH
from endstop.langgraph._picture._panel import draw_panel, limit_words
from endstop.langgraph._picture._scene import LABEL_HEIGHT, LABEL_SIZE, pill_width, scene
from endstop.langgraph._picture._svg import FONT, INK, MUTED, add, cut, say, text_width, write

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from endstop.langgraph._audits import Audit
    from endstop.langgraph._graph_map import Node
    from endstop.langgraph._picture._layers import Size
    from endstop.langgraph._picture._layout import Box, Layout, Point, Route
    from endstop.langgraph._picture._scene import Line, Scene

MARGIN = 24.0
BETWEEN = 36.0
"""Space between the panel and the graph, and between two graphs."""
NAME_SIZE = 13.0
NOTE_SIZE = 10.5
MOST_TEXT_WIDTH = 250.0
NODE_HEIGHT = 46.0
LEAST_WIDTH = 96.0
PADDING = 14.0
ENDS: Size = (72.0, 30.0)
UNKNOWN: Size = (26.0, 26.0)


def render_svg(audit: Audit) -> str:
    """The audit as an SVG document: it needs no script, no font and no other file, and shows on any background.

    The same audit gives the same text.
    """
    root = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "font-family": FONT})
    say(root, "title", f"{audit.graph.name}: what it can do under a limit of {audit.limit.super_steps:,} super-steps")
    say(root, "desc", _description(audit))
    paper = add(root, "rect", x=0, y=0, rx=10, fill=PAPER, stroke="#d5dbe1")
    width, y = 0.0, MARGIN
    scenes = [scene(part) for part in _parts(audit)]
    for number, drawn in enumerate(scenes):
        group = add(root, "g", transform=f"translate({MARGIN:g} {y:.1f})")
        own_width, height = _draw_part(group, drawn, scenes if number == 0 else ())
        width, y = max(width, own_width + 2 * MARGIN), y + height + BETWEEN
    height = y - BETWEEN + MARGIN
    for element in (root, paper):
        element.set("width", f"{width:.0f}")
        element.set("height", f"{height:.0f}")
    root.set("viewBox", f"0 0 {width:.0f} {height:.0f}")
    return tostring(root, encoding="unicode") + "\n"


def _parts(audit: Audit) -> Iterator[Audit]:
    """The audit, and those of the graphs inside it."""
    yield audit
    for inner in audit.subgraphs:
        yield from _parts(inner)


def _description(audit: Audit) -> str:
    graph = audit.graph
    sizes = f"Nodes: {len(graph.nodes)}, edges: {len(graph.edges)}, loops: {len(audit.cycles)}."
    limit = f"Limit: {audit.limit.super_steps:,} super-steps; {audit.limit.source}."
    return " ".join((sizes, limit, *limit_words(audit)))


def _draw_part(parent: Element, drawn: Scene, explained: Sequence[Scene]) -> Size:
    """One graph with its panel, and in that the legend of those to be `explained`; returns what it takes."""
    panel_height = draw_panel(add(parent, "g", class_="panel"), drawn, explained)
    nodes = {node.name: _node_size(node, drawn) for node in drawn.audit.graph.nodes}
    layout = lay_out(nodes | dict.fromkeys(drawn.unknown, UNKNOWN), [line.link for line in drawn.lines], _depth(drawn))
    left = PANEL_WIDTH + BETWEEN
    graph = add(parent, "g", class_="graph", transform=f"translate({left:g} 0)")
    for line, route in zip(drawn.lines, layout.routes, strict=True):
        _draw_line(graph, line, route)
    for node in drawn.audit.graph.nodes:
        _draw_node(graph, node, layout.boxes[node.name], drawn)
    for line in drawn.lines:
        if line.kind == "unknown":
            _draw_question(graph, line, layout.boxes[line.link.target])
    _draw_labels(graph, drawn, layout)
    return left + layout.width, max(panel_height, layout.height)


def _depth(drawn: Scene) -> dict[str, int]:
    """The start on top, the end at the bottom, and no node above the step that it first runs in.

    So those that no declared edge leads to have their place too.
    """
    nodes = drawn.audit.graph.nodes
    return {node.name: drawn.steps.get(node.name, 1) for node in nodes} | {START: 0, END: len(nodes)}


# --- nodes ------------------------------------------------------------------------------------------------------------


def _node_size(node: Node, drawn: Scene) -> Size:
    if node.kind in ("start", "end"):
        return ENDS
    name, note = _node_texts(node, drawn)
    text = max(text_width(name, NAME_SIZE, bold=True), text_width(note, NOTE_SIZE))
    return max(LEAST_WIDTH, text + 2 * PADDING), NODE_HEIGHT


def _node_texts(node: Node, drawn: Scene) -> tuple[str, str]:
    """The name and the note below it, cut to what a node has room for."""
    name = node.name
    if node.hook is not None:
        name = name.removesuffix(f".{node.hook}")
    step = drawn.steps.get(node.name)
    notes = [
        node.hook or ("" if node.kind == "node" else node.kind),
        "" if step is None else f"step {step}",
        f"max {drawn.audit.caps[node.name]}" if node.name in drawn.audit.caps else "",
        "waits" if node.deferred else "",
        "may pause" if node.pauses else "",
    ]
    note = " · ".join(filter(None, notes))
    return cut(name, NAME_SIZE, MOST_TEXT_WIDTH, bold=True), cut(note, NOTE_SIZE, MOST_TEXT_WIDTH)


def _draw_node(parent: Element, node: Node, box: Box, drawn: Scene) -> None:
    group = add(parent, "g", class_="node", data_name=node.name, data_kind=node.kind)
    alarmed = drawn.is_beyond_limit(node)
    say(group, "title", _node_detail(node, drawn))
    draw_shape(group, node.kind, box, alarmed=alarmed)
    if node.kind in ("start", "end"):
        write(group, (box.x, box.y), node.kind, size=NAME_SIZE, anchor="middle", bold=True, fill=PAPER)
        return
    name, note = _node_texts(node, drawn)
    write(group, (box.x, box.y - (8 if note else 0)), name, size=NAME_SIZE, anchor="middle", bold=True)
    if note:
        write(group, (box.x, box.y + 11), note, size=NOTE_SIZE, anchor="middle", fill=ALARM if alarmed else MUTED)


def _node_detail(node: Node, drawn: Scene) -> str:
    step = drawn.steps.get(node.name)
    calls = ", ".join(f"{call.graph.name} in {call.tool}" if call.tool else call.graph.name for call in node.calls)
    details = [
        f"{node.name}: {node.kind}",
        f"first in super-step {step}" if step else "",
        "a run that comes here raises" if drawn.is_beyond_limit(node) else "",
        f"tools: {', '.join(node.tools)}" if node.tools else "",
        f"calls {calls}" if calls else "",
        f"capped by {node.cap_source}" if node.cap_source else "",
    ]
    return "; ".join(filter(None, details))


def _draw_question(parent: Element, line: Line, box: Box) -> None:
    group = add(parent, "g", class_="unknown", data_source=line.link.source)
    say(group, "title", line.detail)
    draw_unknown(group, box)
    write(group, (box.x, box.y), "?", size=15, anchor="middle", bold=True, fill=ALARM)


# --- lines ------------------------------------------------------------------------------------------------------------


def _draw_line(parent: Element, line: Line, route: Route) -> None:
    link = line.link
    group = add(parent, "g", class_="edge", data_source=link.source, data_target=link.target, data_kind=line.kind)
    say(group, "title", line.detail)
    draw_line(group, line.kind, route, line.colour, bold=bool(line.pill))


def _draw_labels(parent: Element, drawn: Scene, layout: Layout) -> None:
    """Over all lines, so that none runs through a word."""
    for line, route in zip(drawn.lines, layout.routes, strict=True):
        if route.label is not None:
            _draw_label(parent, line, route.label)


def _draw_label(parent: Element, line: Line, box: Box) -> None:
    """The words, and below them what loops the line closes."""
    group = add(parent, "g", class_="label")
    say(group, "title", line.detail)
    add(group, "rect", x=box.left, y=box.top, width=box.width, height=box.height, rx=3, fill=PAPER)
    if line.words:
        write(group, (box.x, box.top + LABEL_HEIGHT / 2), line.words, size=LABEL_SIZE, anchor="middle", fill=INK)
    if line.pill:
        _draw_pill(group, line, (box.x, box.bottom - LABEL_HEIGHT / 2))


def _draw_pill(parent: Element, line: Line, middle: Point) -> None:
    """Filled where nothing caps a loop that the line closes, else only outlined."""
    x, y = middle
    width, height = pill_width(line.pill), LABEL_HEIGHT - 2
    open_ended = any(loop.cap is None for loop in line.closes)
    fill, ink = (line.colour, PAPER) if open_ended else (PAPER, line.colour)
    pill = add(parent, "rect", x=x - width / 2, y=y - height / 2, width=width, height=height, rx=7, fill=fill)
    pill.set("stroke", line.colour)
    write(parent, middle, line.pill, size=LABEL_SIZE, anchor="middle", bold=open_ended, fill=ink)
