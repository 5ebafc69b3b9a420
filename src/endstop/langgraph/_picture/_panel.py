"""The panel beside a drawn graph: title, limit, loops, findings and legend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from endstop.langgraph._picture._layout import Box, Route
from endstop.langgraph._picture._marks import ALARM, NODE_KINDS, PAPER, draw_line, draw_shape
from endstop.langgraph._picture._scene import GREY, LINE_KINDS, LISTED_LOOPS
from endstop.langgraph._picture._svg import INK, MUTED, add, cut, say, wrapped, write

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from xml.etree.ElementTree import Element

    from endstop.langgraph._audits import Audit, Severity
    from endstop.langgraph._graph_map import GraphMap
    from endstop.langgraph._picture._scene import Loop, Scene

WIDTH = 330.0
PADDING = 16.0
INNER = WIDTH - 2 * PADDING
SMALL = 11.5
LINE = 16.0
LISTED_FINDINGS = 8
MOST_CELLS = 60
"""Super-steps that the bar shows one by one; above, it shows only their share."""
FITS, FITS_TOO, LEAVES, UNUSED, LOST = "#9cc7e6", "#cfe5f5", "#b9c4ce", "#ffffff", ALARM
BAR_HEIGHT = 14.0


class Panel:
    """Written from the top down; `y` is how far it has come."""

    __slots__ = ("parent", "y")

    def __init__(self, parent: Element) -> None:
        self.parent = parent
        self.y = PADDING

    def line(self, words: str, *, size: float = SMALL, bold: bool = False, fill: str = INK, indent: float = 0) -> None:
        """One line, cut where it is too long; the whole is then shown on hovering."""
        shown = cut(words, size, INNER - indent, bold=bold)
        parent = add(self.parent, "g")
        if shown != words:
            say(parent, "title", words)
        write(parent, (PADDING + indent, self.y + size * 0.7), shown, size=size, bold=bold, fill=fill)
        self.y += size * 1.45

    def text(self, words: str, *, fill: str = INK, indent: float = 0, most: int = 6) -> None:
        """As many lines as it takes, but no more than `most`: the last one is then cut."""
        lines = list(wrapped(words, SMALL, INNER - indent))
        if len(lines) > most:
            lines[most - 1 :] = [" ".join(lines[most - 1 :])]
        for line in lines:
            self.line(line, fill=fill, indent=indent)

    def heading(self, words: str) -> None:
        """The name of a part."""
        self.y += 14
        self.line(words.upper(), size=10.0, bold=True, fill=MUTED)
        self.y += 3


def draw_panel(parent: Element, scene: Scene, explained: Sequence[Scene]) -> float:
    """Write the panel with its top left corner at (0, 0), and a legend for those `explained`; returns its height."""
    card = add(parent, "rect", x=0, y=0, width=WIDTH, rx=8, fill="#f4f6f8", stroke="#d5dbe1")
    panel = Panel(parent)
    _title(panel, scene.audit)
    _limit(panel, scene.audit)
    _loops(panel, scene)
    _findings(panel, scene.audit)
    if explained:
        _legend(panel, explained)
    height = panel.y + PADDING
    card.set("height", f"{height:.1f}")
    return height


def limit_words(audit: Audit) -> Iterator[str]:
    """What the limit lets a run do, in sentences."""
    rounds, costs = audit.rounds, audit.costs
    if rounds is not None and costs is not None:
        at_most = "" if costs.exact else "at most "
        finish = f"{at_most}{rounds.finish:,} round{'' if rounds.finish == 1 else 's'} can finish"
        lost = f"; call {rounds.called:,} of the model is paid for and lost" if rounds.called > rounds.finish else ""
        yield f"{finish[0].upper()}{finish[1:]}{lost}."
    if audit.worst_case is not None:
        steps, executions = audit.worst_case.super_steps, audit.worst_case.node_executions
        bound = "Worst case" if steps.exact else "Worst case, an upper bound"
        yield f"{bound}: {steps.number:,} super-steps, {executions.number:,} node executions."
    elif any(not cycle.caps for cycle in audit.cycles):
        yield "Nothing but the limit ends the loops without a cap."
    if worst_raises(audit):
        yield "The worst case raises before it finishes."


def worst_raises(audit: Audit) -> bool:
    """Whether the worst case passes the limit: a run must be finished one super-step before it."""
    return audit.worst_case is not None and audit.worst_case.super_steps.number >= audit.limit.super_steps


def _title(panel: Panel, audit: Audit) -> None:
    panel.line(audit.path or audit.graph.name, size=17.0, bold=True)
    panel.line("subgraph · endstop audit" if audit.path else "endstop audit", fill=MUTED)


def _limit(panel: Panel, audit: Audit) -> None:
    panel.heading("Where the limit bites")
    panel.line(f"Limit: {audit.limit.super_steps:,} super-steps", size=14.0, bold=True)
    panel.text(audit.limit.source, fill=MUTED)
    _bar(panel, audit)
    for words in limit_words(audit):
        panel.text(words)
        panel.y += 2


def _bar(panel: Panel, audit: Audit) -> None:
    """Super-steps from left to right, with the limit as a red mark: what fits is light, what is lost is dark."""
    parts = list(_rounds_in_limit(audit) or _worst_case_in_limit(audit))
    if not parts:
        return
    panel.y += 8
    steps, limit = sum(length for length, _ in parts), audit.limit.super_steps
    bar, width = add(panel.parent, "g"), INNER / steps
    say(bar, "title", f"What fits into {limit} super-steps, and what is lost")
    x = PADDING
    for length, fill in parts:
        add(bar, "rect", x=x, y=panel.y, width=length * width, height=BAR_HEIGHT, fill=fill)
        x += length * width
    for step in range(1, steps if steps <= MOST_CELLS else 0):
        x = PADDING + step * width
        add(bar, "line", x1=x, y1=panel.y, x2=x, y2=panel.y + BAR_HEIGHT, stroke=PAPER, stroke_width=0.8)
    add(bar, "rect", x=PADDING, y=panel.y, width=INNER, height=BAR_HEIGHT, fill="none", stroke=MUTED)
    x = PADDING + limit * width
    add(bar, "line", x1=x, y1=panel.y - 5, x2=x, y2=panel.y + BAR_HEIGHT + 5, stroke=ALARM, stroke_width=2)
    below = panel.y + BAR_HEIGHT + 12
    right = x > WIDTH / 2
    write(bar, (x, below), f"limit {limit:,}", size=10, anchor="end" if right else "start", fill=ALARM)
    panel.y += BAR_HEIGHT + 20


def _rounds_in_limit(audit: Audit) -> list[tuple[int, str]]:
    """The rounds of the model that can finish, the way out, and what is left of the limit: lengths with a colour."""
    costs, rounds = audit.costs, audit.rounds
    if costs is None or rounds is None:
        return []
    lengths = [costs.entry, *[costs.per_round or 0] * (rounds.finish - 1)][: rounds.finish]
    parts = [(length, FITS_TOO if number % 2 else FITS) for number, length in enumerate(lengths)]
    if audit.limit.super_steps > MOST_CELLS:
        parts = [(sum(lengths), FITS)]
    if rounds.finish:
        parts.append((costs.exit, LEAVES))
    left = audit.limit.super_steps - sum(length for length, _ in parts)
    return [*parts, (left, LOST if rounds.called > rounds.finish else UNUSED)]


def _worst_case_in_limit(audit: Audit) -> list[tuple[int, str]]:
    """The worst case, what the limit leaves over, and what is beyond it."""
    if audit.worst_case is None:
        return []
    limit, worst = audit.limit.super_steps, audit.worst_case.super_steps.number
    if worst >= limit:
        return [(limit - 1, FITS), (worst - limit + 1, LOST)]
    return [(worst, FITS), (limit - worst, UNUSED)]


def _loops(panel: Panel, scene: Scene) -> None:
    if not scene.loops:
        return
    cut_words = " or more" if scene.audit.cycles_cut else ""
    panel.heading(f"Loops: {len(scene.loops)}{cut_words}")
    for loop in scene.loops[:LISTED_LOOPS]:
        _loop(panel, loop, scene.audit.graph)
    if len(scene.loops) > LISTED_LOOPS:
        panel.line(f"and {len(scene.loops) - LISTED_LOOPS}{cut_words} more", fill=MUTED, indent=26)


def _loop(panel: Panel, loop: Loop, graph: GraphMap) -> None:
    row = add(panel.parent, "g")
    say(row, "title", " → ".join((*loop.cycle.nodes, loop.cycle.nodes[0])))
    add(row, "circle", cx=PADDING + 9, cy=panel.y + 8, r=9, fill=loop.colour)
    write(row, (PADDING + 9, panel.y + 8), str(loop.number), size=11, anchor="middle", bold=True, fill=PAPER)
    hooks = {node.name: node.hook for node in graph.nodes}
    panel.text(" → ".join(hooks[name] or name for name in (*loop.cycle.nodes, loop.cycle.nodes[0])), most=3, indent=26)
    cost = f"{loop.cost} super-step{'s' if loop.cost > 1 else ''} each time"
    panel.line(f"{cost} · {loop.cap or 'no cap'}", fill=MUTED, indent=26)
    if not loop.cycle.declared:
        panel.line("needs an edge that is not declared", fill=MUTED, indent=26)
    panel.y += 5


def _findings(panel: Panel, audit: Audit) -> None:
    """Those about subgraphs stand with the whole."""
    if audit.path or not audit.findings:
        return
    panel.heading(f"Findings: {len(audit.findings)}")
    for finding in audit.findings[:LISTED_FINDINGS]:
        _severity(panel.parent, finding.severity, PADDING + 9, panel.y + 8)
        row = add(panel.parent, "g")
        say(row, "title", f"{finding.explanation} {finding.remedy}")
        where = f" · {finding.where}" if finding.where else ""
        words = cut(f"{finding.code}{where}", SMALL, INNER - 26)
        write(row, (PADDING + 26, panel.y + 8), words, size=SMALL)
        panel.y += LINE + 2
    if len(audit.findings) > LISTED_FINDINGS:
        panel.line(f"and {len(audit.findings) - LISTED_FINDINGS} more", fill=MUTED, indent=26)


def _severity(parent: Element, severity: Severity, x: float, y: float) -> None:
    """A square for an error, a triangle for a warning, a dot for what is only told."""
    if severity == "error":
        add(parent, "rect", x=x - 6, y=y - 6, width=12, height=12, fill=ALARM)
    elif severity == "warning":
        add(parent, "polygon", points=f"{x},{y - 7} {x + 7},{y + 6} {x - 7},{y + 6}", fill="#c77700")
    else:
        add(parent, "circle", cx=x, cy=y, r=4, fill=GREY)


def _legend(panel: Panel, scenes: Sequence[Scene]) -> None:
    panel.heading("Legend")
    kinds = {node.kind for scene in scenes for node in scene.audit.graph.nodes}
    for kind, meaning in NODE_KINDS.items():
        if kind in kinds:
            draw_shape(panel.parent, kind, Box(x=PADDING + 20, y=panel.y + 8, width=40, height=18))
            _meaning(panel, meaning)
    lines = {line.kind for scene in scenes for line in scene.lines}
    for line, meaning in LINE_KINDS.items():
        if line in lines:
            y = panel.y + 8
            route = Route(way="left", points=((PADDING, y), (PADDING + 40, y)), label=None)
            draw_line(panel.parent, line, route, GREY if line == "jump" else INK)
            _meaning(panel, meaning)
    if any(scene.is_beyond_limit(node) for scene in scenes for node in scene.audit.graph.nodes):
        draw_shape(panel.parent, "node", Box(x=PADDING + 20, y=panel.y + 8, width=40, height=18), alarmed=True)
        _meaning(panel, "a run that comes here raises")
    if any(scene.steps for scene in scenes):
        write(panel.parent, (PADDING + 20, panel.y + 8), "step n", size=10.5, anchor="middle", fill=MUTED)
        _meaning(panel, "first super-step in which it can run")


def _meaning(panel: Panel, words: str) -> None:
    write(panel.parent, (PADDING + 52, panel.y + 8), cut(words, SMALL, INNER - 52), size=SMALL)
    panel.y += 23
