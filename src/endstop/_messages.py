"""The messages of a conversation: what the user, the model and the tools said.

A history is a sequence of `UserMessage`, `ModelTurn` and `ToolReturn`. It is valid when every call
of a `ModelTurn` is answered by a `ToolReturn` before anything else is said; the kernel never leaves
one that is not. Instructions are no message: they belong to the agent, not to the conversation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeGuard, cast

from typing_extensions import TypeAliasType

from endstop._errors import ConfigError

if TYPE_CHECKING:
    JsonValue: TypeAlias = bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"] | None
else:
    # Type checkers want a plain alias; what reads the hint at run time needs one that may name itself.
    JsonValue = TypeAliasType("JsonValue", "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None")
JsonObject: TypeAlias = dict[str, JsonValue]
"""A JSON object."""

FinishReason: TypeAlias = Literal["stop", "tool_calls", "length", "refusal", "content_filter", "other"]

MAX_ARGUMENT_DEPTH = 100
"""The deepest nesting of a tool call's arguments; a stored state, which holds them, is read to about 200 levels."""

# How pydantic reads and writes the bytes of a part where a state is stored as JSON.
_BASE64 = {"val_json_bytes": "base64", "ser_json_bytes": "base64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """Text inside a prompt of several parts."""

    text: str
    kind: Literal["text"] = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePart:
    """An image inside a prompt: either `url` (https or data URL) or `data` with its `media_type`."""

    url: str | None = None
    data: bytes | None = None
    media_type: str = "image/png"
    kind: Literal["image"] = "image"
    __pydantic_config__ = _BASE64

    def __post_init__(self) -> None:
        _check_one_source("ImagePart", self.url, self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """A file inside a prompt: either `url` or `data`, with its `media_type` and a `name` to show."""

    name: str
    url: str | None = None
    data: bytes | None = None
    media_type: str = "application/octet-stream"
    kind: Literal["file"] = "file"
    __pydantic_config__ = _BASE64

    def __post_init__(self) -> None:
        _check_one_source("FilePart", self.url, self.data)


Part: TypeAlias = TextPart | ImagePart | FilePart
"""One part of a prompt that is more than text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage:
    """What the model is asked. `source` tells a person's words from a notice that the kernel added."""

    content: str | tuple[Part, ...]
    source: Literal["user", "kernel"] = "user"
    kind: Literal["user"] = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One tool execution that the model asks for.

    `arguments` is the parsed JSON object. Where the model sent something else, `arguments` is empty
    and `invalid_arguments` is the text as it came: it is shown back to the model in the tool's
    return and never replayed as arguments, because providers refuse a history with broken JSON.
    """

    call_id: str
    name: str
    arguments: JsonObject
    invalid_arguments: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one request as the provider reports them; `measured` is false where they were estimated."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    measured: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTurn:
    """One answer of the model: its text, the tool calls it asks for, and how it ended.

    `usage` is `None` where the provider reported none. `thinking` is reasoning text that the
    provider exposes. `native` is the provider's own form of what has no field here, kept so that
    replaying the turn to the same provider is exact. `extraction_ops` are the operations that stood in
    extraction envelopes, which are not in `text` any more, and `extraction_seen` says that there was one.
    """

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    thinking: str = ""
    finish_reason: FinishReason = "stop"
    usage: Usage | None = None
    model: str = ""
    native: JsonObject | None = None
    extraction_ops: tuple[JsonObject, ...] = ()
    extraction_seen: bool = False
    kind: Literal["model"] = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReturn:
    """The answer to one tool call.

    `status` is `ok`, `error` (bad arguments, an unknown tool, an exception: the text says which) or
    `not_run` (a limit or a cancellation kept the tool from running, or from finishing).
    """

    call_id: str
    name: str
    content: str
    status: Literal["ok", "error", "not_run"] = "ok"
    kind: Literal["tool"] = "tool"


Message: TypeAlias = UserMessage | ModelTurn | ToolReturn
"""One entry of a conversation."""

Prompt: TypeAlias = str | Sequence[Part]
"""What a run is asked: text, or parts (text, images, files)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as a model is told of it: `parameters` is the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: JsonObject = field(default_factory=dict[str, JsonValue])


def pending_calls(messages: Sequence[Message]) -> tuple[ToolCall, ...]:
    """The calls of the newest model turn that no tool return has answered yet, in the order asked."""
    answered: set[str] = set()
    for message in reversed(messages):
        if isinstance(message, ToolReturn):
            answered.add(message.call_id)
        elif isinstance(message, ModelTurn):
            calls = message.tool_calls
            return tuple([call for call in calls if call.call_id not in answered]) if answered else calls
        else:
            break
    return ()


def checked_prompt(prompt: object) -> str | tuple[Part, ...]:
    """The prompt as a message holds it; callers are not all type-checked, so nothing is taken for granted.

    Raises:
        ConfigError: it is empty, or neither text nor a list or tuple of parts.
    """
    if isinstance(prompt, str):
        if not prompt.strip():
            raise ConfigError("prompt", prompt, "say what the agent is to do")
        return clean_text(prompt)
    given = tuple(prompt) if _is_sequence(prompt) else ()
    parts = tuple(part for part in given if isinstance(part, TextPart | ImagePart | FilePart))
    if not parts or len(parts) < len(given):
        raise ConfigError("prompt", given or str(prompt), "use text, or a list of TextPart, ImagePart and FilePart")
    return tuple(_clean_part(part) for part in parts)


def repaired_history(messages: Iterable[Message]) -> list[Message]:
    """The history with every call answered, as providers demand.

    A call that no return answers before something else is said is answered as not run; a return that
    answers no call is left out. A valid history comes back as it was.
    """
    repaired: list[Message] = []
    open_calls: dict[str, ToolCall] = {}
    for index, message in enumerate(messages):
        if not isinstance(cast("object", message), UserMessage | ModelTurn | ToolReturn):  # not all is type-checked
            raise ConfigError(f"history[{index}]", message, "use UserMessage, ModelTurn and ToolReturn")
        if isinstance(message, ToolReturn):
            if open_calls.pop(message.call_id, None) is not None:
                repaired.append(message)
            continue
        repaired += _not_run(open_calls.values())
        open_calls = {call.call_id: call for call in message.tool_calls} if isinstance(message, ModelTurn) else {}
        repaired.append(message)
    return [*repaired, *_not_run(open_calls.values())]


def parse_arguments(text: str) -> tuple[JsonObject, str | None]:
    """The arguments of a tool call from their JSON text: (object, None), or ({}, the text) where it is no JSON object.

    Empty text is a call without arguments. `NaN` and the infinities are not JSON and are refused, and so are numbers
    that are too large for a float, and nesting deeper than `MAX_ARGUMENT_DEPTH`.
    """
    text = clean_text(text)
    if not text.strip():
        return {}, None
    try:
        value: JsonValue = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError):
        return {}, text
    if not _is_object(value):
        return {}, text
    if text.count("[") + text.count("{") > MAX_ARGUMENT_DEPTH and _is_deeper(value, MAX_ARGUMENT_DEPTH):
        return {}, text
    if "\\u" in text:
        # An escape can still bring a lone surrogate, which no provider and no file takes back.
        value = json.loads(clean_text(json.dumps(value, ensure_ascii=False)))
        assert _is_object(value)
    return value, None


def id_part(call_id: str) -> str:
    """A call id as part of an id that is made of several, so that no two of these can be the same."""
    return call_id.replace("%", "%25").replace("/", "%2F").replace(":", "%3A")


def clean_text(text: str) -> str:
    """The text with lone surrogates replaced, so that it can be encoded as UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def text_of(content: str | Iterable[Part]) -> str:
    """The text of a prompt; images and files are named in brackets."""
    if isinstance(content, str):
        return content
    return "\n".join(part.text if isinstance(part, TextPart) else f"[{part.kind}]" for part in content)


def _not_run(calls: Iterable[ToolCall]) -> list[ToolReturn]:
    text = "Not run: the conversation was broken off before."
    return [ToolReturn(call_id=call.call_id, name=call.name, content=text, status="not_run") for call in calls]


def _is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, list | tuple)


def _is_object(value: JsonValue) -> TypeGuard[JsonObject]:
    return isinstance(value, Mapping)


def _is_deeper(value: JsonValue, levels: int) -> bool:
    """Whether a value is nested more than so many levels deep."""
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(each, levels - 1) for each in inner)


def _refuse_constant(name: str) -> JsonValue:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large")
    return number


def _clean_part(part: Part) -> Part:
    if isinstance(part, TextPart):
        return replace(part, text=clean_text(part.text))
    return replace(part, name=clean_text(part.name)) if isinstance(part, FilePart) else part


def _check_one_source(kind: str, url: str | None, data: bytes | None) -> None:
    if (url is None) == (data is None):
        raise ValueError(f"{kind} takes either url= or data=, got {'neither' if url is None else 'both'}")
