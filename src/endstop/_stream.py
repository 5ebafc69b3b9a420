"""The events of one run on their way to the caller, and the scope that the run lives in."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Generic

import anyio

from endstop._events import HIGH_WATER, Cancelled, Done, Event
from endstop._results import AgentResult, OutputT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from anyio.abc import TaskGroup

    from endstop._state import RunState


class EventQueue:
    """Events from a run to its one reader, numbered in order; `put` waits once `HIGH_WATER` of them are unread."""

    __slots__ = ("_closed", "_events", "_failure", "_more", "_room", "result", "seq")

    def __init__(self, seq: int = 0) -> None:
        self.seq = seq
        self.result: AgentResult[Any] | None = None
        self._events: deque[Event] = deque()
        self._more: anyio.Event | None = None
        self._room: anyio.Event | None = None
        self._closed = False
        self._failure: BaseException | None = None

    async def put(self, event: Event) -> None:
        """Number the event and hand it to the reader."""
        self.put_nowait(event)
        while len(self._events) > HIGH_WATER:
            if self._room is None:
                self._room = anyio.Event()
            await self._room.wait()

    def put_nowait(self, event: Event) -> None:
        """Number the event and hand it to the reader, however many are unread."""
        self.seq += 1
        # The one place where an event gets its number: it is not shared with anybody yet.
        object.__setattr__(event, "seq", self.seq)
        self._events.append(event)
        if isinstance(event, Done | Cancelled):
            self.result = event.result
        _wake(self._more)
        self._more = None

    def close(self, failure: BaseException | None = None) -> None:
        """No event follows; the reader gets `failure` after the last one."""
        self._closed = True
        self._failure = failure
        _wake(self._more)

    async def get(self) -> Event:
        """The next event.

        Raises:
            StopAsyncIteration: the run is over and every event was read.
        """
        while not self._events:
            if self._closed:
                failure, self._failure = self._failure, None
                raise failure or StopAsyncIteration
            self._more = anyio.Event()
            await self._more.wait()
        event = self._events.popleft()
        if self._room is not None and len(self._events) <= HIGH_WATER // 2:
            _wake(self._room)
            self._room = None
        return event


class RunStream(Generic[OutputT]):
    """A run that is going on: an async context manager that is iterated for its events.

    The last event is `done`, `error` (the exception is raised after it) or `cancelled`. Leaving the
    block early cancels the run promptly; what it had done is in `state`, whose history is valid.
    """

    def __init__(self, drive: Callable[[], Awaitable[None]], queue: EventQueue, state: RunState) -> None:
        self._drive = drive
        self._queue = queue
        self._group: TaskGroup | None = None
        self._scope = anyio.CancelScope()
        self.state = state

    @property
    def result(self) -> AgentResult[OutputT]:
        """The run's result, also where it was cancelled or left early.

        Raises:
            RuntimeError: the run is not over, or it failed.
        """
        if self._queue.result is None:
            raise RuntimeError("the run has no result: read the stream to its end first, and see what it raised")
        return self._queue.result

    def cancel(self) -> None:
        """End the run now, in order: its last event is `cancelled` and carries what was done."""
        self._scope.cancel()

    async def __aenter__(self) -> RunStream[OutputT]:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._group is not None
        self._scope.cancel()
        # The group is left as if nothing was raised, so that the caller's own exception leaves bare.
        await self._group.__aexit__(None, None, None)

    def __aiter__(self) -> RunStream[OutputT]:
        return self

    async def __anext__(self) -> Event:
        return await self._queue.get()

    async def _run(self) -> None:
        with _Outcome(self._queue), self._scope:
            await self._drive()


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


def _wake(event: anyio.Event | None) -> None:
    if event is not None:
        event.set()
