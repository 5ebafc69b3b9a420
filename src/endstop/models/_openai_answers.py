"""The chat-completions form of answers: what `OpenAIModel` reads, whole or in the chunks of a stream.

Only the fields that the kernel uses are given names here. Whatever else an assistant message holds
is kept in `ModelTurn.native`, and is sent back with the turn to the same model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from endstop._messages import JsonObject, JsonValue, ModelTurn, ToolCall, Usage, clean_text, parse_arguments
from endstop.models._openai_codec import NATIVE, to_json
from endstop.models._pieces import CleanText
from endstop.models.base import Delta

if TYPE_CHECKING:
    from endstop._messages import FinishReason

THINKING_FIELDS = ("reasoning_content", "reasoning")
"""Where servers put reasoning text: the first is DeepSeek's and llama.cpp's, the second OpenRouter's and Ollama's."""

_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}


@dataclass(slots=True)
class _Call:
    """A tool call while it is being written."""

    call_id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])
    extras: JsonObject = field(default_factory=dict[str, JsonValue])


class TurnDecoder:
    """Reads one turn out of the chunks of a stream, or out of a whole answer, which is a stream of one chunk."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._text = CleanText()
        self._thinking = CleanText()
        self._thinking_field: str | None = None
        self._refused = False
        self._calls: list[_Call] = []
        self._slots: dict[int, _Call] = {}
        self._extras: JsonObject = {}
        self._usage: Usage | None = None
        self._reason = ""
        self.complete = False
        """Whether the provider said that the turn is whole."""

    def feed(self, chunk: JsonObject) -> list[Delta]:
        """Takes one chunk; what it adds to the text and to the thinking is returned."""
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._usage = _read_usage(usage)
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return []
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self._reason, self.complete = reason, True
        message = choice.get("message")
        if isinstance(message, dict):
            self.complete = True
            return self._read_message(message, whole=True)
        delta = choice.get("delta")
        return self._read_message(delta, whole=False) if isinstance(delta, dict) else []

    def turn(self) -> ModelTurn:
        """The turn as far as it was fed."""
        cut = self._reason == "length"
        calls = tuple(_finish_call(call, cut=cut and call is self._calls[-1]) for call in self._calls)
        return ModelTurn(
            text=str(self._text),
            tool_calls=calls,
            thinking=str(self._thinking),
            finish_reason=self._finish_reason(),
            usage=self._usage,
            model=self._model,
            native=self._native(),
        )

    def _read_message(self, message: JsonObject, *, whole: bool) -> list[Delta]:
        text = thinking = ""
        for key, value in message.items():
            if not value or key == "role":
                continue
            if key == "content":
                text += self._text.add(_content_text(value))
            elif key == "refusal" and isinstance(value, str):
                self._refused = True
                text += self._text.add(value)
            elif key in THINKING_FIELDS and isinstance(value, str) and self._thinking_field in (None, key):
                self._thinking_field = key
                thinking += self._thinking.add(value)
            elif key == "tool_calls":
                self._read_calls(value, whole=whole)
            else:
                self._extras[key] = _merge(self._extras.get(key), value)
        deltas = [Delta(text=thinking, kind="thinking")] if thinking else []
        return [*deltas, Delta(text=text)] if text else deltas

    def _read_calls(self, entries: JsonValue, *, whole: bool) -> None:
        for position, entry in enumerate(entries if isinstance(entries, list) else ()):
            if isinstance(entry, dict):
                self._read_call(entry, position if whole else entry.get("index"))

    def _read_call(self, entry: JsonObject, index: JsonValue) -> None:
        function = entry.get("function")
        function = function if isinstance(function, dict) else {}
        call_id, name, arguments = entry.get("id"), function.get("name"), function.get("arguments")
        call_id, name = (call_id if isinstance(call_id, str) else ""), (name if isinstance(name, str) else "")
        call = self._slot(index if isinstance(index, int) else None, call_id, name)
        call.call_id = call.call_id or call_id
        if name != call.name:
            call.name += name
        if isinstance(arguments, str):
            call.arguments.append(arguments)
        elif arguments is not None:
            call.arguments.append(to_json(arguments).decode("utf-8"))
        for key, value in entry.items():
            if key not in {"index", "id", "type", "function"} and value:
                call.extras[key] = _merge(call.extras.get(key), value)

    def _slot(self, index: int | None, call_id: str, name: str) -> _Call:
        """The call that a piece belongs to.

        Some servers give every call the index 0, or none at all: a piece with a name and another id opens
        a new call then. A name alone does not, where there is an index, as some repeat it in each piece.
        """
        call = (self._calls[-1] if self._calls else None) if index is None else self._slots.get(index)
        opens = bool(name) and (index is None or (call is not None and call_id not in ("", call.call_id)))
        if call is None or opens:
            call = _Call()
            self._calls.append(call)
            if index is not None:
                self._slots[index] = call
        return call

    def _finish_reason(self) -> FinishReason:
        reason = _FINISH_REASONS.get(self._reason, "other" if self._reason else "stop")
        if reason in ("length", "content_filter"):
            return reason
        if self._calls:
            return "tool_calls"
        if self._refused:
            return "refusal"
        return "stop" if reason == "tool_calls" else reason

    def _native(self) -> JsonObject | None:
        native: JsonObject = {}
        if self._extras:
            native["message"] = self._extras
        if self._thinking_field is not None:
            native["thinking_field"] = self._thinking_field
        if any(call.extras for call in self._calls):
            native["tool_calls"] = [call.extras or None for call in self._calls]
        return {NATIVE: native} if native else None


def _finish_call(call: _Call, *, cut: bool) -> ToolCall:
    text = "".join(call.arguments)
    arguments, invalid = parse_arguments(text)
    if cut and not text.strip():
        invalid = ""  # Cut before its arguments began, which is not the same as a call without any.
    return ToolCall(
        call_id=clean_text(call.call_id), name=clean_text(call.name), arguments=arguments, invalid_arguments=invalid
    )


def _content_text(content: JsonValue) -> str:
    """The text of a content that is a string, or a list of parts."""
    if isinstance(content, str):
        return content
    texts = [part.get("text") for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return "".join(text for text in texts if isinstance(text, str))


def _read_usage(usage: JsonObject) -> Usage | None:
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else usage.get("prompt_cache_hit_tokens")
    asked, written = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    if not asked and not written:
        return None  # Every request has input, so zeros are a server's way to say that it did not count.
    return Usage(input_tokens=asked, output_tokens=written, cached_input_tokens=_count(cached))


def _count(value: JsonValue) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and 0 <= value <= _MOST_TOKENS else 0


_MOST_TOKENS = 10**12
"""More tokens than any request has: a larger number is no count."""


def _merge(old: JsonValue, new: JsonValue) -> JsonValue:
    """An unknown field that comes in pieces: texts and lists grow, objects grow by field, the rest is replaced."""
    if isinstance(old, str) and isinstance(new, str):
        return old + new
    if isinstance(old, dict) and isinstance(new, dict):
        fixed = {"id", "type", "index", "format"}
        return old | {key: value if key in fixed else _merge(old.get(key), value) for key, value in new.items()}
    if isinstance(old, list) and isinstance(new, list):
        return _merge_lists(old, new)
    return old if new is None else new


def _merge_lists(old: list[JsonValue], new: list[JsonValue]) -> list[JsonValue]:
    """Elements with an index that is already there are pieces of the element that has it."""
    merged = list(old)
    for value in new:
        index = value.get("index") if isinstance(value, dict) else None
        places = [at for at, known in enumerate(merged) if isinstance(known, dict) and known.get("index") == index]
        if index is not None and places:
            merged[places[0]] = _merge(merged[places[0]], value)
        else:
            merged.append(value)
    return merged
