"""The kernel as a runner of the conformance kit, and the pattern for an adapter of your own."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING

from endstop._agent import Agent
from endstop._errors import LimitExceeded, ModelError
from endstop._messages import pending_calls
from endstop._steps import RetryPolicy
from endstop._tools import Tool, tool
from endstop.testing.limits.kit import ModelOutage, RunEnd, Scenario

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from endstop._limits import OnLimit
    from endstop._messages import ModelTurn
    from endstop._results import AgentResult
    from endstop.models.base import ModelRequest, OnDelta
    from endstop.testing.limits.kit import CountingTool, Script


class KernelRunner:
    """Runs scenarios on `endstop.Agent`, with limits that end a run as `on_limit` says."""

    def __init__(self, *, on_limit: OnLimit = "answer") -> None:
        self.name = f"endstop {version('endstop')} (on_limit={on_limit!r})"
        self._on_limit: OnLimit = on_limit

    async def run(self, scenario: Scenario) -> RunEnd:
        """Run the scenario to its end or to its next pause."""
        agent = _agent(replace(scenario, limits=replace(scenario.limits, on_limit=self._on_limit)))
        return await _end(agent, agent.run(scenario.prompt))

    async def approve(self, end: RunEnd) -> RunEnd:
        """Approve everything that the run waits for and go on."""
        assert isinstance(end.handle, _Paused)
        agent, result = end.handle.agent, end.handle.result
        answers = {pause.pause_id: {"type": "approve"} for pause in result.pauses}
        return await _end(agent, agent.resume(result, answers=answers))


class _Paused:
    def __init__(self, agent: Agent[str], result: AgentResult[str]) -> None:
        self.agent = agent
        self.result = result


class _ScriptModel:
    name = "script"

    def __init__(self, script: Script) -> None:
        self._script = script

    async def respond(self, request: ModelRequest, on_delta: OnDelta) -> ModelTurn:
        try:
            return await self._script.answer(tools_offered=bool(request.tools))
        except ModelOutage as outage:
            raise ModelError(str(outage), retryable=True, status=503) from outage


def _agent(scenario: Scenario, name: str = "agent") -> Agent[str]:
    tools = [_tool(counting) for counting in scenario.tools]
    if scenario.child is not None:
        tools.append(_agent(scenario.child, "delegate").as_tool(description="Delegate a task."))
    retry = RetryPolicy(initial_wait_seconds=0, jitter_seconds=0)
    # The kit counts what the limits let through: its scripts repeat themselves on purpose.
    return Agent(_ScriptModel(scenario.script), tools=tools, limits=scenario.limits, name=name, retry=retry, loops=None)


def _tool(counting: CountingTool) -> Tool:
    return tool(name=counting.name, requires_approval=counting.needs_approval)(counting.run)


async def _end(agent: Agent[str], run: Awaitable[AgentResult[str]]) -> RunEnd:
    try:
        result = await run
    except LimitExceeded as error:
        return replace(_ended(error.result), status="raised", error=str(error))
    if result.stop_reason == "paused":
        return RunEnd(status="paused", handle=_Paused(agent, result))
    return _ended(result)


def _ended(result: AgentResult[object]) -> RunEnd:
    return RunEnd(
        status="cut" if result.truncated else "completed",
        text=result.text,
        limit=result.ending.limit if result.ending is not None else None,
        unanswered=len(pending_calls(result.messages)),
    )
