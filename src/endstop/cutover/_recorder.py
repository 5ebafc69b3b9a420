"""Writes what LangGraph agents do to a tape, and leaves what they do as it is."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage, convert_to_messages
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import ensure_config
from langchain_core.tools import BaseTool
from langchain_core.tracers.context import register_configure_hook
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.errors import GraphInterrupt
from langgraph.types import Command, Interrupt

from endstop._errors import ConfigError
from endstop.cutover._plain import Plain
from endstop.cutover.tape import DEFAULT_REDACTED_KEYS, TapeFile

if TYPE_CHECKING:
    import os

    from endstop._messages import JsonObject, JsonValue

Write: TypeAlias = "Callable[[JsonObject], object]"
"""Where events go: `TapeFile.write`, or `append` of a list."""

logger = logging.getLogger(__name__)

_MAX_PROBLEMS = 100
_STEP_TAG = "graph:step:"

_active: ContextVar[Recorder | None] = ContextVar("endstop_recorder", default=None)
register_configure_hook(_active, inheritable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A run under way. `turn` is the graph it belongs to; what a tool does of its own is part of no turn."""

    turn: UUID | None
    in_tool: bool = False
    surface: str = ""
    input: object = None
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, object] | None = None


class Recorder(BaseCallbackHandler):
    """A LangChain callback handler that hands each event of each turn to `write`.

    A turn is one run of a LangGraph graph, at any depth; one that runs inside another names it as its `parent`. Nothing
    of what goes wrong here reaches the turn: LangChain logs it as a warning, `problems` keeps it (the first hundred),
    and the turn is incomplete on the tape.
    """

    # In the order of the events, and in the context of the node: not in a thread of an executor.
    run_inline = True

    def __init__(self, write: Write, *, redact: Iterable[str] = DEFAULT_REDACTED_KEYS) -> None:
        self.problems: list[str] = []
        self._write = write
        self._redact = frozenset(redact)
        self._lock = threading.RLock()
        self._runs: dict[UUID, _Run] = {}
        self._next: dict[UUID, int] = {}

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: dict[str, Any],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep what a run starts with; where it is a step, its parent turns out to be a graph."""
        with self._noting():
            if parent_run_id and any(tag.startswith(_STEP_TAG) for tag in tags or ()):
                self._begin_turn(parent_run_id, inputs)
            surface = str(kwargs.get("name") or "")
            run = replace(self._below(parent_run_id), surface=surface, input=inputs, metadata=metadata)
            self._runs[run_id] = replace(run, tags=tuple(tags or ()))

    def on_chain_end(self, outputs: dict[str, Any], *, run_id: UUID, **kwargs: Any) -> None:
        """End the turn, where this run is one."""
        with self._noting():
            self._end_turn(run_id, outputs, None)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """End the turn, where this run is one; a node that is interrupted tells of what it asks."""
        with self._noting():
            if isinstance(error, GraphInterrupt):
                self._emit(self._runs.get(run_id), "interrupt", {"interrupts": _interrupts(error)})
                self._end_turn(run_id, None, None)
            else:
                self._end_turn(run_id, None, error)

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Tell what is asked of the model."""
        with self._noting():
            run = self._runs[run_id] = self._below(parent_run_id)
            settings = dict(kwargs.get("invocation_params") or {})
            tools = settings.pop("tools", None) or settings.pop("functions", None) or list[object]()
            tools = [convert_to_openai_tool(tool) if isinstance(tool, BaseTool) else tool for tool in tools]
            limit = ensure_config().get("recursion_limit")
            asked = {"messages": messages[0], "tools": tools, "settings": settings, "recursion_limit": limit}
            self._emit(run, "model_request", {"run": run_id, **asked})

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """Tell what the model answered."""
        with self._noting():
            run, generation = self._runs.pop(run_id, None), response.generations[0][0]
            if isinstance(generation, ChatGeneration):
                self._emit(run, "model_answer", {"run": run_id, "message": generation.message})

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Tell that the model failed."""
        with self._noting():
            self._emit(self._runs.pop(run_id, None), "model_error", {"run": run_id, "error": _error(error)})

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Tell that a tool is called. What it does of its own belongs to its result."""
        with self._noting():
            outer = self._below(parent_run_id)
            self._runs[run_id] = replace(outer, in_tool=True)
            name = kwargs.get("name") or serialized.get("name")
            asked = {"name": name, "args": input_str if inputs is None else inputs, "id": kwargs.get("tool_call_id")}
            self._emit(outer, "tool_call", {"run": run_id, **asked})

    def on_tool_end(self, output: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any) -> None:
        """Tell what a tool returned."""
        with self._noting():
            self._runs.pop(run_id, None)
            told: dict[str, object] = {"run": run_id, "message" if isinstance(output, BaseMessage) else "value": output}
            unplayable = ["a Command that a tool returned"] if isinstance(output, Command) else []
            self._emit(self._below(parent_run_id), "tool_result", told, lost=unplayable)

    def on_tool_error(
        self, error: BaseException, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        """Tell that a tool failed."""
        with self._noting():
            self._runs.pop(run_id, None)
            asked = _interrupts(error) if isinstance(error, GraphInterrupt) else []
            told = {"run": run_id, "error": _error(error), "interrupts": asked}
            self._emit(self._below(parent_run_id), "tool_error", told)

    def _below(self, parent_run_id: UUID | None) -> _Run:
        """A run that begins inside another."""
        parent = self._runs.get(parent_run_id) if parent_run_id else None
        return _Run(turn=parent.turn, in_tool=parent.in_tool) if parent else _Run(turn=None)

    def _begin_turn(self, run_id: UUID, state: object) -> None:
        """A graph is known by its first step, which is handed its state; steps that run at once find it begun."""
        with self._lock:
            run = self._runs.get(run_id)
            if run is not None and run.turn != run_id:
                self._runs[run_id] = own = _Run(turn=run_id)
                self._emit(own, "turn_started", _beginning(run, state))

    def _end_turn(self, run_id: UUID, outputs: object, error: BaseException | None) -> None:
        run = self._runs.pop(run_id, None)
        if run is not None and run.turn == run_id:
            self._emit(run, "turn_ended", {**_outcome(outputs), "error": _error(error) if error else None})
            self._next.pop(run_id, None)

    def _emit(self, run: _Run | None, event: str, told: Mapping[str, object], *, lost: Iterable[str] = ()) -> None:
        """Write one event with its number in the turn; one that cannot be written leaves a gap in the numbers."""
        if run is None or run.turn is None or run.in_tool:
            return
        with self._lock:
            number = self._next.get(run.turn, 0)
            self._next[run.turn] = number + 1
            plain = Plain(self._redact)
            line: JsonObject = {"event": event, "turn": str(run.turn), "n": number}
            for name, value in told.items():
                line[name] = plain.tool(value) if name == "tools" else plain.value(value)
            problems: list[JsonValue] = [f"{event}: {what} cannot be written" for what in (*plain.lost, *lost)]
            if problems:
                line["problems"] = problems
                self._warn(f"turn {run.turn}, {'; '.join(map(str, problems))}")
            self._write(line)

    @contextmanager
    def _noting(self) -> Generator[None]:
        """Keep what goes wrong. It is raised on to LangChain, which logs it and goes on with the turn."""
        try:
            yield
        except BaseException as error:
            self._note(f"{type(error).__name__}: {error}")
            raise

    def _note(self, problem: str) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(problem)

    def _warn(self, problem: str) -> None:
        self._note(problem)
        logger.warning("The tape lacks something: %s", problem)


@contextmanager
def record(path: str | os.PathLike[str], *, redact: Iterable[str] = DEFAULT_REDACTED_KEYS) -> Generator[Recorder]:
    """Tape every turn of every LangGraph agent that is run inside the block, sync or async.

    The recorder comes by a context variable, as far as those go: into tasks, the threads of LangChain and LangGraph,
    and through `copy_context`. A bare thread takes it with it in its config: `{"callbacks": [recorder]}`. Of nested
    blocks the innermost tapes.

    What stands under a name in `redact` is not written: whole names of keys, in upper or lower case; what stands in
    free text is written as it is. A tape that exists is gone on with. Raises `OSError` where the file cannot be opened,
    and `ConfigError` for a `redact` that is one text; nothing is raised into a turn.
    """
    if isinstance(redact, str):
        raise ConfigError("redact", redact, "use a set of names, such as DEFAULT_REDACTED_KEYS | {'session'}")
    file = TapeFile(path)
    recorder = Recorder(file.write, redact=redact)
    token = _active.set(recorder)
    try:
        yield recorder
    finally:
        _active.reset(token)
        file.close()


def _beginning(run: _Run, state: object) -> dict[str, object]:
    metadata = run.metadata or {}
    thread = metadata.get("thread_id")
    return {
        "parent": run.turn,
        "thread": None if thread is None else str(thread),
        "surface": run.surface,
        "tags": run.tags,
        "metadata_keys": sorted(metadata),
        "input": _with_messages(run.input),
        "state": state.get("messages") if _is_mapping(state) else None,
        "versions": {name: version(name) for name in ("langgraph", "langchain-core")},
    }


def _with_messages(value: object) -> object:
    """An input whose messages are messages, however they were written; one that has none is left as it is."""
    if not _is_mapping(value) or "messages" not in value:
        return value
    given = value["messages"]
    return {**value, "messages": convert_to_messages(given if _is_list(given) else list[Any]([given]))}


def _outcome(outputs: object) -> dict[str, object]:
    if not _is_mapping(outputs):
        return {"messages": outputs if _is_list(outputs) else []}
    return {"messages": outputs.get("messages", []), "structured": outputs.get("structured_response")}


def _interrupts(error: GraphInterrupt) -> list[dict[str, object]]:
    asked: Iterable[Interrupt] = error.args[0] if error.args else ()
    return [{"id": interrupt.id, "value": interrupt.value} for interrupt in asked]


def _error(error: BaseException) -> dict[str, str]:
    return {"name": f"{type(error).__module__}.{type(error).__qualname__}", "text": str(error)}


def _is_mapping(value: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(value, Mapping)


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)
