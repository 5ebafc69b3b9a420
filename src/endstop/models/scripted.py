"""Models for tests and demos, without a provider.

`ScriptedModel` answers from a script and records what it was asked; `RecordingModel` writes what
another model answers to a file, and `ReplayModel` answers from it.

::

    with ScriptedModel([turn(calls=[call("search", {"q": "endstops"})]), "They stop the axis."]) as model:
        result = await Agent(model, tools=[search]).run("What do endstops do?")
    assert model.requests[0].tools[0].name == "search"
"""

from __future__ import annotations

import copy
import functools
import json
import re
import threading
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self, TypeAlias

import anyio
import pydantic_core

from endstop._errors import ConfigError, ContextOverflow, ModelError, StateError, UsageError
from endstop._messages import (
    FinishReason,
    JsonObject,
    JsonValue,
    ModelTurn,
    ToolCall,
    ToolReturn,
    Usage,
    text_of,
)
from endstop._state import from_json, to_json
from endstop.models.base import Delta, Model, ModelRequest, OnDelta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

_AUTO_ID = "scripted_"
_RECORDING = "model-exchange"
_WORD = re.compile(r"\S+\s*|\s+")


class ScriptError(UsageError):
    """A script does not fit what was asked: a step is missing or left over, or another request was recorded."""

    code: ClassVar[str] = "script"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One answer of a `ScriptedModel`, in full.

    The answer is `turn`, or else is made of `text`, `tool_calls`, `thinking`, `usage` and
    `finish_reason` (left out: `"tool_calls"` or `"stop"`). `deltas` are the pieces in which it is
    streamed; without a `turn` and a `text` they are the text. With `error`, the pieces are given
    and then the error is raised. `latency_seconds` replaces the model's own; it passes before the
    first piece, and `delta_latency_seconds` after each piece.
    """

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    thinking: str = ""
    usage: Usage | None = None
    finish_reason: FinishReason | None = None
    turn: ModelTurn | None = None
    deltas: tuple[str | Delta, ...] = ()
    error: Exception | None = None
    latency_seconds: float | None = None
    delta_latency_seconds: float = 0.0

    def __post_init__(self) -> None:
        parts = (self.text, self.tool_calls, self.thinking, self.usage, self.finish_reason)
        if self.turn is not None and any(parts):
            raise ConfigError("turn", self.turn, "a Step takes either a turn or its parts (text, tool_calls, ...)")
        if self.deltas and self.error is None and self.answer().text != self._streamed("text"):
            raise ConfigError("deltas", self.deltas, f"joined they must be the text {self.answer().text!r}")

    def answer(self) -> ModelTurn:
        """The turn that this step answers with."""
        if self.turn is not None:
            return self.turn
        return turn(
            self.text or self._streamed("text"),
            calls=self.tool_calls,
            usage=self.usage,
            thinking=self.thinking or self._streamed("thinking"),
            finish_reason=self.finish_reason,
        )

    def _streamed(self, kind: str) -> str:
        return "".join(piece.text for piece in map(_delta, self.deltas) if piece.kind == kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forever:
    """Steps that come again and again, made by `forever`."""

    steps: tuple[ScriptStep, ...]


ScriptStep: TypeAlias = "str | ModelTurn | Step | Exception | Callable[[ModelRequest], ScriptStep]"
"""A step of a script: an answer's text, a turn, a `Step`, an error to raise, or a function from the request to one."""


def call(name: str, arguments: JsonObject | None = None, *, call_id: str | None = None) -> ToolCall:
    """A tool call for a script.

    Without a `call_id` it has one that depends on name and arguments alone. A `ScriptedModel` never
    gives out such an id twice: when it comes again, `-2`, `-3`, ... is added.
    """
    given = {} if arguments is None else arguments
    if call_id is None:
        digest = zlib.crc32(json.dumps(given, sort_keys=True).encode())
        call_id = f"{_AUTO_ID}{name}_{digest:08x}"
    return ToolCall(call_id=call_id, name=name, arguments=given)


def turn(
    text: str = "",
    *,
    calls: Sequence[ToolCall] = (),
    usage: Usage | tuple[int, int] | None = None,
    thinking: str = "",
    finish_reason: FinishReason | None = None,
) -> ModelTurn:
    """A model's turn for a script; `usage` may be `(input_tokens, output_tokens)`."""
    if isinstance(usage, tuple):
        usage = Usage(input_tokens=usage[0], output_tokens=usage[1])
    return ModelTurn(
        text=text,
        tool_calls=tuple(calls),
        thinking=thinking,
        finish_reason=finish_reason or ("tool_calls" if calls else "stop"),
        usage=usage,
    )


def forever(*steps: ScriptStep) -> Forever:
    """The last entry of a script whose model never stops: its steps come in turn, without end."""
    if not steps:
        raise ConfigError("steps", steps, "forever takes at least one step")
    return Forever(steps=steps)


class ScriptedModel:
    """A model that answers with the steps of a script, in order, and records what it was asked.

    `latency_seconds` passes before each answer; at 0 answering never suspends. With `stream` every
    text is given word by word to `on_delta`; a `Step` with `deltas` is streamed in any case.
    `requests` holds each request with the messages as they were; `record=False` keeps none, for
    benchmarks. Steps are taken atomically, so that tasks and threads may share one model. As a
    context manager it checks at the end that the script is complete.
    """

    def __init__(
        self,
        steps: Iterable[ScriptStep | Forever],
        *,
        name: str = "scripted",
        latency_seconds: float = 0.0,
        stream: bool = False,
        record: bool = True,
    ) -> None:
        self._steps, self._tail = _split(tuple(steps))
        self._name = name
        self._latency_seconds = latency_seconds
        self._stream = stream
        self._record = record
        self._lock = threading.Lock()
        self._taken = 0
        self._times_given: dict[str, int] = {}
        self.requests: list[ModelRequest] = []

    @property
    def name(self) -> str:
        """The name that results report and prices are looked up by."""
        return self._name

    @property
    def request_count(self) -> int:
        """How many requests there were, also where they are not recorded."""
        return self._taken

    def __repr__(self) -> str:
        total = f"{len(self._steps)} and forever {len(self._tail)}" if self._tail else f"{len(self._steps)}"
        return f"<{type(self).__name__} {self._name!r}: {self._taken} requests, steps: {total}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.assert_complete()

    def assert_complete(self) -> None:
        """Check that every step was taken (where it ends in `forever`: every step before that).

        Raises:
            ScriptError: steps are left over; the message shows the first of them.
        """
        left = self._steps[self._taken :]
        if left:
            raise ScriptError(
                f"{len(left)} of the {len(self._steps)} steps of {self._name!r} were never asked for; "
                f"the first of them is {left[0]!r}"
            )

    async def respond(self, request: ModelRequest, on_delta: OnDelta) -> ModelTurn:
        """Answer with the next step.

        Raises:
            ScriptError: no step is left. It is misuse, not a `ModelError`, so that nothing retries it.
        """
        step = self._take(request)
        while not isinstance(step, (str, ModelTurn, Step, Exception)):
            step = step(request)
        if isinstance(step, ModelTurn) and not self._stream and not self._latency_seconds:
            return self._with_unique_ids(step) if step.tool_calls else step
        if isinstance(step, str):
            step = Step(text=step)
        elif isinstance(step, ModelTurn):
            step = Step(turn=step)
        elif isinstance(step, Exception):
            step = Step(error=step)
        return await self._play(step, on_delta)

    async def _play(self, step: Step, on_delta: OnDelta) -> ModelTurn:
        answer = step.answer()
        latency_seconds = self._latency_seconds if step.latency_seconds is None else step.latency_seconds
        if latency_seconds > 0:
            await anyio.sleep(latency_seconds)
        for piece in step.deltas or (_words(answer) if self._stream else ()):
            await on_delta(_delta(piece))
            if step.delta_latency_seconds > 0:
                await anyio.sleep(step.delta_latency_seconds)
        if step.error is not None:
            raise _fresh(step.error)
        return self._with_unique_ids(answer)

    def _take(self, request: ModelRequest) -> ScriptStep:
        with self._lock:
            number = self._taken
            self._taken += 1
            if self._record:
                self.requests.append(_snapshot(request))
        if number < len(self._steps):
            return self._steps[number]
        if self._tail:
            return self._tail[(number - len(self._steps)) % len(self._tail)]
        raise ScriptError(
            f"{self._name!r} has {len(self._steps)} steps and was asked {number + 1} times; "
            f"the last message of this request is {_last_message(request)}"
        )

    def _with_unique_ids(self, answer: ModelTurn) -> ModelTurn:
        """The turn, with a number added to each id that `call` made up and that was given before."""
        with self._lock:
            calls = tuple(map(self._with_unique_id, answer.tool_calls))
        return answer if calls == answer.tool_calls else replace(answer, tool_calls=calls)

    def _with_unique_id(self, asked: ToolCall) -> ToolCall:
        if not asked.call_id.startswith(_AUTO_ID):
            return asked
        times = self._times_given[asked.call_id] = self._times_given.get(asked.call_id, 0) + 1
        return asked if times == 1 else replace(asked, call_id=f"{asked.call_id}-{times}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and its answer, as `RecordingModel` writes them.

    In a file, `request.messages` are only those after the first `kept` messages of the line before.
    `seconds` is how long the answer took in all, `first_delta_seconds` how long its first piece did.
    """

    request: ModelRequest
    turn: ModelTurn
    model: str
    deltas: tuple[Delta, ...] = ()
    first_delta_seconds: float = 0.0
    seconds: float = 0.0
    kept: int = 0


class RecordingModel:
    """A model that answers as `inner` does and writes each exchange to the file at `path`, for `ReplayModel`.

    Each exchange is one line of JSON, written whole when its answer is there, so that a crash loses
    at most the line being written. An earlier file at `path` is replaced. Requests that fail are
    not recorded.
    """

    def __init__(self, inner: Model, path: str | Path) -> None:
        self._inner = inner
        self._path = Path(path)
        self._path.write_bytes(b"")
        self._lock = threading.Lock()
        self._last: ModelRequest = ModelRequest(messages=())

    @property
    def name(self) -> str:
        """The name of the recorded model."""
        return self._inner.name

    async def respond(self, request: ModelRequest, on_delta: OnDelta) -> ModelTurn:
        """Answer as the recorded model does."""
        asked = _snapshot(request)
        started = anyio.current_time()
        deltas: list[Delta] = []
        first_delta_seconds = 0.0

        async def keep(delta: Delta) -> None:
            nonlocal first_delta_seconds
            if not deltas:
                first_delta_seconds = anyio.current_time() - started
            deltas.append(delta)
            await on_delta(delta)

        answer = await self._inner.respond(request, keep)
        self._write(
            Exchange(
                request=asked,
                turn=answer,
                model=self.name,
                deltas=tuple(deltas),
                first_delta_seconds=round(first_delta_seconds, 3),
                seconds=round(anyio.current_time() - started, 3),
            )
        )
        return answer

    def _write(self, exchange: Exchange) -> None:
        with self._lock:
            messages = exchange.request.messages
            kept = _common_length(self._last.messages, messages)
            self._last = exchange.request
            line = replace(exchange, kept=kept, request=replace(exchange.request, messages=messages[kept:]))
            with self._path.open("ab", buffering=0) as file:
                file.write(f"{to_json(line, _RECORDING)}\n".encode())


class ReplayModel(ScriptedModel):
    """A model that answers as a recorded one did, in the recorded order.

    `recording` is the path of a file that `RecordingModel` wrote, or its exchanges. With `strict`,
    a request that is not the recorded one is refused. `pace` stretches the recorded times: 1 takes
    as long as the recorded model did, 0 answers at once.

    Raises:
        StateError: a line of the file is not a recorded exchange; the message names the line.
    """

    def __init__(
        self, recording: str | Path | Iterable[Exchange], *, strict: bool = True, pace: float = 0.0, record: bool = True
    ) -> None:
        exchanges = load_recording(recording) if isinstance(recording, (str, Path)) else list(recording)
        super().__init__(
            [functools.partial(_replay, number, each, strict, pace) for number, each in enumerate(exchanges, start=1)],
            name=exchanges[0].model if exchanges else "replay",
            record=record,
        )


def load_recording(path: str | Path) -> list[Exchange]:
    """The exchanges in a file that `RecordingModel` wrote, each with its whole history.

    A last line without its end was being written when the recorder was stopped; it is left out.

    Raises:
        StateError: a line is not a recorded exchange; the message names it.
    """
    exchanges: list[Exchange] = []
    *lines, _ = Path(path).read_text("utf-8").split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            read = from_json(Exchange, _RECORDING, line)
        except StateError as error:
            raise StateError(f"{Path(path).name}, line {number}: {error}", field=error.field) from error
        before = exchanges[-1].request.messages[: read.kept] if exchanges else ()
        whole = replace(read.request, messages=(*before, *read.request.messages))
        exchanges.append(replace(read, request=whole, kept=0))
    return exchanges


def _replay(number: int, exchange: Exchange, strict: bool, pace: float, request: ModelRequest) -> Step:
    if strict and (difference := _first_difference(_plain(exchange.request), _plain(request), "")):
        raise ScriptError(f"request {number} is not the recorded one: {difference}")
    first, pieces = exchange.first_delta_seconds, len(exchange.deltas)
    return Step(
        turn=exchange.turn,
        deltas=exchange.deltas,
        latency_seconds=pace * (first if pieces else exchange.seconds),
        delta_latency_seconds=pace * (exchange.seconds - first) / pieces if pieces else 0.0,
    )


def _plain(request: ModelRequest) -> JsonValue:
    plain: JsonValue = pydantic_core.to_jsonable_python(request, bytes_mode="base64")
    return plain


def _first_difference(recorded: JsonValue, asked: JsonValue, path: str) -> str:
    """Where two JSON values first differ, and how; empty where they are equal."""
    if recorded == asked:
        return ""
    inside: Iterable[tuple[str, JsonValue, JsonValue]] = ()
    if isinstance(recorded, dict) and isinstance(asked, dict) and recorded.keys() == asked.keys():
        inside = ((f"{path}.{key}" if path else key, old, asked[key]) for key, old in recorded.items())
    elif isinstance(recorded, list) and isinstance(asked, list):
        inside = ((f"{path}[{at}]", old, new) for at, (old, new) in enumerate(zip(recorded, asked, strict=False)))
    for where, old, new in inside:
        if difference := _first_difference(old, new, where):
            return difference
    if isinstance(recorded, list) and isinstance(asked, list):
        return f"{path} had {len(recorded)} entries and now has {len(asked)}"
    return f"{path} was {_cut(recorded)} and is now {_cut(asked)}"


def _common_length(before: Sequence[object], after: Sequence[object]) -> int:
    """How many messages two histories have in common at the start."""
    length = 0
    for old, new in zip(before, after, strict=False):
        if old is not new and old != new:
            break
        length += 1
    return length


def _split(steps: tuple[ScriptStep | Forever, ...]) -> tuple[tuple[ScriptStep, ...], tuple[ScriptStep, ...]]:
    """The steps that come once, and those that come forever after."""
    once: list[ScriptStep] = []
    for position, step in enumerate(steps):
        if not isinstance(step, Forever):
            once.append(step)
        elif position + 1 == len(steps):
            return tuple(once), step.steps
        else:
            raise ConfigError("steps", step, "nothing can come after forever(...)")
    return tuple(once), ()


def _snapshot(request: ModelRequest) -> ModelRequest:
    """The request with a list of messages that does not grow; O(1) where it is a tuple already."""
    return request if isinstance(request.messages, tuple) else replace(request, messages=tuple(request.messages))


def _delta(piece: str | Delta) -> Delta:
    return Delta(text=piece) if isinstance(piece, str) else piece


def _words(answer: ModelTurn) -> list[Delta]:
    """The turn in pieces: a word with the spaces after it."""
    thinking = [Delta(text=word, kind="thinking") for word in _WORD.findall(answer.thinking)]
    return thinking + [Delta(text=word) for word in _WORD.findall(answer.text)]


def _fresh(error: Exception) -> Exception:
    """A copy of a model error, because whoever catches it attaches a result to it; any other error as it is."""
    if type(error) not in (ModelError, ContextOverflow):
        return error.with_traceback(None)
    new = copy.copy(error)
    new.__cause__ = error.__cause__
    return new


def _last_message(request: ModelRequest) -> str:
    last = request.messages[-1] if request.messages else None
    if last is None:
        return "missing: it has none"
    if isinstance(last, ModelTurn):
        return f"the model's {_cut(last.text)}"
    if isinstance(last, ToolReturn):
        return f"the return of {last.name}: {_cut(last.content)}"
    return f"the user's {_cut(text_of(last.content))}"


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
