"""The wirings whose costs an audit must know: agents as people build them, on a model of any number of rounds."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import langchain.agents.middleware as middlewares
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    ContextEditingMiddleware,
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    PIIMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
    ToolCallLimitMiddleware,
    ToolRetryMiddleware,
)
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import tool
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, create_react_agent, tools_condition
from pydantic import BaseModel

from endstop.langgraph._audits import Costs
from endstop.langgraph.audit import audit

try:
    from deepagents import create_deep_agent
except ImportError:  # it needs a newer langchain than the lowest
    create_deep_agent = None

NEVER = 10**6
"""Rounds that no run reaches."""

Graph = CompiledStateGraph[Any, Any, Any, Any]


class Place(BaseModel):
    """Where something is."""

    name: str


@tool
def look(place: str) -> str:
    """Look somewhere."""
    return f"nothing in {place}"


class Rounds(BaseChatModel):
    """Asks for tools until its last round, in which it answers. It counts rounds by the history that it is shown."""

    rounds: int = NEVER
    calls_a_round: int = 1
    structured_tool: str | None = None
    answer: str = "nothing"
    called: int = 0

    @property
    def _llm_type(self) -> str:
        return "rounds"

    def bind_tools(self, tools: Sequence[object], **kwargs: Any) -> Runnable[Any, Any]:
        return self

    def with_structured_output(self, schema: object, **kwargs: Any) -> Runnable[Any, Any]:
        return RunnableLambda(lambda messages: {"name": "nowhere"})

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        done = sum(isinstance(message, AIMessage) for message in messages)
        self.called = max(self.called, done + 1)
        message = AIMessage(self.answer)
        if done + 1 < self.rounds:
            names = ["look"] * self.calls_a_round
            message = AIMessage("", tool_calls=[_call(name, done, number) for number, name in enumerate(names)])
        elif self.structured_tool is not None:
            call = {"name": self.structured_tool, "args": {"name": "nowhere"}, "id": f"answer-{done}"}
            message = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=message)])


def _call(name: str, done: int, number: int) -> dict[str, Any]:
    return {"name": name, "args": {"place": f"place {done}"}, "id": f"call-{done}-{number}"}


class Before(AgentMiddleware):
    def before_agent(self, state: Any, runtime: Any) -> None:
        """Nothing to do."""


class After(AgentMiddleware):
    def after_agent(self, state: Any, runtime: Any) -> None:
        """Nothing to do."""


class BeforeModel(AgentMiddleware):
    def before_model(self, state: Any, runtime: Any) -> None:
        """Nothing to do."""


class AfterModel(AgentMiddleware):
    def after_model(self, state: Any, runtime: Any) -> None:
        """Nothing to do."""


class AroundModel(AgentMiddleware):
    def before_model(self, state: Any, runtime: Any) -> None:
        """Nothing to do."""

    def after_model(self, state: Any, runtime: Any) -> None:
        """Nothing to do."""


class AllFour(AroundModel):
    def before_agent(self, state: Any, runtime: Any) -> None:
        """Nothing to do."""

    def after_agent(self, state: Any, runtime: Any) -> None:
        """Nothing to do."""


class WrapModel(AgentMiddleware):
    times = 1

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        for _ in range(self.times - 1):
            handler(request)
        return handler(request)


class WrapModelTwice(WrapModel):
    times = 2


class WrapTool(AgentMiddleware):
    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        return handler(request)


def twice(kind: type[AgentMiddleware]) -> list[AgentMiddleware]:
    """Two middlewares with the same hooks; their names must differ."""
    return [kind(), type(f"Second{kind.__name__}", (kind,), {})()]


@dataclass(frozen=True)
class Wiring:
    """One way to build an agent. `needs` is what the installed packages lack for it, or empty."""

    name: str
    build: Callable[[Rounds], Graph]
    needs: str = ""

    def model(self) -> Rounds:
        """A fresh model that answers as this wiring wants it."""
        if self.name.endswith("ToolStrategy"):
            return Rounds(structured_tool="Place")
        if self.name.endswith("ProviderStrategy"):
            return Rounds(answer='{"name": "nowhere"}')
        return Rounds(calls_a_round=3 if "parallel" in self.name else 1)


def rounds_run(graph: Graph, model: Rounds, rounds: int, recursion_limit: int) -> tuple[bool, int]:
    """Run the graph: whether it ended with the model's answer of that round, and the rounds in which it was called.

    An agent that runs out of steps and apologises has not ended with the model's answer.
    """
    model.rounds, model.called = rounds, 0
    try:
        graph.invoke({"messages": [("user", "Find my keys")]}, {"recursion_limit": recursion_limit})
    except GraphRecursionError:
        return False, model.called
    return model.called == rounds, model.called


def _with(*middleware: AgentMiddleware | list[AgentMiddleware], **options: Any) -> Callable[[Rounds], Graph]:
    return lambda model: create_agent(model, [look], middleware=list(_flat(middleware)), **options)


def _flat(middleware: Sequence[AgentMiddleware | list[AgentMiddleware]]) -> Iterator[AgentMiddleware]:
    for one in middleware:
        yield from one if isinstance(one, list) else [one]


def _react(**options: Any) -> Callable[[Rounds], Graph]:
    def build(model: Rounds) -> Graph:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is deprecated, and in use
            return create_react_agent(model, [look], **options)

    return build


def _hook(state: object) -> dict[str, Any]:
    return {}


def _pre(state: dict[str, Any]) -> dict[str, Any]:
    return {"llm_input_messages": state["messages"]}


def _custom(model: Rounds, *, entry_node: bool = False) -> Graph:
    def llm(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    def window(state: MessagesState) -> dict[str, Any]:
        return {}

    builder = StateGraph(MessagesState)
    builder.add_node("llm", llm)
    builder.add_node("tools", ToolNode([look]))
    if entry_node:
        builder.add_node("window", window)
        builder.add_edge("window", "llm")
    builder.add_edge(START, "window" if entry_node else "llm")
    builder.add_conditional_edges("llm", tools_condition)
    builder.add_edge("tools", "llm")
    return builder.compile()


def _named(name: str, **options: Any) -> Callable[[Rounds], Graph]:
    """An agent with a middleware that only some versions of langchain have."""
    return lambda model: create_agent(model, [look], middleware=[getattr(middlewares, name)(**options)])


def _missing(name: str) -> str:
    return "" if hasattr(middlewares, name) else f"this langchain has no {name}"


def _summarizing(model: Rounds) -> Graph:
    """With a summary that no conversation is long enough for."""
    takes = inspect.signature(SummarizationMiddleware).parameters
    long: dict[str, Any] = (
        {"trigger": ("tokens", NEVER)} if "trigger" in takes else {"max_tokens_before_summary": NEVER}
    )
    return create_agent(model, [look], middleware=[SummarizationMiddleware(Rounds(), **long)])


def _falling_back(model: Rounds) -> Graph:
    return create_agent(model, [look], middleware=[ModelFallbackMiddleware(Rounds())])


_MODEL_LIMIT = ModelCallLimitMiddleware(run_limit=NEVER)
_TOOL_LIMIT = ToolCallLimitMiddleware(run_limit=NEVER)

WIRINGS = (
    Wiring("react v1", _react(version="v1")),
    Wiring("react v2", _react(version="v2")),
    Wiring("react v2, parallel calls", _react(version="v2")),
    Wiring("custom graph", _custom),
    Wiring("custom graph with an entry node", lambda model: _custom(model, entry_node=True)),
    Wiring("create_agent", _with()),
    Wiring("create_agent, parallel calls", _with()),
    Wiring("without tools", lambda model: create_agent(model, [])),
    Wiring("wrap_model_call", _with(WrapModel())),
    Wiring("wrap_model_call that calls twice", _with(WrapModelTwice())),
    Wiring("wrap_tool_call", _with(WrapTool())),
    Wiring("ToolRetry", _with(ToolRetryMiddleware())),
    Wiring("ModelRetry", _named("ModelRetryMiddleware"), _missing("ModelRetryMiddleware")),
    Wiring("ModelFallback", _falling_back),
    Wiring("ContextEditing", _with(ContextEditingMiddleware())),
    Wiring("ToolError", _named("ToolErrorMiddleware", on_error=str), _missing("ToolErrorMiddleware")),
    Wiring("ToolStrategy", _with(response_format=ToolStrategy(Place))),
    Wiring("ProviderStrategy", _with(response_format=ProviderStrategy(Place))),
    Wiring("before_agent", _with(Before())),
    Wiring("after_agent", _with(After())),
    Wiring("2 before_agent", _with(twice(Before))),
    Wiring("2 after_agent", _with(twice(After))),
    Wiring("react with response_format", _react(response_format=Place)),
    Wiring("before_model", _with(BeforeModel())),
    Wiring("Summarization", _summarizing),
    Wiring("react with pre_model_hook", _react(pre_model_hook=_pre)),
    Wiring("after_model", _with(AfterModel())),
    Wiring("ToolCallLimit", _with(_TOOL_LIMIT)),
    Wiring("TodoList", _with(TodoListMiddleware())),
    Wiring("HumanInTheLoop", _with(HumanInTheLoopMiddleware(interrupt_on={"other": True}))),
    Wiring("react with post_model_hook", _react(post_model_hook=_hook)),
    Wiring("2 before_model", _with(twice(BeforeModel))),
    Wiring("2 after_model", _with(twice(AfterModel))),
    Wiring("before_model and after_model", _with(AroundModel())),
    Wiring("ModelCallLimit", _with(_MODEL_LIMIT)),
    Wiring("PII", _with(PIIMiddleware("email"))),
    Wiring("react with both hooks", _react(pre_model_hook=_pre, post_model_hook=_hook)),
    Wiring(
        "react with both hooks and response_format",
        _react(pre_model_hook=_pre, post_model_hook=_hook, response_format=Place),
    ),
    Wiring("all four hooks", _with(AllFour())),
    Wiring("ModelCallLimit and ToolCallLimit", _with(_MODEL_LIMIT, _TOOL_LIMIT)),
    Wiring(
        "create_deep_agent",
        lambda model: create_deep_agent(model=model, tools=[look]),
        "" if create_deep_agent else "deepagents is not installed",
    ),
)


@dataclass(frozen=True)
class Agreement:
    """How often the audit and real runs agree over some limits, and where they do not."""

    wiring: str
    costs: Costs
    limits: int
    differences: tuple[str, ...]

    @property
    def agreed(self) -> int:
        return self.limits - len(self.differences)


def agreement(wiring: Wiring, limits: Sequence[int]) -> Agreement:
    """Compare what the audit says with what runs do, at each limit.

    A run of as many rounds as can finish must finish, and one with a round more must not. It is in that one that the
    model is called as often as can be; where it can be called twice in vain, one more runs that never stops. Of limits
    in a row under which the same number of rounds can finish, the lowest is where that number must finish.
    """
    model = wiring.model()
    graph = wiring.build(model)
    differences: list[str] = []
    before, costs = 0, None
    for limit in limits:
        report = audit(graph, recursion_limit=limit)
        costs, said = report.costs, report.rounds
        assert costs is not None
        assert said is not None
        wrong: list[str] = []
        if said.finish != before and not rounds_run(graph, model, said.finish, limit)[0]:
            wrong.append(f"{said.finish} rounds do not finish")
        finished, called = rounds_run(graph, model, said.finish + 1, limit)
        if finished:
            wrong.append(f"{said.finish + 1} rounds finish")
        if said.called > said.finish + 1:
            _, called = rounds_run(graph, model, NEVER, limit)
        if called != said.called:
            wrong.append(f"the model was called in {called} rounds, not {said.called}")
        if wrong:
            differences.append(f"{wiring.name} at {limit}: {'; '.join(wrong)}")
        before = said.finish
    assert costs is not None
    return Agreement(wiring.name, costs, len(limits), tuple(differences))
