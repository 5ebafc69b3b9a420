"""LangChain's `create_agent` with its limit middlewares, as a runner of the conformance kit of limits.

`endstop conformance examples/runners/langchain_agent.py:runner` runs it as it comes, `:best` as the checks like it
best: with limits of the thread, which a pause does not reset, an error at the limit of model calls, and an end of the
run at the limit of all tool calls.

Each sub-agent has the limits of its parent, since it cannot share them. A run that a limit ended is `completed` unless
an exception says otherwise: what it returns differs from a normal end in nothing but the words of the last message.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any
from uuid import uuid4

from langchain.agents import create_agent, middleware
from langchain.agents.middleware.model_call_limit import ModelCallLimitExceededError
from langchain.agents.middleware.tool_call_limit import ToolCallLimitExceededError
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.types import Command

from endstop import PlanLimits
from endstop.testing.limits import MissingFeature, RunEnd, Scenario


class LangChainRunner:
    """Runs scenarios on `create_agent` with the `exit_behavior` given, and `run_limit` or `thread_limit` as scope."""

    def __init__(self, scope: Any, at_model_limit: Any, at_tool_limit: Any) -> None:
        self.name = f"langchain {version('langchain')} ({scope}, {at_model_limit!r}, {at_tool_limit!r})"
        self._scope = scope
        self._at_model_limit = at_model_limit
        self._at_tool_limit = at_tool_limit

    async def run(self, scenario: Scenario) -> RunEnd:
        """Run the scenario to its end or to its next pause."""
        agent = self._agent(scenario, scenario.limits, InMemorySaver())
        return await self._go(agent, {"messages": [("user", scenario.prompt)]}, str(uuid4()))

    async def approve(self, end: RunEnd) -> RunEnd:
        """Approve everything that the run waits for and go on."""
        agent, thread, count = end.handle
        return await self._go(agent, Command(resume={"decisions": [{"type": "approve"}] * count}), thread)

    async def _go(self, agent: Any, given: Any, thread: str) -> RunEnd:
        config = {"configurable": {"thread_id": thread}}
        try:
            state = await agent.ainvoke(given, config)
        except (ModelCallLimitExceededError, ToolCallLimitExceededError, GraphRecursionError) as error:
            messages = (await agent.aget_state(config)).values["messages"]
            limit = None if isinstance(error, GraphRecursionError) else self._scope
            return RunEnd(status="raised", limit=limit, unanswered=unanswered(messages), error=str(error))
        if waiting := state.get("__interrupt__"):
            return RunEnd(status="paused", handle=(agent, thread, len(waiting[0].value["action_requests"])))
        messages = state["messages"]
        return RunEnd(status="completed", text=messages[-1].text, unanswered=unanswered(messages))

    def _agent(self, scenario: Scenario, limits: PlanLimits, saver: InMemorySaver | None = None) -> Any:
        child = self._agent(scenario.child, limits) if scenario.child is not None else None
        tools = tools_of(scenario, child)
        retry = middleware.ModelRetryMiddleware(initial_delay=0, jitter=False, on_failure="error")
        asking: Any = {tool.name: True for tool in scenario.tools if tool.needs_approval}
        parts = [*self._limits(limits), retry, *([middleware.HumanInTheLoopMiddleware(asking)] if asking else [])]
        return create_agent(ScriptModel(script=scenario.script), tools, middleware=parts, checkpointer=saver)

    def _limits(self, limits: PlanLimits) -> list[Any]:
        for name in ("max_tokens", "max_output_tokens", "max_cost", "max_seconds", "deadline", "max_depth"):
            if getattr(limits, name) != getattr(PlanLimits(), name):
                raise MissingFeature(f"it has no such limit as {name}")
        scope, at_model_limit, at_tool_limit = self._scope, self._at_model_limit, self._at_tool_limit
        calls = [count for count in (limits.max_model_rounds, limits.max_model_calls) if count is not None]
        parts: list[Any] = []
        if calls:
            parts.append(middleware.ModelCallLimitMiddleware(**{scope: min(calls)}, exit_behavior=at_model_limit))
        if (count := limits.max_tool_calls) is not None:
            parts.append(middleware.ToolCallLimitMiddleware(**{scope: count}, exit_behavior=at_tool_limit))
        for name, count in limits.tool_limits.items():
            parts.append(middleware.ToolCallLimitMiddleware(tool_name=name, **{scope: count}))
        return parts


def tools_of(scenario: Scenario, child: Any) -> list[StructuredTool]:
    """The scenario's tools; with a child that is an agent, `delegate` runs it."""
    tools = [StructuredTool.from_function(coroutine=tool.run, name=tool.name) for tool in scenario.tools]

    async def delegate(task: str) -> str:
        """Delegate a task."""
        return (await child.ainvoke({"messages": [("user", task)]}))["messages"][-1].text

    return tools if child is None else [*tools, StructuredTool.from_function(coroutine=delegate)]


class ScriptModel(BaseChatModel):
    """A chat model that answers what the script says."""

    script: Any

    @property
    def _llm_type(self) -> str:
        return "script"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self.bind(tools=tools)

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        turn = await self.script.answer(tools_offered=bool(kwargs.get("tools")))
        calls: Any = [{"id": call.call_id, "name": call.name, "args": dict(call.arguments)} for call in turn.tool_calls]
        usage = UsageMetadata(
            input_tokens=turn.usage.input_tokens,
            output_tokens=turn.usage.output_tokens,
            total_tokens=turn.usage.input_tokens + turn.usage.output_tokens,
        )
        message = AIMessage(content=turn.text, tool_calls=calls, usage_metadata=usage)
        return ChatResult(generations=[ChatGeneration(message=message)])


def unanswered(messages: list[BaseMessage]) -> int:
    asked = {call["id"] for message in messages if isinstance(message, AIMessage) for call in message.tool_calls}
    return len(asked - {message.tool_call_id for message in messages if isinstance(message, ToolMessage)})


runner = LangChainRunner("run_limit", at_model_limit="end", at_tool_limit="continue")
best = LangChainRunner("thread_limit", at_model_limit="error", at_tool_limit="end")
