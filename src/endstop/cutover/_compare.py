"""What differs between two turns that should be the same: a recorded one and the one that replays it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from endstop._messages import JsonObject, JsonValue
from endstop.cutover._plain import REDACTED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from endstop.cutover.tape import RecordedCall, RecordedTurn, Request

Code: TypeAlias = Literal[
    "model_requests_more",
    "model_requests_fewer",
    "model_messages",
    "model_tools",
    "model_settings",
    "tool_calls",
    "output_messages",
    "output_structured",
    "interrupts",
    "error_class",
    "error_text",
]
"""What can differ. docs/replay.md says what each means."""

CODES: tuple[Code, ...] = get_args(Code)
"""Every code of a difference."""

CALL_SETTINGS = frozenset({"tool_choice", "response_format", "stop", "parallel_tool_calls", "strict"})
"""Settings of a request that an agent chooses; every other one may be the model's own."""

_GENERATED_ID = re.compile(
    r"(?:lc_run-?-?|run-?-?)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?:-\d+)?", re.ASCII
)
_ANY_TOOL = ("any", "required", True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference: `where` it is in the turn, and what is there on either side (`None`: nothing)."""

    code: Code
    where: str
    recorded: JsonValue
    replayed: JsonValue


def compare(recorded: RecordedTurn, replayed: RecordedTurn) -> tuple[Difference, ...]:
    """What the replayed turn did otherwise than the recorded one, in the order of the turn.

    Equal are: what was redacted and anything; ids that were generated, where they stand in the same places; the calls
    of one round in any order. A setting that only the recorded request has counts where an agent chooses it
    (`CALL_SETTINGS`); tools are compared by name, description and parameters, whatever the provider's form.
    """
    return (*_model(recorded, replayed), *_calls(recorded, replayed), *_end(recorded, replayed))


def same(recorded: JsonValue, replayed: JsonValue) -> bool:
    """Whether two values are equal but for what was redacted, and for ids that were generated."""
    if recorded == replayed or REDACTED in (recorded, replayed):
        return True
    if isinstance(recorded, str) and isinstance(replayed, str):
        return _same_text(recorded, replayed)
    if isinstance(recorded, list) and isinstance(replayed, list):
        return len(recorded) == len(replayed) and all(map(same, recorded, replayed))
    if isinstance(recorded, dict) and isinstance(replayed, dict):
        return recorded.keys() == replayed.keys() and all(same(recorded[key], replayed[key]) for key in recorded)
    return False


def _same_text(recorded: str, replayed: str) -> bool:
    if _GENERATED_ID.sub("<id>", recorded) == _GENERATED_ID.sub("<id>", replayed):
        return True
    if REDACTED not in recorded + replayed:
        return False
    try:
        return same(json.loads(recorded), json.loads(replayed))
    except ValueError:
        return False


def _model(recorded: RecordedTurn, replayed: RecordedTurn) -> Iterator[Difference]:
    for number, (ours, theirs) in enumerate(zip_longest(recorded.requests, replayed.requests), start=1):
        where = f"request {number}"
        if ours is None:
            yield Difference(code="model_requests_more", where=where, recorded=None, replayed=list(theirs.messages))
        elif theirs is None:
            yield Difference(code="model_requests_fewer", where=where, recorded=list(ours.messages), replayed=None)
        else:
            yield from _messages("model_messages", f"{where}, message", ours.messages, theirs.messages)
            yield from _entries("model_tools", f"{where}, tool", _tools(ours), _tools(theirs))
            yield from _entries("model_settings", f"{where}, setting", *_settings(ours, theirs))


def _calls(recorded: RecordedTurn, replayed: RecordedTurn) -> Iterator[Difference]:
    for number in sorted({call.round for call in (*recorded.calls, *replayed.calls)}):
        left = [_call(call) for call in replayed.calls if call.round == number]
        where = f"round {number}"
        for call in (_call(call) for call in recorded.calls if call.round == number):
            match = next((other for other in left if same(call, other)), None)
            if match is None:
                yield Difference(code="tool_calls", where=where, recorded=call, replayed=None)
            else:
                left.remove(match)
        for call in left:
            yield Difference(code="tool_calls", where=where, recorded=None, replayed=call)


def _end(recorded: RecordedTurn, replayed: RecordedTurn) -> Iterator[Difference]:
    yield from _messages("output_messages", "message", recorded.messages, replayed.messages)
    if not same(recorded.structured, replayed.structured):
        yield Difference(
            code="output_structured", where="end", recorded=recorded.structured, replayed=replayed.structured
        )
    asked, answered = list[JsonValue](recorded.interrupts), list[JsonValue](replayed.interrupts)
    if not same(asked, answered):
        yield Difference(code="interrupts", where="end", recorded=asked, replayed=answered)
    ours, theirs = recorded.error, replayed.error
    name, other_name = (error.name if error else None for error in (ours, theirs))
    text, other_text = (error.text if error else None for error in (ours, theirs))
    if name != other_name:
        yield Difference(code="error_class", where="end", recorded=name, replayed=other_name)
    if not same(text, other_text):
        yield Difference(code="error_text", where="end", recorded=text, replayed=other_text)


def _messages(
    code: Code, where: str, recorded: Sequence[JsonObject], replayed: Sequence[JsonObject]
) -> Iterator[Difference]:
    for number, (ours, theirs) in enumerate(zip_longest(recorded, replayed), start=1):
        if not same(ours, theirs):
            yield Difference(code=code, where=f"{where} {number}", recorded=ours, replayed=theirs)


def _entries(
    code: Code, where: str, recorded: Mapping[str, JsonValue], replayed: Mapping[str, JsonValue]
) -> Iterator[Difference]:
    for name in (*recorded, *(name for name in replayed if name not in recorded)):
        ours, theirs = recorded.get(name), replayed.get(name)
        if not same(ours, theirs):
            yield Difference(code=code, where=f"{where} {name}", recorded=ours, replayed=theirs)


def _call(call: RecordedCall) -> JsonObject:
    return {"name": call.name, "args": call.args, "id": call.call_id}


def _tools(request: Request) -> JsonObject:
    """Name -> description and parameters, of the forms in which providers take tools."""
    tools: JsonObject = {}
    for tool in request.tools:
        inner = tool.get("function")
        told = inner if isinstance(inner, dict) else tool
        parameters = told.get("parameters", told.get("input_schema"))
        form: JsonObject = {"description": told.get("description"), "parameters": _untitled(parameters)}
        tools[str(told.get("name", told.get("type")))] = form
    return tools


def _untitled(schema: JsonValue) -> JsonValue:
    """A schema without the titles that only some forms keep; a parameter may be named so and stays."""
    if not isinstance(schema, dict):
        return schema
    return {key: _untitled(value) for key, value in schema.items() if key != "title" or isinstance(value, dict)}


def _settings(recorded: Request, replayed: Request) -> tuple[JsonObject, JsonObject]:
    ours, theirs = _chosen(recorded.settings), _chosen(replayed.settings)
    return {name: value for name, value in ours.items() if name in CALL_SETTINGS or name in theirs}, theirs


def _chosen(settings: JsonObject) -> JsonObject:
    """Settings that have a value, the choice of a tool in one form."""
    chosen: JsonObject = {}
    for name, value in settings.items():
        if value is not None and not name.startswith("_"):
            chosen[name] = value
    if "tool_choice" in chosen:
        chosen["tool_choice"] = _choice(chosen["tool_choice"])
    return chosen


def _choice(choice: JsonValue) -> JsonValue:
    if isinstance(choice, dict):
        inner = choice.get("function")
        return _choice(inner.get("name") if isinstance(inner, dict) else choice.get("name", choice.get("type")))
    return "any" if choice in _ANY_TOOL else choice
