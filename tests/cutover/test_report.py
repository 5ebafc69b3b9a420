"""The report on a window of the ledger, for people and for programs."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstop import ConfigError
from endstop.cutover._report import REMEDIES, Durations, Report, report
from endstop.cutover.ledger import MemoryTurnLedger, TurnRecord
from endstop.cutover.switches import Surface

RUN: Surface = "invocation.run"
STREAM: Surface = "invocation.stream"
START = datetime(2026, 11, 1, tzinfo=UTC)
ON = TurnRecord(surface=RUN, served_by="kernel", route="kernel", switch="on", run_id="r", duration_ms=100, at=START)
FELL_BACK = replace(ON, served_by="legacy", refusals=("input:command",), duration_ms=2_000)
OFF = replace(ON, served_by="legacy", route="legacy", switch="off", duration_ms=300)
SHADOW = replace(OFF, route="shadow", switch="shadow")


def report_on(*records: TurnRecord, since: datetime | None = None, until: datetime | None = None) -> Report:
    """The report on a ledger with these records."""
    ledger = MemoryTurnLedger()
    for record in records:
        ledger.add(record)
    return report(ledger, since, until)


def test_a_report_says_what_ran_where_and_what_is_in_the_way() -> None:
    """Each figure in a row of its own, and the verdict last."""
    found = report_on(
        replace(ON, spent={"tokens": 1_000, "cost": "0.10"}),
        replace(ON, spent={"tokens": 500, "cost": "0.20"}, duration_ms=900, error="ModelError"),
        replace(ON, cancelled=True),
        FELL_BACK,
        OFF,
        replace(OFF, switch="canary=0.05"),
        replace(OFF, switch="canary=0.05"),
        replace(SHADOW, refusals=("debug",)),
        replace(SHADOW, differences=("text",)),
    )
    assert (
        found.to_text()
        == f"""\
invocation.run from the first turn to the last
  turns        9
  on kernel    3 (1 broken off)
  by legacy    2 canary=0.05, 2 shadow, 1 off, 1 on
  fell back    1: 1 input:command (remedies: {REMEDIES})
  in shadow    refused: 1 debug (remedies: {REMEDIES})
  errors       1 ModelError
  differences  1 text
  duration     kernel p50 100 ms, p95 900 ms
  duration     legacy p50 300 ms, p95 2,000 ms
  spent        kernel tokens 1,500, cost 0.30
  verdict      not clean: 1 fell back; 1 failed on the kernel; replays differ (text)"""
    )
    assert not found.is_clean


def test_a_clean_window_is_said_to_be_clean_and_since_when() -> None:
    """The window stands above it, in UTC, with its bounds as they were asked for."""
    found = report_on(ON, FELL_BACK, replace(ON, at=START + timedelta(days=1)), since=START + timedelta(hours=1))
    assert found.is_clean
    assert (
        found.to_text()
        == """\
invocation.run from 2026-11-01 01:00:00 UTC to the last
  turns        1
  on kernel    1
  by legacy    0
  fell back    0
  errors       0
  differences  0
  duration     kernel p50 100 ms, p95 100 ms
  verdict      clean: 1 turn on the kernel"""
    )


def test_the_page_of_the_remedies_has_the_heading() -> None:
    """A reader who follows the report finds what it names."""
    page, anchor = REMEDIES.split("#")
    text = (Path(__file__).parent.parent.parent / page).read_text(encoding="utf-8")
    assert f"\n## {anchor.replace('-', ' ').capitalize()}\n" in text


def test_a_report_is_clean_when_each_surface_that_was_used_is() -> None:
    """One that nobody uses proves nothing and is in nobody's way."""
    streamed = replace(ON, surface=STREAM)
    assert report_on(ON).is_clean
    assert report_on(ON, streamed).is_clean
    assert [part.fallbacks.surface for part in report_on(streamed, ON).surfaces] == [RUN, STREAM]
    assert report_on(ON, streamed).to_text().count("verdict") == 2
    assert not report_on(ON, replace(OFF, surface=STREAM)).is_clean


def test_a_window_without_turns_is_not_clean() -> None:
    """Nothing is proven by it."""
    found = report_on(ON, until=START)
    assert not found.is_clean
    assert found.to_text() == "no turn from the first turn to 2026-11-01 00:00:00 UTC"


def test_turns_that_only_their_counts_are_known_of_are_in_the_report() -> None:
    """A ledger in memory that has forgotten a whole surface does not look as if it had never been used."""
    ledger = MemoryTurnLedger(max_records=1)
    for record in (FELL_BACK, replace(ON, surface=STREAM)):
        ledger.add(record)
    assert report(ledger).surfaces[0].fallbacks.by_code == {"input:command": 1}
    ledger.add(replace(ON, surface=STREAM, at=START + timedelta(hours=1)))
    ledger.add(replace(FELL_BACK, at=START + timedelta(hours=2)))
    ledger.add(replace(ON, surface=STREAM))
    found = report(ledger, START + timedelta(hours=1))
    assert [part.fallbacks.forgotten for part in found.surfaces] == [2, 2]


def test_programs_read_the_same_report_as_json() -> None:
    """With its verdicts, its bounds, and exact amounts as text."""
    document = json.loads(report_on(replace(ON, spent={"cost": "0.10"}), FELL_BACK, since=START).to_json())
    assert document == {
        "format": "endstop/cutover-report",
        "version": 1,
        "since": "2026-11-01T00:00:00+00:00",
        "until": None,
        "is_clean": False,
        "surfaces": [
            {
                "fallbacks": {
                    "surface": "invocation.run",
                    "turns": 2,
                    "on_kernel": 1,
                    "fell_back": 1,
                    "cancelled": 0,
                    "by_code": {"input:command": 1},
                    "errors": {},
                    "differences": {},
                    "forgotten": 0,
                },
                "legacy_by_switch": {"on": 1},
                "refused_in_shadow": {},
                "durations": {
                    "kernel": {"turns": 1, "p50_ms": 100, "p95_ms": 100},
                    "legacy": {"turns": 1, "p50_ms": 2_000, "p95_ms": 2_000},
                },
                "spent": {"kernel": {"cost": "0.10"}},
                "is_clean": False,
                "verdict": "not clean: 1 fell back",
            }
        ],
    }


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_percentiles_are_of_turns_that_ran(milliseconds: list[float]) -> None:
    """So many of a hundred turns took at most that long, and none fewer would do."""
    (part,) = report_on(*(replace(ON, duration_ms=value) for value in milliseconds)).surfaces
    found = part.durations["kernel"]
    assert found.turns == len(milliseconds)
    for percent, value in ((50, found.p50_ms), (95, found.p95_ms)):
        assert value in milliseconds
        assert sum(other <= value for other in milliseconds) * 100 >= percent * len(milliseconds)
        assert sum(other < value for other in milliseconds) * 100 < percent * len(milliseconds)


def test_the_middle_of_one_turn_is_that_turn() -> None:
    """There is no percentile of nothing: a body that served no turn has none."""
    (part,) = report_on(ON).surfaces
    assert part.durations == {"kernel": Durations(turns=1, p50_ms=100, p95_ms=100)}


@given(st.lists(st.decimals(0, 100, places=2), min_size=1, max_size=20))
def test_money_adds_up_exactly(costs: list[Decimal]) -> None:
    """To the last cent."""
    (part,) = report_on(*(replace(ON, spent={"cost": str(cost)}) for cost in costs)).surfaces
    assert part.spent["kernel"]["cost"] == sum(costs)


def test_a_window_is_asked_for_with_its_time_zone() -> None:
    """A local time would be another window on each machine."""
    with pytest.raises(ConfigError, match="since"):
        report_on(ON, since=datetime(2026, 11, 1))
