"""The chat-completions form of requests: what `OpenAIModel` writes."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, TypeVar

from endstop._messages import (
    FilePart,
    ImagePart,
    JsonObject,
    JsonValue,
    Message,
    ModelTurn,
    Part,
    TextPart,
    ToolCall,
    ToolReturn,
    ToolSpec,
    UserMessage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from endstop.models.base import ModelRequest

T = TypeVar("T")

NATIVE = "chat_completions"
"""The key in `ModelTurn.native` under which the provider's own fields of an assistant message are kept."""

CAP_FIELDS = ("max_tokens", "max_completion_tokens")
"""The two names of the cap on the answer: most servers know the first, OpenAI's reasoning models only the second."""

_STRICT_KEYWORDS = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const", "$ref", "$defs"}
    | {"title", "description", "pattern", "format", "multipleOf", "minItems", "maxItems"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
)
_STRICT_FORMATS = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"})

_ENTRY_BYTES = 200
"""What an entry of the cache costs beside its bytes, about."""


# -- JSON ----------------------------------------------------------------------------------------------


def _null(name: str) -> None:
    """`NaN` and the infinities are no JSON; some servers send them in fields that we only pass on."""


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(parse_constant=_null)


def parse_json(text: str | bytes) -> JsonValue:
    """The value of a JSON text; `NaN` and the infinities are read as `None`.

    Raises:
        ValueError: it is no JSON text, or is nested too deeply to be read.
    """
    try:
        value: JsonValue = _DECODER.decode(text if isinstance(text, str) else text.decode("utf-8-sig", "replace"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


def to_json(value: JsonValue) -> bytes:
    """The shortest JSON text of a value, in UTF-8. What JSON cannot say (infinities, lone surrogates) is replaced."""
    try:
        text = _ENCODER.encode(value)
    except ValueError:
        text = _ENCODER.encode(parse_json(json.dumps(value)))
    return text.encode("utf-8", "replace")


class WireCache:
    """Encoded bytes by the identity of the object that they encode.

    Messages are compared by value and may hold dictionaries, so identity is the only cheap key. Each entry
    keeps its object alive, so that an id never comes to mean another object. Two generations bound the
    memory: when the young one is full it becomes the old one, and what was in the old one and not asked
    for since is forgotten. At most twice `max_bytes` are held.
    """

    def __init__(self, max_bytes: int = 16 * 1024 * 1024) -> None:
        self.max_bytes = max_bytes
        self._size = 0
        self._young: dict[int, tuple[object, bytes]] = {}
        self._old: dict[int, tuple[object, bytes]] = {}

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())

    def get_all(self, items: Iterable[T], encode: Callable[[T], bytes]) -> list[bytes]:
        """The bytes of each item."""
        known, get = self._young.get, self.get
        return [entry[1] if (entry := known(id(item))) else get(item, encode) for item in items]

    def get(self, item: T, encode: Callable[[T], bytes]) -> bytes:
        """The bytes of an item, encoded only where they are not at hand."""
        key = id(item)
        entry = self._young.get(key)
        if entry is None:
            entry = self._old.get(key) or (item, encode(item))
            self._young[key] = entry
            self._size += len(entry[1]) + _ENTRY_BYTES
            if self._size > self.max_bytes:
                self._old, self._young, self._size = self._young, {}, 0
        return entry[1]


# -- requests ------------------------------------------------------------------------------------------


class RequestEncoder:
    """Writes request bodies. `fields` are sent with each; `cap_field` names the cap on the answer.

    A cap that stands in `fields` is a ceiling: a request that asks for less gets less.
    """

    def __init__(self, model: str, fields: JsonObject, *, cap_field: str) -> None:
        self._model = model
        self._cap_field = next((name for name in reversed(CAP_FIELDS) if name in fields), cap_field)
        ceiling = fields.get(self._cap_field)
        self._ceiling = ceiling if isinstance(ceiling, int) else None
        constant = {name: value for name, value in fields.items() if name not in CAP_FIELDS}
        self._head = to_json({"model": model, **constant})[:-1] + b',"messages":['
        self._cache = WireCache()

    def encode(self, request: ModelRequest) -> bytes:
        """The request's body. Objects that were encoded for an earlier request are not encoded again."""
        get = self._cache.get
        messages = self._cache.get_all(request.messages, self._message)
        if request.instructions:
            messages.insert(0, get(request.instructions, _encode_instructions))
        parts = [self._head, b",".join(messages), b"]"]
        if request.tools:
            parts += [b',"tools":[', b",".join(self._cache.get_all(request.tools, _encode_tool)), b"]"]
            if request.final:
                parts.append(b',"tool_choice":"none"')
        if request.output_schema is not None:
            parts.append(get(request.output_schema, _encode_output_schema))
        caps = [cap for cap in (request.max_output_tokens, self._ceiling) if cap is not None]
        if caps:
            parts.append(b',"%s":%d' % (self._cap_field.encode(), min(caps)))
        parts.append(b"}")
        return b"".join(parts)

    def _message(self, message: Message) -> bytes:
        if isinstance(message, ToolReturn):
            return to_json({"role": "tool", "tool_call_id": message.call_id, "content": message.content})
        if isinstance(message, UserMessage):
            content = message.content if isinstance(message.content, str) else [_part(part) for part in message.content]
            return to_json({"role": "user", "content": content})
        return to_json(_assistant_message(message, _native_of(message, self._model)))


def _encode_instructions(text: str) -> bytes:
    return to_json({"role": "system", "content": text})


def _encode_tool(spec: ToolSpec) -> bytes:
    parameters: JsonObject = spec.parameters or {"type": "object", "properties": {}}
    function: JsonObject = {"name": spec.name, "description": spec.description, "parameters": parameters}
    return to_json({"type": "function", "function": function})


def _encode_output_schema(schema: JsonObject) -> bytes:
    strict = strict_schema(schema)
    wire: JsonObject = {"name": "answer", "schema": schema if strict is None else strict, "strict": strict is not None}
    return b',"response_format":' + to_json({"type": "json_schema", "json_schema": wire})


def _part(part: Part) -> JsonValue:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, ImagePart):
        return {"type": "image_url", "image_url": {"url": _url(part)}}
    return {"type": "file", "file": {"filename": part.name, "file_data": _url(part)}}


def _url(part: ImagePart | FilePart) -> str:
    if part.data is None:
        return part.url or ""
    return f"data:{part.media_type};base64,{base64.b64encode(part.data).decode('ascii')}"


def _native_of(turn: ModelTurn, model: str) -> JsonObject:
    """The provider's own fields of a turn, where it is this model that wrote it: others may refuse them."""
    native = (turn.native or {}).get(NATIVE)
    return native if isinstance(native, dict) and turn.model == model else {}


def _assistant_message(turn: ModelTurn, native: JsonObject) -> JsonObject:
    wire: JsonObject = {"role": "assistant", "content": turn.text or (None if turn.tool_calls else "")}
    extras, thinking_field = native.get("message"), native.get("thinking_field")
    if isinstance(extras, dict):
        wire = {**extras, **wire}
    if isinstance(thinking_field, str) and turn.thinking:
        wire[thinking_field] = turn.thinking
    if turn.tool_calls:
        wire["tool_calls"] = _wire_calls(turn.tool_calls, native.get("tool_calls"))
    return wire


def _wire_calls(calls: Sequence[ToolCall], extras: JsonValue) -> list[JsonValue]:
    """The calls as the provider wrote them; `extras` are its own fields of each, in the same order."""
    wires: list[JsonValue] = []
    known = extras if isinstance(extras, list) and len(extras) == len(calls) else [None] * len(calls)
    for call, extra in zip(calls, known, strict=True):
        function: JsonObject = {"name": call.name, "arguments": to_json(call.arguments).decode("utf-8")}
        wire: JsonObject = {"id": call.call_id, "type": "function", "function": function}
        wires.append({**extra, **wire} if isinstance(extra, dict) else wire)
    return wires


# -- strict schemas ------------------------------------------------------------------------------------


class _NotStrict(Exception):
    """The schema says something that strict mode cannot."""


def strict_schema(schema: JsonObject) -> JsonObject | None:
    """The schema as OpenAI's strict mode takes it, or `None` where it cannot be said there.

    Strict mode wants closed objects whose properties are all required, and knows part of JSON Schema only.
    Objects that do not say whether they are open are closed. A schema with optional properties, with open
    objects or with other keywords is not bent into shape: the model would have to invent values, or could
    not give those that the schema allows.
    """
    if schema.get("type") != "object":
        return None
    try:
        return _strict(schema)
    except _NotStrict:
        return None


def _strict(schema: JsonValue) -> JsonObject:
    if not isinstance(schema, dict) or not schema.keys() <= _STRICT_KEYWORDS:
        raise _NotStrict
    if "$ref" in schema and len(schema) > 1:
        raise _NotStrict
    if not schema.keys() & {"type", "anyOf", "$ref", "enum", "const"}:
        raise _NotStrict
    if schema.get("format", "uuid") not in _STRICT_FORMATS:
        raise _NotStrict
    closed = dict(schema)
    if schema.get("type") == "object" or "properties" in schema:
        closed |= _strict_object(schema)
    if schema.get("type") == "array" or "items" in schema:
        closed["items"] = _strict(schema.get("items"))
    options, definitions = schema.get("anyOf"), schema.get("$defs")
    if isinstance(options, list):
        closed["anyOf"] = [_strict(option) for option in options]
    if isinstance(definitions, dict):
        closed["$defs"] = {name: _strict(definition) for name, definition in definitions.items()}
    return closed


def _strict_object(schema: JsonObject) -> JsonObject:
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise _NotStrict
    if schema.get("additionalProperties", False) is not False or any(name not in required for name in properties):
        raise _NotStrict
    return {"properties": {name: _strict(value) for name, value in properties.items()}, "additionalProperties": False}
