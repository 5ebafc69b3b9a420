"""Where the nodes of a drawn graph stand: top-down in layers, few crossings, straight where it can be.

Pure: names, sizes and links go in, rows of items with their x positions come out. The steps are the usual ones of
layered drawing: turn the links that close a loop, put each node below all that lead to it, order each row by what its
items are linked with, and then move the items to where their links are straight.
"""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

Size: TypeAlias = tuple[float, float]
"""Width and height, in pixels of the picture."""

NODE_GAP = 28.0
"""Least space between two nodes of a row."""
LINE_GAP = 14.0
"""Least space beside a line that passes a row."""
ORDER_SWEEPS = 6
POSITION_SWEEPS = 7
"""An odd number, so that the last one goes down: what has one line from above is straight below it."""
ISOLATED_PER_ROW = 6
"""Nodes without any link are spread over the rows, this many to each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One arrow to draw. `label` is the size of what is written on it, zero where nothing is."""

    source: str
    target: str
    label: Size = (0.0, 0.0)


def loop_closing(nodes: Collection[str], links: Sequence[Link]) -> frozenset[int]:
    """The links that lead back to a node on the way to them, seen from the first node, then from those not reached."""
    leaving: dict[str, list[tuple[int, str]]] = {name: [] for name in nodes}
    for number, link in enumerate(links):
        leaving[link.source].append((number, link.target))
    closing: set[int] = set()
    seen: set[str] = set()
    for root in nodes:
        if root in seen:
            continue
        seen.add(root)
        path = {root: iter(leaving[root])}
        while path:
            name = next(reversed(path))
            number, target = next(path[name], (-1, ""))
            if number < 0:
                del path[name]
            elif target in path:
                closing.add(number)
            elif target not in seen:
                seen.add(target)
                path[target] = iter(leaving[target])
    return frozenset(closing)


def layers(
    nodes: Collection[str], links: Sequence[Link], closing: Collection[int], depth: Mapping[str, int]
) -> dict[str, int]:
    """Each node's layer: one below the lowest of those that lead to it, and at least its depth.

    The `closing` links do not count. No layer is left without a node.
    """
    leaving: dict[str, list[str]] = {name: [] for name in nodes}
    waits = dict.fromkeys(nodes, 0)
    for number, link in enumerate(links):
        if number not in closing:
            leaving[link.source].append(link.target)
            waits[link.target] += 1
    linked = {end for link in links for end in (link.source, link.target)}
    layer = {name: depth.get(name, 0) for name in nodes}
    for place, name in enumerate(name for name in nodes if name not in linked):
        layer[name] = max(layer[name], place // ISOLATED_PER_ROW)
    ready = [name for name in nodes if not waits[name]]
    for name in ready:
        for target in leaving[name]:
            layer[target] = max(layer[target], layer[name] + 1)
            waits[target] -= 1
            if not waits[target]:
                ready.append(target)
    dense = {layer: number for number, layer in enumerate(sorted(set(layer.values())))}
    return {name: dense[layer[name]] for name in nodes}


class Rows:
    """The rows of the drawing. Nodes stand in the even ones; in the odd ones lines have their labels.

    An item is a node or a piece of a line that passes a row; the items of `nodes` come first and in their order.
    """

    __slots__ = ("above", "below", "count", "order", "row", "width", "x")

    def __init__(self, nodes: Mapping[str, Size], layer: Mapping[str, int]) -> None:
        self.count = len(nodes)
        self.width = [width for width, _ in nodes.values()]
        self.row = [2 * layer[name] for name in nodes]
        self.above: list[list[int]] = [[] for _ in nodes]
        self.below: list[list[int]] = [[] for _ in nodes]
        self.order: list[list[int]] = [[] for _ in range(max(self.row, default=-1) + 1)]
        self.x: list[float] = []

    def thread(self, upper: int, lower: int, label_width: float) -> list[int]:
        """Lead a line from a node down to another: its pieces in the rows between, the label on the first."""
        pieces: list[int] = []
        for row in range(self.row[upper] + 1, self.row[lower]):
            before, piece = pieces[-1] if pieces else upper, len(self.row)
            self.row.append(row)
            self.width.append(0.0 if pieces else label_width)
            self.above.append([before])
            self.below.append([])
            self.below[before].append(piece)
            pieces.append(piece)
        self.below[pieces[-1]].append(lower)
        self.above[lower].append(pieces[-1])
        return pieces

    def arrange(self, outwards: Iterable[tuple[int, int]]) -> None:
        """Order the rows and give every item its x, the centre of it.

        `outwards` are the nodes that lines leave to a side, -1 or 1: of the two mirror images that one is taken in
        which these lines pass fewer others.
        """
        self._order_first()
        best, fewest = [list(row) for row in self.order], self.crossings()
        for sweep in range(ORDER_SWEEPS):
            if not fewest:
                break
            self._order_by(self.below if sweep % 2 else self.above, upwards=bool(sweep % 2))
            if (now := self.crossings()) < fewest:
                best, fewest = [list(row) for row in self.order], now
        self.order = best
        place = self._places()
        if sum(side * (2 * place[item] + 1 - len(self.order[self.row[item]])) for item, side in outwards) < 0:
            self.order = [row[::-1] for row in best]
        self._position()

    def crossings(self) -> int:
        """How often two lines cross."""
        place = self._places()
        total = 0
        for row in self.order[:-1]:
            seen: list[int] = []
            for item in row:
                ends = sorted(place[lower] for lower in self.below[item])
                total += sum(len(seen) - bisect(seen, end) for end in ends)
                for end in ends:
                    seen.insert(bisect(seen, end), end)
        return total

    def _places(self) -> list[int]:
        place = [0] * len(self.row)
        for row in self.order:
            for number, item in enumerate(row):
                place[item] = number
        return place

    def _order_first(self) -> None:
        """Depth first from the top, so that what belongs together stands together."""
        seen: set[int] = set()
        for root in range(self.count):
            stack = [root]
            while stack:
                item = stack.pop()
                if item not in seen:
                    seen.add(item)
                    self.order[self.row[item]].append(item)
                    stack += reversed(self.below[item])

    def _order_by(self, near: list[list[int]], *, upwards: bool) -> None:
        place: list[float] = list(map(float, self._places()))
        for row in reversed(self.order) if upwards else self.order:
            middle = {
                item: sum(place[other] for other in near[item]) / len(near[item]) if near[item] else place[item]
                for item in row
            }
            row.sort(key=middle.__getitem__)
            for number, item in enumerate(row):
                place[item] = number

    def _position(self) -> None:
        self.x = [0.0] * len(self.row)
        offsets = [self._offsets(row) for row in self.order]
        for row, starts in zip(self.order, offsets, strict=True):
            for item, start in zip(row, starts, strict=True):
                self.x[item] = start - starts[-1] / 2
        for sweep in range(POSITION_SWEEPS):
            near = self.below if sweep % 2 else self.above
            numbers = range(len(self.order))
            for number in reversed(numbers) if sweep % 2 else numbers:
                row = self.order[number]
                wishes = [self._wish(item, near[item]) for item in row]
                for item, x in zip(row, _spread(wishes, offsets[number]), strict=True):
                    self.x[item] = x

    def _offsets(self, row: list[int]) -> list[float]:
        """How far right of the row's first item each must at least be."""
        starts = [0.0] * len(row)
        for number in range(1, len(row)):
            left, right = row[number - 1], row[number]
            gap = NODE_GAP if left < self.count and right < self.count else LINE_GAP
            starts[number] = starts[number - 1] + (self.width[left] + self.width[right]) / 2 + gap
        return starts

    def _wish(self, item: int, near: list[int]) -> tuple[float, float]:
        """Where an item's lines at one side would have it, and how much they do."""
        if not near:
            return self.x[item], 0.1
        return sum(self.x[other] for other in near) / len(near), float(len(near))


def _spread(wishes: list[tuple[float, float]], offsets: list[float]) -> list[float]:
    """The positions nearest to the wishes, by weighted squares, that keep the order and the distances.

    With the distances taken off it is the nearest rising sequence: what would fall is pooled at its mean.
    """
    pools: list[tuple[float, float, int]] = []
    for (wish, weight), offset in zip(wishes, offsets, strict=True):
        mean, total, size = wish - offset, weight, 1
        while pools and pools[-1][0] > mean:
            before, other, count = pools.pop()
            mean = (mean * total + before * other) / (total + other)
            total, size = total + other, size + count
        pools.append((mean, total, size))
    means = [mean for mean, _, size in pools for _ in range(size)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]
