"""The one mutable record of a run, and its JSON form.

Everything that a run needs to go on, in this or another process, is in `RunState`; everything live
(model, tools, budget, streams) is elsewhere. The JSON form names its format and version, and loading
checks both.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

import pydantic
import pydantic_core

from endstop._errors import ConfigError, StateError
from endstop._limits import LimitHit, PlanLimits, Spent
from endstop._loops import LoopState
from endstop._messages import JsonObject, JsonValue, Message, ToolCall, clean_text
from endstop._pauses import Pause, Reply

if TYPE_CHECKING:
    from collections.abc import Sequence

StopReason: TypeAlias = Literal["completed", "tool_limit", "budget", "loop", "paused", "cancelled"]
"""Why a run ended. `tool_limit`: the model rounds were used up; `budget`: any other limit was."""

FORMAT_VERSION = 1
"""The version of the JSON form that this package writes, and the newest that it reads."""

T = TypeVar("T")

_AnyMessage = Annotated[Message, pydantic.Field(discriminator="kind")]


@dataclass(slots=True, kw_only=True)
class RunState:
    """All that is known of a run: what was said, what was spent, and why it must stop.

    `messages` is the whole history; the run's own part starts at `first_message`. `hit` is the limit
    that ends the run, `wrap_up` whether the reserved final answer was asked for and had, from the
    message `wrap_up_at` on. `recalled` says that the retrieval stage was run, `applied` up to which
    message extraction operations were applied. `pauses` is what people are asked and have not answered,
    `closed_pauses` the ids that take no answer any more, `replies` what was said by call id, and
    `children` the delegated runs that wait, by the id of the call that runs them. `loops` is what the
    loop detector remembers. `unrun` are the calls that the model asked for and that were not run since
    the limit was hit, `side_effects` the tools that were started and are not read-only, `note` what
    else there is to say of the ending, `partial_text` what the model had written of a turn that was cut
    off, and `shared_budget` that a budget above the run's own bounded it.
    """

    run_id: str
    agent: str
    limits: PlanLimits
    messages: list[_AnyMessage]
    first_message: int = 0
    round: int = 0
    seq: int = 0
    spent: Spent = field(default_factory=Spent)
    hit: LimitHit | None = None
    wrap_up: Literal["none", "asked", "answered"] = "none"
    wrap_up_at: int | None = None
    repairs: int = 0
    recalled: bool = False
    applied: int = 0
    pauses: list[Pause] = field(default_factory=list[Pause])
    replies: dict[str, Reply] = field(default_factory=dict[str, Reply])
    closed_pauses: list[str] = field(default_factory=list[str])
    loops: LoopState = field(default_factory=LoopState)
    children: dict[str, RunState] = field(default_factory=dict[str, "RunState"])
    unrun: list[ToolCall] = field(default_factory=list[ToolCall])
    side_effects: list[str] = field(default_factory=list[str])
    note: str = ""
    partial_text: str = ""
    shared_budget: bool = False
    stop_reason: StopReason | None = None

    def copy(self) -> RunState:
        """A record of its own with the same content: messages are frozen and shared, lists are not."""
        return replace(
            self,
            messages=list(self.messages),
            pauses=list(self.pauses),
            replies=dict(self.replies),
            closed_pauses=list(self.closed_pauses),
            children={call_id: child.copy() for call_id, child in self.children.items()},
            unrun=list(self.unrun),
            side_effects=list(self.side_effects),
        )

    def to_json(self) -> str:
        """The state as one JSON document; `from_json` reads it back as an equal state."""
        return to_json(self, "run-state")

    @classmethod
    def from_json(cls, document: str | bytes) -> RunState:
        """The state that `to_json` wrote.

        Raises:
            StateError: the document is no JSON, no run state, of a newer version, or a field is wrong.
        """
        return from_json(cls, "run-state", document)


def check_sound(state: RunState) -> None:
    """Check what the types do not say of a state: that it gives no budget back and its indexes are within its messages.

    Raises:
        StateError: a count is below 0 or no number, or an index is outside the messages.
    """
    spent = state.spent
    names = [entry.name for entry in fields(spent) if entry.name not in ("tools", "price_source")]
    counts = [*(getattr(spent, name) for name in names), *spent.tools.values()]
    if not all(count >= 0 and count < float("inf") for count in counts):
        raise StateError("endstop/run-state: the field 'spent' holds less than nothing, or no number", field="spent")
    ends = {"first_message": state.first_message, "wrap_up_at": state.wrap_up_at or 0, "applied": state.applied}
    for name, index in ends.items():
        if not 0 <= index <= len(state.messages):
            raise StateError(f"endstop/run-state: the field {name!r} is outside the messages ({index})", field=name)


def dump_messages(messages: Sequence[Message]) -> str:
    """A history as one JSON document; `load_messages` reads it back as an equal list."""
    return to_json(list(messages), "messages")


def load_messages(document: str | bytes) -> list[Message]:
    """The history that `dump_messages` wrote.

    Raises:
        StateError: the document is no JSON, no message list, of a newer version, or a field is wrong.
    """
    return from_json(list[_AnyMessage], "messages", document)


def to_json(value: object, format_name: str) -> str:
    """A value as a versioned document of the named format."""
    envelope = {"format": f"endstop/{format_name}", "version": FORMAT_VERSION, "value": value}
    return json_text(envelope, "constants")


def json_text(value: object, inf_nan_mode: Literal["constants", "strings"]) -> str:
    """A value as JSON; text in it that cannot be encoded is cleaned, because what was done must not be lost by it.

    Raises:
        ValueError: it is no data.
    """
    try:
        return pydantic_core.to_json(value, bytes_mode="base64", inf_nan_mode=inf_nan_mode).decode()
    except pydantic_core.PydanticSerializationError:
        # What is no data raises again here.
        data: JsonValue = pydantic_core.to_jsonable_python(value, bytes_mode="base64")
        cleaned: JsonValue = json.loads(clean_text(json.dumps(data, ensure_ascii=False)))
        return pydantic_core.to_json(cleaned, inf_nan_mode=inf_nan_mode).decode()


def from_json(type_: type[T], format_name: str, document: str | bytes) -> T:
    """The value in a versioned document.

    Raises:
        StateError: the document is not of this format, or of a newer version, or a field is wrong.
    """
    wanted = f"endstop/{format_name}"
    try:
        envelope = _adapter(JsonObject).validate_json(document)
    except pydantic.ValidationError as error:
        raise StateError(f"this is not {wanted}: it is no JSON object ({error.errors()[0]['msg']})") from error
    if envelope.get("format") != wanted:
        raise StateError(f"this is {envelope.get('format')!r}, not {wanted}: pass what to_json() wrote", field="format")
    version = envelope.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= FORMAT_VERSION:
        raise StateError(
            f"version={version!r} of {wanted} cannot be read; this package reads versions 1 to {FORMAT_VERSION}: "
            "use the endstop that wrote it, or a newer one",
            field="version",
        )
    return as_type(type_, envelope.get("value"), wanted)


def as_data(value: object) -> JsonValue:
    """A value of any type that pydantic can write as the JSON data that `as_type` reads back.

    Bytes are the text that they encode, as pydantic reads them where nothing else is said.
    """
    data: JsonValue = pydantic_core.to_jsonable_python(value)
    return data


def as_type(type_: type[T], value: JsonValue, wanted: str, *, at: tuple[str, ...] = ()) -> T:
    """JSON data, which stands `at` a place in a document of the wanted format, as a value of the type.

    Raises:
        StateError: it is not one; the error names the field.
    """
    try:
        return _adapter(type_).validate_json(pydantic_core.to_json(value))
    except pydantic.ValidationError as error:
        raise _field_error(wanted, error, at) from error
    except ConfigError as error:
        raise StateError(f"{wanted}: {error}", field=error.field) from error


def _adapter(type_: type[T]) -> pydantic.TypeAdapter[T]:
    made = _ADAPTERS.get(type_)
    if made is None:
        made = _ADAPTERS[type_] = pydantic.TypeAdapter(type_)
    return made


_ADAPTERS: dict[object, pydantic.TypeAdapter[Any]] = {}


def _field_error(wanted: str, error: pydantic.ValidationError, at: tuple[str, ...]) -> StateError:
    first = error.errors()[0]
    path = ".".join(str(part) for part in (*at, *first["loc"]))
    return StateError(
        f"{wanted}: the field {path or 'value'!r} is wrong ({first['msg']}); nothing was loaded", field=path
    )
