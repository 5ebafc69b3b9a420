"""The one seam for everything in a run that is not deterministic.

The kernel asks the model and the tools only through `Effects`, under keys that are the same whenever
the run is repeated (`3/model`, `3/tool/<call id>`). In memory nothing is kept. A journal that stores
each value under its key makes a run durable; an engine makes it distributed; the kernel never knows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Protocol, TypeAlias, TypeVar

import anyio

T = TypeVar("T")

Step: TypeAlias = tuple[str, Callable[[], Awaitable[T]]]
"""A key and what is to be done under it."""


class Effects(Protocol):
    """Where a run's model requests, tool executions and clock come from."""

    async def step(self, key: str, do: Callable[[], Awaitable[T]]) -> T:
        """Do it, or return what was kept under the key. The value is a frozen record with a JSON form."""
        ...

    async def parallel(self, steps: Sequence[Step[T]]) -> list[T]:
        """Do several at once; the values come in the order of the steps. Keys are taken before the first await."""
        ...

    def now(self) -> datetime:
        """The time, aware and in UTC."""
        ...


class MemoryEffects:
    """Effects that keep nothing: a run lives and dies with its process."""

    __slots__ = ()

    async def step(self, key: str, do: Callable[[], Awaitable[T]]) -> T:
        """Do it; `key` is not used."""
        return await do()

    async def parallel(self, steps: Sequence[Step[T]]) -> list[T]:
        """Do all at once in a task group; they must not raise, or the others are cancelled."""
        values: dict[int, T] = {}

        async def keep(index: int, do: Callable[[], Awaitable[T]]) -> None:
            values[index] = await do()

        async with anyio.create_task_group() as group:
            for index, (_, do) in enumerate(steps):
                group.start_soon(keep, index, do)
        return [values[index] for index in range(len(steps))]

    def now(self) -> datetime:
        """The system's time."""
        return datetime.now(UTC)
