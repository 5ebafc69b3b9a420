"""A tape is read back as it was written, however it ends."""

from __future__ import annotations

import json
import resource
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from pydantic import BaseModel, SecretStr

from endstop.cutover._plain import Plain
from endstop.cutover.tape import (
    DEFAULT_REDACTED_KEYS,
    TapeError,
    TapeFile,
    messages_of,
    read_tape,
    turns,
)

from .agents import calls, turn_of

WORDS = st.text(max_size=8)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3))
OBJECTS = st.dictionaries(WORDS, VALUES, max_size=3)
BLOCKS = st.builds(lambda text, more: {**more, "type": "text", "text": text}, WORDS, OBJECTS)
CONTENT = WORDS | st.lists(WORDS | BLOCKS, max_size=3)
CALLS = st.lists(st.builds(lambda n, a, i: {"name": n, "args": a, "id": i, "type": "tool_call"}, WORDS, OBJECTS, WORDS))
USAGE = st.builds(lambda i, o: {"input_tokens": i, "output_tokens": o, "total_tokens": i + o}, *[st.integers(0, 9)] * 2)
COMMON: dict[str, Any] = {"content": CONTENT, "additional_kwargs": OBJECTS, "id": st.none() | WORDS}


def made(kind: type[BaseMessage], **fields: Any) -> st.SearchStrategy[BaseMessage]:
    return st.fixed_dictionaries(COMMON | fields).map(lambda given: kind(**given))


ANSWER: dict[str, Any] = {"usage_metadata": st.none() | USAGE, "response_metadata": OBJECTS}
MESSAGES = st.one_of(
    made(HumanMessage, name=st.none() | WORDS),
    made(SystemMessage),
    made(ChatMessage, role=WORDS),
    made(FunctionMessage, name=WORDS),
    made(AIMessage, tool_calls=CALLS, **ANSWER),
    made(AIMessageChunk, **ANSWER),
    made(ToolMessage, tool_call_id=WORDS, artifact=VALUES, status=st.sampled_from(["success", "error"])),
    WORDS.map(RemoveMessage),
)


def event(turn: str, n: int, kind: str, **told: Any) -> dict[str, Any]:
    return {"event": kind, "turn": turn, "n": n, **told}


def tape(path: Path, *events: dict[str, Any]) -> Path:
    file = TapeFile(path)
    for one in events:
        file.write(one)
    file.close()
    return path


@given(message=MESSAGES)
def test_every_message_is_read_as_it_was_written(message: BaseMessage) -> None:
    """All kinds, content blocks, calls, usage and artifacts, to the letter."""
    plain = Plain(())
    [read] = messages_of([json.loads(json.dumps(plain.message(message)))])
    assert plain.lost == []
    assert type(read) is type(message)
    assert read == message


@given(value=VALUES)
def test_a_value_is_changed_under_a_secrets_name_alone(value: Any) -> None:
    """Everything else is as it was, and nothing is left of the secret in any depth or text."""
    assert Plain(()).value(value) == value
    hidden = {"a": [{"Token": value}, json.dumps([{"token": value, "b": 1}])]}
    seen = Plain(DEFAULT_REDACTED_KEYS).value(hidden)
    mark = None if value is None else "[redacted]"
    assert seen["a"][0] == {"Token": mark}
    assert json.loads(seen["a"][1]) == [{"token": mark, "b": 1}]


def test_values_of_programs_are_made_plain() -> None:
    """Models field by field, so that a secret in one is seen; what cannot be is lost by name, and never shown."""

    class Settings(BaseModel):
        api_key: str
        hidden: SecretStr
        tags: tuple[str, ...] = ("a",)

    plain = Plain(DEFAULT_REDACTED_KEYS)
    seen = plain.value({"s": Settings(api_key="x", hidden=SecretStr("y")), "o": object(), 1: 2, "not": "{json"})
    assert seen == {
        "s": {"api_key": "[redacted]", "hidden": "[redacted]", "tags": ["a"]},
        "o": {"lost": "builtins.object"},
        "not": "{json",
    }
    assert plain.lost == ["a value of type builtins.object", "a key of type builtins.int"]


def test_a_description_of_a_tool_keeps_the_names_of_its_parameters() -> None:
    """A token that is passed to a hosted tool is none of them."""
    described = [{"properties": {"token": {"type": "string"}}, "authorization": "x", "n": [1]}]
    assert Plain(DEFAULT_REDACTED_KEYS).tool(described) == [
        {"properties": {"token": {"type": "string"}}, "authorization": "[redacted]", "n": [1]}
    ]


def test_turns_that_ran_at_once_are_read_apart(tmp_path: Path) -> None:
    """Each with its own events; one without an end is incomplete, and so is one with a gap or a problem."""
    path = tape(
        tmp_path / "t",
        event("a", 0, "turn_started", surface="A"),
        event("b", 0, "turn_started"),
        event("c", 0, "turn_started"),
        event("d", 0, "turn_started", problems=["lost"]),
        event("b", 1, "turn_ended", messages=[], error={"name": "x.Y", "text": "t"}),
        event("a", 1, "turn_ended"),
        event("c", 2, "turn_ended"),
        event("d", 1, "turn_ended"),
        event("e", 0, "turn_started"),
    )
    read = read_tape(path)
    assert [turn.run_id for turn in read.turns] == ["b", "a"]
    assert [(turn.run_id, turn.ended, turn.problems) for turn in read.incomplete] == [
        ("c", True, ("events of this turn are missing",)),
        ("d", True, ("lost",)),
        ("e", False, ()),
    ]
    assert read.turns[1].surface == "A"
    assert read.turns[1].start == ()


def test_a_torn_tape_is_read_and_gone_on_with(tmp_path: Path) -> None:
    """The whole lines count, the torn one is a problem; what is appended starts on a line of its own."""
    path = tape(tmp_path / "t", event("a", 0, "turn_started"), event("a", 1, "turn_ended"))
    path.write_bytes(path.read_bytes() + b'{"event": "turn_star')
    tape(path, event("b", 0, "turn_started"), event("b", 1, "turn_ended"))
    read = read_tape(path)
    assert [turn.run_id for turn in read.turns] == ["a", "b"]
    assert read.problems == ("line 4 is cut off",)


@pytest.mark.parametrize("cut", [1, 7, 9, 40])
def test_a_tape_may_end_anywhere(tmp_path: Path, cut: int) -> None:
    """Also within its last line's first letters."""
    path = tape(tmp_path / "t", event("a", 0, "turn_started"))
    header, line = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(header + line[:cut])
    assert read_tape(path).problems == ("line 2 is cut off",)


def test_a_disk_that_fills_leaves_whole_lines(tmp_path: Path) -> None:
    """A half-written event is an error for its writer, and the next one is not glued to it."""
    path = tmp_path / "t"
    file = TapeFile(path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 30, before[1]))
    try:
        with pytest.raises(OSError, match="part of an event"):
            file.write(event("a", 0, "turn_started", surface="x" * 100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    file.write(event("b", 0, "turn_started"))
    file.close()
    read = read_tape(path)
    assert (read.problems, [turn.run_id for turn in read.incomplete]) == (("line 2 is cut off",), ["b"])


@pytest.mark.parametrize(
    ("text", "line", "remedy"),
    [
        ('{"tape": 2}\n', 1, "release that wrote it"),
        ('{"event": "turn_started", "turn": "a"}\n', 1, "`record` wrote"),
        ('{"tape": 1}\n\nhello\n', 3, "remove the line"),
        ('{"tape": 1}\n[1]\n', 2, "remove the line"),
    ],
)
def test_what_is_no_tape_is_refused(tmp_path: Path, text: str, line: int, remedy: str) -> None:
    """With the line, and what to do."""
    path = tmp_path / "t"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TapeError, match=remedy) as caught:
        read_tape(path)
    assert (caught.value.line, caught.value.path, caught.value.code) == (line, path, "tape")


def test_a_long_tape_is_read_turn_by_turn(tmp_path: Path) -> None:
    """The first turns are there before the rest is looked at: a wrong line far behind does not matter yet."""
    path = tmp_path / "t"
    lines = [json.dumps(event(str(i), n, k)) for i in range(5000) for n, k in enumerate(("turn_started", "turn_ended"))]
    path.write_text("\n".join(['{"tape": 1}', *lines, "nonsense"]), encoding="utf-8")
    reading = turns(path)
    assert [turn.run_id for turn in islice(reading, 2)] == ["0", "1"]
    with pytest.raises(TapeError, match="line 10002"):
        list(reading)


def test_the_start_of_a_turn_is_the_thread_before_it() -> None:
    """History and input, as they stood in the state before the first answer."""
    turn = turn_of(calls(("look", {"word": "a"})), "done")
    assert [message.content for message in messages_of(turn.start)] == ["hello"]


def test_a_call_is_known_by_its_result_where_it_began_without_an_id(tmp_path: Path) -> None:
    """The id stands in the message that the tool returned."""
    message = {"type": "tool", "data": {"content": "x", "tool_call_id": "c1"}}
    path = tape(
        tmp_path / "t",
        event("a", 0, "tool_call", run="r", name="look", args={}, id=None),
        event("a", 1, "tool_result", run="r", message=message),
    )
    [turn] = turns(path)
    assert (turn.calls[0].call_id, turn.calls[0].message, turn.recursion_limit) == ("c1", message, None)
