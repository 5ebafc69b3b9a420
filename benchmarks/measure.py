"""Measuring: interleaved samples of several jobs in one process, and the tables that come out."""

from __future__ import annotations

import asyncio
import gc
import math
import statistics
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.task import Job

SAMPLE_SECONDS = 0.02
"""A job that takes less is run several times in one sample, so that a sample is no shorter than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long a benchmark may take: `passes` over all contenders, and whether the costly cases are left out."""

    passes: int
    quick: bool

    def of(self, full: int, quick: int) -> int:
        """A size that depends on it."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What endstop should reach, and what it did."""

    text: str
    measured: float
    allowed: float

    def __str__(self) -> str:
        verdict = "met" if self.measured <= self.allowed else "**missed**"
        return f"- {self.text}: {verdict} ({plain(self.measured)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What a benchmark found. The first column names the contenders."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    goals: Sequence[Goal] = field(default_factory=list[Goal])

    def __str__(self) -> str:
        widths = [max(len(row[column]) for row in [self.header, *self.rows]) for column in range(len(self.header))]
        lines = [
            "| " + " | ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) + " |"
            for row in [self.header, *self.rows]
        ]
        rule = "| " + " | ".join(["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]) + " |"
        table = "\n".join([lines[0], rule, *lines[1:]])
        return "\n\n".join([table, "\n".join(map(str, self.goals))]).rstrip()


class Samples:
    """The samples of each job, in the same order of passes."""

    def __init__(self, by_name: Mapping[str, Sequence[float]]) -> None:
        self._by_name = by_name

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def median(self, name: str) -> float:
        """The median of a job's samples."""
        return statistics.median(self._by_name[name])

    def ratio(self, name: str, base: str) -> float:
        """The median of the ratios of two jobs, each of two samples that were taken one shortly after the other."""
        return statistics.median(a / b for a, b in zip(self._by_name[name], self._by_name[base], strict=True))


@contextmanager
def event_loop() -> Generator[asyncio.Runner]:
    """The loop of one benchmark. What its contenders leave behind is not complained of: they have no way to close."""
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(lambda loop, context: None)
        yield runner


def interleaved(
    runner: asyncio.Runner,
    jobs: Mapping[str, Job],
    effort: Effort,
    *,
    units: int,
    clock: Callable[[], float] = time.process_time,
    warm: bool = True,
) -> Samples:
    """Seconds of `clock` a unit of each job, by default of CPU. Each pass takes one sample of every job in turn.

    `units` is what each job must report to have done. With `warm` each job is run twice before it counts. The garbage
    collector is on, as it is in a program, but has not to look at what the contenders imported.

    Raises:
        RuntimeError: a job did something else than it should.
    """
    return runner.run(_interleaved(jobs, effort, units, clock, warm))


async def _interleaved(
    jobs: Mapping[str, Job], effort: Effort, units: int, clock: Callable[[], float], warm: bool
) -> Samples:
    names = list(jobs)
    repeats = dict.fromkeys(names, 1)
    for name, job in jobs.items() if warm else ():
        await _sample(name, job, 1, units, clock)
        seconds = await _sample(name, job, 1, units, clock)
        repeats[name] = max(1, math.ceil(SAMPLE_SECONDS / max(seconds * units, 1e-6)))
    samples: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.freeze()
    try:
        for number in range(effort.passes):
            for name in names[:: 1 if number % 2 == 0 else -1]:
                samples[name].append(await _sample(name, jobs[name], repeats[name], units, clock))
    finally:
        gc.unfreeze()
    return Samples(samples)


async def _sample(name: str, job: Job, repeats: int, units: int, clock: Callable[[], float]) -> float:
    gc.collect()
    started = clock()
    done = {await job() for _ in range(repeats)}
    seconds = clock() - started
    if done != {units}:
        raise RuntimeError(f"{name} did {done} units, it should have been {units}")
    return seconds / repeats / units


def plain(number: float) -> str:
    """Three significant digits, without an exponent."""
    if number == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(number))))
    return f"{round(number, digits):,.{min(digits, 3)}f}"


def micros(seconds: float) -> str:
    """A duration in microseconds."""
    return f"{plain(seconds * 1e6)} µs"


def millis(seconds: float) -> str:
    """A duration in milliseconds."""
    return f"{plain(seconds * 1e3)} ms"
