"""CPU a round in memory, beside a bare loop with the same fake model and tool."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.contenders import bare, create_agent, endstop_agent, openai_agents, pydantic_agent
from benchmarks.measure import Effort, Goal, Samples, Table, event_loop, interleaved, micros, plain
from benchmarks.task import Job

BARE, OURS = "bare loop", "endstop, everything on"
CONTENDERS: dict[str, Callable[[int], Job]] = {
    BARE: bare.rounds,
    OURS: endstop_agent.rounds,
    "endstop, default limits, `run`": endstop_agent.plain_rounds,
    "langchain `create_agent`": create_agent.rounds,
    "pydantic-ai": pydantic_agent.rounds,
    "openai-agents": openai_agents.rounds,
}
PEERS = list(CONTENDERS)[3:]

MOST_TIMES_BARE = 8.0
MOST_GROWTH = 1.25


def run(effort: Effort) -> Table:
    """Measure at 5, 25, 100 and 400 rounds. The costly peers are left out where they would take minutes."""
    found: dict[int, Samples] = {}
    with event_loop() as runner:
        for count in (5, 25, 100, 400):
            most = effort.of(100, 25)
            jobs = {name: make(count) for name, make in CONTENDERS.items() if name not in PEERS or count <= most}
            found[count] = interleaved(runner, jobs, effort, units=count)
    rows = [[name, *(_cell(name, samples) for samples in found.values())] for name in CONTENDERS]
    times_bare = max(samples.ratio(OURS, BARE) for samples in found.values())
    growth = found[400].median(OURS) / found[25].median(OURS)
    goals = [
        Goal(
            text=f"endstop with everything on costs at most {plain(MOST_TIMES_BARE)} times the bare loop",
            measured=times_bare,
            allowed=MOST_TIMES_BARE,
        ),
        Goal(
            text=f"a round of 400 costs at most {plain(MOST_GROWTH)} times a round of 25",
            measured=growth,
            allowed=MOST_GROWTH,
        ),
    ]
    return Table(header=["CPU a round", *(f"{count} rounds" for count in found)], rows=rows, goals=goals)


def _cell(name: str, samples: Samples) -> str:
    if name not in samples:
        return "-"
    return f"{micros(samples.median(name))} ({plain(samples.ratio(name, BARE))}x)"
