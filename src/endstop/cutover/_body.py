"""The kernel as the body of a LangGraph agent: its loop, budget and tools drive the nodes of the agent's graph."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from langgraph.errors import GraphInterrupt
from pydantic_core import to_jsonable_python

from endstop._agent import Agent
from endstop._errors import ToolFatal
from endstop._limits import PlanLimits
from endstop._messages import ModelTurn, ToolCall, ToolSpec, Usage
from endstop._steps import RetryPolicy
from endstop._tools import Tool, ToolContext

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from langchain_core.messages import AIMessage
    from langgraph.graph.state import CompiledStateGraph

    from endstop._limits import Spent
    from endstop._messages import JsonObject
    from endstop.cutover._turn import Task, Turn
    from endstop.models.base import ModelRequest, OnDelta

AGAIN = "ask_again"
"""The kernel's own call for a round whose answer had no tools to run and was not the last."""

OTHER = "other_tool"
"""The kernel's own call for one of a tool that the agent was not built with."""

_NO_PARAMETERS: JsonObject = {"type": "object", "properties": {}}


class _EndedElsewhere(Exception):
    """The turn ended by what is in `turn.failure`."""


class TurnModel:
    """The model node and all that stands around it, as the model of a kernel run."""

    name = "cutover"

    def __init__(self, turn: Turn, known: Iterable[str]) -> None:
        self.turn = turn
        self._known = frozenset(known)
        self.waiting: dict[str, Task] = {}

    async def respond(self, request: ModelRequest, on_delta: OnDelta) -> ModelTurn:
        """Walk the graph to the next tool calls, to the next question for the model, or to its end."""
        turn = self.turn
        rounds = turn.rounds
        try:
            tasks = await turn.advance()
        except Exception as error:
            turn.failure = error
            raise _EndedElsewhere from error
        answer = turn.newest_answer if turn.rounds > rounds else None
        if tasks is None:
            return _model_turn(answer)
        return _model_turn(answer, self._calls(tasks) or [_ask_again(turn)])

    def _calls(self, tasks: Sequence[Task]) -> list[ToolCall]:
        """The calls that the tasks answer, as the kernel's; one of a tool that it does not know goes by `OTHER`."""
        self.waiting = {}
        calls: list[ToolCall] = []
        for task in tasks:
            for call in self.turn.calls_of(task):
                call_id = f"{call['id']}:{self.turn.steps}:{len(calls)}"
                self.waiting[call_id] = task
                name = call["name"] if call["name"] in self._known else OTHER
                arguments: JsonObject = to_jsonable_python(call["args"], fallback=repr, inf_nan_mode="strings")
                calls.append(ToolCall(call_id=call_id, name=name, arguments=arguments))
        return calls


def kernel_tools(graph: CompiledStateGraph[Any, Any, Any, Any]) -> tuple[Tool, ...]:
    """The tools of an agent's graph as the kernel's own; each runs the graph's tool node."""
    node = graph.builder.nodes.get("tools")
    named: Mapping[str, Any] = getattr(node.runnable, "tools_by_name", {}) if node is not None else {}
    tools = {name: _tool(name, tool.description) for name, tool in named.items() if name not in (AGAIN, OTHER)}
    return (*tools.values(), _tool(OTHER, "A tool that the agent was not built with."), _again())


async def run_turn(turn: Turn, tools: Sequence[Tool], *, name: str) -> Spent | None:
    """Run the turn to its end on a kernel agent; what it spent, or `None` where it has failed.

    Every limit of the kernel is off but that of rounds: LangGraph's `recursion_limit`, which is counted exactly by
    super-steps, never admits more rounds than super-steps.
    """
    agent: Agent[str] = Agent(
        TurnModel(turn, (tool.name for tool in tools)),
        tools=tools,
        name=name,
        limits=PlanLimits(max_model_rounds=turn.limit + 1, max_depth=None, on_limit="stop", warn_at=None),
        retry=RetryPolicy(max_attempts=1),
        loops=None,
        extraction_tag=None,
    )
    try:
        result = await agent.run("(the input of the turn)", deps=agent.model)
    except (_EndedElsewhere, ToolFatal):
        return None
    except BaseExceptionGroup:
        if turn.failure is None:
            raise
        return None  # what a tool raised beside others is the caller's, and not the group that it came out in
    return result.spent


def _tool(name: str, description: str) -> Tool:
    return Tool(
        spec=ToolSpec(name=name, description=description, parameters=_NO_PARAMETERS),
        body=_answer,
        check=dict,
    )


def _again() -> Tool:
    async def nothing(arguments: dict[str, Any], context: ToolContext[Any]) -> object:
        return "(ask the model again)"

    spec = ToolSpec(name=AGAIN, description="Ask the model again.", parameters=_NO_PARAMETERS)
    return Tool(spec=spec, body=nothing, check=dict)


async def _answer(arguments: dict[str, Any], context: ToolContext[Any]) -> object:
    """Run the tool node for one call. A question for a person waits for the calls beside it, an error does not."""
    model: TurnModel = context.deps
    turn = model.turn
    try:
        return await turn.answer(model.waiting[context.call_id])
    except GraphInterrupt:
        return "(waits for a person)"
    except asyncio.CancelledError:
        raise
    except Exception as error:
        turn.failure = turn.failure or error
        raise ToolFatal(type(error).__name__) from error


def _ask_again(turn: Turn) -> ToolCall:
    return ToolCall(call_id=f"again:{turn.steps}", name=AGAIN, arguments={})


def _model_turn(answer: AIMessage | None, calls: Sequence[ToolCall] = ()) -> ModelTurn:
    return ModelTurn(
        text=str(answer.text) if answer is not None else "",
        tool_calls=tuple(calls),
        finish_reason="tool_calls" if calls else "stop",
        usage=_usage(answer),
    )


def _usage(answer: AIMessage | None) -> Usage | None:
    """What the answer says that it took; a part of it, as some providers and fakes give, is none."""
    told: Any = answer.usage_metadata if answer is not None else None
    if not told or "input_tokens" not in told or "output_tokens" not in told:
        return None
    return Usage(input_tokens=told["input_tokens"], output_tokens=told["output_tokens"])
