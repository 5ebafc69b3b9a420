"""The meter of a bound graph: it sees what runs, charges it before it starts, and refuses what does not fit."""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration
from langchain_core.tracers.context import register_configure_hook
from langgraph.errors import GraphBubbleUp

from endstop._errors import PriceUnknown
from endstop._limits import LOOP, TOOL_UNIT, LimitHit
from endstop._results import limit_reason
from endstop.langgraph._compat import LANGCHAIN_CALLBACKS, ToolInvocationError, close_untold, node_of
from endstop.langgraph._history import CUT_CALLS, at_end, near_limits, nudge, stopped, was_cut
from endstop.langgraph._limits import NODE_UNIT, SUPER_STEPS
from endstop.langgraph._pay import Request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from langchain_core.messages import BaseMessage, HumanMessage
    from langchain_core.messages import ToolCall as LangChainToolCall
    from langchain_core.outputs import LLMResult

    from endstop._budget import Amounts, Budget
    from endstop._limits import PlanLimits
    from endstop._loops import LoopFinding
    from endstop.langgraph._pay import GraphPurse, Payment
    from endstop.langgraph._procedures import Action
    from endstop.langgraph._watch import LoopWatch

_TRAITS = ("polling", "repeatable", "read_only")
_ROUND = ("model_rounds", "model_calls")

_active: ContextVar[Meter | None] = ContextVar("endstop_meter", default=None)
# Every callback manager made while a meter is active has it, whatever callbacks the code that runs passes on.
register_configure_hook(_active, inheritable=True)


class Stop(GraphBubbleUp):
    """Ends the graph of a meter. LangGraph lets what runs beside it finish, and no retry or error handler takes it."""

    def __init__(self, meter: Meter, hit: LimitHit) -> None:
        self.meter = meter
        self.hit = hit
        super().__init__(limit_reason(hit))


class Refused(ToolInvocationError):
    """One thing is not run. A tool node answers the call with the reason, and the graph goes on."""

    def __init__(self, meter: Meter, hit: LimitHit) -> None:
        # The class of LangGraph explains bad arguments, which these are not.
        Exception.__init__(self, f"Not run: {limit_reason(hit)}")
        self.message = str(self)
        self.meter = meter
        self.hit = hit

    def __repr__(self) -> str:
        return self.message  # what a tool node that shows errors as they are shows


def _is_no_refusal(record: logging.LogRecord) -> bool:
    return not isinstance(sys.exc_info()[1], Stop | Refused | PriceUnknown)


# LangChain logs whatever a handler raises as an error of the handler; a refusal is none, nor is a missing price.
logging.getLogger(LANGCHAIN_CALLBACKS).addFilter(_is_no_refusal)


class Meter(BaseCallbackHandler):
    """Charges one run of a graph, and everything below it that has no meter of its own, to a budget.

    It is made for one leg of a run. The first limit that ends the run is kept in `hit`; from then on it
    refuses everything, so that code which swallows the refusal cannot spend. `results` are the results of
    tools by call id, and `asked` the calls, until the graph has them: what a part of it found that is cut off is
    not lost. `effects` are the names of the tools that were started and are not marked `read_only` in their
    metadata. `charges` grows with every model call and tool execution. `watch` looks for loops in the graph
    itself; each graph below it that has none of its own is watched by itself.
    """

    run_inline = True
    raise_error = True

    def __init__(
        self,
        budget: Budget,
        limits: PlanLimits,
        purse: GraphPurse,
        *,
        above: Meter | None,
        watch: LoopWatch | None = None,
    ) -> None:
        super().__init__()
        self.budget = budget
        self.hit: LimitHit | None = None
        self.charges = 0
        self.effects: dict[str, None] = {}
        self.last_message: AIMessage | None = None
        self._newest_asker: AIMessage | None = None
        self.note = ""
        self.results: dict[str, ToolMessage] = {}
        self.asked: dict[str, LangChainToolCall] = {}
        self._broken_off: list[_Run] = []
        self.root: UUID | None = None
        self._limits = limits
        self._purse = purse
        self._above = above
        self._base_depth = 0
        self._timed = budget.time_left(0.0, wall_time) is not None
        self._ends_at: float | None = None
        self._lock = threading.Lock()
        self._runs: dict[UUID, _Run] = {}
        self._payments: dict[UUID, tuple[Payment, _Run | None]] = {}
        self._watch = watch
        self._traits: dict[str, Mapping[str, object]] = {}
        self._refusals: set[str] = set()

    # What it is told by LangChain. Only what starts is judged by who is active: what has started ends where it began.

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: dict[str, Any],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Charge a node and its super-step, where that is what starts."""
        if _active.get() is not self:
            return
        run = self._started(run_id, parent_run_id)
        node = node_of(kwargs.get("name"), tags, metadata)
        if node is None:
            return
        self._check_open()
        name, step, is_task = node
        if is_task:
            self._charge({NODE_UNIT + name: 1})
            return
        units: dict[str, int] = {NODE_UNIT + name: 1}
        with self._lock:
            graph = self._runs.get(parent_run_id) if parent_run_id is not None else None
            if graph is not None and graph.step != step:
                graph.step = step
                units[SUPER_STEPS] = 1
                if graph.watch is None and self._watch is not None:
                    graph.watch = self._watch if parent_run_id == self.root else self._watch.another()
            run.graph = graph
        self._charge(units)

    def on_chain_end(self, outputs: dict[str, Any], *, run_id: UUID, **kwargs: Any) -> None:
        """Forget a run that is over."""
        self._runs.pop(run_id, None)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Forget a run that failed."""
        self._runs.pop(run_id, None)
        refusal = refusal_in(error)
        if refusal is not None:
            close_untold(refusal)

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Hold what a model call takes."""
        if _active.get() is not self:
            return
        self._check_open()
        above = self._runs.get(parent_run_id) if parent_run_id is not None else None
        depth = above.depth if above is not None else self._depth_of(parent_run_id)
        self._check_depth(depth)
        graph = above.graph if above is not None else None
        sent = messages[0] if messages else []
        if graph is not None:
            self._look_back(graph, sent)
        params: Mapping[str, Any] = kwargs.get("invocation_params") or {}
        request = _request(sent, params, metadata or {}, serialized)
        with self._lock:
            rounds = int(graph is None or graph.round_step != graph.step)
            payment = self._pay_model(request, rounds=rounds, for_answer=depth == self._base_depth)
            if isinstance(payment, LimitHit):
                self._stop(payment)
            if graph is not None:
                graph.round_step = graph.step
            self._payments[run_id] = payment, graph

    def on_llm_start(self, serialized: dict[str, Any], prompts: list[str], *, run_id: UUID, **kwargs: Any) -> None:
        """Hold what a call of a plain text model takes."""
        self.on_chat_model_start(serialized, [[AIMessage(text) for text in prompts]], run_id=run_id, **kwargs)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """Charge what a model call used."""
        paid = self._payments.pop(run_id, None)
        if paid is None:
            return
        payment, graph = paid
        message = _message(response)
        if message is not None:
            if message.content:
                self.last_message = message
            if message.tool_calls or message.invalid_tool_calls:
                self._newest_asker = message
            if message.tool_calls:
                self.asked.update((call["id"] or "", call) for call in message.tool_calls)
                if graph is not None:
                    graph.refused, graph.has_started = None, False
                    if graph.watch is not None:
                        graph.watch.asked(message)
        self.charges += 1
        self._purse.settle(payment, message)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Charge a model call that failed: one that was cut off has been sent, and is billed."""
        paid = self._payments.pop(run_id, None)
        if paid is None:
            return
        self.charges += 1
        if isinstance(error, Exception):
            self._purse.settle_refused(paid[0])
        else:
            self._purse.settle(paid[0], None)

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Charge a tool execution."""
        if _active.get() is not self:
            return
        hit = self.hit or self.out_of_time()
        name = str(serialized.get("name"))
        if hit is None:
            hit = self._pay_tool(name)
        run = self._started(run_id, parent_run_id)
        if hit is not None:
            self._refuse_tool(run, hit)
        run.depth += 1
        run.tool = name, inputs
        self.charges += 1
        if run.graph is not None:
            run.graph.has_started = True
        if metadata and name not in self._traits:
            self._traits[name] = {trait: metadata.get(trait) for trait in _TRAITS}
        if not metadata or metadata.get("read_only") is not True:
            self._note_effect(name)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Keep a result: the node that asked for it may be cut off before it gives it to the graph."""
        run = self._runs.pop(run_id, None)
        if run is None or not isinstance(output, ToolMessage):
            return
        self.results[output.tool_call_id] = output
        watch = run.graph.watch if run.graph is not None else None
        with self._lock:
            finding = watch.ended(output, self._traits) if watch is not None else None
        if finding is not None and finding.persistent:
            self.stop_at_loop(finding)
        elif finding is not None and all(left is None or left > 0 for left in self.budget.left(*_ROUND)):
            _tell(output, nudge(finding.reason))
        if self._limits.warn_model and (due := self.budget.due_warnings(time.monotonic())):
            _tell(output, near_limits(due))

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Forget a tool that failed; remember one that was broken off: by a refusal inside it, or cancelled."""
        run, refusal = self._runs.pop(run_id, None), refusal_in(error)
        if refusal is not None:
            close_untold(refusal)
        if run is not None and (refusal is not None or not isinstance(error, Exception)):
            self._broken_off.append(run)

    # What it decides.

    def seconds_left(self) -> float | None:
        """The seconds that the graph may still run, without those kept for the final answer; `None` for no limit."""
        if not self._timed:
            return None
        now = time.monotonic()
        if self._ends_at is None:
            left = self.budget.time_left(now, wall_time)
            seconds = left.seconds if left is not None else math.inf
            self._ends_at = now + seconds - self.budget.answer_seconds
        return self._ends_at - now

    def out_of_time(self) -> LimitHit | None:
        """The limit of time that is used up, if one is."""
        left = self.seconds_left()
        return None if left is None or left > 0 else self.tightest_time()

    def tightest_time(self) -> LimitHit | None:
        """The limit of time that is used up first, if there is one."""
        left = self.budget.time_left(time.monotonic(), wall_time)
        return None if left is None else left.hit()

    def latch(self, hit: LimitHit) -> None:
        """End the run: let nothing more be spent. Only the first limit counts."""
        if self.hit is None:
            self.hit = hit

    def stop_above(self, hit: LimitHit, *, is_own: bool) -> None:
        """Give a refusal on to the run above, where its limit kept this one from doing anything at all.

        A part that has something to show ends by itself, and what is around it goes on; one that never began has not.

        Raises:
            Stop: it ends the run above.
        """
        if self._above is not None and not is_own and not self.charges:
            self._above.latch(hit)
            raise Stop(self._above, hit)

    def stop_at_loop(self, finding: LoopFinding) -> None:
        """End the run because it goes on in a loop."""
        cut = self._newest_asker is not None and was_cut(self._newest_asker)
        self.note = self.note or (f"{finding.reason}; {CUT_CALLS}" if cut else finding.reason)
        allowed = self._watch.most_repeats if self._watch is not None else finding.repeats
        self.latch(LimitHit(limit=LOOP, used=finding.repeats, allowed=allowed))

    def forget_results(self) -> None:
        """The graph has everything that was found."""
        self.results.clear()
        self.asked.clear()
        self._broken_off.clear()

    def known_results(self, messages: Sequence[BaseMessage], why: str) -> Mapping[str, ToolMessage]:
        """The results by call id; of the calls in the messages that were started and broken off, that they were."""
        broken = [run.tool for run in (*self._broken_off, *list(self._runs.values())) if run.tool is not None]
        unfinished = {
            call["id"] or "": stopped(call["id"] or "", call["name"], why)
            for message in (messages if broken else ())
            if isinstance(message, AIMessage)
            for call in message.tool_calls
            if (call["name"], call["args"]) in broken
        }
        return unfinished | self.results

    def found_beside(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """The calls and results of parts that were cut off, which are not in the graph's own messages."""
        own = {call["id"] for message in messages if isinstance(message, AIMessage) for call in message.tool_calls}
        results = [result for call_id, result in self.results.items() if call_id not in own]
        calls = [self.asked[result.tool_call_id] for result in results if result.tool_call_id in self.asked]
        return [AIMessage("", tool_calls=calls), *results] if results else []

    def has_refused(self, message: BaseMessage) -> bool:
        """Whether a message is what a tool node made of a refusal."""
        return (
            isinstance(message, ToolMessage)
            and message.status == "error"
            and any(refusal in str(message.content) for refusal in self._refusals)
        )

    def settle_open(self) -> None:
        """Charge the model calls of which no end was told: they were cut off."""
        while self._payments:
            _, (payment, _) = self._payments.popitem()
            self._purse.settle(payment, None)

    def _refuse_tool(self, run: _Run, hit: LimitHit) -> NoReturn:
        if not hit.limit.startswith("tool_limits"):
            self.latch(hit)
        elif run.graph is not None:
            run.graph.refused = hit
        refused = Refused(self, hit)
        self._refusals.add(refused.message)
        raise refused

    def _look_back(self, graph: _Run, sent: Sequence[BaseMessage]) -> None:
        """Judge what the calls of the newest answer came to, before another model call."""
        if graph.refused is not None and not graph.has_started:
            # A limit on one tool leaves the others; an answer of whose calls none ran shows that the model does not.
            self._stop(graph.refused)
        finding = graph.watch.sent(sent, self._traits) if graph.watch is not None else None
        if finding is not None and finding.persistent:
            self.stop_at_loop(finding)
            self._check_open()

    def _pay_model(self, request: Request, *, rounds: int, for_answer: bool) -> Payment | LimitHit:
        """What pays a model call that starts."""
        return self._purse.hold(request, rounds=rounds, for_answer=for_answer)

    def _pay_tool(self, name: str) -> LimitHit | None:
        """Pay a tool execution that starts, or say what is in the way."""
        return self.budget.charge({"tool_calls": 1, TOOL_UNIT + name: 1})

    def _started(self, run_id: UUID, parent_run_id: UUID | None) -> _Run:
        parent = self._runs.get(parent_run_id) if parent_run_id is not None else None
        if parent is not None:
            run = _Run(parent.depth, parent.graph)
        else:
            run = _Run(self._depth_of(parent_run_id), None)
            if self.root is None:
                self.root, self._base_depth = run_id, run.depth
        self._runs[run_id] = run
        return run

    def _depth_of(self, run_id: UUID | None) -> int:
        """How many tools are around a run, counted from the outermost graph that is bound."""
        run = self._runs.get(run_id) if run_id is not None else None
        if run is not None:
            return run.depth
        return self._above._depth_of(run_id) if self._above is not None else self._base_depth

    def _check_depth(self, depth: int) -> None:
        meter: Meter | None = self
        while meter is not None:
            allowed = meter._limits.max_depth
            levels = depth - meter._base_depth
            if allowed is not None and levels > allowed:
                raise Refused(meter, LimitHit(limit="max_depth", used=allowed, allowed=allowed))
            meter = meter._above

    def _note_effect(self, tool: str) -> None:
        meter: Meter | None = self
        while meter is not None:
            meter.effects[tool] = None
            meter = meter._above

    def _check_open(self) -> None:
        if self.hit is not None:
            raise Stop(self, self.hit)
        if self._timed and (hit := self.out_of_time()) is not None:
            self._stop(hit)

    def _charge(self, amounts: Amounts) -> None:
        hit = self.budget.charge(amounts)
        if hit is not None:
            self._stop(hit)

    def _stop(self, hit: LimitHit) -> NoReturn:
        self.latch(hit)
        raise Stop(self, hit)


class _Run:
    """A run that is under way: how many tools are around it, and the graph that it is a part of.

    For a graph itself, `step` is its newest super-step and `round_step` the newest in which a model was called;
    of the calls of its newest answer, `has_started` says whether one ran, `refused` what kept one from it.
    For a tool, `tool` is its name and arguments.
    """

    __slots__ = ("depth", "graph", "has_started", "refused", "round_step", "step", "tool", "watch")

    def __init__(self, depth: int, graph: _Run | None) -> None:
        self.depth = depth
        self.graph = graph
        self.step = -1
        self.round_step = -2
        self.has_started = False
        self.refused: LimitHit | None = None
        self.watch: LoopWatch | None = None
        self.tool: tuple[str, Mapping[str, object] | None] | None = None


class Metered:
    """An action that is charged to a meter; to none where it is `None`."""

    __slots__ = ("_action", "_meter")

    def __init__(self, action: Action, meter: Meter | None) -> None:
        self._action = action
        self._meter = meter

    def perform(self) -> object:
        """Do it."""
        with metered(self._meter):
            return self._action.perform()

    async def aperform(self) -> object:
        """Do it."""
        with metered(self._meter):
            return await self._action.aperform()


class metered:
    """Lets what runs inside be charged to a meter; to none where it is `None`."""

    __slots__ = ("_meter", "_token")

    def __init__(self, meter: Meter | None) -> None:
        self._meter = meter

    def __enter__(self) -> None:
        self._token = _active.set(self._meter)

    def __exit__(self, *error: object) -> None:
        _active.reset(self._token)


def _tell(result: ToolMessage, notice: HumanMessage) -> None:
    """Tell the model something at the end of the newest result, where any graph takes it along."""
    text = at_end(notice)
    if isinstance(result.content, str):
        result.content += text
    else:
        result.content = [*result.content, {"type": "text", "text": text}]


def refusal_in(error: BaseException) -> Stop | Refused | None:
    """The refusal that an exception is, or was raised from."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, Stop | Refused):
        cause = cause.__cause__ or cause.__context__
    return cause


def active_meter() -> Meter | None:
    """The meter of the innermost bound graph that runs here."""
    return _active.get()


def wall_time() -> datetime:
    """The time that deadlines are told by."""
    return datetime.now(UTC)


def _request(
    messages: Sequence[BaseMessage],
    params: Mapping[str, Any],
    metadata: Mapping[str, Any],
    serialized: Mapping[str, Any] | None,
) -> Request:
    model = metadata.get("ls_model_name") or params.get("model") or params.get("model_name")
    if not model:  # It has no name, and its class must do.
        model = ((serialized or {}).get("id") or [""])[-1]
    cap = metadata.get("ls_max_tokens") or params.get("max_tokens")
    return Request(messages=messages, model=str(model), cap=cap if isinstance(cap, int) else None)


def _message(response: LLMResult) -> AIMessage | None:
    generation = response.generations[0][0] if response.generations and response.generations[0] else None
    message = generation.message if isinstance(generation, ChatGeneration) else None
    return message if isinstance(message, AIMessage) else None
