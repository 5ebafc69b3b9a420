"""One budget for a run and everything below it: what is reserved never goes beyond a limit."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from endstop._budget import (
    Budget,
    Hold,
    TimeLeft,
    allowed_by_limit,
    limit_name,
    usage_amounts,
    used_by_limit,
)
from endstop._errors import ConfigError
from endstop._limits import LimitHit, PlanLimits, Spent
from endstop._messages import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from endstop._budget import Amounts, Number

UNITS = ("model_calls", "tokens", "cost", "tool:search")
CENT = Decimal("0.01")
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def bounds(limits: PlanLimits) -> dict[str, Number | None]:
    """What the limits allow of each unit."""
    cost = None if limits.max_cost is None else Decimal(limits.max_cost)
    search = limits.tool_limits.get("search")
    return dict(zip(UNITS, (limits.max_model_calls, limits.max_tokens, cost, search), strict=True))


def used(budget: Budget) -> dict[str, Number]:
    """What a scope has spent of each unit."""
    spent = budget.spent(0.0)
    return dict(zip(UNITS, (spent.model_calls, spent.tokens, spent.cost, spent.tools.get("search", 0)), strict=True))


def held(answer: Hold | LimitHit) -> Hold:
    """The hold that a reservation must have given."""
    assert isinstance(answer, Hold), answer
    return answer


def refusal(answer: Hold | LimitHit | None) -> LimitHit:
    """The limit that must have been in the way."""
    assert isinstance(answer, LimitHit)
    return answer


small = st.integers(0, 6)
cents = small.map(lambda n: n * CENT)
amounts_of = st.fixed_dictionaries(
    {}, optional={"model_calls": small, "tokens": small, "cost": cents, "tool:search": small}
)
limits_of = st.builds(
    PlanLimits,
    max_model_calls=st.none() | st.integers(0, 12),
    max_tokens=st.none() | st.integers(0, 12),
    max_cost=st.none() | st.integers(0, 12).map(lambda n: n * CENT),
    tool_limits=st.just({}) | st.integers(0, 12).map(lambda n: {"search": n}),
)


@dataclass
class _Scope:
    """A scope and what must hold of it."""

    budget: Budget
    above: tuple[_Scope, ...]
    spent: dict[str, Number] = field(default_factory=lambda: dict.fromkeys(UNITS, 0))
    held: dict[str, Number] = field(default_factory=lambda: dict.fromkeys(UNITS, 0))
    beyond: dict[str, Number] = field(default_factory=lambda: dict.fromkeys(UNITS, 0))

    @property
    def chain(self) -> tuple[_Scope, ...]:
        """This scope and those above it."""
        return (self, *self.above)

    def left(self, unit: str) -> Number | None:
        """What its own limit leaves of a unit."""
        bound = bounds(self.budget.limits)[unit]
        return None if bound is None else bound - self.spent[unit] - self.held[unit]


@dataclass
class _Held:
    """A hold, the scope that it is of, and what must be in it."""

    hold: Hold
    scope: _Scope
    amounts: Amounts


class BudgetMachine(RuleBasedStateMachine):
    """Any order of taking, changing and ending holds, anywhere in a tree of scopes, beside a plain model of it."""

    scopes = Bundle("scopes")
    holds = Bundle("holds")

    def __init__(self) -> None:
        super().__init__()
        self.all: list[_Scope] = []

    @rule(target=scopes, limits=limits_of)
    def plant(self, limits: PlanLimits) -> _Scope:
        """A budget of its own."""
        return self._grown(_Scope(budget=Budget(limits), above=()))

    @rule(target=scopes, scope=scopes, limits=limits_of)
    def branch(self, scope: _Scope, limits: PlanLimits) -> _Scope:
        """A scope below another."""
        return self._grown(_Scope(budget=Budget(limits, parent=scope.budget), above=scope.chain))

    @rule(target=holds, scope=scopes, amounts=amounts_of)
    def reserve(self, scope: _Scope, amounts: Amounts) -> object:
        """All or nothing is taken."""
        return self._taken(scope.budget.reserve(amounts), scope, {}, amounts)

    @rule(target=holds, old=holds, amounts=amounts_of)
    def exchange(self, old: _Held, amounts: Amounts) -> object:
        """A hold that ended counts as nothing; one that is refused stays as it was."""
        answer = old.scope.budget.exchange(old.hold, amounts)
        before = old.amounts
        if isinstance(answer, Hold):
            old.amounts = {}
        return self._taken(answer, old.scope, before, amounts)

    @rule(target=holds, old=holds, amounts=amounts_of)
    def split(self, old: _Held, amounts: Amounts) -> object:
        """What is split off is taken from what is held, and never more."""
        if any(amount > old.amounts.get(unit, 0) for unit, amount in amounts.items()):
            with pytest.raises(ConfigError, match="no more than is held"):
                old.hold.split(amounts)
            return multiple()
        part = old.hold.split(amounts)
        old.amounts = {unit: amount - amounts.get(unit, 0) for unit, amount in old.amounts.items()}
        return _Held(part, old.scope, amounts)

    @rule(old=holds)
    def settle_as_held(self, old: _Held) -> None:
        """Without an amount, what was held is used up."""
        old.hold.settle()
        self._ended(old, old.amounts)

    @rule(old=holds, actual=amounts_of)
    def settle(self, old: _Held, actual: Amounts) -> None:
        """What was really used may be more or less; a second end changes nothing."""
        was_open = old.hold.is_open
        old.hold.settle(actual)
        self._ended(old, actual if was_open else {})

    @rule(old=holds)
    def release(self, old: _Held) -> None:
        """Nothing is used up."""
        old.hold.release()
        self._ended(old, {})

    @rule(scope=scopes, amounts=amounts_of)
    def charge(self, scope: _Scope, amounts: Amounts) -> None:
        """All or nothing is used up at once."""
        hit = scope.budget.charge(amounts)
        self._check_answer(hit, scope, {}, amounts)
        if hit is None:
            self._add(scope, "spent", amounts)

    @invariant()
    def what_is_taken_is_what_is_spent_and_held(self) -> None:
        """Every scope counts exactly what it and those below it spent and hold."""
        for scope in self.all:
            assert used(scope.budget) == scope.spent
            for unit, left in zip(UNITS, scope.budget.left(*UNITS), strict=True):
                lefts = [each for above in scope.chain if (each := above.left(unit)) is not None]
                assert left == min(lefts, default=None)

    @invariant()
    def no_limit_is_overshot_but_by_what_was_used_beyond_a_hold(self) -> None:
        """Reservations alone never pass a limit."""
        for scope in self.all:
            for unit, bound in bounds(scope.budget.limits).items():
                assert bound is None or scope.spent[unit] + scope.held[unit] <= bound + scope.beyond[unit]

    def _grown(self, scope: _Scope) -> _Scope:
        self.all.append(scope)
        return scope

    def _taken(self, answer: Hold | LimitHit, scope: _Scope, old: Amounts, new: Amounts) -> object:
        self._check_answer(answer if isinstance(answer, LimitHit) else None, scope, old, new)
        if isinstance(answer, LimitHit):
            return multiple()
        self._add(scope, "held", {unit: -amount for unit, amount in old.items()})
        self._add(scope, "held", new)
        return _Held(answer, scope, new)

    def _check_answer(self, hit: LimitHit | None, scope: _Scope, old: Amounts, new: Amounts) -> None:
        """A refusal comes where something does not fit, and only there; its figures show why."""
        misfits = {
            (limit_name(unit), bound)
            for above in scope.chain
            for unit, bound in bounds(above.budget.limits).items()
            if bound is not None and 0 != new.get(unit, 0) > (above.left(unit) or 0) + old.get(unit, 0)
        }
        assert (hit is not None) == bool(misfits)
        if hit is not None:
            assert (hit.limit, hit.allowed) in misfits
            asked = next(amount for unit, amount in new.items() if limit_name(unit) == hit.limit)
            assert hit.used + asked > hit.allowed

    def _ended(self, old: _Held, actual: Amounts) -> None:
        self._add(old.scope, "held", {unit: -amount for unit, amount in old.amounts.items()})
        self._add(old.scope, "spent", actual)
        beyond = {unit: max(amount - old.amounts.get(unit, 0), 0) for unit, amount in actual.items()}
        self._add(old.scope, "beyond", beyond)
        old.amounts = {}
        assert not old.hold.is_open

    def _add(self, scope: _Scope, what: str, amounts: Amounts) -> None:
        for each in scope.chain:
            counts: dict[str, Number] = getattr(each, what)
            for unit, amount in amounts.items():
                counts[unit] += amount


TestAnyOrderOfHolds = BudgetMachine.TestCase
TestAnyOrderOfHolds.settings = settings(max_examples=60, stateful_step_count=30)


@contextmanager
def frequent_switches() -> Iterator[None]:
    """Threads are switched as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Runs the work in so many threads, which begin together."""
    start = threading.Barrier(count, timeout=60)

    def begin(number: int) -> None:
        start.wait()
        work(number)

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(count)]
    with frequent_switches():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def test_threads_never_take_more_than_a_limit_between_them() -> None:
    """8 threads at once reserve from limits of 3: each limit is given out exactly, though every thread had room."""
    budgets = [Budget(PlanLimits(max_model_calls=3)) for _ in range(300)]
    taken: list[list[Hold]] = [[] for _ in budgets]
    together = threading.Barrier(8, timeout=60)
    amounts: Amounts = {"tokens": 7, "output_tokens": 3, "cost": CENT, "model_rounds": 1, "model_calls": 1}
    roomy = PlanLimits(max_tokens=10**6, max_output_tokens=10**6, max_cost=10**6)

    def take(number: int) -> None:
        scopes = [Budget(roomy, parent=Budget(roomy, parent=budget)) for budget in budgets]
        for scope, holds in zip(scopes, taken, strict=True):
            together.wait()
            answer = scope.reserve(amounts)
            if isinstance(answer, Hold):
                holds.append(answer)

    in_threads(8, take)
    assert [len(holds) for holds in taken] == [3] * len(budgets)
    in_threads(8, lambda number: [hold.settle() for holds in taken for hold in holds[number::8]])
    for budget in budgets:
        assert budget.spent(0.0).model_calls == 3
        assert budget.left("model_calls") == [0]


def test_a_hold_that_several_threads_end_is_ended_once() -> None:
    """Whoever comes second changes nothing."""
    budget = Budget(PlanLimits(max_tokens=1_000))
    holds = [held(budget.reserve({"tokens": 1})) for _ in range(500)]
    in_threads(8, lambda number: [hold.settle() if number % 2 else hold.release() for hold in holds])
    spent = budget.spent(0.0).tokens
    assert 0 <= spent <= 500
    assert budget.left("tokens") == [1_000 - spent]


async def test_tasks_never_take_more_than_a_limit_between_them() -> None:
    """8 runs at once on a limit of 5 requests send 5: nothing is checked and then taken later."""
    shared = Budget(PlanLimits(max_model_rounds=None, max_model_calls=5))
    sent = 0

    async def run() -> None:
        nonlocal sent
        scope = Budget(PlanLimits(), parent=shared)
        hold = scope.reserve({"model_calls": 1})
        await anyio.lowlevel.checkpoint()
        if isinstance(hold, Hold):
            sent += 1
            hold.settle()

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(run)
    assert sent == 5


def test_a_refusal_names_the_limit_and_what_is_used_and_held_of_it() -> None:
    """What others hold is used up for whoever is refused: `0 of 2` would be no reason."""
    shared = Budget(PlanLimits(max_model_calls=2))
    mine, theirs = Budget(PlanLimits(), parent=shared), Budget(PlanLimits(), parent=shared)
    held(theirs.reserve({"model_calls": 1})).settle()
    held(theirs.reserve({"model_calls": 1}))
    assert refusal(mine.reserve({"model_calls": 1})) == LimitHit(limit="max_model_calls", used=2, allowed=2)
    assert refusal(mine.charge({"tool:x": 1, "model_calls": 3})).limit == "max_model_calls"


def test_a_hold_that_is_exchanged_does_not_stand_in_its_own_way() -> None:
    """A reserve counts neither against the request that it pays nor in the figures of its refusal."""
    budget = Budget(PlanLimits(max_tokens=10))
    reserve = held(budget.reserve({"tokens": 8}))
    assert refusal(budget.exchange(reserve, {"tokens": 11})) == LimitHit(limit="max_tokens", used=0, allowed=10)
    assert reserve.is_open
    assert budget.left("tokens") == [2]
    final = held(budget.exchange(reserve, {"tokens": 10}))
    assert not reserve.is_open
    assert budget.left("tokens") == [0]
    final.release()
    assert budget.left("tokens") == [10]


def test_the_limit_of_a_tool_is_named_with_the_tool() -> None:
    """The name is the field, with the key where it is a mapping."""
    budget = Budget(PlanLimits(tool_limits={"it's": 0}))
    assert refusal(budget.charge({"tool:it's": 1})).limit == """tool_limits["it's"]"""
    assert limit_name("model_rounds") == "max_model_rounds"


def test_nothing_of_a_used_up_unit_is_still_granted() -> None:
    """Work that needs none of what is used up goes on."""
    budget = Budget(PlanLimits(max_tokens=1, max_tool_calls=3))
    held(budget.reserve({"tokens": 1})).settle({"tokens": 5})
    assert budget.charge({"tool_calls": 1, "tokens": 0}) is None
    assert budget.left("tokens", "tool_calls", "cost") == [-4, 2, None]


def test_spending_is_charged_to_every_scope_above() -> None:
    """A child's units are its ancestors' as well, and no sibling's."""
    root = Budget(PlanLimits())
    child, sibling = Budget(PlanLimits(), parent=root), Budget(PlanLimits(), parent=root)
    grandchild = Budget(PlanLimits(), parent=child)
    grandchild.charge({"model_rounds": 1, "tool_calls": 2, "tool:open": 2, "tokens": 7, "output_tokens": 3})
    grandchild.charge({"cost": Decimal("0.5"), "unmeasured": 1, "underestimated_tokens": 4})
    expected = Spent(
        model_rounds=1,
        tool_calls=2,
        tools={"open": 2},
        input_tokens=4,
        output_tokens=3,
        cost=Decimal("0.5"),
        unmeasured=1,
        underestimated_tokens=4,
    )
    assert [scope.spent(0.0) for scope in (grandchild, child, root)] == [expected] * 3
    assert sibling.spent(0.0) == Spent()
    assert [scope.depth for scope in (root, child, grandchild)] == [0, 1, 2]


def test_what_an_earlier_leg_spent_stays_spent() -> None:
    """A pause and resume resets no count: every counter goes on from where it was."""
    earlier = Spent(
        model_rounds=1,
        model_calls=2,
        tool_calls=3,
        tools={"search": 3},
        input_tokens=4,
        output_tokens=5,
        cost=Decimal("0.6"),
        seconds=7.5,
        unmeasured=1,
        underestimated_tokens=8,
        price_source="table 1",
    )
    budget = Budget(PlanLimits(max_model_calls=2, tool_limits={"search": 3}), spent=earlier)
    assert budget.spent(100.0) == earlier
    assert refusal(budget.charge({"model_calls": 1})) == LimitHit(limit="max_model_calls", used=2, allowed=2)
    assert refusal(budget.charge({"tool:search": 1})).used == 3


def test_the_price_table_is_named_up_to_the_top() -> None:
    """A scope knows which table priced what was charged to it."""
    root = Budget(PlanLimits())
    child = Budget(PlanLimits(), parent=root)
    child.name_price_source("table 1")
    assert (child.spent(0.0).price_source, root.spent(0.0).price_source) == ("table 1", "table 1")


def test_working_time_stands_still_while_the_clock_does() -> None:
    """Waiting is not working: only the time between start and stop counts."""
    budget = Budget(PlanLimits(), spent=Spent(seconds=2.0))
    assert budget.working_seconds(50.0) == 2.0
    budget.start_clock(100.0)
    assert budget.working_seconds(103.0) == 5.0
    budget.stop_clock(104.0)
    assert budget.working_seconds(900.0) == 6.0
    budget.start_clock(1_000.0)
    assert budget.spent(1_001.0).seconds == 7.0


def test_a_scope_works_while_something_below_it_does() -> None:
    """Two runs at once are one stretch of work of the budget that they share."""
    shared = Budget(PlanLimits())
    first, second = Budget(PlanLimits(), parent=shared), Budget(PlanLimits(), parent=shared)
    first.start_clock(10.0)
    second.start_clock(12.0)
    first.stop_clock(15.0)
    second.stop_clock(20.0)
    assert [scope.working_seconds(20.0) for scope in (first, second, shared)] == [5.0, 8.0, 10.0]


def test_a_shared_budget_stands_still_between_its_runs() -> None:
    """An hour in which nothing runs is not working time of a budget that bounds several runs."""
    shared = Budget(PlanLimits(max_seconds=60))
    for start in (0.0, 3_600.0):
        run = Budget(PlanLimits(), parent=shared)
        run.start_clock(start)
        run.stop_clock(start + 10.0)
    assert shared.working_seconds(7_200.0) == 20.0


def test_the_tightest_time_limit_counts() -> None:
    """Of all time limits here and above it is the one that ends first, and it is named."""
    shared = Budget(PlanLimits(max_seconds=100, deadline=NOW + timedelta(seconds=30)))
    mine = Budget(PlanLimits(max_seconds=20), parent=shared)
    mine.start_clock(0.0)
    assert mine.time_left(5.0, lambda: NOW) == TimeLeft(seconds=15.0, limit="max_seconds", used=5.0, allowed=20)
    late = NOW + timedelta(seconds=25)
    due = (NOW + timedelta(seconds=30)).timestamp()
    assert mine.time_left(5.0, lambda: late) == TimeLeft(
        seconds=5.0, limit="deadline", used=late.timestamp(), allowed=due
    )
    assert shared.time_left(5.0, lambda: NOW).limit == "deadline"
    assert Budget(PlanLimits()).time_left(5.0, lambda: NOW) is None


def test_a_run_below_leaves_the_time_that_one_above_keeps_for_its_answer() -> None:
    """A delegated run ends before its parent's last words must be said."""
    parent = Budget(PlanLimits(max_seconds=100, deadline=NOW + timedelta(seconds=90)))
    parent.answer_seconds = 25.0
    child = Budget(PlanLimits(max_seconds=80), parent=parent)
    parent.start_clock(0.0)
    assert child.time_left(0.0, lambda: NOW).seconds == 65.0
    assert parent.time_left(0.0, lambda: NOW).seconds == 90.0


def test_a_time_limit_is_reported_in_thousandths() -> None:
    """A measured time is not shown to the nanosecond."""
    left = TimeLeft(seconds=-0.0001, limit="max_seconds", used=3.00012345, allowed=3)
    assert left.hit() == LimitHit(limit="max_seconds", used=3.0, allowed=3)


def test_each_limit_warns_once_when_its_share_is_used() -> None:
    """At 80 per cent by default, for every kind of limit, and not before."""
    limits = PlanLimits(max_model_rounds=5, max_cost=1, max_seconds=10, max_tool_calls=0, tool_limits={"open": 10})
    budget = Budget(limits)
    budget.start_clock(0.0)
    budget.charge({"model_rounds": 3, "cost": Decimal("0.79"), "tool:open": 7, "tokens": 1_000})
    assert budget.due_warnings(7.9) == []
    budget.charge({"model_rounds": 1, "cost": CENT, "tool:open": 1})
    assert budget.due_warnings(8.0) == [
        LimitHit(limit="max_model_rounds", used=4, allowed=5),
        LimitHit(limit="max_cost", used=Decimal("0.80"), allowed=Decimal(1)),
        LimitHit(limit="tool_limits['open']", used=8, allowed=10),
        LimitHit(limit="max_seconds", used=8.0, allowed=10),
    ]
    budget.charge({"model_rounds": 1})
    assert budget.due_warnings(9.0) == []


def test_a_warning_given_before_a_pause_is_not_given_again() -> None:
    """What had passed its mark when the run was stored was warned of then."""
    budget = Budget(PlanLimits(max_model_rounds=5, max_seconds=10), spent=Spent(model_rounds=4, seconds=9.0))
    budget.charge({"model_rounds": 1})
    assert budget.due_warnings(0.0) == []
    third = Budget(PlanLimits(max_model_rounds=7, warn_at=0.5))
    third.charge({"model_rounds": 3})
    assert third.due_warnings(0.0) == []
    higher = Budget(PlanLimits(max_model_rounds=10), spent=Spent(model_rounds=4))
    higher.charge({"model_rounds": 4})
    assert [hit.used for hit in higher.due_warnings(0.0)] == [8]


def test_no_warning_is_asked_for_with_none() -> None:
    """`warn_at=None` is never."""
    budget = Budget(PlanLimits(max_model_rounds=1, warn_at=None))
    budget.charge({"model_rounds": 1})
    assert budget.due_warnings(0.0) == []


def test_a_budget_shows_what_is_taken_of_each_limit() -> None:
    """Its repr answers the first question of whoever debugs it."""
    budget = Budget(PlanLimits(max_model_calls=3, tool_limits={"search": 2}))
    held(budget.reserve({"model_calls": 1}))
    assert repr(budget) == "<Budget max_model_rounds=0/10, max_model_calls=1/3, tool_limits['search']=0/2>"
    assert repr(Budget(PlanLimits(max_model_rounds=None))) == "<Budget without limits>"


def test_the_usage_of_a_request_is_settled_in_full() -> None:
    """Tokens, money, and how far the estimate was off; a request without usage is counted as unmeasured."""
    usage = Usage(input_tokens=100, output_tokens=20)
    assert usage_amounts(usage, None) == {"tokens": 120, "output_tokens": 20}
    assert usage_amounts(usage, CENT, reserved_tokens=110) == {
        "tokens": 120,
        "output_tokens": 20,
        "cost": CENT,
        "underestimated_tokens": 10,
    }
    assert usage_amounts(usage, None, reserved_tokens=120) == {"tokens": 120, "output_tokens": 20}
    guess = Usage(input_tokens=1, measured=False)
    assert usage_amounts(guess, None) == {"tokens": 1, "output_tokens": 0, "unmeasured": 1}


def test_used_and_allowed_have_the_same_names() -> None:
    """Whatever counts against a limit can be laid beside it."""
    limits = PlanLimits(
        max_model_calls=1,
        max_tool_calls=2,
        tool_limits={"open": 3},
        max_tokens=4,
        max_output_tokens=5,
        max_cost=6,
        max_seconds=7,
        deadline=NOW,
    )
    allowed = allowed_by_limit(limits)
    assert allowed == {
        "max_model_rounds": 10,
        "max_model_calls": 1,
        "max_tool_calls": 2,
        "max_tokens": 4,
        "max_output_tokens": 5,
        "max_cost": 6,
        "tool_limits['open']": 3,
        "max_seconds": 7,
        "deadline": NOW.timestamp(),
    }
    spent = used_by_limit(Spent(tools={"open": 1}, input_tokens=1, output_tokens=2, seconds=1.23456))
    assert allowed.keys() - spent.keys() == {"deadline"}
    assert (spent["max_tokens"], spent["max_output_tokens"], spent["max_seconds"]) == (3, 2, 1.235)
    assert allowed_by_limit(PlanLimits(max_model_rounds=None)) == {}
