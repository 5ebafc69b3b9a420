"""Loop detection: the same action, or cycle of actions, repeated without anything new in the results.

`LoopDetector.observe` is a pure function of a state and one step. The state is a frozen record of plain values, so that
a stored run counts on after a pause, a crash or a takeover. A step is a batch of tool calls with their results, a
message that asks for no tool, or a turn of the user. These rules look at it:

- `repeat`, `cycle`: the newest steps repeat with a period of 1 to 8, and the period opens for the third time;
- `stagnation`: steps running were all known, in no fixed order, and one of them came round for the third time;
- `failures`: nothing but failures that were read before, whatever the arguments;
- `retry`: the same call failed the same way for the third time, and nothing between can have changed anything;
- `unknown_tool`: calls of tools that don't exist;
- `same_answer`: always the same words, whatever the arguments. Advice only: working off a list can look like this;
- `message`: the same message, or cycle of messages, and no tool call between.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, assert_never
from zlib import crc32

from endstop._errors import ConfigError
from endstop._loop_text import reads_as_failure, steady

if TYPE_CHECKING:
    from collections.abc import Sequence

_ToolLoopKind: TypeAlias = Literal["repeat", "cycle", "stagnation", "failures", "retry", "unknown_tool", "same_answer"]
LoopKind: TypeAlias = Literal[_ToolLoopKind, "message"]
"""Which rule found a loop; the docstring of the module says what each means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPolicy:
    """When repetition counts as a loop. All are whole numbers.

    "Runs" are the 353 labelled ones that the documentation of the detector describes.

    Raises:
        ConfigError: a value is out of range; the error names the field.
    """

    repeats: int = 3
    """A unit is a loop when it opens for this many times: the labels' definition, done at least 3 times. At least 2."""
    max_period: int = 8
    """Longest cycle, in steps: the labels' definition. `stagnation` sees longer ones."""
    patience: int = 3
    """Steps without anything new from the first finding to the persistent one: as many again as made the loop."""
    polling_repeats: int = 10
    """`repeats` where something in the unit polls: waiting is its work. A choice, no run polls. At least 2."""
    polling_patience: int = 10
    """`patience` where something in the unit polls. A choice, as above."""
    stagnant_steps: int = 4
    """Known steps running that make stagnation. Sensible look-backs that returned to a step had at most 3."""
    repeated_failures: int = 4
    """Failures running that were read before. Runs that moved on had at most 3, loops 4 and more."""
    unknown_calls: int = 3
    """Steps running that call unknown tools alone: as `repeats`, since the answer can't change."""
    same_answers: int = 8
    """Equal answers running. Sensible scans of a list had at most 7, loops 9 and more."""
    window: int = 32
    """Steps remembered, within which a step is known; more than `max_period`. Runs score the same from 16 to 64."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            value: object = getattr(self, entry.name)
            least = self.max_period + 1 if entry.name == "window" else 2 if entry.name.endswith("repeats") else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(entry.name, value, f"give a whole number of at least {least}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One tool call: its name, its full arguments, and what the tool declares about itself."""

    name: str
    arguments: Mapping[str, object] | str = field(default_factory=dict[str, object])
    """JSON values, compared whole and exactly whatever the order of keys; text that is no JSON object as it stands."""
    polling: bool = False
    """The tool waits for something outside: equal results are expected for a while."""
    repeatable: bool = False
    """Neither counted nor an interruption: thinking, waiting."""
    read_only: bool = False
    """The call changes nothing, so it can't be why a failed call should succeed now."""
    unknown: bool = False
    """There is no such tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """An action and what it returned."""

    action: Action
    result: str | None
    """None: no answer. That is nothing new, so it counts as the last answer to the same action."""
    failed: bool | None = None
    """None: not known, judged by the words of the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolBatch:
    """The tool calls of one round: one step, in which neither order nor asking twice matters."""

    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMessage:
    """A message that asks for no tool. Text that comes with calls is no step. White space doesn't count."""

    text: str
    author: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTurn:
    """What a user said.

    New words make it sensible to look again: the rules for tools start afresh. Those for messages go on.
    """

    text: str


Step: TypeAlias = ToolBatch | AgentMessage | UserTurn
"""What the detector is fed with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopFinding:
    """A loop. A streak gives at most two: the first finding (tell the model) and the persistent one (end the run)."""

    kind: LoopKind
    period: int | None
    """Steps of the repeated unit; None where there is no fixed order."""
    repeats: int
    """How often the unit came; where there is no period, the steps counted."""
    tools: tuple[str, ...]
    """Tools of the newest step, sorted; empty for messages."""
    signature: str
    """Equal for equal newest steps (action and result)."""
    persistent: bool
    """It went on for `LoopPolicy.patience` steps after the first finding. Never true of `same_answer`."""
    reason: str
    """One line for people and for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """A stream of steps, and where its streak stands."""

    window: tuple[str, ...] = ()
    """Signatures of the newest steps, oldest first. `~` opens those that poll."""
    matches: tuple[int, ...] = ()
    """For each period p from 1: how many steps running equal the step p before them. Empty where none do."""
    stale: int = 0
    """How many steps running were known."""
    level: int = 0
    """Findings given in this streak: 0, 1 or 2."""
    since: int = 0
    """Steps without anything new since the first of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopState:
    """What the detector remembers of a run: under 6 kB as JSON with the default policy, however long the run."""

    tools: Track = Track()
    messages: Track = Track()
    failures: tuple[str, ...] = ()
    """Signatures of the failed steps since something can have changed."""
    repeated_failures: int = 0
    unknown_calls: int = 0
    answer: str = ""
    answers: int = 0
    users: tuple[str, ...] = ()
    """Signatures of the newest turns of the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopDetector:
    """Finds loops one step at a time. It holds a policy and no state, so that one serves any number of runs."""

    policy: LoopPolicy = LoopPolicy()

    def observe(self, state: LoopState, step: Step) -> tuple[LoopState, LoopFinding | None]:
        """The state after `step`, and a finding if this step makes one.

        The time is linear in the size of the step, whatever came before. A run begins with `LoopState()`.
        """
        match step:
            case ToolBatch():
                return self._observe_batch(state, step)
            case AgentMessage():
                return self._observe_message(state, step)
            case UserTurn():
                return _observe_user(state, step), None
            case _:
                assert_never(step)

    def _observe_message(self, state: LoopState, message: AgentMessage) -> tuple[LoopState, LoopFinding | None]:
        key = _digest(f"{message.author}\0{' '.join(message.text.split())}")
        track, known = _push(state.messages, key, self.policy)
        rule = _periodic(track, self.policy, ("message", "message"))
        track, emitted = _escalate(track, rule is not None, known, self.policy.patience)
        finding = _finding(rule, (), key, track.level) if rule and emitted else None
        return replace(state, messages=track), finding

    def _observe_batch(self, state: LoopState, batch: ToolBatch) -> tuple[LoopState, LoopFinding | None]:
        policy = self.policy
        outcomes = [outcome for outcome in batch.outcomes if not outcome.action.repeatable]
        if not outcomes:
            return state, None
        seen = _see(outcomes, state.tools.window)
        track, known = _push(state.tools, seen.signature, policy)
        failures, repeated_failures = _count_failures(state, seen, policy)
        unknown_calls = state.unknown_calls + 1 if seen.unknown else 0
        answers = state.answers + 1 if seen.answer == state.answer else 1
        rule = _Rule("unknown_tool", None, unknown_calls) if unknown_calls >= policy.unknown_calls else None
        rule = rule or _periodic(track, policy, ("repeat", "cycle"))
        if rule is None:
            if _stagnates(track, policy):
                rule = _Rule("stagnation", None, track.stale)
            elif repeated_failures >= policy.repeated_failures:
                rule = _Rule("failures", None, repeated_failures)
            elif seen.failed and failures.count(seen.signature) >= policy.repeats:
                rule = _Rule("retry", None, failures.count(seen.signature))
        repeated = known or seen.unknown or repeated_failures > state.repeated_failures
        polls = seen.polls or (rule is not None and _polls(track.window[-(rule.period or 1) :]))
        patience = policy.polling_patience if polls else policy.patience
        track, emitted = _escalate(track, rule is not None, repeated, patience)
        if rule is None and track.level == 0 and seen.informs and answers == policy.same_answers:
            rule, emitted = _Rule("same_answer", None, answers), True
        finding = _finding(rule, seen.tools, seen.signature, track.level) if rule and emitted else None
        return LoopState(
            tools=track,
            failures=failures,
            repeated_failures=repeated_failures,
            unknown_calls=unknown_calls,
            answer=seen.answer,
            answers=answers,
            users=state.users,
        ), finding


class _Rule(NamedTuple):
    """A rule that holds at this step."""

    kind: LoopKind
    period: int | None
    repeats: int


class _Seen(NamedTuple):
    """What the rules need of a batch; the results themselves are not kept."""

    signature: str
    answer: str
    tools: tuple[str, ...]
    failed: bool
    read_only: bool
    unknown: bool
    polls: bool
    informs: bool


def _observe_user(state: LoopState, turn: UserTurn) -> LoopState:
    said = _digest(" ".join(turn.text.split()))
    users = (*state.users, said)[-_USERS_REMEMBERED:]
    return replace(state, users=users) if said in state.users else LoopState(messages=state.messages, users=users)


def _see(outcomes: Sequence[Outcome], window: tuple[str, ...]) -> _Seen:
    parts: list[tuple[str, str, bytes]] = []
    failed = read_only = unknown = True
    polls = answered = False
    for outcome in outcomes:
        action, result = outcome.action, outcome.result or ""
        parts.append((action.name, _canonical(action.arguments), steady(result)))
        failed = failed and (reads_as_failure(result) if outcome.failed is None else outcome.failed)
        read_only = read_only and action.read_only
        unknown = unknown and action.unknown
        polls = polls or action.polling
        answered = answered or outcome.result is not None
    if len(parts) > 1:
        parts = sorted(set(parts))  # the order of parallel calls is chance, and asking twice at once is asking once
    tools = tuple([name for name, _, _ in parts])
    asked = ("~" if polls else "") + _digest("\0".join([f"{name}\1{arguments}" for name, arguments, _ in parts]))
    results = b"\0".join([result for _, _, result in parts])
    returned = _digest(results)
    if not answered:
        returned = next((key[len(asked) :] for key in reversed(window) if key.startswith(asked)), returned)
    answer = _names_digest(tools) + returned
    informs = not polls and not failed and bool(results.strip(b"\0 \r\n\t"))
    return _Seen(asked + returned, answer, tools, failed, read_only, unknown, polls, informs)


def _push(track: Track, key: str, policy: LoopPolicy) -> tuple[Track, bool]:
    window, matches = track.window, track.matches
    known = key in window
    if not known:
        matches = ()
    else:
        counts = matches or (0,) * policy.max_period
        earlier = window[: -policy.max_period - 1 : -1]
        matches = tuple([count + 1 if key == other else 0 for count, other in zip(counts, earlier, strict=False)])
    window = (*window, key)[-policy.window :]
    stale = track.stale + 1 if known else 0
    return Track(window=window, matches=matches, stale=stale, level=track.level, since=track.since), known


def _polls(window: tuple[str, ...]) -> bool:
    return any(key.startswith("~") for key in window)


def _periodic(track: Track, policy: LoopPolicy, kinds: tuple[LoopKind, LoopKind]) -> _Rule | None:
    """The shortest period that has opened often enough; the n-th opening follows `(n - 2) * period` equal steps."""
    for period, count in enumerate(track.matches, 1):
        if count > (policy.repeats - 2) * period and (
            count > (policy.polling_repeats - 2) * period or not _polls(track.window[-period:])
        ):
            return _Rule(kinds[period > 1], period, (count - 1) // period + 2)
    return None


def _stagnates(track: Track, policy: LoopPolicy) -> bool:
    """Every step of the streak was known when it came, so one that came twice in it has come three times in all."""
    if track.stale < policy.stagnant_steps:
        return False
    streak = track.window[-track.stale :]
    return streak[-1] in streak[:-1] and not _polls(streak)


def _count_failures(state: LoopState, seen: _Seen, policy: LoopPolicy) -> tuple[tuple[str, ...], int]:
    """The failures since something can have changed, and how many running said what one of them had said before."""
    if seen.polls:
        return state.failures, state.repeated_failures
    if not seen.failed:
        return (state.failures if seen.read_only else ()), 0
    returned = seen.signature[-_DIGEST_CHARACTERS:]
    read_before = any(failure.endswith(returned) for failure in state.failures)
    return (*state.failures, seen.signature)[-policy.window :], state.repeated_failures + 1 if read_before else 0


def _escalate(track: Track, holds: bool, repeated: bool, patience: int) -> tuple[Track, bool]:
    """From nothing to the first finding to the persistent one; a step with something new begins a new streak."""
    level, since, emitted = track.level, track.since, False
    if level == 0:
        level, since, emitted = int(holds), 0, holds
    elif not holds and not repeated:
        level, since = 0, 0
    elif level == 1 and repeated:
        since += 1
        emitted = holds and since >= patience
        level += emitted
    if (level, since) == (track.level, track.since):
        return track, emitted
    return Track(window=track.window, matches=track.matches, stale=track.stale, level=level, since=since), emitted


_REASONS: Mapping[LoopKind, str] = {
    "repeat": "the same call ({tools}) came {repeats} times running and returned nothing new",
    "cycle": "a cycle of {period} steps (newest: {tools}) opened {repeats} times running and returned nothing new",
    "stagnation": "the last {repeats} steps (newest: {tools}) all repeated earlier ones and returned nothing new",
    "failures": "the last {repeats} steps (newest: {tools}) failed with errors that had come before",
    "retry": "the same call ({tools}) failed {repeats} times in the same way, and nothing between can change that",
    "unknown_tool": "the last {repeats} steps called tools that do not exist (newest: {tools})",
    "same_answer": "the last {repeats} calls ({tools}) all returned the same answer",
    "message": "the same message, or cycle of {period} messages, came {repeats} times with no tool call between",
}


def _finding(rule: _Rule, tools: tuple[str, ...], signature: str, level: int) -> LoopFinding:
    return LoopFinding(
        kind=rule.kind,
        period=rule.period,
        repeats=rule.repeats,
        tools=tools,
        signature=signature,
        persistent=level == 2,
        reason=_REASONS[rule.kind].format(period=rule.period, repeats=rule.repeats, tools=", ".join(tools)),
    )


_DIGEST_CHARACTERS = 16
_USERS_REMEMBERED = 8
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)
_SCALARS = frozenset({str, int, float, bool, type(None)})


def _digest(data: str | bytes) -> str:
    data = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    return blake2b(data, digest_size=_DIGEST_CHARACTERS // 2).hexdigest()


def _canonical(arguments: Mapping[str, object] | str) -> str:
    """Text that is the same for equal arguments alone; its first character tells text, scalars and other JSON apart."""
    if isinstance(arguments, str):
        return "=" + arguments
    if _SCALARS.issuperset(map(type, arguments.values())):
        return repr(sorted(arguments.items()))  # twice as fast as JSON
    return _ENCODER.encode(dict(arguments))


@functools.lru_cache
def _names_digest(tools: tuple[str, ...]) -> str:
    return f"{crc32(','.join(tools).encode('utf-8', 'surrogatepass')):08x}"
