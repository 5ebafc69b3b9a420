"""The view for a terminal: what has happened scrolls by, what is happening stays at the bottom."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from endstop._events import (
    AskUser,
    InterruptEvent,
    LimitWarning,
    LoopDetected,
    RoundStarted,
    TextDelta,
    Thinking,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from endstop._results import AgentResult
from endstop.views.base import RoundText, closing
from endstop.views.words import (
    Gauge,
    call_text,
    counted,
    cut_at_width,
    gauges,
    notice,
    of_child,
    outcome_text,
    printable,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console, RenderableType

    from endstop._events import Event
    from endstop._limits import PlanLimits, Spent
    from endstop._state import RunState
    from endstop.views.words import Redactor

FRAMES_PER_SECOND = 8

GAUGE_CELLS = 38
"""The width of one gauge; as many stand side by side as fit."""

RUNNING_SHOWN = 4
"""How many of the tool calls that are going on are named at once."""

_SPINNER, _ASCII_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"
_MARKS = {"ok": ("✓", "+", "green"), "error": ("✗", "x", "red"), "not_run": ("⊘", "-", "yellow")}


class LiveView:
    """Shows a run on a terminal.

    Text, tool calls and warnings are printed for good. Below them stand the line that the model is
    writing, the tools that are running, and a gauge for each limit; they are wiped away at the end.
    The cursor is never hidden, so that a program killed at any moment leaves the terminal as it was.
    """

    def __init__(
        self,
        console: Console,
        limits: PlanLimits,
        spent: Spent,
        *,
        stream: bool,
        redact: Redactor,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._limits = limits
        self._spent = spent
        self._redact = redact
        self._clock = clock
        self._spent_at = self._doing_since = clock()
        self._text = RoundText(stream=stream)
        self._doing = "starting"
        self._thought_chars = 0
        self._running: dict[tuple[str, str], tuple[str, float]] = {}
        self._live = Live(
            console=console, get_renderable=self._status, refresh_per_second=FRAMES_PER_SECOND, transient=True
        )

    def show(self, event: Event) -> None:
        """Print what the event is about, and keep the status below it."""
        if not self._live.is_started:
            self._live.start()
            self._console.show_cursor(True)
        for line in self._text.take(event):
            self._print(line)
        if len(event.path) == 1:
            self._follow(event)
        line = notice(event, self._limits)
        match event:
            case ToolCallEvent():
                self._running[(event.run_id, event.call.call_id)] = (line, self._clock())
            case ToolResultEvent():
                self._running.pop((event.run_id, event.call.call_id), None)
                self._print_outcome(event)
            case LimitWarning() | LoopDetected() | AskUser() | InterruptEvent():
                self._print(line, "yellow")
            case UsageEvent():
                pass  # the gauges show it
            case _ if line:
                self._print(line, "bold" if isinstance(event, RoundStarted) and len(event.path) == 1 else "dim")
            case _:
                return  # so many pieces of text come that the next frame is soon enough for them
        self._live.refresh()

    def end(self, kept: AgentResult[object] | RunState | None) -> None:
        """Wipe the status away and print the banner of a run that did not complete, its answer, and the figures."""
        self._running.clear()
        rest = self._text.take_rest()
        self._live.stop()
        last = closing(kept, self._spent, self._limits, self._text.whole)
        for line in rest:
            self._print(line)
        if last.banner:
            self._print(last.banner, "bold yellow" if isinstance(kept, AgentResult) else "bold red")
        for line in last.text:
            self._print(line)
        for line in last.notes:
            self._print(line, "yellow")
        self._print(last.summary, "dim" if last.banner else "green")

    def _follow(self, event: Event) -> None:
        """Keep in mind what the run itself is doing."""
        match event:
            case RoundStarted():
                self._thought_chars = 0
                self._do("the model is answering")
            case Thinking():
                self._thought_chars += len(event.text)
            case TextDelta() if self._text.stream:
                # A line longer than the screen is printed as far as it is certain, so that the status stays small.
                lines, self._text.unshown = cut_at_width(self._text.unshown, self._console.width)
                for line in lines:
                    self._print(line)
            case UsageEvent():
                self._spent, self._spent_at = event.spent, self._clock()
                self._do("working")
            case _:
                pass

    def _do(self, what: str) -> None:
        self._doing, self._doing_since = what, self._clock()

    def _print_outcome(self, event: ToolResultEvent) -> None:
        """A line for the call and what came of it, or one for each where they do not fit side by side."""
        glyph, ascii_glyph, style = _MARKS[event.result.status]
        mark = f"  {ascii_glyph if self._is_ascii else glyph} "
        call, outcome = self._clean(call_text(event.call)), self._clean(outcome_text(event.result))
        gap = "  " if cell_len(mark + call + outcome) + 2 <= self._console.width else "\n    "
        for row in Text.assemble((mark, style), of_child(event), call, gap, (outcome, "dim")).split():
            self._print_row(row)

    def _print(self, line: str, style: str = "") -> None:
        self._print_row(Text(self._clean(line), style=style, overflow="fold"), no_wrap=False)

    def _print_row(self, row: Text, *, no_wrap: bool = True) -> None:
        if self._live.is_started:
            # Printing draws the status as it was last drawn: it must not show again what is printed now.
            self._live.refresh()
        self._console.print(row, no_wrap=no_wrap, overflow="ellipsis" if no_wrap else "fold")

    def _clean(self, text: str) -> str:
        return printable(self._redact(text))

    @property
    def _is_ascii(self) -> bool:
        return self._console.options.ascii_only

    # -- the status --------------------------------------------------------------------------------

    def _status(self) -> RenderableType:
        """What stands at the bottom now. The refreshing thread calls it as well, so it changes nothing."""
        now = self._clock()
        rows: list[RenderableType] = []
        if self._text.stream and self._text.unshown:
            rows.append(_row(self._clean(self._text.unshown)))
        running = list(self._running.values())
        frames = _ASCII_SPINNER if self._is_ascii else _SPINNER
        frame = frames[int(now * FRAMES_PER_SECOND) % len(frames)]
        rows.append(_row(f"{frame} {self._what_is_done(running, now)}", "cyan"))
        rows += [_row(f"  {self._clean(text)}, {now - since:.0f} s", "dim") for text, since in running[:RUNNING_SHOWN]]
        seconds = self._spent.seconds + now - self._spent_at
        measured = gauges(self._limits, replace(self._spent, seconds=seconds))
        columns = max(self._console.width // (GAUGE_CELLS + 2), 1)
        grid = Table.grid(padding=(0, 2, 0, 0))
        for first in range(0, len(measured), columns):
            grid.add_row(*map(self._bar, measured[first : first + columns]))
        return Group(*rows, grid)

    def _what_is_done(self, running: list[tuple[str, float]], now: float) -> str:
        if running:
            oldest = min(since for _, since in running)
            return f"{counted(len(running), 'tool call')} running, {now - oldest:.0f} s"
        thought = f", {counted(self._thought_chars, 'character')} of thinking" if self._thought_chars else ""
        return f"{self._doing}, {now - self._doing_since:.0f} s{thought}"

    def _bar(self, gauge: Gauge) -> Text:
        cells = min(GAUGE_CELLS, self._console.width)
        room = cells - cell_len(gauge.label) - cell_len(gauge.figure) - 2
        if gauge.share is None or room < 3:
            return _row(f"{gauge.label} {gauge.figure}")
        full, rest = ("#", "-") if self._is_ascii else ("█", "░")
        filled = round(gauge.share * room)
        style = "red" if gauge.share >= 1 else "yellow" if gauge.share >= (self._limits.warn_at or 1) else "green"
        bar = (full * filled, style), (rest * (room - filled), "dim")
        return Text.assemble(f"{gauge.label} ", *bar, f" {gauge.figure}", no_wrap=True)


def _row(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")
