"""What LangChain's agents are made of: models and chains, tools, and middleware with its hooks and limits."""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, cast

from langchain.agents.middleware import AgentMiddleware, ModelCallLimitMiddleware, ToolCallLimitMiddleware
from langchain.agents.structured_output import OutputToolBinding
from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable, RunnableSequence, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBindingBase

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from langchain_core.tools import BaseTool
    from typing_extensions import TypeIs

REACT_HOOKS = {"pre_model_hook": "before_model", "post_model_hook": "after_model"}
"""The nodes that `create_react_agent` makes of its two hooks, by name."""

_HOOKS = ("before_agent", "before_model", "after_model", "after_agent")


def parts_of(found: object) -> Iterator[object]:
    """An object, and what a chain or a wrapper of LangChain's holds."""
    yield found
    if not isinstance(found, FunctionType | type) and _is_runnable(found):
        for one in _held(found):
            yield from parts_of(one)


def _is_runnable(found: object) -> TypeIs[Runnable[Any, Any]]:
    return isinstance(found, Runnable)


def _held(runnable: Runnable[Any, Any]) -> Sequence[object]:
    if isinstance(runnable, RunnableBindingBase):
        return [runnable.bound]
    if isinstance(runnable, RunnableSequence):
        return runnable.steps
    return [runnable.runnable] if isinstance(runnable, RunnableWithFallbacks) else []


def is_chat_model(found: object) -> bool:
    """Whether it is a chat model of LangChain's."""
    return isinstance(found, BaseChatModel)


def is_output_tool(found: object) -> bool:
    """Whether it is what the model of an agent calls to give a structured answer, which it may have to repeat."""
    return isinstance(found, OutputToolBinding)


def middleware_of(functions: Iterable[object]) -> object | None:
    """The middleware of an agent whose methods these are."""
    owners: list[object] = [getattr(function, "__self__", None) for function in functions]
    return next((owner for owner in owners if _is_middleware(owner)), None)


def _is_middleware(found: object) -> bool:
    return isinstance(found, AgentMiddleware)


def tool_functions(tool: BaseTool) -> tuple[object, ...]:
    """The functions behind a tool: those that it was made of, or else its own methods."""
    made_of = (getattr(tool, "func", None), getattr(tool, "coroutine", None))
    own = (getattr(tool, "_run", None), getattr(tool, "_arun", None))
    return tuple(function for function in made_of if function is not None) or own


def tools_of(runnable: object) -> Mapping[str, BaseTool] | None:
    """The tools of a node that runs tools, by name; `None` for anything else."""
    tools = getattr(runnable, "tools_by_name", None)
    if not isinstance(runnable, Runnable) or not isinstance(tools, dict):
        return None
    return cast("dict[str, BaseTool]", tools)  # what such a node holds in every version


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimit:
    """What a limit middleware allows in one run, of which kind of node, and whether that many visits end the run."""

    kind: Literal["model", "tools"]
    most: int
    ends: bool


def run_limit_of(middleware: object) -> RunLimit | None:
    """The limit that LangChain's own limit middleware sets on one run; `None` for any other object."""
    if isinstance(middleware, ModelCallLimitMiddleware) and middleware.run_limit is not None:
        return RunLimit(kind="model", most=middleware.run_limit, ends=True)
    if isinstance(middleware, ToolCallLimitMiddleware) and middleware.run_limit is not None:
        ends = middleware.exit_behavior != "continue" and middleware.tool_name is None
        return RunLimit(kind="tools", most=middleware.run_limit, ends=ends)
    return None


def hook_of(functions: Iterable[object]) -> str | None:
    """When a node runs that is a method of an agent's middleware; `None` for any other node."""
    for function in functions:
        if _is_middleware(getattr(function, "__self__", None)):
            called = str(getattr(function, "__name__", ""))
            return called if called in _HOOKS else called.removeprefix("a")
    return None
