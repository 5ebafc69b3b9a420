"""The events of a run: a closed union of frozen records."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from decimal import Decimal
from typing import get_args, get_type_hints

import pytest

import endstop
from endstop import _events
from endstop._events import Event, RoundStarted, TextDelta, UsageEvent
from endstop._limits import PlanLimits, Spent

EVENTS: tuple[type, ...] = get_args(Event)


def test_every_event_class_is_in_the_union() -> None:
    """A consumer that handles the union handles everything."""
    classes = {each for each in vars(_events).values() if isinstance(each, type) and issubclass(each, _events._Event)}
    assert classes - {_events._Event} == set(EVENTS)


def test_every_event_is_public() -> None:
    """Whoever reads a stream can name what comes."""
    assert {each.__name__ for each in EVENTS} <= set(endstop.__all__)


def test_every_event_has_a_kind_of_its_own() -> None:
    """A kind tells an event in JSON as its class does in Python; it cannot be chosen."""
    kinds = [next(field.default for field in dataclasses.fields(each) if field.name == "kind") for each in EVENTS]
    assert len(set(kinds)) == len(EVENTS)
    assert [get_args(get_type_hints(each)["kind"]) for each in EVENTS] == [(kind,) for kind in kinds]


@pytest.mark.parametrize("event", EVENTS, ids=lambda each: each.__name__)
def test_every_event_says_whose_it_is_and_where(event: type) -> None:
    """Run, path of agents, round and number, beside its own fields."""
    names = [field.name for field in dataclasses.fields(event)]
    assert names[:4] == ["run_id", "path", "round", "seq"]
    assert event.__dataclass_params__.frozen
    assert event.__slots__ is not None
    assert event.__doc__


def test_an_event_cannot_be_changed() -> None:
    """What was told stays told."""
    event = TextDelta(text="a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.text = "b"
    assert event == TextDelta(text="a", run_id="", path=(), round=0, seq=0)


def test_a_request_is_an_ordinary_first_attempt_unless_it_says_otherwise() -> None:
    """Only a retry has a higher attempt."""
    assert (RoundStarted().attempt, RoundStarted().final) == (1, False)


def test_what_remains_of_each_limit_is_told_by_its_name() -> None:
    """Limits that are set and counted, each in its own unit, those of tools that have not been called among them."""
    limits = PlanLimits(
        max_model_calls=3,
        tool_limits={"open": 2, "search": 5},
        max_tokens=100,
        max_cost=Decimal("0.50"),
        max_seconds=10,
        deadline=datetime(2026, 11, 30, tzinfo=UTC),
    )
    spent = Spent(
        model_rounds=2,
        model_calls=2,
        tools={"open": 1},
        input_tokens=70,
        output_tokens=10,
        cost=Decimal("0.1"),
        seconds=2.5,
    )
    assert UsageEvent(spent=spent, limits=limits).remaining == {
        "max_model_rounds": 8,
        "max_model_calls": 1,
        "tool_limits['open']": 1,
        "tool_limits['search']": 5,
        "max_tokens": 20,
        "max_cost": Decimal("0.40"),
        "max_seconds": 7.5,
    }


def test_nothing_remains_of_a_limit_that_was_overshot() -> None:
    """What a wrong estimate cost beyond a limit is no debt: 0 is left."""
    limits = PlanLimits(max_tokens=10, max_cost=1, max_seconds=1)
    spent = Spent(model_rounds=10, input_tokens=11, cost=Decimal(2), seconds=1.5)
    remaining = UsageEvent(spent=spent, limits=limits).remaining
    assert remaining == {"max_model_rounds": 0, "max_tokens": 0, "max_cost": 0, "max_seconds": 0}


def test_without_limits_nothing_is_said_to_remain() -> None:
    """No limit is not a limit of which everything is left."""
    assert UsageEvent(spent=Spent(), limits=PlanLimits(max_model_rounds=None)).remaining == {}
