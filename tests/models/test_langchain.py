"""LangChain chat models behind the model protocol."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel, GenericFakeChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    message_chunk_to_message,
)

from endstop._errors import ConfigError
from endstop._messages import (
    FilePart,
    ImagePart,
    Message,
    ModelTurn,
    Part,
    TextPart,
    ToolCall,
    ToolReturn,
    ToolSpec,
    Usage,
    UserMessage,
)
from endstop._state import dump_messages, load_messages
from endstop.models.base import ModelRequest
from endstop.models.langchain import LangChainModel
from tests.models.fake_langchain import (
    QUESTION,
    CappedChat,
    FakeChat,
    answer_of,
    call_chunk,
    ignore,
)

SEARCH = ToolSpec(
    name="search", description="Searches.", parameters={"type": "object", "properties": {"q": {"type": "string"}}}
)


async def sent_for(request: ModelRequest) -> list[BaseMessage]:
    """The LangChain messages that a request becomes."""
    chat = FakeChat(answers=[AIMessage("ok")])
    await LangChainModel(chat).respond(request, ignore)
    return chat.sent[0]


# What is sent


async def test_a_conversation_is_sent_in_langchain_messages() -> None:
    """Instructions come first, then each message in its place, a failed tool marked as such."""
    call = ToolCall(call_id="c1", name="search", arguments={"q": "a"})
    history: list[Message] = [
        UserMessage(content="Find a."),
        ModelTurn(text="Looking.", tool_calls=(call,)),
        ToolReturn(call_id="c1", name="search", content="found"),
        ToolReturn(call_id="c2", name="search", content="broken", status="error"),
        ToolReturn(call_id="c3", name="search", content="too late", status="not_run"),
        UserMessage(content="One round is left.", source="kernel"),
    ]
    assert await sent_for(ModelRequest(messages=history, instructions="Be brief.")) == [
        SystemMessage("Be brief."),
        HumanMessage("Find a."),
        AIMessage("Looking.", tool_calls=[{"name": "search", "args": {"q": "a"}, "id": "c1", "type": "tool_call"}]),
        ToolMessage("found", tool_call_id="c1", name="search", status="success"),
        ToolMessage("broken", tool_call_id="c2", name="search", status="error"),
        ToolMessage("too late", tool_call_id="c3", name="search", status="error"),
        HumanMessage("One round is left."),
    ]


@pytest.mark.parametrize(
    ("part", "block"),
    [
        (TextPart(text="see"), {"type": "text", "text": "see"}),
        (ImagePart(url="https://x.test/a.png"), {"type": "image", "url": "https://x.test/a.png"}),
        (
            ImagePart(data=b"\xff", media_type="image/gif"),
            {"type": "image", "base64": "/w==", "mime_type": "image/gif"},
        ),
        (
            ImagePart(url="data:image/webp;base64,/w=="),
            {"type": "image", "base64": "/w==", "mime_type": "image/webp"},
        ),
        (
            FilePart(name="a.pdf", data=b"1", media_type="application/pdf"),
            {"type": "file", "base64": "MQ==", "mime_type": "application/pdf", "extras": {"filename": "a.pdf"}},
        ),
        (
            FilePart(name="a.txt", url="https://x.test/a.txt", media_type="text/plain"),
            {
                "type": "file",
                "url": "https://x.test/a.txt",
                "mime_type": "text/plain",
                "extras": {"filename": "a.txt"},
            },
        ),
    ],
)
async def test_parts_are_sent_as_content_blocks(part: Part, block: dict[str, object]) -> None:
    """Each part of a prompt becomes LangChain's standard block, which every integration translates."""
    sent = await sent_for(ModelRequest(messages=(UserMessage(content=(part,)),)))
    assert sent == [HumanMessage([block])]


async def test_tools_are_bound() -> None:
    """Tools are bound in OpenAI's form; a tool without parameters takes an empty object."""
    chat = FakeChat(answers=[AIMessage("ok")])
    tools = (SEARCH, ToolSpec(name="now", description="The time."))
    await LangChainModel(chat).respond(ModelRequest(messages=QUESTION.messages, tools=tools), ignore)
    functions = [tool["function"] for tool in chat.options[0]["tools"]]
    assert functions == [
        {"name": "search", "description": "Searches.", "parameters": SEARCH.parameters},
        {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}},
    ]


async def test_a_chat_model_without_tools_is_refused_only_with_tools() -> None:
    """A chat model that cannot bind tools serves an agent without tools."""
    model = LangChainModel(GenericFakeChatModel(messages=iter(["fine"])), stream=False)
    with pytest.raises(ConfigError, match="GenericFakeChatModel has no bind_tools"):
        await model.respond(ModelRequest(messages=QUESTION.messages, tools=(SEARCH,)), ignore)
    assert (await model.respond(QUESTION, ignore)).text == "fine"


@pytest.mark.parametrize(("own", "sent"), [(None, 50), (200, 50), (20, 20), (-1, 50)])
async def test_the_cap_only_lowers(own: int | None, sent: int) -> None:
    """The chat model's own cap is lowered for one request, and kept where it is lower."""
    chat = CappedChat(answers=[AIMessage("ok")], max_tokens=own)
    await LangChainModel(chat).respond(ModelRequest(messages=QUESTION.messages, max_output_tokens=50), ignore)
    assert (chat.max_tokens, [options["max_tokens"] for options in chat.options]) == (own, [sent])


async def test_a_chat_model_without_a_cap_is_asked_without() -> None:
    """Where the chat model has no field for it, the request goes out uncapped."""
    chat = FakeChat(answers=[AIMessage("ok")])
    await LangChainModel(chat).respond(ModelRequest(messages=QUESTION.messages, max_output_tokens=50), ignore)
    assert chat.options == [{}]


SCHEMA: dict[str, Any] = {"title": "The answer", "type": "object", "properties": {"city": {"type": "string"}}}


async def test_a_schema_is_in_the_instructions() -> None:
    """Any chat model can be asked for structured output, with or without instructions of the agent."""
    for instructions in (None, "Be brief."):
        sent = await sent_for(ModelRequest(messages=QUESTION.messages, instructions=instructions, output_schema=SCHEMA))
        assert json.dumps(SCHEMA) in str(sent[0].content)
        assert str(sent[0].content).startswith(instructions or "Your answer must be")


@pytest.mark.parametrize(
    ("profile", "tools", "bound"),
    [
        ({"structured_output": True}, (), True),
        ({"structured_output": True}, (SEARCH,), False),
        ({"structured_output": False}, (), False),
        (None, (), False),
    ],
)
async def test_a_schema_is_asked_for_natively(
    profile: dict[str, bool] | None, tools: tuple[ToolSpec, ...], bound: bool
) -> None:
    """A chat model that promises structured output gets the schema as `response_format`, unless tools are bound."""
    chat = FakeChat(answers=[AIMessage("{}")], profile=profile)
    await LangChainModel(chat).respond(
        ModelRequest(messages=QUESTION.messages, tools=tools, output_schema=SCHEMA), ignore
    )
    wanted = {"type": "json_schema", "json_schema": {"name": "The_answer", "schema": SCHEMA}}
    assert chat.options[0].get("response_format") == (wanted if bound else None)


async def test_lone_surrogates_are_not_sent() -> None:
    """Text that cannot be encoded is made so before it reaches the provider."""
    history: list[Message] = [
        UserMessage(content="a\ud800"),
        UserMessage(content=(TextPart(text="b\ud800"),)),
        ModelTurn(text="c\ud800"),
        ToolReturn(call_id="1", name="search", content="d\ud800"),
    ]
    sent = await sent_for(ModelRequest(messages=history, instructions="e\ud800"))
    assert [message.text for message in sent] == ["e?", "a?", "b?", "c?", "d?"]


# What comes back


async def test_a_whole_answer_is_a_turn() -> None:
    """Text, usage, the reason it ended and the model's own name are read from the message."""
    message = AIMessage(
        "Hello.",
        usage_metadata={
            "input_tokens": 12,
            "output_tokens": 3,
            "total_tokens": 15,
            "input_token_details": {"cache_read": 8},
        },
        response_metadata={"finish_reason": "length", "model_name": "fake-1-large"},
    )
    turn = await answer_of(message)
    assert (turn.text, turn.finish_reason, turn.model) == ("Hello.", "length", "fake-1-large")
    assert turn.usage == Usage(input_tokens=12, output_tokens=3, cached_input_tokens=8)


async def test_an_answer_that_says_nothing_of_itself_is_a_turn() -> None:
    """Without usage, reason or name, there is no usage, it stopped, and the name is the adapter's."""
    turn = await answer_of(AIMessage(""))
    assert (turn.text, turn.usage, turn.finish_reason, turn.model) == ("", None, "stop", "fake-1")


async def test_zero_tokens_are_no_report() -> None:
    """A provider that reports zeros has not measured: the caller must estimate."""
    message = AIMessage("a", usage_metadata={"input_tokens": 0, "output_tokens": 0, "total_tokens": 0})
    assert (await answer_of(message)).usage is None


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"finish_reason": "stop"}, "stop"),
        ({"stop_reason": "end_turn"}, "stop"),
        ({"stopReason": "max_tokens"}, "length"),
        ({"done_reason": "length"}, "length"),
        ({"finish_reason": "SAFETY"}, "content_filter"),
        ({"finish_reason": "content_filter"}, "content_filter"),
        ({"stop_reason": "refusal"}, "refusal"),
        ({"stop_reason": "pause_turn"}, "other"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        ({"finish_reason": None}, "stop"),
    ],
)
async def test_reasons_of_every_provider_are_understood(metadata: dict[str, object], reason: str) -> None:
    """Each integration reports the end of an answer under a name and in words of its own."""
    assert (await answer_of(AIMessage("a", response_metadata=metadata))).finish_reason == reason


async def test_calls_end_a_turn_in_tool_calls() -> None:
    """A provider that reports `STOP` beside tool calls still asked for them; a cut answer stays cut."""
    call = {"name": "search", "args": {}, "id": "c1", "type": "tool_call"}
    for said, reason in (("STOP", "tool_calls"), ("odd", "tool_calls"), ("MAX_TOKENS", "length")):
        message = AIMessage("", tool_calls=[call], response_metadata={"finish_reason": said})
        assert (await answer_of(message)).finish_reason == reason


@pytest.mark.parametrize(
    "message",
    [
        AIMessage("", additional_kwargs={"refusal": "I cannot."}),
        AIMessage([{"type": "refusal", "refusal": "I cannot."}]),
    ],
)
async def test_a_refusal_is_text_with_its_reason(message: AIMessage) -> None:
    """A refusal is shown to the user and said to be one."""
    turn = await answer_of(message)
    assert (turn.text, turn.finish_reason) == ("I cannot.", "refusal")


@pytest.mark.parametrize(
    "message",
    [
        AIMessage("a", additional_kwargs={"reasoning_content": "hm"}),
        AIMessage([{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "a"}]),
        AIMessage([{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "a"}]),
        AIMessage(
            [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}, {"type": "text", "text": "a"}]
        ),
        AIMessage([{"type": "reasoning_content", "reasoning_content": {"text": "hm"}}, "a"]),
    ],
)
async def test_thinking_is_read_wherever_it_is(message: AIMessage) -> None:
    """Reasoning is thinking, not text, in every integration's form."""
    turn = await answer_of(message)
    assert (turn.text, turn.thinking) == ("a", "hm")


async def test_calls_are_read_in_order() -> None:
    """Several calls keep their order, ids and arguments."""
    message = AIMessage(
        "Both.",
        tool_calls=[
            {"name": "search", "args": {"q": "é", "n": [1, None]}, "id": "c2", "type": "tool_call"},
            {"name": "now", "args": {}, "id": "c1", "type": "tool_call"},
        ],
    )
    assert (await answer_of(message)).tool_calls == (
        ToolCall(call_id="c2", name="search", arguments={"q": "é", "n": [1, None]}),
        ToolCall(call_id="c1", name="now", arguments={}),
    )


async def test_an_unreadable_call_is_kept_and_not_sent_again() -> None:
    """Broken arguments are kept as text; in the history, the call has none, whatever field they came in."""
    broken = '{"q": '
    message = AIMessage(
        [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "tool_use", "id": "c1", "name": "search", "input": broken},
        ],
        invalid_tool_calls=[
            {"name": "search", "args": broken, "id": "c1", "error": "bad", "type": "invalid_tool_call"}
        ],
        additional_kwargs={"tool_calls": [{"id": "c1", "function": {"name": "search", "arguments": broken}}], "k": 1},
    )
    turn = await answer_of(message)
    assert turn.tool_calls == (ToolCall(call_id="c1", name="search", arguments={}, invalid_arguments=broken),)
    again = (await sent_for(ModelRequest(messages=(*QUESTION.messages, turn))))[1]
    assert isinstance(again, AIMessage)
    assert (again.tool_calls, again.invalid_tool_calls, again.additional_kwargs, again.content) == (
        [{"name": "search", "args": {}, "id": "c1", "type": "tool_call"}],
        [],
        {"k": 1},
        [{"type": "thinking", "thinking": "hm", "signature": "s"}],
    )


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cut_call_is_not_completed(stream: bool) -> None:
    """Arguments that end in the middle are unreadable, though LangChain would close the quotes and braces."""
    pieces = [call_chunk(0, '{"path": "/', "delete", "c1"), call_chunk(0, "tmp")]
    if stream:
        turn = await answer_of(pieces)
        assert turn.tool_calls == (
            ToolCall(call_id="c1", name="delete", arguments={}, invalid_arguments='{"path": "/tmp'),
        )
        assert turn.native is not None
        assert "/tmp" not in json.dumps(turn.native)
    else:
        model = LangChainModel(FakeChat(answers=[pieces]), stream=False)
        assert (await model.respond(QUESTION, ignore)).tool_calls[0].name == "delete"


async def test_missing_and_repeated_ids_are_made_up() -> None:
    """Each call of a turn has an id of its own, the same in the turn and in the message that is sent again."""
    calls = [{"name": "search", "args": {}, "id": call_id, "type": "tool_call"} for call_id in (None, "x", "x", "")]
    turn = await answer_of(AIMessage("", tool_calls=calls))
    ids = [call.call_id for call in turn.tool_calls]
    assert ids == ["call_1_0", "x", "call_1_2", "call_1_3"]
    again = (await sent_for(ModelRequest(messages=(turn,))))[0]
    assert isinstance(again, AIMessage)
    assert [call["id"] for call in again.tool_calls] == ids


async def test_arguments_are_json() -> None:
    """Whatever an integration put into the arguments, they can be stored; NaN makes them unreadable."""
    odd = {"name": "search", "args": {"when": time.struct_time, "s": "\ud800"}, "id": "c1", "type": "tool_call"}
    nan = {"name": "search", "args": {"n": float("nan")}, "id": "c2", "type": "tool_call"}
    turn = await answer_of(AIMessage("", tool_calls=[odd, nan]))
    assert turn.tool_calls[0].arguments == {"when": str(time.struct_time), "s": "?"}
    assert turn.tool_calls[1].invalid_arguments == '{"n": NaN}'
    assert load_messages(dump_messages([turn])) == [turn]


# The native message


NATIVE = [
    AIMessage(
        [
            {"type": "thinking", "thinking": "hm", "signature": "sig"},
            {"type": "text", "text": "Looking.", "citations": [{"page": 3}]},
            {"type": "tool_use", "id": "c1", "name": "search", "input": {"q": "é"}},
        ],
        id="msg_1",
        name="assistant",
        tool_calls=[{"name": "search", "args": {"q": "é"}, "id": "c1", "type": "tool_call"}],
        additional_kwargs={"function": {"a": [1, 2.5, None, True]}},
        response_metadata={"stop_reason": "tool_use", "headers": {"x": "y"}, "logprobs": [{"t": -0.5}]},
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
    ),
    AIMessage("Plain.", id="run-1"),
]


@pytest.mark.parametrize("message", NATIVE)
async def test_a_turn_is_sent_again_exactly(message: AIMessage) -> None:
    """The same adapter sends an equal message, content blocks, ids and metadata included, also from stored JSON."""
    turn = await answer_of(message)
    for kept in (turn, *load_messages(dump_messages([turn]))):
        assert await sent_for(ModelRequest(messages=(kept,))) == [message]


async def test_a_streamed_turn_is_sent_again_exactly() -> None:
    """The message that the chunks make is what the history keeps."""
    pieces = [
        AIMessageChunk("a", id="msg_1"),
        call_chunk(0, '{"q": 1}', "search", "c1"),
        AIMessageChunk("", response_metadata={"finish_reason": "stop"}, chunk_position="last"),
    ]
    turn = await answer_of(pieces)
    sent = await sent_for(ModelRequest(messages=(turn,)))
    expected = message_chunk_to_message(pieces[0] + pieces[1:])
    assert (sent, type(sent[0])) == ([expected], AIMessage)


async def test_a_native_message_is_json() -> None:
    """Values that are no JSON are kept as text, and what cannot be encoded is replaced."""
    metadata = {"when": SimpleNamespace(x=1), "n": float("inf"), "s": "\udc80"}
    turn = await answer_of(AIMessage("a\ud800", response_metadata=metadata))
    assert turn.text == "a?"
    assert load_messages(dump_messages([turn])) == [turn]


async def test_a_turn_of_another_adapter_is_sent_from_its_fields() -> None:
    """What another adapter kept in `native` is not for this one."""
    turn = ModelTurn(text="hello", native={"message": {"content": "other"}})
    assert await sent_for(ModelRequest(messages=(turn,))) == [AIMessage("hello")]


# The name


@pytest.mark.parametrize(
    ("chat_model", "name"),
    [
        (FakeChat(answers=[], model_name="gpt-4o-mini"), "gpt-4o-mini"),
        (GenericFakeChatModel(messages=iter([])), "GenericFakeChatModel"),
    ],
)
def test_the_name_is_the_chat_models(chat_model: BaseChatModel, name: str) -> None:
    """The chat model's own name is used, or else what kind of model it is; a given name comes first."""
    assert LangChainModel(chat_model).name == name
    assert LangChainModel(chat_model, name="openai:gpt-4o").name == "openai:gpt-4o"
