"""One budget, shared by a run and everything below it: reserve before, settle after.

A `Budget` is a scope in a tree. `reserve` takes an amount from this scope and from every scope above
it in one atomic step, or takes nothing and says which limit is in the way. The hold that it returns
is settled with what was really used, or released. Nothing is ever checked and then taken later, so
parallel calls and children cannot overrun a limit between them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, TypeAlias

from endstop._limits import LimitHit, PlanLimits, Spent

if TYPE_CHECKING:
    from datetime import datetime

    from endstop._messages import Usage

Number: TypeAlias = int | Decimal
Amounts: TypeAlias = Mapping[str, Number]
"""Amounts by unit: `model_rounds`, `model_calls`, `tool_calls`, `tokens`, `output_tokens`, `cost`, `tool:<name>`."""

TOOL_UNIT = "tool:"

_SPENT_UNITS = ("model_rounds", "model_calls", "tool_calls", "tokens", "output_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLeft:
    """The time that is left under the tightest time limit, and that limit as it would be reported."""

    seconds: float
    limit: str
    used: float
    allowed: float

    def hit(self) -> LimitHit:
        """The limit as used up."""
        return LimitHit(limit=self.limit, used=round(self.used, 3), allowed=round(self.allowed, 3))


class Budget:
    """A scope of spending under `limits`, charged to every scope above it as well.

    Make one to bound several runs together: `Budget(PlanLimits(max_model_calls=20))`, given to each
    as `agent.run(..., budget=budget)`. `spent` carries on from an earlier leg of the same run. Safe
    to use from several tasks and threads at once.
    """

    __slots__ = (
        "_allowed",
        "_earlier_seconds",
        "_held",
        "_lock",
        "_price_source",
        "_spent",
        "_started_at",
        "limits",
        "parent",
    )

    def __init__(self, limits: PlanLimits, *, parent: Budget | None = None, spent: Spent | None = None) -> None:
        self.limits = limits
        self.parent = parent
        self._lock: threading.Lock = parent._lock if parent else threading.Lock()
        self._allowed = _allowed(limits)
        self._held: dict[str, Number] = {}
        self._spent: dict[str, Number] = _counters(spent) if spent else {}
        self._price_source = spent.price_source if spent else None
        self._earlier_seconds = spent.seconds if spent else 0.0
        self._started_at: float | None = None

    @property
    def depth(self) -> int:
        """How many scopes are above this one."""
        return 0 if self.parent is None else self.parent.depth + 1

    def reserve(self, amounts: Amounts) -> Hold | LimitHit:
        """Take the amounts here and in every scope above, or nothing: the limit in the way is returned then."""
        with self._lock:
            hit = self._first_hit(amounts)
            if hit is not None:
                return hit
            self._hold(amounts, 1)
            return Hold(budget=self, amounts=amounts)

    def exchange(self, hold: Hold | None, amounts: Amounts) -> Hold | LimitHit:
        """Turn a hold of this budget into one of other amounts in one step; where they do not fit, nothing changes."""
        with self._lock:
            old: Amounts = hold.amounts if hold is not None and hold.is_open else {}
            self._hold(old, -1)
            hit = self._first_hit(amounts)
            self._hold(old if hit is not None else amounts, 1)
        if hit is not None:
            return hit
        if hold is not None:
            hold.is_open = False
        return Hold(budget=self, amounts=amounts)

    def charge(self, amounts: Amounts) -> LimitHit | None:
        """Reserve and settle at once: the unit is used up by being started. Returns the limit in the way, if any."""
        hold = self.reserve(amounts)
        if isinstance(hold, LimitHit):
            return hold
        hold.settle()
        return None

    def left(self, unit: str) -> Number | None:
        """How much of a unit can still be reserved, in the tightest scope; `None` where nothing limits it."""
        with self._lock:
            lefts = [scope._allowed[unit] - scope._taken(unit) for scope in self._scopes() if unit in scope._allowed]
            return min(lefts, default=None)

    def spent(self, now: float) -> Spent:
        """What this scope has spent so far, everything below it included; `now` is a monotonic time in seconds."""
        with self._lock:
            count = {unit: int(self._spent.get(unit, 0)) for unit in _SPENT_UNITS}
            return Spent(
                model_rounds=count["model_rounds"],
                model_calls=count["model_calls"],
                tool_calls=count["tool_calls"],
                tools={
                    unit.removeprefix(TOOL_UNIT): int(n) for unit, n in self._spent.items() if unit[:5] == TOOL_UNIT
                },
                input_tokens=count["tokens"] - count["output_tokens"],
                output_tokens=count["output_tokens"],
                cost=Decimal(self._spent.get("cost", 0)),
                seconds=self.working_seconds(now),
                unmeasured=int(self._spent.get("unmeasured", 0)),
                underestimated_tokens=int(self._spent.get("underestimated_tokens", 0)),
                price_source=self._price_source,
            )

    def remaining(self, now: float) -> dict[str, float | Decimal]:
        """What is left of every limit that is set in this scope, by the limit's name."""
        left: dict[str, float | Decimal] = {
            limit_name(unit): max(allowed - self._spent.get(unit, 0), 0) for unit, allowed in self._allowed.items()
        }
        if self.limits.max_seconds is not None:
            left["max_seconds"] = max(self.limits.max_seconds - self.working_seconds(now), 0.0)
        return left

    def used_up_to(self, share: float, now: float) -> list[LimitHit]:
        """The limits of this scope of which at least `share` is used."""
        hits = [
            LimitHit(limit=limit_name(unit), used=used, allowed=allowed)
            for unit, allowed in self._allowed.items()
            if (used := self._spent.get(unit, 0)) and used >= float(allowed) * share
        ]
        seconds = self.limits.max_seconds
        if seconds is not None and (used_seconds := self.working_seconds(now)) >= seconds * share > 0:
            hits.append(LimitHit(limit="max_seconds", used=round(used_seconds, 3), allowed=seconds))
        return hits

    def start_clock(self, now: float) -> None:
        """Working time runs on from `now` (monotonic seconds), here and in the scopes above that stand still."""
        for scope in self._scopes():
            if scope._started_at is None:
                scope._started_at = now

    def stop_clock(self, now: float) -> None:
        """Working time of this scope stands still until the clock is started again."""
        self._earlier_seconds = self.working_seconds(now)
        self._started_at = None

    def working_seconds(self, now: float) -> float:
        """Seconds of work in this scope until `now`."""
        return self._earlier_seconds + (0.0 if self._started_at is None else now - self._started_at)

    def time_left(self, now: float, wall: Callable[[], datetime]) -> TimeLeft | None:
        """The time left until the first time limit here or above; `None` where there is none."""
        tightest: TimeLeft | None = None
        for scope in self._scopes():
            allowed, deadline = scope.limits.max_seconds, scope.limits.deadline
            if allowed is not None:
                used = scope.working_seconds(now)
                tightest = _tighter(
                    tightest, TimeLeft(seconds=allowed - used, limit="max_seconds", used=used, allowed=allowed)
                )
            if deadline is not None:
                time = wall()
                tightest = _tighter(
                    tightest,
                    TimeLeft(
                        seconds=(deadline - time).total_seconds(),
                        limit="deadline",
                        used=time.timestamp(),
                        allowed=deadline.timestamp(),
                    ),
                )
        return tightest

    def name_price_source(self, source: str) -> None:
        """Remember which table priced the tokens, here and above."""
        for scope in self._scopes():
            scope._price_source = source

    def _scopes(self) -> list[Budget]:
        scopes: list[Budget] = [self]
        while (parent := scopes[-1].parent) is not None:
            scopes.append(parent)
        return scopes

    def _taken(self, unit: str) -> Number:
        return self._spent.get(unit, 0) + self._held.get(unit, 0)

    def _first_hit(self, amounts: Amounts) -> LimitHit | None:
        scope: Budget | None = self
        while scope is not None:
            allowed = scope._allowed
            if allowed:
                for unit, amount in amounts.items():
                    if unit in allowed and amount and scope._taken(unit) + amount > allowed[unit]:
                        return LimitHit(limit=limit_name(unit), used=scope._spent.get(unit, 0), allowed=allowed[unit])
            scope = scope.parent
        return None

    def _hold(self, amounts: Amounts, sign: int) -> None:
        scope: Budget | None = self
        while scope is not None:
            held = scope._held
            for unit, amount in amounts.items():
                held[unit] = held.get(unit, 0) + sign * amount
            scope = scope.parent

    def settle(self, held: Amounts, actual: Amounts) -> None:
        """Charge `actual` in place of what was held; `Hold.settle` is the way to call it."""
        with self._lock:
            self._hold(held, -1)
            scope: Budget | None = self
            while scope is not None:
                spent = scope._spent
                for unit, amount in actual.items():
                    spent[unit] = spent.get(unit, 0) + amount
                scope = scope.parent

    def __repr__(self) -> str:
        used = ", ".join(f"{limit_name(unit)}={self._taken(unit)}/{n}" for unit, n in self._allowed.items())
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
        if self.is_open:
            self.is_open = False
            self.budget.settle(self.amounts, self.amounts if actual is None else actual)

    def release(self) -> None:
        """End the hold and charge nothing."""
        self.settle({})


def usage_amounts(usage: Usage, cost: Decimal | None, *, reserved_tokens: int = 0) -> dict[str, Number]:
    """A request's usage as the amounts to settle; `reserved_tokens` is what had been held for it."""
    tokens = usage.input_tokens + usage.output_tokens
    amounts: dict[str, Number] = {"tokens": tokens, "output_tokens": usage.output_tokens}
    if cost is not None:
        amounts["cost"] = cost
    if not usage.measured:
        amounts["unmeasured"] = 1
    if reserved_tokens and tokens > reserved_tokens:
        amounts["underestimated_tokens"] = tokens - reserved_tokens
    return amounts


def limit_name(unit: str) -> str:
    """The `PlanLimits` field that limits a unit, as endings and warnings name it."""
    if unit.startswith(TOOL_UNIT):
        return f"tool_limits[{unit.removeprefix(TOOL_UNIT)!r}]"
    return f"max_{unit}"


def allowed_by_limit(limits: PlanLimits) -> dict[str, float | Decimal]:
    """What each limit that is set allows, by its name; the deadline as a Unix time."""
    allowed: dict[str, float | Decimal] = {limit_name(unit): bound for unit, bound in _allowed(limits).items()}
    if limits.max_seconds is not None:
        allowed["max_seconds"] = limits.max_seconds
    if limits.deadline is not None:
        allowed["deadline"] = limits.deadline.timestamp()
    return allowed


def used_by_limit(spent: Spent) -> dict[str, float | Decimal]:
    """What is used of each limit that counts, by its name."""
    used: dict[str, float | Decimal] = {limit_name(unit): amount for unit, amount in _counters(spent).items()}
    return {**used, "max_seconds": round(spent.seconds, 3)}


def _allowed(limits: PlanLimits) -> dict[str, Number]:
    bounds: dict[str, Number | None] = {
        "model_rounds": limits.max_model_rounds,
        "model_calls": limits.max_model_calls,
        "tool_calls": limits.max_tool_calls,
        "tokens": limits.max_tokens,
        "output_tokens": limits.max_output_tokens,
        "cost": None if limits.max_cost is None else Decimal(limits.max_cost),
    }
    allowed = {unit: bound for unit, bound in bounds.items() if bound is not None}
    allowed.update({TOOL_UNIT + tool: bound for tool, bound in limits.tool_limits.items()})
    return allowed


def _counters(spent: Spent) -> dict[str, Number]:
    counters: dict[str, Number] = {
        "model_rounds": spent.model_rounds,
        "model_calls": spent.model_calls,
        "tool_calls": spent.tool_calls,
        "tokens": spent.tokens,
        "output_tokens": spent.output_tokens,
        "cost": spent.cost,
        "unmeasured": spent.unmeasured,
        "underestimated_tokens": spent.underestimated_tokens,
    }
    counters.update({TOOL_UNIT + tool: count for tool, count in spent.tools.items()})
    return counters


def _tighter(one: TimeLeft | None, other: TimeLeft) -> TimeLeft:
    return other if one is None or other.seconds < one.seconds else one
