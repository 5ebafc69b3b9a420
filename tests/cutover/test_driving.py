"""Work that is driven: the caller gets what it tells, as it asks, on any thread and whether or not it is async."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from endstop.cutover._driving import Outlet, drive_async, drive_sync, hand_over, is_live, outside_the_loop, taken

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who")


class Counting:
    """Work that tells 0, 1, 2 and waits each time until it is asked for more."""

    def __init__(self, *, live: bool = False) -> None:
        self.outlet: Outlet[int] = Outlet(live=live)
        self.did: list[str] = []

    async def __call__(self) -> None:
        try:
            for number in range(3):
                self.did.append(f"work {number}")
                self.outlet.put(number)
                await taken()
        except asyncio.CancelledError:
            self.did.append("cancelled")
            raise


async def asked(work: Any) -> list[Any]:
    return [item async for item in drive_async(work, work.outlet)]


def test_everything_that_is_told_arrives_in_order() -> None:
    """Both ways to drive yield the same."""
    assert [*drive_sync(work := Counting(), work.outlet)] == [0, 1, 2]
    assert asyncio.run(asked(Counting())) == [0, 1, 2]


def test_work_runs_no_further_than_the_caller_asks() -> None:
    """What nobody has asked for is not done yet: it may cost money."""
    work = Counting()
    driven = drive_sync(work, work.outlet)
    assert work.did == []
    assert next(driven) == 0
    assert work.did == ["work 0"]
    assert next(driven) == 1
    driven.close()
    assert work.did == ["work 0", "work 1", "cancelled"]
    assert isinstance(work.outlet.left_by, GeneratorExit)


async def test_an_async_caller_who_leaves_cancels_the_work() -> None:
    """Leaving is prompt, and the work has ended when the caller goes on."""
    work = Counting()
    driven = drive_async(work, work.outlet)
    assert await anext(driven) == 0
    await driven.aclose()
    assert work.did == ["work 0", "cancelled"]
    assert isinstance(work.outlet.left_by, GeneratorExit)


async def test_a_caller_that_is_cancelled_cancels_the_work() -> None:
    """The cancellation goes on to whoever asked for it."""
    waits = asyncio.Event()
    did: list[str] = []

    async def work() -> None:
        try:
            waits.set()
            await asyncio.Event().wait()
        finally:
            did.append("ended")

    async def ask() -> None:
        async for _ in drive_async(work, Outlet[int]()):
            pass

    asking = asyncio.get_running_loop().create_task(ask())
    await waits.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert did == ["ended"]


@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_comes_after_what_was_told_before_it(is_async: bool) -> None:
    """The caller has all chunks first, then the error itself."""
    error = KeyError("no such thing")
    outlet: Outlet[int] = Outlet()

    async def work() -> None:
        outlet.put(1)
        raise error

    told: list[int] = []

    async def ask() -> None:
        async for item in drive_async(work, outlet):
            told.append(item)

    with pytest.raises(KeyError) as raised:
        asyncio.run(ask()) if is_async else told.extend(drive_sync(work, outlet))
    assert raised.value is error
    assert told == [1]


@pytest.mark.parametrize("is_async", [False, True])
def test_live_work_is_heard_while_it_runs(is_async: bool) -> None:
    """What another thread tells arrives although the work is not at a pause."""
    outlet: Outlet[str] = Outlet(live=True)
    heard = threading.Event()

    def in_thread() -> None:
        outlet.put("from a thread")
        assert heard.wait(10)

    async def work() -> None:
        assert is_live()
        await asyncio.to_thread(in_thread)

    async def ask() -> None:
        async for _ in drive_async(work, outlet):
            heard.set()

    if is_async:
        asyncio.run(ask())
    else:
        for _ in drive_sync(work, outlet):
            heard.set()
    assert heard.is_set()


def test_work_that_hands_over_goes_on_meanwhile() -> None:
    """The caller is given what is there, and the work is not held up."""
    outlet: Outlet[int] = Outlet()
    done: list[int] = []

    async def work() -> None:
        for number in range(2):
            outlet.put(number)
            hand_over()
            await asyncio.sleep(0)
            done.append(number)

    driven = drive_sync(work, outlet)
    assert next(driven) == 0
    assert [*driven] == [1]
    assert done == [0, 1]


def test_the_work_sees_the_context_of_its_caller() -> None:
    """And what it sets is not seen outside."""
    outlet: Outlet[str] = Outlet()

    async def work() -> None:
        outlet.put(WHO.get())
        WHO.set("the work")

    WHO.set("the caller")
    assert [*drive_sync(work, outlet)] == ["the caller"]
    assert WHO.get() == "the caller"


async def test_sync_work_may_be_driven_where_a_loop_is_running() -> None:
    """An async function may call the sync methods of an agent, as it may with LangGraph's."""
    assert [*drive_sync(work := Counting(), work.outlet)] == [0, 1, 2]
    assert asyncio.get_running_loop().is_running()


async def test_outside_the_loop_a_new_one_may_be_started() -> None:
    """Sync code calls `asyncio.run` of its own."""

    async def answer() -> int:
        return 42

    with outside_the_loop():
        assert asyncio.run(answer()) == 42
    await asyncio.sleep(0)


async def test_work_that_nobody_drives_waits_for_nobody() -> None:
    """The same code runs on its own."""
    await taken()
    hand_over()
    assert not is_live()
