"""The parts of the conformance kit: scripts and tools that count, scenarios, the runner seam, and running one check."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias

import anyio

from endstop._errors import UsageError
from endstop._limits import PlanLimits
from endstop._messages import ModelTurn, ToolCall, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PROBE_STOP = 100
"""Requests after which a script stops a run that does not stop by itself."""

PATIENCE_SECONDS = 30.0
"""How long a check waits for a run to end."""

FINDING = "the key is under the mat"
"""What the tools of a scenario find: a usable partial answer has it, or is the model's own last answer."""

FINAL_ANSWER = "As far as I got: the key is under the mat."
"""What a script answers where it is offered no tools."""


class MissingFeature(UsageError):
    """The loop under test has no such limit or cannot express the scenario; `reason` says which."""

    code: ClassVar[str] = "missing_feature"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class ModelOutage(Exception):
    """A request fails in passing: an adapter turns it into an error that its loop would retry."""


class RunawayModel(BaseException):
    """The script has been asked `PROBE_STOP` times: the run would not have ended. Not to be caught by loops."""


class Script:
    """A scripted model, whatever loop asks it: it answers the turns in order and the last one for ever.

    Offered no tools it answers `FINAL_ANSWER`, as a real model would answer something. The first
    `outages` requests fail. It counts `requests` and remembers in `offered` which came with tools.
    """

    def __init__(self, turns: Iterable[ModelTurn], *, outages: int = 0, latency_seconds: float = 0.0) -> None:
        self._turns = list(turns)
        self._outages = outages
        self._latency_seconds = latency_seconds
        self.requests = 0
        self.offered: list[bool] = []

    async def answer(self, *, tools_offered: bool) -> ModelTurn:
        """The next answer.

        Raises:
            ModelOutage: this request fails.
            RunawayModel: the run should have ended long ago.
        """
        self.requests += 1
        self.offered.append(tools_offered)
        number = self.requests
        if number > PROBE_STOP:
            raise RunawayModel(f"stopped by the probe after {PROBE_STOP} model calls")
        await anyio.sleep(self._latency_seconds)
        if number <= self._outages:
            raise ModelOutage("the model is overloaded")
        if not tools_offered:
            return ModelTurn(text=FINAL_ANSWER, usage=Usage(input_tokens=100, output_tokens=20))
        turn = self._turns[min(number - self._outages, len(self._turns)) - 1]
        calls = tuple(
            ToolCall(call_id=f"{number}-{index}-{call.name}", name=call.name, arguments=call.arguments)
            for index, call in enumerate(turn.tool_calls)
        )
        return ModelTurn(text=turn.text, tool_calls=calls, usage=turn.usage, finish_reason=turn.finish_reason)


class CountingTool:
    """A tool of a scenario: it takes one argument `place`, finds `FINDING`, and counts its executions in `started`."""

    def __init__(self, *, name: str, needs_approval: bool = False, duration_seconds: float = 0.0) -> None:
        self.name = name
        self.needs_approval = needs_approval
        self.duration_seconds = duration_seconds
        self.started = 0
        self.finished = 0

    async def run(self, place: str) -> str:
        """Look in a place."""
        self.started += 1
        await anyio.sleep(self.duration_seconds)
        self.finished += 1
        return f"{place}: {FINDING}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What a runner is to run: a model, its tools, and limits that hold for the run and all below it.

    With `child` the model can also call the tool `delegate` (one argument `task`), which runs that
    scenario as a sub-agent. A child without limits of its own has those of `PlanLimits(max_model_rounds=None)`.
    """

    script: Script
    tools: tuple[CountingTool, ...] = ()
    limits: PlanLimits = field(default_factory=lambda: PlanLimits(max_model_rounds=None))
    child: Scenario | None = None
    prompt: str = "Where is the key?"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How a run ended, as its caller sees it.

    `status` is `cut` only where a program can tell the end from a normal one without reading prose,
    and `raised` where an exception came; `text` is what the caller then holds (of an exception: what it
    carries of the work). `limit` names the limit where it is named for programs. `unanswered` counts
    tool calls in the final history that have no return. `handle` is the runner's own, for `approve`.
    """

    status: Literal["completed", "cut", "paused", "raised"]
    text: str = ""
    limit: str | None = None
    unanswered: int = 0
    error: str = ""
    handle: object = None


class LimitRunner(Protocol):
    """An agent loop under test."""

    @property
    def name(self) -> str:
        """The loop's name and version."""
        ...

    async def run(self, scenario: Scenario) -> RunEnd:
        """Run the scenario to its end or to its next pause.

        Raises:
            MissingFeature: the loop has no such limit.
        """
        ...

    async def approve(self, end: RunEnd) -> RunEnd:
        """Approve whatever the run waits for and go on.

        Raises:
            MissingFeature: the loop has no pauses.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The verdict of one check: `holds`, `fails` with what was seen, or `missing` with what the loop lacks."""

    check: str
    rule: str
    verdict: Literal["holds", "fails", "missing"]
    detail: str = ""


Judge: TypeAlias = Callable[[LimitRunner], Awaitable[str | None]]
"""Runs a scenario; returns what was wrong, or `None`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule about limits, by name."""

    name: str
    rule: str
    judge: Judge


async def run_check(check: Check, runner: LimitRunner) -> CheckResult:
    """Run one check. A run that does not end is stopped by the probe or by the clock, and fails."""
    problem: str | None = f"it had not ended after {PATIENCE_SECONDS:.0f} seconds"
    try:
        with anyio.move_on_after(PATIENCE_SECONDS):
            problem = await check.judge(runner)
    except MissingFeature as missing:
        return CheckResult(check=check.name, rule=check.rule, verdict="missing", detail=missing.reason)
    except BaseExceptionGroup as group:
        if group.split(RunawayModel)[0] is None:
            raise
        problem = f"it did not end: the probe stopped it after {PROBE_STOP} model calls"
    except RunawayModel as runaway:
        problem = f"it did not end: {runaway}"
    verdict: Literal["holds", "fails"] = "holds" if problem is None else "fails"
    return CheckResult(check=check.name, rule=check.rule, verdict=verdict, detail=problem or "")


def render_results(name: str, results: Sequence[CheckResult]) -> list[str]:
    """The results as lines of text, one a check, and a summary."""
    width = max(len(result.check) for result in results)
    lines = [name]
    for result in results:
        lines.append(f"  {result.verdict:<7}  {result.check:<{width}}  {result.detail or result.rule}")
    held = sum(result.verdict == "holds" for result in results)
    missing = sum(result.verdict == "missing" for result in results)
    lines.append(f"  {held} of {len(results)} hold, {len(results) - held - missing} fail, {missing} missing")
    return lines
