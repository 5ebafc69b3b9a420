"""Agents to move: a model that goes by a rule, tools that count, and what a caller sees of a turn, to be compared."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langgraph.errors import EmptyInputError, InvalidUpdateError
from pydantic import Field

from endstop.cutover import MemoryTurnLedger, Switches, cut_over

ON = Switches({"invocation.run": "on", "invocation.stream": "on"}, environ={})
"""Every turn goes to the kernel."""

OFF = Switches({}, environ={})
"""No turn does."""

Make: TypeAlias = Callable[[], Any]
"""Makes an agent, each time a new one."""


class RuleChat(BaseChatModel):
    """A chat model whose `rule` makes an answer of the messages. `sent` keeps the messages of each request."""

    rule: Callable[[Sequence[BaseMessage]], AIMessage]
    sent: list[list[BaseMessage]] = Field(default_factory=list[list[BaseMessage]])

    @property
    def _llm_type(self) -> str:
        return "rule"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """Binds the names of the tools."""
        return self.bind(tools=[getattr(tool, "name", tool) for tool in tools], **kwargs)

    def with_structured_output(self, schema: Any, **kwargs: Any) -> Any:
        """The answer in the form of a schema whose one field is `text`."""
        return self | (lambda answer: schema(text=f"structured {answer.text}"))

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        self.sent.append(list(messages))
        answer = self.rule(messages).model_copy(deep=True)
        answer.id = answer.id or f"answer-{len(self.sent)}"
        return ChatResult(generations=[ChatGeneration(message=answer)])


def in_turn(*answers: AIMessage) -> RuleChat:
    """A chat model that gives these answers by how many it has given since the newest question; the last for ever."""

    def rule(messages: Sequence[BaseMessage]) -> AIMessage:
        newest = max((i for i, message in enumerate(messages) if isinstance(message, HumanMessage)), default=0)
        given = sum(isinstance(message, AIMessage) for message in messages[newest:])
        return answers[min(given, len(answers) - 1)]

    return RuleChat(rule=rule)


def asks(*calls: tuple[str, dict[str, Any]]) -> AIMessage:
    """An answer that calls tools, by name and arguments."""
    made = [{"name": name, "args": args, "id": f"call-{index}-{name}"} for index, (name, args) in enumerate(calls)]
    return AIMessage("", tool_calls=made)


def says(text: str = "done") -> AIMessage:
    """An answer in words."""
    return AIMessage(text)


@dataclass
class Shop:
    """Tools that count: `look` finds something in every place and `ran` keeps where it looked."""

    ran: list[str] = field(default_factory=list[str])

    @property
    def look(self) -> StructuredTool:
        """The tool as LangChain takes it."""
        return StructuredTool.from_function(self._look, self._alook, name="look", description="Look in a place.")

    def _look(self, place: str) -> str:
        self.ran.append(place)
        return f"{place}: nothing here"

    async def _alook(self, place: str) -> str:
        return self._look(place)


TWO_ROUNDS = (asks(("look", {"place": "hall"})), says())
"""A look in the hall, then the answer."""


def looking(*, shop: Shop | None = None, answers: Sequence[AIMessage] = TWO_ROUNDS, **options: Any) -> Any:
    """A LangChain agent that looks in places."""
    return create_agent(in_turn(*answers), [(shop or Shop()).look], **options)


def asked(text: str = "Where is the key?", number: int = 0) -> dict[str, Any]:
    """An input."""
    return {"messages": [HumanMessage(text, id=f"question-{number}")]}


def on_thread(thread_id: str = "1", **config: Any) -> Any:
    """The configuration of a call on a thread."""
    return {"configurable": {"thread_id": thread_id}, **config}


@dataclass(frozen=True)
class Pair:
    """The same agent twice: as it was, and cut over."""

    legacy: Any
    moved: Any
    ledger: MemoryTurnLedger

    @property
    def served(self) -> list[str]:
        """Who served the turns of the agent that is cut over, oldest first."""
        return [record.served_by for record in self.ledger.records()]

    @property
    def refused(self) -> list[tuple[str, ...]]:
        """What its turns were refused for, oldest first."""
        return [record.refusals for record in self.ledger.records()]


def pair(make: Make, *, switches: Switches = ON) -> Pair:
    """An agent, and one made in the same way that is cut over."""
    ledger = MemoryTurnLedger()
    return Pair(legacy=make(), moved=cut_over(make(), switches=switches, ledger=ledger), ledger=ledger)


# -- what a caller sees ----------------------------------------------------------------------------

_IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|\b[0-9a-f]{32}\b")


def plain(value: object) -> str:
    """A value as text, without the ids that are drawn at random."""
    return _IDS.sub("*", repr(value))


def invoke(graph: Any, given: Any, config: Any = None, **options: Any) -> Any:
    """What `invoke` gives."""
    return graph.invoke(given, config, **options)


def ainvoke(graph: Any, given: Any, config: Any = None, **options: Any) -> Any:
    """What `ainvoke` gives."""
    return asyncio.run(graph.ainvoke(given, config, **options))


def stream(graph: Any, given: Any, config: Any = None, **options: Any) -> Any:
    """The chunks of `stream`."""
    return list(graph.stream(given, config, **options))


def astream(graph: Any, given: Any, config: Any = None, **options: Any) -> Any:
    """The chunks of `astream`."""

    async def chunks() -> list[Any]:
        return [chunk async for chunk in graph.astream(given, config, **options)]

    return asyncio.run(chunks())


WAYS: list[Callable[..., Any]] = [invoke, ainvoke, stream, astream]
"""The ways to run an agent for one turn."""

MODES = ["values", "updates", "messages", "custom"]
"""Every stream mode that the kernel serves."""


RAISED = (ValueError, TypeError, KeyError, OSError, RuntimeError, Warning, InvalidUpdateError, EmptyInputError)
"""What the agents here raise."""


def seen(way: Callable[..., Any], graph: Any, given: Any, config: Any = None, **options: Any) -> str:
    """All that a caller sees of one turn, as text: what it gives or what it raises."""
    if way in (stream, astream):
        options = {"stream_mode": MODES, **options}
    try:
        return plain(way(graph, given, config, **options))
    except RAISED as error:
        return plain((type(error), str(error), getattr(error, "__notes__", ())))


def assert_same_turn(both: Pair, way: Callable[..., Any], given: Any, config: Any = None, **options: Any) -> None:
    """The turn is the same for its caller, and the kernel served it."""
    before = len(both.served)
    assert seen(way, both.moved, given, config, **options) == seen(way, both.legacy, given, config, **options)
    assert both.refused[before:] == [()]
    assert both.served[before:] == ["kernel"]
