"""CPU for each piece of an answer that is streamed in memory."""

from __future__ import annotations

from benchmarks.contenders import bare, create_agent, endstop_agent, openai_agents, pydantic_agent
from benchmarks.measure import Effort, Goal, Table, event_loop, interleaved, micros, plain

OURS = "endstop, everything on"
PIECES = 2_000
MOST_SECONDS = 10e-6


def run(effort: Effort) -> Table:
    """Measure 2,000 pieces."""
    jobs = {
        "bare callback": bare.deltas(PIECES),
        OURS: endstop_agent.deltas(PIECES),
        "langchain `create_agent`": create_agent.deltas(PIECES),
        "pydantic-ai": pydantic_agent.deltas(PIECES),
        "openai-agents": openai_agents.deltas(PIECES),
    }
    with event_loop() as runner:
        samples = interleaved(runner, jobs, effort, units=PIECES)
    rows = [[name, micros(samples.median(name)), f"{plain(samples.ratio(name, OURS))}x"] for name in jobs]
    goal = Goal(
        text=f"a piece costs at most {micros(MOST_SECONDS)}; in µs",
        measured=samples.median(OURS) * 1e6,
        allowed=MOST_SECONDS * 1e6,
    )
    return Table(header=["", "CPU a piece", "of endstop"], rows=rows, goals=[goal])
