"""The seam for what is not deterministic, in memory."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from endstop._effects import MemoryEffects


@pytest.mark.both_backends
async def test_a_step_is_done_and_its_value_returned() -> None:
    """In memory the key keeps nothing: the same key is done again."""
    done: list[str] = []

    async def do() -> int:
        done.append("x")
        return len(done)

    effects = MemoryEffects()
    assert [await effects.step("1/model", do), await effects.step("1/model", do)] == [1, 2]


@pytest.mark.both_backends
async def test_parallel_steps_are_all_under_way_at_once() -> None:
    """Each waits for all the others, so that they could not end one after another; values come in the order asked."""
    effects = MemoryEffects()
    arrived: set[int] = set()
    everybody = anyio.Event()

    async def meet(number: int) -> int:
        arrived.add(number)
        if len(arrived) == 5:
            everybody.set()
        await everybody.wait()
        return number

    with anyio.fail_after(10):
        steps = [(f"1/tool/{number}", functools.partial(meet, number)) for number in range(5)]
        assert await effects.parallel(steps) == [0, 1, 2, 3, 4]


@pytest.mark.both_backends
async def test_the_order_of_ending_is_not_the_order_of_the_values() -> None:
    """The last to be started may be the first to end."""
    effects = MemoryEffects()
    gates = [anyio.Event() for _ in range(3)]
    ended: list[int] = []

    async def do(number: int) -> int:
        if number < 2:
            await gates[number + 1].wait()
        ended.append(number)
        gates[number].set()
        return number

    with anyio.fail_after(10):
        assert await effects.parallel([(str(n), functools.partial(do, n)) for n in range(3)]) == [0, 1, 2]
    assert ended == [2, 1, 0]


@pytest.mark.both_backends
async def test_no_steps_are_no_values() -> None:
    """Nothing is waited for."""
    assert await MemoryEffects().parallel([]) == []


@pytest.mark.both_backends
async def test_a_step_that_raises_cancels_the_others() -> None:
    """No task is left behind, and what was raised is in the group that leaves."""
    cancelled: list[str] = []

    async def wait() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append("waiting")

    async def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ExceptionGroup) as caught, anyio.fail_after(10):
        await MemoryEffects().parallel([("a", wait), ("b", fail)])
    assert caught.group_contains(ValueError, match="broken")
    assert cancelled == ["waiting"]


def test_the_time_is_aware_and_utc() -> None:
    """Deadlines are compared with it."""
    now = MemoryEffects().now()
    assert now.tzinfo is UTC
    assert abs(datetime.now(UTC) - now) < timedelta(hours=1)
