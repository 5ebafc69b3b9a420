"""The parts of the conformance kit: scripts and tools that count, scenarios, the runner seam, and running a check."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias

import anyio

from endstop._errors import UsageError
from endstop._limits import PlanLimits
from endstop._messages import ModelTurn, ToolCall, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType

PROBE_STOP = 100
"""Requests after which a script stops a run that does not stop by itself."""

PATIENCE_SECONDS = 30.0
"""How long a check waits for its runs to end."""

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
    """The script has answered `PROBE_STOP` times, and the run goes on. No loop should catch it."""


class Script:
    """A scripted model, whatever loop asks it: it answers the turns in order and the last one for ever.

    Offered no tools it answers `FINAL_ANSWER`, as a real model would answer something. The first
    `outages` requests fail. Every answer has a usage. It counts `requests`, and remembers in `offered`
    which of them came with tools.
    """

    def __init__(self, turns: Iterable[ModelTurn], *, outages: int = 0, latency_seconds: float = 0.0) -> None:
        self._turns = list(turns)
        self._outages = outages
        self._latency_seconds = latency_seconds
        self.requests = 0
        self.offered: list[bool] = []

    @property
    def is_overrun(self) -> bool:
        """Whether it has been asked more than `PROBE_STOP` times."""
        return self.requests > PROBE_STOP

    async def answer(self, *, tools_offered: bool) -> ModelTurn:
        """The next answer.

        Raises:
            ModelOutage: this request fails.
            RunawayModel: the run should have ended long ago.
        """
        self.requests += 1
        self.offered.append(tools_offered)
        number = self.requests
        await anyio.sleep(self._latency_seconds)
        if self.is_overrun:
            raise RunawayModel(f"asked more than {PROBE_STOP} times")
        if number <= self._outages:
            raise ModelOutage("the model is overloaded")
        if not tools_offered:
            return ModelTurn(text=FINAL_ANSWER, usage=Usage(input_tokens=100, output_tokens=20))
        turn = self._turns[min(number - self._outages, len(self._turns)) - 1]
        calls = tuple(
            ToolCall(call_id=f"{number}-{index}-{call.name}", name=call.name, arguments=call.arguments)
            for index, call in enumerate(turn.tool_calls)
        )
        usage = turn.usage or Usage(input_tokens=100, output_tokens=20)
        return ModelTurn(text=turn.text, tool_calls=calls, usage=usage, finish_reason=turn.finish_reason)


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
    and `raised` where an exception came. `text` is the answer that the caller is given (of an exception:
    the one that it carries), not what could be dug out of a history. `limit` names the limit where it is
    named for programs. `unanswered` counts the tool calls without a return that the loop would send to a
    model if it went on from here. `handle` is the runner's own, for `approve`.
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


Verdict: TypeAlias = Literal["holds", "fails", "missing"]
"""How a check ended; `missing` where the loop has no such limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The verdict of one check, and in `detail` what was seen where it fails or what the loop lacks."""

    check: str
    rule: str
    verdict: Verdict
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.verdict:<7}  {self.check:<13}  {self.rule}" + (f": {self.detail}" if self.detail else "")


Judge: TypeAlias = Callable[[LimitRunner], Awaitable[str | None]]
"""Runs scenarios; returns what was wrong, or `None`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule about limits, by name."""

    name: str
    rule: str
    judge: Judge


async def run_check(check: Check, runner: LimitRunner, *, patience_seconds: float = PATIENCE_SECONDS) -> CheckResult:
    """Run one check. A run that does not end is stopped by its script or by the clock, and fails.

    What else a runner raises is a fault of the runner, and is raised.
    """
    probe = _Probe(runner)
    problem: str | None = f"the run had not ended after {patience_seconds:g} seconds"
    try:
        with probe, anyio.move_on_after(patience_seconds):
            problem = await check.judge(probe)
    except MissingFeature as missing:
        return CheckResult(check=check.name, rule=check.rule, verdict="missing", detail=missing.reason)
    except BaseException as error:
        error.add_note(f"raised by {runner.name} in the check {check.name}")
        raise
    if probe.is_overrun:
        problem = f"the run had not ended after {PROBE_STOP} requests to one model"
    return CheckResult(
        check=check.name, rule=check.rule, verdict="holds" if problem is None else "fails", detail=problem or ""
    )


class _Probe:
    """A runner that passes on to another, and knows of a run without end whatever its loop made of `RunawayModel`.

    Loops wrap that, answer it with an error of their own, or take it for an answer.
    """

    def __init__(self, runner: LimitRunner) -> None:
        self._runner = runner
        self._scripts = list[Script]()
        self.name = runner.name

    @property
    def is_overrun(self) -> bool:
        return any(script.is_overrun for script in self._scripts)

    async def run(self, scenario: Scenario) -> RunEnd:
        self._scripts.extend(_scripts(scenario))
        return await self._runner.run(scenario)

    async def approve(self, end: RunEnd) -> RunEnd:
        return await self._runner.approve(end)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self.is_overrun and isinstance(error, Exception | BaseExceptionGroup | RunawayModel)


def _scripts(scenario: Scenario) -> Iterator[Script]:
    yield scenario.script
    if scenario.child is not None:
        yield from _scripts(scenario.child)


def render_summary(results: Sequence[CheckResult]) -> str:
    """How many checks hold, in a line."""
    counts = {
        verdict: sum(result.verdict == verdict for result in results) for verdict in ("holds", "fails", "missing")
    }
    return f"{counts['holds']} of {len(results)} hold, {counts['fails']} fail, {counts['missing']} missing"
