"""Any LangChain chat model as an endstop model.

::

    agent = Agent(LangChainModel(ChatAnthropic(model="claude-sonnet-4-5")), tools=[search])

Stands on langchain-core alone. LangChain runs on asyncio, and so does this adapter.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncGenerator, Awaitable
from typing import TYPE_CHECKING, Literal, TypeVar

import anyio
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    message_to_dict,
    messages_from_dict,
)

from endstop._errors import ConfigError, EndstopError, ModelError
from endstop._messages import (
    JsonObject,
    JsonValue,
    Message,
    ModelTurn,
    Part,
    TextPart,
    ToolSpec,
    UserMessage,
    clean_text,
)
from endstop.models._langchain_codec import (
    as_json,
    at,
    capped,
    first_text,
    langchain_call,
    model_name,
    read_calls,
    read_chunk_thinking,
    read_finish_reason,
    read_refusal,
    read_thinking,
    read_usage,
    to_send_again,
)
from endstop.models._langchain_errors import model_error
from endstop.models.base import Delta, ModelRequest, OnDelta

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from langchain_core.language_models import BaseChatModel, LanguageModelInput
    from langchain_core.runnables import Runnable

T = TypeVar("T")

_NATIVE = "langchain"
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
        self._name = name or model_name(chat_model)
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
        chat_model = capped(self._chat_model, request.max_output_tokens)
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
        calls = read_calls(message, first_id)
        whole = to_send_again(message, calls)
        saved = as_json(message_to_dict(whole))
        data = at(saved, "data")
        refusal = read_refusal(data)
        return ModelTurn(
            text=clean_text(str(whole.text)) or refusal,
            tool_calls=calls,
            thinking=read_thinking(at(data, "content"), at(data, "additional_kwargs")),
            finish_reason="refusal" if refusal else read_finish_reason(at(data, "response_metadata"), bool(calls)),
            usage=read_usage(at(data, "usage_metadata")),
            model=first_text(at(data, "response_metadata"), ("model_name", "model")) or self._name,
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
            await told.tell(read_chunk_thinking(message), "thinking")
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
        saved = at(message.native, _NATIVE)
        if isinstance(saved, dict):
            return messages_from_dict([saved])[0]
        return AIMessage(clean_text(message.text), tool_calls=[langchain_call(call) for call in message.tool_calls])
    return ToolMessage(
        clean_text(message.content),
        tool_call_id=message.call_id,
        name=message.name,
        status="success" if message.status == "ok" else "error",
    )


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
    return at(as_json(getattr(chat_model, "profile", None)), "structured_output") is True
