"""A thread of a LangGraph checkpointer: read before a turn, and written after it as the graph itself would.

A turn is written by the graph's own `update_state`, in the name of the node that ran last, so that `get_state` and the
next turn of the thread find what the graph would have left, whichever body serves it.
"""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from langchain_core.messages import RemoveMessage
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.channels.ephemeral_value import EphemeralValue
from langgraph.channels.untracked_value import UntrackedValue
from langgraph.constants import START
from langgraph.errors import GraphInterrupt
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.types import Command, Interrupt, PregelTask, StateUpdate

from endstop.cutover._driving import outside_the_loop
from endstop.cutover._graph_state import GraphState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import CheckpointTuple

    from endstop.cutover._pregel import Write
    from endstop.cutover._turn import Task, Turn

INPUT = "__input__"
"""In whose name `update_state` takes the input of a turn."""

Graph: TypeAlias = Any
"""A `CompiledStateGraph`, whose members' types LangGraph leaves open."""
T = TypeVar("T")


def state_of(graph: Graph, saved: CheckpointTuple | None) -> GraphState:
    """The state that a turn begins with: what the thread holds, or nothing."""
    builder = graph.builder
    values = saved.checkpoint["channel_values"] if saved is not None else {}
    channels = {
        key: channel.from_checkpoint(values[key]) if key in values else channel.copy()
        for key, channel in builder.channels.items()
    }
    return GraphState(channels, builder.managed)


def thread_update(graph: Graph, turn: Turn) -> object:
    """What `update_state` is handed for a turn.

    Messages are given as they are in the turn's state, so that the thread knows them by the ids that the caller got.
    Any other key with a reducer gets every write, in order, and one without its last. What lives for one super-step
    only is there if the newest wrote it: the branch that says where the graph goes next may read it.
    """
    channels = graph.builder.channels
    updates: list[Write] = []
    single: dict[str, object] = {}
    for key, value in turn.written:
        channel = channels.get(key)
        if getattr(channel, "operator", None) is add_messages:
            single[key] = [RemoveMessage(id=REMOVE_ALL_MESSAGES), *turn.state.channels[key].get()]
        elif isinstance(channel, BinaryOperatorAggregate):
            updates.append((key, value))
        elif channel is not None and not isinstance(channel, EphemeralValue | UntrackedValue):
            single[key] = value
    single.update((key, value) for key, value in turn.newest if isinstance(channels.get(key), EphemeralValue))
    updates += single.items()
    return dict(updates) if turn.last_node == START else Command(update=updates)


def read(graph: Graph, config: RunnableConfig) -> CheckpointTuple | None:
    """What the thread of this configuration holds."""
    saved: CheckpointTuple | None = graph.checkpointer.get_tuple(_of_root(config))
    return saved


async def aread(graph: Graph, config: RunnableConfig) -> CheckpointTuple | None:
    """`read`, for code that is async."""
    saved: CheckpointTuple | None = await graph.checkpointer.aget_tuple(_of_root(config))
    return saved


class Thread:
    """The thread of one turn, which gets its closed super-steps, and what there is of the one it ended in."""

    def __init__(
        self, graph: Graph, config: RunnableConfig, given: object, saved: CheckpointTuple | None, *, is_async: bool
    ) -> None:
        self._graph = graph
        self._config = config
        self._input: Any = given
        self._has_unfinished = saved is not None and bool(saved.pending_writes)
        self._is_async = is_async
        self._kept: RunnableConfig | None = None
        self._due: tuple[PregelTask, ...] = ()
        self._keeping = asyncio.Lock()
        self._asked: list[Task] = []

    async def new_questions(self, turn: Turn, task: Task) -> tuple[Interrupt, ...] | None:
        """The questions that a task has just stopped for, with the ids that answer them; `None` if they are known.

        Without a checkpointer nobody can answer, and they are as they were asked.
        """
        if any(known is task for known in self._asked) or not isinstance(task.error, GraphInterrupt):
            return None
        self._asked.append(task)
        await self._keep(turn)
        return self._questions(turn, task)

    async def leave(self, turn: Turn) -> None:
        """Write the turn, however it ended.

        Beside the state of the super-steps that are closed, the thread gets what tasks of an open one wrote, asked or
        raised, as the graph would leave it, which goes on from there.
        """
        await self._keep(turn)
        for task, due in zip(turn.tasks, self._due, strict=False):
            if writes := self._left_by(turn, task):
                await self._put(writes, due.id)

    async def _keep(self, turn: Turn) -> None:
        """Write the closed super-steps, once, and learn what the graph would do next."""
        if not self._graph.checkpointer:
            return
        async with self._keeping:
            if self._kept is not None:
                return
            graph, root = self._graph, _of_root(self._config)
            steps = self._supersteps(turn)
            if self._is_async:
                self._kept = await graph.abulk_update_state(root, steps)
            else:
                self._kept = _outside(graph.bulk_update_state, root, steps)
            if turn.tasks:
                config = self._kept
                state = await graph.aget_state(config) if self._is_async else _outside(graph.get_state, config)
                self._due = state.tasks

    def _supersteps(self, turn: Turn) -> list[list[StateUpdate]]:
        """The turn as updates of the thread's state. An unfinished step of the turn before is given up by its input."""
        update: Any = thread_update(self._graph, turn)
        steps = [[StateUpdate(update, turn.last_node)]]
        return [[StateUpdate(self._input, INPUT)], *steps] if self._has_unfinished else steps

    async def _put(self, writes: Sequence[Write], task_id: str) -> None:
        saver: Any = self._graph.checkpointer
        if self._is_async:
            await saver.aput_writes(self._kept, writes, task_id)
        else:
            _outside(saver.put_writes, self._kept, writes, task_id)

    def _left_by(self, turn: Turn, task: Task) -> list[Write]:
        if isinstance(task.error, GraphInterrupt):
            return [("__interrupt__", self._questions(turn, task))]
        if isinstance(task.error, Exception):
            return [("__error__", task.error)]
        if not task.is_done:
            return []
        return [*task.writes, *((f"branch:to:{visit.node}", None) for visit in task.leads_to if not visit.sent)]

    def _questions(self, turn: Turn, task: Task) -> tuple[Interrupt, ...]:
        asked: Sequence[Interrupt] = task.error.args[0] if isinstance(task.error, GraphInterrupt) else ()
        ids = {id(one): due.id for one, due in zip(turn.tasks, self._due, strict=False)}
        return tuple(_as_of(ids.get(id(task)), task, question) for question in asked)


def _as_of(task_id: str | None, task: Task, question: Interrupt) -> Interrupt:
    """The question with the id that it has where this task asks it; one from a graph below keeps its own."""
    if task_id is None or question.id != Interrupt.from_ns(question.value, task.place.namespace).id:
        return question
    same = copy.copy(question)
    same.id = Interrupt.from_ns(question.value, f"{task.place.node}:{task_id}").id
    return same


def _outside(call: Callable[..., T], *given: object) -> T:
    with outside_the_loop():
        return call(*given)


def _of_root(config: RunnableConfig) -> RunnableConfig:
    """The configuration of the thread itself, and not of a run on it."""
    configurable = {"checkpoint_ns": "", **config.get("configurable", {})}
    return {"configurable": {key: value for key, value in configurable.items() if not key.startswith("__")}}
