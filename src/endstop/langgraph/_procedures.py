"""Work that must be done in the same order whether a graph is run by `stream` or by `astream`.

A procedure is a generator that yields what is to be done and is sent what came of it; `perform` and `aperform` carry
it out. So what is decided stands once, without a sync twin.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Protocol, TypeAlias, TypeVar

from endstop._errors import ConfigError

T = TypeVar("T")


class Action(Protocol):
    """One thing to be done, from sync or from async code."""

    def perform(self) -> object:
        """Do it."""
        ...

    def aperform(self) -> Coroutine[Any, Any, object]:
        """Do it."""
        ...


Procedure: TypeAlias = Generator[Action, Any, T]


class Call:
    """A call of a function that has a sync and an async form."""

    __slots__ = ("_afunction", "_args", "_function")

    def __init__(
        self, function: Callable[..., object], afunction: Callable[..., Awaitable[object]], *args: object
    ) -> None:
        self._function = function
        self._afunction = afunction
        self._args = args

    def perform(self) -> object:
        """Call the sync form."""
        return self._function(*self._args)

    async def aperform(self) -> object:
        """Call the async form."""
        return await self._afunction(*self._args)


class UserCall:
    """A call of a function of the caller's, which may be async; `field` is the setting that it was given as."""

    __slots__ = ("_args", "_field", "_function")

    def __init__(self, field: str, function: Callable[..., object], *args: object) -> None:
        self._field = field
        self._function = function
        self._args = args

    def perform(self) -> object:
        """Call it.

        Raises:
            ConfigError: it is async, and the graph is run by a sync method.
        """
        result = self._function(*self._args)
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise ConfigError(self._field, self._function, "run the graph by ainvoke or astream, or make it sync")
        return result

    async def aperform(self) -> object:
        """Call it, and wait for it where it is async."""
        result = self._function(*self._args)
        return await result if inspect.isawaitable(result) else result


class OutOfTime(Exception):
    """What was done has been cancelled, because its time was used up."""


class Alarm:
    """Cancels what one async task waits for when the time is up, and from then on all that it would wait for.

    It is set once for many waits: a scope around each would cost a run more than all else that bounds it.
    """

    __slots__ = ("_handle", "_time_is_up", "_waiting")

    def __init__(self, seconds: float | None) -> None:
        self._time_is_up = asyncio.Event()
        self._waiting: asyncio.Task[Any] | None = None
        self._handle: asyncio.TimerHandle | None = None
        if seconds is not None:
            self._handle = asyncio.get_running_loop().call_later(max(seconds, 0.0), self._ring)

    async def before(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work gives before the time is up.

        Raises:
            OutOfTime: it is up, and the work was cancelled.
        """
        task = asyncio.current_task() if self._handle is not None else None
        if task is None:
            return await work
        if self._time_is_up.is_set():
            work.close()
            raise OutOfTime
        cancellations = task.cancelling()
        self._waiting = task
        try:
            return await work
        except asyncio.CancelledError:
            if self._time_is_up.is_set() and task.uncancel() <= cancellations:
                raise OutOfTime from None
            raise
        finally:
            self._waiting = None

    def stop(self) -> None:
        """The time does not matter any more."""
        if self._handle is not None:
            self._handle.cancel()

    def _ring(self) -> None:
        self._time_is_up.set()
        if self._waiting is not None:
            self._waiting.cancel()


class InTime:
    """An action that is cancelled after some seconds (`None`: never); sync code is not, since a thread cannot be."""

    __slots__ = ("_action", "_seconds")

    def __init__(self, action: Action, seconds: float | None) -> None:
        self._action = action
        self._seconds = seconds

    def perform(self) -> object:
        """Do it."""
        return self._action.perform()

    async def aperform(self) -> object:
        """Do it.

        Raises:
            OutOfTime: it took longer.
        """
        alarm = Alarm(self._seconds)
        try:
            return await alarm.before(self._action.aperform())
        finally:
            alarm.stop()


def perform(procedure: Procedure[T]) -> T:
    """Carry a procedure out in this thread; what an action raises is raised at its place in the procedure."""
    try:
        action = next(procedure)
        while True:
            try:
                result = action.perform()
            except BaseException as error:  # A cancellation too: what it cuts off has been sent, and must be charged.
                action = procedure.throw(error)
            else:
                action = procedure.send(result)
    except StopIteration as done:
        value: T = done.value
        return value


async def aperform(procedure: Procedure[T]) -> T:
    """Carry a procedure out in this task, as `perform` does."""
    try:
        action = next(procedure)
        while True:
            try:
                result = await action.aperform()
            except BaseException as error:  # A cancellation too: what it cuts off has been sent, and must be charged.
                action = procedure.throw(error)
            else:
                action = procedure.send(result)
    except StopIteration as done:
        value: T = done.value
        return value
