"""What a run does next, decided from its state alone.

`next_step` is pure: it reads the state and the plan and returns one of a closed set of steps. Doing
the step is `endstop._run`; what it finds (an answer, a limit that is used up) is in the state when
the next step is decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from endstop._budget import used_by_limit
from endstop._effects import Effects
from endstop._limits import LOOP, LimitHit, Prices, check_count, check_seconds
from endstop._loops import LoopDetector
from endstop._messages import Message, ModelTurn, ToolCall, ToolSpec, pending_calls
from endstop._outputs import Invalid, OutputSpec, Valid
from endstop._results import AgentResult, Ending, best_text, limit_reason
from endstop._stages import PostModel, Retrieval
from endstop._state import RunState, StopReason
from endstop._tools import Tool
from endstop.models.base import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and after what wait a request that failed in passing is sent again.

    The wait before attempt n+1 is `initial_wait_seconds * 2**(n-1)`, at most `max_wait_seconds`, plus
    up to `jitter_seconds` drawn at random (as the stamina library does, but beyond the cap). A provider's
    `Retry-After` is honoured where it is longer, up to `max_retry_after_seconds`: beyond that the error is
    raised, and says how long. Every attempt is paid as a model call.

    Raises:
        ConfigError: a value is negative or not a number.
    """

    max_attempts: int = 4
    initial_wait_seconds: float = 0.5
    max_wait_seconds: float = 20.0
    jitter_seconds: float = 1.0
    max_retry_after_seconds: float = 120.0

    def __post_init__(self) -> None:
        check_count("max_attempts", self.max_attempts, least=1)
        for name in ("initial_wait_seconds", "max_wait_seconds", "jitter_seconds", "max_retry_after_seconds"):
            check_seconds(name, getattr(self, name), required=True)

    def wait_seconds(self, attempt: int, retry_after_seconds: float | None, draw: float) -> float:
        """Seconds to wait after the failed attempt number `attempt`; `draw` is a random number from 0 to 1."""
        backoff = min(self.initial_wait_seconds * 2.0 ** min(attempt - 1, 60), self.max_wait_seconds)
        return max(backoff + draw * self.jitter_seconds, retry_after_seconds or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What an agent compiles to: everything that stays the same during a run."""

    name: str
    model: Model
    instructions: str | None
    tools: Mapping[str, Tool]
    specs: tuple[ToolSpec, ...]
    frame_tokens: int
    output: OutputSpec[Any]
    output_repairs: int
    retry: RetryPolicy
    prices: Prices | None
    effects: Effects
    retrieval: Retrieval | None
    post_model: PostModel | None
    extraction_tag: str | None
    loops: LoopDetector | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """Run the retrieval stage."""

    retrieval: Retrieval


@dataclass(frozen=True, slots=True, kw_only=True)
class CallModel:
    """Ask the model for the next turn; with `final` for the last answer, without tools, from the reserve."""

    final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTools:
    """Answer the calls of the newest turn: run them, or with `refuse` only say that they are not run."""

    calls: tuple[ToolCall, ...]
    refuse: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """Tell the model what is wrong with its output, for it to answer again."""

    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The run is over."""

    stop_reason: StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """The run cannot give what it was asked for."""

    problem: str


Step: TypeAlias = Recall | CallModel | RunTools | Repair | Finish | Fail


_STOP_REASONS: dict[str, StopReason] = {"max_model_rounds": "tool_limit", LOOP: "loop"}


def stop_reason_at(hit: LimitHit) -> StopReason:
    """The reason for which a run stops that a limit ends."""
    return _STOP_REASONS.get(hit.limit, "budget")


def next_step(state: RunState, plan: Plan) -> Step:
    """The next step of a run in this state."""
    if plan.retrieval is not None and not state.recalled and state.hit is None:
        return Recall(retrieval=plan.retrieval)
    calls = pending_calls(state.messages)
    if calls and state.hit is not None:
        return RunTools(calls=calls, refuse=True)
    if calls:
        ready = calls
        if state.pauses:
            waiting = {pause.call_id for pause in state.pauses}
            ready = tuple(call for call in calls if call.call_id not in waiting)
        return RunTools(calls=ready) if ready else Finish(stop_reason="paused")
    newest = state.messages[-1]
    # A turn that answers is never thrown away, whatever was used up by then; what ended at an output cap is no answer.
    answer = plan.output.read(newest.text) if isinstance(newest, ModelTurn) and state.wrap_up == "none" else None
    if isinstance(answer, Valid):
        return Finish(stop_reason="completed")
    if state.hit is not None:
        # Without tools every round was a final answer already; asking once more would find the same limit.
        if state.limits.on_limit == "answer" and plan.tools and state.wrap_up == "none":
            return CallModel(final=True)
        return Finish(stop_reason=stop_reason_at(state.hit))
    if answer is None:
        return CallModel()
    if state.repairs < plan.output_repairs:
        return Repair(problem=answer.problem)
    return Fail(problem=answer.problem)


def conclude(state: RunState, plan: Plan) -> AgentResult[Any]:
    """The result of a run that ended in this state, by the ladder of honest endings where it did not complete."""
    stop_reason = state.stop_reason or "cancelled"
    own = state.messages[state.first_message :]
    if stop_reason == "completed":
        text, answer = "", plan.output.read("")
        if isinstance(newest := state.messages[-1], ModelTurn):
            text, answer = newest.text, plan.output.read(newest.text)
        output = answer.output if isinstance(answer, Valid) else None
        return AgentResult(output=output, text=text, stop_reason=stop_reason, ending=None, state=state)
    rung, text = best_text(own)
    if state.partial_text.strip():
        rung, text = "last_text", state.partial_text
    if state.wrap_up == "answered" and rung == "last_text" and _final_text(own) == text:
        rung = "model_answer"
    answer = plan.output.read(text) if rung in ("model_answer", "last_text") else Invalid(problem="no answer")
    hit = state.hit
    if hit is not None:
        # The final answer has been paid since the limit was hit.
        hit = replace(hit, used=max(hit.used, used_by_limit(state.spent).get(hit.limit, hit.used)))
    # Who cancels a run that is ending at a limit ends it.
    reason = limit_reason(hit) if hit is not None and stop_reason != "cancelled" else _reason(state)
    ending = Ending(
        rung=rung,
        reason=f"{reason}; {state.note}" if state.note else reason,
        limit=hit.limit if hit is not None else None,
        used=hit.used if hit is not None else None,
        allowed=hit.allowed if hit is not None else None,
        pending=pending_calls(state.messages) or tuple(state.unrun),
        effects=tuple(dict.fromkeys(state.side_effects)),
    )
    output = answer.output if isinstance(answer, Valid) else None
    return AgentResult(output=output, text=text, stop_reason=stop_reason, ending=ending, state=state)


def _reason(state: RunState) -> str:
    if state.stop_reason != "paused":
        return "the run was cancelled"
    questions = "; ".join(pause.question for pause in state.pauses)
    return f"waiting for {len(state.pauses)} answer{'s' if len(state.pauses) > 1 else ''}: {questions}"


def _final_text(messages: Sequence[Message]) -> str:
    """The text of the newest turn."""
    return next((m.text for m in reversed(messages) if isinstance(m, ModelTurn)), "")
