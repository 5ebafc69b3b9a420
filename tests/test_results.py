"""How a run ended: a result that says so, to programs and to people, and survives JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import pydantic
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from endstop._errors import StateError
from endstop._limits import LOOP, LimitHit, PlanLimits, Spent
from endstop._messages import JsonValue, Message, ModelTurn, ToolCall, ToolReturn, UserMessage
from endstop._pauses import Pause
from endstop._results import (
    DIGEST_MAX_CHARS,
    DIGEST_MAX_RESULTS,
    AgentResult,
    Ending,
    banner,
    best_text,
    cut_text,
    limit_reason,
    tool_digest,
)
from endstop._state import RunState
from tests.strategies import json_values, records, states, texts

STATE = RunState(
    run_id="r1",
    agent="a",
    limits=PlanLimits(),
    messages=[UserMessage(content="Before"), ModelTurn(text="Yes"), UserMessage(content="Go"), ModelTurn(text="Done")],
    first_message=2,
    spent=Spent(model_calls=1, seconds=1.5),
)
ENDING = Ending(
    rung="model_answer",
    reason="max_tool_calls is used up (2 of 2)",
    limit="max_tool_calls",
    used=2,
    allowed=2,
    pending=(ToolCall(call_id="1", name="pay", arguments={}),),
    effects=("book",),
)


class Colour(Enum):
    """An enumeration."""

    RED = "red"


@dataclass
class Plain:
    """A plain dataclass."""

    name: str
    raw: bytes = b""


class Model(pydantic.BaseModel):
    """A pydantic model."""

    day: date
    price: Decimal = pydantic.Field(alias="cost")
    children: list[Model] = []


def completed(output: object = "Done", text: str = "Done") -> AgentResult[Any]:
    """A result of a run that completed."""
    return AgentResult(output=output, text=text, stop_reason="completed", ending=None, state=STATE)


def call(call_id: str, name: str = "search", **arguments: JsonValue) -> ModelTurn:
    """A turn that asks for one call."""
    return ModelTurn(tool_calls=(ToolCall(call_id=call_id, name=name, arguments=arguments),))


def found(call_id: str, content: str, name: str = "search") -> ToolReturn:
    """What a call returned."""
    return ToolReturn(call_id=call_id, name=name, content=content)


results = st.builds(
    AgentResult,
    output=json_values,
    text=texts,
    stop_reason=st.sampled_from(["completed", "tool_limit", "budget", "loop", "paused", "cancelled"]),
    ending=st.none() | records(Ending),
    state=states,
)


@settings(max_examples=50)
@given(results)
def test_a_result_comes_back_from_json_as_it_was(result: AgentResult[JsonValue]) -> None:
    """Output, text, ending and the whole state, whatever they hold."""
    document = result.to_json()
    again: AgentResult[object] = AgentResult.from_json(document, object)
    assert again == result
    assert AgentResult.from_json(document.encode(), object) == result


@pytest.mark.parametrize(
    ("output", "output_type"),
    [
        ("Done", str),
        (3, int),
        (10**400, int),
        (1.5, float),
        (None, str),
        (True, bool),
        (Decimal("0.10"), Decimal),
        (Colour.RED, Colour),
        (date(2026, 11, 30), date),
        (datetime(2026, 11, 30, tzinfo=UTC), datetime),
        (timedelta(seconds=1.5), timedelta),
        (b"abc", bytes),
        ((1, "a"), tuple[int, str]),
        ({1, 2}, set[int]),
        ({1: "a"}, dict[int, str]),
        ([Plain(name="a", raw=b"x")], list[Plain]),
        (Plain(name="é", raw=b"bytes"), Plain),
        (Model(day=date(2026, 1, 1), cost=Decimal("1.50"), children=[Model(day=date(2026, 1, 2), cost=2)]), Model),
        (Model(day=date(2026, 1, 1), cost=Decimal(1)), Model | Plain | None),
    ],
)
def test_an_output_comes_back_as_a_value_of_its_type(output: object, output_type: type[object]) -> None:
    """Whatever type an agent answers in, bytes as the text that they are."""
    again = AgentResult.from_json(completed(output).to_json(), output_type)
    assert again.output == output
    assert type(again.output) is type(output)


def test_an_output_of_another_type_is_refused_by_name() -> None:
    """Who forgets to say the output type is told where it went wrong."""
    with pytest.raises(StateError, match="the field 'output' is wrong") as caught:
        AgentResult.from_json(completed({"name": "a"}).to_json())
    assert caught.value.field == "output"
    with pytest.raises(StateError) as caught:
        AgentResult.from_json(completed([{"name": 3}]).to_json(), list[Plain])
    assert caught.value.field == "output.0.name"


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ("", ""),
        ("[]", ""),
        ("{}", "format"),
        (STATE.to_json(), "format"),
        (completed().to_json()[:-2], ""),
        (completed().to_json().replace('"version":1', '"version":2'), "version"),
        (completed().to_json().replace('"stop_reason":"completed"', '"stop_reason":"tired"'), "stop_reason"),
        (completed().to_json().replace('"run_id":"r1"', '"run_id":1'), "state.run_id"),
    ],
)
def test_what_is_no_result_is_refused_by_name(document: str, field: str) -> None:
    """As a state is."""
    with pytest.raises(StateError, match="endstop/result") as caught:
        AgentResult.from_json(document)
    assert caught.value.field == field


def test_a_result_says_what_the_run_did() -> None:
    """Its own messages apart from the history, what was spent, and how long it worked."""
    result = completed()
    assert result.run_id == "r1"
    assert result.messages == tuple(STATE.messages)
    assert result.new_messages == (UserMessage(content="Go"), ModelTurn(text="Done"))
    assert result.spent is STATE.spent
    assert result.duration_ms == 1_500.0
    assert result.pauses == ()


def test_a_paused_result_says_what_it_waits_for() -> None:
    """The questions are at hand, without a look into the state."""
    asked = ToolCall(call_id="1", name="pay", arguments={})
    pause = Pause(pause_id="r1:1:0", kind="interrupt", question="Pay?", call=asked, call_id="1", path=("a",))
    result = replace(completed(), stop_reason="paused", state=replace(STATE, pauses=[pause]))
    assert result.pauses == (pause,)


@pytest.mark.parametrize(
    ("stop_reason", "truncated", "word"),
    [
        ("tool_limit", True, "TRUNCATED"),
        ("budget", True, "TRUNCATED"),
        ("loop", True, "TRUNCATED"),
        ("paused", False, "PAUSED"),
        ("cancelled", False, "CANCELLED"),
    ],
)
def test_the_text_of_an_unfinished_run_opens_with_a_banner(stop_reason: Any, truncated: bool, word: str) -> None:
    """Nobody takes a partial answer for a whole one; `text` alone is the answer alone."""
    result = AgentResult(output="Half", text="Half", stop_reason=stop_reason, ending=ENDING, state=STATE)
    assert result.truncated is truncated
    first, empty, rest = str(result).partition("\n\n")
    assert first == f"[{word}: {ENDING.reason}; this is a partial answer from what was found so far]"
    assert first == banner(stop_reason, ENDING)
    assert (empty, rest) == ("\n\n", "Half")
    assert result.text == "Half"


def test_the_text_of_a_completed_run_is_the_answer() -> None:
    """Nothing is put before it."""
    assert str(completed(text="Done")) == "Done"
    assert not completed().truncated


@pytest.mark.parametrize(
    ("rung", "words"),
    [
        ("model_answer", "this is a partial answer from what was found so far"),
        ("last_text", "this is the last text of an unfinished run"),
        ("tool_digest", "there is no answer; these are the tool results gathered so far"),
        ("empty", "there is no answer"),
    ],
)
def test_the_banner_says_where_the_text_comes_from(rung: Any, words: str) -> None:
    """An answer, a text, results or nothing: each is called what it is."""
    result = AgentResult(output=None, text="", stop_reason="budget", ending=replace(ENDING, rung=rung), state=STATE)
    assert str(result) == f"[TRUNCATED: {ENDING.reason}; {words}]"


def test_the_ladder_takes_the_newest_text() -> None:
    """A text beats any results; white space is no text."""
    history: list[Message] = [UserMessage(content="Go"), ModelTurn(text="First"), ModelTurn(text="Second"), call("1")]
    assert best_text([*history, found("1", "result"), ModelTurn(text=" \n")]) == ("last_text", "Second")


def test_without_a_text_the_ladder_takes_the_results() -> None:
    """What the tools found is worth something by itself."""
    history: list[Message] = [UserMessage(content="Go"), call("1", q="限位"), found("1", "an endstop")]
    assert best_text(history) == ("tool_digest", '- search({"q": "限位"}): an endstop')


@pytest.mark.parametrize("status", ["error", "not_run"])
def test_without_anything_the_ladder_ends_empty(status: Any) -> None:
    """What failed, was not run or returned nothing is no result."""
    history = [call("1"), replace(found("1", "No such file"), status=status), call("2"), found("2", " ")]
    assert best_text(history) == ("empty", "")
    assert best_text([]) == ("empty", "")


def test_a_digest_names_a_call_that_is_not_in_the_history() -> None:
    """A cut history has returns whose calls are gone."""
    assert tool_digest([found("1", "x", name="open")]) == "- open(): x"


def test_a_digest_says_the_same_only_once() -> None:
    """A run that ends in a loop found the same again and again; another call or another result is something new."""
    asked = [call(str(n), q="key") for n in range(3)] + [call("3", q="lock")]
    results = [found(str(n), "nothing") for n in range(2)] + [found("2", "a key"), found("3", "nothing")]
    digest = tool_digest([*asked, *results])
    assert digest == '- search({"q": "key"}): nothing\n- search({"q": "key"}): a key\n- search({"q": "lock"}): nothing'


def test_a_digest_cuts_long_arguments() -> None:
    """What was found matters more than how it was asked for."""
    digest = tool_digest([call("1", q="x" * 500), found("1", "found")])
    assert digest.endswith(": found")
    assert len(digest) < 200


@given(st.lists(st.text("ab", min_size=1, max_size=1_000), min_size=1, max_size=60))
@example(["a" * 500] * (DIGEST_MAX_RESULTS + 5))
def test_every_result_has_its_share_of_a_digest(contents: list[str]) -> None:
    """Of so many as can be shown, the newest, none pushes another out; what is left out is counted."""
    history: list[Message] = []
    for number, content in enumerate(contents):
        history += [call(str(number), n=number), found(str(number), content)]
    lines = tool_digest(history).split("\n")
    shown = contents[-DIGEST_MAX_RESULTS:]
    if len(contents) > len(shown):
        assert lines.pop(0) == f"- ({len(contents) - len(shown)} older results are left out)"
    assert len(lines) == len(shown)
    share = DIGEST_MAX_CHARS // len(shown)
    for number, (line, content) in enumerate(zip(lines, shown, strict=True), len(contents) - len(shown)):
        whole = f'- search({{"n": {number}}}): {content}'
        assert line == cut_text(whole, share)
    assert sum(map(len, lines)) <= DIGEST_MAX_CHARS + 60 * len(lines)


@given(texts, st.integers(0, 100))
def test_a_text_is_cut_with_a_marker_that_says_how_long_it_was(text: str, most: int) -> None:
    """A text that fits is not touched."""
    cut = cut_text(text, most)
    if len(text) <= most:
        assert cut == text
    else:
        assert cut == f"{text[:most]}… [cut: {most} of {len(text)} characters]"


@pytest.mark.parametrize(
    ("hit", "reason"),
    [
        (LimitHit(limit="max_model_rounds", used=10, allowed=10), "max_model_rounds is used up (10 of 10)"),
        (LimitHit(limit="tool_limits['x']", used=0, allowed=0), "tool_limits['x'] is used up (0 of 0)"),
        (LimitHit(limit="max_tokens", used=10**30, allowed=10**30), f"max_tokens is used up ({10**30} of {10**30})"),
        (LimitHit(limit="max_seconds", used=7.504, allowed=10.0), "max_seconds leaves no room (7.504 of 10 seconds)"),
        (LimitHit(limit="max_seconds", used=0.1 + 0.2, allowed=3), "max_seconds leaves no room (0.3 of 3 seconds)"),
        (
            LimitHit(limit="max_cost", used=Decimal("0.50"), allowed=Decimal("1E+1")),
            "max_cost leaves no room (0.50 of 10 US dollars)",
        ),
        (
            LimitHit(limit="max_cost", used=Decimal("1E-7"), allowed=Decimal(1)),
            "max_cost leaves no room (0.0000001 of 1 US dollars)",
        ),
        (LimitHit(limit="deadline", used=1.8e9, allowed=1.8e9), "the deadline has come"),
        (
            LimitHit(limit="model_output_cap", used=4096, allowed=4096),
            "the answer was cut at the model's own cap of 4096 output tokens",
        ),
        (LimitHit(limit=LOOP, used=6, allowed=3), "the run repeats itself"),
    ],
)
def test_a_limit_is_told_in_one_line(hit: LimitHit, reason: str) -> None:
    """The limit and the numbers, in its own unit, without an exponent."""
    assert limit_reason(hit) == reason


def test_a_stored_result_is_plain_json() -> None:
    """Any program can read it."""
    document = json.loads(AgentResult(output=None, text="", stop_reason="budget", ending=ENDING, state=STATE).to_json())
    assert document["format"] == "endstop/result"
    assert document["value"]["ending"]["limit"] == "max_tool_calls"
