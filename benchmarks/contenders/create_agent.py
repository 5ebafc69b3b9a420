"""langchain's `create_agent`, which builds a LangGraph graph."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_openai import ChatOpenAI

from benchmarks.task import ANSWER, PIECE, PROMPT, TOOL, Job, arguments, call_id, search, tokens

CONFIG: Any = {"recursion_limit": 1_000_000}


class FakeChatModel(BaseChatModel):
    """Asks for a tool, and answers in the last of `count` rounds, or in `count` pieces."""

    count: int
    latency_seconds: float = 0.0

    @property
    def _llm_type(self) -> str:
        return "fake"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """A fake needs no tools."""
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        if self.latency_seconds:
            await asyncio.sleep(self.latency_seconds)
        number = len(messages) // 2
        asked, written = tokens(number)
        usage: Any = {"input_tokens": asked, "output_tokens": written, "total_tokens": asked + written}
        if number + 1 < self.count:
            calls: Any = [{"id": call_id(number), "name": TOOL, "args": arguments(number)}]
            message = AIMessage(content="", tool_calls=calls, usage_metadata=usage)
        else:
            message = AIMessage(content=ANSWER, usage_metadata=usage)
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for _ in range(self.count):
            yield ChatGenerationChunk(message=AIMessageChunk(content=PIECE))
        yield ChatGenerationChunk(message=AIMessageChunk(content="", chunk_position="last"))


def rounds(count: int, *, latency_seconds: float = 0.0) -> Job:
    """A run of so many rounds."""
    return _rounds(FakeChatModel(count=count, latency_seconds=latency_seconds))


def deltas(count: int) -> Job:
    """An answer in so many pieces."""
    return _deltas(FakeChatModel(count=count))


def http_rounds(base_url: str, count: int) -> Job:
    """A run of so many rounds over HTTP, each answer in one piece."""
    return _rounds(_openai(base_url, f"rounds-{count}"))


def http_deltas(base_url: str, model: str) -> Job:
    """An answer in many pieces over HTTP."""
    return _deltas(_openai(base_url, model))


def _openai(base_url: str, model: str) -> ChatOpenAI:
    key: Callable[[], str] = lambda: "none"  # noqa: E731 - a key as a function is taken as it is
    return ChatOpenAI(model=model, base_url=base_url, api_key=key)


def _rounds(model: BaseChatModel) -> Job:
    agent = create_agent(model, [search])

    async def job() -> int:
        state = await agent.ainvoke({"messages": [("user", PROMPT)]}, CONFIG)
        return sum(isinstance(message, AIMessage) for message in state["messages"])

    return job


def _deltas(model: BaseChatModel) -> Job:
    agent = create_agent(model, [])

    async def job() -> int:
        pieces = 0
        async for chunk, _ in agent.astream({"messages": [("user", PROMPT)]}, CONFIG, stream_mode="messages"):
            if chunk.content:
                pieces += 1
        return pieces

    return job
