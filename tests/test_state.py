"""The record of a run: it survives JSON whole, and what is no such record is refused by name."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endstop._errors import StateError
from endstop._limits import LimitHit, PlanLimits, Price, Spent
from endstop._messages import ImagePart, JsonValue, ModelTurn, ToolCall, ToolReturn, Usage, UserMessage
from endstop._state import FORMAT_VERSION, RunState, as_data, as_type, dump_messages, json_text, load_messages
from tests.strategies import json_values, states

CALL = ToolCall(call_id="1", name="search", arguments={"q": "限位", "n": 3, "x": [1.5, None, True]})
STATE = RunState(
    run_id="r1",
    agent="researcher",
    limits=PlanLimits(
        max_cost=Decimal("0.10"),
        tool_limits={"search": 2},
        deadline=datetime(2026, 11, 30, 12, 0, 0, 123, tzinfo=UTC),
        assume_price=Price(input_per_million=Decimal("0.15"), output_per_million=Decimal("0.60")),
    ),
    messages=[
        UserMessage(content=(ImagePart(data=b"\x00\xff"),)),
        ModelTurn(tool_calls=(CALL,), finish_reason="tool_calls", usage=Usage(input_tokens=10**18), native={"id": "x"}),
        ToolReturn(call_id="1", name="search", content="\x00 \U0001f600"),
    ],
    round=1,
    spent=Spent(model_calls=1, tools={"search": 1}, cost=Decimal("0.000001"), seconds=1.25, price_source="table 1"),
    hit=LimitHit(limit="max_cost", used=Decimal("0.1"), allowed=Decimal("0.10")),
    unrun=[CALL],
    side_effects=["search"],
    stop_reason="budget",
)
DOCUMENT = STATE.to_json()


def changed(*path: str | int, to: JsonValue) -> str:
    """The stored state with one value changed."""
    document: Any = json.loads(DOCUMENT)
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return json.dumps(document)


@settings(max_examples=50)
@given(states)
def test_a_state_comes_back_from_json_as_it_was(state: RunState) -> None:
    """Every field, whether the document is text or bytes."""
    document = state.to_json()
    assert RunState.from_json(document) == state
    assert RunState.from_json(document.encode()) == state


def test_a_state_that_has_everything_comes_back_as_it_was() -> None:
    """Money keeps its digits, time its microseconds, bytes their values."""
    again = RunState.from_json(DOCUMENT)
    assert again == STATE
    assert str(again.limits.max_cost) == "0.10"
    assert again.limits.deadline == STATE.limits.deadline
    assert json.loads(DOCUMENT)["version"] == FORMAT_VERSION


@pytest.mark.parametrize(
    "number", [0, 5, 2**70, 5.0, 0.1, 1e300, Decimal(5), Decimal("0.50"), Decimal("1E+3"), Decimal("1E-30")], ids=repr
)
def test_the_figures_of_a_limit_keep_their_type(number: float | Decimal) -> None:
    """A count stays a whole number, a time a float and money a decimal, to the last digit."""
    hit = LimitHit(limit="x", used=number, allowed=number)
    again = RunState.from_json(replace(STATE, hit=hit).to_json()).hit
    assert again == hit
    assert type(again.used) is type(number)
    assert str(again.used) == str(number)


def test_a_copy_shares_nothing_that_can_change() -> None:
    """What happens to one run happens to no other."""
    state = RunState.from_json(DOCUMENT)
    state.children["1"] = RunState.from_json(DOCUMENT)
    copy = state.copy()
    assert copy == state
    for field in dataclasses.fields(RunState):
        mine, other = getattr(state, field.name), getattr(copy, field.name)
        if isinstance(mine, list | dict):
            assert mine is not other, field.name
            mine.clear()
    assert state.copy() != copy
    assert copy.children["1"] is not STATE
    assert RunState.from_json(copy.to_json()).messages == STATE.messages


def test_a_character_that_cannot_be_stored_loses_nothing_else() -> None:
    """A model of one's own, or a memory, may bring a lone surrogate: it is replaced, and the run is stored."""
    bad = replace(STATE, note="a\udcff", messages=[*STATE.messages, ModelTurn(text="\ud800", native={"x": "\udfff"})])
    good = replace(STATE, note="a?", messages=[*STATE.messages, ModelTurn(text="?", native={"x": "?"})])
    assert RunState.from_json(bad.to_json()) == good


def test_what_is_no_data_cannot_be_stored() -> None:
    """It is said so, rather than stored as something else."""
    with pytest.raises(ValueError, match="Unable to serialize unknown type"):
        json_text({"value": object()}, "constants")


@given(st.data())
def test_a_document_that_was_cut_off_is_refused(data: st.DataObject) -> None:
    """A file that was half written loads nothing, wherever it ends."""
    end = data.draw(st.integers(0, len(DOCUMENT) - 1))
    with pytest.raises(StateError, match="endstop/run-state") as caught:
        RunState.from_json(DOCUMENT[:end])
    assert caught.value.field == ""


@pytest.mark.parametrize(
    "document", ["", "x", "null", "3", "[]", '"{}"', b"\xff\xfe", "\ud800", "{}}", "[" * 10_000, None, 3]
)
def test_what_is_no_json_object_is_refused(document: Any) -> None:
    """The error says what was wanted and what is wrong with it."""
    with pytest.raises(StateError, match=r"^this is not endstop/run-state: it is no JSON object \(.+\)$") as caught:
        RunState.from_json(document)
    assert caught.value.field == ""


@pytest.mark.parametrize("document", ["{}", '{"format": null}', '{"format": 3, "version": 1}', dump_messages([])])
def test_a_document_of_another_format_is_refused(document: str) -> None:
    """It says of which format it is, and which is wanted."""
    with pytest.raises(StateError, match=r"^this is .+, not endstop/run-state: pass what to_json\(\) wrote$") as caught:
        RunState.from_json(document)
    assert caught.value.field == "format"
    with pytest.raises(StateError, match="this is 'endstop/run-state', not endstop/messages"):
        load_messages(DOCUMENT)


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, 10**30, 0, -1, True, 1.0, "1", None, [1]])
def test_a_version_that_cannot_be_read_is_refused(version: JsonValue) -> None:
    """A newer one above all: reading half of what it says would be worse than reading nothing."""
    with pytest.raises(StateError, match="cannot be read; this package reads versions 1 to 1") as caught:
        RunState.from_json(changed("version", to=version))
    assert caught.value.field == "version"
    assert repr(version) in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (("value",), None, ""),
        (("value",), [], ""),
        (("value", "run_id"), 3, "run_id"),
        (("value", "round"), "three", "round"),
        (("value", "wrap_up"), "maybe", "wrap_up"),
        (("value", "stop_reason"), "tired", "stop_reason"),
        (("value", "spent", "cost"), "much", "spent.cost"),
        (("value", "spent", "tools", "search"), "x", "spent.tools.search"),
        (("value", "hit", "used"), "x", "hit.used"),
        (("value", "messages", 0, "kind"), "system", "messages.0"),
        (("value", "messages", 1, "finish_reason"), "bored", "messages.1.model.finish_reason"),
        (("value", "messages", 1, "tool_calls", 0, "arguments"), "{}", "messages.1.model.tool_calls.0.arguments"),
        (("value", "messages", 2, "status"), None, "messages.2.tool.status"),
        (("value", "limits", "on_limit"), "explode", "limits.on_limit"),
        (("value", "limits", "max_tokens"), -1, "max_tokens"),
        (("value", "limits", "max_cost"), "-1", "max_cost"),
        (("value", "limits", "warn_at"), 2, "warn_at"),
        (("value", "limits", "deadline"), "2026-11-30T12:00:00", "deadline"),
    ],
)
def test_a_wrong_field_is_named(path: tuple[str | int, ...], value: JsonValue, field: str) -> None:
    """The path inside the document leads to it."""
    with pytest.raises(StateError, match="endstop/run-state") as caught:
        RunState.from_json(changed(*path, to=value))
    assert caught.value.field.startswith(field)
    assert bool(caught.value.field) == bool(field)
    assert field.rpartition(".")[2] in str(caught.value)


def test_a_missing_field_is_named() -> None:
    """What every run has must be there."""
    document = json.loads(DOCUMENT)
    del document["value"]["agent"]
    with pytest.raises(StateError, match="the field 'agent' is wrong") as caught:
        RunState.from_json(json.dumps(document))
    assert caught.value.field == "agent"


def test_a_field_that_is_left_out_has_its_default() -> None:
    """A state that was stored before a field was added can still be read."""
    document = json.loads(DOCUMENT)
    kept = {"run_id", "agent", "limits", "messages"}
    document["value"] = {name: value for name, value in document["value"].items() if name in kept}
    assert RunState.from_json(json.dumps(document)) == RunState(
        run_id=STATE.run_id, agent=STATE.agent, limits=STATE.limits, messages=STATE.messages
    )


@given(json_values)
def test_json_data_is_its_own_data(value: JsonValue) -> None:
    """What is JSON already comes back as it was."""
    assert as_type(object, as_data(value), "value") == value


def test_a_place_in_a_document_is_named_whole() -> None:
    """The path starts where the data stands."""
    assert as_type(list[int], [1, 2], "x", at=("output",)) == [1, 2]
    with pytest.raises(StateError, match=r"x: the field 'output\.1' is wrong") as caught:
        as_type(list[int], [1, "b"], "x", at=("output",))
    assert caught.value.field == "output.1"
    with pytest.raises(StateError, match="x: the field 'value' is wrong"):
        as_type(int, "b", "x")
