"""Options become limits, limits become options again, and a view is chosen by where its output goes."""

from __future__ import annotations

import io
import shlex
from dataclasses import fields, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from endstop import ConfigError, PlanLimits, Spent
from endstop._options import LimitOptions, OutputOptions, option_of, raised
from endstop.views.live import LiveView
from endstop.views.plain import JsonView, PlainView

OWN = PlanLimits(max_model_rounds=7, max_tool_calls=9, tool_limits={"search": 3, "open": 2}, max_seconds=60)

GIVEN: dict[str, tuple[object, str, object]] = {
    "max_rounds": (3, "max_model_rounds", 3),
    "max_calls": (4, "max_model_calls", 4),
    "max_tool_calls": (0, "max_tool_calls", 0),
    "max_tokens": (500, "max_tokens", 500),
    "max_output_tokens": (50, "max_output_tokens", 50),
    "max_cost": (0.1, "max_cost", Decimal("0.1")),
    "max_seconds": (2.5, "max_seconds", 2.5),
    "deadline": ("2030-01-31T18:00+01:00", "deadline", datetime(2030, 1, 31, 17, tzinfo=UTC)),
    "max_depth": (1, "max_depth", 1),
    "on_limit": ("stop", "on_limit", "stop"),
    "warn_at": (0.5, "warn_at", 0.5),
    "tool_limit": (["search=5", "a=b=1"], "tool_limits", {"search": 5, "open": 2, "a=b": 1}),
}
"""Option -> what is given, the field that it sets, and its value then."""

SET_IN_CODE = {"answer_tokens", "answer_seconds", "warn_model", "assume_price"}
"""Fields that are no limits, but say how one is kept."""


def options(**given: Any) -> LimitOptions:
    """Options that were given, as the parser makes them."""
    return LimitOptions(**given)


@pytest.mark.parametrize("option", GIVEN)
def test_an_option_replaces_its_limit_and_no_other(option: str) -> None:
    """What is not given stays as the agent has it."""
    given, field, value = GIVEN[option]
    changes: dict[str, Any] = {field: value}
    assert options(**{option: given}).applied_to(OWN) == replace(OWN, **changes)


def test_no_option_changes_nothing() -> None:
    """The agent's own limits hold."""
    assert LimitOptions().applied_to(OWN) == OWN


def test_every_limit_has_an_option() -> None:
    """A limit that is added to the plan gets an option, or a place among those that code alone sets."""
    assert {field.name for field in fields(PlanLimits)} == {field for _, field, _ in GIVEN.values()} | SET_IN_CODE
    assert {field.name for field in fields(LimitOptions)} == GIVEN.keys()


@pytest.mark.parametrize(("option", "field"), [("max_rounds", "max_model_rounds"), ("max_seconds", "max_seconds")])
def test_none_lifts_a_limit(option: str, field: str) -> None:
    """It is another thing than not giving the option."""
    assert getattr(options(**{option: "none"}).applied_to(OWN), field) is None


def test_a_time_without_an_offset_is_local_time() -> None:
    """That is what a person at a keyboard means."""
    expected = datetime(2030, 1, 31, 18).astimezone().astimezone(UTC)
    assert options(deadline="2030-01-31T18:00").applied_to(OWN).deadline == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_rounds": -1}, "--max-rounds=-1 cannot be used"),
        ({"max_calls": 1.9}, "--max-calls=1.9 cannot be used"),
        ({"max_cost": float("nan")}, "--max-cost=nan cannot be used"),
        ({"warn_at": 2.0}, "--warn-at=2.0 cannot be used"),
        ({"deadline": "tomorrow"}, "--deadline='tomorrow' cannot be used: write a time in ISO 8601"),
        ({"tool_limit": ["search"]}, "--tool-limit='search' cannot be used: write NAME=N"),
        ({"tool_limit": ["=3"]}, "--tool-limit='=3' cannot be used: write NAME=N"),
        ({"tool_limit": ["search=-3"]}, "--tool-limit='search=-3' cannot be used: write NAME=N"),
        ({"tool_limit": ["search=³"]}, "--tool-limit='search=³' cannot be used: write NAME=N"),
    ],
)
def test_a_wrong_value_is_named_by_its_option(given: dict[str, object], message: str) -> None:
    """A person at a keyboard has given an option, not a field."""
    with pytest.raises(ConfigError) as caught:
        options(**given).applied_to(OWN)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("limit", "allowed", "more"),
    [
        ("max_model_rounds", 3, "--max-rounds 6"),
        ("max_model_calls", 0, "--max-calls 1"),
        ("max_cost", Decimal("0.10"), "--max-cost 0.20"),
        ("max_seconds", 1.5, "--max-seconds 3.0"),
        ("deadline", 1.9e9, "--deadline TIME"),
        ("tool_limits['search']", 5, "--tool-limit search=10"),
        ("tool_limits['it\\'s a tool']", 5, "--tool-limit 'it'\"'\"'s a tool=10'"),
        ("model_output_cap", 100, ""),
        ("max_model_rounds", None, ""),
    ],
)
def test_a_limit_that_is_used_up_can_be_raised(limit: str, allowed: float | Decimal | None, more: str) -> None:
    """The suggestion is an option that a shell takes as it stands, and that allows more."""
    assert raised(limit, allowed) == more
    assert len(shlex.split(more)) in (0, 2)


def test_a_field_without_an_option_stays_a_field() -> None:
    """An error about something that no option sets names what is wrong all the same."""
    assert option_of("answer_tokens") == "answer_tokens"


class Terminal(io.StringIO):
    """Output that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("output", "out", "terminal", "view"),
    [
        (OutputOptions(), Terminal(), "xterm", LiveView),
        (OutputOptions(), Terminal(), "dumb", PlainView),
        (OutputOptions(), io.StringIO(), "xterm", PlainView),
        (OutputOptions(json=True), Terminal(), "xterm", JsonView),
    ],
)
def test_the_view_fits_where_it_goes(
    output: OutputOptions, out: io.StringIO, terminal: str, view: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A status at the bottom is for terminals that can move their cursor; a program gets JSON wherever it reads."""
    monkeypatch.setenv("TERM", terminal)
    assert isinstance(output.view(out, OWN, Spent()), view)
