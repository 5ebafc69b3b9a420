"""The agent: what it is made of, and the ways to start a run and to go on with one. The loop is `endstop._drive`."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic

import anyio

from endstop._budget import Budget
from endstop._delegation import delegate
from endstop._drive import Leg
from endstop._effects import Effects, MemoryEffects
from endstop._envelope import EXTRACTION_TAG, checked_tag
from endstop._errors import ConfigError, ResumeError, UsageError
from endstop._estimate import frame_tokens
from endstop._events import Resumed, Started
from endstop._limits import PlanLimits, Prices, check_count, checked_limits
from endstop._loops import LoopDetector, LoopPolicy
from endstop._messages import id_part
from endstop._outputs import OutputSpec
from endstop._results import AgentResult, OutputT
from endstop._resume import fresh_state, reopen, resumed_state
from endstop._run import Place, Run
from endstop._stages import PostModel, Retrieval
from endstop._steps import Plan, RetryPolicy
from endstop._stream import EventQueue, RunStream
from endstop._tools import AnyTool, Tool, ToolContext, toolbox
from endstop.models.base import Model
from endstop.turn_observation import observing

if TYPE_CHECKING:
    from endstop._messages import Message, Prompt
    from endstop._state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent(Generic[OutputT]):
    """A model, its tools and its limits. It is frozen: any number of runs may use it at the same time.

    `tools` are functions with type hints or `Tool` objects. `output_type` is `str`, or a type whose
    JSON the model is asked to answer in; an answer that does not fit is sent back up to
    `output_repairs` times, inside the limits. `loops` says what counts as a loop (`None`: nothing does).
    `limits` hold for every run that is not given its own.
    `retry` says how requests that fail in passing are sent again. `prices` is the price table
    (by default that of genai-prices, looked at only where `max_cost` is set). `retrieval` is asked
    before the first round and `post_model` is handed the operations that the model wrote into
    `<extraction_tag>` envelopes, which are taken out of every text (`None`: texts are left alone).

    Raises:
        ConfigError: a value cannot be used; the error names the field, the value and the remedy.
    """

    model: Model = field(kw_only=False)
    tools: Sequence[AnyTool] = ()
    instructions: str | None = None
    output_type: type[OutputT] = str  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType] - its default
    limits: PlanLimits = field(default_factory=PlanLimits)
    name: str = "agent"
    output_repairs: int = 2
    loops: LoopPolicy | None = field(default_factory=LoopPolicy)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    retrieval: Retrieval | None = None
    post_model: PostModel | None = None
    extraction_tag: str | None = EXTRACTION_TAG
    prices: Prices | None = None
    effects: Effects = field(default_factory=MemoryEffects)
    _plan: Plan = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("name", self.name, "give the agent a name, such as 'researcher'")
        if not callable(getattr(self.model, "respond", None)):
            raise ConfigError("model", self.model, "use a model with a respond() method, such as OpenAIModel")
        check_count("output_repairs", self.output_repairs)
        checked_limits(self.limits)
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
            retrieval=self.retrieval,
            post_model=self.post_model,
            loops=None if self.loops is None else LoopDetector(policy=self.loops),
            extraction_tag=checked_tag(self.extraction_tag),
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
        state = fresh_state(
            prompt,
            history=history,
            limits=checked_limits(limits or self.limits),
            run_id=run_id or uuid.uuid4().hex,
            agent=self.name,
        )
        return self._open(state, budget, deps, Started(model=self.model.name))

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
        return await stream.to_end()

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
        _refuse_running_loop("run")
        run = functools.partial(
            self.run, prompt, history=history, limits=limits, budget=budget, deps=deps, run_id=run_id
        )
        return anyio.run(run)

    def resume_stream(
        self,
        run: AgentResult[object] | RunState,
        *,
        answers: Mapping[str, object] | None = None,
        limits: PlanLimits | None = None,
        budget: Budget | None = None,
        deps: object = None,
    ) -> RunStream[OutputT]:
        """Go on with a run that paused, or that a limit, a loop, an error or a cancellation ended, and stream it.

        What was spent stays spent and what was done is not done again. `answers` are by pause id (JSON,
        or a `Decision` for an approval); one is enough to go on. After a limit, `limits` must allow more
        of what was used up; without `limits` the run keeps those it had, and with them it has no others.
        A run that was given a `budget` needs one again.

        Raises:
            ResumeError: the run is completed, the limit that ended it is not higher, its shared budget is
                missing, or an answer is missing, foreign, used, expired or does not fit its schema.
        """
        ended = run.state if isinstance(run, AgentResult) else run
        if ended.shared_budget and budget is None:
            raise ResumeError(
                "the run was bounded by a shared budget as well: pass it as budget=, or a new Budget(..., spent=...)"
            )
        state = resumed_state(ended, limits=limits, answers=answers or {}, now=self.effects.now())
        return self._open(state, budget, deps, Resumed(model=self.model.name, answered=tuple(answers or ())))

    async def resume(
        self,
        run: AgentResult[object] | RunState,
        *,
        answers: Mapping[str, object] | None = None,
        limits: PlanLimits | None = None,
        budget: Budget | None = None,
        deps: object = None,
    ) -> AgentResult[OutputT]:
        """Go on with a run to its end and return the result; see `resume_stream`, and `run` for what it raises."""
        return await self.resume_stream(run, answers=answers, limits=limits, budget=budget, deps=deps).to_end()

    def resume_sync(
        self,
        run: AgentResult[object] | RunState,
        *,
        answers: Mapping[str, object] | None = None,
        limits: PlanLimits | None = None,
        budget: Budget | None = None,
        deps: object = None,
    ) -> AgentResult[OutputT]:
        """`resume` for code that is not async.

        Raises:
            UsageError: it was called where an event loop is running; await `resume` there.
        """
        _refuse_running_loop("resume")
        go_on = functools.partial(self.resume, run, answers=answers, limits=limits, budget=budget, deps=deps)
        return anyio.run(go_on)

    def as_tool(
        self, *, name: str | None = None, description: str | None = None, limits: PlanLimits | None = None
    ) -> Tool:
        """This agent as a tool of another: it is given a `task` and returns its answer.

        Every unit of its run is charged to the caller's budget and to all above it; `limits` (by
        default the agent's own) bound it besides. Its events are in the caller's stream, with its name
        in their `path`. A run that is cut short returns its partial answer, marked, and the caller goes
        on; one that pauses pauses the caller. `description` tells the model when to use it.
        """
        below = functools.partial(self._run_below, limits or self.limits)
        described = description or self.instructions or f"Hand a task to the agent {self.name}."
        return delegate(below, name=name or self.name, description=described)

    async def _run_below(self, limits: PlanLimits, task: str, context: ToolContext[Any]) -> AgentResult[OutputT]:
        parent = context.parent
        waiting = parent.waiting_child(context.call_id) if parent is not None else None
        if waiting is not None:
            state, first = waiting.copy(), Resumed(model=self.model.name)
            reopen(state)
        else:
            run_id = f"{context.run_id}/{id_part(context.call_id)}"
            state, first = fresh_state(task, history=(), limits=limits, run_id=run_id, agent=self.name), None
        place = parent.place_below(context.call_id) if parent is not None else Place(deps=context.deps)
        queue = parent.queue if parent is not None else EventQueue(unread=True)
        run = Run(self._plan, state, Budget(state.limits, parent=context.budget, spent=state.spent), queue, place)
        with observing():
            await Leg(run, first or Started(model=self.model.name)).drive()
        return run.result()

    def _open(
        self, state: RunState, budget: Budget | None, deps: object, first: Started | Resumed
    ) -> RunStream[OutputT]:
        queue = EventQueue(state.seq)
        state.shared_budget = budget is not None
        scope = Budget(state.limits, parent=budget, spent=state.spent)
        return RunStream(Leg(Run(self._plan, state, scope, queue, Place(deps=deps)), first), queue)


def _refuse_running_loop(name: str) -> None:
    try:
        anyio.get_current_task()
    except RuntimeError:  # what every anyio says where there is no event loop
        return
    raise UsageError(f"{name}_sync() cannot be used inside a running event loop: use `await agent.{name}(...)` there")
