"""Pauses: how a tool asks a person, how the answer comes back, and what is checked about it.

What runs and what does not is a contract:

- A pause ends the leg of the run, with `stop_reason="paused"`. The other calls of the same batch have
  run and are answered; the call that waits is not answered yet, and nothing else was asked of the model.
- `agent.resume(result_or_state, answers={pause_id: answer})` goes on, in this or another process. The
  answers of one batch may come together or one by one; what still waits pauses the run again.
- A call that waited for approval has not run at all. Approved, it runs then, once.
- A tool that raised `Interrupt` is called again from its beginning, with the answers given so far in
  `ToolContext.answers`; what it did before it raised, it does again. It is not paid again.
- An answer is checked against the pause's schema before anything runs. An id that is unknown to this
  run, already answered, or expired is refused by name, and the state is as it was.
- A question whose schema no answer could be checked against is not asked: the model reads why. Nothing
  is ever fetched for a schema.
- A limit that ends the run, and a cancellation, give up what waits: the calls are answered as not run,
  and their ids take no answer any more.
- A pause of a delegated run pauses the runs above it, and is answered at the top.
- A pause that nobody answered in time is given up when the run goes on: its call is answered as not run.
- Waiting is not working time. `deadline` counts it.
"""

from __future__ import annotations

import json
import reprlib
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import unquote

from endstop._errors import ResumeError
from endstop._messages import MAX_ARGUMENT_DEPTH, JsonObject, JsonValue, ToolCall, id_part, parse_arguments

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from endstop._errors import Interrupt
    from endstop._state import RunState

PauseKind: TypeAlias = Literal["ask_user", "approval", "interrupt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """One thing that a run waits for a person to say.

    `question` is for the person. `call` is the tool call that asks (for an `approval`, that is to be
    approved) and `path` the agents that lead to it; `call_id` is the call of this run that waits, which
    is another where a delegated child asks. An answer is JSON that fits `answer_schema` (`None`: any
    JSON), given before `expires_at`.
    """

    pause_id: str
    kind: PauseKind
    question: str
    call: ToolCall
    call_id: str
    path: tuple[str, ...]
    answer_schema: JsonObject | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A person's answer to an `approval`: run the call, run it with other arguments, or do not run it.

    `message` is the reason of a `reject`, and with `respond` the tool's return in its place.
    """

    type: Literal["approve", "edit", "reject", "respond"]
    arguments: JsonObject | None = None
    message: str = ""

    def to_answer(self) -> JsonObject:
        """The decision as JSON, as `answers=` takes it."""
        answer: JsonObject = {"type": self.type}
        if self.arguments is not None:
            answer["arguments"] = self.arguments
        if self.message or self.type == "respond":
            answer["message"] = self.message
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What people have said about one call so far: the decision on it, and the answers to its interrupts in order.

    `started` says that its execution was paid, `paused` how often it has waited.
    """

    decision: JsonObject | None = None
    answers: tuple[JsonValue, ...] = ()
    started: bool = False
    paused: int = 0


def approval_pause(call: ToolCall, *, run_id: str, path: tuple[str, ...], parameters: JsonObject) -> Pause:
    """The pause of a call that must be approved before it runs."""
    return Pause(
        pause_id=f"{run_id}:{id_part(call.call_id)}:approval",
        kind="approval",
        question=f"May {call.name} be called?",
        call=call,
        call_id=call.call_id,
        path=path,
        answer_schema=_decision_schema(parameters),
    )


def interrupt_pause(
    call: ToolCall, interrupt: Interrupt, *, run_id: str, path: tuple[str, ...], number: int, now: datetime
) -> Pause:
    """The pause of a tool that raised `Interrupt`; `number` counts those of this call."""
    return Pause(
        pause_id=f"{run_id}:{id_part(call.call_id)}:{number}",
        kind="ask_user" if interrupt.asks_user else "interrupt",
        question=interrupt.question,
        call=call,
        call_id=call.call_id,
        path=path,
        answer_schema=interrupt.schema,
        expires_at=_expiry(now, interrupt.expires_in_seconds),
    )


def answer_pauses(state: RunState, answers: Mapping[str, object], now: datetime) -> None:
    """Note the answers in the state, its paused children included. All are checked before any is noted.

    Raises:
        ResumeError: an id is foreign, used or expired, or an answer does not fit its schema.
    """
    waiting = {pause.pause_id: pause for pause in state.pauses}
    plain = {pause_id: _plain(pause_id, answer) for pause_id, answer in answers.items()}
    for pause_id, answer in plain.items():
        pause = waiting.get(pause_id)
        if pause is None:
            raise ResumeError(_why_not(pause_id, state))
        if pause.expires_at is not None and now > pause.expires_at:
            raise ResumeError(f"the pause {pause_id!r} expired at {pause.expires_at.isoformat()}; it takes no answer")
        problem = schema_problem(pause.answer_schema, answer)
        if problem is not None:
            what = f"the answer {reprlib.repr(answer)} to the pause {pause_id!r} does not fit its schema: {problem}"
            raise ResumeError(f"{what}; use a Decision" if pause.kind == "approval" else what)
    _note(state, plain)


def expire_pauses(state: RunState, now: datetime) -> None:
    """Give up what nobody answered in time, here and below: its calls are answered as not run when the run goes on."""
    late = [pause for pause in state.pauses if pause.expires_at is not None and now > pause.expires_at]
    state.closed_pauses += [pause.pause_id for pause in late]
    below = {pause.call_id for pause in late if pause.call_id in state.children}
    for call_id in below:
        expire_pauses(state.children[call_id], now)
    for pause in late:
        if pause.call_id not in below:
            reply = state.replies.get(pause.call_id, Reply())
            state.replies[pause.call_id] = replace(reply, decision={"type": "expired"})
    state.pauses = [pause for pause in state.pauses if pause not in late and pause.call_id not in below]


def close_pauses(state: RunState) -> None:
    """Nothing is waited for any more, here and below: no answer is taken for what is open now."""
    for call_id in [*state.children]:
        close_call(state, call_id)
    state.closed_pauses += [pause.pause_id for pause in state.pauses if pause.pause_id not in state.closed_pauses]
    state.pauses.clear()


def close_call(state: RunState, call_id: str) -> None:
    """The call is answered, or given up: what a run below it still waits for takes no answer any more."""
    state.replies.pop(call_id, None)
    child = state.children.pop(call_id, None)
    if child is not None:
        close_pauses(child)
        state.closed_pauses += [pause_id for pause_id in child.closed_pauses if pause_id not in state.closed_pauses]


def schema_problem(schema: JsonObject | None, value: JsonValue) -> str | None:
    """Why the value does not fit the JSON schema; `None` where it does."""
    if schema is None:
        return None
    import jsonschema

    stray = _stray_reference(schema)
    if stray is not None:
        return f"the schema itself is wrong: {stray}"
    try:
        jsonschema.validate(value, schema, cls=jsonschema.Draft202012Validator)
    except jsonschema.ValidationError as error:
        return error.message
    except jsonschema.SchemaError as error:
        return f"the schema itself is wrong: {error.message}"
    except RecursionError:
        return _ENDLESS
    return None


def bad_schema(schema: JsonObject | None) -> str | None:
    """Why this is no JSON schema that an answer can be checked against; `None` where it is one."""
    if schema is None:
        return None
    import jsonschema

    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        return error.message
    return _stray_reference(schema) or (_ENDLESS if schema_problem(schema, None) == _ENDLESS else None)


def _note(state: RunState, answers: Mapping[str, JsonValue]) -> None:
    """Note checked answers. A child that got one goes on, so that its pauses are its own until it pauses again."""
    answered = [pause for pause in state.pauses if pause.pause_id in answers]
    state.closed_pauses += [pause.pause_id for pause in answered]
    below: dict[str, dict[str, JsonValue]] = {}
    for pause in answered:
        answer = answers[pause.pause_id]
        reply = state.replies.get(pause.call_id, Reply())
        if pause.call_id in state.children:
            below.setdefault(pause.call_id, {})[pause.pause_id] = answer
        elif pause.kind == "approval" and isinstance(answer, dict):
            state.replies[pause.call_id] = replace(reply, decision=answer)
        else:
            state.replies[pause.call_id] = replace(reply, answers=(*reply.answers, answer))
    for call_id, given in below.items():
        _note(state.children[call_id], given)
    state.pauses = [pause for pause in state.pauses if pause not in answered and pause.call_id not in below]


def _plain(pause_id: str, answer: object) -> JsonValue:
    """The answer as JSON data that a state can hold; callers are not all type-checked."""
    given = answer.to_answer() if isinstance(answer, Decision) else answer
    remedy = f"numbers must be finite, and nesting at most {MAX_ARGUMENT_DEPTH} deep"
    try:
        document, invalid = parse_arguments(json.dumps({"answer": given}))
    except (TypeError, ValueError, RecursionError) as error:
        invalid, document, remedy = "", {}, str(error)
    if invalid is not None:
        what = f"the answer {reprlib.repr(given)} to the pause {pause_id!r}"
        raise ResumeError(f"{what} is neither JSON nor a Decision: {remedy}")
    return document["answer"]


def _expiry(now: datetime, seconds: float | None) -> datetime | None:
    """When an answer is no longer taken; a time that no calendar has never comes."""
    try:
        return None if seconds is None else now + timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        return None


def _why_not(pause_id: str, state: RunState) -> str:
    open_ids = ", ".join(repr(pause.pause_id) for pause in state.pauses) or "none"
    if pause_id in state.closed_pauses:
        return f"the pause {pause_id!r} is used: it was answered or given up before; open are: {open_ids}"
    return f"the pause {pause_id!r} is not one of this run; open are: {open_ids}"


def _decision_schema(parameters: JsonObject) -> JsonObject:
    """What may be answered to an approval; `edit` must bring arguments that fit the tool.

    Parameters that are no sound schema bind nobody here; the tool itself checks what it is given.
    """
    sound = bad_schema(parameters) is None
    message: JsonObject = {"type": "string"}
    forms: list[JsonValue] = [
        _form("approve", {}, []),
        _form("edit", {"arguments": {"$ref": _ARGUMENTS}}, ["arguments"]),
        _form("reject", {"message": message}, []),
        _form("respond", {"message": message}, ["message"]),
    ]
    return {"anyOf": forms, "$defs": {"arguments": _moved(parameters) if sound else {"type": "object"}}}


def _form(type_: str, properties: JsonObject, required: list[JsonValue]) -> JsonObject:
    return {
        "type": "object",
        "properties": {"type": {"const": type_}, **properties},
        "required": ["type", *required],
        "additionalProperties": False,
    }


_ARGUMENTS = "#/$defs/arguments"
_ENDLESS = "the schema itself is wrong: it refers to itself without end"
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def _stray_reference(schema: JsonObject) -> str | None:
    """What is wrong with a reference that leads to no schema inside this one: nothing is ever fetched for it."""
    for reference in _references({**schema, "$id": None}):
        if not _leads_to_a_schema(schema, reference):
            return f"the reference {reference!r} leads to no schema inside it"
    return None


def _references(value: JsonValue) -> Iterator[str]:
    """Every reference in a schema. An `$id` is one: it would change where the references beside it begin."""
    if isinstance(value, list):
        for item in value:
            yield from _references(item)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, str) and (key in _REFERENCES or key == "$id"):
                yield inner
            else:
                yield from _references(inner)


def _leads_to_a_schema(schema: JsonObject, reference: str) -> bool:
    place: JsonValue = schema if reference == "#" or reference.startswith("#/") else None
    for part in unquote(reference).split("/")[1:]:
        inside = {str(at): item for at, item in enumerate(place)} if isinstance(place, list) else place
        place = inside.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(inside, dict) else None
    return isinstance(place, dict | bool)


def _moved(parameters: JsonObject) -> JsonObject:
    """The schema as it stands at `_ARGUMENTS`: its references follow it there."""

    def move(value: JsonValue) -> JsonValue:
        if isinstance(value, list):
            return [move(item) for item in value]
        if not isinstance(value, dict):
            return value
        return {
            key: _ARGUMENTS + inner[1:] if key in _REFERENCES and isinstance(inner, str) else move(inner)
            for key, inner in value.items()
        }

    return {key: move(inner) for key, inner in parameters.items() if key not in ("$id", "$schema")}
