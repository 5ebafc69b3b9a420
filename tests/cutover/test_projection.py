"""What the kernel made is told in the shape that callers of the graph hold, and nothing is made up."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.errors import GraphRecursionError
from pydantic import BaseModel

from endstop import (
    Agent,
    AgentResult,
    AskUser,
    Cancelled,
    ConfigError,
    Done,
    ErrorEvent,
    Event,
    FilePart,
    ImagePart,
    InterruptEvent,
    ModelTurn,
    Pause,
    PlanLimits,
    RunState,
    Spent,
    StateError,
    TextDelta,
    TextPart,
    Thinking,
    ToolCall,
    ToolCallEvent,
    ToolResultEvent,
    ToolReturn,
    Usage,
    UserMessage,
)
from endstop.cutover.errors import AgentError, RecursionExhaustedError
from endstop.cutover.projection import AgentResponse, StreamChunk, as_chunk, as_legacy_messages, as_response
from endstop.models.scripted import ScriptedModel, call, turn

CALL = ToolCall(call_id="c1", name="look", arguments={"place": "mat"})
PAUSE = Pause(
    pause_id="r1:c1:0",
    kind="ask_user",
    question="Which one?",
    call=CALL,
    call_id="c1",
    path=("agent",),
    answer_schema={"type": "string"},
    expires_at=datetime(2030, 1, 2, tzinfo=UTC),
)


def result(text: str = "Found.", stop_reason: Any = "completed", **fields: Any) -> AgentResult[Any]:
    """A finished run."""
    state = RunState(
        run_id="kernel-1",
        agent="helper",
        limits=PlanLimits(),
        messages=fields.pop("messages", [UserMessage(content="Where?"), ModelTurn(text=text)]),
        spent=Spent(seconds=fields.pop("seconds", 1.25)),
    )
    return AgentResult(output=fields.pop("output", text), text=text, stop_reason=stop_reason, ending=None, state=state)


def response_of(made: AgentResult[Any]) -> AgentResponse:
    return as_response(made, run_id="r1", session_id="s1")


# --- drawn values

few = settings(max_examples=40)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
json_values: st.SearchStrategy[Any] = st.recursive(
    scalars | texts, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)
objects = st.dictionaries(texts, json_values, max_size=3)
calls = st.builds(ToolCall, call_id=texts, name=texts, arguments=objects, invalid_arguments=st.none() | texts)
usages = st.builds(
    Usage,
    input_tokens=st.integers(0, 9),
    output_tokens=st.integers(0, 9),
    cached_input_tokens=st.integers(0, 9),
    measured=st.booleans(),
)
parts = st.one_of(
    st.builds(TextPart, text=texts),
    st.builds(ImagePart, data=st.binary(max_size=5)),
    st.builds(ImagePart, url=texts),
    st.builds(FilePart, name=texts, data=st.binary(max_size=5)),
    st.builds(FilePart, name=texts, url=texts),
)
messages = st.one_of(
    st.builds(UserMessage, content=texts | st.lists(parts, max_size=3).map(tuple)),
    st.builds(
        ModelTurn,
        text=texts,
        tool_calls=st.lists(calls, max_size=2).map(tuple),
        thinking=texts,
        usage=st.none() | usages,
        model=texts,
    ),
    st.builds(ToolReturn, call_id=texts, name=texts, content=texts, status=st.sampled_from(["ok", "error", "not_run"])),
)
stop_reasons = st.sampled_from(["completed", "budget", "loop", "paused", "cancelled"])
results = st.builds(
    result,
    text=texts,
    stop_reason=stop_reasons,
    messages=st.lists(messages, max_size=4),
    seconds=st.floats(0, 1e6),
    output=json_values,
)


# --- the response


def test_a_response_has_what_the_kernel_knows_and_empty_values_for_the_rest() -> None:
    """Every column that a caller reads is there."""
    assert response_of(result()) == AgentResponse(
        final_response="Found.",
        messages=as_legacy_messages(result().messages),
        memory_entries_used=0,
        system_prompt_tokens=0,
        run_id="r1",
        session_id="s1",
        duration_ms=1250.0,
        delegated_to=(),
        extracted_ops=[],
        activation_log={},
        structured="Found.",
    )


def test_the_columns_are_these() -> None:
    """Callers read them by name."""
    assert [field.name for field in dataclasses.fields(AgentResponse)] == [
        "final_response",
        "messages",
        "memory_entries_used",
        "system_prompt_tokens",
        "run_id",
        "session_id",
        "duration_ms",
        "delegated_to",
        "extracted_ops",
        "activation_log",
        "structured",
    ]
    assert [field.name for field in dataclasses.fields(StreamChunk)] == ["event_type", "data", "timestamp", "run_id"]


@few
@given(results)
def test_a_run_within_its_rounds_gives_a_response(made: AgentResult[Any]) -> None:
    """No answer is `None` and not empty text, the output is as it was, and what nobody counted is nothing."""
    response = response_of(made)
    assert response.final_response == (made.text or None)
    assert response.structured == made.output
    assert response.duration_ms == made.duration_ms
    assert (response.memory_entries_used, response.system_prompt_tokens) == (0, 0)
    assert (response.delegated_to, response.extracted_ops, response.activation_log) == ((), [], {})


@few
@given(results)
def test_a_response_survives_json(made: AgentResult[Any]) -> None:
    """Another process holds the same."""
    response = response_of(made)
    assert AgentResponse.from_json(response.to_json()) == response


@few
@given(results)
def test_rounds_that_ran_out_are_never_a_response(made: AgentResult[Any]) -> None:
    """With a text or without one; the stream says the same."""
    out_of_rounds = replace(made, stop_reason="tool_limit")
    with pytest.raises(GraphRecursionError, match=r"^recursion_exhausted:.*config\.agent\.recursion_limit") as caught:
        response_of(out_of_rounds)
    assert isinstance(caught.value, RecursionExhaustedError)
    assert (caught.value.run_id, caught.value.state) == ("r1", made.state)
    with pytest.raises(RecursionExhaustedError):
        as_chunk(Done(result=out_of_rounds), run_id="r1")


def test_a_real_run_out_of_rounds_raises_what_the_graph_raises() -> None:
    """The callers' own handler catches it."""
    agent = Agent(
        ScriptedModel([turn(calls=[call("look", {})])] * 2), tools=[look], limits=PlanLimits(max_model_rounds=1)
    )
    with pytest.raises(GraphRecursionError):
        response_of(agent.run_sync("Where?"))


def look() -> str:
    """Look around."""
    return "nothing"


def test_a_structured_output_is_data_in_json() -> None:
    """The response itself has the object."""

    class Place(BaseModel):
        name: str

    response = response_of(result(output=Place(name="mat")))
    assert response.structured == Place(name="mat")
    assert AgentResponse.from_json(response.to_json()).structured == {"name": "mat"}


def test_a_stand_in_of_a_result_is_read_by_its_columns() -> None:
    """No more of it is asked for than is told."""
    stand_in: Any = SimpleNamespace(stop_reason="completed", text="", messages=(), duration_ms=2.0, output=None)
    assert response_of(stand_in) == AgentResponse(final_response=None, run_id="r1", session_id="s1", duration_ms=2.0)
    stand_in.stop_reason = "tool_limit"
    with pytest.raises(RecursionExhaustedError):
        response_of(stand_in)


# --- the chunks


def chunk(event: Any, **options: Any) -> tuple[str, Any] | None:
    """The type and the data of an event's chunk."""
    made = as_chunk(event, run_id="r1", **options)
    assert made is None or made.run_id == "r1"
    return None if made is None else (made.event_type, made.data)


def test_text_is_a_chunk_with_the_text() -> None:
    """Of its own kind."""
    assert chunk(Thinking(text="Hm.")) == ("thinking", "Hm.")
    assert chunk(TextDelta(text="Under")) == ("text_delta", "Under")
    assert chunk(TextDelta(text="")) == ("text_delta", "")


def test_calls_and_results_are_chunks_with_their_payload() -> None:
    """A result says whether it is an error; a call that was not run is one."""
    head = {"call_id": "c1", "name": "look"}
    assert chunk(ToolCallEvent(call=CALL)) == ("tool_call", {**head, "arguments": {"place": "mat"}})
    found = ToolReturn(call_id="c1", name="look", content="a key")
    for status, is_error in (("ok", False), ("error", True), ("not_run", True)):
        event: Any = ToolResultEvent(call=CALL, result=replace(found, status=status))
        assert chunk(event) == ("tool_result", {**head, "result": "a key", "is_error": is_error})


@pytest.mark.parametrize("kind", ["tool_call", "tool_result"])
def test_without_a_call_there_is_no_chunk(kind: str) -> None:
    """A caller could not say what it is about."""
    assert chunk(SimpleNamespace(kind=kind, call=None, result=None)) is None


@few
@given(results)
def test_done_is_a_chunk_with_the_summary(made: AgentResult[Any]) -> None:
    """What nobody counted is nothing, and no answer is empty text."""
    assert chunk(Done(result=made)) == (
        "done",
        {
            "memory_entries_used": 0,
            "system_prompt_tokens": 0,
            "duration_ms": round(made.duration_ms, 1),
            "extracted_ops": [],
            "activation_log": {},
            "final_response": made.text,
        },
    )


def test_done_without_a_time_or_a_text_has_their_empty_values() -> None:
    """Never `None`, which the callers do not expect there."""
    event = SimpleNamespace(kind="done", result=SimpleNamespace(stop_reason="completed", text=None, duration_ms=None))
    kind, data = chunk(event) or ("", {})
    assert (kind, data["duration_ms"], data["final_response"]) == ("done", 0.0, "")


@pytest.mark.parametrize(("error", "message"), [("no network", "no network"), ("", "the invocation failed")])
def test_an_error_is_raised(error: str, message: str) -> None:
    """The graph's stream tells a failure by raising."""
    with pytest.raises(AgentError) as caught:
        chunk(ErrorEvent(error=error, code="model"))
    assert str(caught.value) == message


@pytest.mark.parametrize("event", [AskUser(pause=PAUSE), InterruptEvent(pause=PAUSE)], ids=lambda event: event.kind)
def test_a_pause_is_told_from_the_second_wire_version_on(event: Any) -> None:
    """In the first it is the gap that there is."""
    assert chunk(event) is None
    assert chunk(event, wire_version=2) == (
        event.kind,
        {
            "pause_id": "r1:c1:0",
            "question": "Which one?",
            "call": {"call_id": "c1", "name": "look", "arguments": {"place": "mat"}},
            "answer_schema": {"type": "string"},
            "expires_at": "2030-01-02T00:00:00+00:00",
        },
    )


def test_a_pause_that_does_not_expire_says_so() -> None:
    """`None` is no time."""
    kind, data = chunk(AskUser(pause=replace(PAUSE, expires_at=None)), wire_version=2) or ("", {})
    assert (kind, data["expires_at"]) == ("ask_user", None)


def test_the_second_wire_version_changes_nothing_else() -> None:
    """It is an addition."""
    for event in (Thinking(text="Hm."), ToolCallEvent(call=CALL), Done(result=result()), Cancelled(result=result())):
        assert chunk(event, wire_version=2) == chunk(event)


@pytest.mark.parametrize("version", [0, 3, "1", None])
def test_a_wire_version_that_does_not_exist_is_refused_by_name(version: Any) -> None:
    """Before anything is told."""
    with pytest.raises(ConfigError, match="wire_version"):
        as_chunk(Thinking(text=""), run_id="r1", wire_version=version)


TOLD = {"thinking", "text_delta", "tool_call", "tool_result", "done"}
RAISED = {"error"}
PAUSES = {"ask_user", "interrupt"}


@pytest.mark.parametrize(
    "kind", [next(f.default for f in dataclasses.fields(e) if f.name == "kind") for e in get_args(Event)]
)
def test_every_kind_of_event_is_told_raised_or_left_out(kind: Any) -> None:
    """Whatever the kernel tells of."""
    event: Any = SimpleNamespace(
        kind=kind, text="", call=CALL, result=SimpleNamespace(**vars_of_result(kind)), pause=PAUSE, error="no"
    )
    if kind in RAISED:
        with pytest.raises(AgentError):
            chunk(event)
    else:
        assert (chunk(event) is not None) is (kind in TOLD)
        assert (chunk(event, wire_version=2) is not None) is (kind in TOLD | PAUSES)


def vars_of_result(kind: str) -> dict[str, Any]:
    """What the result of an event has: that of a run, or that of a tool."""
    if kind == "tool_result":
        return {"content": "", "status": "ok"}
    return {"stop_reason": "completed", "text": "", "duration_ms": 1.0}


@given(json_values, st.datetimes(timezones=st.just(UTC)), texts)
def test_a_chunk_survives_json(data: Any, timestamp: datetime, run_id: str) -> None:
    """Another process holds the same."""
    made = StreamChunk(event_type="done", data=data, timestamp=timestamp, run_id=run_id)
    assert StreamChunk.from_json(made.to_json()) == made


def test_a_chunk_is_stamped_in_utc() -> None:
    """When it is made; a time of another zone, or of none, is refused."""
    made = as_chunk(Thinking(text=""), run_id="r1")
    assert made is not None
    assert made.timestamp.tzinfo is UTC
    for other in (datetime(2030, 1, 2), datetime(2030, 1, 2, tzinfo=timezone(timedelta(hours=2)))):
        with pytest.raises(ConfigError, match="timestamp"):
            StreamChunk(event_type="done", timestamp=other)


@pytest.mark.parametrize("kind", [AgentResponse, StreamChunk])
@pytest.mark.parametrize("document", ["", "[]", "{}", '{"format": "endstop/run-state", "version": 1, "value": {}}'])
def test_what_is_no_such_document_is_refused(kind: Any, document: str) -> None:
    """And nothing is loaded."""
    with pytest.raises(StateError):
        kind.from_json(document)


def test_a_wrong_field_is_named() -> None:
    """Deep inside, too; and a time without its zone."""
    written = json.loads(StreamChunk(event_type="done").to_json())
    for field, value in (("event_type", 3), ("timestamp", "2030-01-02T00:00:00")):
        wrong = {**written, "value": {**written["value"], field: value}}
        with pytest.raises(StateError) as caught:
            StreamChunk.from_json(json.dumps(wrong))
        assert caught.value.field == field


# --- the messages


@few
@given(st.lists(messages, max_size=4))
def test_messages_are_those_that_langchain_dumps(given_: list[Any]) -> None:
    """LangChain reads each back and dumps it as the same dict."""
    for legacy in as_legacy_messages(given_):
        kind = {"human": HumanMessage, "ai": AIMessage, "tool": ToolMessage}[str(legacy["type"])]
        read = kind.model_validate(legacy)
        assert read.model_dump().keys() == legacy.keys()
        assert (read.content, read.name, read.id) == (legacy["content"], legacy["name"], None)
        assert json.loads(json.dumps(legacy)) == legacy
        if isinstance(read, AIMessage):
            assert read.tool_calls == legacy["tool_calls"]
            assert read.invalid_tool_calls == legacy["invalid_tool_calls"]


def test_a_conversation_is_told_word_for_word() -> None:
    """Calls, broken calls, usage, reasoning and returns, each where LangChain has it."""
    broken = ToolCall(call_id="c2", name="look", arguments={}, invalid_arguments="{")
    said = ModelTurn(
        text="I look.",
        tool_calls=(CALL, broken),
        thinking="Hm.",
        finish_reason="tool_calls",
        usage=Usage(input_tokens=5, output_tokens=2, cached_input_tokens=3),
        model="m-1",
    )
    human, ai, tool = as_legacy_messages(
        [UserMessage(content="Where?"), said, ToolReturn(call_id="c1", name="look", content="a key")]
    )
    assert human == HumanMessage("Where?").model_dump()
    assert ai == {
        **AIMessage("I look.").model_dump(),
        "additional_kwargs": {"reasoning_content": "Hm."},
        "response_metadata": {"finish_reason": "tool_calls", "model_name": "m-1"},
        "tool_calls": [{"name": "look", "args": {"place": "mat"}, "id": "c1", "type": "tool_call"}],
        "invalid_tool_calls": [{"name": "look", "args": "{", "id": "c2", "type": "invalid_tool_call", "error": None}],
        "usage_metadata": {
            "input_tokens": 5,
            "output_tokens": 2,
            "total_tokens": 7,
            "input_token_details": {"cache_read": 3},
        },
    }
    assert tool == ToolMessage("a key", tool_call_id="c1", name="look").model_dump()


def test_an_estimate_is_not_told() -> None:
    """A caller would bill by it."""
    (legacy,) = as_legacy_messages([ModelTurn(text="Hi.", usage=Usage(input_tokens=5, measured=False))])
    assert legacy["usage_metadata"] is None


def test_what_is_more_than_text_is_a_list_of_blocks() -> None:
    """In LangChain's own form."""
    prompt = UserMessage(
        content=(
            TextPart(text="See"),
            ImagePart(data=b"\x01"),
            ImagePart(url="https://example.com/a.png"),
            FilePart(name="a.pdf", data=b"\x01", media_type="application/pdf"),
        )
    )
    (legacy,) = as_legacy_messages([prompt])
    assert legacy["content"] == [
        {"type": "text", "text": "See"},
        {"type": "image", "base64": "AQ==", "mime_type": "image/png"},
        {"type": "image", "url": "https://example.com/a.png"},
        {"type": "file", "base64": "AQ==", "mime_type": "application/pdf", "extras": {"filename": "a.pdf"}},
    ]


@pytest.mark.parametrize(
    ("statement", "loads"),
    [
        ("import endstop", False),
        ("import endstop.cutover.projection, endstop.cutover.rounds", False),
        ("import endstop.cutover.errors", True),
    ],
)
def test_only_the_errors_need_langgraph(statement: str, loads: bool) -> None:
    """The kernel and the projection of what it made load nothing of it."""
    program = f"{statement}; import sys; print('langgraph' in sys.modules or 'langchain_core' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(loads)
