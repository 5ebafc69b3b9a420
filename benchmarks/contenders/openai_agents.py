"""openai-agents' `Runner`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from agents import (
    Agent,
    Model,
    ModelResponse,
    OpenAIChatCompletionsModel,
    Runner,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
)

from benchmarks.task import ANSWER, PIECE, PROMPT, TOOL, Job, arguments, call_id, search, tokens

MANY = 1_000_000

set_tracing_disabled(True)


def _message(text: str) -> ResponseOutputMessage:
    content = ResponseOutputText(text=text, type="output_text", annotations=[])
    return ResponseOutputMessage(id="message", type="message", role="assistant", status="completed", content=[content])


class FakeModel(Model):
    """Asks for a tool, and answers in the last of `count` rounds, or in `count` pieces."""

    def __init__(self, count: int, latency_seconds: float = 0.0) -> None:
        self._count = count
        self._latency_seconds = latency_seconds

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:
        """The next answer."""
        if self._latency_seconds:
            await asyncio.sleep(self._latency_seconds)
        number = 0 if isinstance(input, str) else len(input) // 2
        asked, written = tokens(number)
        usage = Usage(requests=1, input_tokens=asked, output_tokens=written, total_tokens=asked + written)
        output: Any = _message(ANSWER)
        if number + 1 < self._count:
            output = ResponseFunctionToolCall(
                call_id=call_id(number), name=TOOL, arguments=json.dumps(arguments(number)), type="function_call"
            )
        return ModelResponse(output=[output], usage=usage, response_id=None)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """The answer in pieces."""
        for number in range(self._count):
            yield ResponseTextDeltaEvent(
                content_index=0,
                delta=PIECE,
                item_id="message",
                logprobs=[],
                output_index=0,
                sequence_number=number,
                type="response.output_text.delta",
            )
        response = Response(
            id="response",
            created_at=0,
            model="fake",
            object="response",
            output=[_message(PIECE * self._count)],
            parallel_tool_calls=True,
            tool_choice="auto",
            tools=[],
        )
        yield ResponseCompletedEvent(response=response, sequence_number=self._count, type="response.completed")


def rounds(count: int, *, latency_seconds: float = 0.0) -> Job:
    """A run of so many rounds."""
    return _rounds(FakeModel(count, latency_seconds))


def deltas(count: int) -> Job:
    """An answer in so many pieces."""
    return _deltas(FakeModel(count))


def http_rounds(base_url: str, count: int) -> Job:
    """A run of so many rounds over HTTP, each answer in one piece."""
    return _rounds(_openai(base_url, f"rounds-{count}"))


def http_deltas(base_url: str, model: str) -> Job:
    """An answer in many pieces over HTTP."""
    return _deltas(_openai(base_url, model))


def _openai(base_url: str, model: str) -> Model:
    client = AsyncOpenAI(base_url=base_url, api_key="none")
    return OpenAIChatCompletionsModel(model=model, openai_client=client)


def _rounds(model: Model) -> Job:
    agent = Agent(name="agent", model=model, tools=[function_tool(search)])

    async def job() -> int:
        result = await Runner.run(agent, PROMPT, max_turns=MANY)
        return len(result.raw_responses)

    return job


def _deltas(model: Model) -> Job:
    agent = Agent(name="agent", model=model)

    async def job() -> int:
        pieces = 0
        result = Runner.run_streamed(agent, PROMPT, max_turns=MANY)
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                pieces += 1
        return pieces

    return job
