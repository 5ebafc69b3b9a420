"""The agents that run as LangGraph graphs today, by preset: what they are made of, and what they cost.

`react_loop` is an entry node, then the model node and the tool node in turns. Each of the three switches adds a node
behind the model, which runs in every round, the last one included, and so costs one super-step a round::

    context_window ─▶ model ─▶ [elicitation] ─▶ [precondition_gate] ─▶ [interrupt] ─▶ tools ─▶ model ...

`plan_execute` has a `planner` between the entry and the first round. That is a step once, and none a round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol, TypeAlias

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import BaseTool, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Send, interrupt

from endstop._errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import ToolCall
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.graph.state import CompiledStateGraph

REACT_LOOP = "react_loop"
"""The preset that the kernel serves exactly."""

PLAN_EXECUTE = "plan_execute"
"""The preset that has the model write a plan first, which the kernel has no stage for."""

PRESETS = (REACT_LOOP, PLAN_EXECUTE)
"""The presets that there are."""

CONTEXT_WINDOW = 40
"""Messages that the entry node lets the model see of a thread, the new one included."""

PLAN_PROMPT = "Write a short plan for the task, step by step. Do not carry it out yet."
"""What the planner adds to the conversation for its one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """What an agent is built from.

    `recursion_limit` is counted in super-steps. The switches add what the kernel does in another way, each with a node
    of its own: `ask_user_enabled` an `ask_user` tool that waits for the user's answer, `experimental_interrupt` a wait
    for approval, `procedural_enforce_preconditions` a refusal of calls that come too early.
    """

    recursion_limit: int = 50
    graph_preset: str = REACT_LOOP
    ask_user_enabled: bool = False
    experimental_interrupt: bool = False
    procedural_enforce_preconditions: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Procedure:
    """What the nodes of the switches go by, and the size of the context window in messages.

    `approve` are the tools whose calls wait for approval. `preconditions` are, by tool, the tools that must have been
    called with success before it.
    """

    window: int = CONTEXT_WINDOW
    approve: frozenset[str] = frozenset()
    preconditions: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


_PLAIN = Procedure()

_Update: TypeAlias = dict[str, list[BaseMessage]]


class _Node(Protocol):
    def __call__(self, state: MessagesState) -> _Update: ...


_Runnable: TypeAlias = Runnable[MessagesState, _Update]


def preset_refusals(config: AgentConfig) -> tuple[str, ...]:
    """The codes of what the kernel cannot serve exactly in an agent of this config; empty where it can serve it.

    Each switch spends a super-step more a round, so that the rounds of `react_loop` would be more than it reaches.
    """
    refused = {
        "ask_user_enabled": config.ask_user_enabled,
        "experimental_interrupt": config.experimental_interrupt,
        "procedural_enforce_preconditions": config.procedural_enforce_preconditions,
        "graph_preset": config.graph_preset != REACT_LOOP,
    }
    return tuple(code for code, holds in refused.items() if holds)


def legacy_graph(
    config: AgentConfig,
    model: BaseChatModel,
    tools: Sequence[BaseTool],
    *,
    procedure: Procedure = _PLAIN,
    checkpointer: BaseCheckpointSaver[str] | None = None,
) -> CompiledStateGraph[MessagesState, None, MessagesState, MessagesState]:
    """The LangGraph graph of the config, with its `recursion_limit` bound.

    What waits for a person (`ask_user_enabled`, `experimental_interrupt`) goes on with `Command(resume=...)`, which
    needs a `checkpointer`: the answer for a question, and for an approval `True` or `False`.

    Raises:
        ConfigError: there is no such preset, or the recursion limit is below 1.
    """
    _check(config, procedure)
    offered = [*tools, ask_user] if config.ask_user_enabled else list(tools)
    planned: dict[str, _Runnable] = {"planner": _planner(model)} if config.graph_preset == PLAN_EXECUTE else {}
    nodes: dict[str, _Node | _Runnable | ToolNode] = {
        "context_window": _window(procedure.window),
        **planned,
        "model": _speaker(model.bind_tools(offered) if offered else model),
        **_switched(config, procedure),
    }
    line = [START, *nodes]
    nodes["tools"] = ToolNode(offered)
    builder = StateGraph(MessagesState)
    for name, node in nodes.items():
        builder.add_node(name, node)  # pyright: ignore[reportUnknownMemberType]  # LangGraph leaves a type open there
    for before, after in pairwise(line):
        builder.add_edge(before, after)
    builder.add_conditional_edges(line[-1], _next, ["tools", "model", END])
    builder.add_edge("tools", "model")
    compiled = builder.compile(checkpointer)  # pyright: ignore[reportUnknownMemberType]  # and here too
    return compiled.with_config(recursion_limit=config.recursion_limit)


@tool
def ask_user(question: str) -> str:
    """Ask the user a question and wait for the answer."""
    raise NotImplementedError(question)  # pragma: no cover - the elicitation node answers every call before the tools


def _check(config: AgentConfig, procedure: Procedure) -> None:
    if config.graph_preset not in PRESETS:
        raise ConfigError("graph_preset", config.graph_preset, f"use one of {', '.join(PRESETS)}")
    for name, number in {"recursion_limit": config.recursion_limit, "window": procedure.window}.items():
        if isinstance(number, bool) or not _is_whole(number) or number < 1:
            raise ConfigError(name, number, "use a whole number, 1 or more")


def _is_whole(number: object) -> bool:
    return isinstance(number, int)


def _switched(config: AgentConfig, procedure: Procedure) -> dict[str, _Node]:
    """The nodes that the switches add, in the order in which they run."""
    nodes: dict[str, _Node] = {}
    if config.ask_user_enabled:
        nodes["elicitation"] = _elicit
    if config.procedural_enforce_preconditions:
        nodes["precondition_gate"] = _gate(procedure.preconditions)
    if config.experimental_interrupt:
        nodes["interrupt"] = _approval(procedure.approve)
    return nodes


# The nodes


def _window(messages: int) -> _Node:
    """Forget what is older than the window, which begins with something that a person said."""

    def context_window(state: MessagesState) -> _Update:
        said = state["messages"]
        starts = [index for index, message in enumerate(said) if isinstance(message, HumanMessage)]
        first = next((index for index in starts if index >= len(said) - messages), max(starts, default=0))
        forgotten = [message for message in said[:first] if not isinstance(message, SystemMessage)]
        return {"messages": [RemoveMessage(id=message.id or "") for message in forgotten]}

    return context_window


def _speaker(model: Runnable[Sequence[BaseMessage], AIMessage]) -> _Runnable:
    """Ask the model."""
    return RunnableLambda(itemgetter("messages")) | model | RunnableLambda(_said)


def _planner(model: BaseChatModel) -> _Runnable:
    """Ask the model for a plan, without tools; what it says is the user's next word to the model."""
    return RunnableLambda(_plan_request) | model | RunnableLambda(_planned)


def _plan_request(state: MessagesState) -> list[BaseMessage]:
    return [*state["messages"], SystemMessage(PLAN_PROMPT)]


def _planned(plan: BaseMessage) -> _Update:
    return {"messages": [HumanMessage(f"The plan:\n{plan.text}")]}


def _said(message: BaseMessage) -> _Update:
    return {"messages": [message]}


def _elicit(state: MessagesState) -> _Update:
    """Put each question of the model's to the user."""
    asked = [call for call in _open_calls(state["messages"]) if call["name"] == ask_user.name]
    return {"messages": [_answer(call, str(interrupt({"question": call["args"].get("question")}))) for call in asked]}


def _gate(preconditions: Mapping[str, tuple[str, ...]]) -> _Node:
    """Refuse the calls that come before the calls that they need. Those of the same batch come too late to count."""

    def precondition_gate(state: MessagesState) -> _Update:
        messages = state["messages"]
        done = {said.name for said in messages if isinstance(said, ToolMessage) and said.status == "success"}
        refused: list[BaseMessage] = []
        for call in _open_calls(messages):
            missing = [name for name in preconditions.get(call["name"], ()) if name not in done]
            if missing:
                refused.append(_answer(call, f"Not run: call {', '.join(missing)} first.", refused=True))
        return {"messages": refused}

    return precondition_gate


def _approval(approve: frozenset[str]) -> _Node:
    """Wait for a person's word on the calls of these tools, all of a round together."""

    def interrupt_node(state: MessagesState) -> _Update:
        waiting = [call for call in _open_calls(state["messages"]) if call["name"] in approve]
        if not waiting or interrupt({"approve": [{"name": call["name"], "args": call["args"]} for call in waiting]}):
            return {"messages": []}
        return {"messages": [_answer(call, "Not run: it was not approved.", refused=True) for call in waiting]}

    return interrupt_node


# What comes next


def _next(state: MessagesState) -> str | list[Send]:
    """The calls that nothing has answered go to the tools; where all are answered it is the model's turn again."""
    messages = state["messages"]
    asked = _last_turn(messages)
    if asked is None or not asked.tool_calls:
        return END
    calls = _open_calls(messages)
    # The tool node runs every call of the message that it is given, so it is given one without the answered calls.
    return [Send("tools", {"messages": [asked.model_copy(update={"tool_calls": calls})]})] if calls else "model"


def _open_calls(messages: Sequence[BaseMessage]) -> list[ToolCall]:
    """The calls of the model's newest turn that nothing has answered."""
    asked = _last_turn(messages)
    answered = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
    return [call for call in asked.tool_calls if call["id"] not in answered] if asked else []


def _last_turn(messages: Sequence[BaseMessage]) -> AIMessage | None:
    return next((message for message in reversed(messages) if isinstance(message, AIMessage)), None)


def _answer(call: ToolCall, text: str, *, refused: bool = False) -> ToolMessage:
    status = "error" if refused else "success"
    return ToolMessage(text, tool_call_id=call["id"], name=call["name"], status=status)
