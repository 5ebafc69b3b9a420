"""The loop that one would write by hand: no limits, no events, no checks."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx

from benchmarks.contenders.endstop_agent import SPEC, scripted, streaming
from benchmarks.task import PROMPT, TOOL, Job, search
from endstop import Delta, Model, ModelRequest, ToolCall, ToolReturn, UserMessage

TOOLS = {TOOL: search}


async def run_tool(call: ToolCall) -> ToolReturn:
    """Run one call."""
    text = await TOOLS[call.name](**call.arguments)
    return ToolReturn(call_id=call.call_id, name=call.name, content=text)


async def ignore(delta: Delta) -> None:
    """Nobody listens."""


async def loop(model: Model) -> int:
    """Ask, run what is asked for, and ask again until there is an answer."""
    messages = [UserMessage(content=PROMPT)]
    requests = 0
    while True:
        requests += 1
        turn = await model.respond(ModelRequest(messages=messages, tools=(SPEC,)), ignore)
        messages.append(turn)
        if not turn.tool_calls:
            return requests
        if len(turn.tool_calls) == 1:
            messages.append(await run_tool(turn.tool_calls[0]))
        else:
            messages += await asyncio.gather(*map(run_tool, turn.tool_calls))


def rounds(count: int, *, latency_seconds: float = 0.0) -> Job:
    """A run of so many rounds."""
    model = scripted(count, latency_seconds=latency_seconds)
    return lambda: loop(model)


def deltas(count: int) -> Job:
    """An answer in so many pieces, each put into a list."""
    model = streaming(count)

    async def job() -> int:
        pieces: list[str] = []

        async def keep(delta: Delta) -> None:
            pieces.append(delta.text)

        await model.respond(ModelRequest(messages=[UserMessage(content=PROMPT)]), keep)
        return len(pieces)

    return job


def http_rounds(base_url: str, count: int) -> Job:
    """A run of so many rounds over HTTP, each answer in one piece, on httpx and json alone."""
    client = httpx.AsyncClient()
    function = {"name": SPEC.name, "description": SPEC.description, "parameters": SPEC.parameters}
    body = {"model": f"rounds-{count}", "tools": [{"type": "function", "function": function}]}

    async def job() -> int:
        messages: list[dict[str, Any]] = [{"role": "user", "content": PROMPT}]
        requests = 0
        while True:
            requests += 1
            response = await client.post(f"{base_url}/chat/completions", json={**body, "messages": messages})
            message = response.raise_for_status().json()["choices"][0]["message"]
            messages.append(message)
            if "tool_calls" not in message:
                return requests
            for call in message["tool_calls"]:
                text = await TOOLS[call["function"]["name"]](**json.loads(call["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})

    return job


def http_deltas(base_url: str, model: str) -> Job:
    """An answer in many pieces over HTTP, on httpx and json alone."""
    client = httpx.AsyncClient()
    body = {"model": model, "messages": [{"role": "user", "content": PROMPT}], "stream": True}

    async def job() -> int:
        pieces = 0
        async with client.stream("POST", f"{base_url}/chat/completions", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    choices = json.loads(line.removeprefix("data: "))["choices"]
                    if choices and choices[0]["delta"].get("content"):
                        pieces += 1
        return pieces

    return job
