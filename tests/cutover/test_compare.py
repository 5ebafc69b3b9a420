"""Two turns are compared as a reader would: what must be the same, and what may not be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from endstop.cutover._compare import CODES, Difference, compare, same
from endstop.cutover.tape import RecordedCall, RecordedError, RecordedTurn, Request

from .agents import calls, turn_of

ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
OTHER = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
HUMAN: dict[str, Any] = {"type": "human", "data": {"content": "go", "id": ID}}
REQUEST = Request(messages=(HUMAN,), settings={"model": "m", "tool_choice": "any", "_type": "a"})
CALL = RecordedCall(name="look", args={"word": "a"}, call_id="c1", round=1)
TURN = RecordedTurn(run_id="1", requests=(REQUEST,), calls=(CALL,), messages=(HUMAN,), ended=True)


def openai(name: str, **schema: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": schema}}


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("model_requests_more", {"requests": (REQUEST, REQUEST)}),
        ("model_requests_fewer", {"requests": ()}),
        ("model_messages", {"requests": (replace(REQUEST, messages=()),)}),
        ("model_tools", {"requests": (replace(REQUEST, tools=(openai("look"),)),)}),
        ("model_settings", {"requests": (replace(REQUEST, settings={"model": "n", "tool_choice": "any"}),)}),
        ("tool_calls", {"calls": (replace(CALL, args={"word": "b"}),)}),
        ("output_messages", {"messages": ()}),
        ("output_structured", {"structured": {"n": 1}}),
        ("interrupts", {"interrupts": ({"id": "x", "value": 1},)}),
        ("error_class", {"error": RecordedError(name="builtins.KeyError", text="")}),
        ("error_text", {"error": RecordedError(name="builtins.KeyError", text="x")}),
    ],
)
def test_each_difference_has_its_code(code: str, changed: dict[str, Any]) -> None:
    """The code is found, whichever turn is the one that was changed, and a turn is the same as itself."""
    other = replace(TURN, **changed)
    assert compare(TURN, TURN) == compare(other, other) == ()
    assert code in {one.code for one in compare(TURN, other)}
    assert code in CODES


def test_a_difference_says_where_and_what() -> None:
    """The place, and both sides."""
    [found] = compare(TURN, replace(TURN, structured=2))
    assert found == Difference(code="output_structured", where="end", recorded=None, replayed=2)


def test_calls_of_one_round_have_no_order() -> None:
    """Those of two rounds have."""
    other = replace(CALL, name="fail", call_id="c2")
    assert compare(replace(TURN, calls=(CALL, other)), replace(TURN, calls=(other, CALL))) == ()
    later = (replace(CALL, round=2), replace(other, round=2))
    assert {one.code for one in compare(replace(TURN, calls=(CALL, other)), replace(TURN, calls=later))} == {
        "tool_calls"
    }


@pytest.mark.parametrize(
    ("recorded", "replayed"),
    [
        (ID, OTHER),
        (f"lc_run--{ID}-0", f"lc_run--{OTHER}-0"),
        (f"lc_run--{ID}", OTHER),
        ("[redacted]", {"any": 1}),
        ([1, "[redacted]"], [1, 2]),
        ('{"a": 1, "token": "[redacted]"}', '{"token": "x", "a": 1}'),
    ],
)
def test_what_cannot_be_the_same_is_equated(recorded: Any, replayed: Any) -> None:
    """Generated ids, and what was redacted, whichever side it is on."""
    assert same(recorded, replayed)
    assert same(replayed, recorded)


@pytest.mark.parametrize(
    ("recorded", "replayed"),
    [
        (ID, "msg_1"),
        ("msg_1", "msg_2"),
        ([1], [1, 2]),
        ({"a": 1}, {"b": 1}),
        ({"a": "[redacted]"}, {}),
        (1, "1"),
        ("see [redacted]", "see you"),
        ('{"a": 1, "token": "[redacted]"}', '{"token": "x", "a": 2}'),
    ],
)
def test_everything_else_counts(recorded: Any, replayed: Any) -> None:
    """An id that was chosen, a length, a key, a type."""
    assert not same(recorded, replayed)
    assert not same(replayed, recorded)


@pytest.mark.parametrize(
    "form",
    [
        openai("look", type="object", properties={"title": {"type": "string", "title": "Title"}}),
        {
            "name": "look",
            "description": "d",
            "input_schema": {"type": "object", "title": "look", "properties": {"title": {"type": "string"}}},
        },
    ],
)
def test_a_tool_is_the_same_in_the_forms_of_providers(form: dict[str, Any]) -> None:
    """Titles do not count, but a parameter that is called title does."""
    plain = openai("look", type="object", properties={"title": {"type": "string"}})
    turns = [replace(TURN, requests=(replace(REQUEST, tools=(tool,)),)) for tool in (form, plain)]
    assert compare(*turns) == ()


@pytest.mark.parametrize("choice", ["any", "required", True, {"type": "any"}])
def test_any_tool_can_be_asked_for_in_several_ways(choice: Any) -> None:
    """They mean the same; one tool by name is something else, in two ways."""
    turns = [replace(TURN, requests=(replace(REQUEST, settings={"tool_choice": c}),)) for c in (choice, "any", "look")]
    assert compare(turns[0], turns[1]) == ()
    assert compare(turns[0], turns[2]) != ()
    named = [{"type": "function", "function": {"name": "look"}}, {"type": "tool", "name": "look"}]
    assert all(
        compare(turns[2], replace(TURN, requests=(replace(REQUEST, settings={"tool_choice": one}),))) == ()
        for one in named
    )


def test_settings_of_the_model_itself_may_be_missing() -> None:
    """Not those that the agent chooses, and not on the recorded side."""
    bare = replace(TURN, requests=(replace(REQUEST, settings={"tool_choice": "any"}),))
    none = replace(TURN, requests=(replace(REQUEST, settings={"model": "m"}),))
    assert compare(TURN, bare) == ()
    assert [one.where for one in compare(TURN, none)] == ["request 1, setting tool_choice"]
    assert [one.where for one in compare(bare, TURN)] == ["request 1, setting model"]


def test_two_runs_of_one_agent_are_the_same() -> None:
    """Their ids are not, and do not count."""
    lines = (calls(("look", {"word": "a"}), ("look", {"word": "b"})), "done")
    assert compare(turn_of(*lines), turn_of(*lines)) == ()
    assert compare(turn_of(*lines), turn_of(*lines, text="other")) != ()
