"""The views that are no screen: lines for people to read and to keep, and JSON lines for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TextIO

from endstop._events import TextDelta, Thinking, UsageEvent
from endstop._state import to_json
from endstop.views.base import RoundText, closing
from endstop.views.words import notice, printable

if TYPE_CHECKING:
    from endstop._events import Event
    from endstop._limits import PlanLimits, Spent
    from endstop._messages import JsonValue
    from endstop._results import AgentResult
    from endstop._state import RunState
    from endstop.views.words import Redactor

MARK = "· "
"""How each line begins that is about the run, and is no part of its text."""


class PlainView:
    """Whole lines, written as things happen. Those that begin with `MARK` are about the run, the rest is its text.

    Without `stream`, a round's text is written when the round is over, so that none of it is void later.
    """

    def __init__(self, out: TextIO, limits: PlanLimits, spent: Spent, *, stream: bool, redact: Redactor) -> None:
        self._out = out
        self._limits = limits
        self._spent = spent
        self._redact = redact
        self._text = RoundText(stream=stream)

    def show(self, event: Event) -> None:
        """Write what the event is about."""
        if isinstance(event, UsageEvent) and len(event.path) == 1:
            self._spent = event.spent
        for line in self._text.take(event):
            self._write(line)
        if line := notice(event, self._limits):
            self._write(MARK + line)

    def end(self, kept: AgentResult[object] | RunState | None) -> None:
        """Write the banner of a run that did not complete, its answer where that was not written yet, and figures."""
        rest = self._text.take_rest()
        last = closing(kept, self._spent, self._limits, self._text.whole)
        for line in (*rest, *([last.banner] if last.banner else []), *last.text):
            self._write(line)
        for line in (*last.notes, last.summary):
            self._write(MARK + line)

    def _write(self, line: str) -> None:
        self._out.write(f"{printable(self._redact(line))}\n")
        # Whoever reads the other end of the pipe follows the run as it goes.
        self._out.flush()


class JsonView:
    """Every event as one line of JSON, with its `kind`; the last carries the result, or the error.

    Without `stream`, the pieces of text and thinking are left out; the whole of it is in the result.
    """

    def __init__(self, out: TextIO, *, stream: bool, redact: Redactor) -> None:
        self._out = out
        self._stream = stream
        self._redact = redact

    def show(self, event: Event) -> None:
        """Write the event."""
        if self._stream or not isinstance(event, TextDelta | Thinking):
            # In ASCII alone, so that no encoding and no separator inside a text can break a line.
            line = json.dumps(event_data(event), separators=(",", ":"))
            self._out.write(f"{self._redact(line)}\n")
            self._out.flush()

    def end(self, kept: AgentResult[object] | RunState | None) -> None:
        """Write nothing: the last event said it all."""


def event_data(event: Event) -> JsonValue:
    """An event as JSON data; amounts of money are strings, times are ISO 8601, bytes are base64."""
    envelope: dict[str, JsonValue] = json.loads(to_json(event, "event"))
    return envelope["value"]
