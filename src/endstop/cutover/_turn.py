"""One turn of an agent on the kernel: the nodes of its graph, one super-step after another.

The kernel asks for rounds and runs tools; `advance` and `answer` are what it gets them from. Everything that can be
seen from outside (the state, the chunks, the callbacks, the super-steps that are counted) is as under LangGraph.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import inspect
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.constants import START
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from pydantic import BaseModel

from endstop.cutover._driving import hand_over, is_live, outside_the_loop, taken
from endstop.cutover._graph_state import GraphState
from endstop.cutover._pregel import (
    Around,
    NodeRuns,
    TaskPlace,
    Write,
    context_of,
    inside,
    new_task_id,
    node_cancelled,
    recursion_error,
    scratch,
    told_updates,
    told_values,
)
from endstop.cutover._walk import Roads, Visit, each, visits_sent, writes_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextvars import Context

    from langchain_core.messages import ToolCall
    from langchain_core.runnables import Runnable, RunnableConfig

    from endstop.cutover._pregel import Chunk
    from endstop.cutover._walk import Builder

TOOLS = "tools"
"""The node that answers an agent's tool calls, under every name that LangChain and LangGraph give an agent."""

MODEL_NODES = frozenset({"model", "agent"})
"""The node that asks the model, in `create_agent` and in `create_react_agent`."""


@dataclass(slots=True, kw_only=True)
class Task:
    """One execution of a node: what it is handed and, when it is over, what it wrote and where it leads.

    `state` is the state with what it wrote alone, as far as that was looked at.
    """

    visit: Visit
    place: TaskPlace
    given: Any
    writes: list[Write] = field(default_factory=list[Write])
    leads_to: list[Visit] = field(default_factory=list[Visit])
    state: GraphState | None = None
    is_done: bool = False
    error: BaseException | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    running: asyncio.Task[object] | None = None


class Turn:
    """The turn of one caller. `tell` takes what the caller is told; `failure` is what ended it, if anything did.

    `written` is all that its closed super-steps wrote, in order, `newest` what the last of them did.
    """

    def __init__(
        self,
        builder: Builder,
        state: GraphState,
        *,
        config: RunnableConfig,
        manager: Any,
        tell: Callable[[Chunk], None],
        output_keys: str | Sequence[str],
        is_async: bool,
    ) -> None:
        self._builder = builder
        self._roads = Roads(builder)
        self.state = state
        self._runs = NodeRuns(config, manager, is_async=is_async)
        self._tell = tell
        self._output_keys = output_keys
        self._is_async = is_async
        self._tags: Sequence[str] = config.get("tags") or ()
        self._at_once: int | None = config.get("max_concurrency")
        self._gate = asyncio.Semaphore(self._at_once) if is_async and self._at_once else None
        self.limit: int = config.get("recursion_limit", 1)
        self._counters = scratch()
        self.steps = 0
        self.rounds = 0
        self.due: list[Visit] = []
        self.tasks: list[Task] = []
        self.written: list[Write] = []
        self.newest: list[Write] = []
        self.last_node = START
        self.failure: BaseException | None = None

    # -- the kernel's side ---------------------------------------------------------------------------------------------

    async def begin(self, writes: Sequence[Write]) -> None:
        """Take the input into the state, tell it, and find the first node."""
        self._take(writes)
        self.due = self._roads.merged(self._roads.edges_from(START))

    async def advance(self) -> list[Task] | None:
        """Visit nodes up to the next tool calls, which are returned, or to the next call of the model.

        An empty list says that the model is due again, `None` that the graph has ended.

        Raises:
            GraphRecursionError: the super-steps are used up; all that was done is in the state.
            GraphInterrupt: tasks ask people; what ran beside them is in `tasks`, not in the state.
        """
        if self.tasks:
            await self._close_step()
        asked = False
        while True:
            if self.steps >= self.limit:
                raise recursion_error(self.limit)
            if not self.due:
                return None
            asks = any(visit.node in MODEL_NODES for visit in self.due)
            if asks and asked:
                return []
            asked = asked or asks
            await self._open_step()
            if all(task.visit.node == TOOLS for task in self.tasks):
                return self.tasks
            await self._close_step()

    async def answer(self, task: Task) -> str:
        """Run a task of the tools and return what the model is shown, for the kernel's own record."""
        await self.perform(task)
        return "\n".join(str(one.content) for one in _messages_in(task.writes) if isinstance(one, ToolMessage))

    def calls_of(self, task: Task) -> list[ToolCall]:
        """The tool calls that a task of the tools answers, as the model asked for them."""
        newest = self.newest_answer
        asked = newest.tool_calls if newest is not None else []
        sent: Any = [task.given["tool_call"]] if _has(task.given, "tool_call") else task.given
        if _are_calls(sent):
            return [_as_asked(call, asked) for call in sent]
        return [*asked]

    @property
    def newest_answer(self) -> AIMessage | None:
        """The newest answer of the model."""
        messages: Any = self.state.read(["messages"], self._counters).get("messages", [])
        return next((message for message in reversed(messages) if isinstance(message, AIMessage)), None)

    def output(self) -> object:
        """The values that the caller gets, as the state is now."""
        if isinstance(self._output_keys, str):
            return self.state.read([self._output_keys], self._counters).get(self._output_keys)
        return self.state.read(self._output_keys, self._counters)

    # -- one super-step ------------------------------------------------------------------------------------------------

    async def _open_step(self) -> None:
        await taken()
        self.steps += 1
        self._counters = scratch(self.steps, self.limit)
        self.tasks = [self._task(visit, index) for index, visit in enumerate(self.due)]
        self.rounds += sum(visit.node in MODEL_NODES for visit in self.due)
        self.due = []

    async def _close_step(self) -> None:
        """Run what has not run, take what the tasks wrote, tell it, and find what is due."""
        left = [task for task in self.tasks if not task.is_done and task.error is None]
        if len(left) == 1:
            with contextlib.suppress(GraphInterrupt):
                await self.perform(left[0])
        elif left:
            await asyncio.gather(*(self.perform(task) for task in left), return_exceptions=True)
        self._raise_errors()
        if self._side_by_side:
            await taken()
        tasks, self.tasks = self.tasks, []
        tasks.sort(key=lambda task: task.visit.sent)
        self.last_node = tasks[-1].visit.node
        self._take([write for task in tasks for write in task.writes], tasks[0].state if len(tasks) == 1 else None)
        self.due = self._roads.merged(visit for task in tasks for visit in task.leads_to)

    def _raise_errors(self) -> None:
        """Raise what ended a task; an error comes before a question, and all questions are one."""
        if self.failure is not None:
            raise self.failure
        errors = [task.error for task in self.tasks if task.error is not None]
        interrupts = [error for error in errors if isinstance(error, GraphInterrupt)]
        for error in errors:
            if not isinstance(error, GraphInterrupt):
                raise error
        if interrupts:
            raise GraphInterrupt(tuple(one for error in interrupts for one in error.args[0]))

    async def perform(self, task: Task) -> None:
        """Run the task's node, once; several that wait for it share the outcome."""
        async with task.lock:
            if task.error is not None:
                raise task.error
            if task.is_done:
                return
            try:
                await (self._gated(task) if self._gate is not None else self._run(task))
            except BaseException as error:
                task.error = error
                if not isinstance(error, GraphBubbleUp | asyncio.CancelledError):
                    self._stop_beside(task, error)
                raise
            task.is_done = True

    def _stop_beside(self, task: Task, error: BaseException) -> None:
        """The first error is the turn's; what runs beside it is cancelled where that can be done."""
        if self.failure is None:
            self.failure = error
            for other in self.tasks:
                if other is not task and other.running is not None:
                    other.running.cancel()

    async def _gated(self, task: Task) -> None:
        assert self._gate is not None
        async with self._gate:
            await self._run(task)

    async def _run(self, task: Task) -> None:
        try:
            returned, run = await self._returned(task)
            await self._done(run.on_chain_end(returned) if run is not None else None)
        except GraphBubbleUp:
            raise
        except asyncio.CancelledError as error:
            if self._is_cancelled():
                raise
            raise node_cancelled(task.visit.node, error) from error
        except Exception as error:
            error.add_note(f"During task with name '{task.visit.node}' and id '{task.place.task_id}'")
            raise
        if self.failure is None:
            for chunk in told_updates(self._output_keys, task.visit.node, task.writes, self._tags):
                self._tell(((), "updates", chunk))
            if self._side_by_side:
                hand_over()

    async def _returned(self, task: Task) -> tuple[object, Any]:
        """What the task's node returned, read into the task, and the run that callbacks know it as."""
        spec = self._builder.nodes[task.visit.node]
        around = self._around(task, spec)
        if not self._runs.is_heard:
            config = self._runs.quiet(task.place, around)
            returned = await self._invoke(task, spec.runnable, config, None)
            await self._read_off(task, returned, lambda _: config)
            return returned, None
        config, opened = self._runs.open(task.place, around, task.given)
        run = await self._done(opened)
        try:
            returned = await self._invoke(task, spec.runnable, inside(config, run, 1), run)
            await self._read_off(task, returned, lambda number: inside(config, run, number))
        except BaseException as error:
            await self._done(run.on_chain_error(error))
            raise
        return returned, run

    async def _invoke(self, task: Task, runnable: Runnable[Any, Any], config: RunnableConfig, run: Any) -> object:
        context = context_of(config, run)
        loop = asyncio.get_running_loop()
        if self._is_async:
            task.running = loop.create_task(_awaited(runnable.ainvoke(task.given, config)), context=context)
            return await _cancelled_once(task.running)
        work = functools.partial(_called, context, runnable, task.given, config)
        if self._side_by_side:
            return await loop.run_in_executor(self._threads(loop), work)
        with outside_the_loop():
            return work()

    async def _read_off(self, task: Task, returned: object, config: Callable[[int], RunnableConfig]) -> None:
        """Read what the node returned: what it writes, and where it and the branches behind it lead."""
        node = task.visit.node
        task.writes += writes_of(self._builder, returned)
        task.leads_to = visits_sent(returned)
        first = 3 + len(self._roads.edges_from(node))

        async def ask(number: int, branch: Any) -> object:
            if task.state is None:
                task.state = self.state.with_writes(task.writes)
            schema = branch.input_schema or self._builder.nodes[node].input_schema
            values: Any = self._input(schema, task.state)
            if branch.input_schema is None and all(isinstance(one, dict) for one in (values, returned)):
                values = {**cast("dict[str, object]", returned), **values}  # both are, as was just seen
            if self._is_async:
                return await branch.path.ainvoke(values, config(first + number))
            with outside_the_loop():
                return branch.path.invoke(values, config(first + number))

        task.leads_to += await self._roads.after(node, ask)

    def _take(self, writes: Sequence[Write], state: GraphState | None = None) -> None:
        self.newest = list(writes)
        self.written += writes
        if state is not None:
            self.state.channels = state.channels
        else:
            self.state.apply(writes)
        for chunk in told_values(self._output_keys, writes, self.state.channels):
            self._tell(((), "values", chunk))

    # -- small things --------------------------------------------------------------------------------------------------

    def _task(self, visit: Visit, index: int) -> Task:
        triggers = ("__pregel_push",) if visit.sent else (f"branch:to:{visit.node}",)
        path = ("__pregel_push", index, False) if visit.sent else ("__pregel_pull", visit.node)
        place = TaskPlace(node=visit.node, step=self.steps, triggers=triggers, path=path, task_id=new_task_id())
        given = visit.input if visit.sent else self._input(self._builder.nodes[visit.node].input_schema, self.state)
        return Task(visit=visit, place=place, given=given)

    def _around(self, task: Task, spec: Any) -> Around:
        return Around(
            scratch=scratch(self.steps, self.limit),
            channels=self.state.channels,
            managed=self._builder.managed,
            write=task.writes.extend,
            writes=task.writes,
            read=(lambda: self._input(spec.input_schema, self.state)) if task.visit.sent else None,
            metadata=spec.metadata or {},
        )

    def _input(self, schema: type[Any], state: GraphState) -> object:
        """What a node or a branch with this schema is handed: a dict, or what the schema makes of it."""
        values = state.read(self._builder.schemas[schema], self._counters)
        return schema(**values) if _makes_objects(schema) else values

    def _threads(self, loop: asyncio.AbstractEventLoop) -> ThreadPoolExecutor:
        """The threads in which tasks run beside each other; the loop ends them when it is shut down."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._at_once)
            loop.set_default_executor(self._pool)
        return self._pool

    _pool: ThreadPoolExecutor | None = None

    @property
    def _side_by_side(self) -> bool:
        """Whether tasks run beside each other or beside the caller, who is then told of each as it ends."""
        return len(self.tasks) > 1 or is_live()

    @staticmethod
    def _is_cancelled() -> bool:
        """Whether the cancellation is meant for the task that waits here, or was asked of what it waits for."""
        current = asyncio.current_task()
        return current is not None and current.cancelling() > 0

    @staticmethod
    async def _done(value: Any) -> Any:
        """The value, which async callbacks must be waited for."""
        return await value if asyncio.iscoroutine(value) else value


def _makes_objects(schema: type[Any]) -> bool:
    return inspect.isclass(schema) and (issubclass(schema, BaseModel) or dataclasses.is_dataclass(schema))


def _has(given: object, key: str) -> bool:
    return isinstance(given, dict) and key in given


def _are_calls(sent: Any) -> bool:
    return all(_has(call, "name") for call in each(sent)) and isinstance(sent, list)


def _as_asked(given: Any, asked: Sequence[ToolCall]) -> ToolCall:
    """The call as the model asked for it: what is sent to the tools may carry the state in its arguments."""
    for call in asked:
        if call["id"] == given.get("id") and call["name"] == given.get("name"):
            return call
    return {"name": str(given.get("name")), "args": {}, "id": given.get("id"), "type": "tool_call"}


def _messages_in(writes: Sequence[Write]) -> list[object]:
    found: list[object] = []
    for key, value in writes:
        if key == "messages":
            found += value if isinstance(value, list) else [value]
    return found


async def _awaited(value: Awaitable[object]) -> object:
    return await value


def _called(context: Context, runnable: Runnable[Any, Any], given: object, config: RunnableConfig) -> object:
    """What the node returns. No task or future can hold a `StopIteration`: it is told as a generator tells it."""
    try:
        return context.run(runnable.invoke, given, config)
    except StopIteration as error:
        raise RuntimeError("generator raised StopIteration") from error


async def _cancelled_once(running: asyncio.Task[object]) -> object:
    """What the task returns. However often this is cancelled, the task is cancelled once and may clean up in peace."""
    is_cancelled = False
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            if not is_cancelled:
                is_cancelled = True
                running.cancel()
    return await running
