"""How a run ended: the result, the ending that says why, and the honest words for both."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Generic, Literal, TypeAlias, overload

from typing_extensions import TypeVar

from endstop._limits import LOOP
from endstop._messages import JsonValue, Message, ModelTurn, ToolCall, ToolReturn
from endstop._state import RunState, StopReason, as_data, as_type, from_json, to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from endstop._limits import LimitHit, PlanLimits, Spent
    from endstop._pauses import Pause

OutputT = TypeVar("OutputT", default=str)
OutputT_co = TypeVar("OutputT_co", default=str, covariant=True)
T = TypeVar("T")

Rung: TypeAlias = Literal["model_answer", "last_text", "tool_digest", "empty"]
"""Where the text of a run that did not complete comes from, best first.

`model_answer`: the reserved final answer; `last_text`: the newest text the model wrote;
`tool_digest`: the tool results gathered, put together without a model; `empty`: there is nothing.
"""

# Short, and without the name of the limit: small models write into their answer what stands here.
FINAL_NOTICE = "No more tools can be called. Answer now, from the results above, as well as they allow."
"""What asks the model for its last answer, without tools."""

DIGEST_MAX_CHARS = 4_000
"""Characters of tool results in a digest; each result gets an equal share."""

DIGEST_MAX_RESULTS = 20
"""Tool results in a digest, the newest ones: a smaller share would say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why and how a run ended that did not complete.

    `limit`, `used` and `allowed` name the limit, in its own unit (`None` where no limit ended it).
    `rung` says where the text comes from. `pending` are the tool calls that the model asked for and
    that have no result: they were not run, or not to their end. `effects` are the names of the tools
    that were started and are not read-only. `reason` is one line for people.
    """

    rung: Rung
    reason: str
    limit: str | None = None
    used: int | float | Decimal | None = None
    allowed: int | float | Decimal | None = None
    pending: tuple[ToolCall, ...] = ()
    effects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult(Generic[OutputT_co]):
    """The result of a run.

    `output` is the validated output of the agent's output type, or `None` where the run ended
    without one; for an agent of text it is `text`. `text` is the answer alone. `ending` is `None` for
    a completed run. `state` is all that `agent.resume` needs to go on; it is a snapshot of its own.
    `duration_ms` is the working time of the run in milliseconds, all its legs together.
    """

    output: OutputT_co | None
    text: str
    stop_reason: StopReason
    ending: Ending | None
    state: RunState

    @property
    def truncated(self) -> bool:
        """Whether a limit or a loop ended the run, so that the answer is a partial one."""
        return self.stop_reason in ("tool_limit", "budget", "loop")

    @property
    def run_id(self) -> str:
        """The id of the run, the same in all its legs."""
        return self.state.run_id

    @property
    def pauses(self) -> tuple[Pause, ...]:
        """What the run waits for, where it is paused."""
        return tuple(self.state.pauses)

    @property
    def limits(self) -> PlanLimits:
        """The limits that the run had: `dataclasses.replace` them to go on with one of them higher."""
        return self.state.limits

    @property
    def messages(self) -> tuple[Message, ...]:
        """The whole conversation, the history that was given included; valid as the `history` of a next run."""
        return tuple(self.state.messages)

    @property
    def new_messages(self) -> tuple[Message, ...]:
        """The messages of this run alone."""
        return tuple(self.state.messages[self.state.first_message :])

    @property
    def spent(self) -> Spent:
        """What the run has spent, its children and all its legs included."""
        return self.state.spent

    @property
    def duration_ms(self) -> float:
        """Working time in milliseconds, all legs together."""
        return self.state.spent.seconds * 1_000

    def to_json(self) -> str:
        """The result as one JSON document; the output must be data that pydantic can write."""
        stored = AgentResult(
            output=as_data(self.output),
            text=self.text,
            stop_reason=self.stop_reason,
            ending=self.ending,
            state=self.state,
        )
        return to_json(stored, "result")

    @overload
    @staticmethod
    def from_json(document: str | bytes) -> AgentResult[str]: ...
    @overload
    @staticmethod
    def from_json(document: str | bytes, output_type: type[T]) -> AgentResult[T]: ...
    @staticmethod
    def from_json(document: str | bytes, output_type: type[object] = str) -> AgentResult[object]:
        """The result that `to_json` wrote; the output is validated as `output_type`, by default text.

        Raises:
            StateError: the document is no JSON, no result, of a newer version, or a field is wrong.
        """
        stored = from_json(AgentResult[JsonValue], "result", document)
        output = (
            None if stored.output is None else as_type(output_type, stored.output, "endstop/result", at=("output",))
        )
        return AgentResult(
            output=output,
            text=stored.text,
            stop_reason=stored.stop_reason,
            ending=stored.ending,
            state=stored.state,
        )

    def __str__(self) -> str:
        if self.ending is None:
            return self.text
        return f"{banner(self.stop_reason, self.ending)}\n\n{self.text}".rstrip()


def banner(stop_reason: StopReason, ending: Ending) -> str:
    """The line that marks the text of a run which did not complete."""
    what = {
        "model_answer": "this is a partial answer from what was found so far",
        "last_text": "this is the last text of an unfinished run",
        "tool_digest": "there is no answer; these are the tool results gathered so far",
        "empty": "there is no answer",
    }[ending.rung]
    word = {"paused": "PAUSED", "cancelled": "CANCELLED"}.get(stop_reason, "TRUNCATED")
    return f"[{word}: {ending.reason}; {what}]"


def best_text(messages: Sequence[Message]) -> tuple[Rung, str]:
    """The best that can be handed over without asking a model: the last text, a digest, or nothing."""
    for message in reversed(messages):
        if isinstance(message, ModelTurn) and message.text.strip():
            return "last_text", message.text
    digest = tool_digest(messages)
    return ("tool_digest", digest) if digest else ("empty", "")


def tool_digest(messages: Sequence[Message]) -> str:
    """What the tools returned, oldest first and the same only once, each cut to an equal share of `DIGEST_MAX_CHARS`.

    Where there are more than `DIGEST_MAX_RESULTS`, it is the newest, and how many are left out is said.
    """
    calls = {call.call_id: call for m in messages if isinstance(m, ModelTurn) for call in m.tool_calls}
    returns = [m for m in messages if isinstance(m, ToolReturn) and m.status == "ok" and m.content.strip()]
    found = list(dict.fromkeys((_call_text(calls.get(r.call_id), r.name), r.content) for r in returns))
    if not found:
        return ""
    shown = found[-DIGEST_MAX_RESULTS:]
    share = DIGEST_MAX_CHARS // len(shown)
    lines = [cut_text(f"- {asked}: {content}", share) for asked, content in shown]
    if len(shown) < len(found):
        lines.insert(0, f"- ({len(found) - len(shown)} older results are left out)")
    return "\n".join(lines)


def cut_text(text: str, max_chars: int) -> str:
    """The text, cut to `max_chars` characters with a marker that says the full length where it is longer."""
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}… [cut: {max_chars} of {len(text)} characters]"


def limit_reason(hit: LimitHit) -> str:
    """A limit that is used up, in one line for people."""
    if hit.limit == "deadline":
        return "the deadline has come"
    if hit.limit == "model_output_cap":
        return f"the answer was cut at the model's own cap of {hit.allowed} output tokens"
    if hit.limit == LOOP:
        return "the run repeats itself"
    unit = {"max_cost": " US dollars", "max_seconds": " seconds"}.get(hit.limit, "")
    amounts = f"({_amount(hit.used)} of {_amount(hit.allowed)}{unit})"
    return f"{hit.limit} is used up {amounts}" if hit.used >= hit.allowed else f"{hit.limit} leaves no room {amounts}"


def loop_notice(reason: str) -> str:
    """What tells the model that it is in a loop."""
    return f"You are repeating yourself: {reason}. Try something else, or answer from what you have."


def limits_notice(hits: Sequence[LimitHit]) -> str:
    """What tells the model that limits are nearly used up."""
    lines = "; ".join(f"{hit.limit}: {hit.used} of {hit.allowed} used" for hit in hits)
    return f"The run is near its limits: {lines}. Come to an answer soon."


def _amount(value: float | Decimal) -> str:
    return f"{value:f}" if isinstance(value, Decimal) else str(round(value, 3)).removesuffix(".0")


def _call_text(call: ToolCall | None, name: str) -> str:
    if call is None:
        return f"{name}()"
    return cut_text(f"{name}({json.dumps(call.arguments, ensure_ascii=False)})", 120)
