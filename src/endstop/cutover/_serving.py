"""A turn that the kernel serves, from what its caller asked to the chunks that the caller is given."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import functools
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphInterrupt
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Interrupt, interrupt
from pydantic import BaseModel

from endstop.cutover import _pregel
from endstop.cutover._body import run_turn
from endstop.cutover._driving import Outlet, drive_async, drive_sync
from endstop.cutover._threads import Thread, state_of
from endstop.cutover._turn import Task, Turn
from endstop.cutover._walk import input_writes

if TYPE_CHECKING:
    from langgraph.checkpoint.base import CheckpointTuple

    from endstop._limits import Spent
    from endstop._tools import Tool
    from endstop.cutover._pregel import Chunk

Graph: TypeAlias = Any
"""A `CompiledStateGraph`, whose members' types LangGraph leaves open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a caller asked of an agent; `config` has what the graph binds and what surrounds the call too."""

    input: dict[str, object]
    config: RunnableConfig
    stream_mode: str | Sequence[str]
    output_keys: str | Sequence[str]
    subgraphs: bool = False
    version: str = "v1"
    context: object = None

    @property
    def modes(self) -> tuple[str, ...]:
        """The stream modes, each once."""
        return (self.stream_mode,) if isinstance(self.stream_mode, str) else tuple(self.stream_mode)

    @property
    def is_live(self) -> bool:
        """Whether the caller wants what a node tells while that node is running."""
        return self.subgraphs or not {"messages", "custom"}.isdisjoint(self.modes)

    def shaped(self, chunk: Chunk) -> object:
        """A chunk in the form that this caller reads."""
        namespace, mode, payload = chunk
        if self.version == "v2":
            part = {"type": mode, "ns": namespace, "data": payload}
            if mode != "values":
                return part
            return {**part, "interrupts": payload.pop("__interrupt__", ()) if _has_keys(payload) else ()}
        named = (payload,) if not isinstance(self.stream_mode, list) else (mode, payload)
        whole = (namespace, *named) if self.subgraphs else named
        return whole if len(whole) > 1 else payload


class Serving:
    """One turn on the kernel. When it is over, `rounds` and `spent` say what it took."""

    def __init__(
        self, graph: Graph, tools: Sequence[Tool], asked: Asked, saved: CheckpointTuple | None, *, is_async: bool
    ) -> None:
        self._graph = graph
        self._tools = tools
        self._asked = asked
        self._saved = saved
        self._is_async = is_async
        self._outlet: Outlet[Chunk] = Outlet(live=asked.is_live)
        self.rounds = 0
        self.spent: Spent | None = None

    def chunks(self) -> Iterator[object]:
        """Run the turn for a caller that is not async.

        Raises:
            GraphRecursionError: the super-steps are used up.
            Exception: what the model, a tool or a hook raised, as it is.
        """
        with closing(drive_sync(self._work, self._outlet)) as driven:
            for chunk in driven:
                if chunk[1] in self._asked.modes:
                    yield self._asked.shaped(chunk)

    async def achunks(self) -> AsyncGenerator[object]:
        """Run the turn for a caller that is async; it raises what `chunks` raises."""
        driven: Any = drive_async(self._work, self._outlet)
        async with aclosing(driven):
            async for chunk in driven:
                if chunk[1] in self._asked.modes:
                    yield self._asked.shaped(chunk)

    async def _work(self) -> None:
        asked = self._asked
        run = await _done(
            _pregel.opened_run(asked.config, asked.input, self._graph.get_name(), is_async=self._is_async)
        )
        try:
            output = await self._run(run)
        except BaseException as error:
            # A turn that its caller leaves is cancelled here, and ended by what made the caller leave.
            await _done(run.on_chain_error(self._outlet.left_by or error))
            raise
        await _done(run.on_chain_end(output))

    async def _run(self, run: Any) -> object:
        turn = self._turn(run)
        await turn.begin(input_writes(self._graph.builder, self._asked.input))
        try:
            self.spent = await run_turn(turn, self._tools, name=self._graph.get_name())
        finally:
            self.rounds = turn.rounds
            await turn.thread.leave(turn)
        if isinstance(turn.failure, GraphInterrupt):
            self._tell_finished(turn)
        elif turn.failure is not None:
            raise turn.failure
        return turn.output()

    def _turn(self, run: Any) -> _AskingTurn:
        asked, graph, tell = self._asked, self._graph, self._outlet.put
        if "messages" in asked.modes:
            run.inheritable_handlers.append(_pregel.messages_handler(tell, subgraphs=asked.subgraphs))
        runtime = _pregel.runtime_for(
            asked.config, context=_context(graph, asked.context), store=graph.store, writer=self._write
        )
        turn = _AskingTurn(
            graph.builder,
            state_of(graph, self._saved),
            config=_pregel.surroundings(
                asked.config, runtime=runtime, tell=tell, subgraphs=asked.subgraphs, modes=asked.modes
            ),
            manager=run,
            tell=tell,
            output_keys=asked.output_keys,
            is_async=self._is_async,
        )
        turn.thread = Thread(graph, asked.config, asked.input, self._saved, is_async=self._is_async)
        turn.on_questions = self._tell_questions
        return turn

    def _tell_questions(self, turn: Turn, questions: tuple[Interrupt, ...]) -> None:
        told = {"__interrupt__": questions}
        self._outlet.put(((), "updates", told))
        if _tells_state_with_questions():
            values: Any = turn.output()
            self._outlet.put(((), "values", {**values, **told} if _has_keys(values) else told))
        elif "updates" not in self._asked.modes:
            self._outlet.put(((), "values", told))
        self._outlet.hand_over()

    def _tell_finished(self, turn: Turn) -> None:
        """Tell the state with what ran beside a question, which the thread takes when the question is answered."""
        writes = [write for task in turn.tasks for write in task.writes]
        turn.state.apply(writes)
        for values in _pregel.told_values(self._asked.output_keys, writes, turn.state.channels):
            self._outlet.put(((), "values", values))

    def _write(self, value: object) -> None:
        """What nodes and tools write to the stream of mode `custom`."""
        self._outlet.put((_pregel.current_namespace(), "custom", value))


class _AskingTurn(Turn):
    """A turn that says that a node asks a person as soon as it does."""

    thread: Thread
    on_questions: Callable[[Turn, tuple[Interrupt, ...]], None]

    async def perform(self, task: Task) -> None:
        try:
            await super().perform(task)
        except GraphInterrupt:
            if (questions := await self.thread.new_questions(self, task)) is not None:
                self.on_questions(self, questions)
            raise


async def _done(value: Any) -> Any:
    """The value, which async callbacks must be waited for."""
    return await value if asyncio.iscoroutine(value) else value


def _context(graph: Graph, given: Any) -> Any:
    """The context that nodes are handed: a dict becomes what the graph's context schema makes of it."""
    schema = graph.context_schema
    return schema(**given) if _has_keys(given) and _makes_objects(schema) else given


def _makes_objects(schema: object) -> bool:
    return dataclasses.is_dataclass(schema) or (isinstance(schema, type) and issubclass(schema, BaseModel))


def _has_keys(value: object) -> bool:
    return isinstance(value, Mapping)


@functools.cache
def _tells_state_with_questions() -> bool:
    """Whether this LangGraph tells the state in mode `values` beside a question in mode `updates`: releases differ."""
    builder: Any = StateGraph(MessagesState)
    graph = builder.add_node("ask", interrupt).add_edge(START, "ask").compile()
    told = contextvars.Context().run(lambda: [*graph.stream({"messages": []}, stream_mode=["updates", "values"])])
    return any(mode == "values" and "__interrupt__" in chunk for mode, chunk in told)
