"""Words, figures, and texts made fit to be shown."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from endstop import (
    Agent,
    Done,
    Event,
    PlanLimits,
    Spent,
    TextDelta,
    ToolCall,
    ToolCallEvent,
    ToolResultEvent,
    ToolReturn,
)
from endstop.models.scripted import ScriptedModel, call
from endstop.views.base import View
from endstop.views.live import LiveView
from endstop.views.plain import JsonView, PlainView
from endstop.views.words import (
    Gauge,
    Redactor,
    call_text,
    cut_at_width,
    gauges,
    notice,
    outcome_text,
    printable,
    shorten,
    spent_text,
)
from tests.views.screens import (
    LIMITS,
    NO_LIMITS,
    SPENT,
    Screen,
    play,
)


def test_a_text_cannot_command_the_terminal() -> None:
    """Escapes, bells, carriage returns and what turns the direction of writing are shown as `?`."""
    assert printable("a\x1b[2J\x07b\rc\r\nd\te\u202ef\x9b0m\ud800") == "a?[2J?b?c\nd\te?f?0m?"
    assert printable("é終🙂") == "é終🙂"


def test_a_secret_of_the_environment_is_not_shown() -> None:
    """Its name stands in its place, also inside JSON; short values and other names are left alone."""
    redact = Redactor(
        {"OPENAI_API_KEY": 'sk-"12345', "API_TOKEN": "short", "HOME": "not-a-secret-at-all", "DB_PASSWORD": "é-é-é-é-é"}
    )
    assert redact('the key sk-"12345!') == "the key [OPENAI_API_KEY]!"
    assert redact(json.dumps(['sk-"12345', "é-é-é-é-é"])) == '["[OPENAI_API_KEY]", "[DB_PASSWORD]"]'
    assert redact(json.dumps("é-é-é-é-é", ensure_ascii=False)) == '"[DB_PASSWORD]"'
    assert redact("short not-a-secret-at-all") == "short not-a-secret-at-all"


@pytest.mark.parametrize("kind", ["plain", "json", "live"])
def test_no_view_shows_a_secret(kind: str) -> None:
    """Wherever a text comes from: the model, a tool's arguments, its result."""
    redact = Redactor({"MY_SECRET": "hush-hush"})
    screen = Screen(200)
    console = Console(file=screen, force_terminal=True, width=200, color_system=None)
    views: dict[str, View] = {
        "plain": PlainView(screen, NO_LIMITS, Spent(), stream=True, redact=redact),
        "json": JsonView(screen, stream=True, redact=redact),
        "live": LiveView(console, NO_LIMITS, Spent(), stream=True, redact=redact),
    }
    asked = call("search", {"query": "hush-hush"}, call_id="1")
    events: list[Event] = [
        TextDelta(text="It is hush-hush"),
        ToolCallEvent(call=asked),
        ToolResultEvent(call=asked, result=ToolReturn(call_id="1", name="search", content="hush-hush")),
    ]
    play(views[kind], events, None)
    assert "hush" not in screen.raw
    assert "[MY_SECRET]" in screen.raw


@given(st.text(), st.integers(min_value=2, max_value=20))
def test_cutting_loses_nothing_but_the_spaces_at_the_cuts(text: str, width: int) -> None:
    """Each line fits; a character that is wider than the screen stands alone."""
    lines, rest = cut_at_width(text, width)
    assert "".join([*lines, rest]).replace(" ", "") == text.replace(" ", "")
    assert all(cell_len(line) <= width for line in [*lines, rest])


def test_cutting_a_very_long_text_takes_no_longer_than_its_length() -> None:
    """A megabyte in one piece is cut at once; looking at all of it for every line would take minutes."""
    lines, rest = cut_at_width("word " * 200_000, 80)
    assert " ".join([*lines, rest]) == "word " * 200_000


def test_cutting_prefers_spaces() -> None:
    """A word is only cut where it is longer than the line."""
    assert cut_at_width("one two three", 8) == (["one two"], "three")
    assert cut_at_width("onetwothree four", 8) == (["onetwoth"], "ree four")
    assert cut_at_width("終終", 1) == (["終", "終"], "")


@pytest.mark.parametrize(
    ("text", "short"),
    [("a  b\nc", "a b c"), ("abcdefghij", "abcdefghij"), ("abcdefghijk", "abcdefghi…"), (" " * 99 + "x", "…")],
)
def test_a_text_is_shortened_to_one_line(text: str, short: str) -> None:
    """White space is one space, and a cut is marked."""
    assert shorten(text, 10) == short


def test_a_call_is_shown_as_it_is_written() -> None:
    """Long arguments are cut, broken ones are shown as they came."""
    assert call_text(call("f", {"a": 1, "b": ["é", None]})) == 'f(a=1, b=["é", null])'
    assert call_text(ToolCall(call_id="1", name="f", arguments={}, invalid_arguments='{"a": ')) == 'f({"a":)'
    assert len(call_text(call("f", {"a": "x" * 10_000}))) <= 102


def test_an_outcome_says_how_much_came() -> None:
    """A long result is cut, its length is not."""
    assert outcome_text(ToolReturn(call_id="1", name="f", content="x" * 5_000)).startswith("5,000 characters: xxx")
    assert len(outcome_text(ToolReturn(call_id="1", name="f", content="x" * 5_000))) < 200


def test_a_limit_of_nothing_is_used_up() -> None:
    """Zero allowed is a full gauge, not a division by zero."""
    assert gauges(PlanLimits(max_model_rounds=None, max_tool_calls=0), Spent()) == [
        Gauge(label="tool calls", figure="0/0", share=1.0)
    ]
    over = gauges(PlanLimits(max_model_rounds=None, deadline=datetime.now(UTC) - timedelta(seconds=1)), Spent())
    assert over == [Gauge(label="deadline", figure="has come", share=None)]


def test_figures_name_each_limit_that_is_set() -> None:
    """An amount without a limit stands alone; one with a limit stands against it."""
    spent = replace(SPENT, output_tokens=400, price_source="a table", unmeasured=2)
    limits = replace(LIMITS, max_model_calls=9, max_output_tokens=500)
    assert spent_text(spent, limits) == (
        "1/4 rounds, 1/9 model calls, 2/20 tool calls, 2/2 search calls, 2,000/2,000 tokens (2 requests estimated), "
        "400/500 output tokens, $0.01/$0.25, 12.5/60 s"
    )
    assert spent_text(spent, NO_LIMITS) == "1 round, 2 tool calls, 2,000 tokens (2 requests estimated), $0.01, 12.5 s"


async def test_how_a_run_ends_has_no_line_of_its_own() -> None:
    """The closing words say it."""
    result = await Agent(ScriptedModel(["hi"])).run("go")
    assert notice(Done(result=result, path=("agent",)), NO_LIMITS) == ""
