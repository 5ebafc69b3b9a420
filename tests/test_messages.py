"""What is said in a conversation: valid histories, arguments as models write them, and text that can be stored."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from endstop._errors import ConfigError, StateError
from endstop._messages import (
    MAX_ARGUMENT_DEPTH,
    FilePart,
    ImagePart,
    JsonObject,
    Message,
    ModelTurn,
    Part,
    TextPart,
    ToolCall,
    ToolReturn,
    ToolSpec,
    Usage,
    UserMessage,
    checked_prompt,
    clean_text,
    parse_arguments,
    pending_calls,
    repaired_history,
    text_of,
)
from endstop._state import dump_messages, load_messages
from tests.strategies import histories, json_objects, json_values, texts

ANY_TEXT = st.text(st.characters())
"""Text as Python has it, lone surrogates included."""


def asks(*call_ids: str, text: str = "") -> ModelTurn:
    """A turn that asks for calls with these ids."""
    calls = tuple(ToolCall(call_id=call_id, name=f"tool_{call_id}", arguments={}) for call_id in call_ids)
    return ModelTurn(text=text, tool_calls=calls)


def answers(*call_ids: str) -> list[ToolReturn]:
    """Returns to calls with these ids."""
    return [ToolReturn(call_id=call_id, name=f"tool_{call_id}", content="found") for call_id in call_ids]


def says(text: str) -> UserMessage:
    """What the user says."""
    return UserMessage(content=text)


ids = st.sampled_from("abcd")
conversations = st.lists(
    st.builds(says, st.just("Go"))
    | st.lists(ids, max_size=3, unique=True).map(lambda names: asks(*names))
    | ids.map(lambda name: answers(name)[0]),
    max_size=10,
)
"""Histories in any order, valid or not, in which ids are used again."""


def is_valid(history: list[Message]) -> bool:
    """Whether every call is answered, once, before anything else is said, and nothing else is answered."""
    open_ids: set[str] = set()
    for message in history:
        if isinstance(message, ToolReturn):
            if message.call_id not in open_ids:
                return False
            open_ids.remove(message.call_id)
        elif open_ids:
            return False
        elif isinstance(message, ModelTurn):
            open_ids = {call.call_id for call in message.tool_calls}
    return not open_ids


@given(histories)
def test_a_history_comes_back_from_json_as_it_was(history: list[Message]) -> None:
    """Every field of every kind of message, bytes and all of Unicode among them."""
    document = dump_messages(history)
    assert load_messages(document) == history
    assert load_messages(document.encode()) == history
    assert json.loads(document)["format"] == "endstop/messages"


def test_the_bytes_of_a_part_come_back_as_they_were() -> None:
    """Bytes are no text: each of the 256 values survives."""
    raw = bytes(range(256))
    history: list[Message] = [UserMessage(content=(ImagePart(data=raw), FilePart(name="a.bin", data=raw)))]
    assert load_messages(dump_messages(history)) == history


@given(conversations)
def test_a_repaired_history_is_valid(history: list[Message]) -> None:
    """Whatever was stored can be sent to a provider, and what was said is still there in its order."""
    repaired = repaired_history(history)
    assert is_valid(repaired)
    assert [m for m in repaired if not isinstance(m, ToolReturn)] == [
        m for m in history if not isinstance(m, ToolReturn)
    ]
    assert all(m in history for m in repaired if isinstance(m, ToolReturn) and m.status != "not_run")


@given(conversations)
def test_a_valid_history_is_not_changed(history: list[Message]) -> None:
    """Repairing is for what is broken alone, so doing it twice is doing it once."""
    repaired = repaired_history(history)
    assert repaired_history(repaired) == repaired
    if is_valid(history):
        assert repaired == history


@given(conversations)
def test_repairing_leaves_the_given_history_alone(history: list[Message]) -> None:
    """The caller's list is the caller's."""
    before = list(history)
    repaired_history(iter(history))
    repaired_history(history).append(says("more"))
    assert history == before


def test_a_call_that_was_never_answered_is_answered_as_not_run() -> None:
    """The answer stands with the others, before anything else is said, under the call's own name."""
    broken = [asks("a", "b", "c"), *answers("b"), says("Go on"), asks("d")]
    repaired = repaired_history(broken)
    assert [getattr(m, "call_id", m.kind) for m in repaired] == ["model", "b", "a", "c", "user", "model", "d"]
    not_run = [m for m in repaired if isinstance(m, ToolReturn) and m.status == "not_run"]
    assert [(m.call_id, m.name) for m in not_run] == [("a", "tool_a"), ("c", "tool_c"), ("d", "tool_d")]
    assert all(m.content.startswith("Not run") for m in not_run)


def test_a_return_that_answers_nothing_is_left_out() -> None:
    """One without a call, one that comes twice, and one that comes too late."""
    lone, *_ = answers("x")
    assert repaired_history([lone, says("Go")]) == [says("Go")]
    assert repaired_history([asks("a"), *answers("a", "a")]) == [asks("a"), *answers("a")]
    late = repaired_history([asks("a"), says("Go"), *answers("a")])
    assert [m.kind for m in late] == ["model", "tool", "user"]


def test_the_calls_that_wait_are_those_of_the_newest_turn() -> None:
    """In the order asked, without those that are answered."""
    assert pending_calls([]) == ()
    assert pending_calls([says("Go")]) == ()
    assert pending_calls([asks("a", "b")]) == asks("a", "b").tool_calls
    assert pending_calls([asks("a", "b", "c"), *answers("b")]) == asks("a", "c").tool_calls
    assert pending_calls([asks("a"), *answers("a")]) == ()
    assert pending_calls([asks("a"), says("Never mind")]) == ()
    assert pending_calls([asks("a"), *answers("a"), asks("b")]) == asks("b").tool_calls


@given(conversations)
def test_no_call_of_a_repaired_history_waits(history: list[Message]) -> None:
    """Both speak of the same calls."""
    assert pending_calls(repaired_history(history)) == ()


@given(json_objects)
def test_arguments_are_read_as_they_were_written(arguments: JsonObject) -> None:
    """Any JSON object, compact or not, with escapes or without."""
    for text in (json.dumps(arguments), json.dumps(arguments, ensure_ascii=False, indent=2)):
        assert parse_arguments(text) == (arguments, None)


@given(ANY_TEXT | json_values.map(json.dumps) | json_objects.map(lambda o: json.dumps(o)[:-1]))
@example('{"a": "\\ud800"}')
@example('{"a": "\ud800"}')
@example("\ud800")
def test_reading_arguments_never_raises(text: str) -> None:
    """Whatever a model writes is an object, or text to show it again; either can be stored."""
    arguments, invalid = parse_arguments(text)
    assert isinstance(arguments, dict)
    if invalid is not None:
        assert arguments == {}
        assert invalid == clean_text(text)
    history: list[Message] = [
        ModelTurn(tool_calls=(ToolCall(call_id="1", name="t", arguments=arguments, invalid_arguments=invalid),))
    ]
    assert load_messages(dump_messages(history)) == history


@pytest.mark.parametrize("text", ["", " ", "\n\t ", "\u00a0"])
def test_no_text_is_a_call_without_arguments(text: str) -> None:
    """Some models send nothing where there is nothing to send."""
    assert parse_arguments(text) == ({}, None)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "[1]",
        "3",
        '"x"',
        "null",
        "true",
        "{",
        '{"a": 1',
        '{"a": 1}}',
        "{'a': 1}",
        '{"a": 1} {"b": 2}',
        "```json\n{}\n```",
        "\ufeff{}",
        '{"a": NaN}',
        '{"a": Infinity}',
        '{"a": [-Infinity]}',
        '{"a": 1e999}',
        '{"a": -1e999}',
        '{"a": ' + "9" * 5_000 + "}",
    ],
)
def test_what_is_no_json_object_is_kept_as_text(text: str) -> None:
    """It is shown to the model again; it is never taken for arguments."""
    assert parse_arguments(text) == ({}, text)


def test_of_a_key_that_comes_twice_the_last_counts() -> None:
    """As every JSON reader in common use does."""
    assert parse_arguments('{"a": 1, "a": 2}') == ({"a": 2}, None)


@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_arguments_nested_too_deep_are_kept_as_text(brackets: str) -> None:
    """Deeper, they could not be read back from a stored state."""

    def nested(levels: int) -> str:
        if brackets == "[]":
            return '{"a": ' + "[" * (levels - 1) + "]" * (levels - 1) + "}"
        return '{"a": ' * levels + "1" + "}" * levels

    deepest, too_deep = nested(MAX_ARGUMENT_DEPTH), nested(MAX_ARGUMENT_DEPTH + 1)
    arguments, invalid = parse_arguments(deepest)
    assert invalid is None
    history: list[Message] = [ModelTurn(tool_calls=(ToolCall(call_id="1", name="t", arguments=arguments),))]
    assert load_messages(dump_messages(history)) == history
    assert parse_arguments(too_deep) == ({}, too_deep)
    assert parse_arguments(nested(100_000))[1] == nested(100_000)


def test_many_brackets_are_not_deep() -> None:
    """A long flat list is no deep one."""
    text = json.dumps({"a": [[]] * 1_000, "b": "[" * 1_000})
    assert parse_arguments(text) == (json.loads(text), None)


def test_lone_surrogates_are_replaced_where_they_come_in() -> None:
    """Escaped or not, in keys and values; a pair is a character and stays."""
    assert parse_arguments('{"\\ud800": "a\\udc00b", "c": ["\\ud83d\\ude00"]}') == (
        {"?": "a?b", "c": ["\U0001f600"]},
        None,
    )
    assert parse_arguments('{"a": "\ud800"}') == ({"a": "?"}, None)
    assert parse_arguments("no \ud800 JSON") == ({}, "no ? JSON")


@given(ANY_TEXT)
def test_clean_text_can_be_encoded(text: str) -> None:
    """What could be encoded before is not changed."""
    cleaned = clean_text(text)
    cleaned.encode()
    assert clean_text(cleaned) == cleaned
    assert len(cleaned) == len(text)
    assert all(
        new == old or (new == "?" and "\ud800" <= old <= "\udfff") for new, old in zip(cleaned, text, strict=True)
    )


@pytest.mark.parametrize(
    "prompt", ["", " ", "\n", [], (), None, 3, b"Go", ["Go"], [TextPart(text="Go"), "now"], {"a": 1}]
)
def test_a_prompt_that_asks_nothing_is_refused(prompt: object) -> None:
    """Empty, or neither text nor parts."""
    with pytest.raises(ConfigError) as caught:
        checked_prompt(prompt)
    assert caught.value.field == "prompt"


def test_a_prompt_is_text_or_parts() -> None:
    """A list of parts becomes a tuple, so that nobody can change what was said."""
    parts: list[Part] = [TextPart(text="See"), ImagePart(url="https://example.com/a.png"), FilePart(name="a", data=b"")]
    assert checked_prompt("Go") == "Go"
    assert checked_prompt(parts) == tuple(parts)
    assert checked_prompt(tuple(parts)) == tuple(parts)


def test_a_prompt_is_cleaned_of_lone_surrogates() -> None:
    """File names that are no Unicode bring them, and nothing takes them back."""
    assert checked_prompt("a\udcffb") == "a?b"
    prompt = checked_prompt([TextPart(text="a\udcff"), FilePart(name="\udcff.txt", data=b"x"), ImagePart(data=b"y")])
    assert prompt == (TextPart(text="a?"), FilePart(name="?.txt", data=b"x"), ImagePart(data=b"y"))
    dump_messages([UserMessage(content=prompt)])


@given(texts)
def test_the_text_of_a_text_is_the_text(text: str) -> None:
    """A prompt of one text is the same whether in a part or not."""
    assert text_of(text) == text == text_of([TextPart(text=text)])


def test_the_text_of_parts_names_what_is_no_text() -> None:
    """Nothing of a prompt vanishes where only its text is shown."""
    parts: list[Part] = [TextPart(text="Compare"), ImagePart(data=b""), FilePart(name="a.csv", data=b"")]
    assert text_of(parts) == "Compare\n[image]\n[file]"
    assert text_of([]) == ""


@pytest.mark.parametrize("sources", [{}, {"url": "https://example.com/a", "data": b"a"}])
def test_a_part_has_one_source(sources: dict[str, object]) -> None:
    """An image or file is at an address or given with its bytes."""
    said = "both" if sources else "neither"
    with pytest.raises(ValueError, match=f"ImagePart takes either url= or data=, got {said}"):
        ImagePart(**sources)
    with pytest.raises(ValueError, match=f"FilePart takes either url= or data=, got {said}"):
        FilePart(name="a", **sources)


def test_a_stored_part_with_two_sources_is_refused() -> None:
    """What is stored is checked as what is made."""
    document = dump_messages([UserMessage(content=(ImagePart(data=b"x"),))])
    with pytest.raises(StateError) as caught:
        load_messages(document.replace('"url":null', '"url":"https://example.com/a"'))
    assert caught.value.field.startswith("0.user.content")


def test_messages_are_values() -> None:
    """They are equal by content, tell their kind, and cannot be changed."""
    records: list[Message] = [says("Go"), asks("a"), *answers("a")]
    assert [record.kind for record in records] == ["user", "model", "tool"]
    for record in [*records, Usage(), ToolSpec(name="t", description=""), TextPart(text="a"), ImagePart(data=b"")]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, dataclasses.fields(record)[0].name, "b")
        assert dataclasses.replace(record) == record


def test_usage_counts_nothing_by_default_and_is_measured() -> None:
    """Only who estimates says so."""
    assert Usage() == Usage(input_tokens=0, output_tokens=0, cached_input_tokens=0, measured=True)
