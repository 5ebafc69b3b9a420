"""Scores of loop detectors on labelled trajectories, beside four rules that agents use today.

A file holds one trajectory a line: `id`, `source`, `outcome` (`success`, `fail`, `unknown`), `steps`, `label`.

- A step has `kind` (`tool_call`, `message`, `tool_result`), `node` (who acts), `name` and `args` of a call, `text`; a
  result's `of` is the index of its call.
- A label has `loop`; for a loop also `start`, the index of the step that opens the first repeat, and `kind`;
  `hard_negative` marks runs that look like a loop and are none.

How a trajectory becomes steps: calls of one node that follow each other directly are one parallel batch. A call without
a result is answered by what the node that it names says, up to the next call. Nodes with a remark in brackets, such as
`Orchestrator (thought)`, are thinking and skipped, and so are calls of a tool named `think`. Nodes `user` and `human`
are the user. Recorded runs don't say what a tool declares: it is taken as unknown where the result says so, and as
read-only where its name opens with a verb such as `get`.

How it is scored: a loop is found by an alarm at or after its `start`. An alarm on a trajectory without a loop is a
false alarm, and so is one before the `start`. The delay counts the actions after the one at `start`, up to the alarm:
the third of three equal calls has 2. Tool loops are those whose kind is neither `message` nor `semantic`; the latter
are requests in ever new words, which no exact comparison can find, and are counted apart.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import md5
from statistics import median
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias

from endstop._errors import UsageError
from endstop._loops import (
    Action,
    AgentMessage,
    LoopDetector,
    LoopPolicy,
    LoopState,
    Outcome,
    Step,
    ToolBatch,
    UserTurn,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RunOutcome: TypeAlias = Literal["success", "fail", "unknown"]
_OUTCOMES: Mapping[str, RunOutcome] = {"success": "success", "fail": "fail", "unknown": "unknown"}
_Json: TypeAlias = "bool | int | float | str | list[_Json] | dict[str, _Json] | None"


class LoopDataError(UsageError):
    """A line of a trajectory file that can't be read. Carries `path`, `line` (from 1), `field` and `value`."""

    code: ClassVar[str] = "loop_data"

    def __init__(self, path: Path, line: int, field: str, value: object, expected: str) -> None:
        self.path = path
        self.line = line
        self.field = field
        self.value = value
        shown = repr(value)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        super().__init__(f"{path}, line {line}: {field} is {shown}; it must be {expected}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What a reader said about a trajectory."""

    loop: bool
    start: int | None
    """Index of the recorded step that opens the first repeat. None without a loop, or where it is not known."""
    kind: str
    """The sort of loop, as the file names it; empty without a loop."""
    hard_negative: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """A recorded run as steps for a detector."""

    id: str
    source: str
    outcome: RunOutcome
    label: Label
    steps: tuple[Step, ...]
    indexes: tuple[int, ...]
    """For each of `steps` the index of the recorded step it opens with."""


class Detector(Protocol):
    """What is scored."""

    def alarms(self, steps: Sequence[Step]) -> Sequence[int]:
        """Indexes into `steps`, rising, of those after which it raises an alarm."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EndstopDetector:
    """The detector of this package. Every finding is an alarm."""

    policy: LoopPolicy = field(default_factory=LoopPolicy)

    def alarms(self, steps: Sequence[Step]) -> Sequence[int]:
        detector, state, alarms = LoopDetector(policy=self.policy), LoopState(), list[int]()
        for index, step in enumerate(steps):
            state, finding = detector.observe(state, step)
            if finding is not None:
                alarms.append(index)
        return alarms


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualCycle:
    """Alarms when the newest calls are one cycle `times` times over, of any period up to `max_period`.

    Calls are equal when `key` is. Messages and users are not looked at.
    """

    key: Callable[[Outcome], object]
    times: int
    max_period: int = 1

    def alarms(self, steps: Sequence[Step]) -> Sequence[int]:
        keys, alarms = list[object](), list[int]()
        for index, step in enumerate(steps):
            if isinstance(step, ToolBatch):
                keys += [self.key(outcome) for outcome in step.outcomes]
                if any(self._cycles(keys, period) for period in range(1, self.max_period + 1)):
                    alarms.append(index)
        return alarms

    def _cycles(self, keys: Sequence[object], period: int) -> bool:
        newest = keys[-period * self.times :]
        return len(newest) == period * self.times and newest[period:] == newest[:-period]


def _arguments(outcome: Outcome) -> str:
    arguments = outcome.action.arguments
    return arguments if isinstance(arguments, str) else json.dumps(arguments, sort_keys=True, ensure_ascii=False)


def _short_signature(outcome: Outcome) -> object:
    start = _arguments(outcome)[:80].encode("utf-8", "surrogatepass")
    return f"{outcome.action.name}:{md5(start, usedforsecurity=False).hexdigest()[:8]}"


def _call(outcome: Outcome) -> object:
    return outcome.action.name, _arguments(outcome)


def _call_and_result(outcome: Outcome) -> object:
    return outcome.action.name, _arguments(outcome), outcome.result


DETECTORS: Mapping[str, Detector] = {
    "last 3 signatures, cut at 80": EqualCycle(key=_short_signature, times=3),
    "3 equal calls": EqualCycle(key=_call, times=3),
    "cycle of 1-5, 5 times": EqualCycle(key=_call, times=5, max_period=5),
    "4 equal calls and results": EqualCycle(key=_call_and_result, times=4),
    "endstop": EndstopDetector(),
}
"""Four rules in use, and this package's detector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """`part` of `whole`."""

    part: int
    whole: int

    @property
    def value(self) -> float | None:
        """Between 0 and 1; None of nothing."""
        return self.part / self.whole if self.whole else None

    def __str__(self) -> str:
        return "-" if self.value is None else f"{self.value:.3f} ({self.part}/{self.whole})"


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorScore:
    """How one detector did; the docstring of the module says what counts."""

    name: str
    precision: Share
    recall: Share
    recall_on_tool_loops: Share
    false_alarms_on_successes: Share
    false_alarms_on_hard_negatives: Share
    median_delay_actions: float | None
    recall_by_kind: Mapping[str, Share]
    step_us: float
    """Microseconds of CPU a step on this machine, the best of three passes."""


def read_trajectories(path: Path) -> tuple[Trajectory, ...]:
    """Read a file of labelled trajectories; empty lines are skipped.

    Raises:
        LoopDataError: a line does not fit; it names the first one.
        OSError: the file can't be read.
    """
    with path.open(encoding="utf-8") as lines:
        return tuple(_trajectory(_Line(path, number, text)) for number, text in enumerate(lines, 1) if text.strip())


def score(name: str, detector: Detector, trajectories: Sequence[Trajectory]) -> DetectorScore:
    """Run one detector over all trajectories."""
    passes = list[float]()
    alarms = list[Sequence[int]]()
    for _ in range(3):
        began = time.thread_time()
        alarms = [detector.alarms(trajectory.steps) for trajectory in trajectories]
        passes.append(time.thread_time() - began)
    judged = [_judge(trajectory, raised) for trajectory, raised in zip(trajectories, alarms, strict=True)]
    loops = [one for one in judged if one.trajectory.label.loop]
    others = [one for one in judged if not one.trajectory.label.loop]
    found = sum(one.found for one in loops)
    kinds = sorted({one.trajectory.label.kind for one in loops})
    by_kind = {kind: _found([one for one in loops if one.trajectory.label.kind == kind]) for kind in kinds}
    delays = [one.delay_actions for one in loops if one.delay_actions is not None]
    return DetectorScore(
        name=name,
        precision=Share(part=found, whole=found + sum(one.false_alarm for one in judged)),
        recall=_found(loops),
        recall_on_tool_loops=_found([one for one in loops if one.trajectory.label.kind not in ("message", "semantic")]),
        false_alarms_on_successes=_false([one for one in others if one.trajectory.outcome == "success"]),
        false_alarms_on_hard_negatives=_false([one for one in others if one.trajectory.label.hard_negative]),
        median_delay_actions=median(delays) if delays else None,
        recall_by_kind=by_kind,
        step_us=min(passes) * 1e6 / max(1, sum(len(trajectory.steps) for trajectory in trajectories)),
    )


def score_file(path: Path, detectors: Mapping[str, Detector] = DETECTORS) -> tuple[DetectorScore, ...]:
    """The scores of `detectors` on a file, in their order.

    Raises:
        LoopDataError: a line does not fit; it names the first one.
        OSError: the file can't be read.
    """
    trajectories = read_trajectories(path)
    return tuple(score(name, detector, trajectories) for name, detector in detectors.items())


def render_table(scores: Sequence[DetectorScore]) -> tuple[str, ...]:
    """Lines of two Markdown tables: the scores (FA: false alarms), and the loops found by kind."""
    head = ["detector", "precision", "tool loops", "all loops", "FA successes", "FA hard negatives", "delay", "us/step"]
    rows = [
        [
            one.name,
            str(one.precision),
            str(one.recall_on_tool_loops),
            str(one.recall),
            str(one.false_alarms_on_successes),
            str(one.false_alarms_on_hard_negatives),
            "-" if one.median_delay_actions is None else f"{one.median_delay_actions:g}",
            f"{one.step_us:.1f}",
        ]
        for one in scores
    ]
    kinds = sorted({kind for one in scores for kind in one.recall_by_kind})
    by_kind = [
        [one.name, *(f"{share.part}/{share.whole}" for share in (one.recall_by_kind[kind] for kind in kinds))]
        for one in scores
    ]
    return (*_markdown(head, rows), "", *_markdown(["loops found", *kinds], by_kind))


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, ["-" * width for width in widths], *rows):
        yield f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))} |"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    trajectory: Trajectory
    found: bool
    false_alarm: bool
    delay_actions: int | None


def _judge(trajectory: Trajectory, alarms: Sequence[int]) -> _Judged:
    start = trajectory.label.start
    if start is None:
        loop, raised = trajectory.label.loop, bool(alarms)
        return _Judged(
            trajectory=trajectory, found=loop and raised, false_alarm=raised and not loop, delay_actions=None
        )
    early = any(trajectory.indexes[alarm] < start for alarm in alarms)
    hit = next((alarm for alarm in alarms if trajectory.indexes[alarm] >= start), None)
    delay = None if hit is None else _delay_actions(trajectory, start, hit)
    return _Judged(trajectory=trajectory, found=hit is not None, false_alarm=early, delay_actions=delay)


def _delay_actions(trajectory: Trajectory, start: int, hit: int) -> int:
    action = type(trajectory.steps[hit])
    until = zip(trajectory.indexes[: hit + 1], trajectory.steps, strict=False)
    return sum(isinstance(step, action) and index > start for index, step in until)


def _found(judged: Sequence[_Judged]) -> Share:
    return Share(part=sum(one.found for one in judged), whole=len(judged))


def _false(judged: Sequence[_Judged]) -> Share:
    return Share(part=sum(one.false_alarm for one in judged), whole=len(judged))


class _Line:
    """One line of a file, read field by field with errors that say where."""

    def __init__(self, path: Path, number: int, text: str) -> None:
        self._path = path
        self._number = number
        try:
            value: _Json = json.loads(text)
        except json.JSONDecodeError as error:
            raise self.error("the line", text.strip(), f"JSON ({error.msg} at column {error.colno})") from error
        self.record = self.object(value, "the line")

    def error(self, field: str, value: object, expected: str) -> LoopDataError:
        return LoopDataError(self._path, self._number, field, value, expected)

    def object(self, value: _Json, field: str) -> dict[str, _Json]:
        if isinstance(value, dict):
            return value
        raise self.error(field, value, "an object")

    def text(self, value: _Json, field: str) -> str:
        if isinstance(value, str):
            return value
        raise self.error(field, value, "text")

    def index(self, value: _Json, field: str) -> int | None:
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise self.error(field, value, "the index of a step, or null")

    def flag(self, value: _Json, field: str) -> bool:
        if isinstance(value, bool):
            return value
        raise self.error(field, value, "true or false")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    kind: str
    node: str
    name: str
    args: Mapping[str, object] | str
    text: str
    of: int | None


def _trajectory(line: _Line) -> Trajectory:
    record = line.record
    outcome = _OUTCOMES.get(line.text(record.get("outcome"), "outcome"))
    if outcome is None:
        raise line.error("outcome", record.get("outcome"), "success, fail or unknown")
    entries = record.get("steps")
    if not isinstance(entries, list):
        raise line.error("steps", entries, "a list")
    recorded = [_recorded(line, entry, f"steps[{index}]") for index, entry in enumerate(entries)]
    numbered = tuple(_steps(recorded))
    return Trajectory(
        id=line.text(record.get("id"), "id"),
        source=line.text(record.get("source"), "source"),
        outcome=outcome,
        label=_label(line, len(recorded)),
        steps=tuple(step for _, step in numbered),
        indexes=tuple(index for index, _ in numbered),
    )


def _label(line: _Line, size: int) -> Label:
    label = line.object(line.record.get("label"), "label")
    loop = line.flag(label.get("loop"), "label.loop")
    start = line.index(label.get("start"), "label.start")
    if start is not None and not 0 <= start < size:
        raise line.error("label.start", start, f"the index of one of the {size} steps, or null")
    return Label(
        loop=loop,
        start=start if loop else None,
        kind=line.text(label.get("kind") or "", "label.kind"),
        hard_negative=line.flag(label.get("hard_negative", False), "label.hard_negative"),
    )


def _recorded(line: _Line, entry: _Json, path: str) -> _Recorded:
    record = line.object(entry, path)
    kind = line.text(record.get("kind"), f"{path}.kind")
    if kind not in ("tool_call", "message", "tool_result"):
        raise line.error(f"{path}.kind", kind, "tool_call, message or tool_result")
    args = record.get("args") or {}
    return _Recorded(
        kind=kind,
        node=line.text(record.get("node") or "", f"{path}.node"),
        name=line.text(record.get("name"), f"{path}.name") if kind == "tool_call" else "",
        args=args if isinstance(args, str) else line.object(args, f"{path}.args"),
        text=line.text(record.get("text") or "", f"{path}.text"),
        of=line.index(record.get("of"), f"{path}.of"),
    )


def _steps(recorded: Sequence[_Recorded]) -> Iterator[tuple[int, Step]]:
    results = dict[int, str]()
    for entry in recorded:
        if entry.kind == "tool_result" and entry.of is not None:
            results[entry.of] = f"{results[entry.of]}\n{entry.text}" if entry.of in results else entry.text
    answering = set[int]()
    index = 0
    while index < len(recorded):
        entry, size = recorded[index], 1
        if entry.kind == "tool_call":
            while index + size < len(recorded) and _same_batch(entry, recorded[index + size]):
                size += 1
            for call in range(index, index + size):
                if call not in results:
                    results |= _answer(recorded, call, index + size, answering)
            batch = range(index, index + size)
            yield index, ToolBatch(outcomes=tuple(_outcome(recorded[call], results.get(call)) for call in batch))
        elif entry.kind == "message" and index not in answering and not entry.node.endswith(")"):
            spoken = UserTurn(text=entry.text) if entry.node in ("user", "human") else None
            yield index, spoken or AgentMessage(text=entry.text, author=entry.node)
        index += size


def _same_batch(first: _Recorded, entry: _Recorded) -> bool:
    return entry.kind == "tool_call" and entry.node == first.node


def _answer(recorded: Sequence[_Recorded], call: int, begin: int, answering: set[int]) -> dict[int, str]:
    """The messages of the node that was called, up to the next call; notes which they are."""
    said = list[str]()
    for index in range(begin, len(recorded)):
        entry = recorded[index]
        if entry.kind == "tool_call":
            break
        if entry.kind == "message" and entry.node == recorded[call].name:
            said.append(entry.text)
            answering.add(index)
    return {call: "\n".join(said)} if said else {}


_READ_ONLY_VERB = re.compile(r"(?:calculate|describe|find|get|list|look|lookup|read|retrieve|search|show)(?![a-z])")


def _outcome(call: _Recorded, result: str | None) -> Outcome:
    action = Action(
        name=call.name,
        arguments=call.args,
        repeatable=call.name == "think",
        read_only=_READ_ONLY_VERB.match(call.name.lower()) is not None,
        unknown=result is not None and "unknown tool" in result[:300].lower(),
    )
    return Outcome(action=action, result=result)
