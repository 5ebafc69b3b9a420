"""The turns of a facade on an agent's graph, whichever body the graph's switch sends them to.

Nothing here knows which body serves: both give the same values and the same chunks, of which the shapes are made that
callers of the facade hold.
"""

from __future__ import annotations

import time
import uuid
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langgraph.errors import GraphRecursionError
from langgraph.types import Interrupt
from pydantic import TypeAdapter

from endstop.cutover._facade_prompts import as_langchain, is_mapping
from endstop.cutover._facade_turn import Asked, Tell, observed_chunk, observed_response
from endstop.cutover.agents import cut_over
from endstop.cutover.envelope import MODEL_NODES, check_preset
from endstop.cutover.errors import RecursionExhaustedError
from endstop.cutover.responses import AgentResponse, StreamChunk
from endstop.models._langchain_codec import as_json, at, read_chunk_thinking, read_thinking
from endstop.turn_observation import observing

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from langchain_core.runnables import RunnableConfig

    from endstop._messages import JsonObject, JsonValue
    from endstop.cutover._delegate import Desk
    from endstop.cutover.ledger import TurnLedger
    from endstop.cutover.presets import AgentConfig
    from endstop.cutover.projection import WireVersion
    from endstop.cutover.switches import Switches

Graph: TypeAlias = Any
"""A `CompiledStateGraph`, whose members' types LangGraph leaves open."""

STREAM_MODES = ("messages", "updates", "values")
"""What of a graph's stream the chunks are made of."""


def graph_body(
    graph: Graph, config: AgentConfig | None, switches: Switches | None, ledger: TurnLedger | None
) -> GraphBody:
    """The body of an agent's graph, which is cut over if it is not yet; what is given here goes before what it has.

    Raises:
        ConfigError: it is no compiled graph.
    """
    moved = graph.copy() if hasattr(graph, "endstop_desk") else cut_over(graph)
    refusals = () if config is None else check_preset(config)
    desk: Desk = moved.endstop_desk
    vars(moved)["endstop_desk"] = replace(
        desk,
        switches=desk.switches if switches is None else switches,
        ledger=desk.ledger if ledger is None else ledger,
        refusals=tuple(dict.fromkeys((*desk.refusals, *refusals))),
    )
    return GraphBody(moved, None if config is None else config.recursion_limit)


class GraphBody:
    """Serves turns on a graph that is cut over. `recursion_limit` is that of each turn (`None`: the graph's own)."""

    def __init__(self, graph: Graph, recursion_limit: int | None) -> None:
        self._graph = graph
        self._recursion_limit = recursion_limit

    async def run(self, asked: Asked) -> AgentResponse:
        """Serve a turn.

        Raises:
            RecursionExhaustedError: the super-steps of the graph, or of one that it calls, are used up.
            Exception: what the model, a tool or a hook raised, as it is.
        """
        began, config = time.perf_counter(), self._config(asked)
        with observing() as seen, _exhaustion_named(asked.run_id):
            state = await self._graph.ainvoke(_input(asked), config, **_options(asked))
        return observed_response(_response(state, asked, config, began), seen)

    def run_sync(self, asked: Asked) -> AgentResponse:
        """Serve a turn for code that is not async; it raises what `run` raises."""
        began, config = time.perf_counter(), self._config(asked)
        with observing() as seen, _exhaustion_named(asked.run_id):
            state = self._graph.invoke(_input(asked), config, **_options(asked))
        return observed_response(_response(state, asked, config, began), seen)

    async def stream(self, asked: Asked, tell: Tell) -> None:
        """Serve a turn and tell its chunks; it raises what `run` raises."""
        began, config = time.perf_counter(), self._config(asked)
        telling = Telling(asked.run_id, asked.wire_version)
        with observing() as seen, _exhaustion_named(asked.run_id):
            stream = self._graph.astream(_input(asked), config, stream_mode=[*STREAM_MODES], **_options(asked))
            async with aclosing(stream):
                async for mode, payload in stream:
                    for chunk in telling.chunks(mode, payload):
                        tell(chunk)
        for chunk in telling.end(_milliseconds(began)):
            tell(observed_chunk(chunk, seen))

    def _config(self, asked: Asked) -> RunnableConfig:
        config: RunnableConfig = {"run_id": _uuid(asked.run_id)}
        thread = asked.session_id or (uuid.uuid4().hex if self._graph.checkpointer else None)
        if thread is not None:
            config["configurable"] = {"thread_id": thread}
        if self._recursion_limit is not None:
            config["recursion_limit"] = self._recursion_limit
        return config


class Telling:
    """What a graph's stream says, as the chunks that callers of a facade hold.

    Text comes from mode `messages`, as the model writes it; calls and results from `updates`, as soon as they are
    there. `values` says what was there before, and has every message in the end, so that none is missed whatever form
    a hook gave it. A message is told once, by its id.
    """

    def __init__(self, run_id: str, wire_version: WireVersion = 1) -> None:
        self._run_id = run_id
        self._tells_pauses = wire_version >= 2
        self._known: set[str] | None = None
        self._asked: set[str] = set()
        self._is_paused = False
        self._is_written = False
        self._state: Mapping[str, Any] = {}

    def chunks(self, mode: str, payload: Any) -> Iterator[StreamChunk]:
        """The chunks that one piece of the stream makes."""
        match mode:
            case "messages":
                yield from self._piece(*payload)
            case "updates":
                yield from self._updates(payload)
            case _:
                yield from self._values(payload)

    def end(self, duration_ms: float) -> Iterator[StreamChunk]:
        """The chunk of the end; there is none where the turn waits for a person."""
        if self._is_paused:
            return
        done: JsonObject = {
            "memory_entries_used": 0,
            "system_prompt_tokens": 0,
            "duration_ms": round(duration_ms, 1),
            "extracted_ops": [],
            "activation_log": {},
            "final_response": answer_in(self._state),
        }
        yield self._chunk("done", done)

    def _piece(self, message: BaseMessage, metadata: Mapping[str, object]) -> Iterator[StreamChunk]:
        """What the agent's own model writes; a model that a tool or a hook asks does not speak to the caller."""
        if metadata["langgraph_node"] in MODEL_NODES and isinstance(message, AIMessage):
            self._is_written = True
            yield from self._words(message)

    def _updates(self, updates: Mapping[str, Any]) -> Iterator[StreamChunk]:
        for node, update in updates.items():
            if node == "__interrupt__":
                yield from self._pauses(update)
                continue
            is_model = node in MODEL_NODES
            for message in _messages_in(update):
                yield from self._message(message, is_written=is_model and self._is_written)
            self._is_written = self._is_written and not is_model

    def _values(self, state: Mapping[str, Any]) -> Iterator[StreamChunk]:
        self._state = state
        messages: Sequence[BaseMessage] = state.get("messages", ())
        if self._known is None:
            self._known = {str(message.id) for message in messages}
        for message in messages:
            yield from self._message(message, is_written=False)

    def _message(self, message: BaseMessage, *, is_written: bool) -> Iterator[StreamChunk]:
        """A message of the model or of a tool that is new; of words that are written, the caller has them already."""
        if self._known is None or str(message.id) in self._known:
            return
        self._known.add(str(message.id))
        if isinstance(message, ToolMessage):
            yield self._chunk("tool_result", _result_data(message))
        elif isinstance(message, AIMessage):
            if not is_written:
                yield from self._words(message)
            for call in message.tool_calls:
                data = {"call_id": call["id"], "name": call["name"], "arguments": as_json(call["args"])}
                yield self._chunk("tool_call", data)

    def _words(self, message: AIMessage) -> Iterator[StreamChunk]:
        if thinking := _thinking(message):
            yield self._chunk("thinking", thinking)
        if text := str(message.text):
            yield self._chunk("text_delta", text)

    def _pauses(self, questions: Sequence[Interrupt]) -> Iterator[StreamChunk]:
        """Each question once; a breakpoint of the graph asks none, and is told as a pause without one."""
        self._is_paused = True
        for question in questions or [Interrupt(value=None, id="")]:
            if self._tells_pauses and question.id not in self._asked:
                self._asked.add(question.id)
                yield self._chunk(*_pause(question))

    def _chunk(self, event_type: str, data: JsonValue) -> StreamChunk:
        return StreamChunk(event_type=event_type, data=data, run_id=self._run_id)


def answer_in(state: Mapping[str, Any]) -> str:
    """The answer that a turn ended with; empty where it has none.

    It is what the model said last or, where a tool's result is returned directly, that result.
    """
    newest = next(reversed(state.get("messages", ())), None)
    if isinstance(newest, AIMessage) and not newest.tool_calls:
        return str(newest.text)
    if isinstance(newest, ToolMessage) and state.get("structured_response") is None:
        return str(newest.text)
    return ""


def _response(state: Mapping[str, Any], asked: Asked, config: RunnableConfig, began: float) -> AgentResponse:
    is_paused = "__interrupt__" in state
    return AgentResponse(
        final_response=None if is_paused else answer_in(state) or None,
        messages=[_legacy_message(message) for message in state["messages"]],
        run_id=asked.run_id,
        session_id=config.get("configurable", {}).get("thread_id", ""),
        duration_ms=_milliseconds(began),
        structured=state.get("structured_response"),
    )


def _input(asked: Asked) -> dict[str, object]:
    return {"messages": as_langchain(asked.prompt)}


def _options(asked: Asked) -> dict[str, object]:
    """Nothing more than is asked for: an option that is not known is one that the kernel refuses."""
    return {} if asked.deps is None else {"context": asked.deps}


def _uuid(run_id: str) -> uuid.UUID:
    """The id by which LangChain knows a run, which is always a UUID: the caller's own, or one that it stands for."""
    try:
        return uuid.UUID(run_id)
    except ValueError:
        return uuid.uuid5(uuid.NAMESPACE_OID, run_id)


@contextmanager
def _exhaustion_named(run_id: str) -> Generator[None]:
    """Raise the error that callers of a facade catch for the graph's own."""
    try:
        yield
    except RecursionExhaustedError:
        raise
    except GraphRecursionError as error:
        raise RecursionExhaustedError(run_id) from error


def _milliseconds(began: float) -> float:
    return (time.perf_counter() - began) * 1_000


# -- single messages -------------------------------------------------------------------------------


def _messages_in(update: object) -> list[BaseMessage]:
    """The messages that a node wrote, as far as they have an id."""
    written = [part.get("messages") for part in _each(update) if is_mapping(part)]
    messages = [message for write in written for message in _each(write)]
    return [message for message in messages if isinstance(message, BaseMessage) and message.id]


def _each(value: object) -> Sequence[object]:
    return value if _is_list(value) else [value]


def _is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def _thinking(message: AIMessage) -> str:
    if isinstance(message, AIMessageChunk):
        return read_chunk_thinking(message)
    return read_thinking(as_json(message.content), as_json(message.additional_kwargs))


def _result_data(message: ToolMessage) -> JsonObject:
    content, is_error = as_json(message.content), message.status == "error"
    return {"call_id": message.tool_call_id, "name": message.name or "", "result": content, "is_error": is_error}


def _legacy_message(message: BaseMessage) -> JsonObject:
    dumped = as_json(message.model_dump())
    assert isinstance(dumped, dict)
    return dumped


def _pause(question: Interrupt) -> tuple[str, JsonObject]:
    """What asks a person: the kind of its chunk, and the data."""
    value = as_json(question.value)
    call = _call_asked_for(value)
    kind = "ask_user" if isinstance(at(value, "question"), str) and call is None else "interrupt"
    data: JsonObject = {
        "pause_id": question.id,
        "question": value if isinstance(value, str) else at(value, "question"),
        "call": call,
        "answer_schema": _schema(getattr(question, "response_schema", None)),
        "expires_at": None,
        "value": value,
    }
    return kind, data


def _call_asked_for(value: JsonValue) -> JsonValue:
    """The call that a person is to approve, where it is one."""
    requests = at(value, "action_requests") or at(value, "approve")
    if not isinstance(requests, list) or len(requests) != 1:
        return None
    return {"call_id": None, "name": at(requests[0], "name"), "arguments": at(requests[0], "args")}


def _schema(schema: Any) -> JsonValue:
    return as_json(TypeAdapter(schema).json_schema() if isinstance(schema, type) else schema)
