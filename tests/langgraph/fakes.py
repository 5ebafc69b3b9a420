"""Chat models that answer by a rule and keep what they were sent, and the tools and helpers that go with them."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool, tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field, PrivateAttr

FINAL = "As far as I got: it is under the mat."
"""What a fake model answers where it is offered no tools."""

_ids = itertools.count(1)


class FakeChat(BaseChatModel):
    """A chat model whose `rule` makes an answer of the messages; offered no tools it says `FINAL`.

    `sent` and `offered` keep the messages and the names of the tools of each request, in order.
    """

    rule: Callable[[Sequence[BaseMessage]], AIMessage]
    latency_seconds: float = 0.0
    model_name: str = "fake-1"
    sent: list[list[BaseMessage]] = Field(default_factory=list)
    offered: list[tuple[str, ...]] = Field(default_factory=list)
    _lock: threading.Lock = PrivateAttr(default_factory=threading.Lock)

    @property
    def _llm_type(self) -> str:
        return "fake"

    @property
    def requests(self) -> int:
        """How many requests it has got."""
        return len(self.sent)

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """Binds the tools in the form of OpenAI, as most chat models do."""
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    def _answer(self, messages: list[BaseMessage], tools: tuple[str, ...]) -> ChatResult:
        with self._lock:
            self.sent.append(list(messages))
            self.offered.append(tools)
        answer = self.rule(messages) if tools else says(FINAL)
        return ChatResult(generations=[ChatGeneration(message=answer)])

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        time.sleep(self.latency_seconds)
        return self._answer(messages, tuple(tool["function"]["name"] for tool in kwargs.get("tools", ())))

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Any:
        await asyncio.sleep(self.latency_seconds)
        return self._answer(messages, tuple(tool["function"]["name"] for tool in kwargs.get("tools", ())))


class PlainChat(FakeChat):
    """A chat model that goes by its rule whether it is offered tools or not."""

    def _answer(self, messages: list[BaseMessage], tools: tuple[str, ...]) -> ChatResult:
        with self._lock:
            self.sent.append(list(messages))
            self.offered.append(tools)
        return ChatResult(generations=[ChatGeneration(message=self.rule(messages))])


def says(text: str, *, tokens: int = 10) -> AIMessage:
    """An answer, whose usage is as many tokens each way."""
    return AIMessage(text, usage_metadata=_usage(tokens))


def asks(*calls: str | tuple[str, dict[str, Any]], text: str = "", tokens: int = 10) -> AIMessage:
    """An answer that calls tools, each by its name (with a place that is always another one) or with arguments."""
    made = [call if isinstance(call, tuple) else (call, {"place": f"place {next(_ids)}"}) for call in calls]
    tool_calls = [{"name": name, "args": args, "id": f"call-{next(_ids)}"} for name, args in made]
    return AIMessage(text, tool_calls=tool_calls, usage_metadata=_usage(tokens))


def forever(*calls: str | tuple[str, dict[str, Any]], text: str = "", tokens: int = 10) -> FakeChat:
    """A chat model that calls these tools for as long as it is offered any."""
    return FakeChat(rule=lambda messages: asks(*calls, text=text, tokens=tokens))


def in_order(*answers: AIMessage) -> FakeChat:
    """A chat model that gives these answers by how often a model has answered in what it is sent; the last for ever."""

    def rule(messages: Sequence[BaseMessage]) -> AIMessage:
        turn = sum(isinstance(message, AIMessage) for message in messages)
        return answers[min(turn, len(answers) - 1)].model_copy(deep=True)

    return FakeChat(rule=rule)


class Looker:
    """A tool `look` (or another name) that finds something at every place, and counts its executions in `started`."""

    def __init__(self, name: str = "look", *, seconds: float = 0.0, metadata: dict[str, Any] | None = None) -> None:
        self.name = name
        self.seconds = seconds
        self.metadata = metadata
        self.started = 0
        self.finished = 0
        self._lock = threading.Lock()

    @property
    def tool(self) -> StructuredTool:
        """The tool as LangChain takes it."""
        return StructuredTool.from_function(
            self._run, self._arun, name=self.name, description="Look in a place.", metadata=self.metadata
        )

    def _run(self, place: str) -> str:
        with self._lock:
            self.started += 1
        time.sleep(self.seconds)
        with self._lock:
            self.finished += 1
        return f"{place}: nothing here"

    async def _arun(self, place: str) -> str:
        self.started += 1
        await asyncio.sleep(self.seconds)
        self.finished += 1
        return f"{place}: nothing here"


@tool
def look(place: str) -> str:
    """Look in a place."""
    return f"{place}: nothing here"


ASKED = {"messages": [("user", "Where is the key?")]}
"""An input."""


def unanswered(messages: Sequence[BaseMessage]) -> list[str]:
    """The ids of the calls that are not answered exactly once, directly after the message that asks for them."""
    wrong: list[str] = []
    for index, message in enumerate(messages):
        if not isinstance(message, AIMessage):
            continue
        wanted = [call["id"] or "" for call in message.tool_calls]
        after = itertools.takewhile(lambda m: isinstance(m, ToolMessage), messages[index + 1 :])
        found = [m.tool_call_id for m in after if isinstance(m, ToolMessage)]
        wrong += [call_id for call_id in wanted if found.count(call_id) != 1]
    return wrong


def _usage(tokens: int) -> Any:
    return {"input_tokens": tokens, "output_tokens": tokens, "total_tokens": 2 * tokens}


def invoke(graph: Any, given: Any = ASKED, config: Any = None, **options: Any) -> Any:
    """What `invoke` gives."""
    return graph.invoke(given, config, **options)


def ainvoke(graph: Any, given: Any = ASKED, config: Any = None, **options: Any) -> Any:
    """What `ainvoke` gives."""
    return asyncio.run(graph.ainvoke(given, config, **options))


BOTH = [invoke, ainvoke]
"""The sync and the async way to run a graph to its end."""
