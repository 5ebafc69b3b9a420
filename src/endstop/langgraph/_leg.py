"""One leg of a bound run: from the call that starts it to its end or its next pause."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphRecursionError
from langgraph.types import Command

from endstop._budget import allowed_by_limit, used_by_limit
from endstop._errors import LimitExceeded
from endstop._limits import LimitHit
from endstop._results import AgentResult, limit_reason
from endstop._state import RunState, as_data
from endstop._steps import stop_reason_at
from endstop.langgraph import _compat
from endstop.langgraph._account import Account, Terms, ThreadBudgets
from endstop.langgraph._finish import MESSAGES, Closer, Closing, Finisher, messages_of
from endstop.langgraph._history import MARK, answers, kernel_messages, marked, unanswered
from endstop.langgraph._ledger import Ledger, MemoryLedger, Record
from endstop.langgraph._limits import GraphEnding
from endstop.langgraph._meter import refusal_in
from endstop.langgraph._procedures import OutOfTime
from endstop.langgraph._thread import Thread
from endstop.langgraph._watch import NodeWatch
from endstop.langgraph._wire import INTERRUPTS, Wire, updates_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from langchain_core.messages import BaseMessage

    from endstop._messages import ToolCall
    from endstop.langgraph._procedures import Procedure

_RECURSION = re.compile(r"limit of (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a graph is bound by, how it ends, and where its records are kept: `memory` has those without other place.

    `memory` is `None` where such a record would be of no use.
    """

    terms: Terms
    finisher: Finisher
    ledger: Ledger | None
    memory: MemoryLedger | None
    threads: ThreadBudgets = field(default_factory=ThreadBudgets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a caller of `stream` or `astream` asks for."""

    input: object
    config: RunnableConfig | None
    options: Mapping[str, Any]


class Leg:
    """A run of a bound graph while it is under way: what it may spend, what it has made, and how it is handed over.

    `options` are what the graph itself is run with: it streams `values` and `updates` beside what the caller
    asked for, so that its state is known when it is stopped.
    """

    @classmethod
    def open(cls, graph: _compat.AnyPregel, bounds: Bounds, request: Request) -> Procedure[Leg]:
        """Begin a leg: that of a new run, or of the one on the same thread that goes on.

        Raises:
            ResumeError: that run was cut, and the limit that ended it is no higher now.
        """
        thread = Thread(graph, request.config, bounds.ledger, bounds.memory)
        bounds.threads.enter(thread.key)
        try:
            kept = yield from thread.load()
            run = yield from thread.carried_on(kept, request.input, bounds.terms.limits)
            if run is None and request.input is not None and not isinstance(request.input, Command):
                yield from _healed(thread)
            account = Account(bounds.terms, bounds.threads, thread.key, run=run, thread=kept)
            return cls(graph, bounds, request, thread, account, run)
        except BaseException:
            bounds.threads.leave(thread.key)
            raise

    def __init__(
        self,
        graph: _compat.AnyPregel,
        bounds: Bounds,
        request: Request,
        thread: Thread,
        account: Account,
        run: Record | None,
    ) -> None:
        self._graph = graph
        self._whole_config = _compat.whole_config(graph, request.config)
        self._limits = bounds.terms.limits
        self._asks = bounds.terms.asks
        self._thread = thread
        self._threads = bounds.threads
        self._account = account
        self.meter = account.meter
        self._wire = Wire(graph, request.config, request.options)
        self.options = {**request.options, "stream_mode": self._wire.modes}
        self._closer = Closer(graph, bounds.finisher, account, request.config)
        self._keeps_steps = thread.is_kept and request.options.get("durability") != "exit"
        self._record = run or Record(run=account.spent)
        self._kept = -1
        self._is_new = run is None
        self._is_paused = False
        self._hit: LimitHit | None = None
        self._result: AgentResult[object] | None = None
        self._state: Mapping[str, object] = {}
        self._updates: list[tuple[str, object]] = []
        detector = bounds.terms.loops
        self._nodes = NodeWatch(detector, self._record.node_loops) if detector is not None else None
        self._watched_charges = 0

    @property
    def must_keep(self) -> bool:
        """Whether something was spent in the step that has ended, so that a crash from here on must not lose it."""
        return self._keeps_steps and not self._updates and self.meter.charges != self._kept

    def take(self, chunk: Any) -> Sequence[Any]:
        """What the caller is handed of a chunk of the graph's stream."""
        namespace, mode, payload = self._wire.parts(chunk)
        if self._wire.is_root(namespace):
            if mode == "values":
                self._take_state(self._wire.state(payload))
            elif mode == "updates":
                self._updates += updates_of(payload)
                self._is_paused = self._is_paused or INTERRUPTS in (payload or ())
        return self._wire.given(chunk, mode, payload)

    def stopped_by(self, error: Exception) -> bool:
        """Whether an exception out of the graph ends this run at a limit, or in order."""
        if isinstance(error, OutOfTime):
            self._hit = self.meter.tightest_time()
            return True
        refusal = refusal_in(error)
        if refusal is not None and refusal.meter is self.meter:
            self._hit = self.meter.hit or refusal.hit
            self.meter.stop_above(self._hit, is_own=self._is_own(self._hit))
            return True
        if isinstance(error, GraphRecursionError):
            if not _compat.ran_out_when_done(self._graph, error):
                self._hit = self._recursion_hit(error)
            return True
        return False

    def end(self) -> Procedure[Sequence[Any]]:
        """The graph runs no more: where that is a cut, the chunks that tell of it."""
        messages = messages_of(self._state) or []
        gave_up = messages[-1] if messages and _compat.gave_up(self._graph, messages[-1]) else None
        hit = self._hit or self.meter.hit or (self._recursion_hit() if gave_up is not None else None)
        if hit is None:
            self._record = replace(self._record, status="open" if self._is_paused else "completed")
            return ()
        self.meter.latch(hit)
        self.meter.settle_open()
        state = dict(self._state)
        if MESSAGES in _compat.channels_of(self._graph) and MESSAGES not in state:
            state = {**(yield from self._thread.whole_state()), **state}
        if gave_up is not None:
            state[MESSAGES] = messages[:-1]
        state = _compat.merged(self._graph, state, _mappings(self._updates))
        own = self._own(messages_of(state) or [])
        closing = yield from self._closer.close(state, own, hit, ask=self._asks)
        if gave_up is not None:
            closing = closing.in_place_of(gave_up)
        self._account.purse.release()
        ending = self._ending(hit, closing, self._pending(own))
        update = _with_mark(closing.update, ending)
        final = _compat.merged(self._graph, state, [update])
        stopped_at = yield from self._thread.mend(update)
        if stopped_at is not None:
            stored = yield from self._thread.whole_state()
            final = {key: stored.get(key, value) for key, value in final.items()}
        used = hit if ending.used is None else replace(hit, used=ending.used)
        own_hit = used if self._is_own(hit) else None
        self._record = replace(self._record, status="cut", hit=own_hit, stopped_at=stopped_at)
        self._result = self._result_of(final, ending)
        return list(self._wire.ending(final, update, ending))

    def report(self) -> Procedure[None]:
        """Tell whoever listens to the run's events that it was cut, where it was.

        Raises:
            LimitExceeded: it was, and the limits ask for an error.
        """
        result = self._result
        if result is None or result.ending is None:
            return
        yield _compat.CustomEvent(config=self._whole_config, name=MARK, data=result.ending, run_id=self.meter.root)
        if self._limits.on_limit == "raise":
            raise LimitExceeded(result.ending, result)

    def keep(self) -> Procedure[None]:
        """Keep what the run has spent, where it can be gone on with."""
        self._kept = self.meter.charges
        record = replace(
            self._record,
            run=self._account.spent,
            thread=self._account.thread_spent,
            effects=tuple(self.meter.effects),
        )
        if (watch := self._account.watch) is not None and self._nodes is not None:
            record = replace(record, loops=watch.state, observed=watch.observed, node_loops=self._nodes.state)
        yield from self._thread.save(record)

    def close(self) -> Procedure[None]:
        """The leg is over, however it ended: keep what it has spent."""
        try:
            self._account.close()
            yield from self.keep()
        finally:
            self._threads.leave(self._thread.key)

    def _is_own(self, hit: LimitHit) -> bool:
        """Whether a limit is one of this run: one of a run above may be another one next time."""
        return allowed_by_limit(self._limits).get(hit.limit) == hit.allowed

    def _recursion_hit(self, error: GraphRecursionError | None = None) -> LimitHit:
        """The recursion limit as used up: that of the graph that raised, or of the run itself."""
        found = _RECURSION.search(str(error))
        limit = int(found[1]) if found else self._whole_config.get("recursion_limit", 0)
        return LimitHit(limit="recursion_limit", used=limit, allowed=limit)

    def _take_state(self, state: Mapping[str, object]) -> None:
        self._look_at_nodes(state)
        self._state = state
        self._updates.clear()
        self.meter.forget_results()
        if self._is_new:
            self._is_new = False
            messages = messages_of(state)
            if messages:
                self._record = replace(self._record, after=messages[-1].id)

    def _look_at_nodes(self, state: Mapping[str, object]) -> None:
        """Look for loops in a graph that works in its nodes: where it calls tools itself, those are watched."""
        watch = self._account.watch
        if self._nodes is None or watch is None or watch.observed is not None:
            return
        if not self._state:
            self._nodes.began(messages_of(state) or ())
        if self._updates:
            polling = self.meter.charges == self._watched_charges
            self._watched_charges = self.meter.charges
            finding = self._nodes.gave(self._updates, polling=polling)
            if finding is not None and finding.persistent:
                self.meter.stop_at_loop(finding)

    def _own(self, messages: Sequence[BaseMessage]) -> Sequence[BaseMessage]:
        """The messages that came in this run."""
        newest = next((i for i, message in enumerate(messages) if message.id == self._record.after), -1)
        return messages[newest + 1 :]

    def _pending(self, own: Sequence[BaseMessage]) -> tuple[ToolCall, ...]:
        """The calls of this run that were asked for and not run since the limit was hit."""
        open_calls = unanswered([message for message in own if not self.meter.has_refused(message)])
        return tuple(call for call in open_calls if call.call_id not in self.meter.results)

    def _ending(self, hit: LimitHit, closing: Closing, pending: tuple[ToolCall, ...]) -> GraphEnding:
        spent = self._account.spent
        # The final answer has been paid since the limit was hit.
        hit = replace(hit, used=max(hit.used, used_by_limit(spent).get(hit.limit, hit.used)))
        return GraphEnding(
            rung=closing.rung,
            reason="; ".join(part for part in (limit_reason(hit), self.meter.note, closing.note) if part),
            limit=hit.limit,
            used=hit.used,
            allowed=hit.allowed,
            pending=pending,
            effects=tuple(self.meter.effects),
            stop_reason=stop_reason_at(hit),
            text=closing.text,
            spent=spent,
            skipped=tuple(name for name in _compat.after_agent_nodes(self._graph) if not spent.nodes.get(name)),
        )

    def _result_of(self, final: Mapping[str, object], ending: GraphEnding) -> AgentResult[object]:
        messages = kernel_messages(messages_of(final) or [])
        state = RunState(
            run_id=str(uuid4()),
            agent=self._graph.get_name(),
            limits=self._limits,
            messages=messages,
            spent=ending.spent,
            stop_reason=ending.stop_reason,
        )
        return AgentResult(
            output={**final, MARK: ending}, text=ending.text, stop_reason=ending.stop_reason, ending=ending, state=state
        )


def _mappings(updates: Sequence[tuple[str, object]]) -> Iterator[Mapping[str, object]]:
    """The updates of the state among what nodes gave."""
    for _, update in updates:
        several = cast("list[object]", update) if isinstance(update, list) else [update]  # of one task's
        for one in several:
            if _compat.is_update(one):
                yield one


def _with_mark(update: Mapping[str, object], ending: GraphEnding) -> dict[str, object]:
    """The update with the ending on its last message, so that whoever stores messages alone keeps it."""
    said = update.get(MESSAGES)
    if not isinstance(said, list) or not said or not isinstance(said[-1], AIMessage):
        return dict(update)
    data = as_data(ending)
    assert isinstance(data, dict)
    del data["text"]  # It is the message's own.
    return {**update, MESSAGES: [*said[:-1], marked(said[-1], data)]}


def _healed(thread: Thread) -> Procedure[None]:
    """Answer the calls that an aborted run has left open on a thread: no provider takes a history with them."""
    messages = messages_of((yield from thread.whole_state()))
    missing = answers(messages, "the run was broken off before this call had ended") if messages else []
    if missing:
        yield from thread.mend({MESSAGES: missing})
