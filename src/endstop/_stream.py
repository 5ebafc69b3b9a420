"""The events of one run on their way to the caller, and the scope that the run lives in."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, Protocol, cast

import anyio

from endstop._errors import UsageError
from endstop._events import HIGH_WATER, Cancelled, Done, Event
from endstop._results import AgentResult, OutputT_co

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from types import TracebackType

    from anyio.abc import TaskGroup

    from endstop._state import RunState


class LiveRun(Protocol):
    """The run behind a stream."""

    @property
    def state(self) -> RunState:
        """All that is known of it."""
        ...

    async def drive(self) -> None:
        """Go on to the end, telling every event."""
        ...

    def cancel(self) -> None:
        """End in order, as soon as may be."""
        ...


_WITH_RESULT = (Done, Cancelled)


class EventQueue:
    """Events from a run to its one reader, numbered in order. Once `HIGH_WATER` of them are unread it `is_full`.

    With `unread` nobody is going to read: events are numbered and dropped.
    """

    __slots__ = ("_events", "_failure", "_more", "_room", "is_closed", "result", "seq", "unread")

    def __init__(self, seq: int = 0, *, unread: bool = False) -> None:
        self.seq = seq
        self.unread = unread
        self.result: AgentResult[object] | None = None
        self._events: deque[Event] = deque()
        self._more: anyio.Event | None = None
        self._room: anyio.Event | None = None
        self.is_closed = False
        self._failure: BaseException | None = None

    @property
    def is_full(self) -> bool:
        """Whether the run should wait for its reader."""
        return len(self._events) > HIGH_WATER

    def put(self, event: Event) -> None:
        """Number the event and hand it to the reader."""
        self.seq += 1
        # The one place where an event gets its number: it is not shared with anybody yet.
        object.__setattr__(event, "seq", self.seq)
        if not self.unread:
            self._events.append(event)
        if isinstance(event, _WITH_RESULT) and len(event.path) == 1:
            self.result = event.result
        if self._more is not None:
            self._more.set()
            self._more = None

    async def room(self) -> None:
        """Wait until the reader has caught up."""
        while self.is_full:
            if self._room is None:
                self._room = anyio.Event()
            await self._room.wait()

    def close(self, failure: BaseException | None = None) -> None:
        """No event follows; the reader gets `failure` after the last one."""
        self.is_closed = True
        self._failure = failure
        if self._more is not None:
            self._more.set()

    async def get(self) -> Event:
        """The next event.

        Raises:
            StopAsyncIteration: the run is over and every event was read.
        """
        while not self._events:
            if self.is_closed:
                failure, self._failure = self._failure, None
                raise failure or StopAsyncIteration
            self._more = anyio.Event()
            await self._more.wait()
        event = self._events.popleft()
        if self._room is not None and len(self._events) <= HIGH_WATER // 2:
            self._room.set()
            self._room = None
        return event


class RunStream(Generic[OutputT_co]):
    """A run that is going on: an async context manager that is iterated for its events.

    The last event is `done`, `error` (the exception is raised after it) or `cancelled`. Leaving the
    block early cancels the run promptly; what it had done is in `state`, whose history is valid.
    """

    def __init__(self, run: LiveRun, queue: EventQueue) -> None:
        self._live = run
        self._queue = queue
        self._group: TaskGroup | None = None

    @property
    def state(self) -> RunState:
        """The run's state as it is now."""
        return self._live.state

    @property
    def result(self) -> AgentResult[OutputT_co]:
        """The run's result, also where it was cancelled or left early.

        Raises:
            RuntimeError: the run is not over, or it failed.
        """
        if self._queue.result is None:
            raise RuntimeError("the run has no result: read the stream to its end first, and see what it raised")
        return cast("AgentResult[OutputT_co]", self._queue.result)  # the events of a stream carry its own result

    def cancel(self) -> None:
        """End the run now, in order: its last event is `cancelled` and carries what was done."""
        self._live.cancel()

    async def to_end(self) -> AgentResult[OutputT_co]:
        """Run to the end in the caller's own task, with nobody reading the events, and return the result."""
        self._queue.unread = True
        await self._live.drive()
        return self.result

    async def __aenter__(self) -> RunStream[OutputT_co]:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._group is not None
        if not self._queue.is_closed:
            self._group.cancel_scope.cancel()
        # The group is left as if nothing was raised, so that the caller's own exception leaves bare.
        await self._group.__aexit__(None, None, None)

    def __aiter__(self) -> RunStream[OutputT_co]:
        return self

    def __anext__(self) -> Awaitable[Event]:
        if self._group is None:
            raise UsageError("the run has not started: read it inside `async with agent.stream(...) as run`")
        return self._queue.get()

    async def _run(self) -> None:
        with _Outcome(self._queue):
            await self._live.drive()


class _Outcome:
    """Hands a failure of the run to the reader of its events instead of to the task group."""

    __slots__ = ("_queue",)

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        mine = isinstance(error, Exception)
        self._queue.close(error if mine else None)
        return mine
