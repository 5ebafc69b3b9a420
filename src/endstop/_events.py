"""What happens in a run, as a closed union of events, each a frozen record.

Every event has the `run_id` of the run that it is about, the `path` of agent names from the top
(`("agent",)` for the run itself), the model `round` it belongs to (0 before the first) and `seq`,
which rises by one an event over the whole stream. The last event of a stream is `done`, `error` or
`cancelled`, exactly one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, TypeAlias

from endstop._budget import allowed_by_limit, used_by_limit
from endstop._limits import LimitHit, PlanLimits, Spent
from endstop._messages import ToolCall, ToolReturn
from endstop._pauses import Pause
from endstop._results import AgentResult, Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    run_id: str = ""
    path: tuple[str, ...] = ()
    round: int = 0
    seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(_Event):
    """A run began."""

    model: str
    kind: Literal["started"] = "started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(_Event):
    """A run goes on from its state; `answered` are the ids of the pauses that were answered."""

    model: str
    answered: tuple[str, ...] = ()
    kind: Literal["resumed"] = "resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievedEvent(_Event):
    """The retrieval stage was run; `counts` are what it reports."""

    counts: Mapping[str, int]
    kind: Literal["retrieved"] = "retrieved"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStarted(_Event):
    """A request is sent. `attempt` above 1 is a retry, which voids the round's text. `final` is the last answer."""

    attempt: int = 1
    final: bool = False
    kind: Literal["round_started"] = "round_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking(_Event):
    """A piece of the model's reasoning, as it comes."""

    text: str
    kind: Literal["thinking"] = "thinking"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta(_Event):
    """A piece of the model's text, as it comes."""

    text: str
    kind: Literal["text_delta"] = "text_delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallEvent(_Event):
    """The model asked for a tool call."""

    call: ToolCall
    kind: Literal["tool_call"] = "tool_call"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResultEvent(_Event):
    """A tool call was answered: it ran, failed, or was not run (`result.status`)."""

    call: ToolCall
    result: ToolReturn
    kind: Literal["tool_result"] = "tool_result"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageEvent(_Event):
    """What the run has spent after a request, under which limits."""

    spent: Spent
    limits: PlanLimits
    kind: Literal["usage"] = "usage"

    @property
    def remaining(self) -> dict[str, float | Decimal]:
        """What is left of each limit that is set, by its name; without the deadline, which is a time."""
        used = used_by_limit(self.spent)
        allowed = allowed_by_limit(self.limits)
        return {limit: _left(bound, used.get(limit, 0)) for limit, bound in allowed.items() if limit != "deadline"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitWarning(_Event):
    """A share of a limit (`PlanLimits.warn_at`) is used; once a limit."""

    hit: LimitHit
    kind: Literal["limit_warning"] = "limit_warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskUser(_Event):
    """The model asks the user; the run pauses when the rest of the batch is done."""

    pause: Pause
    kind: Literal["ask_user"] = "ask_user"


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptEvent(_Event):
    """A tool call must be approved, or a tool asks a person; the run pauses when the rest of the batch is done."""

    pause: Pause
    kind: Literal["interrupt"] = "interrupt"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopDetected(_Event):
    """The run repeats itself: `reason` says how, `repeats` how often. With `nudged` the model was told."""

    reason: str
    repeats: int
    nudged: bool
    kind: Literal["loop_detected"] = "loop_detected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncated(_Event):
    """A limit ended the run; `done` or `error` follows."""

    ending: Ending
    kind: Literal["truncated"] = "truncated"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEvent(_Event):
    """The run failed. `error` is its text and `code` its class; the exception leaves the stream after it."""

    error: str
    code: str
    kind: Literal["error"] = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled(_Event):
    """The run was cancelled by its caller; `result` is all that was done."""

    result: AgentResult[object]
    kind: Literal["cancelled"] = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Done(_Event):
    """The run ended; `result` is its result."""

    result: AgentResult[object]
    kind: Literal["done"] = "done"


Event: TypeAlias = (
    Started
    | Resumed
    | RetrievedEvent
    | RoundStarted
    | Thinking
    | TextDelta
    | ToolCallEvent
    | ToolResultEvent
    | UsageEvent
    | LimitWarning
    | LoopDetected
    | AskUser
    | InterruptEvent
    | Truncated
    | ErrorEvent
    | Cancelled
    | Done
)
"""Whatever a stream of events can carry."""


HIGH_WATER = 1_024
"""Events that wait for the caller before the run waits too."""


def _left(allowed: float | Decimal, used: float | Decimal) -> float | Decimal:
    if isinstance(allowed, Decimal) or isinstance(used, Decimal):
        return max(Decimal(allowed) - Decimal(used), Decimal(0))
    return max(allowed - used, 0)
