"""Doing the steps of a run: asking the model within the budget, running tools, telling what happens."""

from __future__ import annotations

import itertools
import math
import random
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import anyio

from endstop._budget import Budget, Hold, TimeLeft
from endstop._errors import ModelError, RunError
from endstop._estimate import turn_tokens
from endstop._events import (
    AskUser,
    Cancelled,
    ErrorEvent,
    Event,
    InterruptEvent,
    LimitWarning,
    LoopDetected,
    RetrievedEvent,
    RoundStarted,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from endstop._limits import LOOP, LimitHit, PlanLimits
from endstop._loops import Action, Outcome, ToolBatch
from endstop._messages import ModelTurn, ToolCall, ToolReturn, UserMessage, pending_calls, text_of
from endstop._pauses import Reply, close_call, close_pauses
from endstop._purse import Purse
from endstop._results import FINAL_NOTICE, limits_notice, loop_notice
from endstop._steps import CallModel, Plan, RunTools, conclude
from endstop._tools import Batch, Paused, ToolContext, Workshop, run_calls, said
from endstop._writing import Writing
from endstop.models.base import ModelRequest
from endstop.turn_observation import observe_recall, observe_turn

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from types import TracebackType

    from endstop._results import AgentResult
    from endstop._stages import Retrieval
    from endstop._state import RunState
    from endstop._stream import EventQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run stands: the agents above it, how deep it may delegate, and what its tools are given.

    `keys` opens the keys of its effects, so that no run below the same one shares any.
    """

    path: tuple[str, ...] = ()
    depth_left: int | None = None
    deps: object = None
    keys: str = ""

    def depth_for(self, limits: PlanLimits) -> int | None:
        """The levels of delegation that a run here has left under its own limits too."""
        bounds = [bound for bound in (self.depth_left, limits.max_depth) if bound is not None]
        return min(bounds, default=None)


class Run:
    """One run while it is live: the state that is kept, and all that is not."""

    def __init__(self, plan: Plan, state: RunState, budget: Budget, queue: EventQueue, place: Place) -> None:
        self.plan = plan
        self.state = state
        self.budget = budget
        self.path = (*place.path, plan.name)
        self._depth_left = place.depth_for(state.limits)
        self._keys = place.keys
        self.queue = queue
        self._deps = place.deps
        self._purse = Purse(plan, state.limits, budget, history_length=state.first_message)
        left = self._time_left()
        if self._purse.keeps_reserve and left is not None:
            budget.answer_seconds = state.limits.seconds_for_answer(left.seconds)
        self._clock = anyio.CancelScope()
        self._alarm = math.inf
        self.is_cancelled = False
        self._call_ids = {c.call_id for m in state.messages if isinstance(m, ModelTurn) for c in m.tool_calls}
        self._untold: list[LimitHit] = []

    def __enter__(self) -> Run:
        self.budget.start_clock(time.monotonic())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """However the run was left: nothing stays held, the counters are kept, and its last event is told."""
        self._purse.release()
        self.budget.stop_clock(time.monotonic())
        if isinstance(error, Exception):
            # It did not end: whoever goes on from its state finds it where it was.
            self.state.stop_reason = None
            code: object = getattr(error, "code", None)
            self.tell(ErrorEvent(error=said(error), code=code if isinstance(code, str) else type(error).__name__))
            self.sync()
            if isinstance(error, RunError):
                error.state = self.state.copy()
        elif error is not None or self.state.stop_reason == "cancelled":
            self.state.stop_reason = "cancelled"
            self._give_up_pauses()
            self.tell(Cancelled(result=self.result()))

    def _give_up_pauses(self) -> None:
        """Answer the calls that wait for people, so that the history is valid; their pauses take no answer any more."""
        close_pauses(self.state)
        for call in pending_calls(self.state.messages):
            self.state.unrun.append(call)
            answer = ToolReturn(call_id=call.call_id, name=call.name, content=_STOPPED, status="not_run")
            self.state.messages.append(answer)

    def tell(self, event: Event) -> None:
        """Tell the caller without waiting for it to read; the event learns here whose it is."""
        # It is not shared with anybody yet.
        object.__setattr__(event, "run_id", self.state.run_id)
        object.__setattr__(event, "path", self.path)
        object.__setattr__(event, "round", self.state.round)
        self.queue.put(event)

    def sync(self) -> None:
        """Bring the counters of the state up to date."""
        self.state.spent = self.budget.spent(time.monotonic())
        self.state.seq = self.queue.seq

    def result(self) -> AgentResult[Any]:
        """The result of the run as it is now, with a state of its own, for the event that is told next."""
        self.sync()
        state = self.state.copy()
        state.seq += 1
        return conclude(state, self.plan)

    # -- time --------------------------------------------------------------------------------------

    def working_time(self) -> anyio.CancelScope:
        """The scope that work is done in: it is cancelled when the time for it is up.

        Ordinary work leaves the seconds that are kept for the final answer.
        """
        self._clock = anyio.CancelScope()
        self._set_alarm()
        if self.is_cancelled:
            self._clock.cancel()
        return self._clock

    def cancel(self) -> None:
        """End the work now; the run is cancelled, not out of time."""
        self.is_cancelled = True
        self._clock.cancel()

    def work_was_cut(self) -> None:
        """Note what ended the work: the caller, a time limit, or the time of the final answer."""
        if self.state.stop_reason is None and self.is_cancelled:
            self.state.stop_reason = "cancelled"
        elif self.state.stop_reason is None:
            self._note_time()

    def is_late(self) -> bool:
        """Whether the time for the work that is going on is up; it is noted then.

        Nothing can cancel code that never waits, so this is asked before each step as well.
        """
        late = time.monotonic() >= self._alarm
        if late:
            self._note_time()
        return late

    def _note_time(self) -> None:
        """The time is up: that ends the run, or the final answer that it was kept for."""
        left = self._time_left()
        if self.state.hit is not None:
            self.state.note = _TOO_LATE
            self.state.wrap_up = "asked"
        elif left is not None:
            self._stop_at(left.hit())

    def _set_alarm(self) -> None:
        left = self._time_left()
        # A last answer that was given, or asked for and cut off, leaves nothing to do that takes time.
        done = self.state.wrap_up == "answered" or self.state.note == _TOO_LATE
        if left is None or done:
            seconds = math.inf
        else:
            kept = self.budget.answer_seconds if self.state.hit is None else 0.0
            seconds = max(left.seconds - kept, 0.0)
        self._alarm = time.monotonic() + seconds
        self._clock.deadline = anyio.current_time() + seconds

    def _time_left(self) -> TimeLeft | None:
        return self.budget.time_left(time.monotonic(), self.plan.effects.now)

    def _stop_at(self, hit: LimitHit) -> None:
        if self.state.hit is None:
            self.state.hit = hit
            self._set_alarm()

    # -- stages ------------------------------------------------------------------------------------

    async def recall(self, retrieval: Retrieval) -> None:
        """Run the retrieval stage on the prompt and put what it found before it."""
        prompt = self.state.messages[self.state.first_message]
        text = text_of(prompt.content) if isinstance(prompt, UserMessage) else ""
        found = await self.plan.effects.step(f"{self._keys}retrieval", lambda: retrieval.retrieve(text))
        self.state.recalled = True
        if found.text:
            recalled = UserMessage(content=found.text, source="kernel")
            self.state.messages.insert(self.state.first_message, recalled)
        observe_recall(found.counts)
        self.tell(RetrievedEvent(counts=found.counts))

    async def apply_extractions(self) -> None:
        """Hand the extraction operations that were not applied yet to the post-model stage."""
        stage, state = self.plan.post_model, self.state
        fresh = state.messages[max(state.applied, state.first_message) :]
        ops = [op for message in fresh if isinstance(message, ModelTurn) for op in message.extraction_ops]
        if stage is not None and ops:
            await stage.apply(ops)
        state.applied = len(state.messages)

    # -- tools -------------------------------------------------------------------------------------

    async def run_tools(self, step: RunTools) -> None:
        """Answer the calls of the newest turn, whatever happens: every one has a return in the history then."""
        if self.queue.is_full:
            await self.queue.room()
        newest = self.state.messages[-1]
        cut = isinstance(newest, ModelTurn) and newest.finish_reason == "length"
        batch = Batch(calls=step.calls, cut=cut, replies=self.state.replies)
        if step.refuse:
            close_pauses(self.state)
        elif self.is_late():
            return
        try:
            if not step.refuse:
                await run_calls(batch, self._shop())
        finally:
            self._record(batch, "Not run: the run must end." if step.refuse else _STOPPED)
        if batch.fatal is not None:
            raise batch.fatal
        if batch.hit is not None and self._ends_run(batch, batch.hit):
            self._stop_at(batch.hit)
        if not step.refuse:
            self._watch_for_loops()
        if self.state.hit is None:
            self.state.unrun.clear()
            self._warn()
            if not batch.paused:
                self._tell_model()

    def _record(self, batch: Batch, unfinished: str) -> None:
        """Put a return for every call into the history, in the order asked. It waits for nothing: it always happens."""
        for call in batch.calls:
            if (paused := batch.paused.get(call.call_id)) is not None:
                self._pause(call, paused)
                continue
            close_call(self.state, call.call_id)
            answer = batch.returns.get(call.call_id)
            if answer is None:
                answer = ToolReturn(call_id=call.call_id, name=call.name, content=unfinished, status="not_run")
                self.tell(ToolResultEvent(call=call, result=answer))
            if answer.status == "not_run":
                self.state.unrun.append(call)
            self.state.messages.append(answer)
        self.state.side_effects += [tool.name for tool in batch.started if not tool.read_only]

    def _watch_for_loops(self) -> None:
        """Show the turn's calls to the detector: a first finding is told to the model, a later one ends the run."""
        detector, state = self.plan.loops, self.state
        if detector is None:
            return
        outcomes: list[Outcome] = []
        for call, result in self._newest_calls():
            if result is None:
                return  # One step, also where some of the calls waited for people.
            outcomes.append(self._outcome(call, result))
        state.loops, finding = detector.observe(state.loops, ToolBatch(outcomes=tuple(outcomes)))
        if finding is None:
            return
        left = self.budget.left("model_rounds", "model_calls")
        nudged = not finding.persistent and state.hit is None and all(n is None or n > 0 for n in left)
        self.tell(LoopDetected(reason=finding.reason, repeats=finding.repeats, nudged=nudged))
        if finding.persistent:
            state.note = state.note or finding.reason
            self._stop_at(LimitHit(limit=LOOP, used=finding.repeats, allowed=detector.policy.repeats))
        elif nudged:
            state.messages.append(UserMessage(content=loop_notice(finding.reason), source="kernel"))

    def _ends_run(self, batch: Batch, hit: LimitHit) -> bool:
        """Whether the limit that kept a call from running ends the run.

        A limit on one tool leaves the others, so that the model may go on; a round in which nothing at
        all ran or waits shows that it does not.
        """
        if not hit.limit.startswith("tool_limits"):
            return True
        return not batch.started and all(result and result.status != "ok" for _, result in self._newest_calls())

    def _newest_calls(self) -> list[tuple[ToolCall, ToolReturn | None]]:
        """The calls of the newest turn with their returns (`None` for one that waits for a person)."""
        returns: dict[str, ToolReturn] = {}
        for message in reversed(self.state.messages):
            if isinstance(message, ToolReturn):
                returns[message.call_id] = message
            elif isinstance(message, ModelTurn):
                return [(call, returns.get(call.call_id)) for call in message.tool_calls]
        return []

    def _outcome(self, call: ToolCall, result: ToolReturn) -> Outcome:
        tool = self.plan.tools.get(call.name)
        action = Action(
            name=call.name,
            arguments=call.arguments if call.invalid_arguments is None else call.invalid_arguments,
            polling=tool is not None and tool.polling,
            repeatable=tool is not None and tool.repeatable,
            read_only=tool is not None and tool.read_only,
            unknown=tool is None,
        )
        return Outcome(action=action, result=result.content, failed=result.status == "error")

    def _pause(self, call: ToolCall, paused: Paused) -> None:
        """Note what the call waits for; what it has started already is not paid again."""
        state = self.state
        state.pauses += paused.pauses
        started = any(pause.kind != "approval" or pause.path != self.path for pause in paused.pauses)
        reply = state.replies.get(call.call_id, Reply())
        state.replies[call.call_id] = replace(reply, started=started, paused=reply.paused + 1)
        if paused.child is not None:
            state.children[call.call_id] = paused.child
        for pause in paused.pauses:
            if pause.path == self.path:
                self.tell(AskUser(pause=pause) if pause.kind == "ask_user" else InterruptEvent(pause=pause))

    def place_below(self, call_id: str) -> Place:
        """Where a run stands that is delegated in this call."""
        left = self._depth_left
        keys = f"{self._keys}{self.state.round}/tool/{call_id}/"
        return Place(path=self.path, depth_left=None if left is None else left - 1, deps=self._deps, keys=keys)

    def _tool_key(self, call: ToolCall) -> str:
        return f"{self._keys}{self.state.round}/tool/{call.call_id}"

    def waiting_child(self, call_id: str) -> RunState | None:
        """The delegated run that paused in this call, if there is one."""
        return self.state.children.get(call_id)

    # -- the model ---------------------------------------------------------------------------------

    async def call_model(self, step: CallModel) -> None:
        """Ask for a turn and add it to the history, or note the limit that is in the way."""
        if self.queue.is_full:
            await self.queue.room()
        if self.is_late():
            return
        hold = self._hold_final() if step.final else self._purse.hold_round(self.state.messages)
        if isinstance(hold, LimitHit):
            self._stop_at(hold)
            return
        self.state.round += 1
        request = ModelRequest(
            messages=self.state.messages,
            instructions=self.plan.instructions,
            tools=() if step.final else self.plan.specs,
            output_schema=self.plan.output.schema,
            max_output_tokens=self._purse.cap(hold),
            final=step.final,
        )
        try:
            turn = await self._attempts(request, hold)
        except ModelError as error:
            if not step.final:
                raise
            self.state.note = f"the final answer failed: {error}"
            return
        if turn is not None:
            self._take(turn, request)
            self.tell(UsageEvent(spent=self.budget.spent(time.monotonic()), limits=self.state.limits))
            self._warn()

    def repair(self, problem: str) -> None:
        """Tell the model what is wrong with its output."""
        self.state.repairs += 1
        text = f"Your answer does not fit the required form: {problem}. Answer again, with the whole answer."
        self.state.messages.append(UserMessage(content=text, source="kernel"))

    def _hold_final(self) -> Hold | LimitHit:
        """Hold what the final answer takes. That it is asked for is noted before, so that nothing buys it twice."""
        self.state.wrap_up = "asked"
        hold = self._purse.hold_final(self.state.messages, FINAL_NOTICE)
        if isinstance(hold, Hold):
            self.state.wrap_up_at = len(self.state.messages)
            self.state.messages.append(UserMessage(content=FINAL_NOTICE, source="kernel"))
        return hold

    async def _attempts(self, request: ModelRequest, hold: Hold) -> ModelTurn | None:
        """The turn, after as many paid attempts as the policy and the budget allow; `None` where a limit ended it."""
        attempt = 1
        while True:
            self.tell(RoundStarted(attempt=attempt, final=request.final))
            try:
                return await self._attempt(request, hold, attempt)
            except ModelError as error:
                again = await self._before_retry(error, attempt, hold)
                if isinstance(again, LimitHit):
                    self.state.note = f"the last request failed: {error}"
                    self._stop_at(again)
                    return None
                hold = again
            attempt += 1

    async def _attempt(self, request: ModelRequest, hold: Hold, attempt: int) -> ModelTurn:
        """One request. However it ends it is paid: by its usage, or by an estimate where that is not known."""
        turn: ModelTurn | None = None
        refused = False
        cap, tag = request.max_output_tokens, self.plan.extraction_tag
        writing = Writing(self.queue, self.tell, extraction_tag=tag, cap=cap)

        def ask() -> Awaitable[ModelTurn]:
            return self.plan.model.respond(request, writing.on_delta)

        key = f"{self._keys}{self.state.round}/model" + (f"/{attempt}" if attempt > 1 else "")
        try:
            turn = _with_sound_usage(await self.plan.effects.step(key, ask))
            return writing.finish(turn)
        except ModelError:
            refused = not writing.written
            raise
        finally:
            writing.is_over = True
            if refused:
                self._purse.settle_refused(hold)
            else:
                self._purse.settle(hold, turn, self.state.messages, writing.written)
                self.state.partial_text = "" if turn is not None else writing.shown

    async def _before_retry(self, error: ModelError, attempt: int, hold: Hold) -> Hold | LimitHit:
        """Wait, and hold what the next attempt takes; the error is raised where there is none to make."""
        retry = self.plan.retry
        asked_wait = error.retry_after_seconds or 0.0
        if not error.retryable or attempt >= retry.max_attempts or asked_wait > retry.max_retry_after_seconds:
            raise error
        wait = retry.wait_seconds(attempt, asked_wait, random.random())
        left = self._time_left()
        if left is not None and time.monotonic() + wait >= self._alarm:
            return left.hit()
        await anyio.sleep(wait)
        return self._purse.hold_again(hold)

    def _take(self, turn: ModelTurn, request: ModelRequest) -> None:
        """Add the turn to the history, its call ids made unique; note where it was cut at an output cap."""
        if request.final:
            self.state.wrap_up = "answered"
        turn = self._with_unique_ids(turn)
        observe_turn(turn)
        self.state.messages.append(turn)
        if turn.finish_reason != "length" or turn.tool_calls:
            return
        if request.final:
            self.state.note = "the final answer was cut at its output cap"
            return
        output = turn.usage.output_tokens if turn.usage is not None else turn_tokens(turn)
        cap = request.max_output_tokens
        if cap is not None and output >= cap:
            self._stop_at(self._purse.what_capped(self.state.messages, cap))
        else:
            self._stop_at(LimitHit(limit="model_output_cap", used=output, allowed=output))
        # What was written is the best there is: another answer from the same room would be cut as well.
        self.state.wrap_up = "asked"

    def _with_unique_ids(self, turn: ModelTurn) -> ModelTurn:
        ids = [call.call_id for call in turn.tool_calls]
        if all(ids) and len(set(ids)) == len(ids) and self._call_ids.isdisjoint(ids):
            self._call_ids.update(ids)
            return turn
        calls: list[ToolCall] = []
        fresh = (f"call_{self.state.round}_{number}" for number in itertools.count())
        for call in turn.tool_calls:
            call_id = call.call_id
            if not call_id or call_id in self._call_ids:
                call_id = next(made for made in fresh if made not in self._call_ids and made not in ids)
            self._call_ids.add(call_id)
            calls.append(replace(call, call_id=call_id))
        # The provider's own form has the old ids, so that replaying it would not match the returns.
        return replace(turn, tool_calls=tuple(calls), native=None)

    # -- warnings and tool events ------------------------------------------------------------------

    def _warn(self) -> None:
        for hit in self.budget.due_warnings(time.monotonic()):
            self._untold.append(hit)
            self.tell(LimitWarning(hit=hit))

    def _tell_model(self) -> None:
        if self._untold and self.state.limits.warn_model:
            self.state.messages.append(UserMessage(content=limits_notice(self._untold), source="kernel"))
            self._untold.clear()

    def _shop(self) -> Workshop:
        # Made for one batch: a run that kept it, and so itself, would only be freed by the garbage collector.
        return Workshop(
            tools=self.plan.tools,
            budget=self.budget,
            effects=self.plan.effects,
            context=self._context,
            key=self._tool_key,
            on_call=self._on_call,
            on_return=self._on_return,
        )

    def _context(self, call: ToolCall, reply: Reply) -> ToolContext[Any]:
        return ToolContext(
            deps=self._deps,
            run_id=self.state.run_id,
            path=self.path,
            round=self.state.round,
            call_id=call.call_id,
            tool=call.name,
            budget=self.budget,
            answers=reply.answers,
            parent=self,
        )

    def _on_call(self, call: ToolCall) -> None:
        self.tell(ToolCallEvent(call=call))

    def _on_return(self, call: ToolCall, result: ToolReturn) -> None:
        self.tell(ToolResultEvent(call=call, result=result))


_TOO_LATE = "the time was up before the final answer was there"
_STOPPED = "Stopped before it was done; it may have had an effect."


def _with_sound_usage(turn: ModelTurn) -> ModelTurn:
    """The turn; usage below nothing, which would give something back to the budget, counts as not reported."""
    usage = turn.usage
    if usage is None or all(map(_is_count, (usage.input_tokens, usage.output_tokens, usage.cached_input_tokens))):
        return turn
    return replace(turn, usage=None)


def _is_count(value: object) -> bool:
    """Whether it is a number of tokens; models are not all type-checked."""
    return isinstance(value, int) and value >= 0
