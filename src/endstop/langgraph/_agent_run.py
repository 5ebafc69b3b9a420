"""A run of an agent that `BoundMiddleware` bounds, while it is live: its budget, its reserve, its batch of calls."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from endstop._budget import Budget, Hold, allowed_by_limit, used_by_limit
from endstop._estimate import text_tokens
from endstop._limits import LOOP, TOOL_UNIT, LimitHit, PlanLimits, Prices, Spent
from endstop._loops import LoopDetector
from endstop._messages import ToolReturn
from endstop._results import limit_reason
from endstop._steps import stop_reason_at
from endstop.langgraph._agent_meters import AgentPurse, ToolMeter
from endstop.langgraph._channels import LEG, RECORD, Addition, Head, RunRecord
from endstop.langgraph._compat import is_summary
from endstop.langgraph._history import CUT_CALLS, kernel_messages, repaired, unanswered, was_cut
from endstop.langgraph._limits import GraphEnding, GraphSpent, spent_of
from endstop.langgraph._meter import wall_time
from endstop.langgraph._watch import LoopWatch
from endstop.models._langchain_codec import as_json, at

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from decimal import Decimal

    from langchain_core.messages import BaseMessage

    from endstop._budget import TimeLeft
    from endstop._messages import ToolCall
    from endstop._results import Rung
    from endstop.langgraph._channels import WrapUp
    from endstop.langgraph._meter import Meter
    from endstop.langgraph._pay import Payment, Request

MOST_LIVE_RUNS = 1_024
"""Runs that a middleware remembers beside their state, the newest ones; any other goes on from its state alone."""

TOOL_LIMITS = "tool_limits"

_BROKEN_OFF = "the conversation was broken off before"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a `BoundMiddleware` was made with."""

    limits: PlanLimits
    thread_limits: PlanLimits | None
    loops: LoopDetector | None
    prices: Prices | None


class AgentRun:
    """A run in this process.

    The state of the graph is what counts: this goes on from one record and is left behind where the state has another.
    What a node spent that then failed is known here alone, and is added to the state with the next visit of the model.
    Safe to use from the threads of several tool calls at once.
    """

    def __init__(self, record: RunRecord, bounds: Bounds, above: Meter | None, *, keeps_reserve: bool) -> None:
        limits = bounds.limits
        self.record = record
        self.bounds = bounds
        parent = above.budget if above is not None else None
        self._parent = parent
        if bounds.thread_limits is not None:
            parent = Budget(bounds.thread_limits, parent=parent, spent=record.thread)
        self._thread = parent if bounds.thread_limits is not None else None
        self.budget = Budget(limits, parent=parent, spent=record.spent)
        self.keeps_reserve = keeps_reserve and limits.on_limit == "answer"
        self.purse = AgentPurse(self.budget, limits, prices=bounds.prices, keeps_reserve=self.keeps_reserve)
        self.calls = Calls(self.budget)
        self.children: set[str] = set()
        left = self.budget.time_left(time.monotonic(), wall_time)
        if self.keeps_reserve and left is not None and record.wrap_up == "none":
            self.budget.answer_seconds = limits.seconds_for_answer(left.seconds)
        self._task = ""
        self._sound: tuple[int, BaseMessage | None] = (0, None)
        self._frames: dict[tuple[str | None, tuple[str, ...]], int] = {}
        self._lock = threading.Lock()

    def goes_on_from(self, head: Head, above: Meter | None) -> bool:
        """Whether this is the run of a record with this head, and knows of everything that it has spent."""
        parent = above.budget if above is not None else None
        mine = self.record.head
        return mine[:-1] == head[:-1] and mine.steps >= head.steps and self._parent is parent

    def sound(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """The messages with every call answered. What was sound at the last visit, and still stands, is."""
        known, newest = self._sound
        start = known if 0 < known <= len(messages) and messages[known - 1] is newest else 0
        sound = [*messages[:start], *repaired(messages[start:], _BROKEN_OFF)]
        if len(sound) == len(messages) and messages:
            self._sound = len(messages), messages[-1]
        return sound

    def enter_round(self, task: str) -> int:
        """How many rounds a visit of the model node is: none where a retry around the middleware visits it again."""
        is_new, self._task = task != self._task, task
        return int(is_new)

    def stop_at(self, hit: LimitHit) -> None:
        """Note the limit that ends the run; the first one counts."""
        with self._lock:
            self.record = replace(self.record, hit=self.record.hit or hit)

    def note(self, text: str) -> None:
        """Note what else there is to say of the ending."""
        self.record = replace(self.record, note=self.record.note or text)

    def wrap_up(self, stage: WrapUp) -> None:
        """Note that the final answer was asked for, or had: nothing buys it twice."""
        self.record = replace(self.record, wrap_up=stage)

    def may_answer(self) -> bool:
        """Whether the final answer is to be asked for; that it is, is noted before."""
        may = self.keeps_reserve and self.record.wrap_up == "none"
        if may:
            self.wrap_up("asked")
            self.budget.answer_seconds = 0.0  # It is what they were kept for.
        return may

    def offered(self, tools: Iterable[object]) -> None:
        """Note the tools that the model was offered: a call of any other is of none."""
        names = tuple(name_of(tool) for tool in tools)
        if names != self.record.tools:
            self.record = replace(self.record, tools=names)

    def stop_at_cap(self, payment: Payment) -> None:
        """Note the limit that left an answer no more room than it needed. Another answer would be cut as well."""
        self.stop_at(self.purse.what_capped(payment))
        self.wrap_up("asked")

    def frame_tokens(self, system_prompt: str | None, tools: Sequence[object]) -> int:
        """The estimated tokens of what a request carries beside its messages; 0 where nothing limits tokens."""
        if not self.purse.is_limited:
            return 0
        key = (system_prompt, tuple(map(name_of, tools)))
        if key not in self._frames:
            specs = [convert_to_openai_tool(tool) if isinstance(tool, BaseTool) else tool for tool in tools]
            self._frames[key] = text_tokens(system_prompt or "") + sum(text_tokens(json.dumps(spec)) for spec in specs)
        return self._frames[key]

    def out_of_time(self) -> LimitHit | None:
        """The time limit that is used up, if one is."""
        left = self.seconds_left()
        return self.time_hit() if left is not None and left <= 0 else None

    def time_hit(self) -> LimitHit:
        """The tightest time limit, which there must be, as used up."""
        left = self._time_left()
        assert left is not None
        return left.hit()

    def seconds_left(self) -> float | None:
        """The seconds that are left for what comes before the final answer, or for it; `None` for no limit."""
        left = self._time_left()
        return None if left is None else max(left.seconds - self.budget.answer_seconds, 0.0)

    def _time_left(self) -> TimeLeft | None:
        return self.budget.time_left(time.monotonic(), wall_time)

    def own(self, messages: Sequence[BaseMessage]) -> Sequence[BaseMessage]:
        """The messages of this run: from the one on that it began with; all of them where that is gone."""
        for index in range(len(messages) - 1, -1, -1):
            if messages[index].id == self.record.turn:
                return messages[index:]
        return messages

    def allot(self, messages: Sequence[BaseMessage], call_id: str, name: str) -> Hold | LimitHit:
        """What pays a call of the newest turn, or the limit in its way."""
        if self.record.hit is None:
            self.purse.keep(messages)
        return self.calls.allot(messages, call_id, name, self.record.tools)

    def tool_meter(self, paid: Hold | None) -> ToolMeter:
        """What one call of a tool is metered by."""
        return ToolMeter(self.budget, self.bounds.limits, self.bounds.prices, paid, self.children)

    def add(self, spent: Spent, effects: Iterable[str], hit: LimitHit | None) -> dict[str, object]:
        """Add a call to the run; what is returned tells it to the state.

        A limit on one tool does not end the run by itself.
        """
        now = time.monotonic()
        refused = hit if hit is not None and hit.limit.startswith(TOOL_LIMITS) else None
        with self._lock:
            more = Addition(
                run_id=self.record.run_id,
                spent=replace(spent, seconds=self.budget.working_seconds(now)),
                thread_seconds=self._thread.working_seconds(now) if self._thread is not None else 0.0,
                effects=tuple(effects),
                hit=None if refused is not None else hit,
                refused=refused,
            )
            self.record = self.record.plus(more)
        return {RECORD: more.to_data(), LEG: True}

    def charge_summary(self, request: Request) -> None:
        """Charge the call by which another middleware made the summary in a request: nothing metered it."""
        first = request.messages[0] if request.messages else None
        if first is not None and is_summary(first) and first.id != self.record.summary:
            self.purse.charge_unseen(request, text_tokens(str(first.text)))
            self.record = replace(self.record, summary=first.id or "")

    def find_hit(self, messages: Sequence[BaseMessage]) -> LimitHit | None:
        """The limit that ends the run before another request, if one does."""
        record = self.record
        if record.hit is None and record.refused is not None and not record.started and _nothing_ran(messages):
            # A limit on one tool leaves the others; a round in which nothing ran shows that the model does not.
            return record.refused
        return record.hit or self.out_of_time()

    def watch_for_loops(self, messages: Sequence[BaseMessage], tools: Iterable[object]) -> str | None:
        """Show the newest turn's calls to the detector; why the model is to be told of a loop, if it is.

        A loop that goes on is noted as what ends the run.
        """
        if self.bounds.loops is None:
            return None
        watch = LoopWatch(self.bounds.loops, self.record.loops, self.record.observed)
        traits = {tool.name: tool.metadata for tool in tools if isinstance(tool, BaseTool) and tool.metadata}
        finding = watch.sent(messages, traits)
        self.record = replace(self.record, loops=watch.state, observed=watch.observed)
        if finding is None:
            return None
        if finding.persistent:
            self.note(finding.reason)
            turn, _ = newest_turn(messages)
            if turn is not None and was_cut(turn):
                self.record = replace(self.record, note=f"{self.record.note}; {CUT_CALLS}")
            self.stop_at(LimitHit(limit=LOOP, used=finding.repeats, allowed=watch.most_repeats))
            return None
        left = self.budget.left("model_rounds", "model_calls")
        return finding.reason if all(n is None or n > 0 for n in left) else None

    def near_limits(self) -> list[LimitHit]:
        """The limits that the model is to be told of because they are nearly used up; each comes once."""
        due = self.budget.due_warnings(time.monotonic())
        return due if self.bounds.limits.warn_model else []

    def spent(self) -> GraphSpent:
        """What the run has spent so far."""
        return spent_of(self.budget, time.monotonic())

    def leave(self, tip: str) -> dict[str, object]:
        """The state after a visit of the model node."""
        now = time.monotonic()
        spent = self.budget.spent(now)
        thread = self._thread.spent(now) if self._thread is not None else spent
        with self._lock:
            self.record = replace(self.record, tip=tip, steps=0, started=0, refused=None, spent=spent, thread=thread)
        return {RECORD: self.record.to_data(), LEG: True}

    def end(self) -> bool:
        """Note that the run has ended: nothing is kept for it any more. Whether it had before."""
        self.purse.release()
        had, self.record = self.record.ended, replace(self.record, ended=True)
        return had

    def ending(self, rung: Rung, text: str, pending: tuple[ToolCall, ...]) -> GraphEnding:
        """How the run ends: at the limit that it has hit."""
        hit = self.record.hit
        assert hit is not None
        spent = self.spent()
        hit = replace(hit, used=max(hit.used, self._used_of(hit)))
        reason, note = limit_reason(hit), self.record.note
        return GraphEnding(
            rung=rung,
            reason=f"{reason}; {note}" if note else reason,
            limit=hit.limit,
            used=hit.used,
            allowed=hit.allowed,
            pending=pending,
            effects=self.record.effects,
            stop_reason=stop_reason_at(hit),
            text=text,
            spent=spent,
        )

    def _used_of(self, hit: LimitHit) -> float | Decimal:
        """What is used of a limit by now: the final answer has been paid since it was hit. 0 for one of a run above."""
        scopes = [(self.bounds.limits, self.budget), (self.bounds.thread_limits, self._thread)]
        for limits, budget in scopes:
            if limits is not None and budget is not None and allowed_by_limit(limits).get(hit.limit) == hit.allowed:
                return used_by_limit(budget.spent(time.monotonic())).get(hit.limit, 0)
        return 0


class Calls:
    """What pays the calls of a run's newest turn, by their ids."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._lock = threading.Lock()
        self._turn: str | None = None
        self._held: dict[str, Hold | LimitHit] = {}

    def allot(self, messages: Sequence[BaseMessage], call_id: str, name: str, known: Iterable[str]) -> Hold | LimitHit:
        """What pays a call, or the limit in its way.

        The first call that comes allots to all of its turn that ask for a known tool, in the order asked, so
        that it is never by chance which of them fit. A call that was done and comes again is a new execution.
        """
        turn, _ = newest_turn(messages)
        with self._lock:
            if turn is not None and self._turn != turn.id:
                self._end()
                self._turn = turn.id
            for call in unanswered(messages):
                if call.call_id not in self._held and call.name in (*known, name):
                    self._held[call.call_id] = self._reserve(call.name)
            held = self._held.get(call_id)
            if held is None or (isinstance(held, Hold) and not held.is_open):
                held = self._held[call_id] = self._reserve(name)
            return held

    def forget(self, call_id: str, held: Hold) -> None:
        """A call waits for a person: it was not executed, and is allotted anew when it comes again."""
        with self._lock:
            del self._held[call_id]
        held.release()

    def end(self) -> None:
        """The turn is answered: what is still held for calls of it is held for nothing."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        for held in self._held.values():
            if isinstance(held, Hold):
                held.release()
        self._held.clear()

    def _reserve(self, name: str) -> Hold | LimitHit:
        return self._budget.reserve({"tool_calls": 1, TOOL_UNIT + name: 1})


class LiveRuns:
    """The runs that a middleware knows in this process, by where they run."""

    def __init__(self, most: int = MOST_LIVE_RUNS) -> None:
        self._most = most
        self._runs: OrderedDict[str, AgentRun] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, place: str, head: Head, above: Meter | None) -> AgentRun | None:
        """The run that goes on from a record with this head, where it is known here."""
        with self._lock:
            run = self._runs.get(f"{place}/{head.run_id}")
        return run if run is not None and run.goes_on_from(head, above) else None

    def make(self, place: str, record: RunRecord, bounds: Bounds, above: Meter | None, *, tools: bool) -> AgentRun:
        """The run that goes on from a record: made of it, unless another call of its batch has done so by now."""
        key = f"{place}/{record.run_id}"
        with self._lock:
            run = self._runs.get(key)
            if run is None or not run.goes_on_from(record.head, above):
                run = self._runs[key] = AgentRun(record, bounds, above, keeps_reserve=tools)
                _charge_earlier(run, key, above)
            self._runs.move_to_end(key)
            if len(self._runs) > self._most:
                self._runs.popitem(last=False)
        return run


def _charge_earlier(run: AgentRun, key: str, above: Meter | None) -> None:
    """Charge to the run above what this one spent before, in a process that is gone."""
    if not isinstance(above, ToolMeter) or key in above.children:
        return
    above.children.add(key)
    if run.record.spent.model_calls or run.record.spent.tool_calls:
        Hold(budget=above.budget, amounts={}).settle(run.record.spent.amounts())


def begins_run(messages: Sequence[BaseMessage], turn: str) -> bool:
    """Whether the input of a leg began another run: the newest word is not the agent's, and is a new one."""
    newest = next((message for message in reversed(messages) if not isinstance(message, ToolMessage)), None)
    return newest is not None and not isinstance(newest, AIMessage) and newest.id != turn


def new_record(messages: Sequence[BaseMessage], earlier: RunRecord | None) -> RunRecord:
    """The record of a run that begins."""
    newest = next((m for m in reversed(messages) if not isinstance(m, ToolMessage | AIMessage)), None)
    turn = (newest.id if newest is not None else None) or ""
    thread = earlier.thread if earlier is not None else Spent()
    return RunRecord(run_id=turn, turn=turn, thread=thread)


def newest_turn(messages: Sequence[BaseMessage]) -> tuple[AIMessage | None, list[BaseMessage]]:
    """The newest `AIMessage`, and what was said since."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if isinstance(message, AIMessage):
            return message, list(messages[index + 1 :])
    return None, []


def name_of(tool: object) -> str:
    """The name of a tool; one that the provider runs itself may have none."""
    if isinstance(tool, BaseTool):
        return tool.name
    name = at(as_json(tool), "name")
    return name if isinstance(name, str) else ""


def _nothing_ran(messages: Sequence[BaseMessage]) -> bool:
    turn, returns = newest_turn(messages)
    answered = [message.status for message in kernel_messages(returns) if isinstance(message, ToolReturn)]
    return turn is not None and bool(turn.tool_calls) and all(status != "ok" for status in answered)
