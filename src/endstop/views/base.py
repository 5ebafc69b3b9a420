"""What a view of a run is, and what all of them share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from endstop._events import RoundStarted, TextDelta, UsageEvent
from endstop._results import AgentResult, banner
from endstop.views.words import call_text, spent_text

if TYPE_CHECKING:
    from endstop._events import Event
    from endstop._limits import PlanLimits, Spent
    from endstop._state import RunState


class View(Protocol):
    """Shows one leg of a run."""

    def show(self, event: Event) -> None:
        """Show the next event."""
        ...

    def end(self, kept: AgentResult[object] | RunState | None) -> None:
        """Show how it ended: with a result, or failed, with what is known of it. Nothing is shown after it."""
        ...


class RoundText:
    """The text of the run's newest round: all of it, and what of it was not shown yet.

    With `stream` it is shown as it comes, else when the round is over. The text of delegated children
    is not part of it: it comes back as a tool's result.
    """

    __slots__ = ("stream", "unshown", "whole")

    def __init__(self, *, stream: bool) -> None:
        self.stream = stream
        self.whole = ""
        self.unshown = ""

    def take(self, event: Event) -> list[str]:
        """The lines to show now that this event has come."""
        if len(event.path) > 1:
            return []
        match event:
            case TextDelta():
                self.whole += event.text
                self.unshown += event.text
                return self._complete_lines() if self.stream and "\n" in event.text else []
            case UsageEvent():
                return self._rest()
            case RoundStarted():
                lines = self.take_rest()
                self.whole = self.unshown = ""
                return lines
            case _:
                return []

    def take_rest(self) -> list[str]:
        """The lines to show where nothing more will come; without `stream` an unfinished round has none."""
        return self._rest() if self.stream else []

    def _complete_lines(self) -> list[str]:
        *lines, self.unshown = self.unshown.split("\n")
        return lines

    def _rest(self) -> list[str]:
        text, self.unshown = self.unshown.removesuffix("\n"), ""
        return text.split("\n") if text else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """What is left to say at the end of a run.

    `banner` marks an answer that is not whole, `text` is the answer where it was not shown yet, in lines,
    `notes` are what else should be known, and `summary` is the line of figures.
    """

    banner: str
    text: tuple[str, ...]
    notes: tuple[str, ...]
    summary: str


def closing(kept: AgentResult[object] | RunState | None, spent: Spent, limits: PlanLimits, shown: str) -> Closing:
    """The closing words for a result, or for a run that failed; `shown` is the newest text that was shown.

    `spent` is what is known to be spent of a run that left nothing else.
    """
    if not isinstance(kept, AgentResult):
        summary = f"failed: {spent_text(kept.spent if kept else spent, limits)}"
        return Closing(banner="[FAILED: there is no answer]", text=(), notes=(), summary=summary)
    result = kept
    is_shown = result.text.strip() in ("", shown.strip())
    text = () if is_shown else tuple(result.text.split("\n"))
    summary = f"{'truncated' if result.truncated else result.stop_reason}: {spent_text(result.spent, limits)}"
    ending = result.ending
    if ending is None:
        return Closing(banner="", text=text, notes=(), summary=summary)
    notes = [f"asks: {pause.question} [{pause.pause_id}]" for pause in result.pauses]
    if ending.effects:
        notes.append(f"tools that ran and may have changed something: {', '.join(ending.effects)}")
    if ending.pending:
        notes.append(f"asked for, without a result: {', '.join(map(call_text, ending.pending))}")
    return Closing(
        banner=banner(result.stop_reason, ending),
        text=("", *text) if text else (),
        notes=tuple(notes),
        summary=summary,
    )
