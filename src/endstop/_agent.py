"""The agent: what it is made of, the loop that runs it, and the ways to start and to go on."""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeGuard, assert_never, cast

import anyio

from endstop._budget import Budget, allowed_by_limit
from endstop._effects import Effects, MemoryEffects
from endstop._errors import ConfigError, LimitExceeded, OutputInvalid, ResumeError, UsageError
from endstop._estimate import frame_tokens
from endstop._events import Done, Started, Truncated
from endstop._limits import PlanLimits, Prices, check_count
from endstop._messages import (
    FilePart,
    ImagePart,
    Message,
    ModelTurn,
    Part,
    Prompt,
    TextPart,
    UserMessage,
    clean_text,
    pending_calls,
    repaired_history,
)
from endstop._outputs import OutputSpec
from endstop._results import AgentResult, OutputT, limit_reason
from endstop._run import Run
from endstop._state import RunState
from endstop._steps import CallModel, Fail, Finish, Plan, Repair, RetryPolicy, RunTools, next_step
from endstop._stream import EventQueue, RunStream
from endstop._tools import AnyTool, toolbox
from endstop.models.base import Model

_TEXT = cast("type[Any]", str)  # the output type of an agent that is given none, as the type variable's default says


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent(Generic[OutputT]):
    """A model, its tools and its limits. It is frozen: any number of runs may use it at the same time.

    `tools` are functions with type hints or `Tool` objects. `output_type` is `str`, or a type whose
    JSON the model is asked to answer in; an answer that does not fit is sent back up to
    `output_repairs` times, inside the limits. `limits` hold for every run that is not given its own.
    `retry` says how requests that fail in passing are sent again. `prices` is the price table
    (by default that of genai-prices, looked at only where `max_cost` is set).

    Raises:
        ConfigError: a value cannot be used; the error names the field, the value and the remedy.
    """

    model: Model = field(kw_only=False)
    tools: Sequence[AnyTool] = ()
    instructions: str | None = None
    output_type: type[OutputT] = _TEXT
    limits: PlanLimits = field(default_factory=PlanLimits)
    name: str = "agent"
    output_repairs: int = 2
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    prices: Prices | None = None
    effects: Effects = field(default_factory=MemoryEffects)
    _plan: Plan = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("name", self.name, "give the agent a name, such as 'researcher'")
        if not callable(getattr(self.model, "respond", None)):
            raise ConfigError("model", self.model, "use a model with a respond() method, such as OpenAIModel")
        check_count("output_repairs", self.output_repairs)
        tools = toolbox(self.tools)
        specs = tuple(tool.spec for tool in tools.values())
        plan = Plan(
            name=self.name,
            model=self.model,
            instructions=self.instructions,
            tools=tools,
            specs=specs,
            frame_tokens=frame_tokens(self.instructions, specs),
            output=OutputSpec(self.output_type),
            output_repairs=self.output_repairs,
            retry=self.retry,
            prices=self.prices,
            effects=self.effects,
        )
        object.__setattr__(self, "_plan", plan)

    def stream(
        self,
        prompt: Prompt,
        *,
        history: Sequence[Message] = (),
        limits: PlanLimits | None = None,
        budget: Budget | None = None,
        deps: object = None,
        run_id: str | None = None,
    ) -> RunStream[OutputT]:
        """Start a run and stream its events: `async with agent.stream(...) as run: async for event in run: ...`.

        `history` is an earlier conversation; calls in it that nobody answered are answered as not run.
        `limits` replace the agent's own. `budget` is a budget shared with others, which the run is
        charged to as well. `deps` is handed to tools that take a `ToolContext`.

        Raises:
            ConfigError: the prompt is empty or of a wrong type.
            PriceUnknown: a cost limit is set and the model's price is not known.
        """
        state = RunState(
            run_id=run_id or uuid.uuid4().hex,
            agent=self.name,
            limits=limits or self.limits,
            messages=repaired_history(history),
        )
        state.first_message = len(state.messages)
        state.messages.append(UserMessage(content=_checked_prompt(prompt)))
        return self._open(state, budget, deps, resumed=False)

    async def run(
        self,
        prompt: Prompt,
        *,
        history: Sequence[Message] = (),
        limits: PlanLimits | None = None,
        budget: Budget | None = None,
        deps: object = None,
        run_id: str | None = None,
    ) -> AgentResult[OutputT]:
        """Run to the end and return the result. Arguments as in `stream`.

        Raises:
            ModelError: the model's answer could not be had; `error.state` is all that was done.
            ToolFatal: a tool said that the run must not go on.
            OutputInvalid: no valid structured output within the repairs.
            LimitExceeded: a limit was reached under `on_limit="raise"`.
        """
        stream = self.stream(prompt, history=history, limits=limits, budget=budget, deps=deps, run_id=run_id)
        return await _drained(stream)

    def run_sync(
        self,
        prompt: Prompt,
        *,
        history: Sequence[Message] = (),
        limits: PlanLimits | None = None,
        budget: Budget | None = None,
        deps: object = None,
        run_id: str | None = None,
    ) -> AgentResult[OutputT]:
        """`run` for code that is not async.

        Raises:
            UsageError: it was called where an event loop is running; await `run` there.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise UsageError("run_sync() cannot be used inside a running event loop: use `await agent.run(...)` there")
        run = functools.partial(
            self.run, prompt, history=history, limits=limits, budget=budget, deps=deps, run_id=run_id
        )
        return anyio.run(run)

    def resume_stream(
        self,
        run: AgentResult[object] | RunState,
        *,
        limits: PlanLimits | None = None,
        budget: Budget | None = None,
        deps: object = None,
    ) -> RunStream[OutputT]:
        """Go on with a run that a limit, an error or a cancellation ended, and stream its events.

        What was spent stays spent and what was done is not done again. After a limit, `limits` must
        allow more of what was used up; without `limits` the run keeps those it had.

        Raises:
            ResumeError: the run is completed, or the limit that ended it is not higher.
        """
        state = (run.state if isinstance(run, AgentResult) else run).copy()
        _check_resumable(state, limits)
        state.limits = limits or state.limits
        said_something = state.wrap_up != "none" or isinstance(state.messages[-1], ModelTurn)
        if said_something and not pending_calls(state.messages):
            text = "You may go on now: tools can be called again. Continue, and give the whole answer when you have it."
            state.messages.append(UserMessage(content=text, source="kernel"))
        state.hit, state.wrap_up, state.unrun, state.note, state.stop_reason = None, "none", [], "", None
        return self._open(state, budget, deps, resumed=True)

    async def resume(
        self,
        run: AgentResult[object] | RunState,
        *,
        limits: PlanLimits | None = None,
        budget: Budget | None = None,
        deps: object = None,
    ) -> AgentResult[OutputT]:
        """Go on with a run to its end and return the result; see `resume_stream`, and `run` for what it raises."""
        return await _drained(self.resume_stream(run, limits=limits, budget=budget, deps=deps))

    def _open(self, state: RunState, budget: Budget | None, deps: object, *, resumed: bool) -> RunStream[OutputT]:
        queue = EventQueue(state.seq)
        scope = Budget(state.limits, parent=budget, spent=state.spent)
        run = Run(self._plan, state, scope, queue, deps)
        return RunStream(_Leg(run, resumed), queue)


class _Leg:
    """One leg of a run: from its start, or from where it is resumed, to its last event."""

    def __init__(self, run: Run, resumed: bool) -> None:
        self._run = run
        self._resumed = resumed
        self.state = run.state
        self.cancel = run.cancel

    async def drive(self) -> None:
        """Work within the time there is, end, and tell how."""
        with self._run as run:
            await run.emit(Started(model=run.plan.model.name, resumed=self._resumed))
            while run.state.stop_reason is None:
                with run.working_time() as clock:
                    await _work(run)
                if clock.cancelled_caught:
                    run.work_was_cut()
            if run.state.stop_reason != "cancelled":
                _tell_end(run)


def _tell_end(run: Run) -> None:
    result = run.result()
    if result.truncated and result.ending is not None:
        run.tell(Truncated(ending=result.ending))
        if run.state.limits.on_limit == "raise":
            raise LimitExceeded(result.ending, result)
    run.tell(Done(result=result))


async def _work(run: Run) -> None:
    """The loop: decide the next step from the state, do it, until the run is over."""
    while not isinstance(step := next_step(run.state, run.plan), Finish):
        match step:
            case CallModel():
                await run.call_model(step)
            case RunTools():
                await run.run_tools(step)
            case Repair():
                run.repair(step.problem)
            case Fail():
                raise OutputInvalid(step.problem)
            case _:
                assert_never(step)
    run.state.stop_reason = step.stop_reason


async def _drained(stream: RunStream[OutputT]) -> AgentResult[OutputT]:
    async with stream:
        async for _ in stream:
            pass
    return stream.result


def _check_resumable(state: RunState, limits: PlanLimits | None) -> None:
    if state.stop_reason == "completed":
        raise ResumeError("the run is completed: start a new one with history=result.messages")
    hit = state.hit
    allowed = allowed_by_limit(limits or state.limits).get(hit.limit) if hit is not None else None
    if hit is not None and allowed is not None and allowed <= hit.allowed:
        raise ResumeError(f"{limit_reason(hit)}: pass limits= that allow more than {hit.allowed}", limit=hit.limit)


def _checked_prompt(prompt: object) -> str | tuple[Part, ...]:
    """The prompt as a message holds it; callers are not all type-checked, so nothing is taken for granted."""
    if isinstance(prompt, str):
        if not prompt.strip():
            raise ConfigError("prompt", prompt, "say what the agent is to do")
        return clean_text(prompt)
    given = tuple(prompt) if _is_sequence(prompt) else ()
    parts = tuple(part for part in given if isinstance(part, TextPart | ImagePart | FilePart))
    if not parts or len(parts) < len(given):
        raise ConfigError("prompt", given or str(prompt), "use text, or a list of TextPart, ImagePart and FilePart")
    return parts


def _is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence)
