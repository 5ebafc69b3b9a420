"""Doing the steps of a run: asking the model within the budget, running tools, telling what happens."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from endstop._budget import Amounts, Budget, Hold, Number, TimeLeft, usage_amounts
from endstop._errors import ModelError, PriceUnknown, RunError
from endstop._estimate import BYTES_PER_TOKEN, ContextSize, text_tokens, turn_tokens
from endstop._events import (
    Cancelled,
    ErrorEvent,
    Event,
    LimitWarning,
    RoundStarted,
    TextDelta,
    Thinking,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from endstop._limits import LimitHit, Pricing
from endstop._messages import ModelTurn, ToolCall, ToolReturn, Usage, UserMessage
from endstop._prices import GenaiPrices
from endstop._results import AgentResult, limit_reason
from endstop._steps import CallModel, Plan, RunTools, conclude
from endstop._tools import Batch, ToolContext, Workshop, run_calls
from endstop.models.base import Delta, ModelRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from endstop._state import RunState
    from endstop._stream import EventQueue

T = TypeVar("T")

LEAST_OUTPUT_TOKENS = 16
"""Room for fewer output tokens than this is no room: not even a short tool call fits."""

UNCAPPED_OUTPUT_TOKENS = 1_000_000
"""What is held for an answer that only a limit on something else bounds (a free model under a cost limit)."""

ROOMY_OUTPUT_TOKENS = 4_096
"""A request may write this many tokens where that many are left; of what is left beyond, it may take a half.

The other half is there for whoever shares the budget at the same time.
"""


class Run:
    """One run while it is live: the state that is kept, and all that is not."""

    def __init__(self, plan: Plan, state: RunState, budget: Budget, queue: EventQueue, deps: object) -> None:
        self.plan = plan
        self.state = state
        self.budget = budget
        self.path: tuple[str, ...] = (plan.name,)
        self._queue = queue
        self._deps = deps
        self._size = ContextSize(plan.instructions, plan.specs)
        self._token_limited = any(budget.left(unit) is not None for unit in ("tokens", "output_tokens", "cost"))
        self._call_ids = {c.call_id for m in state.messages if isinstance(m, ModelTurn) for c in m.tool_calls}
        self._untold: list[LimitHit] = []
        self._price = _price(plan, budget)
        self._reserve: Hold | None = None
        # An agent without tools gives the same answer in an ordinary round, so that it needs no reserve.
        self._keeps_reserve = state.limits.on_limit == "answer" and bool(plan.tools)
        self._shop = Workshop(
            tools=plan.tools,
            budget=budget,
            effects=plan.effects,
            context=self._context,
            on_call=self._on_call,
            on_return=self._on_return,
        )

    def __enter__(self) -> Run:
        self.budget.start_clock(anyio.current_time())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """However the run was left: nothing stays held, the counters are kept, and its last event is told."""
        if self._reserve is not None:
            self._reserve.release()
        self.budget.stop_clock(anyio.current_time())
        if isinstance(error, Exception):
            if isinstance(error, RunError):
                self.sync()
                error.state = self.state.copy()
            self.emit_last(ErrorEvent(error=str(error), code=getattr(error, "code", type(error).__name__)))
        elif error is not None:
            self.state.stop_reason = "cancelled"
            self.emit_last(Cancelled(result=self.result()))

    async def emit(self, event: Event) -> None:
        """Tell the caller; the event learns here whose it is."""
        await self._queue.put(self._stamped(event))

    def emit_last(self, event: Event) -> None:
        """Tell the caller without waiting for it to read: a cancellation must not come between."""
        self._queue.put_nowait(self._stamped(event))

    def sync(self) -> None:
        """Bring the counters of the state up to date."""
        self.state.spent = self.budget.spent(anyio.current_time())
        self.state.seq = self._queue.seq

    def result(self) -> AgentResult[Any]:
        """The result of the run as it is now, with a state of its own."""
        self.sync()
        return conclude(self.state.copy(), self.plan)

    async def call_model(self, step: CallModel) -> None:
        """Ask for a turn and add it to the history, or note the limit that is in the way."""
        hold = self._reserve_final() if step.final else self._reserve_round()
        if isinstance(hold, LimitHit):
            self._stop_at(hold)
            return
        self.state.round += 1
        request = ModelRequest(
            messages=self.state.messages,
            instructions=self.plan.instructions,
            tools=() if step.final else self.plan.specs,
            output_schema=self.plan.output.schema,
            max_output_tokens=int(hold.amounts["output_tokens"]) if self._token_limited else None,
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
            await self._tell_spent()

    async def run_tools(self, step: RunTools) -> None:
        """Answer the calls of the newest turn, whatever happens: every one has a return in the history then."""
        newest = self.state.messages[-1]
        cut = isinstance(newest, ModelTurn) and newest.finish_reason == "length"
        batch = Batch(calls=step.calls, cut=cut)
        unfinished = "Not run: the run is at its limit."
        try:
            if not step.refuse:
                unfinished = "Stopped before it was done; it may have had an effect."
                hit = await self._in_time(lambda: run_calls(batch, self._shop))
                if isinstance(hit, LimitHit):
                    self._stop_at(hit)
        finally:
            answers = batch.answers(unfinished)
            self.state.messages.extend(answers)
            self.state.side_effects += [t.name for t in batch.started if not t.read_only]
            self.state.unrun += [c for c, r in zip(step.calls, answers, strict=True) if r.status == "not_run"]
        for call, answer in zip(step.calls, answers, strict=True):
            if call.call_id not in batch.returns:
                await self._on_return(call, answer)
        if batch.hit is not None and self.state.hit is None and _ends_run(batch):
            self._stop_at(batch.hit)
        if batch.fatal is not None:
            raise batch.fatal
        if not step.refuse:
            self.state.unrun = self.state.unrun if self.state.hit is not None else []
            await self._warn(tell_model=self.state.limits.warn_model)

    def repair(self, problem: str) -> None:
        """Tell the model what is wrong with its output."""
        self.state.repairs += 1
        text = f"Your answer does not fit the required form: {problem}. Answer again, with the whole answer."
        self.state.messages.append(UserMessage(content=text, source="kernel"))

    # -- the model ---------------------------------------------------------------------------------

    def _reserve_round(self) -> Hold | LimitHit:
        """What an ordinary round takes, with the final answer's reserve brought up to the grown conversation first."""
        size = self._size.of(self.state.messages)
        if self._keeps_reserve:
            reserve = self.budget.exchange(self._reserve, self._amounts(size, self._answer_tokens()))
            if isinstance(reserve, LimitHit):
                return reserve
            self._reserve = reserve
        room = self._room(size)
        cap = max(min(room, ROOMY_OUTPUT_TOKENS), room // 2, LEAST_OUTPUT_TOKENS)
        return self.budget.reserve(self._amounts(size, cap))

    def _reserve_final(self) -> Hold | LimitHit:
        """What the final answer takes, out of the reserve and all else that is left; its notice is in the history then.

        It is noted before it is sent, so that no crash or resume buys it twice.
        """
        self.state.wrap_up = "asked"
        reason = limit_reason(self.state.hit) if self.state.hit else "the run must end"
        text = (
            f"You must stop here: {reason}. No tool can be called any more. Answer now, as well as you can, "
            "from what you have found so far, and say plainly what is missing."
        )
        size = self._size.of(self.state.messages) + text_tokens(text)
        cap = max(self._room(size, self._reserve), LEAST_OUTPUT_TOKENS)
        hold = self.budget.exchange(self._reserve, self._amounts(size, cap))
        if isinstance(hold, Hold):
            self._reserve = None
            self.state.messages.append(UserMessage(content=text, source="kernel"))
        return hold

    def _room(self, size: int, held: Hold | None = None) -> int:
        """Output tokens that every limit has room for after an input of `size`; `held` counts as free."""
        if not self._token_limited:
            return 0
        free: Amounts = held.amounts if held is not None else {}
        rooms: list[int] = []
        tokens, output, cost = (self.budget.left(unit) for unit in ("tokens", "output_tokens", "cost"))
        if tokens is not None:
            rooms.append(int(tokens + free.get("tokens", 0)) - size)
        if output is not None:
            rooms.append(int(output + free.get("output_tokens", 0)))
        if cost is not None and self._price is not None:
            input_cost = self._price.cost(Usage(input_tokens=size))
            thousand = self._price.cost(Usage(input_tokens=size, output_tokens=1_000)) - input_cost
            if thousand:
                rooms.append(int((cost + free.get("cost", 0) - input_cost) * 1_000 / thousand))
        return max(min(rooms, default=UNCAPPED_OUTPUT_TOKENS), 0)

    def _answer_tokens(self) -> int:
        limits = self.state.limits
        bounds = [limits.answer_tokens]
        bounds += [bound // 4 for bound in (limits.max_tokens, limits.max_output_tokens) if bound is not None]
        return min(bounds)

    def _amounts(self, size: int, cap: int) -> dict[str, Number]:
        """What one request of this input and output takes; tokens are held only where something limits them."""
        amounts: dict[str, Number] = {"model_rounds": 1, "model_calls": 1}
        if self._token_limited:
            amounts |= {"tokens": size + cap, "output_tokens": cap}
            if self._price is not None:
                amounts["cost"] = self._price.cost(Usage(input_tokens=size, output_tokens=cap))
        return amounts

    async def _attempts(self, request: ModelRequest, hold: Hold) -> ModelTurn | None:
        """The turn, after as many paid attempts as the policy and the budget allow; `None` where a limit ended it."""
        attempt = 0
        while True:
            attempt += 1
            await self.emit(RoundStarted(attempt=attempt, final=request.final))
            try:
                turn = await self._attempt(request, hold, attempt)
            except ModelError as error:
                again = await self._before_retry(error, attempt, hold, final=request.final)
                if isinstance(again, Hold):
                    hold = again
                    continue
                self.state.note = f"the last request failed: {error}"
                turn = again
            if isinstance(turn, LimitHit):
                self._stop_at(turn)
                return None
            return turn

    async def _attempt(self, request: ModelRequest, hold: Hold, attempt: int) -> ModelTurn | LimitHit:
        """One request. However it ends it is settled: by its usage, or by an estimate where that is not known."""
        turn: ModelTurn | LimitHit | None = None
        failed = False
        written = 0

        async def on_delta(delta: Delta) -> None:
            nonlocal written
            written += len(delta.text)
            await self.emit(Thinking(text=delta.text) if delta.kind == "thinking" else TextDelta(text=delta.text))

        async def ask() -> ModelTurn:
            return await self.plan.model.respond(request, on_delta)

        key = f"{self.state.round}/model" if attempt == 1 else f"{self.state.round}/model/{attempt}"
        try:
            turn = await self._in_time(lambda: self.plan.effects.step(key, ask), final=request.final)
            if isinstance(turn, ModelTurn) and turn.text and not written:
                await on_delta(Delta(text=turn.text))
            return turn
        except ModelError:
            failed = True
            raise
        finally:
            paid = {unit: hold.amounts[unit] for unit in ("model_rounds", "model_calls") if unit in hold.amounts}
            # A request cut short, by time or by the caller, is still billed; one that was refused is not.
            if not failed or written:
                paid |= self._bill(turn, written, int(hold.amounts.get("tokens", 0)))
            hold.settle(paid)

    def _bill(self, turn: ModelTurn | LimitHit | None, written: int, reserved: int) -> dict[str, Number]:
        if isinstance(turn, ModelTurn) and turn.usage is not None:
            usage = turn.usage
        else:
            output = turn_tokens(turn) if isinstance(turn, ModelTurn) else int(written / BYTES_PER_TOKEN)
            size = self._size.of(self.state.messages)
            usage = Usage(input_tokens=size, output_tokens=output, measured=False)
        cost = None if self._price is None else self._price.cost(usage)
        return usage_amounts(usage, cost, reserved_tokens=reserved)

    async def _before_retry(self, error: ModelError, attempt: int, hold: Hold, *, final: bool) -> Hold | LimitHit:
        """Wait, and take what the next attempt needs; the error is raised where there is none to make."""
        retry = self.plan.retry
        if not error.retryable or attempt >= retry.max_attempts:
            raise error
        if (error.retry_after_seconds or 0.0) > retry.max_retry_after_seconds:
            raise error
        wait = retry.wait_seconds(attempt, error.retry_after_seconds, random.random())
        left = self._time_left(final=final)
        if left is not None and wait >= left.seconds:
            return left.hit()
        await anyio.sleep(wait)
        return self.budget.reserve({unit: n for unit, n in hold.amounts.items() if unit != "model_rounds"})

    def _take(self, turn: ModelTurn, request: ModelRequest) -> None:
        """Add the turn to the history, its call ids made unique; note where it was cut at an output cap."""
        if request.final:
            self.state.wrap_up = "answered"
        self.state.messages.append(self._with_unique_ids(turn))
        if turn.finish_reason == "length" and not turn.tool_calls:
            output = turn.usage.output_tokens if turn.usage is not None else turn_tokens(turn)
            cap = request.max_output_tokens
            if self.state.hit is not None:
                self.state.note = "the final answer was cut at its output cap"
            elif cap is not None and output >= cap:
                self._stop_at(self._binding_limit(cap))
            else:
                self._stop_at(LimitHit(limit="model_output_cap", used=output, allowed=output))
            # What was written is the best there is: a further answer from the same room would be cut as well.
            if self.state.wrap_up == "none":
                self.state.wrap_up = "asked"

    def _binding_limit(self, cap: int) -> LimitHit:
        """The token or cost limit that left no more room than `cap`."""
        hit = self.budget.reserve(self._amounts(self._size.of(self.state.messages), cap))
        if isinstance(hit, LimitHit):
            return hit
        hit.release()
        return LimitHit(limit="model_output_cap", used=cap, allowed=cap)

    def _with_unique_ids(self, turn: ModelTurn) -> ModelTurn:
        ids = [call.call_id for call in turn.tool_calls]
        if all(ids) and len(set(ids)) == len(ids) and self._call_ids.isdisjoint(ids):
            self._call_ids.update(ids)
            return turn
        calls: list[ToolCall] = []
        for index, call in enumerate(turn.tool_calls):
            call_id = call.call_id
            if not call_id or call_id in self._call_ids:
                call_id = f"call_{self.state.round}_{index}"
            self._call_ids.add(call_id)
            calls.append(replace(call, call_id=call_id))
        # The provider's own form has the old ids, so that replaying it would not match the returns.
        return replace(turn, tool_calls=tuple(calls), native=None)

    # -- limits and events -------------------------------------------------------------------------

    def _stop_at(self, hit: LimitHit) -> None:
        if self.state.hit is None:
            self.state.hit = hit

    def _time_left(self, *, final: bool = False) -> TimeLeft | None:
        """The time left for ordinary work, or for the final answer, whose seconds ordinary work must leave."""
        left = self.budget.time_left(anyio.current_time(), self.plan.effects.now)
        if left is None or final or not self._keeps_reserve:
            return left
        return replace(left, seconds=left.seconds - self.state.limits.answer_seconds_held)

    async def _in_time(self, work: Callable[[], Awaitable[T]], *, final: bool = False) -> T | LimitHit:
        """Do the work, or as much as the time limits allow; what is under way then is cancelled."""
        left = self._time_left(final=final)
        if left is None:
            return await work()
        if left.seconds > 0:
            with anyio.move_on_after(left.seconds):
                return await work()
            left = self._time_left(final=final) or left
        return left.hit()

    async def _tell_spent(self) -> None:
        now = anyio.current_time()
        await self.emit(UsageEvent(spent=self.budget.spent(now), remaining=self.budget.remaining(now)))
        await self._warn(tell_model=False)

    async def _warn(self, *, tell_model: bool) -> None:
        share = self.state.limits.warn_at
        if share is None:
            return
        for hit in self.budget.used_up_to(share, anyio.current_time()):
            if hit.limit not in self.state.warned:
                self.state.warned.append(hit.limit)
                self._untold.append(hit)
                await self.emit(LimitWarning(hit=hit))
        if tell_model and self._untold and self.state.hit is None:
            lines = [f"{hit.limit}: {hit.used} of {hit.allowed} used" for hit in self._untold]
            text = "The run is near its limits: " + "; ".join(lines) + ". Come to an answer soon."
            self.state.messages.append(UserMessage(content=text, source="kernel"))
            self._untold.clear()

    def _stamped(self, event: Event) -> Event:
        # The one place where an event learns whose it is: it is not shared with anybody yet.
        object.__setattr__(event, "run_id", self.state.run_id)
        object.__setattr__(event, "path", self.path)
        object.__setattr__(event, "round", self.state.round)
        return event

    def _context(self, call: ToolCall) -> ToolContext[Any]:
        return ToolContext(
            deps=self._deps,
            run_id=self.state.run_id,
            path=self.path,
            round=self.state.round,
            call_id=call.call_id,
            tool=call.name,
            budget=self.budget,
        )

    async def _on_call(self, call: ToolCall) -> None:
        await self.emit(ToolCallEvent(call=call))

    async def _on_return(self, call: ToolCall, result: ToolReturn) -> None:
        await self.emit(ToolResultEvent(call=call, result=result))


def _ends_run(batch: Batch) -> bool:
    """Whether the limit that kept a call of the batch from running ends the run.

    A limit on one tool leaves the others, so that the model may go on; a round in which nothing at
    all could run shows that it does not.
    """
    assert batch.hit is not None
    return not batch.hit.limit.startswith("tool_limits") or not batch.started


def _price(plan: Plan, budget: Budget) -> Pricing | None:
    """The price that the run is charged by; `None` where there is no cost limit and no price table.

    Raises:
        PriceUnknown: a cost limit is set, here or above, and no price is known or assumed.
    """
    limited = budget.left("cost") is not None
    if plan.prices is None and not limited:
        return None
    price = (plan.prices or GenaiPrices()).price_of(plan.model.name) or budget.limits.assume_price
    if price is None:
        if limited:
            raise PriceUnknown(plan.model.name)
        return None
    budget.name_price_source(price.source)
    return price
