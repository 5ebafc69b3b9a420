"""What callers of a facade do: they read streams, and compare what was told."""

from __future__ import annotations

import asyncio
from typing import Any

from endstop import Agent
from endstop.cutover import CutoverAgent, MemoryTurnLedger, StreamChunk
from endstop.models.scripted import ScriptedModel


async def chunks_of(agent: CutoverAgent, prompt: Any = "Where is the key?", **options: Any) -> list[StreamChunk]:
    return [chunk async for chunk in agent.stream_chunks(prompt, **options)]


def streamed(agent: CutoverAgent, prompt: Any = "Where is the key?", **options: Any) -> list[StreamChunk]:
    return asyncio.run(chunks_of(agent, prompt, **options))


def told(chunks: list[StreamChunk]) -> list[tuple[str, Any]]:
    """The chunks without what differs from turn to turn."""
    return [(chunk.event_type, _timeless(chunk.data)) for chunk in chunks]


def _timeless(data: Any) -> Any:
    return {**data, "duration_ms": 0} if isinstance(data, dict) and "duration_ms" in data else data


def native(*steps: Any, ledger: MemoryTurnLedger | None = None, **options: Any) -> CutoverAgent:
    """An agent of the kernel on a script."""
    return CutoverAgent(Agent(ScriptedModel(list(steps)), **options), ledger=ledger)
