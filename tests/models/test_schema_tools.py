"""Tools for models that only answer in JSON."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstop._errors import ModelError
from endstop._messages import ImagePart, ModelTurn, ToolCall, ToolReturn, ToolSpec, UserMessage
from endstop.models import schema_tools
from endstop.models.base import Delta, ModelRequest
from endstop.models.openai import OpenAIModel
from endstop.models.schema_tools import SchemaTools, instructions_with_tools, step_schema
from endstop.models.scripted import ScriptedModel, Step
from tests.models.fake_openai import FakeOpenAI, Heard, chunk, events, stream

SEARCH = ToolSpec(
    name="search",
    description="finds sections by words",
    parameters={
        "type": "object",
        "properties": {"query": {"type": "string", "description": "two or three words"}, "limit": {"type": "integer"}},
        "required": ["query"],
    },
)
NOW = ToolSpec(name="now", description="tells the time")
QUESTION = UserMessage(content="Where is the switch?")
ASKED = ModelRequest(messages=(QUESTION,), instructions="Be brief.", tools=(SEARCH, NOW))
SEARCHED = ModelTurn(tool_calls=(ToolCall(call_id="c", name="search", arguments={"query": "é"}),))
FOUND = ToolReturn(call_id="c", name="search", content="At the end.")
PLACE: Any = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}


async def respond(written: str | Step, request: ModelRequest = ASKED) -> tuple[ModelTurn, Heard, ModelRequest]:
    """The turn and the deltas of a model that writes this, and what it was asked; the deltas are always the text."""
    inner = ScriptedModel([written])
    heard = Heard()
    turn = await SchemaTools(inner).respond(request, heard)
    assert heard.text() == turn.text
    assert all(delta.text for delta in heard)
    return turn, heard, inner.requests[0]


# -- what is asked -------------------------------------------------------------------------------------


def test_the_form_of_a_step() -> None:
    """A call of one of the tools with its own arguments, or the answer: nothing else."""

    def closed(properties: Any) -> Any:
        return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}

    assert step_schema((SEARCH, NOW), None) == {
        "anyOf": [
            closed({"tool": {"const": "search"}, "args": SEARCH.parameters}),
            closed({"tool": {"const": "now"}, "args": {"type": "object", "properties": {}}}),
            closed({"answer": {"type": "string"}}),
        ]
    }
    assert step_schema((), PLACE) == closed({"answer": PLACE})


def test_the_form_is_told_in_the_instructions() -> None:
    """Small models need to see a call as they are to write it; what it may hold is the schema's affair."""
    assert instructions_with_tools(ASKED) == (
        "Be brief.\n\n"
        "Each turn you write one JSON object, either a tool call or the answer:\n"
        '{"tool": "search", "args": {"query": "...", "limit": 0}} finds sections by words\n'
        "  query: two or three words\n"
        '{"tool": "now", "args": {}} tells the time\n'
        '{"answer": "..."} ends the work'
    )
    structured = ModelRequest(
        messages=(),
        tools=(NOW,),
        output_schema={
            "type": "object",
            "properties": {"at": PLACE, "names": {"type": "array"}, "rest": {}, "odd": True},
        },
    )
    told = instructions_with_tools(structured)
    assert told is not None
    assert told.startswith("Each turn")
    assert '{"answer": {"at": {"x": 0.0}, "names": [], "rest": "..."}} ends the work' in told


NODE: Any = {
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}, "$ref": {"type": "string"}},
        }
    },
    "type": "object",
    "properties": {"node": {"$ref": "#/$defs/Node"}},
}


def test_definitions_move_to_the_root() -> None:
    """References are paths from the root; tools with definitions of the same name do not get in each other's way."""
    older: Any = {
        "definitions": {"Node": {"type": "integer"}},
        "type": "object",
        "properties": {
            "node": {"$ref": "#/definitions/Node"},
            "self": {"$ref": "#"},
            "inside": {"$ref": "#/properties/node"},
            "elsewhere": {"$ref": "https://example.com/schema"},
        },
    }
    tools = [ToolSpec(name=name, description="", parameters=each) for name, each in [("a", NODE), ("b", older)]]
    schema: Any = step_schema(tools, NODE)
    assert [option["properties"].get("args") for option in schema["anyOf"]] == [
        {"$ref": "#/$defs/args0"},
        {"$ref": "#/$defs/args1"},
        None,
    ]
    assert schema["anyOf"][2]["properties"]["answer"] == {"$ref": "#/$defs/answer"}
    assert schema["$defs"] == {
        "args0": {"type": "object", "properties": {"node": {"$ref": "#/$defs/args0_Node"}}},
        "args0_Node": {
            "type": "object",
            "properties": {
                "next": {"anyOf": [{"$ref": "#/$defs/args0_Node"}, {"type": "null"}]},
                "$ref": {"type": "string"},
            },
        },
        "args1": {
            "type": "object",
            "properties": {
                "node": {"$ref": "#/$defs/args1_Node"},
                "self": {"$ref": "#/$defs/args1"},
                "inside": {"$ref": "#/$defs/args1/properties/node"},
                "elsewhere": {"$ref": "https://example.com/schema"},
            },
        },
        "args1_Node": {"type": "integer"},
        "answer": {"type": "object", "properties": {"node": {"$ref": "#/$defs/answer_Node"}}},
        "answer_Node": {
            "type": "object",
            "properties": {
                "next": {"anyOf": [{"$ref": "#/$defs/answer_Node"}, {"type": "null"}]},
                "$ref": {"type": "string"},
            },
        },
    }


async def test_the_history_is_shown_as_steps() -> None:
    """Calls and answers are JSON of the same form, returns are what the user says; a prompt stays the same object."""
    picture = UserMessage(content=(ImagePart(url="https://example.com/a.png"),))
    broken = ToolCall(call_id="d", name="now", arguments={}, invalid_arguments="{")
    history = (
        picture,
        ModelTurn(text="Whose?"),
        QUESTION,
        ModelTurn(tool_calls=(*SEARCHED.tool_calls, broken)),
        FOUND,
        ToolReturn(call_id="d", name="now", content="Bad arguments.", status="error"),
        UserMessage(content="One round is left.", source="kernel"),
    )
    *_, asked = await respond('{"answer": "x"}', ModelRequest(messages=history, tools=(SEARCH, NOW)))
    assert [getattr(each, "text", None) or getattr(each, "content", None) for each in asked.messages] == [
        picture.content,
        '{"answer": "Whose?"}',
        "Where is the switch?",
        '{"tool": "search", "args": {"query": "é"}}\n{"tool": "now", "args": {}}',
        "Result of search:\nAt the end.\n\nResult of now:\nBad arguments.",
        "One round is left.",
    ]
    assert not any(isinstance(each, ToolReturn) or getattr(each, "tool_calls", ()) for each in asked.messages)
    assert asked.messages[2] is QUESTION
    assert (asked.tools, asked.instructions) == (
        (),
        instructions_with_tools(ModelRequest(messages=(), tools=(SEARCH, NOW))),
    )


async def test_structured_answers_are_shown_as_they_were_written() -> None:
    """A turn to be repaired is shown as the object that it was, and as text where it was none."""
    history = (QUESTION, ModelTurn(text='{"x": 1}'), QUESTION, ModelTurn(text="nowhere"), QUESTION)
    request = ModelRequest(messages=history, tools=(NOW,), output_schema=PLACE)
    *_, asked = await respond('{"answer": {"x": 2}}', request)
    assert [each.text for each in asked.messages if isinstance(each, ModelTurn)] == [
        '{"answer": {"x": 1}}',
        '{"answer": "nowhere"}',
    ]


@pytest.mark.parametrize("history", [(QUESTION,), (QUESTION, ModelTurn(text="Hm."), QUESTION)])
async def test_a_request_without_tools_and_calls_is_passed_on(history: Any) -> None:
    """There is nothing to translate, and nothing that would make the model write JSON."""
    request = ModelRequest(messages=history, instructions="Be brief.", final=True)
    inner = ScriptedModel([Step(text="Here.", deltas=("He", "re."))])
    turn = await SchemaTools(inner).respond(request, heard := Heard())
    assert inner.requests == [request]
    assert (turn.text, len(heard)) == ("Here.", 2)


@pytest.mark.parametrize("tools", [(), (SEARCH,)])
async def test_a_final_request_can_only_be_answered(tools: tuple[ToolSpec, ...]) -> None:
    """A model that has called tools in JSON would go on; where tools are still listed, none can be called."""
    request = ModelRequest(
        messages=(QUESTION, SEARCHED, FOUND), tools=tools, final=True, max_output_tokens=9, instructions="Be brief."
    )
    turn, _, asked = await respond('{"answer": "At the end."}', request)
    assert asked.output_schema == step_schema((), None)
    assert (asked.final, asked.max_output_tokens, asked.instructions) == (True, 9, instructions_with_tools(request))
    assert turn.text == "At the end."


# -- what is answered ----------------------------------------------------------------------------------


async def test_a_call() -> None:
    """A step that calls is a turn with one call, an id of its own, and no text."""
    step = Step(text='{"tool": "search", "args": {"query": "\\u00e9 ☕"}}', usage=None, thinking="Hm.")
    turn, heard, _ = await respond(step)
    call = ToolCall(call_id="call_1", name="search", arguments={"query": "é ☕"})
    assert turn == ModelTurn(tool_calls=(call,), thinking="Hm.", finish_reason="tool_calls")
    assert heard == []


@pytest.mark.parametrize(
    ("written", "name", "invalid"),
    [
        ('{"tool": "now"}', "now", False),
        ('{"tool": "unknown", "args": {}}', "unknown", False),
        ('{"tool": "search", "args": "switch"}', "search", True),
        ('{"tool": "search", "args": {"query": "swi', "search", True),
        ('{"tool": "sea', "sea", True),
        ('{"tool": "search", "args": {"limit": NaN}}', "search", True),
    ],
)
async def test_calls_that_are_not_right(written: str, name: str, invalid: bool) -> None:
    """Broken arguments are kept for the model to see; an unknown tool is the kernel's to refuse."""
    turn, *_ = await respond(written)
    assert turn.tool_calls == (
        ToolCall(call_id="call_1", name=name, arguments={}, invalid_arguments=written if invalid else None),
    )


async def test_a_call_that_was_cut_says_so() -> None:
    """The finish reason of the model stays where it tells more."""
    turn, *_ = await respond(Step(text='{"tool": "search", "args": {"qu', finish_reason="length"))
    assert turn.finish_reason == "length"
    assert turn.tool_calls[0].invalid_arguments == '{"tool": "search", "args": {"qu'


async def test_ids_differ_between_rounds() -> None:
    """They count the history, which only grows."""
    turn, *_ = await respond('{"tool": "now"}', ModelRequest(messages=(QUESTION, SEARCHED, FOUND), tools=(NOW,)))
    assert turn.tool_calls[0].call_id == "call_3"


async def test_an_answer_is_heard_while_it_is_written() -> None:
    """Word by word, without the JSON around it; thinking passes too."""
    pieces = (Delta(text="Hm.", kind="thinking"), ' {"ans', 'wer" :', ' "At', " the\\", "nend.", '"', "}\n")
    turn, heard, _ = await respond(Step(deltas=pieces))
    assert turn == ModelTurn(text="At the\nend.", thinking="Hm.")
    assert [delta.text for delta in heard] == ["Hm.", "At", " the", "\nend."]


ANSWERS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('😀"\\\n{}:answer'))


@given(answer=ANSWERS, ascii_only=st.booleans(), places=st.sets(st.integers(1, 60)))
async def test_an_answer_is_the_same_in_any_pieces(answer: str, ascii_only: bool, places: set[int]) -> None:
    """Wherever the JSON is split, what is heard is the answer, which is what the turn says."""
    written = json.dumps({"answer": answer}, ensure_ascii=ascii_only)
    ends = sorted({0, len(written), *(place for place in places if place < len(written))})
    pieces = tuple(written[start:end] for start, end in pairwise(ends))
    assert (await respond(Step(deltas=pieces)))[0].text == answer
    assert (await respond(written))[0].text == answer


async def test_an_answer_that_was_cut_is_its_beginning() -> None:
    """What was written by then is the text."""
    turn, *_ = await respond(
        Step(text='{"answer": "At the e', deltas=('{"answer": "At', " the e"), finish_reason="length")
    )
    assert (turn.text, turn.finish_reason) == ("At the e", "length")


async def test_a_structured_answer() -> None:
    """It is the JSON text of the value, in one piece."""
    request = ModelRequest(messages=(QUESTION,), tools=(NOW,), output_schema=PLACE)
    turn, heard, _ = await respond(Step(deltas=('{"answer": {"x"', ': 1.5, "y": "é"}}')), request)
    assert turn.text == '{"x": 1.5, "y": "é"}'
    assert len(heard) == 1
    turn, *_ = await respond('{"answer": "nowhere"}', request)
    assert turn.text == '"nowhere"'


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("At the end.", "At the end."),
        ('["At the end."]', '["At the end."]'),
        ('{"name": "search"}', '{"name": "search"}'),
        ('{"tool": 7}', '{"tool": 7}'),
        ("", ""),
        ('{"sure": true, "answer": "At the end."}', "At the end."),
        ('{"answer": 42}', "42"),
        ('{"answer": {"é": null}}', '{"é": null}'),
    ],
)
async def test_a_model_that_is_not_held_to_the_schema(written: str, text: str) -> None:
    """What is no step is the answer's text; nothing is lost."""
    turn, *_ = await respond(written)
    assert turn == ModelTurn(text=text)
    turn, *_ = await respond(Step(deltas=tuple(written)))
    assert turn == ModelTurn(text=text)


async def test_a_refusal_is_passed_on() -> None:
    """Its text is what it is."""
    turn, *_ = await respond(Step(text="I won't.", finish_reason="refusal"))
    assert (turn.text, turn.finish_reason) == ("I won't.", "refusal")


async def test_errors_are_those_of_the_model_inside() -> None:
    """There is nothing to add to them."""
    error = ModelError("gone", retryable=True)
    with pytest.raises(ModelError, match="gone"):
        await respond(Step(error=error))


def test_it_is_named_as_the_model_inside() -> None:
    """Prices are looked up by it."""
    model = SchemaTools(ScriptedModel([], name="qwen"))
    assert model.name == "qwen"
    assert repr(model).startswith("SchemaTools(<ScriptedModel 'qwen'")


def test_the_words_of_the_form_stand_in_one_place() -> None:
    """Prompts are adjusted by what models make of them."""
    assert schema_tools.RESULT_TEXT.format(name="a", content="b") == "Result of a:\nb"


async def test_over_the_wire() -> None:
    """What an endpoint is sent, and what comes of its stream."""
    written = '{"tool": "search", "args": {"query": "switch"}}'
    with FakeOpenAI() as server:
        server.replies.append(stream(events([chunk(content=piece) for piece in written] + [chunk(finish="stop")])))
        async with OpenAIModel("m", base_url=server.base_url) as inner:
            turn = await SchemaTools(inner).respond(ASKED, Heard())
    assert turn.tool_calls == (ToolCall(call_id="call_1", name="search", arguments={"query": "switch"}),)
    body = server.received[0].body
    assert "tools" not in body
    assert body["response_format"]["json_schema"]["schema"] == step_schema(ASKED.tools, None)
