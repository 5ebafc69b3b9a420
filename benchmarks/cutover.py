"""CPU of an agent's turn on the kernel, beside the same turn of the same agent on LangGraph's own engine."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

from benchmarks.measure import Effort, Goal, Table, event_loop, interleaved, micros, plain
from benchmarks.task import Job
from endstop.cutover import MemoryTurnLedger, Switches, cut_over

ON = Switches({"invocation.run": "on", "invocation.stream": "on"}, environ={})
MOST_TIMES_ORIGINAL = 1 / 3
MOST_TIMES_ON_A_THREAD = 0.1

Make = Callable[[], Any]


class Rounds(BaseChatModel):
    """A chat model that asks for one tool call a round until it has been asked this often."""

    count: int

    @property
    def _llm_type(self) -> str:
        return "rounds"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """The tools are known."""
        return self

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        given = sum(isinstance(message, AIMessage) for message in messages)
        calls = [{"name": "look", "args": {"place": "here"}, "id": f"call-{given}"}] if given + 1 < self.count else []
        answer = AIMessage("" if calls else "done", id=f"answer-{given}", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=answer)])


def look(place: str) -> str:
    """Look somewhere."""
    return place


def run(effort: Effort) -> Table:
    """A turn of 25 rounds without a checkpointer, and one of 100 on a new thread of each kind of checkpointer."""
    long = effort.of(100, 25)
    rows = {
        "25 rounds": (25, lambda: None),
        f"{long} rounds, `InMemorySaver`": (long, InMemorySaver),
        f"{long} rounds, `SqliteSaver`": (
            long,
            lambda: SqliteSaver(sqlite3.connect(":memory:", check_same_thread=False)),
        ),
    }
    cells: list[list[str]] = []
    ratios: list[float] = []
    with event_loop() as runner:
        for name, (count, saver) in rows.items():
            samples = interleaved(runner, _jobs(count, saver), effort, units=count)
            ratios.append(samples.ratio("kernel", "original"))
            cells.append([name, *(micros(samples.median(body)) for body in ("original", "kernel")), plain(ratios[-1])])
    goals = [
        Goal(
            text=f"a turn on the kernel costs at most {plain(MOST_TIMES_ORIGINAL)} times the original",
            measured=ratios[0],
            allowed=MOST_TIMES_ORIGINAL,
        ),
        Goal(
            text=f"on a thread in SQLite at most {plain(MOST_TIMES_ON_A_THREAD)} times",
            measured=ratios[-1],
            allowed=MOST_TIMES_ON_A_THREAD,
        ),
    ]
    return Table(header=["CPU a round of `create_agent`", "LangGraph", "kernel", "ratio"], rows=cells, goals=goals)


def _sqlite() -> SqliteSaver:
    return SqliteSaver(sqlite3.connect(":memory:", check_same_thread=False))


def _jobs(count: int, saver: Make) -> dict[str, Job]:
    def agent() -> Any:
        return create_agent(Rounds(count=count), [look], checkpointer=saver())

    return {
        "original": _job(agent()),
        "kernel": _job(cut_over(agent(), switches=ON, ledger=MemoryTurnLedger())),
    }


def _job(agent: Any) -> Job:
    async def job() -> int:
        config = {"configurable": {"thread_id": uuid.uuid4().hex}, "recursion_limit": 1_000}
        result = agent.invoke({"messages": [HumanMessage("go")]}, config)
        return sum(isinstance(message, AIMessage) for message in result["messages"])

    return job
