"""The kernel as a runner of the conformance kit, and the pattern for an adapter of your own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from endstop._agent import Agent
from endstop._errors import EndstopError, ModelError
from endstop._messages import pending_calls
from endstop._steps import RetryPolicy
from endstop._tools import Tool, tool
from endstop.testing.limits.kit import ModelOutage, RunEnd, Scenario

if TYPE_CHECKING:
    from endstop._messages import ModelTurn
    from endstop._results import AgentResult
    from endstop.models.base import ModelRequest, OnDelta
    from endstop.testing.limits.kit import CountingTool, Script


class KernelRunner:
    """Runs scenarios on `endstop.Agent`."""

    name = "endstop kernel"

    async def run(self, scenario: Scenario) -> RunEnd:
        """Run the scenario to its end or to its next pause."""
        agent = _agent(scenario)
        try:
            return _end(agent, await agent.run(scenario.prompt))
        except EndstopError as error:
            return RunEnd(status="raised", error=str(error))

    async def approve(self, end: RunEnd) -> RunEnd:
        """Approve everything that the run waits for and go on."""
        assert isinstance(end.handle, _Paused)
        agent, result = end.handle.agent, end.handle.result
        answers = {pause.pause_id: {"type": "approve"} for pause in result.pauses}
        return _end(agent, await agent.resume(result, answers=answers))


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


def _end(agent: Agent[str], result: AgentResult[str]) -> RunEnd:
    if result.stop_reason == "paused":
        return RunEnd(status="paused", handle=_Paused(agent, result))
    return RunEnd(
        status="cut" if result.truncated else "completed",
        text=result.text,
        limit=result.ending.limit if result.ending is not None else None,
        unanswered=len(pending_calls(result.messages)),
    )
