"""Chat models that go wrong in the ways that people report, and tools that count.

A model here is a function of what it is sent. It answers `FINAL_ANSWER` where it is offered no tools, counts its calls,
and raises `Runaway` at the call after the last that its case allows: what has not ended by then does not end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, TypeAlias

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from pydantic import Field

FINAL_ANSWER = "As far as I got: there are 40 orders."
"""What a model answers where it is offered no tools."""

BYTES_PER_TOKEN = 4
"""How these models count tokens, and report them."""

Answer: TypeAlias = Callable[[Sequence[BaseMessage]], AIMessage]
"""What a model answers to a conversation."""


class Runaway(BaseException):
    """The model was called once more than its case allows. Nothing on the way should take it for an answer."""


class ProviderRefused(Exception):
    """Status 400: a provider was sent a tool call without its result, or a result without its call."""


class CaseModel(BaseChatModel):
    """A chat model that answers by a function. `strict` refuses a history that no provider takes."""

    answer: Any
    """An `Answer`."""
    most_calls: int = 60
    """Calls after which the case has seen enough."""
    strict: bool = False
    answers_without_tools: bool = True
    """Whether it answers in words where it is offered no tools."""
    sent: list[list[BaseMessage]] = Field(default_factory=list)
    """The conversation that came with each call; the call that was one too many is none."""
    read: list[int] = Field(default_factory=list)
    written: list[int] = Field(default_factory=list)
    """The tokens of each call, as it reports them."""

    @property
    def _llm_type(self) -> str:
        return "case"

    @property
    def calls(self) -> int:
        """How often it was called."""
        return len(self.sent)

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """Binds the tools as they are."""
        return self.bind(tools=tools, **kwargs)

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        if self.calls >= self.most_calls:
            raise Runaway(f"asked more than {self.most_calls} times")
        self.sent.append(list(messages))
        if self.strict and (problem := history_problem(messages)):
            raise ProviderRefused(f"400: {problem}")
        worded = self.answers_without_tools and not kwargs.get("tools")
        message = says(FINAL_ANSWER) if worded else self.answer(messages)
        read, written = size(messages), size([message])
        self.read.append(read)
        self.written.append(written)
        message.usage_metadata = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
        return ChatResult(generations=[ChatGeneration(message=message)])


class Counted:
    """A tool with a `query` that says what it is told to, and counts: `made` are the queries, in order."""

    def __init__(self, name: str, says: Callable[[str], str] | str) -> None:
        self.made: list[str] = []

        def run(query: str) -> str:
            self.made.append(query)
            return says if isinstance(says, str) else says(query)

        self.tool = StructuredTool.from_function(run, name=name, description=f"The tool {name}.")


_numbers = count(1)


def asks(name: str, /, *, finish: str = "tool_calls", words: str = "", **arguments: object) -> AIMessage:
    """An answer that asks for one tool call."""
    return asks_all((name, arguments), finish=finish, words=words)


def asks_all(*calls: tuple[str, dict[str, Any]], finish: str = "tool_calls", words: str = "") -> AIMessage:
    """An answer that asks for several tool calls at once."""
    made = [ToolCall(name=name, args=arguments, id=f"call-{next(_numbers)}") for name, arguments in calls]
    return AIMessage(content=words, tool_calls=made, response_metadata={"finish_reason": finish})


def says(text: str) -> AIMessage:
    """An answer in words."""
    return AIMessage(content=text, response_metadata={"finish_reason": "stop"})


def always(name: str, /, **arguments: object) -> Answer:
    """Asks for the same call whatever it is told."""
    return lambda messages: asks(name, **arguments)


def in_turn(*answers: Callable[[], AIMessage]) -> Answer:
    """Gives the answers one after the other, again and again."""
    place = count()
    return lambda messages: answers[next(place) % len(answers)]()


def results(messages: Sequence[BaseMessage]) -> list[ToolMessage]:
    """The tool results of a conversation."""
    return [message for message in messages if isinstance(message, ToolMessage)]


def dangling(messages: Sequence[BaseMessage]) -> int:
    """How many tool calls of a conversation have no result."""
    return len(_asked(messages) - {message.tool_call_id for message in results(messages)})


def history_problem(messages: Sequence[BaseMessage]) -> str | None:
    """What a provider has against this conversation: calls must be answered before anything else is said."""
    unanswered: set[str] = set()
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in unanswered:
                return f"a result for {message.tool_call_id}, which was not asked for"
            unanswered.remove(message.tool_call_id)
        elif unanswered:
            return f"{len(unanswered)} tool calls without a result"
        elif isinstance(message, AIMessage):
            unanswered = _asked([message])
    return f"{len(unanswered)} tool calls without a result" if unanswered else None


def size(messages: Sequence[BaseMessage]) -> int:
    """Tokens of messages, as these models count them."""
    return sum(len(text) for message in messages for text in _texts(message)) // BYTES_PER_TOKEN


def _asked(messages: Sequence[BaseMessage]) -> set[str]:
    return {str(call["id"]) for message in messages if isinstance(message, AIMessage) for call in message.tool_calls}


def _texts(message: BaseMessage) -> Iterator[str]:
    yield str(message.content)
    if isinstance(message, AIMessage):
        yield from (json.dumps(call["args"]) for call in message.tool_calls)
