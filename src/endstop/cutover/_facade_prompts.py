"""What a turn is asked, in LangChain's messages or in the kernel's."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    ToolMessage,
    convert_to_messages,
    messages_from_dict,
)

from endstop._errors import ConfigError
from endstop._messages import FilePart, ImagePart, ModelTurn, TextPart, ToolReturn, UserMessage, checked_prompt
from endstop.models._langchain_codec import as_json, at, read_calls, read_thinking, read_usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from endstop._messages import JsonValue, Message, Part, Prompt
    from endstop.cutover._facade_turn import Asking

_REMEDY = "use text, or a list of LangChain messages or their dicts"


def as_langchain(prompt: Asking) -> list[BaseMessage]:
    """The messages that a graph is given: new ones, so that the caller's own are not changed by it.

    Raises:
        ConfigError: it is empty, or no messages.
    """
    if isinstance(prompt, str):
        return [HumanMessage(str(checked_prompt(prompt)))]
    try:
        messages = [_as_message(given) for given in prompt]
    except (TypeError, ValueError, KeyError, NotImplementedError) as error:
        raise ConfigError("prompt", prompt, _REMEDY) from error
    if not messages:
        raise ConfigError("prompt", prompt, _REMEDY)
    return messages


def as_kernel(prompt: Sequence[BaseMessage | Mapping[str, object]]) -> tuple[Prompt, list[Message]]:
    """The question that a conversation ends in, and the conversation before it.

    Raises:
        ConfigError: it does not end in the words of a person, or holds what the kernel does not take.
    """
    *history, last = [_kernel_message(index, message) for index, message in enumerate(as_langchain(prompt))]
    if not isinstance(last, UserMessage):
        raise ConfigError("prompt", prompt, "end the conversation with a message of the user")
    return last.content, history


def is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether a value is an object with names for its parts."""
    return isinstance(value, Mapping)


def _as_message(given: Any) -> BaseMessage:
    """A message of its own; one that `model_dump` wrote is read back as it was."""
    if isinstance(given, BaseMessage):
        return given.model_copy()
    if is_mapping(given):
        data = dict(given)
        is_dumped = "role" not in data
        [message] = (
            messages_from_dict([{"type": data["type"], "data": data}]) if is_dumped else convert_to_messages([data])
        )
    else:
        [message] = convert_to_messages([given])
    return message


def _kernel_message(index: int, message: BaseMessage) -> Message:
    match message:
        case HumanMessage():
            return UserMessage(content=_content(index, message))
        case AIMessage():
            return ModelTurn(
                text=str(message.text),
                tool_calls=read_calls(message, f"call_{index}"),
                thinking=read_thinking(as_json(message.content), as_json(message.additional_kwargs)),
                usage=read_usage(as_json(message.usage_metadata)),
            )
        case ToolMessage():
            return ToolReturn(
                call_id=message.tool_call_id,
                name=message.name or "",
                content=str(message.text),
                status="ok" if message.status == "success" else "error",
            )
        case _:
            remedy = "use messages of the user, the model and tools; what the system says is the agent's `instructions`"
            raise ConfigError(f"prompt[{index}]", message, remedy)


def _content(index: int, message: HumanMessage) -> str | tuple[Part, ...]:
    if isinstance(message.content, str):
        return message.content
    blocks: Iterable[object] = message.content
    return tuple(_part(index, as_json(block)) for block in blocks)


def _part(index: int, block: JsonValue) -> Part:
    """A standard content block as a part of a prompt."""
    url, encoded = at(block, "url"), at(block, "base64")
    data = base64.b64decode(encoded) if isinstance(encoded, str) else None
    source = url if isinstance(url, str) else None
    text = block if isinstance(block, str) else at(block, "text")
    match at(block, "type"):
        case "text" | None if isinstance(text, str):
            return TextPart(text=text)
        case "image" if (source is None) != (data is None):
            return ImagePart(url=source, data=data, media_type=_media_type(block, "image/png"))
        case "file" if (source is None) != (data is None):
            name = str(at(block, "extras", "filename") or "file")
            media_type = _media_type(block, "application/octet-stream")
            return FilePart(name=name, url=source, data=data, media_type=media_type)
        case _:
            remedy = "use content blocks of the types text, image and file, with a url or base64"
            raise ConfigError(f"prompt[{index}].content", block, remedy)


def _media_type(block: JsonValue, default: str) -> str:
    return str(at(block, "mime_type") or default)
