"""What a caller of the agent holds: the response of a turn, and the chunks of one that is streamed."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta

from endstop._errors import ConfigError
from endstop._messages import JsonObject, JsonValue
from endstop._state import as_data, from_json, to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResponse:
    """The response of a turn.

    `final_response` is the answer, `None` where there is none. `messages` is the whole conversation in the shape of
    LangChain's `model_dump()`. `duration_ms` is working time in milliseconds. `delegated_to` are the agents that were
    called, in order, and `structured` is the validated output. What the turn does not know has its empty value.
    """

    final_response: str | None
    messages: list[JsonObject] = field(default_factory=list[JsonObject])
    memory_entries_used: int = 0
    system_prompt_tokens: int = 0
    run_id: str = ""
    session_id: str = ""
    duration_ms: float = 0.0
    delegated_to: tuple[str, ...] = ()
    extracted_ops: list[JsonObject] = field(default_factory=list[JsonObject])
    activation_log: JsonObject = field(default_factory=dict[str, JsonValue])
    structured: object = None

    def to_json(self) -> str:
        """The response as one JSON document; `structured` must be data that pydantic can write."""
        known: dict[str, object] = {each.name: getattr(self, each.name) for each in fields(self)}
        return to_json(known | {"structured": as_data(self.structured)}, "agent-response")

    @classmethod
    def from_json(cls, document: str | bytes) -> AgentResponse:
        """The response that `to_json` wrote; `structured` is the JSON data of what it was.

        Raises:
            StateError: the document is no JSON, no response, of a newer version, or a field is wrong.
        """
        return from_json(cls, "agent-response", document)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamChunk:
    """One piece of a streamed turn.

    `data` depends on the `event_type`: the text of `thinking` and `text_delta`, the payload of `tool_call`,
    `tool_result` and of a pause, the summary of `done`. `timestamp` is when the chunk was made, in UTC.

    Raises:
        ConfigError: the `timestamp` is not in UTC.
    """

    event_type: str
    data: JsonValue = None
    timestamp: datetime = field(default_factory=lambda: datetime.now(UTC))
    run_id: str = ""

    def __post_init__(self) -> None:
        if self.timestamp.utcoffset() != timedelta(0):
            raise ConfigError("timestamp", self.timestamp, "use a time in UTC: datetime.now(UTC)")

    def to_json(self) -> str:
        """The chunk as one JSON document."""
        return to_json(self, "stream-chunk")

    @classmethod
    def from_json(cls, document: str | bytes) -> StreamChunk:
        """The chunk that `to_json` wrote.

        Raises:
            StateError: the document is no JSON, no chunk, of a newer version, or a field is wrong.
        """
        return from_json(cls, "stream-chunk", document)
