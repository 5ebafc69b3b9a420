"""A drawn graph as boxes and lines: pure geometry, no colours and no words.

Lines between nearby layers run down between the rows, and back up where they close a loop of two layers. What goes
further up runs at the right side of the picture, what goes further down at the left, each in a lane of its own. A line
passes no node and no label but its own: curves stay in the space between two rows, lanes outside of them all.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from endstop.langgraph._picture._layers import Rows, Size, layers, loop_closing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from endstop.langgraph._picture._layers import Link

Point: TypeAlias = tuple[float, float]
Way: TypeAlias = Literal["down", "up", "self", "left", "right"]
"""How a line runs: between the rows, from a node to itself, or in a lane at that side."""

LONGEST_DOWN = 6
"""Layers that a line may go down between the rows. Longer ones would push the rows apart: they get a lane."""
CURVE = 30.0
"""Height in which lines bend between two rows; more where they go far to the side."""
CURVE_GROWTH = 0.08
MOST_CURVE = 80.0
CURVE_SAMPLES = 32
STUB = 9.0
"""How far a line goes straight from its node, so that an arrow head has its place."""
TRACK = 9.0
"""Distance of two lines that run side by side."""
ARM = 18.0
"""How far a node's own loop reaches out."""
LANE = 14.0
"""Width of a lane without labels, and the space beside one."""
PORT = 16.0
"""Distance of two ends of lines at one edge of a node, where there is room."""
CORNER = 9.0
"""Space at the ends of a node's edge that lines keep clear of, as corners may be round; twice that above and below."""
SIDE_ENDS = 3
"""Lines that may end at the side of the outermost node of a row; with more they go by the space above or below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle, given by its centre."""

    x: float
    y: float
    width: float
    height: float

    @property
    def left(self) -> float:
        return self.x - self.width / 2

    @property
    def right(self) -> float:
        return self.x + self.width / 2

    @property
    def top(self) -> float:
        return self.y - self.height / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height / 2

    def overlaps(self, other: Box) -> bool:
        """Whether the two have more in common than an edge."""
        beside = self.right <= other.left or other.right <= self.left
        return not beside and self.top < other.bottom and other.top < self.bottom

    def moved(self, x: float) -> Box:
        """The same box so much further right."""
        return Box(x=self.x + x, y=self.y, width=self.width, height=self.height)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One link's line: curves that pass its points upright where it runs `down` or `up`, else corners."""

    way: Way
    points: tuple[Point, ...]
    label: Box | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Every node's box, and the route of every link in their order. All of it lies between (0, 0) and the size."""

    boxes: dict[str, Box]
    routes: tuple[Route, ...]
    width: float
    height: float


class End(NamedTuple):
    """One end of a link."""

    link: int
    is_source: bool


Edge: TypeAlias = Literal["top", "bottom", "left", "right"]
"""One edge of a node's box."""


def lay_out(nodes: Mapping[str, Size], links: Sequence[Link], depth: Mapping[str, int] | None = None) -> Layout:
    """Place the nodes top-down and route the links.

    No node stands higher than its `depth`, in layers from 0. The order of `nodes` decides where there is a choice: the
    first stands on top. The same input gives the same output.
    """
    return _Drawing(nodes, links, depth or {}).layout() if nodes else Layout(boxes={}, routes=(), width=0.0, height=0.0)


class _Drawing:
    """The geometry as it becomes known: columns, ends, heights, and then the boxes and routes."""

    def __init__(self, nodes: Mapping[str, Size], links: Sequence[Link], depth: Mapping[str, int]) -> None:
        self.nodes, self.links = nodes, links
        closing = loop_closing(nodes, links)
        self.layer = layers(nodes, links, closing, depth)
        self.ways: list[Way] = [self._way(link, closes=number in closing) for number, link in enumerate(links)]
        self.loops: defaultdict[str, list[int]] = defaultdict(list)
        for number in self._going("self"):
            self.loops[links[number].source].append(number)
        self.item = {name: number for number, name in enumerate(nodes)}
        self.rows = Rows({name: self._room(name) for name in nodes}, self.layer)
        self.pieces = {number: self._thread(number) for number in self._going("down", "up")}
        self.rows.arrange(self._outwards())
        self.lane = _lanes(self._spans("left")) | _lanes(self._spans("right"))
        self.at_side = self._ends_at_side()
        self.offset = self._offsets()
        self.track = self._tracks()
        self.strip = self._strips()
        self.top, self.bottom = self._heights()
        self.boxes = {name: self._box(name) for name in nodes}
        self.lane_x = self._lane_columns("left") | self._lane_columns("right")

    def layout(self) -> Layout:
        """The finished drawing, moved to where its left end is 0."""
        routes = [self._route(number) for number in range(len(self.links))]
        labels = [route.label for route in routes if route.label]
        left = min(box.left for box in (*self.boxes.values(), *labels))
        right = max(box.right for box in (*self.boxes.values(), *labels))
        columns = [x for route in routes for x, _ in route.points]
        left, right = min([left, *columns]), max([right, *columns])
        return Layout(
            boxes={name: box.moved(-left) for name, box in self.boxes.items()},
            routes=tuple(
                Route(
                    way=route.way,
                    points=tuple((x - left, y) for x, y in route.points),
                    label=route.label and route.label.moved(-left),
                )
                for route in routes
            ),
            width=right - left,
            height=self.bottom[-1] + self.strip[len(self.bottom) - 1],
        )

    # --- ways and columns ---------------------------------------------------------------------------------------------

    def _way(self, link: Link, *, closes: bool) -> Way:
        span = self.layer[link.target] - self.layer[link.source]
        if link.source == link.target:
            return "self"
        if closes:
            return "up" if span == -1 else "right"
        return "down" if span <= LONGEST_DOWN else "left"

    def _going(self, *ways: Way) -> Iterator[int]:
        return (number for number, way in enumerate(self.ways) if way in ways)

    def _room(self, name: str) -> Size:
        """A node with the room for its own loops at the right, and as much at the left to keep it in the middle."""
        width, height = self.nodes[name]
        labels = [self.links[number].label for number in self.loops[name]]
        beside = max((ARM + TRACK + label[0] for label in labels), default=0.0)
        return width + 2 * beside, max(height, sum(map(_loop_height, labels)))

    def _thread(self, number: int) -> list[int]:
        """The pieces of a line in the rows that it passes, the top one first. Its label is next to its source."""
        link, up = self.links[number], self.ways[number] == "up"
        upper, lower = (link.target, link.source) if up else (link.source, link.target)
        return self.rows.thread(self.item[upper], self.item[lower], link.label[0])

    def _spans(self, side: Way) -> dict[int, tuple[int, int]]:
        """The layers between which each line of the side runs, the upper one first."""
        ends = {number: self._layers_of(self.links[number]) for number in self._going(side)}
        return {number: (min(layers), max(layers)) for number, layers in ends.items()}

    def _outwards(self) -> list[tuple[int, int]]:
        """The nodes that lines leave to the side, with -1 for the left side and 1 for the right."""
        sides = [
            (self.links[number], -1 if self.ways[number] == "left" else 1) for number in self._going("left", "right")
        ]
        return [(self.item[name], side) for link, side in sides for name in (link.source, link.target)]

    def _layers_of(self, link: Link) -> tuple[int, int]:
        return self.layer[link.source], self.layer[link.target]

    # --- the ends of lines at the nodes -------------------------------------------------------------------------------

    def _ends_at_side(self) -> set[End]:
        """The ends that go straight to their lane, as nothing stands between."""
        found: defaultdict[tuple[str, Way], list[End]] = defaultdict(list)
        for number in self.lane:
            found[self.links[number].source, self.ways[number]].append(End(number, True))
            found[self.links[number].target, self.ways[number]].append(End(number, False))
        at_side: set[End] = set()
        for (name, side), ends in found.items():
            row = self.rows.order[2 * self.layer[name]]
            outermost = row[0 if side == "left" else -1] == self.item[name]
            if outermost and len(ends) <= SIDE_ENDS and not self.loops[name]:
                at_side.update(ends)
        return at_side

    def _edge(self, end: End) -> Edge:
        """The edge of the node that a line ends at."""
        way = self.ways[end.link]
        if end in self.at_side:
            return "left" if way == "left" else "right"
        return "top" if end.is_source == (way == "up") else "bottom"

    def _offsets(self) -> dict[End, float]:
        """How far each end is from the middle of its edge, to the right or down."""
        edges: defaultdict[tuple[str, Edge], list[End]] = defaultdict(list)
        for number in self._going("down", "up", "left", "right"):
            for end, name in (
                (End(number, True), self.links[number].source),
                (End(number, False), self.links[number].target),
            ):
                edges[name, self._edge(end)].append(end)
        offset: dict[End, float] = {}
        for (name, edge), ends in edges.items():
            width, height = self.nodes[name]
            room = (height - 2 * CORNER) if edge in ("left", "right") else (width - 4 * CORNER)
            pitch = min(PORT, room / max(len(ends) - 1, 1))
            for place, end in enumerate(sorted(ends, key=self._end_order)):
                offset[end] = (place - (len(ends) - 1) / 2) * pitch
        return offset

    def _end_order(self, end: End) -> tuple[int, float]:
        """Sorts the ends at one edge to where lines cross least: lanes outside of the rows, and none inside another."""
        number, is_source = end
        way = self.ways[number]
        if number in self.pieces:
            near_top = is_source == (way == "down")
            return 0, self.rows.x[self.pieces[number][0 if near_top else -1]]
        lane = self.lane[number]
        if end in self.at_side:
            rising = is_source == (way == "right")
            return (1 if is_source else -1), lane if rising else -lane
        return (1 if way == "right" else -1), -lane

    def _tracks(self) -> dict[End, int]:
        """Where lines run sideways to their lane: how many others lie between theirs and the row of nodes."""
        strips: defaultdict[tuple[int, bool], list[End]] = defaultdict(list)
        for number in self.lane:
            for end, layer in zip(
                (End(number, True), End(number, False)), self._layers_of(self.links[number]), strict=True
            ):
                if end not in self.at_side:
                    strips[layer, end.is_source].append(end)
        track: dict[End, int] = {}
        for ends in strips.values():
            ends.sort(key=lambda end: (self.ways[end.link], self._nesting(end.link)))
            track |= {end: place for place, end in enumerate(ends)}
        return track

    def _nesting(self, number: int) -> int:
        """Ascending, the order in which the lanes of a side must lie from a row of nodes on not to cross."""
        return self.lane[number] if self.ways[number] == "right" else -self.lane[number]

    def _strips(self) -> defaultdict[int, float]:
        """The height that lines take below each row to run sideways; -1 is above the first one."""
        strip: defaultdict[int, float] = defaultdict(float)
        for end, track in self.track.items():
            layer = self._layers_of(self.links[end.link])[0 if end.is_source else 1]
            row = 2 * layer if end.is_source else 2 * layer - 1
            strip[row] = max(strip[row], (track + 2) * TRACK)
        return strip

    # --- heights and boxes --------------------------------------------------------------------------------------------

    def _heights(self) -> tuple[list[float], list[float]]:
        """Top and bottom of every row."""
        height = [0.0] * len(self.rows.order)
        for name in self.nodes:
            row = 2 * self.layer[name]
            height[row] = max(height[row], self._room(name)[1])
        for number, pieces in self.pieces.items():
            row = self.rows.row[pieces[0]]
            height[row] = max(height[row], self.links[number].label[1])
        y = self.strip[-1]
        top: list[float] = []
        bottom: list[float] = []
        for row, own in enumerate(height):
            top.append(y)
            bottom.append(y + own)
            y += own + self.strip[row] + self._curve(row)
        return top, bottom

    def _curve(self, row: int) -> float:
        """The height in which lines bend from this row to the next."""
        x = self.rows.x
        farthest = max(
            (abs(x[item] - x[low]) for item in self.rows.order[row] for low in self.rows.below[item]), default=0
        )
        return min(CURVE + CURVE_GROWTH * farthest, MOST_CURVE)

    def _box(self, name: str) -> Box:
        row = 2 * self.layer[name]
        middle = (self.top[row] + self.bottom[row]) / 2
        return Box(x=self.rows.x[self.item[name]], y=middle, width=self.nodes[name][0], height=self._room(name)[1])

    def _lane_columns(self, side: Literal["left", "right"]) -> dict[int, float]:
        """The x of each line that has a lane at this side, from the nodes on outwards."""
        width: defaultdict[int, float] = defaultdict(float)
        for number in self._going(side):
            width[self.lane[number]] = max(width[self.lane[number]], self.links[number].label[0])
        outwards = 1 if side == "right" else -1
        edge = max(outwards * x + own / 2 for x, own in zip(self.rows.x, self.rows.width, strict=True)) + LANE
        middle: list[float] = []
        for lane in range(len(width)):
            middle.append(outwards * (edge + width[lane] / 2))
            edge += width[lane] + LANE
        return {number: middle[self.lane[number]] for number in self._going(side)}

    # --- routes -------------------------------------------------------------------------------------------------------

    def _route(self, number: int) -> Route:
        if self.ways[number] == "self":
            return self._loop_route(number)
        return self._row_route(number) if number in self.pieces else self._lane_route(number)

    def _row_route(self, number: int) -> Route:
        up = self.ways[number] == "up"
        pieces = self.pieces[number]
        upper, lower = self._port(End(number, not up)), self._port(End(number, up))
        first, last = self.rows.row[pieces[0]] - 1, self.rows.row[pieces[-1]] + 1
        ending = (lower[0], self.top[last] - STUB)
        points = [upper, (upper[0], self.bottom[first] + STUB)]
        for piece, following in zip(pieces, [*pieces[1:], None], strict=True):
            row, x = self.rows.row[piece], self.rows.x[piece]
            goal = ending if following is None else (self.rows.x[following], self.top[row + 1])
            if row % 2 == 0 or self.rows.width[piece] or not self._is_free(row, points[-1], goal):
                points += [(x, self.top[row]), (x, self.bottom[row])]
        points += [ending, lower]
        label = self._label(number, self.rows.x[pieces[0]], self.rows.row[pieces[0]])
        return Route(way=self.ways[number], points=_distinct(reversed(points) if up else points), label=label)

    def _is_free(self, row: int, start: Point, goal: Point) -> bool:
        """Whether a line that bends once, over this row, passes no label in it."""
        (x0, y0), (x1, y1) = start, goal
        shares = [number / CURVE_SAMPLES for number in range(CURVE_SAMPLES + 1)]
        down = {share: y0 + (y1 - y0) * (1.5 * share - 1.5 * share**2 + share**3) for share in shares}
        enters = max(share for share, y in down.items() if y <= self.top[row])
        leaves = min(share for share, y in down.items() if y >= self.bottom[row])
        left, right = sorted(x0 + (x1 - x0) * (3 * share**2 - 2 * share**3) for share in (enters, leaves))
        labels = ((self.rows.x[item], self.rows.width[item] / 2) for item in self.rows.order[row])
        return not any(half and left < x + half and x - half < right for x, half in labels)

    def _lane_route(self, number: int) -> Route:
        x = self.lane_x[number]
        start, end = self._port(End(number, True)), self._port(End(number, False))
        leave, enter = self._leg(End(number, True), start[1]), self._leg(End(number, False), end[1])
        points = [start, (start[0], leave), (x, leave), (x, enter), (end[0], enter), end]
        upper, lower = sorted(self._layers_of(self.links[number]))
        return Route(
            way=self.ways[number], points=_distinct(points), label=self._label(number, x, (upper + lower) // 2 * 2 + 1)
        )

    def _leg(self, end: End, at_side: float) -> float:
        """The y at which the line runs from its node to its lane."""
        if end in self.at_side:
            return at_side
        distance = (self.track[end] + 1.5) * TRACK
        row = 2 * self._layers_of(self.links[end.link])[0 if end.is_source else 1]
        return self.bottom[row] + distance if end.is_source else self.top[row] - distance

    def _loop_route(self, number: int) -> Route:
        """From the node's right edge and back to it; the loops of one node lie below each other."""
        name = self.links[number].source
        box, loops = self.boxes[name], self.loops[name]
        heights = [_loop_height(self.links[other].label) for other in loops]
        place = loops.index(number)
        y = box.y - sum(heights) / 2 + sum(heights[:place]) + heights[place] / 2
        x, reach = box.right + ARM, ARM / 3
        points = ((box.right, y + reach), (x, y + reach), (x, y - reach), (box.right, y - reach))
        width, height = self.links[number].label
        label = Box(x=x + TRACK / 2 + width / 2, y=y, width=width, height=height) if width else None
        return Route(way="self", points=points, label=label)

    def _port(self, end: End) -> Point:
        link = self.links[end.link]
        box, offset = self.boxes[link.source if end.is_source else link.target], self.offset[end]
        edge = self._edge(end)
        if edge in ("top", "bottom"):
            return box.x + offset, box.top if edge == "top" else box.bottom
        return box.left if edge == "left" else box.right, box.y + offset

    def _label(self, number: int, x: float, row: int) -> Box | None:
        width, height = self.links[number].label
        if not width:
            return None
        return Box(x=x, y=(self.top[row] + self.bottom[row]) / 2, width=width, height=height)


def _lanes(spans: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    """A lane for each line: the innermost that is free where it runs, short lines first."""
    lanes: list[list[tuple[int, int]]] = []
    lane: dict[int, int] = {}
    for number, (upper, lower) in sorted(spans.items(), key=lambda span: (span[1][1] - span[1][0], span)):
        free = (n for n, taken in enumerate(lanes) if all(lower < other[0] or other[1] < upper for other in taken))
        if (place := next(free, len(lanes))) == len(lanes):
            lanes.append([])
        lanes[place].append((upper, lower))
        lane[number] = place
    return lane


def _loop_height(label: Size) -> float:
    """What a node's own loop takes of its right edge."""
    return max(label[1], ARM) + TRACK / 2


def _distinct(points: Iterable[Point]) -> tuple[Point, ...]:
    """The points without those that repeat the one before."""
    kept: list[Point] = []
    for point in points:
        if not kept or point != kept[-1]:
            kept.append(point)
    return tuple(kept)
