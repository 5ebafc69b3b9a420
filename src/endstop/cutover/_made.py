"""How an agent was made, so that it can be made again with stand-ins for all that acts."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from langchain_core.language_models import BaseChatModel
from langgraph.store.memory import InMemoryStore

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

Factory: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """How an agent was made: the factory, and what it was called with."""

    factory: Factory
    args: tuple[object, ...]
    kwargs: Mapping[str, object]

    def again(self, model: BaseChatModel, stand_ins: Sequence[BaseTool]) -> object:
        """The agent with this model in the place of all its models, and these tools in the place of all its tools."""
        bound = inspect.signature(self.factory).bind(*self.args, **self.kwargs)
        given = bound.arguments
        by_name = {tool.name: tool for tool in stand_ins}
        middleware = [_harmless(one, model, by_name) for one in given.get("middleware", ())]
        of_middleware = {tool.name for one in given.get("middleware", ()) for tool in getattr(one, "tools", ())}
        own = [tool for tool in stand_ins if tool.name not in of_middleware]
        given |= {"model": model, "tools": [*own, *_provider_tools(given.get("tools"))]}
        if middleware:
            given["middleware"] = middleware
        if given.get("checkpointer"):
            given["checkpointer"] = None
        if given.get("store") is not None:
            given["store"] = InMemoryStore()
        graph: object = self.factory(*bound.args, **bound.kwargs)
        return graph


def _harmless(middleware: object, model: BaseChatModel, tools: Mapping[str, BaseTool]) -> object:
    """The middleware with the recorded model for its own, and stand-ins for its tools."""
    same = copy.copy(middleware)
    values: dict[str, Any] = dict(vars(middleware))
    for name, value in values.items():
        if isinstance(value, BaseChatModel):
            setattr(same, name, model)
        elif _is_bound_model(value):
            setattr(same, name, value.model_copy(update={"bound": model}))
        elif _are_models(value):
            setattr(same, name, [model for _ in value])
    own: Sequence[BaseTool] = getattr(middleware, "tools", ())
    if own:
        vars(same)["tools"] = [tools[tool.name] for tool in own]
    return same


def _is_bound_model(value: Any) -> bool:
    """Whether it is a chat model with something around it: bound arguments, retries."""
    inner: object = getattr(value, "bound", None)
    return isinstance(inner, BaseChatModel) and callable(getattr(value, "model_copy", None))


def _are_models(value: object) -> bool:
    listed = _listed(value)
    return bool(listed) and all(isinstance(one, BaseChatModel) for one in listed)


def _provider_tools(tools: object) -> list[object]:
    """The tools that the provider runs: they are told to the model and run nowhere here."""
    return [tool for tool in _listed(tools) if isinstance(tool, dict)]


def _listed(value: object) -> Sequence[object]:
    listed: Any = value
    return listed if isinstance(value, list | tuple) else ()
