"""Any LangChain chat model as an endstop model.

::

    agent = Agent(LangChainModel(ChatAnthropic(model="claude-sonnet-4-5")), tools=[search])

Stands on langchain-core alone. LangChain runs on asyncio, and so does this adapter.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Iterator
from typing import TYPE_CHECKING, Literal, TypeVar

import anyio
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    message_chunk_to_message,
    message_to_dict,
    messages_from_dict,
)
from langchain_core.messages import ToolCall as LangChainToolCall
from langchain_core.messages.tool import tool_call as create_tool_call

from endstop._errors import ConfigError, EndstopError, ModelError
from endstop._messages import (
    FinishReason,
    JsonObject,
    JsonValue,
    Message,
    ModelTurn,
    Part,
    TextPart,
    ToolCall,
    ToolSpec,
    Usage,
    UserMessage,
    clean_text,
    parse_arguments,
)
from endstop.models._langchain_errors import model_error
from endstop.models.base import Delta, ModelRequest, OnDelta

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from langchain_core.language_models import BaseChatModel, LanguageModelInput
    from langchain_core.runnables import Runnable

T = TypeVar("T")

_NATIVE = "langchain"
_NAME_FIELDS = ("model_name", "model", "model_id", "deployment_name")
_CALL_BLOCKS = ("tool_use", "tool_call", "tool_call_chunk", "invalid_tool_call", "function_call", "input_json_delta")
_CAP_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "num_predict", "max_new_tokens")
_SCHEMA_PROMPT = (
    "Your answer must be one JSON value that matches this JSON Schema, with nothing before or after it "
    "(calling a tool first is fine):"
)


class LangChainModel:
    """A `BaseChatModel` of LangChain behind the `Model` protocol.

    With `stream`, the answer is streamed where the chat model can. `name` is what prices are looked
    up by; left out, it is the model name that the chat model was made with.

    A request's `max_output_tokens` lowers the chat model's own field for it (`max_tokens` or one of
    its kin); a chat model without such a field cannot be capped. An `output_schema` is put into the
    instructions, which works with every chat model; where the chat model's profile promises
    structured output and no tools are bound, it is also asked for as `response_format`.

    Each turn keeps the LangChain message in `native`, so that sending it again is exact. Tool calls
    with broken JSON are the exception: they are sent again without arguments.
    """

    def __init__(self, chat_model: BaseChatModel, *, name: str | None = None, stream: bool = True) -> None:
        self._chat_model = chat_model
        self._name = name or _model_name(chat_model)
        self._stream = stream

    @property
    def name(self) -> str:
        """The model's name."""
        return self._name

    async def respond(self, request: ModelRequest, on_delta: OnDelta) -> ModelTurn:
        """Answer the request.

        Raises:
            ModelError: the chat model raised; its exception is the cause. It is retryable for the
                statuses 408, 409, 429 and 5xx, and for connections that fail or time out.
            ContextOverflow: the request does not fit into the model's context.
            ConfigError: tools were asked for and the chat model cannot bind any.
        """
        runnable = self._runnable(request)
        messages = _to_langchain(request)
        first_id = f"call_{len(request.messages)}"
        if not self._stream:
            return self._turn(await _at_edge(runnable.ainvoke(messages)), first_id)
        told = _Told(on_delta)
        message = await _streamed(runnable.astream(messages), told)
        turn = self._turn(message, first_id)
        if isinstance(message, AIMessageChunk) and turn.text.startswith(told.text):
            await told.tell(turn.text[len(told.text) :], "text")
        return turn

    def _runnable(self, request: ModelRequest) -> Runnable[LanguageModelInput, AIMessage]:
        """The chat model with the request's tools, cap and output schema bound."""
        chat_model = _capped(self._chat_model, request.max_output_tokens)
        if request.tools:
            try:
                return chat_model.bind_tools([_tool(spec) for spec in request.tools])
            except NotImplementedError as error:
                kind = type(chat_model).__name__
                remedy = f"{kind} has no bind_tools; use a chat model that can call tools, or an agent without tools"
                raise ConfigError("tools", [spec.name for spec in request.tools], remedy) from error
        if request.output_schema is not None and _promises_structured_output(chat_model):
            return chat_model.bind(response_format=_response_format(request.output_schema))
        return chat_model

    def _turn(self, message: AIMessage, first_id: str) -> ModelTurn:
        calls = _tool_calls(message, first_id)
        whole = _to_send_again(message, calls)
        saved = _as_json(message_to_dict(whole))
        data = _at(saved, "data")
        refusal = _refusal(data)
        return ModelTurn(
            text=clean_text(str(whole.text)) or refusal,
            tool_calls=calls,
            thinking=_thinking(_at(data, "content"), _at(data, "additional_kwargs")),
            finish_reason="refusal" if refusal else _finish_reason(_at(data, "response_metadata"), bool(calls)),
            usage=_usage(_at(data, "usage_metadata")),
            model=_first_text(_at(data, "response_metadata"), ("model_name", "model")) or self._name,
            native={_NATIVE: saved},
        )


class _Told:
    """What was streamed so far, cleaned of what cannot be encoded, and where it goes."""

    def __init__(self, on_delta: OnDelta) -> None:
        self._on_delta = on_delta
        self.text = ""

    async def tell(self, text: str, kind: Literal["text", "thinking"]) -> None:
        """Give a piece on; an empty one is none."""
        if not text:
            return
        if kind == "text":
            self.text += text
        await self._on_delta(Delta(text=text, kind=kind))


async def _streamed(stream: AsyncIterator[AIMessage], told: _Told) -> AIMessage:
    """The whole message of a stream, its pieces given on as they come.

    A chat model that cannot stream answers with one whole message, of which there are no pieces.
    """
    chunks: list[AIMessageChunk] = []
    try:
        while (message := await _at_edge(anext(stream, None))) is not None:
            if not isinstance(message, AIMessageChunk):
                return message
            chunks.append(message)
            await told.tell(_chunk_thinking(message), "thinking")
            await told.tell(clean_text(str(message.text)), "text")
    finally:
        if isinstance(stream, AsyncGenerator):
            # A connection that is left in the middle must be closed, also where the run was cancelled.
            with anyio.move_on_after(1, shield=True):
                await stream.aclose()
    if not chunks:
        raise ModelError("the chat model ended its stream without an answer")
    return chunks[0] + chunks[1:]


async def _at_edge(answer: Awaitable[T]) -> T:
    """What a chat model answers, with whatever it raises as a `ModelError`."""
    try:
        return await answer
    except EndstopError:
        raise
    except Exception as error:
        raise model_error(error) from error


# The request, as LangChain takes it


def _to_langchain(request: ModelRequest) -> list[BaseMessage]:
    instructions = [request.instructions] if request.instructions else []
    if request.output_schema is not None:
        instructions.append(f"{_SCHEMA_PROMPT}\n{json.dumps(request.output_schema)}")
    system: list[BaseMessage] = [SystemMessage(clean_text("\n\n".join(instructions)))] if instructions else []
    return system + [_message(message) for message in request.messages]


def _message(message: Message) -> BaseMessage:
    if isinstance(message, UserMessage):
        if isinstance(message.content, str):
            return HumanMessage(clean_text(message.content))
        return HumanMessage([_block(part) for part in message.content])
    if isinstance(message, ModelTurn):
        saved = _at(message.native, _NATIVE)
        if isinstance(saved, dict):
            return messages_from_dict([saved])[0]
        return AIMessage(clean_text(message.text), tool_calls=[_langchain_call(call) for call in message.tool_calls])
    return ToolMessage(
        clean_text(message.content),
        tool_call_id=message.call_id,
        name=message.name,
        status="success" if message.status == "ok" else "error",
    )


def _langchain_call(call: ToolCall) -> LangChainToolCall:
    return create_tool_call(name=call.name, args=call.arguments, id=call.call_id)


def _block(part: Part) -> dict[str, JsonValue]:
    """A part of a prompt as one of LangChain's standard content blocks."""
    if isinstance(part, TextPart):
        return {"type": "text", "text": clean_text(part.text)}
    block: dict[str, JsonValue] = {"type": part.kind}
    if part.data is not None:
        block |= {"base64": base64.b64encode(part.data).decode(), "mime_type": part.media_type}
    elif part.url is not None and (inline := re.fullmatch(r"data:([^;,]+);base64,(.*)", part.url, re.DOTALL)):
        block |= {"base64": inline[2], "mime_type": inline[1]}
    else:
        block |= {"url": part.url}
    if part.kind == "file":
        block |= {"mime_type": part.media_type, "extras": {"filename": part.name}}
    return block


def _tool(spec: ToolSpec) -> dict[str, JsonValue]:
    parameters = spec.parameters or {"type": "object", "properties": {}}
    function: JsonObject = {"name": spec.name, "description": spec.description, "parameters": parameters}
    return {"type": "function", "function": function}


def _response_format(schema: JsonObject) -> JsonObject:
    """The schema in OpenAI's form, which LangChain's chat models take whatever their provider's own is."""
    title = schema.get("title")
    name = re.sub(r"[^A-Za-z0-9_-]", "_", title)[:64] if isinstance(title, str) and title else "answer"
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}


def _promises_structured_output(chat_model: BaseChatModel) -> bool:
    return _at(_as_json(getattr(chat_model, "profile", None)), "structured_output") is True


def _capped(chat_model: BaseChatModel, max_output_tokens: int | None) -> BaseChatModel:
    """The chat model with its cap on the answer lowered; itself where it has none, or a lower one."""
    field = next((name for name in _CAP_FIELDS if name in type(chat_model).model_fields), None)
    if max_output_tokens is None or field is None:
        return chat_model
    current: object = getattr(chat_model, field)
    if isinstance(current, int) and 0 < current <= max_output_tokens:
        return chat_model
    return chat_model.model_copy(update={field: max_output_tokens})


def _model_name(chat_model: BaseChatModel) -> str:
    names: Iterator[object] = (getattr(chat_model, field, None) for field in _NAME_FIELDS)
    return next((name for name in names if isinstance(name, str) and name), type(chat_model).__name__)


# The answer, as LangChain gives it


def _tool_calls(message: AIMessage, first_id: str) -> tuple[ToolCall, ...]:
    """The calls in the order asked, each with an id of its own."""
    calls: list[ToolCall] = []
    for position, (call_id, name, text, broken) in enumerate(_calls_as_text(message)):
        arguments, invalid = ({}, clean_text(text)) if broken else parse_arguments(text)
        if not call_id or any(call_id == earlier.call_id for earlier in calls):
            call_id = f"{first_id}_{position}"
        calls.append(ToolCall(call_id=call_id, name=name or "", arguments=arguments, invalid_arguments=invalid))
    return tuple(calls)


def _calls_as_text(message: AIMessage) -> Sequence[tuple[str | None, str | None, str, bool]]:
    """The id, name and arguments of each call, and whether the arguments are known to be broken.

    In a streamed message the arguments are read from their text: LangChain completes JSON that was
    cut off, and a tool must not be run with half of an argument.
    """
    if not isinstance(message, AIMessageChunk):
        valid = [
            (call["id"], call["name"], json.dumps(call["args"], default=str), False) for call in message.tool_calls
        ]
        return valid + [(call["id"], call["name"], call["args"] or "", True) for call in message.invalid_tool_calls]
    calls = [(chunk["id"], chunk["name"], chunk["args"] or "", False) for chunk in message.tool_call_chunks]
    if calls and not calls[-1][2].strip() and _finish_reason(_as_json(message.response_metadata), True) == "length":
        # Cut before its arguments began, which is not the same as a call without any.
        calls[-1] = (*calls[-1][:3], True)
    return calls


def _to_send_again(message: AIMessage, calls: tuple[ToolCall, ...]) -> AIMessage:
    """The message as the history keeps it: itself, unless its calls cannot be sent again as they came.

    That is the case for broken arguments, which providers refuse, and for ids that had to be made
    up. Then every trace of the calls as they came goes, and only `tool_calls` names them.
    """
    whole = message_chunk_to_message(message)
    assert isinstance(whole, AIMessage)
    as_they_came = [call["id"] for call in whole.tool_calls]
    valid = [call.call_id for call in calls if call.invalid_arguments is None]
    if as_they_came == valid and not whole.invalid_tool_calls:
        return whole
    content = whole.content
    if not isinstance(content, str):
        content = [block for block in content if isinstance(block, str) or block.get("type") not in _CALL_BLOCKS]
    kept = {key: value for key, value in whole.additional_kwargs.items() if key not in ("tool_calls", "function_call")}
    changes = {
        "content": content,
        "additional_kwargs": kept,
        "tool_calls": [_langchain_call(call) for call in calls],
        "invalid_tool_calls": [],
    }
    return whole.model_copy(update=changes)


def _thinking(content: JsonValue, additional_kwargs: JsonValue) -> str:
    """The reasoning in a message, which each provider's integration puts elsewhere."""
    blocks = content if isinstance(content, list) else []
    found = [text for block in blocks for text in _reasoning(block)] or [_at(additional_kwargs, "reasoning_content")]
    return clean_text("".join(text for text in found if isinstance(text, str)))


def _reasoning(block: JsonValue) -> list[JsonValue]:
    match _at(block, "type"):
        case "thinking":
            return [_at(block, "thinking")]
        case "reasoning":
            summary = _at(block, "summary")
            parts = summary if isinstance(summary, list) else []
            return [_at(block, "reasoning"), *(_at(part, "text") for part in parts)]
        case "reasoning_content":
            return [_at(block, "reasoning_content", "text")]
        case _:
            return []


def _chunk_thinking(chunk: AIMessageChunk) -> str:
    content = chunk.content
    if isinstance(content, str) and not chunk.additional_kwargs:
        return ""
    return _thinking(_as_json(content), _as_json(chunk.additional_kwargs))


def _refusal(data: JsonValue) -> str:
    """What the model said when it declined to answer; empty where it did not decline in so many words."""
    said = [_at(data, "additional_kwargs", "refusal")]
    content = _at(data, "content")
    if isinstance(content, list):
        said += [_at(block, "refusal") for block in content if _at(block, "type") == "refusal"]
    return "".join(text for text in said if isinstance(text, str))


_FINISH_REASONS: dict[str, FinishReason] = {
    **dict.fromkeys(("stop", "end_turn", "stop_sequence", "eos", "complete", "completed"), "stop"),
    **dict.fromkeys(("tool_calls", "tool_use", "tool_call", "function_call"), "tool_calls"),
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens", "model_length"), "length"),
    **dict.fromkeys(("content_filter", "safety", "recitation", "blocklist", "prohibited_content"), "content_filter"),
    **dict.fromkeys(("content_filtered", "guardrail_intervened", "spii"), "content_filter"),
    "refusal": "refusal",
}


def _finish_reason(metadata: JsonValue, has_calls: bool) -> FinishReason:
    said = _first_text(metadata, ("finish_reason", "stop_reason", "stopReason", "done_reason"))
    said = said or _first_text(_at(metadata, "incomplete_details"), ("reason",)) or "stop"
    reason = _FINISH_REASONS.get(said.lower(), "other")
    return "tool_calls" if has_calls and reason in ("stop", "other") else reason


def _usage(reported: JsonValue) -> Usage | None:
    """The tokens of a request; none where the provider reports none, or only zeros."""
    tokens = [
        _at(reported, *path) for path in (("input_tokens",), ("output_tokens",), ("input_token_details", "cache_read"))
    ]
    input_tokens, output_tokens, cached = (count if isinstance(count, int) else 0 for count in tokens)
    if not (input_tokens or output_tokens):
        return None
    return Usage(input_tokens=input_tokens, output_tokens=output_tokens, cached_input_tokens=cached)


def _at(value: JsonValue, *path: str) -> JsonValue:
    """The value at a path of keys inside a JSON value; `None` where there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _first_text(value: JsonValue, keys: Sequence[str]) -> str:
    texts = (_at(value, key) for key in keys)
    return next((text for text in texts if isinstance(text, str) and text), "")


def _as_json(value: object) -> JsonValue:
    """A foreign value as JSON that every encoder takes: what is no JSON becomes its `str`, and NaN `None`."""
    text = clean_text(json.dumps(value, default=str, ensure_ascii=False))
    plain: JsonValue = json.loads(text, parse_constant=lambda _: None)
    return plain
