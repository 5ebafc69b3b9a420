"""Tool calls for models that cannot be relied on to make them: asked for as one JSON answer under a schema.

::

    model = SchemaTools(OpenAIModel("qwen2.5-coder-1.5b", base_url="http://127.0.0.1:8080/v1", temperature=0))

The endpoint must hold answers to a JSON schema, as llama.cpp, vLLM, Ollama and most local servers do. One call is
made in a round; there are no parallel calls.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from endstop._messages import (
    JsonObject,
    JsonValue,
    Message,
    ModelTurn,
    ToolCall,
    ToolReturn,
    UserMessage,
    clean_text,
    parse_arguments,
)
from endstop.models._pieces import JsonText
from endstop.models.base import Delta

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from endstop._messages import ToolSpec
    from endstop.models.base import Model, ModelRequest, OnDelta

# -- the form ------------------------------------------------------------------------------------------
# What the model is told and shown. Nothing below this section knows the words.

TOOL, ARGUMENTS, ANSWER = "tool", "args", "answer"
"""The names of the fields: a call is `{TOOL: name, ARGUMENTS: {...}}`, an answer `{ANSWER: ...}`."""

STEP_TEXT = "Each turn you write one JSON object, either a tool call or the answer:"
ANSWER_LINE = "{answer} ends the work"
TOOL_LINE = "{call} {description}"
PARAMETER_LINE = "  {name}: {description}"
RESULT_TEXT = "Result of {name}:\n{content}"

_PLACEHOLDERS: dict[str, JsonValue] = {"string": "...", "integer": 0, "number": 0.0, "boolean": True, "array": []}


def instructions_with_tools(request: ModelRequest) -> str | None:
    """What the system message says: the instructions, and how tools are called, each by the call as it is written."""
    if not request.tools:
        return request.instructions
    lines = [STEP_TEXT]
    for tool in request.tools:
        call: JsonObject = {TOOL: tool.name, ARGUMENTS: example(tool.parameters)}
        lines.append(TOOL_LINE.format(call=json.dumps(call), description=tool.description))
        for name, schema in _properties(tool.parameters):
            if "description" in schema:
                lines.append(PARAMETER_LINE.format(name=name, description=schema["description"]))
    answer: JsonValue = "..." if request.output_schema is None else example(request.output_schema)
    lines.append(ANSWER_LINE.format(answer=json.dumps({ANSWER: answer})))
    return "\n".join([request.instructions, "", *lines] if request.instructions else lines)


def example(schema: JsonObject) -> JsonObject:
    """What an object of a schema looks like: each property with a value that stands for its type."""
    return {
        name: example(value) if "properties" in value else _PLACEHOLDERS.get(str(value.get("type")), "...")
        for name, value in _properties(schema)
    }


def _properties(schema: JsonObject) -> list[tuple[str, JsonObject]]:
    properties = schema.get("properties")
    named = properties.items() if isinstance(properties, dict) else ()
    return [(name, value) for name, value in named if isinstance(value, dict)]


def results_text(returns: Iterable[ToolReturn]) -> str:
    """What the user says after tools have run."""
    return "\n\n".join(RESULT_TEXT.format(name=each.name, content=each.content) for each in returns)


def step_schema(tools: Sequence[ToolSpec], output_schema: JsonObject | None) -> JsonObject:
    """The schema of one step: a call of any of the tools, or the answer."""
    definitions: JsonObject = {}
    options: list[JsonValue] = []
    for at, tool in enumerate(tools):
        parameters: JsonObject = tool.parameters or {"type": "object", "properties": {}}
        arguments = _moved(parameters, f"{ARGUMENTS}{at}", definitions)
        options.append(_closed({TOOL: {"const": tool.name}, ARGUMENTS: arguments}))
    answer: JsonObject = {"type": "string"}
    if output_schema is not None:
        answer = _moved(output_schema, ANSWER, definitions)
    options.append(_closed({ANSWER: answer}))
    schema: JsonObject = {"anyOf": options} if tools else _closed({ANSWER: answer})
    return {**schema, "$defs": definitions} if definitions else schema


_ANSWER_HEAD = re.compile(rf'\s*\{{\s*"{ANSWER}"\s*:\s*"')
_CALL_HEAD = re.compile(rf'\s*\{{\s*"{TOOL}"\s*:\s*"([^"\\]*)')

# -- the model -----------------------------------------------------------------------------------------


class SchemaTools:
    """A model that calls tools by answering in JSON, held to a schema, around one that need not know tools.

    Earlier calls and answers are shown to the model as the same JSON, tool returns as what the user says. The text
    of an answer is given as deltas while it is written; a call never is, and an answer under an output schema comes
    as one delta.

    A request without tools is passed on as it is where the history shows no calls. Elsewhere the answer is asked for in
    JSON too: a model that has seen itself call tools in JSON would write another call.
    """

    def __init__(self, inner: Model) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return f"SchemaTools({self._inner!r})"

    @property
    def name(self) -> str:
        """The name of the model inside."""
        return self._inner.name

    async def respond(self, request: ModelRequest, on_delta: OnDelta) -> ModelTurn:
        """Answer the request, once; errors are those of the model inside."""
        if not request.tools and not any(isinstance(each, ToolReturn) for each in request.messages):
            return await self._inner.respond(request, on_delta)
        structured = request.output_schema is not None
        asked = replace(
            request,
            messages=_shown(request.messages, structured=structured),
            instructions=instructions_with_tools(request),
            tools=(),
            output_schema=step_schema(() if request.final else request.tools, request.output_schema),
        )
        answer = _AnswerText()

        async def hear(delta: Delta) -> None:
            if delta.kind == "thinking":
                await on_delta(delta)
            elif not structured and (shown := answer.add(delta.text)):
                await on_delta(Delta(text=shown))

        turn = await self._inner.respond(asked, hear)
        if answer.value is None and not structured:
            # Either this is no answer in text, or the model inside gives no deltas.
            answer = _AnswerText()
            if shown := answer.add(turn.text):
                await on_delta(Delta(text=shown))
        if answer.value is not None:
            return replace(turn, text=str(answer.value))
        turn = _read(turn, structured=structured, call_id=f"call_{len(request.messages)}")
        if turn.text:
            await on_delta(Delta(text=turn.text))
        return turn


class _AnswerText:
    """The text of `{"answer": "..."}` while it is written; `value` is `None` until it is seen to be that."""

    def __init__(self) -> None:
        self._head = ""
        self.value: JsonText | None = None

    def add(self, piece: str) -> str:
        """What the piece adds to the text."""
        if self.value is None:
            self._head += piece
            head = _ANSWER_HEAD.match(self._head)
            if head is None:
                return ""
            self.value, piece = JsonText(), self._head[head.end() :]
        return self.value.add(piece)


def _read(turn: ModelTurn, *, structured: bool, call_id: str) -> ModelTurn:
    """The turn that a step stands for. What is no step is text: the endpoint does not hold the model to the schema."""
    step, broken = parse_arguments(turn.text)
    if ANSWER in step:
        answer = step[ANSWER]
        text = answer if isinstance(answer, str) and not structured else json.dumps(answer, ensure_ascii=False)
        return replace(turn, text=text)
    cut = _CALL_HEAD.match(turn.text) if broken is not None else None
    name, arguments = (cut[1] if cut else step.get(TOOL)), step.get(ARGUMENTS, {})
    if not isinstance(name, str):
        return turn
    if not isinstance(arguments, dict) or broken is not None:
        call = ToolCall(call_id=call_id, name=name, arguments={}, invalid_arguments=clean_text(turn.text))
    else:
        call = ToolCall(call_id=call_id, name=name, arguments=arguments)
    reason = "tool_calls" if turn.finish_reason == "stop" else turn.finish_reason
    return replace(turn, text="", tool_calls=(call,), finish_reason=reason)


def _shown(messages: Sequence[Message], *, structured: bool) -> list[Message]:
    """The history as the model is to see it: its own turns as steps, and tool returns as what the user says."""
    shown: list[Message] = []
    for returned, group in groupby(messages, key=lambda message: isinstance(message, ToolReturn)):
        if returned:
            returns = [message for message in group if isinstance(message, ToolReturn)]
            shown.append(UserMessage(content=results_text(returns), source="kernel"))
        else:
            shown += [_as_step(each, structured=structured) if isinstance(each, ModelTurn) else each for each in group]
    return shown


def _as_step(turn: ModelTurn, *, structured: bool) -> ModelTurn:
    steps: list[JsonObject] = [{TOOL: call.name, ARGUMENTS: call.arguments} for call in turn.tool_calls]
    if not steps:
        value, broken = parse_arguments(turn.text) if structured else ({}, turn.text)
        steps = [{ANSWER: value if broken is None else turn.text}]
    text = "\n".join(json.dumps(step, ensure_ascii=False) for step in steps)
    return replace(turn, text=text, tool_calls=())


# -- schemas -------------------------------------------------------------------------------------------


def _closed(properties: JsonObject) -> JsonObject:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _moved(schema: JsonObject, name: str, definitions: JsonObject) -> JsonObject:
    """The schema as a part of another one.

    References are paths from the root, so a schema that has any moves to the root's definitions, under a
    name, and its own definitions beside it.
    """
    if '"$ref"' not in json.dumps(schema):
        return schema
    rest = {key: value for key, value in schema.items() if key not in _DEFINITIONS}
    definitions[name] = _renamed(rest, name)
    for key in _DEFINITIONS:
        own = schema.get(key)
        for inner, definition in own.items() if isinstance(own, dict) else ():
            definitions[f"{name}_{inner}"] = _renamed(definition, name)
    return {"$ref": f"#/$defs/{name}"}


_DEFINITIONS = ("$defs", "definitions")


def _renamed(value: JsonValue, name: str) -> JsonValue:
    if isinstance(value, list):
        return [_renamed(item, name) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _new_path(inner, name) if key == "$ref" and isinstance(inner, str) else _renamed(inner, name)
        for key, inner in value.items()
    }


def _new_path(path: str, name: str) -> str:
    for key in _DEFINITIONS:
        if path.startswith(f"#/{key}/"):
            return f"#/$defs/{name}_{path.removeprefix(f'#/{key}/')}"
    return f"#/$defs/{name}{path.removeprefix('#')}" if path.startswith("#") else path
