"""What a turn is made of: the pieces of a stream, or a whole answer."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstop._messages import ModelTurn, ToolCall, Usage, clean_text
from endstop.models._openai_answers import TurnDecoder
from endstop.models.base import Delta
from tests.models.fake_openai import chunk, message, tool_call, usage_chunk


def read(*chunks: Any) -> tuple[ModelTurn, list[Delta]]:
    """The turn and the deltas of a stream."""
    decoder = TurnDecoder("m")
    deltas = [delta for value in chunks for delta in decoder.feed(value)]
    turn = decoder.turn()
    assert "".join(delta.text for delta in deltas if delta.kind == "text") == turn.text
    assert "".join(delta.text for delta in deltas if delta.kind == "thinking") == turn.thinking
    return turn, deltas


def turn_of(*chunks: Any) -> ModelTurn:
    """The turn of a stream."""
    return read(*chunks)[0]


def calls_of(*deltas: list[Any], finish: str = "tool_calls") -> list[tuple[str, str, Any]]:
    """The calls of a stream whose chunks hold these pieces of calls: id, name, and arguments or what they came as."""
    turn = turn_of(*(chunk(tool_calls=pieces) for pieces in deltas), chunk(finish=finish))
    return [
        (call.call_id, call.name, call.arguments if call.invalid_arguments is None else call.invalid_arguments)
        for call in turn.tool_calls
    ]


# -- text ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("", ""),
        ("Hello", "Hello"),
        ([{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}], "Hello"),
        ([{"type": "image"}, {"type": "text", "text": None}, "x", {"type": "text", "text": "Hello"}], "Hello"),
        ({"text": "Hello"}, ""),
        (7, ""),
    ],
)
def test_the_content_of_an_answer(content: Any, text: str) -> None:
    """A string, nothing, or a list of parts: whole and in a stream."""
    assert turn_of(message(content)).text == text
    assert turn_of(chunk(content=content), chunk(finish="stop")).text == text


@given(text=st.text(st.characters() | st.sampled_from("😀\ud83d\ude00")), data=st.data())
def test_a_character_split_between_two_pieces_is_whole_again(text: str, data: st.DataObject) -> None:
    """Split between any two UTF-16 units, as some servers do, the text is the same, and nothing broken is shown."""
    units = text.encode("utf-16-le", "surrogatepass")
    whole = units.decode("utf-16-le", "surrogatepass")
    places = sorted(data.draw(st.sets(st.integers(0, len(units) // 2))) | {0, len(units) // 2})
    pieces = [units[2 * start : 2 * end].decode("utf-16-le", "surrogatepass") for start, end in pairwise(places)]
    turn, deltas = read(*(chunk(content=piece) for piece in pieces))
    unfinished = bool(whole) and "\ud800" <= whole[-1] <= "\udbff"
    assert turn.text == clean_text(whole[:-1] if unfinished else whole)
    assert all(delta.text for delta in deltas)
    turn.text.encode()


def test_thinking_is_no_text() -> None:
    """Reasoning comes in one of two fields; which one is kept for the way back, and the text is not kept twice."""
    for name in ("reasoning_content", "reasoning"):
        turn, deltas = read(
            chunk(**{name: "Let me "}), chunk(**{name: "see."}), chunk(content="Yes."), chunk(finish="stop")
        )
        assert (turn.thinking, turn.text) == ("Let me see.", "Yes.")
        assert [delta.kind for delta in deltas] == ["thinking", "thinking", "text"]
        assert turn.native == {"chat_completions": {"thinking_field": name}}


def test_thinking_in_both_fields_is_thought_once() -> None:
    """Servers that know both names send the same text twice."""
    turn = turn_of(message("Yes.", reasoning="Hm.", reasoning_content="Hm."))
    assert turn.thinking == "Hm."
    assert turn.native == {
        "chat_completions": {"thinking_field": "reasoning", "message": {"reasoning_content": "Hm."}},
    }


def test_a_refusal_is_an_answer() -> None:
    """Its text is shown, and the finish reason says what it is."""
    expected = ModelTurn(text="I won't.", finish_reason="refusal", model="m")
    assert turn_of(chunk(refusal="I "), chunk(refusal="won't."), chunk(finish="stop")) == expected
    assert turn_of(message(None, refusal="I won't.")) == expected


# -- tool calls ----------------------------------------------------------------------------------------


def test_a_call_in_one_piece_and_in_many() -> None:
    """The id and the name come first, the arguments in any pieces."""
    expected = [("a", "search", {"q": "x"})]
    assert calls_of([tool_call(index=0, id="a", name="search", arguments='{"q": "x"}')]) == expected
    pieces = [tool_call(index=0, arguments=piece) for piece in '{"q": "x"}']
    assert calls_of([tool_call(index=0, id="a", name="search")], *([piece] for piece in pieces)) == expected
    assert calls_of([tool_call(index=0, id="a", name="search"), *pieces]) == expected


def test_calls_interleaved_by_index() -> None:
    """Pieces of several calls come in any order; the calls stand in the order in which they began."""
    assert calls_of(
        [tool_call(index=1, id="b", name="open", arguments='{"n"')],
        [tool_call(index=0, id="a", name="search", arguments="{"), tool_call(index=1, arguments=": 1")],
        [tool_call(index=0, arguments="}"), tool_call(index=1, arguments="}")],
    ) == [("b", "open", {"n": 1}), ("a", "search", {})]


def test_calls_without_an_index() -> None:
    """A name opens a call, and what has none goes on with the last."""
    assert calls_of(
        [tool_call(id="a", name="search", arguments='{"q": ')],
        [tool_call(arguments='"x"}')],
        [tool_call(name="open", arguments="{}"), tool_call(name="open", arguments="{}")],
    ) == [("a", "search", {"q": "x"}), ("", "open", {}), ("", "open", {})]
    assert calls_of([tool_call(arguments="{}")]) == [("", "", {})]


def test_calls_that_all_have_the_same_index() -> None:
    """Some servers give every call the index 0: another id and a name open a new call."""
    assert calls_of(
        [tool_call(index=0, id="a", name="search", arguments="{}")],
        [tool_call(index=0, id="b", name="search", arguments='{"q"')],
        [tool_call(index=0, arguments=": 1}")],
    ) == [("a", "search", {}), ("b", "search", {"q": 1})]


def test_ids_and_names_that_are_repeated_in_each_piece() -> None:
    """Repeating them, or sending another id without a name, opens no call."""
    assert calls_of(
        [tool_call(index=0, id="a", name="search", arguments='{"q"')],
        [tool_call(index=0, id="a", name="search", arguments=":")],
        [tool_call(index=0, id="other", arguments="1")],
        [tool_call(index=0, id="", name="", arguments="}")],
    ) == [("a", "search", {"q": 1})]


def test_a_name_in_pieces() -> None:
    """No server known does it, and the form allows it."""
    assert calls_of([tool_call(index=0, id="a", name="sea")], [tool_call(index=0, name="rch")]) == [("a", "search", {})]


def test_calls_of_a_whole_answer_are_as_many_as_it_lists() -> None:
    """There, every entry is a call, with the id that it has: empty and double ones too."""
    listed = [tool_call(id=call_id, name="search", arguments="{}") for call_id in ("a", "a", "", "")]
    turn = turn_of(message(None, tool_calls=listed, finish="tool_calls"))
    assert [call.call_id for call in turn.tool_calls] == ["a", "a", "", ""]
    assert turn.finish_reason == "tool_calls"


@pytest.mark.parametrize("arguments", ['{"q": "swi', "[1]", "search(q)", '{"q": NaN}'])
def test_arguments_that_are_no_object(arguments: str) -> None:
    """They are kept as they came, apart from the arguments."""
    (call,) = turn_of(message(None, tool_calls=[tool_call(id="a", name="search", arguments=arguments)])).tool_calls
    assert call == ToolCall(call_id="a", name="search", arguments={}, invalid_arguments=arguments)


def test_arguments_that_are_not_text() -> None:
    """Some servers send the object itself, or nothing."""
    calls = [
        {"id": "a", "function": {"name": "search", "arguments": {"q": "x"}}},
        {"id": "b", "function": {"name": "search", "arguments": None}},
        {"id": "c", "function": None},
        {"id": 7, "function": {"name": 7}},
        "no call",
    ]
    assert calls_of([{"index": at, **call} if isinstance(call, dict) else call for at, call in enumerate(calls)]) == [
        ("a", "search", {"q": "x"}),
        ("b", "search", {}),
        ("c", "", {}),
        ("", "", {}),
    ]
    assert turn_of(message("x", tool_calls={"not": "a list"})) == ModelTurn(text="x", model="m")


def test_an_answer_cut_before_the_arguments() -> None:
    """A call whose arguments never began is broken, not a call without any; earlier calls are whole."""
    pieces = [[tool_call(index=0, id="a", name="now", arguments="")], [tool_call(index=1, id="b", name="now")]]
    assert calls_of(*pieces, finish="length") == [("a", "now", {}), ("b", "now", "")]
    assert calls_of(*pieces) == [("a", "now", {}), ("b", "now", {})]


# -- the end -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "text", "called"),
    [
        ("stop", "stop", "tool_calls"),
        ("tool_calls", "stop", "tool_calls"),
        ("function_call", "stop", "tool_calls"),
        ("length", "length", "length"),
        ("content_filter", "content_filter", "content_filter"),
        ("eos_token", "other", "tool_calls"),
        (None, "stop", "tool_calls"),
    ],
)
def test_why_an_answer_ended(reason: str | None, text: str, called: str) -> None:
    """Servers do not agree; whether there are calls is seen from the calls."""
    assert turn_of(chunk(content="x"), chunk(finish=reason)).finish_reason == text
    call = tool_call(index=0, id="a", name="search", arguments="{}")
    assert turn_of(chunk(tool_calls=[call]), chunk(finish=reason)).finish_reason == called


def test_an_answer_is_complete_when_the_provider_says_so() -> None:
    """By a finish reason, or by being a whole message."""
    decoder = TurnDecoder("m")
    decoder.feed(chunk(content="x"))
    assert not decoder.complete
    decoder.feed(chunk(finish="stop"))
    assert decoder.complete
    whole = TurnDecoder("m")
    whole.feed({"choices": [{"message": {"content": "x"}}]})
    assert whole.complete


@pytest.mark.parametrize(
    "value", [{}, {"choices": None}, {"choices": []}, {"choices": ["x"]}, {"choices": [{"delta": None}]}]
)
def test_chunks_that_say_nothing(value: Any) -> None:
    """They add nothing."""
    assert turn_of(value) == ModelTurn(model="m")


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 4}, Usage(input_tokens=9, output_tokens=4)),
        (
            {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}},
            Usage(input_tokens=9, output_tokens=4, cached_input_tokens=8),
        ),
        (
            {"prompt_tokens": 9, "completion_tokens": 4, "prompt_cache_hit_tokens": 8},
            Usage(input_tokens=9, output_tokens=4, cached_input_tokens=8),
        ),
        ({"prompt_tokens": 9.0, "completion_tokens": None, "prompt_tokens_details": None}, Usage(input_tokens=9)),
        ({"prompt_tokens": 9, "completion_tokens": float("inf")}, Usage(input_tokens=9)),
        ({"prompt_tokens": 0, "completion_tokens": 0}, None),
        ({}, None),
        (None, None),
        ("x", None),
    ],
)
def test_usage(usage: Any, expected: Usage | None) -> None:
    """Counts as they are reported, the cached ones too; zeros and nothing are no report."""
    assert turn_of(message("x", usage=usage)).usage == expected


def test_the_last_usage_counts() -> None:
    """Some servers count along in every chunk."""
    assert turn_of(usage_chunk(9, 1), usage_chunk(9, 4)).usage == Usage(input_tokens=9, output_tokens=4)


# -- unknown fields ------------------------------------------------------------------------------------


def extras_of(*chunks: Any) -> Any:
    """The unknown fields of the message."""
    native: Any = turn_of(*chunks).native
    return native["chat_completions"]["message"] if native else None


def test_unknown_fields_are_put_together() -> None:
    """Texts and lists grow, objects grow by field, elements with an index are pieces of one."""
    assert extras_of(
        chunk(signature="ab", level=1, tags=["a"], audio={"id": "x", "data": "AA"}),
        chunk(signature="cd", level=2, tags=["b"], audio={"id": "x", "data": "BB", "expires": 5}),
        chunk(reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "Let "}]),
        chunk(reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "me", "signature": None}, "x"]),
        chunk(reasoning_details=[{"type": "reasoning.text", "index": 0, "signature": "s"}, {"index": 1, "text": "?"}]),
    ) == {
        "signature": "abcd",
        "level": 2,
        "tags": ["a", "b"],
        "audio": {"id": "x", "data": "AABB", "expires": 5},
        "reasoning_details": [
            {"type": "reasoning.text", "index": 0, "text": "Let me", "signature": "s"},
            "x",
            {"index": 1, "text": "?"},
        ],
    }


def test_a_field_of_null_does_not_undo_what_came() -> None:
    """Nothing is no value."""
    assert extras_of(chunk(audio={"data": "AA"}), chunk(audio={"data": None})) == {"audio": {"data": "AA"}}


def test_empty_fields_are_not_kept() -> None:
    """A message often lists what it does not have."""
    assert turn_of(message("x", annotations=[], audio=None, function_call=None, refusal=None)).native is None


def test_fields_of_a_call_are_kept_with_it() -> None:
    """A call without any has none, at its place in the list."""
    turn = turn_of(
        chunk(tool_calls=[tool_call(index=0, id="a", type="function", name="now")]),
        chunk(tool_calls=[tool_call(index=1, id="b", name="now", extra_content={"google": {"signature": "s"}})]),
    )
    assert turn.native == {
        "chat_completions": {"tool_calls": [None, {"extra_content": {"google": {"signature": "s"}}}]}
    }
