"""What a run of a bound graph may spend: its budget inside those around it, and the meter that charges it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from endstop._budget import Budget
from endstop._errors import ConfigError
from endstop._limits import PlanLimits, Prices
from endstop._loops import LoopDetector, LoopPolicy
from endstop.langgraph._limits import GraphSpent, spent_of
from endstop.langgraph._meter import Meter, active_meter, wall_time
from endstop.langgraph._pay import GraphPurse
from endstop.langgraph._watch import LoopWatch

if TYPE_CHECKING:
    from endstop.langgraph._ledger import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What bounds a run, what bounds all runs of its thread together, how they are paid, and what finds loops in them.

    `asks` says whether the final answer is asked for, and `pays` whether that needs a reserve.
    """

    limits: PlanLimits
    thread_limits: PlanLimits | None
    prices: Prices | None
    loops: LoopDetector | None
    asks: bool
    pays: bool


def check_terms(*, thread_limits: object, loops: object, prices: object) -> None:
    """Check what bounds a graph beside its limits; callers are not all type-checked.

    Raises:
        ConfigError: something is of another kind.
    """
    if thread_limits is not None and not isinstance(thread_limits, PlanLimits):
        raise ConfigError("thread_limits", thread_limits, "use PlanLimits(...), or None for no limit")
    if loops is not None and not isinstance(loops, LoopPolicy):
        raise ConfigError("loops", loops, "use LoopPolicy(...), or None to look for none")
    if prices is not None and (isinstance(prices, type) or not callable(getattr(prices, "price_of", None))):
        raise ConfigError("prices", prices, "use an object with a method `price_of(model)`, or None for the table")


class ThreadBudgets:
    """The budgets of threads while runs are under way on them: those that run at once in this process share one."""

    def __init__(self) -> None:
        self._open: dict[str, _Shared] = {}
        self._lock = threading.Lock()

    def enter(self, key: str) -> None:
        """A run begins on a thread, whose record is read after this."""
        with self._lock:
            self._open.setdefault(key, _Shared()).runs += 1

    def budget(self, key: str, limits: PlanLimits, parent: Budget | None, spent: GraphSpent | None) -> Budget:
        """The budget of a thread on which a run is: what it had spent is told by the first of them."""
        with self._lock:
            shared = self._open[key]
            # Runs inside different runs are charged to different budgets around them, and cannot share their own.
            if id(parent) not in shared.budgets:
                shared.budgets[id(parent)] = Budget(limits, parent=parent, spent=spent)
            return shared.budgets[id(parent)]

    def leave(self, key: str) -> None:
        """A run is over, and the record is written."""
        with self._lock:
            self._open[key].runs -= 1
            if not self._open[key].runs:
                del self._open[key]


class _Shared:
    """How many runs are on a thread, and the budgets of the thread by the identity of what is around them."""

    __slots__ = ("budgets", "runs")

    def __init__(self) -> None:
        self.runs = 0
        self.budgets: dict[int, Budget] = {}


class Account:
    """The budget of one leg of a run, going on from what its earlier legs have spent. Its clock runs until `close`.

    A run inside another bound one is charged to that one as well; so is every run of a thread to the thread.
    """

    def __init__(
        self, terms: Terms, threads: ThreadBudgets, key: str, *, run: Record | None, thread: Record | None
    ) -> None:
        self._terms = terms
        self._above = above = active_meter()
        outer = above.budget if above is not None else None
        self._thread: Budget | None = None
        if terms.thread_limits is not None:
            spent = thread.thread if thread is not None else None
            outer = self._thread = threads.budget(key, terms.thread_limits, outer, spent)
        self.budget = Budget(terms.limits, parent=outer, spent=run.run if run is not None else None)
        self.purse = GraphPurse(self.budget, terms.limits, prices=terms.prices, keeps_reserve=terms.pays)
        self.watch: LoopWatch | None = None
        if terms.loops is not None:
            self.watch = LoopWatch(terms.loops, run.loops, run.observed) if run is not None else LoopWatch(terms.loops)
        if above is None:
            self.purse.keep_reserve()
        self.meter = Meter(self.budget, terms.limits, self.purse, above=above, watch=self.watch)
        if run is not None:
            self.meter.effects.update(dict.fromkeys(run.effects))
        now = time.monotonic()
        self.budget.start_clock(now)
        left = self.budget.time_left(now, wall_time)
        if terms.asks and left is not None:
            self.budget.answer_seconds = terms.limits.seconds_for_answer(left.seconds)

    @property
    def spent(self) -> GraphSpent:
        """What the run has spent, all its legs together."""
        return spent_of(self.budget, time.monotonic())

    @property
    def thread_spent(self) -> GraphSpent:
        """What the runs of the thread have spent together, where they are bounded together."""
        return GraphSpent() if self._thread is None else spent_of(self._thread, time.monotonic())

    @property
    def answer_seconds_left(self) -> float | None:
        """The seconds that the final answer may take; `None` where nothing limits them."""
        left = self.budget.time_left(time.monotonic(), wall_time)
        return None if left is None else max(left.seconds, 0.0)

    def another_meter(self) -> Meter:
        """A meter for what ends the run: it charges the same budget, which has the reserve back, that of time too."""
        self.budget.answer_seconds = 0.0
        purse = GraphPurse(self.budget, self._terms.limits, prices=self._terms.prices, keeps_reserve=False)
        return Meter(self.budget, self._terms.limits, purse, above=self._above)

    def close(self) -> None:
        """Nothing works for the run any more: charge what was cut off, give back the reserve, stop the clock."""
        self.meter.settle_open()
        self.purse.release()
        self.budget.stop_clock(time.monotonic())
