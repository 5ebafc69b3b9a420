"""One budget, shared by a run and everything below it: reserve before, settle after.

A `Budget` is a scope in a tree. `reserve` takes an amount from this scope and from every scope above
it in one atomic step, or takes nothing and says which limit is in the way. The hold that it returns
is settled with what was really used, or released. Nothing is ever checked and then taken later, so
parallel calls and children cannot overrun a limit between them.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from endstop._errors import ConfigError
from endstop._limits import TOOL_UNIT, LimitHit, Number, PlanLimits, Price, Spent

if TYPE_CHECKING:
    from datetime import datetime

    from endstop._messages import Usage

Amounts: TypeAlias = Mapping[str, Number]
"""Amounts by unit: `model_rounds`, `model_calls`, `tool_calls`, `tokens`, `output_tokens`, `cost`, `tool:<name>`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLeft:
    """The time that is left under the tightest time limit, and that limit as it would be reported."""

    seconds: float
    limit: str
    used: float
    allowed: float

    def hit(self) -> LimitHit:
        """The limit as used up."""
        return LimitHit(limit=self.limit, used=round(self.used, 3), allowed=self.allowed)


class Budget:
    """A scope of spending under `limits`, charged to every scope above it as well.

    Make one to bound several runs together: `Budget(PlanLimits(max_model_calls=20))`, given to each
    as `agent.run(..., budget=budget)`. `spent` carries on from an earlier leg of the same run. Safe
    to use from several tasks and threads at once. Times are monotonic seconds.
    """

    __slots__ = (
        "_above",
        "_allowed",
        "_earlier_seconds",
        "_lock",
        "_price_source",
        "_spent",
        "_started_at",
        "_taken",
        "_unwarned",
        "_working",
        "answer_seconds",
        "limits",
        "parent",
    )

    def __init__(self, limits: PlanLimits, *, parent: Budget | None = None, spent: Spent | None = None) -> None:
        self.limits = limits
        self.parent = parent
        # Without itself: an object that holds itself is only freed by the garbage collector.
        self._above: tuple[Budget, ...] = (parent, *parent._above) if parent else ()
        self._lock: threading.Lock = parent._lock if parent else threading.Lock()
        self._allowed = limits.bounds()
        # What is used up, and that together with what is held; the tools come last.
        self._spent: defaultdict[str, Number] = defaultdict(int, (spent or Spent()).amounts())
        self._taken = self._spent.copy()
        self._price_source = spent.price_source if spent else None
        self._earlier_seconds = spent.seconds if spent else 0.0
        # How much works in this scope now, and since when: what it was given and every scope below it.
        self._working = 0
        self._started_at = 0.0
        self._unwarned = self._warning_marks()
        # What the run of this scope keeps for its final answer: the runs below it must end before.
        self.answer_seconds = 0.0

    @property
    def depth(self) -> int:
        """How many scopes are above this one."""
        return len(self._above)

    def reserve(self, amounts: Amounts) -> Hold | LimitHit:
        """Take the amounts here and in every scope above, or nothing: the limit in the way is returned then."""
        return self.exchange(None, amounts)

    def exchange(self, hold: Hold | None, amounts: Amounts) -> Hold | LimitHit:
        """Turn a hold of this budget into one of other amounts in one step; where they do not fit, nothing changes."""
        with self._lock:
            old: Amounts = hold.amounts if hold is not None and hold.is_open else {}
            hit = self._first_hit(amounts, old)
            if hit is not None:
                return hit
            for scope in (self, *self._above):
                taken = scope._taken
                for unit, amount in old.items():
                    taken[unit] -= amount
                for unit, amount in amounts.items():
                    taken[unit] += amount
            if hold is not None:
                hold.is_open = False
        return Hold(budget=self, amounts=amounts)

    def charge(self, amounts: Amounts) -> LimitHit | None:
        """Use the amounts up at once, or nothing: the limit in the way is returned then."""
        with self._lock:
            hit = self._first_hit(amounts, {})
            if hit is None:
                self._settle({}, amounts)
            return hit

    def settle(self, hold: Hold, actual: Amounts) -> None:
        """Use `actual` up in place of what an open hold holds; `Hold.settle` is the way to call it."""
        with self._lock:
            if hold.is_open:
                hold.is_open = False
                self._settle(hold.amounts, actual)

    def split(self, hold: Hold, amounts: Amounts) -> Hold:
        """Part a hold of this budget in two; `Hold.split` is the way to call it."""
        with self._lock:
            held: Amounts = hold.amounts if hold.is_open else {}
            if any(amount > held.get(unit, 0) for unit, amount in amounts.items()):
                raise ConfigError("amounts", amounts, f"split off no more than is held, which is {dict(held)}")
            hold.amounts = {unit: amount - amounts.get(unit, 0) for unit, amount in held.items()}
        return Hold(budget=self, amounts=amounts)

    def left(self, *units: str) -> list[Number | None]:
        """How much of each unit can still be reserved, in the tightest scope; `None` where nothing limits it."""
        lefts: list[Number | None] = []
        scopes = (self, *self._above)
        with self._lock:
            for unit in units:
                tightest: Number | None = None
                for scope in scopes:
                    bound = scope._allowed.get(unit)
                    if bound is not None:
                        left = bound - scope._taken[unit]
                        tightest = left if tightest is None or left < tightest else tightest
                lefts.append(tightest)
        return lefts

    def spent(self, now: float) -> Spent:
        """What this scope has spent so far, everything below it included."""
        with self._lock:
            spent = self._spent
            output_tokens = int(spent["output_tokens"])
            return Spent(
                model_rounds=int(spent["model_rounds"]),
                model_calls=int(spent["model_calls"]),
                tool_calls=int(spent["tool_calls"]),
                tools={
                    unit.removeprefix(TOOL_UNIT): int(count)
                    for unit, count in islice(spent.items(), _COUNTERS, None)
                    if unit.startswith(TOOL_UNIT)
                },
                input_tokens=int(spent["tokens"]) - output_tokens,
                output_tokens=output_tokens,
                cost=Decimal(spent["cost"]),
                seconds=self.working_seconds(now),
                unmeasured=int(spent["unmeasured"]),
                underestimated_tokens=int(spent["underestimated_tokens"]),
                price_source=self._price_source,
            )

    def amounts(self) -> dict[str, Number]:
        """What this scope has spent of every unit that was charged, everything below it included."""
        with self._lock:
            return dict(self._spent)

    def due_warnings(self, now: float) -> list[LimitHit]:
        """The limits of this scope whose `warn_at` share was passed since this was last asked; each comes once."""
        with self._lock:
            spent, seconds = self._spent, self.working_seconds(now)
            due = [
                (unit, used, allowed)
                for unit, (mark, allowed) in self._unwarned.items()
                if (used := seconds if unit == "seconds" else spent.get(unit, 0)) >= mark
            ]
            for unit, _, _ in due:
                del self._unwarned[unit]
        return [LimitHit(limit=limit_name(unit), used=used, allowed=allowed) for unit, used, allowed in due]

    def start_clock(self, now: float) -> None:
        """Something works from `now` on: working time runs, here and in the scopes above."""
        with self._lock:
            for scope in (self, *self._above):
                if not scope._working:
                    scope._started_at = now
                scope._working += 1

    def stop_clock(self, now: float) -> None:
        """It works no more: working time stands still, here and in the scopes above where nothing else works."""
        with self._lock:
            for scope in (self, *self._above):
                scope._working -= 1
                if not scope._working:
                    scope._earlier_seconds += now - scope._started_at

    def working_seconds(self, now: float) -> float:
        """Seconds of work in this scope until `now`."""
        return self._earlier_seconds + (now - self._started_at if self._working else 0.0)

    def time_left(self, now: float, wall: Callable[[], datetime]) -> TimeLeft | None:
        """The time left until the first time limit here or above, less what runs above keep for their final answers."""
        lefts: list[TimeLeft] = []
        for scope in (self, *self._above):
            allowed, deadline = scope.limits.max_seconds, scope.limits.deadline
            kept = 0.0 if scope is self else scope.answer_seconds
            if allowed is not None:
                used = scope.working_seconds(now)
                left = allowed - used - kept
                lefts.append(TimeLeft(seconds=left, limit="max_seconds", used=used, allowed=allowed))
            if deadline is not None:
                left, due = (deadline - wall()).total_seconds(), deadline.timestamp()
                lefts.append(TimeLeft(seconds=left - kept, limit="deadline", used=due - left, allowed=due))
        return min(lefts, key=lambda left: left.seconds, default=None)

    @property
    def assume_price(self) -> Price | None:
        """What a model without a known price is charged: the price assumed here, or in the nearest scope above."""
        prices = (scope.limits.assume_price for scope in (self, *self._above))
        return next((price for price in prices if price is not None), None)

    def name_price_source(self, source: str) -> None:
        """Remember which table priced the tokens, here and above."""
        for scope in (self, *self._above):
            scope._price_source = source

    def _first_hit(self, amounts: Amounts, freed: Amounts) -> LimitHit | None:
        for scope in (self, *self._above):
            allowed = scope._allowed
            for unit, amount in amounts.items():
                bound = allowed.get(unit)
                if bound is None or not amount:
                    continue
                # What others hold is used as well: the figures of a refusal must show why it was one.
                used = scope._taken[unit] - freed.get(unit, 0)
                if used + amount > bound:
                    return LimitHit(limit=limit_name(unit), used=used, allowed=bound)
        return None

    def _settle(self, held: Amounts, actual: Amounts) -> None:
        for scope in (self, *self._above):
            taken, spent = scope._taken, scope._spent
            for unit, amount in held.items():
                taken[unit] -= amount
            for unit, amount in actual.items():
                taken[unit] += amount
                spent[unit] += amount

    def _warning_marks(self) -> dict[str, tuple[Number | float, Number | float]]:
        """Where each limit is to be warned of: its share, and the whole. What has passed it before is left out."""
        warn_at = self.limits.warn_at
        if warn_at is None:
            return {}
        # 0.1 is a tenth here: as a float it is a little more, and a mark that is reached exactly would be missed.
        share = Decimal(str(warn_at))
        marks: dict[str, tuple[Number | float, Number | float]] = {
            unit: (bound * share if isinstance(bound, Decimal) else math.ceil(bound * share), bound)
            for unit, bound in self._allowed.items()
            if bound
        }
        if self.limits.max_seconds:
            marks["seconds"] = (self.limits.max_seconds * warn_at, self.limits.max_seconds)
        used: dict[str, Number | float] = {**self._spent, "seconds": self._earlier_seconds}
        return {unit: mark for unit, mark in marks.items() if used.get(unit, 0) < mark[0]}

    def __repr__(self) -> str:
        used = ", ".join(f"{limit_name(unit)}={self._taken.get(unit, 0)}/{n}" for unit, n in self._allowed.items())
        return f"<Budget {used or 'without limits'}>"


class Hold:
    """An amount taken from a budget until it is settled or released. Ending it a second time changes nothing."""

    __slots__ = ("amounts", "budget", "is_open")

    def __init__(self, *, budget: Budget, amounts: Amounts) -> None:
        self.budget = budget
        self.amounts = amounts
        self.is_open = True

    def settle(self, actual: Amounts | None = None) -> None:
        """End the hold and charge `actual`, by default exactly what was held."""
        self.budget.settle(self, self.amounts if actual is None else actual)

    def release(self) -> None:
        """End the hold and charge nothing."""
        self.settle({})

    def split(self, amounts: Amounts) -> Hold:
        """Part this hold in two: the one returned has `amounts`, this one keeps the rest.

        Raises:
            ConfigError: that is more than is held, or the hold has ended.
        """
        return self.budget.split(self, amounts)


def usage_amounts(
    usage: Usage, cost: Decimal | None, *, reserved_tokens: int = 0, reserved_output_tokens: int = 0
) -> dict[str, Number]:
    """A request's usage as the amounts to settle; `reserved_tokens`, output in it, had been held (0: nothing was)."""
    tokens = usage.input_tokens + usage.output_tokens
    amounts: dict[str, Number] = {"tokens": tokens, "output_tokens": usage.output_tokens}
    if cost is not None:
        amounts["cost"] = cost
    if not usage.measured:
        amounts["unmeasured"] = 1
    over = tokens - reserved_tokens
    if reserved_output_tokens:
        over = max(over, usage.output_tokens - reserved_output_tokens)
    if reserved_tokens and over > 0:
        amounts["underestimated_tokens"] = over
    return amounts


def limit_name(unit: str) -> str:
    """The field of the limits that limits a unit, as endings and warnings name it."""
    kind, colon, name = unit.partition(":")
    return f"{kind}_limits[{name!r}]" if colon else f"max_{unit}"


def allowed_by_limit(limits: PlanLimits) -> dict[str, float | Decimal]:
    """What each limit that is set allows, by its name; the deadline as a Unix time."""
    allowed: dict[str, float | Decimal] = {limit_name(unit): bound for unit, bound in limits.bounds().items()}
    if limits.max_seconds is not None:
        allowed["max_seconds"] = limits.max_seconds
    if limits.deadline is not None:
        allowed["deadline"] = limits.deadline.timestamp()
    return allowed


def used_by_limit(spent: Spent) -> dict[str, float | Decimal]:
    """What is used of each limit that counts, by its name."""
    used: dict[str, float | Decimal] = {limit_name(unit): amount for unit, amount in spent.amounts().items()}
    return {**used, "max_seconds": round(spent.seconds, 3)}


_COUNTERS = 8
"""How many counters are not of a single tool."""
