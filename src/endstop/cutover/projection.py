"""A finished kernel value in the shape that callers of a LangGraph agent already hold.

Plain functions: they read a value and write another; they run nothing and keep nothing. What the kernel does not know
gets the empty value of its column, and never an estimate.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Literal, TypeAlias

from endstop._errors import ConfigError
from endstop._messages import ModelTurn, TextPart, UserMessage
from endstop.cutover.responses import AgentResponse, StreamChunk

if TYPE_CHECKING:
    from collections.abc import Iterable

    from endstop._events import Event
    from endstop._messages import JsonObject, JsonValue, Message, Part, ToolCall, ToolReturn, Usage
    from endstop._pauses import Pause
    from endstop._results import AgentResult

__all__ = ["AgentResponse", "StreamChunk", "WireVersion", "as_chunk", "as_legacy_messages", "as_response"]

WireVersion: TypeAlias = Literal[1, 2]
"""Which chunks a consumer knows: 2 has those of pauses, which 1 has not."""


def as_response(result: AgentResult[object], *, run_id: str, session_id: str) -> AgentResponse:
    """The response of a turn that the kernel has served. A turn without an answer has `None` for one, and not `""`.

    Raises:
        RecursionExhaustedError: the round budget ran out. The graph raises where it runs out of super-steps, and
            whatever text there is was not meant as the answer.
    """
    _check_rounds(result, run_id)
    return AgentResponse(
        final_response=result.text or None,
        messages=as_legacy_messages(result.messages),
        run_id=run_id,
        session_id=session_id,
        duration_ms=result.duration_ms,
        structured=result.output,
    )


def as_chunk(event: Event, *, run_id: str, wire_version: WireVersion = 1) -> StreamChunk | None:
    """The chunk that tells an event of the kernel, or `None` where a caller of the graph knows none for it.

    A pause is one of these in wire version 1, so that a stream which ends in it has no `done`. From version 2 on it is
    told, and can be kept apart from a stream whose end went missing.

    Raises:
        AgentError: the run failed; the graph's stream tells it in the same way.
        RecursionExhaustedError: the run is done because the round budget ran out.
        ConfigError: there is no such wire version.
    """
    if wire_version not in (1, 2):
        raise ConfigError("wire_version", wire_version, "use 1, or 2 for chunks that tell of pauses")
    data = _chunk_data(event, run_id, pauses=wire_version >= 2)
    return None if data is None else StreamChunk(event_type=event.kind, data=data, run_id=run_id)


def as_legacy_messages(messages: Iterable[Message]) -> list[JsonObject]:
    """The messages as dicts with the keys and values of LangChain's `model_dump()`, as JSON.

    `HumanMessage.model_validate` and its kin read them back. The kernel gives messages no `id`, and keeps usage that it
    estimated to itself. Reasoning is under `additional_kwargs["reasoning_content"]`, calls whose arguments are no JSON
    under `invalid_tool_calls`. A call that was not run has the status `error`, as one that failed.
    """
    return [_legacy_message(message) for message in messages]


def _check_rounds(result: AgentResult[object], run_id: str) -> None:
    if result.stop_reason == "tool_limit":
        from endstop.cutover.errors import RecursionExhaustedError  # noqa: PLC0415 - only raising it needs LangGraph

        raise RecursionExhaustedError(run_id, state=getattr(result, "state", None))


# The events


def _chunk_data(event: Event, run_id: str, *, pauses: bool) -> JsonValue:
    """What the chunk of an event holds; `None` where there is no chunk for it."""
    match event.kind:
        case "thinking" | "text_delta":
            return event.text
        case "tool_call":
            return _call_data(event.call)
        case "tool_result":
            return _result_data(event.call, event.result)
        case "ask_user" | "interrupt":
            return _pause_data(event.pause) if pauses else None
        case "done":
            _check_rounds(event.result, run_id)
            return _done_data(event.result)
        case "error":
            from endstop.cutover.errors import AgentError  # noqa: PLC0415 - only raising it needs LangGraph

            raise AgentError(event.error or "the invocation failed")
        case _:
            return None


def _call_data(call: ToolCall | None) -> JsonObject | None:
    if call is None:
        return None
    return {"call_id": call.call_id, "name": call.name, "arguments": call.arguments}


def _result_data(call: ToolCall | None, result: ToolReturn) -> JsonObject | None:
    if call is None:
        return None
    return {"call_id": call.call_id, "name": call.name, "result": result.content, "is_error": result.status != "ok"}


def _pause_data(pause: Pause) -> JsonObject:
    return {
        "pause_id": pause.pause_id,
        "question": pause.question,
        "call": _call_data(pause.call),
        "answer_schema": pause.answer_schema,
        "expires_at": pause.expires_at.isoformat() if pause.expires_at else None,
    }


def _done_data(result: AgentResult[object]) -> JsonObject:
    return {
        "memory_entries_used": 0,
        "system_prompt_tokens": 0,
        "duration_ms": round(result.duration_ms or 0.0, 1),
        "extracted_ops": [],
        "activation_log": {},
        "final_response": result.text or "",
    }


# The messages


def _legacy_message(message: Message) -> JsonObject:
    if isinstance(message, UserMessage):
        return _base("human", _content(message.content))
    if isinstance(message, ModelTurn):
        return _ai_message(message)
    status = "success" if message.status == "ok" else "error"
    whose: JsonObject = {"name": message.name, "tool_call_id": message.call_id}
    return _base("tool", message.content) | whose | {"artifact": None, "status": status}


def _base(kind: str, content: JsonValue) -> JsonObject:
    """The keys that every message has."""
    known: JsonObject = {"content": content, "additional_kwargs": {}, "response_metadata": {}}
    return known | {"type": kind, "name": None, "id": None}


def _ai_message(turn: ModelTurn) -> JsonObject:
    metadata: JsonObject = {"finish_reason": turn.finish_reason}
    if turn.model:
        metadata["model_name"] = turn.model
    valid = [call for call in turn.tool_calls if call.invalid_arguments is None]
    broken = [call for call in turn.tool_calls if call.invalid_arguments is not None]
    said = _base("ai", turn.text)
    if turn.thinking:
        said["additional_kwargs"] = {"reasoning_content": turn.thinking}
    said["response_metadata"] = metadata
    said["tool_calls"] = [_legacy_call(call, "tool_call", call.arguments) for call in valid]
    said["invalid_tool_calls"] = [_broken_call(call) for call in broken]
    said["usage_metadata"] = _usage(turn.usage)
    return said


def _broken_call(call: ToolCall) -> JsonObject:
    return {**_legacy_call(call, "invalid_tool_call", call.invalid_arguments), "error": None}


def _legacy_call(call: ToolCall, kind: str, arguments: JsonValue) -> JsonObject:
    return {"name": call.name, "args": arguments, "id": call.call_id, "type": kind}


def _usage(usage: Usage | None) -> JsonObject | None:
    if usage is None or not usage.measured:
        return None
    tokens: JsonObject = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    tokens["total_tokens"] = usage.input_tokens + usage.output_tokens
    if usage.cached_input_tokens:
        tokens["input_token_details"] = {"cache_read": usage.cached_input_tokens}
    return tokens


def _content(content: str | tuple[Part, ...]) -> JsonValue:
    return content if isinstance(content, str) else [_block(part) for part in content]


def _block(part: Part) -> JsonObject:
    """A part of a prompt as one of LangChain's standard content blocks."""
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    block: JsonObject = {"type": part.kind}
    if part.data is None:
        block["url"] = part.url
    else:
        block |= {"base64": base64.b64encode(part.data).decode(), "mime_type": part.media_type}
    if part.kind == "file":
        block |= {"mime_type": part.media_type, "extras": {"filename": part.name}}
    return block
