"""Scripts of tool-calling turns, drawn or written down, and what a caller sees when an agent plays one of them."""

from __future__ import annotations

import asyncio
import functools
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any, Literal, TypeAlias

from hypothesis import strategies as st
from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    SummarizationMiddleware,
    ToolCallLimitMiddleware,
    after_agent,
    after_model,
    before_agent,
    before_model,
    wrap_model_call,
    wrap_tool_call,
)
from langchain.agents.structured_output import ToolStrategy
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.config import get_stream_writer
from langgraph.prebuilt import InjectedState, create_react_agent
from langgraph.types import Command
from pydantic import BaseModel, Field

from endstop.cutover import MemoryTurnLedger, Switches, cut_over

Kind: TypeAlias = Literal["create_agent", "create_react_agent v1", "create_react_agent v2"]
Surface: TypeAlias = Literal["invoke", "ainvoke", "stream", "astream"]

KINDS: tuple[Kind, ...] = ("create_agent", "create_react_agent v1", "create_react_agent v2")
SURFACES: tuple[Surface, ...] = ("invoke", "ainvoke", "stream", "astream")
MODES: tuple[str | list[str], ...] = (
    "values",
    "updates",
    "messages",
    "custom",
    ["values", "updates"],
    ["updates", "custom", "messages"],
)


# --- the model ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A tool call that the model asks for."""

    tool: str
    x: object = 1


Answer: TypeAlias = str | tuple[Call, ...]
"""What the model says: a text, or calls."""


class ScriptedChat(BaseChatModel):
    """A chat model that gives its answers in turn, and says `last` when it has no more; `ValueError` is raised."""

    answers: tuple[Any, ...]
    last: str = "done"
    streams: bool = False
    asked: list[int] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self.bind(tools=[getattr(one, "name", str(one)) for one in tools])

    def _answer(self) -> AIMessage:
        number = len(self.asked)
        self.asked.append(number)
        answer: Answer | ValueError = self.answers[number] if number < len(self.answers) else self.last
        if isinstance(answer, ValueError):
            raise ValueError(str(answer))
        if isinstance(answer, str):
            return AIMessage(answer, id=f"answer-{number}" if self.answers else None)
        calls = [{"name": c.tool, "args": _arguments(c), "id": f"{number}-{i}"} for i, c in enumerate(answer)]
        return AIMessage("", id=f"answer-{number}", tool_calls=calls)

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        return ChatResult(generations=[ChatGeneration(message=self._answer())])

    def _stream(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        if not self.streams:
            yield from self._whole()
            return
        for text in ("some ", "thing"):
            yield ChatGenerationChunk(message=AIMessageChunk(text, id="streamed"))

    def _whole(self) -> Iterator[ChatGenerationChunk]:
        answer = self._answer()
        yield ChatGenerationChunk(message=AIMessageChunk(**answer.model_dump(exclude={"type"})))


def _arguments(call: Call) -> dict[str, Any]:
    if call.tool == "Verdict":
        return {"good": call.x}
    return {"x": call.x}


# --- the tools ------------------------------------------------------------------------------------------------------


class Verdict(BaseModel):
    """A structured answer."""

    good: bool


@tool
def double(x: int) -> str:
    """Double it."""
    return str(2 * x)


@tool
async def halve(x: int) -> str:
    """Halve it, without blocking."""
    await asyncio.sleep(0)
    return str(x // 2)


def _halved(x: int) -> str:
    return str(x // 2)


halve.func = _halved  # type: ignore[attr-defined]  # one tool for both kinds of caller


@tool
def fail(x: int) -> str:
    """Fail."""
    raise KeyError("no number")


@tool
def note(x: int, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Write to the state."""
    return Command(update={"messages": [ToolMessage(f"noted {x}", tool_call_id=tool_call_id)]})


@tool
def leave(x: int, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Write to the state and say where to go; an agent of `create_react_agent` has no such node."""
    return Command(goto="model", update={"messages": [ToolMessage(f"left {x}", tool_call_id=tool_call_id)]})


@tool
def look(x: int, state: Annotated[dict[str, Any], InjectedState]) -> str:
    """Look at the state."""
    return ", ".join(message.type for message in state["messages"])


@tool
def shout(x: int) -> str:
    """Tell the stream."""
    get_stream_writer()({"shouted": x})
    return "shouted"


@tool(return_direct=True)
def finish(x: int) -> str:
    """Answer in the place of the model."""
    return f"finished {x}"


TOOLS: tuple[BaseTool, ...] = (double, halve, fail, note, leave, look, shout, finish)
TOOL_NAMES = tuple(one.name for one in TOOLS)


# --- the middleware -------------------------------------------------------------------------------------------------


class Counted(AgentState[Any]):
    """A state that counts."""

    count: Annotated[int, operator.add]


class Counting(AgentMiddleware[Any, Any]):
    """Counts the rounds in a state key of its own."""

    state_schema = Counted

    def before_model(self, state: Any, runtime: Any) -> dict[str, Any]:
        return {"count": 1}


def _answers_in(state: Any) -> int:
    return sum(isinstance(message, AIMessage) for message in state["messages"])


@before_agent
def greet(state: Any, runtime: Any) -> dict[str, Any]:
    return {"messages": [HumanMessage("(greeted)", id="greeting")]}


@before_model(can_jump_to=["end"])
def stop_at_three(state: Any, runtime: Any) -> dict[str, Any] | None:
    return {"jump_to": "end"} if _answers_in(state) >= 3 else None


@after_model(can_jump_to=["model"])
def ask_twice(state: Any, runtime: Any) -> dict[str, Any] | None:
    return {"jump_to": "model"} if _answers_in(state) == 1 and not state["messages"][-1].tool_calls else None


@after_agent
def sign(state: Any, runtime: Any) -> dict[str, Any]:
    return {"messages": [AIMessage("(signed)", id="signature")]}


@wrap_model_call
def whisper(request: Any, handler: Any) -> Any:
    return handler(request)


async def _awhisper(self: Any, request: Any, handler: Any) -> Any:
    return await handler(request)


type(whisper).awrap_model_call = _awhisper  # type: ignore[method-assign]  # one middleware for both kinds of caller


@wrap_tool_call
def soften(request: Any, handler: Any) -> Any:
    try:
        return handler(request)
    except KeyError as error:
        return ToolMessage(f"softened {error}", tool_call_id=request.tool_call["id"], status="error")


async def _asoften(self: Any, request: Any, handler: Any) -> Any:
    try:
        return await handler(request)
    except KeyError as error:
        return ToolMessage(f"softened {error}", tool_call_id=request.tool_call["id"], status="error")


type(soften).awrap_tool_call = _asoften  # type: ignore[method-assign]  # one for both kinds of caller

MIDDLEWARE: dict[str, Callable[[], AgentMiddleware[Any, Any]]] = {
    "greet": lambda: greet,
    "stop_at_three": lambda: stop_at_three,
    "ask_twice": lambda: ask_twice,
    "sign": lambda: sign,
    "whisper": lambda: whisper,
    "soften": lambda: soften,
    "counting": Counting,
    "model calls end": lambda: ModelCallLimitMiddleware(run_limit=2, exit_behavior="end"),
    "model calls error": lambda: ModelCallLimitMiddleware(run_limit=2, exit_behavior="error"),
    "tool calls continue": lambda: ToolCallLimitMiddleware(run_limit=2),
    "tool calls error": lambda: ToolCallLimitMiddleware(run_limit=1, exit_behavior="error"),
    "one tool's calls": lambda: ToolCallLimitMiddleware(tool_name="double", run_limit=1),
    "fallback": lambda: ModelFallbackMiddleware(ScriptedChat(answers=(), last="fallen back")),
    "summary": lambda: (
        SummarizationMiddleware(ScriptedChat(answers=(), last="short"), messages_to_keep=2)
        if _OLD_SUMMARY
        else SummarizationMiddleware(
            ScriptedChat(answers=(), last="short"), trigger=("messages", 5), keep=("messages", 2)
        )
    ),
}

_OLD_SUMMARY = "trigger" not in SummarizationMiddleware.__init__.__code__.co_varnames


# --- a turn ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """An agent and the turn that it plays."""

    kind: Kind = "create_agent"
    answers: tuple[Answer | ValueError, ...] = ("hello",)
    middleware: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    structured: bool = False
    prompted: bool = False
    streams: bool = False
    limit: int = 30
    surface: Surface = "stream"
    mode: str | list[str] = "values"
    subgraphs: bool = False
    output_keys: str | None = None

    def agent(self) -> Any:
        """The agent as LangChain or LangGraph makes it, with its script before it from the beginning."""
        hooks = tuple((name, HOOKS[name]) for name in self.hooks)
        model, agent = _made(self.kind, self.middleware, hooks, self.structured, self.prompted)
        model.answers, model.streams, model.asked = self.answers, self.streams, []
        return agent

    @property
    def parts_ways(self) -> bool:
        """Whether a tool says where to go, beside where the agent goes by itself."""
        turns = [calls for calls in self.answers if isinstance(calls, tuple)]
        return any(isinstance(call, Call) and call.tool == "leave" for calls in turns for call in calls)

    @property
    def options(self) -> dict[str, Any]:
        """What the caller asks for besides the turn itself."""
        if self.surface in ("invoke", "ainvoke"):
            return {"output_keys": self.output_keys}
        return {"stream_mode": self.mode, "subgraphs": self.subgraphs, "output_keys": self.output_keys}


@functools.cache
def _made(
    kind: Kind, middleware: tuple[str, ...], hooks: tuple[Any, ...], structured: bool, prompted: bool
) -> tuple[ScriptedChat, Any]:
    """A model and its agent: making one takes longer than most turns."""
    model = ScriptedChat(answers=())
    prompt = "Be brief." if prompted else None
    if kind == "create_agent":
        return model, create_agent(
            model,
            TOOLS,
            system_prompt=prompt,
            middleware=[MIDDLEWARE[name]() for name in middleware],
            response_format=ToolStrategy(Verdict) if structured else None,
        )
    version: Any = kind[-2:]
    return model, create_react_agent(model, [*TOOLS], prompt=prompt, version=version, **dict(hooks))


HOOKS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "pre_model_hook": lambda state: {"llm_input_messages": state["messages"][-3:]},
    "post_model_hook": lambda state: {},
}

ON = Switches({"invocation.run": "on", "invocation.stream": "on"}, environ={})


def on_kernel(agent: Any) -> tuple[Any, MemoryTurnLedger]:
    """The agent with its turns on the kernel, and where they are recorded."""
    ledger = MemoryTurnLedger()
    return cut_over(agent, switches=ON, ledger=ledger), ledger


def seen(agent: Any, script: Script) -> list[object]:
    """All that a caller sees of the turn, ids apart.

    What ran side by side is in one order, whichever was first, and left out where one of them ended the turn: how far
    the others came is chance. Where a tool sends the agent to its model, different nodes run side by side from then on.
    """
    given = {"messages": [HumanMessage("hi", id="question")]}
    config = {"recursion_limit": script.limit}
    told: list[object] = []
    try:
        if script.surface == "invoke":
            told.append(agent.invoke(given, config, **script.options))
        elif script.surface == "ainvoke":
            told.append(asyncio.run(agent.ainvoke(given, config, **script.options)))
        elif script.surface == "stream":
            told.extend(_plain(chunk) for chunk in agent.stream(given, config, **script.options))
        else:
            asyncio.run(_astreamed(agent, given, config, script, told))
    except Exception as error:  # whatever ends the turn is what the caller sees
        told.append((type(error), str(error), getattr(error, "__notes__", [])))
    ordered = _in_one_order([_plain(one) for one in told])
    return sorted(ordered, key=str) if script.parts_ways else ordered


async def _astreamed(agent: Any, given: Any, config: Any, script: Script, told: list[object]) -> None:
    async for chunk in agent.astream(given, config, **script.options):
        told.append(_plain(chunk))


def _plain(told: object) -> str:
    if isinstance(told, str):
        return told
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}", "<id>", repr(told))
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _in_one_order(told: list[str]) -> list[object]:
    ordered: list[object] = []
    failed = told[-1].startswith("(<class") if told else False
    groups = [(beside, [*group]) for beside, group in groupby(told[: len(told) - failed], _is_beside)]
    if failed and groups and groups[-1][0]:
        groups.pop()
    for beside, group in groups:
        ordered += sorted(group) if beside else group
    return ordered + told[len(told) - failed :]


def _is_beside(text: str) -> bool:
    return "'tools'" in text or "'shouted'" in text


# --- scripts that are drawn -----------------------------------------------------------------------------------------

_calls = st.builds(
    Call,
    tool=st.sampled_from([*TOOL_NAMES, "double", "halve", "unknown", "Verdict"]),
    x=st.sampled_from([1, 2, 2, "much"]),
)
_answers: st.SearchStrategy[Any] = st.one_of(
    st.lists(_calls, min_size=1, max_size=3).map(tuple), st.sampled_from(["", "text"])
)


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """A turn: what the model says, which agent hears it, how far it may go and who is asking."""
    kind = draw(st.sampled_from(KINDS))
    answers = draw(st.lists(_answers, max_size=6))
    if draw(st.integers(0, 9)) == 0:
        answers.insert(draw(st.integers(0, len(answers))), ValueError("the model is out"))
    surface = draw(st.sampled_from(SURFACES))
    return Script(
        kind=kind,
        answers=tuple(answers),
        middleware=tuple(
            draw(st.lists(st.sampled_from([*MIDDLEWARE]), max_size=2, unique_by=lambda name: name.split()[0]))
        )
        if kind == "create_agent"
        else (),
        hooks=tuple(draw(st.sets(st.sampled_from([*HOOKS][: 2 if kind.endswith("v2") else 1]))))
        if kind != "create_agent"
        else (),
        structured=kind == "create_agent" and draw(st.booleans()),
        prompted=draw(st.booleans()),
        streams=draw(st.integers(0, 9)) == 0,
        limit=draw(st.one_of(st.integers(1, 14), st.integers(1, 60))),
        surface=surface,
        mode=draw(st.sampled_from(MODES)),
        subgraphs=surface in ("stream", "astream") and draw(st.integers(0, 3)) == 0,
        output_keys=draw(st.sampled_from([None, None, None, "messages"])),
    )
