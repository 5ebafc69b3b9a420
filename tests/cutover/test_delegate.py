"""Each turn goes one way and leaves one record; a ledger that fails changes nothing for the caller."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import before_model
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from endstop.cutover import MemoryTurnLedger, Refusal, SqliteTurnLedger, Switches, cut_over, use_ledger, use_switches
from endstop.cutover.ledger import LedgerError

from .agents_for_tests import (
    OFF,
    ON,
    TWO_ROUNDS,
    WAYS,
    Shop,
    asked,
    in_turn,
    looking,
    on_thread,
    pair,
    seen,
)


def moved(ledger: Any, *, switches: Switches = ON, **options: Any) -> Any:
    """An agent that is cut over, with this ledger."""
    return cut_over(looking(**options), switches=switches, ledger=ledger)


def test_a_record_says_what_a_turn_took() -> None:
    """Who served it and why, on which thread, how many rounds, and what was spent."""
    ledger = MemoryTurnLedger()
    agent = moved(ledger, checkpointer=InMemorySaver(), name="Finder")
    agent.invoke(asked(), on_thread("7"))
    (record,) = ledger.records()
    assert (record.surface, record.served_by, record.route, record.switch) == (
        "invocation.run",
        "kernel",
        "kernel",
        "on",
    )
    assert (record.agent, record.thread_id, record.rounds, record.refusals) == ("Finder", "7", 2, ())
    assert (record.error, record.cancelled) == (None, False)
    assert (record.spent["model_rounds"], record.spent["tool_calls"]) == (2, 1)
    assert record.duration_ms > 0


def test_each_surface_has_its_switch() -> None:
    """`invoke` goes by `invocation.run`, `stream` by `invocation.stream`."""
    ledger = MemoryTurnLedger()
    agent = moved(ledger, switches=Switches({"invocation.run": "on"}, environ={}))
    agent.invoke(asked())
    list(agent.stream(asked()))
    assert [(one.surface, one.served_by) for one in ledger.records()] == [
        ("invocation.run", "kernel"),
        ("invocation.stream", "legacy"),
    ]


def test_a_canary_takes_the_same_threads_each_time() -> None:
    """A thread goes the way that its id says, on both surfaces."""
    ledger = MemoryTurnLedger()
    share = Switches({"invocation.run": 0.5, "invocation.stream": 0.5}, environ={})
    agent = moved(ledger, switches=share, checkpointer=InMemorySaver())
    for thread in range(8):
        agent.invoke(asked(), on_thread(str(thread)))
        list(agent.stream(asked(number=1), on_thread(str(thread))))
    ways = [record.served_by for record in ledger.records()]
    assert ways[::2] == ways[1::2]
    assert set(ways) == {"kernel", "legacy"}


def test_the_switches_and_the_ledger_of_the_process_are_the_default() -> None:
    """What is set once holds for every agent that was not given its own."""
    ledger = MemoryTurnLedger()
    before = use_switches(ON), use_ledger(ledger)
    try:
        cut_over(looking()).invoke(asked())
    finally:
        use_switches(before[0])
        use_ledger(before[1])
    assert [record.served_by for record in ledger.records()] == ["kernel"]


def test_refusals_can_be_given() -> None:
    """Whoever cuts an agent over may know more against it than the envelope does."""
    ledger = MemoryTurnLedger()
    why = Refusal(code="graph_preset", why="it is a preset", remedy="none")
    agent = cut_over(looking(), switches=ON, ledger=ledger, refusals=(why,))
    agent.with_config(tags=["a"]).invoke(asked())
    assert [(record.served_by, record.refusals) for record in ledger.records()] == [("legacy", ("graph_preset",))]


def test_a_turn_keeps_the_id_of_its_run() -> None:
    """The record of a run that was given an id has it."""
    ledger = MemoryTurnLedger()
    run_id = "00000000-0000-4000-8000-000000000001"
    moved(ledger).invoke(asked(), {"run_id": run_id})
    assert [record.run_id for record in ledger.records()] == [run_id]


@dataclass
class Caller:
    """Who calls."""

    name: str


@before_model
def remember(state: Any, runtime: Any) -> None:
    """Keep who called, and how many messages there were."""
    key = str(len(state["messages"]))
    runtime.store.put(("calls",), key, {"by": runtime.context.name})


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_context_store_and_durability_reach_the_kernel(way: Callable[..., Any]) -> None:
    """The context of the call, the agent's store, and `durability="exit"` with a checkpointer."""
    both = pair(
        lambda: looking(
            context_schema=Caller, store=InMemoryStore(), middleware=[remember], checkpointer=InMemorySaver()
        )
    )
    options: dict[str, Any] = {"context": Caller("Ada"), "durability": "exit"}
    told = [seen(way, graph, asked(), on_thread(), **options) for graph in (both.moved, both.legacy)]
    assert told[0] == told[1]
    stored = [
        [(item.key, item.value) for item in graph.store.search(("calls",))] for graph in (both.moved, both.legacy)
    ]
    assert stored[0] == stored[1] == [("1", {"by": "Ada"}), ("3", {"by": "Ada"})]
    assert both.served == ["kernel"]


def closed_early(agent: Any) -> None:
    """A caller that leaves the stream after its first chunk."""
    running = agent.stream(asked())
    next(running)
    running.close()


def closed_early_async(agent: Any) -> None:
    """The same for async code."""

    async def leave() -> None:
        running = agent.astream(asked())
        await anext(running)
        await running.aclose()

    asyncio.run(leave())


@pytest.mark.parametrize("leave", [closed_early, closed_early_async])
@pytest.mark.parametrize("switches", [ON, OFF], ids=["kernel", "legacy"])
def test_a_caller_that_leaves_is_recorded_once(leave: Callable[[Any], None], switches: Switches) -> None:
    """The turn was cancelled; it is neither an error nor two turns."""
    ledger = MemoryTurnLedger()
    leave(moved(ledger, switches=switches))
    assert [(record.cancelled, record.error) for record in ledger.records()] == [(True, None)]


@pytest.mark.parametrize("switches", [ON, OFF], ids=["kernel", "legacy"])
def test_a_cancelled_task_is_recorded_once(switches: Switches) -> None:
    """Cancellation goes through to the tool that is at work, and into one record."""
    ledger = MemoryTurnLedger()
    ended: list[str] = []

    async def main() -> None:
        at_work = asyncio.Event()

        async def look(place: str) -> str:
            """Look for ever."""
            at_work.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(place)
            return place

        agent = cut_over(create_agent(in_turn(*TWO_ROUNDS), [look]), switches=switches, ledger=ledger)
        async with asyncio.TaskGroup() as group:
            turn = group.create_task(agent.ainvoke(asked()))
            await at_work.wait()
            turn.cancel()

    asyncio.run(main())
    assert ended == ["hall"]
    assert [(record.cancelled, record.error) for record in ledger.records()] == [(True, None)]


class FullLedger(MemoryTurnLedger):
    """A ledger whose disk is full."""

    def __init__(self, problem: Exception) -> None:
        super().__init__()
        self.problem = problem

    def add(self, record: Any) -> None:
        raise self.problem


PROBLEMS = [LedgerError(Path("turns.sqlite"), "the disk is full"), OSError(28, "no space left")]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: type(problem).__name__)
@pytest.mark.parametrize("switches", [ON, OFF], ids=["kernel", "legacy"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_ledger_that_fails_neither_breaks_nor_repeats_a_turn(
    way: Callable[..., Any], switches: Switches, problem: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller gets the turn that it asked for, each model call is made once, and the log says what is lost."""
    chat = in_turn(*TWO_ROUNDS)
    agent = cut_over(create_agent(chat, [Shop().look]), switches=switches, ledger=FullLedger(problem))
    assert seen(way, agent, asked()) == seen(way, looking(), asked())
    assert len(chat.sent) == 2
    (warning,) = caplog.records
    assert (warning.name, warning.levelno) == ("endstop.cutover", logging.WARNING)
    assert "is not recorded" in warning.getMessage()


def test_a_file_that_is_no_ledger_any_more_does_not_break_a_turn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file of the ledger was taken away while agents ran."""
    path = tmp_path / "turns.sqlite"
    agent = moved(SqliteTurnLedger(path))
    agent.invoke(asked())
    with sqlite3.connect(path) as connection:
        (table,) = connection.execute("select name from sqlite_master where type = 'table' limit 1").fetchone()
        connection.execute(f"drop table {table}")
    connection.close()
    assert agent.invoke(asked())["messages"][-1].text == "done"
    assert "is not recorded" in caplog.text


def test_an_error_is_the_callers_though_the_ledger_fails_too() -> None:
    """What ended the turn is not hidden by what happened after it."""

    def look(place: str) -> str:
        """Fail."""
        raise KeyError(place)

    graph = create_agent(in_turn(*TWO_ROUNDS), [look])
    with pytest.raises(KeyError, match="hall"):
        cut_over(graph, switches=ON, ledger=FullLedger(PROBLEMS[0])).invoke(asked())
