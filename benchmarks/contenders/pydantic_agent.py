"""pydantic-ai's `Agent`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from pydantic_ai import Agent, UsageLimits
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RequestUsage

from benchmarks.task import ANSWER, PIECE, PROMPT, TOOL, Job, arguments, call_id, search, tokens

NO_LIMITS = UsageLimits(request_limit=None)


def rounds(count: int, *, latency_seconds: float = 0.0) -> Job:
    """A run of so many rounds."""

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if latency_seconds:
            await asyncio.sleep(latency_seconds)
        number = len(messages) // 2
        usage = RequestUsage(input_tokens=tokens(number)[0], output_tokens=tokens(number)[1])
        if number + 1 < count:
            call = ToolCallPart(tool_name=TOOL, args=arguments(number), tool_call_id=call_id(number))
            return ModelResponse(parts=[call], usage=usage)
        return ModelResponse(parts=[TextPart(content=ANSWER)], usage=usage)

    return _rounds(FunctionModel(answer))


def deltas(count: int) -> Job:
    """An answer in so many pieces."""

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        for _ in range(count):
            yield PIECE

    return _deltas(FunctionModel(stream_function=answer))


def http_rounds(base_url: str, count: int) -> Job:
    """A run of so many rounds over HTTP, each answer in one piece."""
    return _rounds(_openai(base_url, f"rounds-{count}"))


def http_deltas(base_url: str, model: str) -> Job:
    """An answer in many pieces over HTTP."""
    return _deltas(_openai(base_url, model))


def _openai(base_url: str, model: str) -> Model:
    return OpenAIChatModel(model, provider=OpenAIProvider(base_url=base_url, api_key="none"))


def _rounds(model: Model) -> Job:
    agent = Agent(model, tools=[search])

    async def job() -> int:
        result = await agent.run(PROMPT, usage_limits=NO_LIMITS)
        return sum(isinstance(message, ModelResponse) for message in result.all_messages())

    return job


def _deltas(model: Model) -> Job:
    agent = Agent(model)

    async def job() -> int:
        pieces = 0
        async with agent.run_stream(PROMPT, usage_limits=NO_LIMITS) as run:
            async for _ in run.stream_text(delta=True, debounce_by=None):
                pieces += 1
        return pieces

    return job
