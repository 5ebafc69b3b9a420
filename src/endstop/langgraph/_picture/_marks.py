"""How nodes and lines look: shape and colour by kind, so that they are told apart in colour, in grey, and in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from endstop.langgraph._picture._layout import Box
from endstop.langgraph._picture._svg import INK, add, corners, curve

if TYPE_CHECKING:
    from collections.abc import Sequence
    from xml.etree.ElementTree import Element

    from endstop.langgraph._graph_map import NodeKind
    from endstop.langgraph._picture._layout import Point, Route
    from endstop.langgraph._picture._scene import LineKind

PAPER = "#ffffff"
ALARM = "#b3261e"
FILL: dict[NodeKind, str] = {
    "start": INK,
    "end": INK,
    "model": "#cfe5f5",
    "tools": "#fbe3bd",
    "hook": "#e9ecef",
    "subgraph": "#ecd9e6",
    "node": "#ffffff",
}
STROKE: dict[NodeKind, str] = {
    "start": INK,
    "end": INK,
    "model": "#0060a8",
    "tools": "#8a5a00",
    "hook": "#7b8794",
    "subgraph": "#8f3f80",
    "node": "#3e4c59",
}
NODE_KINDS: dict[NodeKind, str] = {
    "model": "calls a model",
    "tools": "runs tools",
    "hook": "hook of a middleware",
    "subgraph": "a graph itself",
    "node": "any other node",
}
"""What each kind of node means, in the words of the legend; start and end say it themselves."""
DASHES: dict[LineKind, str] = {
    "branch": "6 4",
    "command": "9 3 2 3",
    "jump": "2 3",
    "unknown": "2 4",
}
ARROW_LENGTH = 9.0
ARROW_WIDTH = 8.0
BEVEL = 9.0
"""How much is cut from the corners of a model's octagon."""


RADIUS: dict[NodeKind, float] = {"start": 99.0, "end": 99.0, "hook": 16.0, "node": 7.0}


def draw_shape(parent: Element, kind: NodeKind, box: Box, *, alarmed: bool = False) -> None:
    """A node's outline. An alarmed one is beyond the limit."""
    look: dict[str, str | float] = {
        "fill": FILL[kind],
        "stroke": ALARM if alarmed else STROKE[kind],
        "stroke_width": 2.0 if alarmed else 1.5,
    }
    if alarmed:
        look["stroke_dasharray"] = "5 3"
    if kind == "model":
        add(parent, "polygon", points=_octagon(box), stroke_linejoin="round", **look)
        return
    _rectangle(parent, box, RADIUS.get(kind, 2.0), look)
    if kind == "tools":
        for x in (box.left + 6, box.right - 6):
            add(parent, "line", x1=x, y1=box.top, x2=x, y2=box.bottom, stroke=look["stroke"], stroke_width=1.2)
    elif kind == "subgraph":
        _rectangle(parent, _inset(box, 4.0), 0.0, {"fill": "none", "stroke": look["stroke"], "stroke_width": 1.0})
    elif kind == "end":
        _rectangle(parent, _inset(box, 3.0), RADIUS[kind], {"fill": "none", "stroke": PAPER, "stroke_width": 1.2})


def draw_unknown(parent: Element, box: Box) -> None:
    """The question mark's circle."""
    look: dict[str, str | float] = {"fill": PAPER, "stroke": ALARM, "stroke_width": 1.5, "stroke_dasharray": "3 3"}
    _rectangle(parent, box, box.height / 2, look)


def draw_line(parent: Element, kind: LineKind, route: Route, colour: str, *, bold: bool = False) -> None:
    """A line with its arrow head, which says the direction; the dashes say the kind."""
    tip, base = route.points[-1], _before_tip(route)
    points = (*route.points[:-1], base)
    path = curve(points) if route.way in ("down", "up") else corners(points)
    width = 2.2 if bold else 1.5
    look = {"stroke_dasharray": DASHES[kind]} if kind in DASHES else {}
    if kind == "send":
        add(parent, "path", d=path, fill="none", stroke=colour, stroke_width=width + 3.0)
        add(parent, "path", d=path, fill="none", stroke=PAPER, stroke_width=width)
    else:
        add(parent, "path", d=path, fill="none", stroke=colour, stroke_width=width, **look)
    dx, dy = (tip[0] - base[0]) / ARROW_LENGTH, (tip[1] - base[1]) / ARROW_LENGTH
    half = ARROW_WIDTH / 2
    head = (tip, (base[0] - dy * half, base[1] + dx * half), (base[0] + dy * half, base[1] - dx * half))
    add(parent, "polygon", points=_points(head), fill=colour)
    if kind == "join":
        bar = [(base[0] - dy * 6, base[1] + dx * 6), (base[0] + dy * 6, base[1] - dx * 6)]
        add(parent, "polyline", points=_points(bar), stroke=colour, stroke_width=2.5)


def _before_tip(route: Route) -> Point:
    """Where the arrow head starts: curves end upright, corners along an axis."""
    (x0, y0), (x1, y1) = route.points[-2:]
    if x0 == x1 or route.way in ("down", "up"):
        return x1, y1 - ARROW_LENGTH if y1 > y0 else y1 + ARROW_LENGTH
    return (x1 - ARROW_LENGTH if x1 > x0 else x1 + ARROW_LENGTH), y1


def _rectangle(parent: Element, box: Box, radius: float, look: dict[str, str | float]) -> None:
    add(
        parent,
        "rect",
        x=box.left,
        y=box.top,
        width=box.width,
        height=box.height,
        rx=min(radius, box.height / 2),
        **look,
    )


def _inset(box: Box, by: float) -> Box:
    return Box(x=box.x, y=box.y, width=box.width - 2 * by, height=box.height - 2 * by)


def _octagon(box: Box) -> str:
    x, y, bevel = box.width / 2, box.height / 2, min(BEVEL, box.height / 4)
    quarter = [(x - bevel, -y), (x, bevel - y), (x, y - bevel), (x - bevel, y)]
    other = [(-dx, -dy) for dx, dy in quarter]
    return _points([(box.x + dx, box.y + dy) for dx, dy in (*quarter, *other)])


def _points(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
