"""CPU over HTTP on loopback, all on one server in a process of its own, whose time is not counted."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import server
from benchmarks.contenders import bare, create_agent, endstop_agent, openai_agents, pydantic_agent
from benchmarks.measure import Effort, Goal, Samples, Table, event_loop, interleaved, micros, millis, plain
from benchmarks.task import Job

BARE, OURS = "bare loop on httpx", "endstop, streamed, everything on"
ROUNDS: dict[str, Callable[[str, int], Job]] = {
    BARE: bare.http_rounds,
    OURS: endstop_agent.http_rounds,
    "endstop, answers in one piece": endstop_agent.whole_http_rounds,
    "langchain `create_agent`, langchain-openai": create_agent.http_rounds,
    "pydantic-ai": pydantic_agent.http_rounds,
    "openai-agents": openai_agents.http_rounds,
}
PIECES: dict[str, Callable[[str, str], Job]] = {
    BARE: bare.http_deltas,
    OURS: endstop_agent.http_deltas,
    "langchain `create_agent`, langchain-openai": create_agent.http_deltas,
    "pydantic-ai": pydantic_agent.http_deltas,
    "openai-agents": openai_agents.http_deltas,
}
MOST_SECONDS_A_ROUND = 0.5e-3
MOST_SECONDS_A_PIECE = 80e-6


def run_rounds(effort: Effort) -> Table:
    """Measure at 5, 25 and 100 rounds."""
    found: dict[int, Samples] = {}
    with server.running() as base_url, event_loop() as runner:
        for count in (5, 25) if effort.quick else (5, 25, 100):
            jobs = {name: make(base_url, count) for name, make in ROUNDS.items()}
            found[count] = interleaved(runner, jobs, effort, units=count)
    rows = [
        [name, *(f"{millis(found[n].median(name))} ({plain(found[n].ratio(name, OURS))}x)" for n in found)]
        for name in ROUNDS
    ]
    goal = Goal(
        text=f"a round costs at most {millis(MOST_SECONDS_A_ROUND)} at every length; in ms",
        measured=max(samples.median(OURS) for samples in found.values()) * 1e3,
        allowed=MOST_SECONDS_A_ROUND * 1e3,
    )
    return Table(header=["CPU a round", *(f"{count} rounds" for count in found)], rows=rows, goals=[goal])


def run_pieces(effort: Effort) -> Table:
    """Measure pieces that come as fast as they are read, and pieces that come one by one."""
    found: dict[str, Samples] = {}
    with server.running() as base_url, event_loop() as runner:
        for model, count in (("pieces-2000", 2_000), ("pieces-500-paced", 500)):
            jobs = {name: make(base_url, model) for name, make in PIECES.items()}
            found[model] = interleaved(runner, jobs, effort, units=count)
    rows = [
        [name, *(f"{micros(s.median(name))} ({plain(s.ratio(name, OURS))}x)" for s in found.values())]
        for name in PIECES
    ]
    fastest = found["pieces-2000"].median(OURS) * 1e6
    limit = MOST_SECONDS_A_PIECE * 1e6
    goal = Goal(text=f"a piece costs at most {plain(limit)} µs; in µs", measured=fastest, allowed=limit)
    return Table(header=["CPU a piece", "as fast as it goes", "one by one"], rows=rows, goals=[goal])
