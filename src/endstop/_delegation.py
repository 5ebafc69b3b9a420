"""Delegation: an agent as a tool of another. Its run is below the caller's, in the same budget and the same stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeAlias

from endstop._errors import LimitExceeded
from endstop._results import AgentResult
from endstop._tools import ChildPaused, Tool, ToolContext, from_function

RunBelow: TypeAlias = Callable[[str, ToolContext[Any]], Awaitable[AgentResult[object]]]


def delegate(run_below: RunBelow, *, name: str, description: str) -> Tool:
    """A tool that hands a task to another agent.

    Its return is the answer of that run, with the banner where the run did not complete: the caller
    goes on with what there is. A pause of the run below pauses the run that called it.
    """

    async def ask(task: str, context: ToolContext[Any]) -> str:
        try:
            result = await run_below(task, context)
        except LimitExceeded as error:
            return str(error.result)
        if result.stop_reason == "paused":
            raise ChildPaused(result.state)
        return str(result)

    def refusal(context: ToolContext[Any]) -> str | None:
        levels = context.parent.place_below(context.call_id).depth_left if context.parent is not None else None
        if levels is None or levels >= 0:
            return None
        return f"Not run: the limit max_depth leaves no level of delegation for {name}."

    return replace(from_function(ask, name=name, description=description), refusal=refusal)
