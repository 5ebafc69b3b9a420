"""pydantic-ai's `Agent` with `UsageLimits`, as a runner of the conformance kit of limits.

`endstop conformance examples/runners/pydantic_ai_agent.py:runner` runs it.

It is set up as its documentation says and, where that leaves a choice, as the checks like it best: a delegate has the
usage and the limits of its parent, a run that goes on after an approval starts with the usage so far, a request that
failed in passing is attempted again by a hook, and limits of time are the run's `timeout`. Tool calls without a return
are not counted against it: it adds the returns itself before it sends a history again.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pydantic_ai import (
    Agent,
    AgentRunError,
    DeferredToolRequests,
    ModelHTTPError,
    ModelMessage,
    ModelResponse,
    RequestUsage,
    RetryModelRequest,
    RunContext,
    TextPart,
    Tool,
    ToolCallPart,
    UsageLimits,
    __version__,
)
from pydantic_ai.capabilities import Hooks
from pydantic_ai.models.function import AgentInfo, FunctionModel

from endstop import PlanLimits
from endstop.testing.limits import MissingFeature, ModelOutage, RunEnd, Scenario


class PydanticAIRunner:
    """Runs scenarios on pydantic-ai."""

    name = f"pydantic-ai {__version__}"

    async def run(self, scenario: Scenario) -> RunEnd:
        """Run the scenario to its end or to its next pause."""
        return await _run(_agent(scenario, scenario.limits), scenario.limits, user_prompt=scenario.prompt)

    async def approve(self, end: RunEnd) -> RunEnd:
        """Approve everything that the run waits for and go on."""
        agent, limits, result = end.handle
        approved = result.output.build_results(approve_all=True)
        history = result.all_messages()
        return await _run(agent, limits, message_history=history, deferred_tool_results=approved, usage=result.usage)


runner = PydanticAIRunner()


async def _run(agent: Any, limits: PlanLimits, **arguments: Any) -> RunEnd:
    try:
        result = await agent.run(usage_limits=_usage_limits(limits), timeout=_timeout(limits), **arguments)
    except AgentRunError as error:
        return RunEnd(status="raised", error=str(error))  # it carries no answer, and names no limit but in its words
    if isinstance(result.output, DeferredToolRequests):
        return RunEnd(status="paused", handle=(agent, limits, result))
    return RunEnd(status="completed", text=result.output)


def _usage_limits(limits: PlanLimits) -> UsageLimits:
    if limits.tool_limits:
        raise MissingFeature("it has no limit on the calls of one tool")
    if limits.max_depth != PlanLimits().max_depth:
        raise MissingFeature("it has no limit on the levels of delegation")
    requests = [count for count in (limits.max_model_rounds, limits.max_model_calls) if count is not None]
    return UsageLimits(
        request_limit=min(requests, default=None),
        tool_calls_limit=limits.max_tool_calls,
        total_tokens_limit=limits.max_tokens,
        output_tokens_limit=limits.max_output_tokens,
        cost_limit=limits.max_cost,
    )


def _timeout(limits: PlanLimits) -> float | None:
    left = limits.deadline and (limits.deadline - datetime.now(UTC)).total_seconds()
    return min((seconds for seconds in (limits.max_seconds, left) if seconds is not None), default=None)


def _agent(scenario: Scenario, limits: PlanLimits) -> Agent[None, Any]:
    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        try:
            turn = await scenario.script.answer(tools_offered=bool(info.function_tools))
        except ModelOutage as outage:
            raise ModelHTTPError(503, "script", str(outage)) from outage
        cost = limits.assume_price and limits.assume_price.cost(turn.usage)
        usage = RequestUsage(input_tokens=turn.usage.input_tokens, output_tokens=turn.usage.output_tokens, cost=cost)
        calls = [ToolCallPart(call.name, dict(call.arguments), call.call_id) for call in turn.tool_calls]
        return ModelResponse(parts=[*([TextPart(turn.text)] if turn.text else []), *calls], usage=usage)

    tools = [Tool(tool.run, name=tool.name, requires_approval=tool.needs_approval) for tool in scenario.tools]
    if scenario.child is not None:
        delegated = _agent(scenario.child, limits)

        async def delegate(ctx: RunContext[None], task: str) -> str:
            """Delegate a task."""
            return (await delegated.run(task, usage=ctx.usage, usage_limits=ctx.usage_limits)).output

        tools.append(Tool(delegate))
    output = [str, DeferredToolRequests]
    return Agent(
        FunctionModel(answer), tools=tools, output_type=output, capabilities=[Hooks(model_request_error=_again)]
    )


async def _again(ctx: RunContext[None], /, *, request_context: Any, error: Exception) -> ModelResponse:
    raise RetryModelRequest if isinstance(error, ModelHTTPError) else error
