"""LangGraph agents that endstop bounds, as runners of the conformance kit of limits.

`endstop conformance examples/runners/bound_graph.py:create_agent` runs `bound(create_agent(...))`, `:react_agent` runs
`bound(create_react_agent(...))`, and `:middleware` runs `create_agent` with a `BoundMiddleware`. A runner makes the
agent, hands the limits over as they are, and reads the end where endstop says it: in the newest message.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any
from uuid import uuid4

from langchain import agents
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain_agent import ScriptModel, tools_of, unanswered
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import create_react_agent
from langgraph.types import Command, interrupt

from endstop.langgraph import bound
from endstop.langgraph.middleware import BoundMiddleware
from endstop.testing.limits import ModelOutage, RunEnd, Scenario

ATTEMPTS = 4


class GraphRunner:
    """Runs scenarios on the agent that `make` makes of one, which bounds its child in the same way."""

    def __init__(self, wiring: str, make: Any) -> None:
        self.name = f"{wiring} on langgraph {version('langgraph')}"
        self._make = make

    async def run(self, scenario: Scenario) -> RunEnd:
        """Run the scenario to its end or to its next pause."""
        agent = self._make(scenario, InMemorySaver())
        return await self._go(agent, {"messages": [("user", scenario.prompt)]}, str(uuid4()))

    async def approve(self, end: RunEnd) -> RunEnd:
        """Approve everything that the run waits for and go on."""
        agent, thread, count = end.handle
        return await self._go(agent, Command(resume={"decisions": [{"type": "approve"}] * count}), thread)

    async def _go(self, agent: Any, given: Any, thread: str) -> RunEnd:
        config = {"configurable": {"thread_id": thread}}
        state = await agent.ainvoke(given, config)
        if waiting := state.get("__interrupt__"):
            return RunEnd(status="paused", handle=(agent, thread, len(waiting[0].value["action_requests"])))
        newest = state["messages"][-1]
        ending = newest.response_metadata.get("endstop")
        # What is stored is what the thread would go on from.
        stored = (await agent.aget_state(config)).values["messages"]
        return RunEnd(
            status="completed" if ending is None else "cut",
            text=newest.text,
            limit=None if ending is None else ending["limit"],
            unanswered=unanswered(stored),
        )


def bound_agent(scenario: Scenario, saver: InMemorySaver | None = None) -> Any:
    """`bound(create_agent(...))`."""
    return bound(_create_agent(scenario, bound_agent, saver), scenario.limits)


def agent_with_middleware(scenario: Scenario, saver: InMemorySaver | None = None) -> Any:
    """`create_agent` with a `BoundMiddleware`."""
    return _create_agent(scenario, agent_with_middleware, saver, BoundMiddleware(scenario.limits))


def bound_react_agent(scenario: Scenario, saver: InMemorySaver | None = None) -> Any:
    """`bound(create_react_agent(...))`."""
    child = bound_react_agent(scenario.child) if scenario.child is not None else None
    tools = [_asking(tool) if tool.name in _approved(scenario) else tool for tool in tools_of(scenario, child)]
    model = ScriptModel(script=scenario.script).bind_tools(tools)
    retried = model.with_retry(retry_if_exception_type=(ModelOutage,), stop_after_attempt=ATTEMPTS)
    agent = create_react_agent(lambda state, runtime: retried, tools, checkpointer=saver)
    return bound(agent, scenario.limits)


def _create_agent(scenario: Scenario, make: Any, saver: InMemorySaver | None, *first: AgentMiddleware) -> Any:
    child = make(scenario.child) if scenario.child is not None else None
    asking: Any = {tool.name: True for tool in scenario.tools if tool.needs_approval}
    parts = [*first, Retry(), *([HumanInTheLoopMiddleware(asking)] if asking else [])]
    model = ScriptModel(script=scenario.script)
    return agents.create_agent(model, tools_of(scenario, child), middleware=parts, checkpointer=saver)


class Retry(AgentMiddleware):
    """Makes a request again that failed in passing."""

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        for _ in range(ATTEMPTS - 1):
            try:
                return await handler(request)
            except ModelOutage:
                continue
        return await handler(request)


def _approved(scenario: Scenario) -> set[str]:
    return {tool.name for tool in scenario.tools if tool.needs_approval}


def _asking(tool: StructuredTool) -> StructuredTool:
    """The tool, which first asks a person: this agent has no other way."""

    async def run(place: str) -> str:
        interrupt({"action_requests": [{"name": tool.name, "args": {"place": place}}]})
        return await tool.ainvoke({"place": place})

    return StructuredTool.from_function(coroutine=run, name=tool.name, description=tool.description)


create_agent = GraphRunner("bound(create_agent)", bound_agent)
middleware = GraphRunner("create_agent with BoundMiddleware", agent_with_middleware)
react_agent = GraphRunner("bound(create_react_agent)", bound_react_agent)
