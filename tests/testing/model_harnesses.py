"""Each of our models in front of a provider that answers as told."""

from __future__ import annotations

import base64
import json
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import httpx
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import Field

from endstop._errors import ContextOverflow, ModelError
from endstop._messages import (
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
    UserMessage,
    parse_arguments,
)
from endstop.models.base import Delta, Model, ModelRequest
from endstop.models.langchain import LangChainModel
from endstop.models.openai import OpenAIModel
from endstop.models.scripted import Exchange, ReplayModel, ScriptedModel, Step
from endstop.testing.models import (
    Unsupported,
    WireAnswer,
    WireCall,
    WireFailure,
)
from tests.models.fake_openai import FakeOpenAI, Reply, chunk, events, message, stream, tool_call, usage_chunk, whole

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

OVERFLOW = "This model's maximum context length is 8192 tokens"


# ScriptedModel and ReplayModel


def as_turn(answer: WireAnswer) -> ModelTurn:
    """The turn that an answer should become."""
    calls: list[ToolCall] = []
    for call in answer.calls:
        arguments, invalid = parse_arguments("".join(call.arguments))
        calls.append(ToolCall(call_id=call.call_id, name=call.name, arguments=arguments, invalid_arguments=invalid))
    return ModelTurn(
        text="".join(answer.text) or answer.refusal,
        thinking="".join(answer.thinking),
        tool_calls=tuple(calls),
        finish_reason="refusal" if answer.refusal else answer.finish_reason or ("tool_calls" if calls else "stop"),
        usage=answer.usage,
        model="m",
    )


def as_deltas(answer: WireAnswer) -> tuple[Delta, ...]:
    """The pieces that an answer should be given in."""
    texts = answer.text or ((answer.refusal,) if answer.refusal else ())
    return (*(Delta(text=text, kind="thinking") for text in answer.thinking), *(Delta(text=text) for text in texts))


def as_error(failure: WireFailure) -> ModelError:
    """The error that a failure should become."""
    if failure.kind == "context_overflow":
        return ContextOverflow(OVERFLOW, status=400)
    if failure.kind == "connection":
        return ModelError("broke off", retryable=True)
    retryable = failure.status in (408, 409, 429) or failure.status >= 500
    return ModelError("no", status=failure.status, retryable=retryable, retry_after_seconds=failure.retry_after_seconds)


class ScriptedHarness:
    """A scripted model, which needs no provider: it shows that the contracts fit together."""

    asked: ScriptedModel

    @asynccontextmanager
    async def model(self, answers: Sequence[WireAnswer]) -> AsyncIterator[Model]:
        """A model with a step for each answer."""
        self.asked = ScriptedModel([self.step(answer) for answer in answers])
        yield self.asked

    def step(self, answer: WireAnswer) -> Step:
        """The step that plays an answer."""
        return Step(
            turn=as_turn(answer),
            deltas=as_deltas(answer),
            error=answer.failure and as_error(answer.failure),
            delta_latency_seconds=3600 if answer.hangs else 0,
        )

    def requests(self) -> Sequence[ModelRequest]:
        """What the model recorded, without what it must never show to a provider."""
        return [
            replace(request, messages=[sendable(each) for each in request.messages]) for request in self.asked.requests
        ]


def sendable(said: Message) -> Message:
    """A message as a provider could get it: without the text of broken arguments."""
    if not isinstance(said, ModelTurn):
        return said
    return replace(said, tool_calls=tuple(replace(call, invalid_arguments=None) for call in said.tool_calls))


class ReplayHarness(ScriptedHarness):
    """A replay of a recording, in which nothing failed."""

    @asynccontextmanager
    async def model(self, answers: Sequence[WireAnswer]) -> AsyncIterator[Model]:
        """A model with a recorded exchange for each answer."""
        if any(answer.failure for answer in answers):
            raise Unsupported("failures are not recorded")
        self.asked = ReplayModel(
            [
                Exchange(
                    request=ModelRequest(messages=()),
                    turn=as_turn(answer),
                    model="m",
                    deltas=as_deltas(answer),
                    seconds=3600.0 if answer.hangs else 0.0,
                )
                for answer in answers
            ],
            strict=False,
            pace=1.0,
        )
        yield self.asked


# LangChainModel


class FakeChat(BaseChatModel):
    """A chat model as a provider's integration makes it: from the provider's answers, streamed or whole."""

    answers: list[Any]
    sent: list[ModelRequest] = Field(default_factory=list)
    max_tokens: int | None = None

    @property
    def _llm_type(self) -> str:
        return "fake"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """Binds the tools as they are."""
        return self.bind(tools=tools, **kwargs)

    def _take(self, messages: list[BaseMessage], tools: list[Any]) -> WireAnswer:
        self.sent.append(from_langchain(messages, tools, self.max_tokens))
        answer: WireAnswer = self.answers.pop(0)
        return answer

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        answer = self._take(messages, kwargs.get("tools", []))
        if answer.failure:
            raise langchain_error(answer.failure)
        if answer.hangs:
            await anyio.sleep_forever()
        raw = [
            {"id": call.call_id, "function": {"name": call.name, "arguments": "".join(call.arguments) or "{}"}}
            for call in answer.calls
        ]
        valid = [(call, *parse_arguments(call["function"]["arguments"])) for call in raw]
        whole_message = AIMessage(
            "".join(answer.text),
            additional_kwargs=extras(answer) | ({"tool_calls": raw} if raw else {}),
            tool_calls=[
                {"id": call["id"], "name": call["function"]["name"], "args": arguments, "type": "tool_call"}
                for call, arguments, invalid in valid
                if invalid is None
            ],
            invalid_tool_calls=[
                {"id": call["id"], "name": call["function"]["name"], "args": invalid, "error": None}
                for call, _, invalid in valid
                if invalid is not None
            ],
            **ending(answer),
        )
        return ChatResult(generations=[ChatGeneration(message=whole_message)])


class StreamingFakeChat(FakeChat):
    """A chat model that streams."""

    async def _astream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        answer = self._take(messages, kwargs.get("tools", []))
        for piece in langchain_chunks(answer):
            yield ChatGenerationChunk(message=piece)
            await anyio.lowlevel.checkpoint()
        if answer.hangs:
            await anyio.sleep_forever()
        if answer.failure:
            raise langchain_error(answer.failure)
        yield ChatGenerationChunk(message=AIMessageChunk("", chunk_position="last", **ending(answer)))


def langchain_chunks(answer: WireAnswer) -> Iterator[AIMessageChunk]:
    """The answer in the chunks of a stream, but for the last."""
    for text in answer.thinking:
        yield AIMessageChunk("", additional_kwargs={"reasoning_content": text})
    for text in answer.text:
        yield AIMessageChunk(text)
    if answer.refusal:
        yield AIMessageChunk("", additional_kwargs={"refusal": answer.refusal})
    for index, call in enumerate(answer.calls):
        first = tool_call_chunk(name=call.name, args="", id=call.call_id, index=index)
        pieces = [tool_call_chunk(args=text, index=index) for text in call.arguments]
        for piece in (first, *pieces):
            yield AIMessageChunk("", tool_call_chunks=[piece])


def extras(answer: WireAnswer) -> dict[str, Any]:
    """What LangChain has no field for."""
    known = {"reasoning_content": "".join(answer.thinking), "refusal": answer.refusal}
    return {name: value for name, value in known.items() if value}


def ending(answer: WireAnswer) -> dict[str, Any]:
    """The usage and the reason of the end, as LangChain has them."""
    fields: dict[str, Any] = {
        "response_metadata": {"finish_reason": answer.finish_reason or ("tool_calls" if answer.calls else "stop")}
    }
    if answer.usage:
        fields["usage_metadata"] = {
            "input_tokens": answer.usage.input_tokens,
            "output_tokens": answer.usage.output_tokens,
            "total_tokens": answer.usage.input_tokens + answer.usage.output_tokens,
            "input_token_details": {"cache_read": answer.usage.cached_input_tokens},
        }
    return fields


def langchain_error(failure: WireFailure) -> Exception:
    """The error that a provider's package raises."""
    request = httpx.Request("POST", "http://provider.test")
    if failure.kind == "connection":
        return httpx.RemoteProtocolError("broke off", request=request)
    wait = {} if failure.retry_after_seconds is None else {"Retry-After": str(failure.retry_after_seconds)}
    text = OVERFLOW if failure.kind == "context_overflow" else "no"
    return httpx.HTTPStatusError(text, request=request, response=httpx.Response(failure.status, headers=wait))


def from_langchain(messages: list[BaseMessage], tools: list[Any], max_tokens: int | None) -> ModelRequest:
    """A request as the chat model got it."""
    instructions: str | None = None
    history: list[Message] = []
    for each in messages:
        encodable(each.content)
        match each:
            case SystemMessage():
                instructions = str(each.text)
            case HumanMessage(content=str(content)):
                history.append(UserMessage(content=content))
            case HumanMessage():
                history.append(UserMessage(content=tuple(from_block(block) for block in each.content)))
            case AIMessage():
                assert not each.invalid_tool_calls
                calls = [ToolCall(call_id=c["id"] or "", name=c["name"], arguments=c["args"]) for c in each.tool_calls]
                history.append(ModelTurn(text=str(each.text), tool_calls=tuple(calls)))
            case ToolMessage():
                history.append(ToolReturn(call_id=each.tool_call_id, name=each.name or "", content=str(each.text)))
    return ModelRequest(
        messages=history,
        instructions=instructions,
        tools=tuple(from_tool(tool) for tool in tools),
        max_output_tokens=max_tokens,
    )


def from_block(block: Any) -> Part:
    """A part of a prompt as LangChain's content block holds it."""
    if block["type"] == "text":
        return TextPart(text=block["text"])
    data = base64.b64decode(block["base64"])
    if block["type"] == "image":
        return ImagePart(data=data, media_type=block["mime_type"])
    return FilePart(name=block["extras"]["filename"], data=data, media_type=block["mime_type"])


def from_tool(tool: Any) -> ToolSpec:
    """A tool as it is described in OpenAI's form."""
    return ToolSpec(**tool["function"])


def encodable(sent: object) -> None:
    """Refuses, as a provider does, text that has no UTF-8 form."""
    json.dumps(sent, ensure_ascii=False).encode()


class LangChainHarness:
    """A chat model behind the adapter; `kind` says which, and `stream` whether it is asked to stream."""

    def __init__(self, kind: type[FakeChat], *, stream: bool) -> None:
        self.kind, self.stream = kind, stream

    @asynccontextmanager
    async def model(self, answers: Sequence[WireAnswer]) -> AsyncIterator[Model]:
        """A model whose chat model gives the answers."""
        self.chat = self.kind(answers=list(answers))
        yield LangChainModel(self.chat, stream=self.stream)

    def requests(self) -> Sequence[ModelRequest]:
        """What the chat model was sent."""
        return self.chat.sent


# OpenAIModel


class OpenAIHarness:
    """An OpenAI-compatible server on loopback behind the adapter."""

    def __init__(self, *, stream: bool) -> None:
        self.stream = stream

    @asynccontextmanager
    async def model(self, answers: Sequence[WireAnswer]) -> AsyncIterator[Model]:
        """A model whose server gives the answers."""
        reply = streamed_reply if self.stream else whole_reply
        with FakeOpenAI(replies=[reply(answer) for answer in answers]) as self.server:
            async with OpenAIModel("m", base_url=self.server.base_url, stream=self.stream) as model:
                yield model

    def requests(self) -> Sequence[ModelRequest]:
        """What the server was sent."""
        return [from_openai(received.body) for received in self.server.received]


def streamed_reply(answer: WireAnswer) -> Reply:
    """The answer as a stream of events."""
    if answer.failure and answer.failure.kind != "connection":
        return failed_reply(answer.failure)
    chunks = [chunk(role="assistant", content="")]
    chunks += [chunk(reasoning_content=text) for text in answer.thinking]
    chunks += [chunk(content=text) for text in answer.text]
    chunks += [chunk(refusal=answer.refusal)] if answer.refusal else []
    for index, call in enumerate(answer.calls):
        chunks.append(chunk(tool_calls=[tool_call(index=index, id=call.call_id, name=call.name, arguments="")]))
        chunks += [chunk(tool_calls=[tool_call(index=index, arguments=text)]) for text in call.arguments]
    if answer.failure or answer.hangs:
        unfinished = events(chunks, done=False) if answer.text else b""
        return stream(unfinished, cut=bool(answer.failure), hold=answer.hangs)
    chunks.append(chunk(finish=finish_of(answer)))
    if answer.usage:
        usage = answer.usage
        chunks.append(usage_chunk(usage.input_tokens, usage.output_tokens, usage.cached_input_tokens))
    return stream(events(chunks))


def whole_reply(answer: WireAnswer) -> Reply:
    """The answer as one JSON document."""
    if answer.failure and answer.failure.kind != "connection":
        return failed_reply(answer.failure)
    if answer.failure or answer.hangs:
        return Reply(pieces=[], cut=bool(answer.failure), hold=answer.hangs)
    fields: dict[str, Any] = {"reasoning_content": "".join(answer.thinking) or None, "refusal": answer.refusal or None}
    fields["tool_calls"] = [wire_call(call) for call in answer.calls] or None
    usage = answer.usage and usage_chunk(
        answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.cached_input_tokens
    )
    text = "".join(answer.text) or None
    return whole(message(text, finish=finish_of(answer), usage=usage and usage["usage"], **fields))


def wire_call(call: WireCall) -> Any:
    """A call as it stands in a message."""
    return tool_call(id=call.call_id, type="function", name=call.name, arguments="".join(call.arguments))


def finish_of(answer: WireAnswer) -> str:
    """The reason of the end in OpenAI's words."""
    return answer.finish_reason or ("tool_calls" if answer.calls else "stop")


def failed_reply(failure: WireFailure) -> Reply:
    """A failure as OpenAI reports it."""
    overflows = failure.kind == "context_overflow"
    error = {"message": OVERFLOW if overflows else "no", "code": "context_length_exceeded" if overflows else None}
    wait = {} if failure.retry_after_seconds is None else {"Retry-After": str(failure.retry_after_seconds)}
    return whole({"error": error}, status=failure.status, headers=wait)


def from_openai(body: Any) -> ModelRequest:
    """A request as the server got it."""
    encodable(body)
    instructions: str | None = None
    history: list[Message] = []
    for each in body["messages"]:
        content = each.get("content") or ""
        match each["role"]:
            case "system":
                instructions = content
            case "user":
                parts = content if isinstance(content, str) else tuple(from_openai_part(part) for part in content)
                history.append(UserMessage(content=parts))
            case "assistant":
                calls = tuple(from_openai_call(call) for call in each.get("tool_calls") or ())
                history.append(ModelTurn(text=content, tool_calls=calls))
            case _:
                history.append(ToolReturn(call_id=each["tool_call_id"], name="", content=content))
    schema: JsonObject | None = body.get("response_format")
    cap = body.get("max_tokens", body.get("max_completion_tokens"))
    return ModelRequest(
        messages=history,
        instructions=instructions,
        tools=tuple(from_tool(tool) for tool in body.get("tools", ())),
        output_schema=schema,
        max_output_tokens=cap,
    )


def from_openai_call(call: Any) -> ToolCall:
    """A call of the history; its arguments must be JSON."""
    arguments = json.loads(call["function"]["arguments"])
    return ToolCall(call_id=call["id"], name=call["function"]["name"], arguments=arguments)


def from_openai_part(part: Any) -> Part:
    """A part of a prompt, its bytes in a data URL."""
    if part["type"] == "text":
        return TextPart(text=part["text"])
    url = part["image_url"]["url"] if part["type"] == "image_url" else part["file"]["file_data"]
    head, _, data = url.partition(";base64,")
    media_type = head.removeprefix("data:")
    if part["type"] == "image_url":
        return ImagePart(data=base64.b64decode(data), media_type=media_type)
    return FilePart(name=part["file"]["filename"], data=base64.b64decode(data), media_type=media_type)
