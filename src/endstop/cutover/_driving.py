"""Running a turn for callers that are async and for callers that are not, chunk by chunk as they ask for them."""

from __future__ import annotations

import asyncio
import contextvars
from asyncio import events
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator

T = TypeVar("T")


class outside_the_loop:
    """Code in the block sees no running event loop in this thread, so that it may start one.

    Code that is not async runs so under LangGraph too: it may call `asyncio.run`.
    """

    def __enter__(self) -> None:
        self._running = events._get_running_loop()
        events._set_running_loop(None)

    def __exit__(self, *error: object) -> None:
        events._set_running_loop(self._running)


class Outlet(Generic[T]):
    """What a turn tells, on its way to the one who asks. It may be filled from any thread.

    The caller gets what it was told when the turn says so; of a turn that is `live`, at once, and the turn is asked to
    leave the caller's thread while a node is running. `left_by` is what ended a turn that its caller left early.
    """

    def __init__(self, *, live: bool = False) -> None:
        self.live = live
        self.left_by: BaseException | None = None
        self._items: deque[T] = deque()
        self._wake: Callable[[], None] | None = None
        self._taken: asyncio.Future[None] | None = None

    def put(self, item: T) -> None:
        """Add one."""
        self._items.append(item)
        if self.live:
            self.hand_over()

    def hand_over(self) -> None:
        """Let the caller have what it was told; the turn goes on meanwhile."""
        if self._wake is not None and self._items:
            self._wake()

    async def taken(self) -> None:
        """Wait until the caller has what it was told and asks for more: a turn runs no further than it is asked to."""
        if self._items:
            self._taken = asyncio.get_running_loop().create_future()
            self.hand_over()
            await self._taken

    def drain(self) -> Generator[T, None, None]:
        """Take what is there; when it is used up and more is asked for, the turn goes on."""
        while self._items:
            yield self._items.popleft()
        if self._taken is not None:
            going_on, self._taken = self._taken, None
            if not going_on.done():
                going_on.set_result(None)

    def wakes(self, wake: Callable[[], None] | None) -> None:
        """Say how to wake the one who waits; it is called in whatever thread an item is put in."""
        self._wake = wake


_DRIVEN: contextvars.ContextVar[Outlet[object] | None] = contextvars.ContextVar("endstop_driven", default=None)


def hand_over() -> None:
    """In work that is driven: let the caller have what it was told, and go on."""
    if (outlet := _DRIVEN.get()) is not None:
        outlet.hand_over()


async def taken() -> None:
    """In work that is driven: wait until the caller has what it was told and asks for more."""
    if (outlet := _DRIVEN.get()) is not None:
        await outlet.taken()


def is_live() -> bool:
    """In work that is driven: whether the caller wants what a node tells while that node is still running."""
    outlet = _DRIVEN.get()
    return outlet is not None and outlet.live


async def drive_async(work: Callable[[], Coroutine[None, None, None]], outlet: Outlet[T]) -> AsyncGenerator[T, None]:
    """Do the work in a task of its own and yield what it tells; whoever leaves early cancels it."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work(), context=_driven_by(outlet))
    more = asyncio.Event()
    outlet.wakes(lambda: _in(loop, more.set))
    task.add_done_callback(lambda _: more.set())
    try:
        while True:
            more.clear()
            for item in outlet.drain():
                yield item
            if task.done():
                break
            await more.wait()
        for item in outlet.drain():
            yield item
        task.result()
    except BaseException as error:
        outlet.left_by = error
        raise
    finally:
        outlet.wakes(None)
        await _ended(task)


def drive_sync(work: Callable[[], Coroutine[None, None, None]], outlet: Outlet[T]) -> Generator[T, None, None]:
    """Do the work in this thread, as far as it takes to find the next thing that it tells, and yield that."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(work(), context=_driven_by(outlet))
    outlet.wakes(lambda: _in(loop, loop.stop))
    task.add_done_callback(lambda _: loop.stop())
    try:
        while not task.done():
            with outside_the_loop():
                loop.run_forever()
            yield from outlet.drain()
        yield from outlet.drain()
        task.result()
    except BaseException as error:
        outlet.left_by = error
        raise
    finally:
        outlet.wakes(None)
        with outside_the_loop():
            for last in (_ended(task), loop.shutdown_asyncgens(), loop.shutdown_default_executor()):
                _run_to_end(loop, last)
            loop.close()


def _run_to_end(loop: asyncio.AbstractEventLoop, last: Coroutine[None, None, None]) -> None:
    """Run the loop until this is done, whatever was to stop it before."""
    ending = loop.create_task(last)
    ending.add_done_callback(lambda _: loop.stop())
    while not ending.done():
        loop.run_forever()


def _driven_by(outlet: Outlet[T]) -> contextvars.Context:
    context = contextvars.copy_context()
    driven: contextvars.ContextVar[Outlet[T] | None] = _DRIVEN  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType] - what it holds is of no concern to those who wait
    context.run(driven.set, outlet)
    return context


def _in(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
    """Act in the thread of the loop."""
    if events._get_running_loop() is loop:
        act()
    elif not loop.is_closed():
        loop.call_soon_threadsafe(act)


async def _ended(task: asyncio.Task[None]) -> None:
    """The task, cancelled if it is going on still; what it raised was told where it was waited for."""
    if not task.done():
        task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
