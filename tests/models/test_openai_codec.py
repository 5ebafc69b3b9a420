"""What a request looks like on the wire, and what is encoded when."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstop._messages import FilePart, ImagePart, ModelTurn, TextPart, ToolCall, ToolReturn, ToolSpec, UserMessage
from endstop.models._openai_codec import RequestEncoder, WireCache, parse_json, strict_schema, to_json
from endstop.models.base import ModelRequest

if TYPE_CHECKING:
    from endstop._messages import Message

TOOL = ToolSpec(name="search", description="Searches.", parameters={"type": "object", "properties": {"q": {}}})


def encoder(**fields: Any) -> RequestEncoder:
    """An encoder for the model `m`."""
    return RequestEncoder("m", fields, cap_field="max_tokens")


def body(**request: Any) -> dict[str, Any]:
    """The body of a request, read back."""
    read = json.loads(encoder().encode(ModelRequest(**{"messages": (), **request})))
    assert isinstance(read, dict)
    return read


def wire(*messages: Message) -> list[Any]:
    """The messages of a request as they are sent."""
    return list(body(messages=messages)["messages"])


# -- messages ------------------------------------------------------------------------------------------


def test_instructions_are_the_system_message() -> None:
    """They belong to the agent, so they come before the conversation; none are nothing."""
    messages = (UserMessage(content="Hi"),)
    expected = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert body(messages=messages, instructions="Be brief.")["messages"] == expected
    assert body(messages=messages, instructions="")["messages"] == expected[1:]


def test_a_prompt_of_parts() -> None:
    """Text, images and files, by address or as data."""
    parts = (
        TextPart(text="What is this?"),
        ImagePart(url="https://example.com/a.png"),
        ImagePart(data=b"\x00\x01", media_type="image/jpeg"),
        FilePart(name="a.pdf", data=b"%PDF", media_type="application/pdf"),
        FilePart(name="b.pdf", url="https://example.com/b.pdf"),
    )
    assert wire(UserMessage(content=parts))[0]["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,AAE="}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}},
        {"type": "file", "file": {"filename": "b.pdf", "file_data": "https://example.com/b.pdf"}},
    ]


def test_a_turn_and_its_tool_returns() -> None:
    """A turn that only calls has no content; arguments are JSON text; a return names its call."""
    turn = ModelTurn(tool_calls=(ToolCall(call_id="a", name="search", arguments={"q": "é"}),))
    assert wire(turn, ToolReturn(call_id="a", name="search", content="Found.", status="error")) == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "search", "arguments": '{"q":"é"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "Found."},
    ]
    assert wire(ModelTurn(text="Done."), ModelTurn()) == [
        {"role": "assistant", "content": "Done."},
        {"role": "assistant", "content": ""},
    ]


def test_broken_arguments_are_not_replayed() -> None:
    """Providers refuse a history with broken JSON in it."""
    call = ToolCall(call_id="a", name="search", arguments={}, invalid_arguments='{"q": ')
    assert wire(ModelTurn(tool_calls=(call,)))[0]["tool_calls"][0]["function"]["arguments"] == "{}"


NATIVE: Any = {
    "chat_completions": {
        "message": {"vendor": 1, "role": "never", "content": "never"},
        "thinking_field": "reasoning",
        "tool_calls": [{"extra_content": {"signature": "s"}, "id": "never"}],
    }
}
CALL = ToolCall(call_id="a", name="search", arguments={})


def test_the_providers_own_fields_go_back_to_the_same_model() -> None:
    """They stand beside the fields that we know, and replace none of them."""
    (sent,) = wire(ModelTurn(text="x", thinking="Hm.", tool_calls=(CALL,), model="m", native=NATIVE))
    assert sent == {
        "role": "assistant",
        "content": "x",
        "vendor": 1,
        "reasoning": "Hm.",
        "tool_calls": [
            {
                "id": "a",
                "type": "function",
                "function": {"name": "search", "arguments": "{}"},
                "extra_content": {"signature": "s"},
            }
        ],
    }


@pytest.mark.parametrize(
    "turn",
    [
        ModelTurn(text="x", model="another", native=NATIVE),
        ModelTurn(text="x", model="m", native={"langchain": {"a": 1}}),
        ModelTurn(text="x", model="m", native={"chat_completions": 7}),
        ModelTurn(text="x", model="m", native={"chat_completions": {"message": 7, "thinking_field": 7}}),
        ModelTurn(text="x", model="m", native={"chat_completions": {"thinking_field": "reasoning"}}),
    ],
)
def test_foreign_fields_are_not_sent(turn: ModelTurn) -> None:
    """Another provider would refuse fields that it does not know."""
    assert wire(turn) == [{"role": "assistant", "content": "x"}]


@pytest.mark.parametrize("extras", [[], [None], [{"a": 1}, {"b": 2}], "x"])
def test_fields_of_calls_that_cannot_be_matched_are_not_sent(extras: Any) -> None:
    """Where calls were taken out of a turn, nobody knows which field belongs to which."""
    turn = ModelTurn(tool_calls=(CALL,), model="m", native={"chat_completions": {"tool_calls": extras}})
    assert wire(turn)[0]["tool_calls"][0].keys() == {"id", "type", "function"}


# -- tools and schemas ---------------------------------------------------------------------------------


def test_tools() -> None:
    """A tool without parameters takes an empty object."""
    bare = ToolSpec(name="now", description="")
    sent = body(tools=(TOOL, bare))
    assert [tool["type"] for tool in sent["tools"]] == ["function", "function"]
    assert sent["tools"][0]["function"] == {
        "name": "search",
        "description": "Searches.",
        "parameters": {"type": "object", "properties": {"q": {}}},
    }
    assert sent["tools"][1]["function"]["parameters"] == {"type": "object", "properties": {}}
    assert "tool_choice" not in sent
    assert "tools" not in body()


def test_a_final_request_calls_no_tool() -> None:
    """Where tools are listed all the same, they are ruled out."""
    assert body(tools=(TOOL,), final=True)["tool_choice"] == "none"
    assert "tool_choice" not in body(final=True)


POINT: Any = {
    "type": "object",
    "title": "Point",
    "properties": {"x": {"type": "integer", "minimum": 0}, "label": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
    "required": ["x", "label"],
}


def test_an_output_schema_is_strict_where_it_can_be() -> None:
    """Strict schemas are closed; others are sent as they are."""
    sent = body(output_schema=POINT)["response_format"]
    assert sent["type"] == "json_schema"
    assert sent["json_schema"] == {"name": "answer", "strict": True, "schema": {**POINT, "additionalProperties": False}}
    loose = {**POINT, "required": ["x"]}
    assert body(output_schema=loose)["response_format"]["json_schema"] == {
        "name": "answer",
        "strict": False,
        "schema": loose,
    }


def having(schema: Any) -> Any:
    """An object schema with one required property."""
    return {"type": "object", "properties": {"p": schema}, "required": ["p"]}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "a+", "format": "date-time"},
        {"enum": ["a", "b"]},
        {"const": 1},
        {"type": ["string", "null"]},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1},
        {"$ref": "#/$defs/P"},
        having(having({"type": "boolean"})),
        {"type": "object", "properties": {"properties": {"type": "string"}}, "required": ["properties"]},
        {"type": "object", "properties": {}, "additionalProperties": False},
    ],
)
def test_schemas_that_strict_mode_knows(schema: Any) -> None:
    """Every object in them is closed, and nothing else is changed."""
    strict = strict_schema({**having(schema), "$defs": {"P": POINT}})
    assert strict is not None
    text = json.dumps(strict)
    assert text.count('"additionalProperties": false') == 2 + json.dumps(schema).count('"type": "object"')
    assert json.loads(text.replace(', "additionalProperties": false', "")) == json.loads(
        json.dumps({**having(schema), "$defs": {"P": POINT}}).replace(', "additionalProperties": false', "")
    )


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"description": "anything"},
        {"type": "string", "default": "x"},
        {"type": "string", "format": "uri"},
        {"type": "string", "minLength": 1},
        {"oneOf": [{"type": "string"}]},
        {"type": "array"},
        {"type": "array", "items": {}},
        {"anyOf": [{"type": "string"}, {}]},
        {"type": "object"},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "object", "properties": {"a": {"type": "string"}}},
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": "a"},
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": True},
        {"$ref": "#/$defs/P", "description": "beside"},
    ],
)
def test_schemas_that_strict_mode_would_refuse(schema: Any) -> None:
    """They are not bent into shape: the model would have to invent values, or could not say what is allowed."""
    assert strict_schema(having(schema)) is None
    assert strict_schema({**having({"type": "string"}), "$defs": {"P": schema}}) is None


def test_strict_mode_wants_an_object_at_the_root() -> None:
    """Whatever else the schema says."""
    assert strict_schema({"anyOf": [POINT]}) is None


# -- JSON ----------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(value=JSON)
def test_json_round_trips(value: Any) -> None:
    """What is written is read back as it was, from bytes and from text."""
    written = to_json(value)
    assert parse_json(written) == value
    assert parse_json(written.decode()) == value


def test_what_json_cannot_say_is_replaced() -> None:
    """A history with an infinity or half a character in it can still be sent."""
    assert to_json({"a": [float("inf"), float("nan")], "b": 1.5}) == b'{"a":[null,null],"b":1.5}'
    assert to_json("half \ud83d of it") == b'"half ? of it"'


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, b"\xff", "nul"])
def test_text_that_is_no_json(text: str | bytes) -> None:
    """However it is broken, it is one kind of error."""
    with pytest.raises(ValueError, match=r"Expecting|nested too deeply"):
        parse_json(text)


def test_numbers_that_are_no_json_are_read_as_nothing() -> None:
    """Some servers send them among log probabilities; a byte order mark does no harm either."""
    assert parse_json(b'\xef\xbb\xbf{"a": NaN, "b": [-Infinity, Infinity]}') == {"a": None, "b": [None, None]}


# -- the cache -----------------------------------------------------------------------------------------


def test_a_message_is_encoded_once() -> None:
    """By identity: an equal message may be another kind of value inside, as `1` and `true` are."""
    count = 0

    def encode(item: object) -> bytes:
        nonlocal count
        count += 1
        return repr(item).encode()

    cache = WireCache()
    first, second = UserMessage(content="a"), UserMessage(content="a")
    assert cache.get_all([first, second, first], encode) == [repr(first).encode()] * 3
    assert cache.get(first, encode) == cache.get_all([first], encode)[0]
    assert count == 2


def test_the_cache_is_bounded() -> None:
    """It forgets what was not asked for; what is in use stays, also across a change of generations."""
    encoded: list[str] = []

    def encode(item: str) -> bytes:
        encoded.append(item)
        return b"x" * 100

    cache = WireCache(max_bytes=10 * 300)
    kept = "kept"
    for number in range(1000):
        cache.get(kept, encode)
        cache.get(f"other {number}", encode)
        assert len(cache) <= 2 * 10 + 1
    assert encoded.count("kept") == 1
    assert len(encoded) == 1001


def test_an_identity_is_never_another_objects() -> None:
    """The cache keeps what it knows alive, so that a new object cannot get the id of an old one."""
    cache = WireCache()
    for number in range(1000):
        assert cache.get(UserMessage(content=str(number)), lambda item: to_json(item.content)) == b'"%d"' % number


def test_something_larger_than_the_cache() -> None:
    """It is sent like anything else."""
    cache = WireCache(max_bytes=10)
    assert cache.get("large", lambda item: item.encode() * 100) == b"large" * 100


def test_a_long_history_is_the_same_bytes_as_a_fresh_one() -> None:
    """What comes out of the cache is what a new encoder writes."""
    used = encoder(temperature=0, seed=7)
    messages: list[Message] = []
    for number in range(50):
        messages.append(UserMessage(content=f"question {number}"))
        messages.append(ModelTurn(text=f"answer {number}"))
        request = ModelRequest(messages=messages, instructions="Be brief.", tools=(TOOL,), output_schema=POINT)
        assert used.encode(request) == encoder(temperature=0, seed=7).encode(request)
