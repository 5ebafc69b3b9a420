"""The limits of `PlanLimits` as a middleware of LangChain's `create_agent`.

::

    agent = create_agent(model, tools, middleware=[BoundMiddleware(PlanLimits(max_model_calls=20))])

It adds no super-step: it only wraps what the model node and the tool node do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
from langchain.agents.middleware import AgentMiddleware
from langgraph.config import get_config

from endstop._errors import ConfigError
from endstop._limits import checked_limits
from endstop._loops import LoopDetector, LoopPolicy
from endstop.langgraph._account import check_terms
from endstop.langgraph._agent_run import Bounds, LiveRuns, begins_run, new_record
from endstop.langgraph._agent_visits import AnyRequest, AnyResponse, ModelVisit, ToolVisit
from endstop.langgraph._channels import ENDING, LEG, RECORD, BoundState, RunRecord, head_of
from endstop.langgraph._graph_map import note_bounded
from endstop.langgraph._limits import GraphLimits
from endstop.langgraph._meter import active_meter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from langchain.agents.middleware.types import ToolCallRequest
    from langchain_core.messages import ToolMessage
    from langgraph.types import Command

    from endstop._limits import PlanLimits, Prices
    from endstop._messages import JsonObject
    from endstop.langgraph._agent_run import AgentRun

_LOOPS = LoopPolicy()

ToolAnswer: TypeAlias = "ToolMessage | Command[Any]"


class BoundMiddleware(AgentMiddleware[BoundState, Any]):
    """Bounds an agent of `create_agent`: it ends inside its limits, with an answer, and says how.

    Every request that is sent for the agent counts, whoever sends it from inside the model node (retries,
    other models), and so does whatever sub-agents do that its tools run. When a limit is reached, the calls that
    were asked for and do not fit are answered as not run, and the model is asked for a last answer without
    tools, from what was held back for it. How a run ended that did not complete stands in the state under
    `endstop` and in the last message's `response_metadata["endstop"]`, as the data of a `GraphEnding`.

    A run begins with a new message of the user and goes on over every pause and resume: what it has spent
    is in the state, and so in every checkpoint. `thread_limits` bound all runs of a thread together.
    `loops` says when repetition is a loop: the model is told once, and the run ends where it goes on (`None`: never).
    `prices` is the table that `max_cost` is charged by.

    With all limits `None` and `loops=None` it changes nothing.

    Put it first in the list: then what other middleware makes of an answer is inside it.

    Raises:
        ConfigError: a value is of another kind, or the limits bound what only `bound` can count.
    """

    state_schema = BoundState

    def __init__(
        self,
        limits: PlanLimits,
        *,
        thread_limits: PlanLimits | None = None,
        loops: LoopPolicy | None = _LOOPS,
        prices: Prices | None = None,
    ) -> None:
        super().__init__()
        self.tools = []
        check_terms(thread_limits=thread_limits, loops=loops, prices=prices)
        detector = LoopDetector(policy=loops) if loops is not None else None
        self._bounds = Bounds(
            limits=_supported("limits", limits),
            thread_limits=_supported("thread_limits", thread_limits) if thread_limits is not None else None,
            loops=detector,
            prices=prices,
        )
        self._is_idle = detector is None and thread_limits is None and not limits.limits_anything
        self._live = LiveRuns()
        note_bounded(self, "BoundMiddleware", limits, thread_limits)

    def wrap_model_call(self, request: AnyRequest, handler: Callable[[AnyRequest], AnyResponse]) -> AnyResponse:
        """Make the request if it fits the limits, else the last one, else end without."""
        if self._is_idle:
            return handler(request)
        with self._model_visit(request) as visit:
            while (asked := visit.next_request()) is not None:
                with visit.attempt():
                    visit.take(handler(asked))
        return visit.response

    async def awrap_model_call(
        self, request: AnyRequest, handler: Callable[[AnyRequest], Awaitable[AnyResponse]]
    ) -> AnyResponse:
        """Make the request if it fits the limits, else the last one, else end without; it is cut off in time."""
        if self._is_idle:
            return await handler(request)
        with self._model_visit(request) as visit:
            while (asked := visit.next_request()) is not None:
                with visit.attempt(), _alarm(visit.seconds_left()) as clock:
                    visit.take(await handler(asked))
                if clock.cancelled_caught:
                    visit.cut_off()
        return visit.response

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolAnswer]) -> ToolAnswer:
        """Run the call if it fits the limits, else say that it was not run and why."""
        if self._is_idle:
            return handler(request)
        with self._tool_visit(request) as visit:
            if visit.may_start:
                visit.result = handler(request)
        return visit.answer

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolAnswer]]
    ) -> ToolAnswer:
        """Run the call if it fits the limits, else say that it was not run and why; it is cut off in time."""
        if self._is_idle:
            return await handler(request)
        with self._tool_visit(request) as visit:
            if visit.may_start:
                with _alarm(visit.seconds_left()) as clock:
                    visit.result = await handler(request)
                if clock.cancelled_caught:
                    visit.cut_off()
        return visit.answer

    def _model_visit(self, request: AnyRequest) -> ModelVisit:
        run, config = self._open(request.state, tools=bool(request.tools)), get_config()
        return ModelVisit(run, request, config, had_ended=request.state.get(ENDING) is not None)

    def _tool_visit(self, request: ToolCallRequest) -> ToolVisit:
        run = self._open(request.state, tools=True, at_model=False)
        return ToolVisit(run, request, get_config())

    def _open(self, state: Mapping[str, Any], *, tools: bool, at_model: bool = True) -> AgentRun:
        """The run that the state is of. Another one begins only where a leg begins, and that is at the model node."""
        messages = state["messages"]
        data: JsonObject = state.get(RECORD) or {}
        place, above, head = _place(), active_meter(), head_of(data)
        is_input = at_model and not state.get(LEG)
        begins = head is None or (is_input and begins_run(messages, head.turn))
        run = None if begins or head is None else self._live.find(place, head, above)
        if run is not None:
            return run
        record = RunRecord.from_data(data)
        if begins or record is None:
            record = new_record(messages, record)
        return self._live.make(place, record, self._bounds, above, tools=tools)


def _supported(field: str, limits: PlanLimits) -> PlanLimits:
    checked_limits(limits)
    if isinstance(limits, GraphLimits) and (limits.max_super_steps is not None or limits.node_limits):
        remedy = "a middleware sees no super-steps and no nodes; use bound(agent, limits) for these limits"
        raise ConfigError(field, limits, remedy)
    return limits


def _place() -> str:
    """Where the agent runs: the thread, and inside which task of which graph."""
    configurable = get_config().get("configurable") or {}
    above, _, _ = str(configurable.get("checkpoint_ns", "")).rpartition("|")
    return f"{configurable.get('thread_id', '')}/{above}"


def _alarm(seconds: float | None) -> anyio.CancelScope:
    return anyio.move_on_after(seconds)
