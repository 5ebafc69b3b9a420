"""What a facade hands to the body that serves a turn, and what of the observation of a turn its caller gets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

from endstop.cutover.projection import WireVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from langchain_core.messages import BaseMessage

    from endstop._messages import JsonObject
    from endstop.cutover.responses import AgentResponse, StreamChunk
    from endstop.turn_observation import TurnObservation

Asking: TypeAlias = "str | Sequence[BaseMessage | Mapping[str, object]]"
"""What a turn is asked: text, or a whole conversation as LangChain's messages or their dicts."""

Tell: TypeAlias = "Callable[[StreamChunk], None]"
"""Takes the chunks of a turn as they come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One turn as its caller asked for it."""

    prompt: Asking
    run_id: str
    session_id: str | None = None
    deps: object = None
    wire_version: WireVersion = 1


class FacadeBody(Protocol):
    """What serves the turns of a facade, and leaves a record of each in the ledger."""

    async def run(self, asked: Asked) -> AgentResponse:
        """Serve a turn."""
        ...

    def run_sync(self, asked: Asked) -> AgentResponse:
        """Serve a turn for code that is not async."""
        ...

    async def stream(self, asked: Asked, tell: Tell) -> None:
        """Serve a turn and tell its chunks."""
        ...


def observed_response(response: AgentResponse, seen: TurnObservation) -> AgentResponse:
    """The response with what was observed of its turn."""
    return replace(response, memory_entries_used=seen.recalled or 0, extracted_ops=_operations(seen))


def observed_chunk(chunk: StreamChunk, seen: TurnObservation) -> StreamChunk:
    """The chunk, with what was observed of the turn if it is its last."""
    if chunk.event_type != "done" or not isinstance(chunk.data, dict):
        return chunk
    found: JsonObject = {"memory_entries_used": seen.recalled or 0, "extracted_ops": [*_operations(seen)]}
    return replace(chunk, data=chunk.data | found)


def _operations(seen: TurnObservation) -> list[JsonObject]:
    return [dict(operation) for operation in seen.extraction_ops]
