"""Agents of LangChain on scripted models, and how their turns are taped into memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field, PrivateAttr

from endstop._messages import JsonObject
from endstop.cutover._recorder import Recorder
from endstop.cutover.tape import RecordedTurn, turns_of


class Scripted(BaseChatModel):
    """A chat model that says its lines in order; an exception among them is raised."""

    lines: list[Any] = Field(default_factory=list)
    _next: int = PrivateAttr(default=0)
    _lock: threading.Lock = PrivateAttr(default_factory=threading.Lock)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _get_invocation_params(self, stop: list[str] | None = None, **kwargs: Any) -> dict[str, Any]:
        return {"model": "scripted", "stop": stop, **kwargs}

    def bind_tools(self, tools: Sequence[Any], *, tool_choice: Any = None, **kwargs: Any) -> Any:
        choice = {} if tool_choice is None else {"tool_choice": tool_choice}
        return self.bind(tools=[convert_to_openai_tool(one) for one in tools], **choice, **kwargs)

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        with self._lock:
            line = self.lines[self._next % len(self.lines)]
            self._next += 1
        if isinstance(line, Exception):
            raise line
        message = AIMessage(line) if isinstance(line, str) else line.model_copy(deep=True)
        return ChatResult(generations=[ChatGeneration(message=message)])


def says(*lines: Any) -> Scripted:
    return Scripted(lines=list(lines))


def calls(*asked: tuple[str, dict[str, Any]], prefix: str = "c") -> AIMessage:
    """An answer that asks for tools: pairs of a name and arguments."""
    return AIMessage(
        "", tool_calls=[{"name": n, "args": a, "id": f"{prefix}{i}"} for i, (n, a) in enumerate(asked, start=1)]
    )


@tool
def look(word: str, api_key: str = "") -> str:
    """Look a word up."""
    return f"{word}: found"


@tool
def fail(word: str) -> str:
    """Fail at a word."""
    raise KeyError(word)


def agent(*lines: Any, tools: Sequence[BaseTool] = (look, fail), **options: Any) -> Any:
    return create_agent(says(*lines), list(tools), system_prompt="Be brief.", **options)


def taped(run: Callable[[dict[str, Any]], object]) -> list[RecordedTurn]:
    """The turns of a run that is given a config with a recorder."""
    events: list[JsonObject] = []
    recorder = Recorder(events.append)
    run({"callbacks": [recorder]})
    assert recorder.problems == []
    return list(turns_of(events))


def turn_of(*lines: Any, text: str = "hello", **options: Any) -> RecordedTurn:
    """The one turn of an agent that says these lines."""
    [turn] = taped(lambda config: agent(*lines, **options).invoke({"messages": text}, config))
    return turn
