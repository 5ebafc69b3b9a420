"""The words and figures of the views, and the texts of others made fit to be shown."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.cells import cell_len

from endstop._events import (
    AskUser,
    InterruptEvent,
    LimitWarning,
    LoopDetected,
    Resumed,
    RetrievedEvent,
    RoundStarted,
    Started,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from decimal import Decimal

    from endstop._events import Event
    from endstop._limits import PlanLimits, Spent
    from endstop._messages import ToolCall, ToolReturn

SECRET_MIN_CHARS = 8
"""A shorter value is no secret worth the name, and would be found inside ordinary words."""

CALL_MAX_CHARS = 100
"""The longest tool call that is shown, arguments included."""

RESULT_MAX_CHARS = 160
"""How much of a tool's result is shown."""

_SECRET_NAME = re.compile(r"(?i)(?:^|_)(?:API_?KEY|ACCESS_?KEY|SECRET_?KEY|PRIVATE_?KEY|TOKEN|SECRET|PASSWORD)$")
# Control characters but newline and tab, what turns the direction of writing, and halves of surrogate pairs.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Redactor:
    """Puts `[NAME]` where the value of an environment variable that holds a secret would be shown.

    Such a variable has a name that ends in `API_KEY`, `TOKEN`, `SECRET`, `PASSWORD` or the like.
    """

    __slots__ = ("_places",)

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._places: dict[str, str] = {}
        for name, value in environment.items():
            if _SECRET_NAME.search(name) and len(value) >= SECRET_MIN_CHARS:
                # Also as it stands inside a JSON string.
                for form in (value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]):
                    self._places[form] = f"[{name}]"

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        for secret, place in self._places.items():
            text = text.replace(secret, place)
        return text


def printable(text: str) -> str:
    """The text with every character that could command a terminal replaced by `?`; newlines and tabs stay."""
    return _UNPRINTABLE.sub("?", text.replace("\r\n", "\n"))


def shorten(text: str, max_chars: int) -> str:
    """The text in one line, cut with `…` where it is longer than `max_chars`."""
    line = " ".join(text[: 4 * max_chars].split())
    is_cut = len(line) > max_chars or len(text) > 4 * max_chars
    return f"{line[: max_chars - 1]}…" if is_cut else line


def cut_at_width(text: str, width: int) -> tuple[list[str], str]:
    """Whole lines of at most `width` terminal cells, cut at spaces where there are any, and what is left over."""
    lines: list[str] = []
    start = 0
    while len(text) - start > width or cell_len(text[start:]) > width:
        # No more is looked at than can fit, so that a text of any length takes a time in proportion.
        line = text[start : start + width + 1]
        end = _fitting(line, width)
        space = line.rfind(" ", 1, end + 1)
        lines.append(line[: space if space > 0 else end])
        start += space + 1 if space > 0 else end
    return lines, text[start:]


def of_child(event: Event) -> str:
    """The agents between the run and the delegated child that the event is about."""
    return "".join(f"{name} > " for name in event.path[1:])


def call_text(call: ToolCall) -> str:
    """A tool call as one reads it: `search(query="endstops")`."""
    if call.invalid_arguments is not None:
        arguments = call.invalid_arguments
    else:
        arguments = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in call.arguments.items())
    room = max(CALL_MAX_CHARS - len(call.name), 20)
    return f"{shorten(call.name, CALL_MAX_CHARS)}({shorten(arguments, room)})"


def outcome_text(result: ToolReturn) -> str:
    """What came of a tool call: the length and the beginning of its result, its error, or why it was not run."""
    if result.status == "not_run":
        return shorten(result.content, RESULT_MAX_CHARS)
    if result.status == "error":
        return f"error: {shorten(result.content, RESULT_MAX_CHARS)}"
    return f"{counted(len(result.content), 'character')}: {shorten(result.content, RESULT_MAX_CHARS)}"


def notice(event: Event, limits: PlanLimits) -> str:
    """One line about an event; empty for pieces of text and for how the run ended, which are shown otherwise."""
    return of_child(event) + line if (line := _notice(event, limits)) else ""


def _notice(event: Event, limits: PlanLimits) -> str:
    match event:
        case Started() | Resumed():
            does = "starts" if isinstance(event, Started) else "goes on"
            if len(event.path) > 1:
                return f"{does} with {event.model}"
            return f"{'/'.join(event.path)} {does} with {event.model}, run {event.run_id}"
        case RetrievedEvent():
            return f"recalled {', '.join(f'{name} {count:,}' for name, count in event.counts.items()) or 'nothing'}"
        case RoundStarted():
            return _round_text(event, limits)
        case ToolCallEvent():
            return call_text(event.call)
        case ToolResultEvent():
            return f"{call_text(event.call)} -> {outcome_text(event.result)}"
        case UsageEvent():
            return f"spent: {spent_text(event.spent, event.limits)}"
        case LimitWarning(hit=hit):
            return f"warning: {_amount(hit.used)} of {_amount(hit.allowed)} used of {hit.limit}"
        case LoopDetected():
            told = "; the model was told" if event.nudged else ""
            return f"warning: {event.reason}{told}"
        case AskUser() | InterruptEvent():
            return f"asks: {shorten(event.pause.question, RESULT_MAX_CHARS)}"
        case _:
            return ""


def spent_text(spent: Spent, limits: PlanLimits) -> str:
    """What was spent, each amount against its limit where one is set, in a line."""
    figures = [_of("round", spent.model_rounds, limits.max_model_rounds)]
    if limits.max_model_calls is not None or spent.model_calls != spent.model_rounds:
        figures.append(_of("model call", spent.model_calls, limits.max_model_calls))
    figures.append(_of("tool call", spent.tool_calls, limits.max_tool_calls))
    figures += [_of(f"{tool} call", spent.tools.get(tool, 0), n) for tool, n in limits.tool_limits.items()]
    tokens = _of("token", spent.tokens, limits.max_tokens)
    estimated = f" ({counted(spent.unmeasured, 'request')} estimated)" if spent.unmeasured else ""
    figures.append(tokens + estimated)
    if limits.max_output_tokens is not None:
        figures.append(_of("output token", spent.output_tokens, limits.max_output_tokens))
    if spent.price_source is not None:
        figures.append(_of_amount("$", spent.cost, limits.max_cost))
    figures.append(f"{_of_amount('', round(spent.seconds, 1), limits.max_seconds)} s")
    return ", ".join(figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """How much of one limit is used. `share` is from 0 to 1, or `None` where there is nothing to measure it by."""

    label: str
    figure: str
    share: float | None


def gauges(limits: PlanLimits, spent: Spent) -> list[Gauge]:
    """One gauge for each limit that is set."""
    rows = [
        _gauge("rounds", spent.model_rounds, limits.max_model_rounds),
        _gauge("model calls", spent.model_calls, limits.max_model_calls),
        _gauge("tool calls", spent.tool_calls, limits.max_tool_calls),
        *(_gauge(f"{printable(tool)} calls", spent.tools.get(tool, 0), n) for tool, n in limits.tool_limits.items()),
        _gauge("tokens", spent.tokens, limits.max_tokens),
        _gauge("output tokens", spent.output_tokens, limits.max_output_tokens),
        _gauge("cost", spent.cost, limits.max_cost, before="$"),
        _gauge("seconds", round(spent.seconds, 1), limits.max_seconds),
    ]
    if limits.deadline is not None:
        left = (limits.deadline - datetime.now(UTC)).total_seconds()
        rows.append(Gauge(label="deadline", figure=f"in {left:,.0f} s" if left > 0 else "has come", share=None))
    return [row for row in rows if row is not None]


def counted(number: int, noun: str) -> str:
    """The number and the noun in its number: `1 round`, `2 rounds`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _round_text(event: RoundStarted, limits: PlanLimits) -> str:
    is_child = len(event.path) > 1
    of = "" if is_child or limits.max_model_rounds is None else f" of {limits.max_model_rounds}"
    again = f", attempt {event.attempt}; what the attempt before wrote is void" if event.attempt > 1 else ""
    return f"round {event.round}{of}{': the final answer, without tools' if event.final else ''}{again}"


def _gauge(label: str, used: float | Decimal, allowed: float | Decimal | None, *, before: str = "") -> Gauge | None:
    if allowed is None:
        return None
    share = min(float(used) / float(allowed), 1.0) if allowed else 1.0
    return Gauge(label=label, figure=_of_amount(before, used, allowed), share=share)


def _of(noun: str, used: int, allowed: int | None) -> str:
    return counted(used, noun) if allowed is None else f"{used:,}/{counted(allowed, noun)}"


def _of_amount(unit: str, used: float | Decimal, allowed: float | Decimal | None) -> str:
    return f"{unit}{_amount(used)}" if allowed is None else f"{unit}{_amount(used)}/{unit}{_amount(allowed)}"


def _amount(value: float | Decimal) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4f}".rstrip("0").rstrip(".")


def _fitting(line: str, width: int) -> int:
    """How many characters from the start of a line fit; at least one, so that cutting gets on."""
    end = 1
    while end < len(line) and cell_len(line[: end + 1]) <= width:
        end += 1
    return end
