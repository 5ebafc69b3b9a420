"""CPU and memory that limits add to a `create_agent` run of 25 rounds: of `bound`, and of `BoundMiddleware`."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from benchmarks.measure import Effort, Goal, Table, event_loop, interleaved, millis, plain
from benchmarks.task import Job
from endstop import PlanLimits
from endstop.langgraph import BoundMiddleware, bound

ROUNDS = 25
LIMITS = PlanLimits(max_model_rounds=50, max_tool_calls=100, max_tokens=1_000_000, max_seconds=600)
BARE, BOUND, MIDDLEWARE = "`create_agent`", "`bound(create_agent(...))`", "`create_agent` with `BoundMiddleware`"
MOST_CPU, MOST_BYTES_A_ROUND = 1.10, 1_024


class Searcher(BaseChatModel):
    """Looks in another place each round, and answers in the last."""

    @property
    def _llm_type(self) -> str:
        return "searcher"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        number = sum(isinstance(message, AIMessage) for message in messages) + 1
        calls = [{"id": f"call-{number}", "name": "look", "args": {"place": f"place {number}"}}]
        usage: Any = {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120}
        answer = AIMessage("Done.", tool_calls=calls if number < ROUNDS else [], usage_metadata=usage)
        return ChatResult(generations=[ChatGeneration(message=answer)])


def look(place: str) -> str:
    """Look somewhere."""
    return f"{place}: nothing"


def run(effort: Effort) -> Table:
    """Run the agent as it comes, bound, and with the middleware; measure what a bound run keeps in memory."""
    bare = create_agent(Searcher(), [look])
    agents = {
        BARE: bare,
        BOUND: bound(bare, LIMITS),
        MIDDLEWARE: create_agent(Searcher(), [look], middleware=[BoundMiddleware(LIMITS)]),
    }
    with event_loop() as runner:
        samples = interleaved(runner, {name: _job(agent) for name, agent in agents.items()}, effort, units=ROUNDS)
    added = max(_peak_bytes(agents[BOUND]) - _peak_bytes(bare), 0) / ROUNDS
    ratio = samples.ratio(BOUND, BARE)
    rows = [[name, millis(samples.median(name)), f"{samples.ratio(name, BARE):.2f}x"] for name in agents]
    goals = [
        Goal(text=f"`bound` costs at most {MOST_CPU:.2f}x the CPU of the bare agent", measured=ratio, allowed=MOST_CPU),
        Goal(
            text=f"a bound run holds at most {plain(MOST_BYTES_A_ROUND)} bytes a round more",
            measured=added,
            allowed=MOST_BYTES_A_ROUND,
        ),
    ]
    return Table(header=["", "CPU a round", "of the bare agent"], rows=rows, goals=goals)


def _job(agent: Any) -> Job:
    async def job() -> int:
        await agent.ainvoke({"messages": [("user", "Where is the key?")]}, {"recursion_limit": 100})
        return ROUNDS

    return job


def _peak_bytes(agent: Any) -> int:
    """The most memory that a run holds at once, after one that fills what is cached."""
    question: Any = {"messages": [("user", "Where is the key?")]}, {"recursion_limit": 100}
    agent.invoke(*question)
    gc.collect()
    tracemalloc.start()
    agent.invoke(*question)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak
