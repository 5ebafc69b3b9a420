"""Wall time of many runs at once, against the time that the model alone takes, and the CPU time in it."""

from __future__ import annotations

import asyncio
import statistics
import time

from benchmarks.contenders import bare, create_agent, endstop_agent, openai_agents, pydantic_agent
from benchmarks.measure import Effort, Goal, Table, event_loop, interleaved, millis, plain
from benchmarks.task import Job

OURS = "endstop, everything on"
ROUNDS = 10
LATENCY_SECONDS = 0.05
IDEAL_SECONDS = ROUNDS * LATENCY_SECONDS
MOST_TIMES_IDEAL = 1.5


def run(effort: Effort) -> Table:
    """Measure 1,000 runs at once; of the peers, which take their time, once, and only 100 in a quick run."""
    ours = {
        "bare loop": bare.rounds(ROUNDS, latency_seconds=LATENCY_SECONDS),
        OURS: endstop_agent.rounds(ROUNDS, latency_seconds=LATENCY_SECONDS),
    }
    peers = {
        "langchain `create_agent`": create_agent.rounds(ROUNDS, latency_seconds=LATENCY_SECONDS),
        "pydantic-ai": pydantic_agent.rounds(ROUNDS, latency_seconds=LATENCY_SECONDS),
        "openai-agents": openai_agents.rounds(ROUNDS, latency_seconds=LATENCY_SECONDS),
    }
    rows: list[list[str]] = []
    times_ideal: dict[str, float] = {}
    for jobs, runs, passes in ((ours, 1_000, effort.passes), (peers, effort.of(1_000, 100), 1)):
        spent: dict[str, list[float]] = {name: [] for name in jobs}
        with event_loop() as runner:
            many = {name: at_once(job, runs, spent[name]) for name, job in jobs.items()}
            once = Effort(passes=passes, quick=effort.quick)
            walls = interleaved(runner, many, once, units=1, clock=time.perf_counter, warm=jobs is ours)
        for name in jobs:
            wall, cpu = walls.median(name), statistics.median(spent[name])
            times_ideal[name] = wall / IDEAL_SECONDS
            rows.append([name, f"{runs:,}", millis(wall), f"{plain(times_ideal[name])}x", millis(cpu)])
    goal = Goal(
        text=f"1,000 runs at once take at most {plain(MOST_TIMES_IDEAL)} times the ideal of {plain(IDEAL_SECONDS)} s",
        measured=times_ideal[OURS],
        allowed=MOST_TIMES_IDEAL,
    )
    return Table(header=["", "runs at once", "wall time", "of the ideal", "CPU"], rows=rows, goals=[goal])


def at_once(job: Job, runs: int, spent: list[float]) -> Job:
    """So many runs of a job at the same time, as one job; it reports 1 where each did all its rounds.

    The CPU seconds of each time are added to `spent`.
    """

    async def job_of_many() -> int:
        started = time.process_time()
        done = await asyncio.gather(*(job() for _ in range(runs)))
        spent.append(time.process_time() - started)
        return int(all(count == ROUNDS for count in done))

    return job_of_many
