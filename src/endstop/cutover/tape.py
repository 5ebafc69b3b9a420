"""The tape: what a turn of an agent asked of the model and of its tools, what it was told, and how it ended.

A tape is a JSONL file. Its first line says the version of the format; each other line is one event of one turn, written
when it happens, so that a tape of a process that was killed holds everything up to then. Turns that ran at once are
interleaved on it and read apart again.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeGuard

from langchain_core.messages import BaseMessage, messages_from_dict

from endstop._errors import EndstopError, UsageError
from endstop._messages import JsonObject, JsonValue
from endstop.cutover._plain import DEFAULT_REDACTED_KEYS, REDACTED

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence


__all__ = [
    "DEFAULT_REDACTED_KEYS",
    "REDACTED",
    "TAPE_VERSION",
    "RecordedCall",
    "RecordedError",
    "RecordedTurn",
    "Request",
    "Tape",
    "TapeError",
    "TapeExhausted",
    "TapeFile",
    "messages_of",
    "read_tape",
    "turns",
    "turns_of",
]

TAPE_VERSION = 1
"""The version of the format that is written, and the only one that is read."""

_EVENT_START = b'{"event": '
_HEADER_START = b'{"tape": '


class TapeError(UsageError):
    """A file is no tape, or one of a version that is not read here; `line` is the number of the offending line."""

    code: ClassVar[str] = "tape"

    def __init__(self, path: str | os.PathLike[str], line: int, problem: str, remedy: str) -> None:
        self.path = Path(path)
        self.line = line
        super().__init__(f"{path}, line {line}: {problem}; {remedy}")


class TapeExhausted(EndstopError):
    """A replayed turn asked for an answer or a result that its tape does not hold; `asked_for` says which."""

    code: ClassVar[str] = "tape_exhausted"

    def __init__(self, asked_for: str) -> None:
        self.asked_for = asked_for
        super().__init__(f"the tape holds no {asked_for}: the replayed turn went another way than the recorded one")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedError:
    """An error: the full name of its class, and its text."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request to the model, and the answer or the error that came of it (neither: the turn was cut off).

    Messages are objects that `messages_of` makes messages of. `tools` are as the model was given them, `settings`
    everything else that it was called with.
    """

    messages: tuple[JsonObject, ...]
    tools: tuple[JsonObject, ...] = ()
    settings: JsonObject = field(default_factory=dict[str, JsonValue])
    answer: JsonObject | None = None
    error: RecordedError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One execution of a tool, after the request number `round` (from 1).

    What the tool returned is a `message`, or else the value `result`. There is neither with an `error`, and where the
    turn was cut off; only then is `finished` false. `interrupts` are what it asked a person.
    """

    name: str
    args: JsonValue
    call_id: str | None = None
    round: int
    result: JsonValue = None
    message: JsonObject | None = None
    error: RecordedError | None = None
    interrupts: tuple[JsonObject, ...] = ()
    finished: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTurn:
    """One turn of one agent, in the order in which things happened.

    `parent` is the run id of the turn in which this one ran: that of an agent which called this one in a tool or a
    node. `input` is what the agent was given, its messages as objects; `state` are the messages that its first node was
    handed (`None` where it was not handed the state), `messages` those of its final state, and
    `structured` the structured response. `recursion_limit` is known from the first request on.
    `problems` say what could not be written; such a turn, and one without an end, is `incomplete`.
    """

    run_id: str
    parent: str | None = None
    thread_id: str | None = None
    surface: str = ""
    tags: tuple[str, ...] = ()
    metadata_keys: tuple[str, ...] = ()
    versions: JsonObject = field(default_factory=dict[str, JsonValue])
    recursion_limit: int | None = None
    input: JsonValue = None
    state: tuple[JsonObject, ...] | None = None
    requests: tuple[Request, ...] = ()
    calls: tuple[RecordedCall, ...] = ()
    messages: tuple[JsonObject, ...] = ()
    structured: JsonValue = None
    interrupts: tuple[JsonObject, ...] = ()
    error: RecordedError | None = None
    ended: bool = False
    problems: tuple[str, ...] = ()

    @property
    def incomplete(self) -> bool:
        """Whether something of this turn is not on the tape."""
        return not self.ended or bool(self.problems)

    @property
    def start(self) -> tuple[JsonObject, ...]:
        """The messages that stood in the state when the turn began: the history of the thread and the input.

        Where the first node was not handed the state they are those that precede the first answer in the final state
        or, where there is none, those of the first request without a leading system message.
        """
        if self.state is not None:
            return self.state
        answers = [request.answer for request in self.requests if request.answer]
        position = next((i for i, message in enumerate(self.messages) if answers and _same(message, answers[0])), None)
        if position is not None:
            return self.messages[:position]
        sent = self.requests[0].messages if self.requests else ()
        return sent[1:] if sent and sent[0]["type"] == "system" else sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Tape:
    """A whole tape: the turns that are all there, those that are not, and what is wrong with lines of the file."""

    turns: tuple[RecordedTurn, ...]
    incomplete: tuple[RecordedTurn, ...]
    problems: tuple[str, ...]


class TapeFile:
    """Appends events to a tape, whole lines at a time, from any thread.

    A file that exists is gone on with. Raises `OSError` where the file cannot be opened or written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = Path(path).open("ab", buffering=0)  # noqa: SIM115 - `close` closes it
        self._lock = threading.Lock()
        # What stands before may end within a line, and is left as it is: its rest would be part of ours.
        self._is_torn = self._file.tell() > 0
        self.write({"tape": TAPE_VERSION})

    def write(self, event: JsonObject) -> None:
        """Append one event; after a write that failed half-way the next event begins on a line of its own."""
        line = json.dumps(event).encode() + b"\n"
        with self._lock:
            data = b"\n" + line if self._is_torn else line
            self._is_torn = True
            if self._file.write(data) < len(data):
                raise OSError(f"{self._file.name}: only a part of an event could be written")
            self._is_torn = False

    def close(self) -> None:
        """Close the file; writing to it is then a `ValueError`."""
        self._file.close()


def read_tape(path: str | os.PathLike[str]) -> Tape:
    """Everything on a tape. Raises `TapeError` where the file is no tape of this version."""
    problems: list[str] = []
    read = tuple(turns_of(_events(path, problems)))
    return Tape(
        turns=tuple(turn for turn in read if not turn.incomplete),
        incomplete=tuple(turn for turn in read if turn.incomplete),
        problems=tuple(problems),
    )


def turns(path: str | os.PathLike[str]) -> Iterator[RecordedTurn]:
    """The turns of a tape, each when its end is read, so that only those which ran at once are held in memory.

    Turns without an end come last. Raises `TapeError` as `read_tape` does.
    """
    return turns_of(_events(path, []))


def turns_of(events: Iterable[JsonObject]) -> Iterator[RecordedTurn]:
    """The turns that events tell of, in the order in which they ended; those without an end come last."""
    open_turns: dict[str, list[JsonObject]] = {}
    for event in events:
        run_id = str(event["turn"])
        open_turns.setdefault(run_id, []).append(event)
        if event["event"] == "turn_ended":
            yield _turn(run_id, open_turns.pop(run_id))
    for run_id, left in open_turns.items():
        yield _turn(run_id, left)


def messages_of(messages: Sequence[JsonObject]) -> list[BaseMessage]:
    """The messages that were recorded, equal to those that were sent but for what was redacted."""
    return messages_from_dict(list(messages))


def _events(path: str | os.PathLike[str], problems: list[str]) -> Iterator[JsonObject]:
    with Path(path).open("rb") as file:
        header_seen = False
        for number, line in enumerate(file, start=1):
            event = _event(path, number, line, problems)
            if event is None:
                continue
            if "tape" in event:
                _check_version(path, number, event)
                header_seen = True
            elif not header_seen:
                raise TapeError(path, number, 'the first line is not {"tape": 1}', "give a file that `record` wrote")
            else:
                yield event


def _event(path: str | os.PathLike[str], number: int, line: bytes, problems: list[str]) -> JsonObject | None:
    """What a line says; `None` for an empty one, and for one that was cut off, which is a problem."""
    text = line.strip()
    if not text:
        return None
    try:
        event = json.loads(text)
    except ValueError:
        if any(text.startswith(start) or start.startswith(text) for start in (_EVENT_START, _HEADER_START)):
            problems.append(f"line {number} is cut off")
            return None
        event = None
    if _is_object(event) and ("tape" in event or ("event" in event and "turn" in event)):
        return event
    raise TapeError(path, number, "this is no event of a tape", "remove the line, or give a file that `record` wrote")


def _check_version(path: str | os.PathLike[str], number: int, header: JsonObject) -> None:
    if header["tape"] != TAPE_VERSION:
        problem = f"the tape has the version {header['tape']!r}, and only {TAPE_VERSION} is read here"
        raise TapeError(path, number, problem, "read it with the release that wrote it, or record it again")


def _turn(run_id: str, events: list[JsonObject]) -> RecordedTurn:
    """One turn of its events."""
    first, last = _of(events, "turn_started"), _of(events, "turn_ended")
    started, ended = (first or [{}])[0], (last or [{}])[0]
    requests = tuple(_request(event, events) for event in _of(events, "model_request"))
    return RecordedTurn(
        run_id=run_id,
        parent=_text(started.get("parent")),
        thread_id=_text(started.get("thread")),
        surface=_text(started.get("surface")) or "",
        tags=_texts(started.get("tags")),
        metadata_keys=_texts(started.get("metadata_keys")),
        versions=_object(started.get("versions")),
        recursion_limit=_limit(events),
        input=started.get("input"),
        state=_objects(started["state"]) if started.get("state") else None,
        requests=requests,
        calls=_calls(events),
        messages=_objects(ended.get("messages")),
        structured=ended.get("structured"),
        interrupts=_interrupts(events),
        error=_error(ended.get("error")),
        ended=bool(last),
        problems=_problems(events),
    )


def _request(asked: JsonObject, events: list[JsonObject]) -> Request:
    said = _answer_to(asked, "model_answer", events)
    failed = _answer_to(asked, "model_error", events)
    return Request(
        messages=_objects(asked.get("messages")),
        tools=_objects(asked.get("tools")),
        settings=_object(asked.get("settings")),
        answer=_object(said["message"]) if said else None,
        error=_error(failed["error"]) if failed else None,
    )


def _calls(events: list[JsonObject]) -> tuple[RecordedCall, ...]:
    calls: list[RecordedCall] = []
    rounds = 0
    for event in events:
        rounds += event["event"] == "model_request"
        if event["event"] == "tool_call":
            calls.append(_call(event, events, rounds))
    return tuple(calls)


def _call(asked: JsonObject, events: list[JsonObject], rounds: int) -> RecordedCall:
    returned = _answer_to(asked, "tool_result", events)
    failed = _answer_to(asked, "tool_error", events)
    message = returned.get("message") if returned else None
    call_id = _text(asked.get("id"))
    if call_id is None:
        call_id = _text(_object(_object(message).get("data")).get("tool_call_id"))
    return RecordedCall(
        name=str(asked.get("name")),
        args=asked.get("args"),
        call_id=call_id,
        round=rounds,
        result=returned.get("value") if returned else None,
        message=_object(message) or None,
        error=_error(failed["error"]) if failed else None,
        interrupts=_objects(failed.get("interrupts")) if failed else (),
        finished=returned is not None or failed is not None,
    )


def _limit(events: list[JsonObject]) -> int | None:
    limits = [event.get("recursion_limit") for event in _of(events, "model_request")]
    return next((limit for limit in limits if isinstance(limit, int)), None)


def _interrupts(events: list[JsonObject]) -> tuple[JsonObject, ...]:
    """Each interrupt once: a node in a node tells of it twice."""
    told = [one for event in _of(events, "interrupt") for one in _objects(event.get("interrupts"))]
    return tuple(one for i, one in enumerate(told) if one not in told[:i])


def _problems(events: list[JsonObject]) -> tuple[str, ...]:
    lost = [problem for event in events for problem in _texts(event.get("problems"))]
    if [event.get("n") for event in events] != list(range(len(events))):
        lost.append("events of this turn are missing")
    return tuple(lost)


def _of(events: list[JsonObject], kind: str) -> list[JsonObject]:
    return [event for event in events if event["event"] == kind]


def _answer_to(asked: JsonObject, kind: str, events: list[JsonObject]) -> JsonObject | None:
    return next((event for event in _of(events, kind) if event.get("run") == asked.get("run")), None)


def _same(message: JsonObject, answer: JsonObject) -> bool:
    """Whether a message of the state is this answer: agents may put a name on it."""
    ours, theirs = _object(message["data"]), _object(answer["data"])
    return ours.get("id") == theirs.get("id") and ours.get("content") == theirs.get("content")


def _error(value: JsonValue) -> RecordedError | None:
    return RecordedError(name=str(value["name"]), text=str(value["text"])) if _is_object(value) else None


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else None


def _texts(value: JsonValue) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _object(value: JsonValue) -> JsonObject:
    return value if _is_object(value) else {}


def _objects(value: JsonValue) -> tuple[JsonObject, ...]:
    return tuple(filter(_is_object, value)) if isinstance(value, list) else ()


def _is_object(value: JsonValue) -> TypeGuard[JsonObject]:
    return isinstance(value, dict)
