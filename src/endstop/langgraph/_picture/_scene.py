"""What a picture shows of an audit, before it has a place: the lines, the loops with their numbers, and the steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from endstop.langgraph._audits import Audit, Cycle
from endstop.langgraph._graph_map import START
from endstop.langgraph._picture._layers import Link, loop_closing
from endstop.langgraph._picture._svg import INK, cut, text_width
from endstop.langgraph._wiring import arrivals, wiring

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from endstop.langgraph._graph_map import GraphMap, Node

LineKind: TypeAlias = Literal["edge", "join", "branch", "command", "send", "jump", "unknown"]

LINE_KINDS: dict[LineKind, str] = {
    "edge": "always taken",
    "join": "waits for all its sources",
    "branch": "one of a branch",
    "command": "a node's own choice",
    "send": "parallel tasks",
    "jump": "when a middleware cuts the run short",
    "unknown": "goes to any node: not declared",
}
"""What each kind of line means, in the words of the legend."""
LISTED_LOOPS = 8
"""Loops that have a number and a colour of their own. The panel tells how many more there are."""
LOOP_COLOURS = ("#b84300", "#0060a8", "#007a5a", "#8f3f80", "#7d5a00", "#3d3d9e")
"""Told apart by people who see few colours, in grey by the number beside it; white text on each has contrast 4.5."""
TIMES = "\N{MULTIPLICATION SIGN}"
GREY = "#7b8794"
LABEL_SIZE = 10.5
LABEL_HEIGHT = 17.0
LABEL_GAP = 4.0
MOST_LABEL_WIDTH = 130.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A cycle of the graph with its number. `cap` is what bounds it, in words; `None` where only the limit does."""

    number: int
    cycle: Cycle
    cap: str | None

    @property
    def colour(self) -> str:
        return LOOP_COLOURS[(self.number - 1) % len(LOOP_COLOURS)]

    @property
    def cost(self) -> int:
        """Super-steps of one time round."""
        return len(self.cycle.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One arrow to draw. `words` are written on it; `closes` are the loops that it closes, `pill` what is said of them.

    `detail` is what is shown on hovering.
    """

    link: Link
    kind: LineKind
    words: str
    closes: tuple[Loop, ...]
    pill: str
    colour: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """All that is drawn of one graph.

    `steps` are the super-steps in which nodes can first run. `unknown` are the names of the question marks that lines
    lead to.
    """

    audit: Audit
    steps: Mapping[str, int]
    loops: tuple[Loop, ...]
    lines: tuple[Line, ...]
    unknown: tuple[str, ...]

    def is_beyond_limit(self, node: Node) -> bool:
        """Whether a run that comes here cannot finish any more: it must be done one step before the limit."""
        is_run = node.kind not in ("start", "end")
        return is_run and self.steps.get(node.name, 0) >= self.audit.limit.super_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrow:
    """A line before its loops are known."""

    source: str
    target: str
    kind: LineKind
    words: str
    detail: str


def scene(audit: Audit) -> Scene:
    """What to draw of this audit's own graph; its subgraphs are scenes of their own."""
    loops = tuple(
        Loop(number=number, cycle=cycle, cap=_cap(cycle, audit.caps)) for number, cycle in enumerate(audit.cycles, 1)
    )
    arrows = [*_declared(audit), *_undeclared(audit.graph)]
    unknown = tuple(arrow.target for arrow in arrows if arrow.kind == "unknown")
    names = [*(node.name for node in audit.graph.nodes), *unknown]
    closing = loop_closing(names, [Link(source=arrow.source, target=arrow.target) for arrow in arrows])
    closes, passes = _loops_of(arrows, closing, loops)
    return Scene(
        audit=audit,
        steps=arrivals(wiring(audit.graph, jumps=False), START),
        loops=loops,
        lines=tuple(_line(arrow, closes[number], passes[number]) for number, arrow in enumerate(arrows)),
        unknown=unknown,
    )


def _cap(cycle: Cycle, caps: Mapping[str, int]) -> str | None:
    return f"max {min(caps[place] for place in cycle.caps)}" if cycle.caps else None


def _declared(audit: Audit) -> Iterator[_Arrow]:
    for edge in audit.graph.edges:
        words = edge.label or ""
        if edge.kind == "send":
            words = f"{words} {TIMES}{audit.fan_out.get(edge.target, 'N')}".strip()
        detail = f"{edge.source} → {edge.target} ({LINE_KINDS[edge.kind]})"
        yield _Arrow(source=edge.source, target=edge.target, kind=edge.kind, words=words, detail=detail)


def _undeclared(graph: GraphMap) -> Iterator[_Arrow]:
    for number, unknown in enumerate(graph.unknown):
        where = "a node of the graph around it" if unknown.kind == "parent" else "any node"
        by = f"{unknown.kind} {unknown.name}".strip()
        detail = f"{unknown.node} → {where}: the {by} does not say where it goes"
        # No node of LangGraph can have this name, so that it can't be one of the graph's.
        target = f"|?{number}"
        yield _Arrow(source=unknown.node, target=target, kind="unknown", words=unknown.name, detail=detail)


def _loops_of(
    arrows: Sequence[_Arrow], closing: Collection[int], loops: Sequence[Loop]
) -> tuple[defaultdict[int, list[Loop]], defaultdict[int, list[Loop]]]:
    """The loops that each arrow closes, and those that it is part of. Of parallel arrows the first stands for all."""
    first: dict[tuple[str, str], int] = {}
    anywhere: dict[str, int] = {}
    for number, arrow in enumerate(arrows):
        first.setdefault((arrow.source, arrow.target), number)
        if arrow.kind == "unknown":
            anywhere.setdefault(arrow.source, number)
    closes: defaultdict[int, list[Loop]] = defaultdict(list)
    passes: defaultdict[int, list[Loop]] = defaultdict(list)
    for loop in loops:
        nodes = loop.cycle.nodes
        ways = [
            first.get((name, to), anywhere.get(name)) for name, to in zip(nodes, (*nodes[1:], nodes[0]), strict=True)
        ]
        known = [number for number in ways if number is not None]
        for number in known:
            passes[number].append(loop)
        for number in [number for number in known if number in closing or arrows[number].kind == "unknown"][:1]:
            closes[number].append(loop)
    return closes, passes


def _line(arrow: _Arrow, closes: Sequence[Loop], passes: Sequence[Loop]) -> Line:
    words, pill = cut(arrow.words, LABEL_SIZE, MOST_LABEL_WIDTH), _pill(closes)
    label = (max(_words_width(words), pill_width(pill)), LABEL_HEIGHT * (bool(words) + bool(pill)))
    numbers = ", ".join(str(loop.number) for loop in passes)
    return Line(
        link=Link(source=arrow.source, target=arrow.target, label=label),
        kind=arrow.kind,
        words=words,
        closes=tuple(closes),
        pill=pill,
        colour=_colour(arrow, closes, passes),
        detail=f"{arrow.detail}; loop {numbers}" if numbers else arrow.detail,
    )


def _colour(arrow: _Arrow, closes: Sequence[Loop], passes: Sequence[Loop]) -> str:
    """That of the loop which the line closes, or of the only one that it is part of."""
    shown = closes[:1] or (passes if len(passes) == 1 else [])
    if shown and shown[0].number <= LISTED_LOOPS:
        return shown[0].colour
    return GREY if arrow.kind == "jump" else INK


def _words_width(words: str) -> float:
    return text_width(words, LABEL_SIZE) + 2 * LABEL_GAP if words else 0.0


def pill_width(pill: str) -> float:
    """Width of the pill that says which loops a line closes, zero where there is none."""
    return text_width(pill, LABEL_SIZE, bold=True) + 14.0 if pill else 0.0


def _pill(closes: Sequence[Loop]) -> str:
    """The numbers of the loops, and the loosest of their caps."""
    listed = [str(loop.number) for loop in closes if loop.number <= LISTED_LOOPS]
    if not listed:
        return ""
    more = f" +{len(closes) - 2}" if len(closes) > 3 else ""
    numbers = ", ".join(listed[:2] if more else listed)
    caps = {loop.cap for loop in closes}
    cap = "no cap" if None in caps else caps.pop() if len(caps) == 1 else "capped"
    return f"loop{'s' if len(closes) > 1 else ''} {numbers}{more} · {cap}"
