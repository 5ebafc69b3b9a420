"""LangChain chat models that answer from a script, keep what they were sent, and listeners for what they say."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, message_chunk_to_message
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import Field

from endstop._messages import ModelTurn, UserMessage
from endstop.models.base import Delta, ModelRequest
from endstop.models.langchain import LangChainModel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Answer = AIMessage | list[AIMessageChunk] | Exception


class FakeChat(BaseChatModel):
    """A chat model that gives its answers in order and keeps what it was sent.

    A list of chunks is streamed; a message is not, as by a chat model that cannot stream.
    """

    answers: list[Any]
    sent: list[list[BaseMessage]] = Field(default_factory=list)
    options: list[dict[str, Any]] = Field(default_factory=list)
    model_name: str = "fake-1"

    @property
    def _llm_type(self) -> str:
        return "fake"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """Binds the tools as they are."""
        return self.bind(tools=tools, **kwargs)

    def _take(self, messages: list[BaseMessage], options: dict[str, Any]) -> Answer:
        self.sent.append(messages)
        self.options.append(options)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        answer = self._take(messages, kwargs)
        if isinstance(answer, list):
            whole = message_chunk_to_message(answer[0] + answer[1:])
            assert isinstance(whole, AIMessage)
            answer = whole
        return ChatResult(generations=[ChatGeneration(message=answer)])


class StreamingChat(FakeChat):
    """A chat model that streams its chunks; an error among them is raised in its place."""

    closed: list[bool] = Field(default_factory=list)

    async def _astream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        try:
            for chunk in self._take(messages, kwargs):
                if isinstance(chunk, Exception):
                    raise chunk
                yield ChatGenerationChunk(message=chunk)
                await asyncio.sleep(0)
        finally:
            self.closed.append(True)


class CappedChat(FakeChat):
    """A chat model with a cap on its answers, which it sends as an option."""

    max_tokens: int | None = None

    def _take(self, messages: list[BaseMessage], options: dict[str, Any]) -> Answer:
        return super()._take(messages, options | {"max_tokens": self.max_tokens})


class Heard(list[Delta]):
    """The deltas that a model gave."""

    async def __call__(self, delta: Delta) -> None:
        self.append(delta)


async def ignore(delta: Delta) -> None:
    """Drops a delta."""


QUESTION = ModelRequest(messages=(UserMessage(content="What is an endstop?"),))


async def answer_of(answer: Answer, request: ModelRequest = QUESTION) -> ModelTurn:
    """The turn that an answer of the chat model becomes."""
    chat = StreamingChat(answers=[answer]) if isinstance(answer, list) else FakeChat(answers=[answer])
    return await LangChainModel(chat).respond(request, ignore)


def chunks(*texts: str, **last: Any) -> list[AIMessageChunk]:
    """A text answer in pieces, the last of which carries the given fields."""
    return [*(AIMessageChunk(text) for text in texts), AIMessageChunk("", chunk_position="last", **last)]


def call_chunk(index: int, args: str, name: str | None = None, call_id: str | None = None) -> AIMessageChunk:
    """A piece of a tool call."""
    return AIMessageChunk("", tool_call_chunks=[tool_call_chunk(name=name, args=args, id=call_id, index=index)])
