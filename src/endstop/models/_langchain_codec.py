"""What LangChain's chat models and messages say, read once for everything that stands on them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from langchain_core.messages import AIMessage, AIMessageChunk, message_chunk_to_message
from langchain_core.messages import ToolCall as LangChainToolCall
from langchain_core.messages.tool import tool_call as create_tool_call

from endstop._messages import FinishReason, JsonValue, ToolCall, Usage, clean_text, parse_arguments

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from langchain_core.language_models import BaseChatModel

_CALL_BLOCKS = ("tool_use", "tool_call", "tool_call_chunk", "invalid_tool_call", "function_call", "input_json_delta")
_CAP_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "num_predict", "max_new_tokens")
_NAME_FIELDS = ("model_name", "model", "model_id", "deployment_name")


def capped(chat_model: BaseChatModel, max_output_tokens: int | None) -> BaseChatModel:
    """The chat model with its cap on the answer lowered; itself where it has none, or a lower one."""
    field = next((name for name in _CAP_FIELDS if name in type(chat_model).model_fields), None)
    if max_output_tokens is None or field is None:
        return chat_model
    current: object = getattr(chat_model, field)
    if isinstance(current, int) and 0 < current <= max_output_tokens:
        return chat_model
    return chat_model.model_copy(update={field: max_output_tokens})


def model_name(chat_model: BaseChatModel) -> str:
    """The name that the chat model was made with, or that of its class."""
    names: Iterator[object] = (getattr(chat_model, field, None) for field in _NAME_FIELDS)
    return next((name for name in names if isinstance(name, str) and name), type(chat_model).__name__)


def read_calls(message: AIMessage, first_id: str) -> tuple[ToolCall, ...]:
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
    if calls and not calls[-1][2].strip() and read_finish_reason(as_json(message.response_metadata), True) == "length":
        # Cut before its arguments began, which is not the same as a call without any.
        calls[-1] = (*calls[-1][:3], True)
    return calls


def to_send_again(message: AIMessage, calls: tuple[ToolCall, ...]) -> AIMessage:
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
        "tool_calls": [langchain_call(call) for call in calls],
        "invalid_tool_calls": [],
    }
    return whole.model_copy(update=changes)


def langchain_call(call: ToolCall) -> LangChainToolCall:
    """A call as LangChain's messages hold it."""
    return create_tool_call(name=call.name, args=call.arguments, id=call.call_id)


def read_thinking(content: JsonValue, additional_kwargs: JsonValue) -> str:
    """The reasoning in a message, which each provider's integration puts elsewhere."""
    blocks = content if isinstance(content, list) else []
    found = [text for block in blocks for text in _reasoning(block)] or [at(additional_kwargs, "reasoning_content")]
    return clean_text("".join(text for text in found if isinstance(text, str)))


def _reasoning(block: JsonValue) -> list[JsonValue]:
    match at(block, "type"):
        case "thinking":
            return [at(block, "thinking")]
        case "reasoning":
            summary = at(block, "summary")
            parts = summary if isinstance(summary, list) else []
            return [at(block, "reasoning"), *(at(part, "text") for part in parts)]
        case "reasoning_content":
            return [at(block, "reasoning_content", "text")]
        case _:
            return []


def read_chunk_thinking(chunk: AIMessageChunk) -> str:
    """The reasoning in one piece of a streamed message."""
    content = chunk.content
    if isinstance(content, str) and not chunk.additional_kwargs:
        return ""
    return read_thinking(as_json(content), as_json(chunk.additional_kwargs))


def read_refusal(data: JsonValue) -> str:
    """What the model said when it declined to answer; empty where it did not decline in so many words."""
    said = [at(data, "additional_kwargs", "refusal")]
    content = at(data, "content")
    if isinstance(content, list):
        said += [at(block, "refusal") for block in content if at(block, "type") == "refusal"]
    return "".join(text for text in said if isinstance(text, str))


_FINISH_REASONS: dict[str, FinishReason] = {
    **dict.fromkeys(("stop", "end_turn", "stop_sequence", "eos", "complete", "completed"), "stop"),
    **dict.fromkeys(("tool_calls", "tool_use", "tool_call", "function_call"), "tool_calls"),
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens", "model_length"), "length"),
    **dict.fromkeys(("content_filter", "safety", "recitation", "blocklist", "prohibited_content"), "content_filter"),
    **dict.fromkeys(("content_filtered", "guardrail_intervened", "spii"), "content_filter"),
    "refusal": "refusal",
}


def read_finish_reason(metadata: JsonValue, has_calls: bool) -> FinishReason:
    """Why the answer ended, which each provider says in its own words."""
    said = first_text(metadata, ("finish_reason", "stop_reason", "stopReason", "done_reason"))
    said = said or first_text(at(metadata, "incomplete_details"), ("reason",)) or "stop"
    reason = _FINISH_REASONS.get(said.lower(), "other")
    return "tool_calls" if has_calls and reason in ("stop", "other") else reason


def read_usage(reported: JsonValue) -> Usage | None:
    """The tokens of a request; none where the provider reports none, or only zeros."""
    tokens = [
        at(reported, *path) for path in (("input_tokens",), ("output_tokens",), ("input_token_details", "cache_read"))
    ]
    input_tokens, output_tokens, cached = (count if isinstance(count, int) else 0 for count in tokens)
    if not (input_tokens or output_tokens):
        return None
    return Usage(input_tokens=input_tokens, output_tokens=output_tokens, cached_input_tokens=cached)


def at(value: JsonValue, *path: str) -> JsonValue:
    """The value at a path of keys inside a JSON value; `None` where there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def first_text(value: JsonValue, keys: Sequence[str]) -> str:
    """The first of the keys that has a text; empty where none has."""
    texts = (at(value, key) for key in keys)
    return next((text for text in texts if isinstance(text, str) and text), "")


def as_json(value: object) -> JsonValue:
    """A foreign value as JSON that every encoder takes: what is no JSON becomes its `str`, and NaN `None`."""
    text = clean_text(json.dumps(value, default=str, ensure_ascii=False))
    plain: JsonValue = json.loads(text, parse_constant=lambda _: None)
    return plain
