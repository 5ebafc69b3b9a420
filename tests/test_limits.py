"""What a run may spend, as values that are checked when they are made."""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstop._errors import ConfigError
from endstop._limits import (
    ANSWER_SECONDS_MAX,
    MAX_TOOL_ITERATIONS,
    LimitHit,
    PlanLimits,
    Price,
    Spent,
    check_count,
    check_seconds,
)
from endstop._messages import Usage

COUNTS = ("max_model_rounds", "max_model_calls", "max_tool_calls", "max_tokens", "max_output_tokens", "max_depth")
SECONDS = ("max_seconds", "answer_seconds")

NAN, INF = math.nan, math.inf
NO_NUMBERS: tuple[object, ...] = (True, False, -1, NAN, INF, -INF, "3", "", b"3", [], {}, object(), 1j)
NO_COUNTS = (*NO_NUMBERS, 1.0, 0.5, Decimal(3))
NO_SECONDS = (*NO_NUMBERS, -0.1, Decimal(3), 10**400, timedelta(seconds=3))
NO_MONEY = (*NO_NUMBERS, -0.01, Decimal(-1), Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity"))


class Nowhere(tzinfo):
    """A time zone that does not say its offset."""

    def utcoffset(self, dt: datetime | None) -> None:
        return None


WRONG: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(COUNTS, NO_COUNTS),
    **dict.fromkeys(SECONDS, NO_SECONDS),
    "answer_tokens": (*NO_COUNTS, None),
    "max_cost": NO_MONEY,
    "tool_limits": (None, [], "search", 3, True, [("search", 3)], {3: 3}, {None: 3}),
    "deadline": (
        *(True, -1, 0, INF, NAN, "2026-11-30", "", [], date(2026, 11, 30), timedelta(hours=1)),
        *(datetime(2026, 11, 30), datetime(2026, 11, 30, tzinfo=Nowhere())),
    ),
    "on_limit": ("explode", "", None, True, 0, [], "ANSWER"),
    "warn_at": (*NO_NUMBERS, 0, 0.0, 1.01, 2, Decimal("0.5")),
    "warn_model": (None, 0, 1, "yes", "", []),
    "assume_price": (True, 0, 3.0, Decimal(3), "3", {}),
}
"""Field -> values that must be refused."""


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in WRONG.items() for value in values])
def test_a_value_that_cannot_be_used_is_refused_by_name(field: str, value: object) -> None:
    """Each field refuses what is no limit, and the error has the field, the value and a remedy."""
    with pytest.raises(ConfigError) as caught:
        PlanLimits(**{field: value})
    assert caught.value.field == field
    named = caught.value.value
    assert named is value or (isinstance(value, dict) and named in value)
    assert str(caught.value).startswith(f"{field}=")
    assert caught.value.remedy


def test_every_field_is_checked() -> None:
    """A field that takes anything would fail far from where it was set."""
    assert WRONG.keys() == {field.name for field in dataclasses.fields(PlanLimits)}


@pytest.mark.parametrize("value", NO_COUNTS)
def test_the_limit_of_a_tool_is_refused_by_the_tools_name(value: object) -> None:
    """Of several tools it is said which one."""
    with pytest.raises(ConfigError) as caught:
        PlanLimits(tool_limits={"open": 3, "search": value})
    assert caught.value.field == "tool_limits['search']"
    assert caught.value.value is value


@pytest.mark.parametrize("field", [*COUNTS, *SECONDS, "answer_tokens", "max_cost"])
def test_zero_is_a_limit(field: str) -> None:
    """0 means none at all, not no limit."""
    assert getattr(PlanLimits(**{field: 0}), field) == 0


def test_a_tool_may_be_limited_to_zero() -> None:
    """0 executions of a tool is a limit."""
    assert PlanLimits(tool_limits={"search": 0}).tool_limits == {"search": 0}


@pytest.mark.parametrize("field", [*COUNTS, *SECONDS, "max_cost", "deadline", "warn_at", "assume_price"])
def test_none_is_no_limit(field: str) -> None:
    """Every limit can be left out."""
    assert getattr(PlanLimits(**{field: None}), field) is None


def test_the_defaults_bound_the_rounds_and_the_depth() -> None:
    """An agent that is given no limits ends all the same."""
    assert PlanLimits() == PlanLimits(max_model_rounds=MAX_TOOL_ITERATIONS, max_depth=8)
    assert MAX_TOOL_ITERATIONS == 10
    unlimited = ("max_model_calls", "max_tool_calls", "max_tokens", "max_output_tokens", "max_cost", "max_seconds")
    assert [getattr(PlanLimits(), field) for field in unlimited] == [None] * 6


@pytest.mark.parametrize(
    "limits",
    [
        *({field: 0} for field in (*COUNTS, "max_cost", "max_seconds")),
        {"tool_limits": {"pay": 1}},
        {"deadline": datetime(2030, 1, 1, tzinfo=UTC)},
    ],
    ids=str,
)
def test_it_is_known_whether_any_limit_is_set(limits: dict[str, object]) -> None:
    """How a run ends at a limit, and what it keeps for that, limit nothing."""
    none = PlanLimits(max_model_rounds=None, max_depth=None, on_limit="stop", answer_seconds=3)
    assert not none.limits_anything
    assert dataclasses.replace(none, **limits).limits_anything


def test_the_limits_of_tools_are_the_callers_no_more() -> None:
    """Changing the mapping afterwards changes no limit."""
    given_limits = {"search": 3}
    limits = PlanLimits(tool_limits=given_limits)
    given_limits["search"] = 300
    assert limits.tool_limits == {"search": 3}


@pytest.mark.parametrize(
    ("given_cost", "kept"),
    [(0.1, Decimal("0.1")), (3, Decimal(3)), (Decimal("0.10"), Decimal("0.10")), (10**30, Decimal(10**30))],
)
def test_money_is_kept_as_it_was_written(given_cost: Decimal | float, kept: Decimal) -> None:
    """A tenth of a dollar is not 0.1000000000000000055 dollars."""
    cost = PlanLimits(max_cost=given_cost).max_cost
    assert isinstance(cost, Decimal)
    assert cost == kept


def test_a_deadline_is_kept_as_utc() -> None:
    """The instant stays the same, whatever zone it was given in."""
    cest = timezone(timedelta(hours=2))
    limits = PlanLimits(deadline=datetime(2026, 7, 1, 12, tzinfo=cest))
    assert limits.deadline == datetime(2026, 7, 1, 10, tzinfo=UTC)
    assert limits.deadline.tzinfo is UTC


@pytest.mark.parametrize(
    ("limits", "left", "held"),
    [
        (PlanLimits(), 40, 10.0),
        (PlanLimits(), 0, 0.0),
        (PlanLimits(), -1, 0.0),
        (PlanLimits(), 4_000, ANSWER_SECONDS_MAX),
        (PlanLimits(answer_seconds=3), 40, 3.0),
        (PlanLimits(answer_seconds=0), 40, 0.0),
        (PlanLimits(on_limit="stop"), 40, 0.0),
        (PlanLimits(answer_seconds=3, on_limit="raise"), 40, 0.0),
    ],
)
def test_time_for_the_final_answer_is_held_where_there_is_one(limits: PlanLimits, left: float, held: float) -> None:
    """A quarter of the time and at most a minute, or what was asked for; nothing where no final answer is asked."""
    assert limits.seconds_for_answer(left) == held


@pytest.mark.parametrize("field", ["input_per_million", "output_per_million", "cached_input_per_million"])
@pytest.mark.parametrize("value", NO_MONEY)
def test_a_price_that_is_no_amount_of_money_is_refused_by_name(field: str, value: object) -> None:
    """A wrong price would make every cost wrong."""
    prices = {"input_per_million": 1, "output_per_million": 2, field: value}
    with pytest.raises(ConfigError) as caught:
        Price(**prices)
    assert (caught.value.field, caught.value.value) == (field, value)


def test_a_price_needs_both_rates() -> None:
    """`None` is no price, except for cached input."""
    with pytest.raises(ConfigError, match="output_per_million"):
        Price(input_per_million=Decimal(1), output_per_million=None)


def test_a_price_is_charged_by_the_token() -> None:
    """Rates are per million tokens; cached input has its own where there is one."""
    price = Price(input_per_million=Decimal(3), output_per_million=Decimal(15), cached_input_per_million=Decimal("0.3"))
    usage = Usage(input_tokens=1_000, output_tokens=100, cached_input_tokens=400)
    assert price.cost(usage) == Decimal("0.00342")
    flat = Price(input_per_million=Decimal(3), output_per_million=Decimal(15))
    assert flat.cost(usage) == Decimal("0.0045")
    assert flat.source == "assumed"


def test_no_more_than_the_input_is_cached() -> None:
    """A provider that reports more cached tokens than input gets no refund."""
    free = Price(input_per_million=Decimal(3), output_per_million=Decimal(15), cached_input_per_million=Decimal(0))
    assert free.cost(Usage(input_tokens=10, cached_input_tokens=1_000)) == 0


@given(
    rates=st.tuples(*[st.decimals(0, 1_000, places=4)] * 3),
    tokens=st.tuples(*[st.integers(0, 10**9)] * 3),
)
def test_a_cost_is_never_negative_and_never_falls_with_more_tokens(
    rates: tuple[Decimal, ...], tokens: tuple[int, ...]
) -> None:
    """More tokens of any kind cost as much or more."""
    price = Price(input_per_million=rates[0], output_per_million=rates[1], cached_input_per_million=rates[2])
    usage = Usage(input_tokens=tokens[0], output_tokens=tokens[1], cached_input_tokens=min(tokens[0], tokens[2]))
    more = dataclasses.replace(usage, input_tokens=tokens[0] + 1, output_tokens=tokens[1] + 1)
    assert 0 <= price.cost(usage) <= price.cost(more)


def test_spent_tokens_are_input_and_output() -> None:
    """Cached and thinking tokens are among them, not beside them."""
    assert Spent(input_tokens=3, output_tokens=4).tokens == 7
    assert Spent().tokens == 0


@pytest.mark.parametrize("value", [*NO_COUNTS, 0])
def test_a_count_may_have_a_least(value: object) -> None:
    """The least is said in the remedy."""
    with pytest.raises(ConfigError, match=r"use a whole number, 1 or more$"):
        check_count("retries", value, least=1)


def test_a_required_value_is_required() -> None:
    """`None` passes only where there need be no value."""
    check_count("n", None, required=False)
    check_seconds("s", None)
    with pytest.raises(ConfigError, match="n=None"):
        check_count("n", None)
    with pytest.raises(ConfigError, match=r"s=None cannot be used: use a number of seconds, 0 or more$"):
        check_seconds("s", None, required=True)


@given(st.integers(0))
def test_every_natural_number_is_a_count(value: int) -> None:
    """However large."""
    check_count("n", value)


@given(st.floats(0, allow_nan=False, allow_infinity=False) | st.integers(0, 2**63))
def test_every_finite_time_is_a_number_of_seconds(value: float) -> None:
    """However small or large."""
    check_seconds("s", value)


@given(st.floats(0, 1, exclude_min=True))
def test_every_share_up_to_the_whole_can_be_warned_at(share: float) -> None:
    """A warning can be asked for at any part of a limit, the end included."""
    assert PlanLimits(warn_at=share).warn_at == share


def test_records_are_values() -> None:
    """They are equal by content and cannot be changed."""
    assert LimitHit(limit="max_tokens", used=1, allowed=1) == LimitHit(limit="max_tokens", used=1, allowed=1)
    for record, field in (
        (PlanLimits(), "max_tokens"),
        (Spent(), "cost"),
        (LimitHit(limit="x", used=1, allowed=1), "used"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, field, 0)
