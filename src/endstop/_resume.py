"""How a run begins and how it goes on, as states: every leg of a run starts from one of these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from endstop._budget import allowed_by_limit
from endstop._errors import ResumeError
from endstop._limits import LOOP, PlanLimits
from endstop._loops import LoopState
from endstop._messages import ModelTurn, UserMessage, checked_prompt, pending_calls, repaired_history
from endstop._pauses import answer_pauses, expire_pauses
from endstop._results import limit_reason
from endstop._state import RunState, check_sound

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from endstop._messages import Message


def fresh_state(prompt: object, *, history: Sequence[Message], limits: PlanLimits, run_id: str, agent: str) -> RunState:
    """The state of a run that has only been asked.

    Raises:
        ConfigError: the prompt is empty or of a wrong type.
    """
    messages = repaired_history(history)
    state = RunState(run_id=run_id, agent=agent, limits=limits, messages=messages, first_message=len(messages))
    messages.append(UserMessage(content=checked_prompt(prompt)))
    return state


def resumed_state(
    ended: RunState, *, limits: PlanLimits | None, answers: Mapping[str, object], now: datetime
) -> RunState:
    """A state of its own in which the run goes on; `ended` stays as it is.

    Raises:
        StateError: the state gives budget back, or an index is outside its messages.
        ResumeError: the run is completed, the limit that ended it is not higher, or an answer is
            missing, foreign, used, expired or does not fit its schema.
    """
    check_sound(ended)
    state = ended.copy()
    _check(state, limits or state.limits, answers, now)
    answer_pauses(state, answers, now)
    expire_pauses(state, now)
    state.limits = limits or state.limits
    if state.wrap_up_at is not None:
        # The answer that the limit forced is the result's. Seeing it, a model repeats it instead of going on.
        del state.messages[state.wrap_up_at :]
        state.applied = min(state.applied, state.wrap_up_at)
    if state.hit is not None and isinstance(state.messages[-1], ModelTurn) and not pending_calls(state.messages):
        text = "You may go on now: tools can be called again. Continue, and give the whole answer when you have it."
        state.messages.append(UserMessage(content=text, source="kernel"))
    reopen(state)
    return state


def reopen(state: RunState) -> None:
    """Take back what ended the run. Whoever goes on after a loop has looked at it: it is counted anew."""
    if state.hit is not None and state.hit.limit == LOOP:
        state.loops = LoopState()
    state.wrap_up_at = None
    state.repairs = max(state.repairs - 1, 0)  # where the repairs were used up, going on is one more
    state.hit, state.wrap_up, state.unrun, state.note, state.stop_reason = None, "none", [], "", None
    state.partial_text = ""


def _check(state: RunState, limits: PlanLimits, answers: Mapping[str, object], now: datetime) -> None:
    if not state.messages:
        raise ResumeError("the state has no message to go on from: pass one that a run wrote")
    if state.stop_reason == "completed" and not _has_unapplied(state):
        raise ResumeError("the run is completed: start a new one with history=result.messages")
    expired = any(pause.expires_at is not None and now > pause.expires_at for pause in state.pauses)
    if state.stop_reason == "paused" and not answers and not expired:
        waiting = ", ".join(f"{pause.pause_id!r} ({pause.question})" for pause in state.pauses)
        raise ResumeError(f"the run waits for people: give answers={{pause_id: answer}} for one of {waiting}")
    hit = state.hit
    if hit is None or allowed_by_limit(state.limits).get(hit.limit) != hit.allowed:
        return  # no limit of its own ended it: a shared budget may be another one now
    allowed = allowed_by_limit(limits).get(hit.limit)
    if allowed is not None and allowed <= hit.allowed:
        raise ResumeError(f"{limit_reason(hit)}: pass limits= that allow more than {hit.allowed}", limit=hit.limit)


def _has_unapplied(state: RunState) -> bool:
    """Whether the post-model stage was cut off: then a completed run is gone on with for that alone."""
    return any(isinstance(m, ModelTurn) and m.extraction_ops for m in state.messages[state.applied :])
