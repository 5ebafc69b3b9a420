"""Where the records of runs are kept, and that they come back as they were."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import EmptyInputError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore

from endstop import ConfigError, StateError
from endstop._limits import LimitHit
from endstop._loops import LoopState, Track
from endstop.langgraph import GraphLimits, GraphSpent, MemoryLedger, bound
from endstop.langgraph._ledger import Record, read_record, write_record
from endstop.langgraph._procedures import Call, InTime, OutOfTime, UserCall, aperform, perform

from .fakes import ASKED, FINAL, forever, in_order, look, says

CONFIG: Any = {"configurable": {"thread_id": "1"}}


def test_a_record_comes_back_as_it_was() -> None:
    """All that a run needs to go on, as one document."""
    counts = GraphSpent(model_calls=3, tools={"look": 2}, super_steps=5, nodes={"model": 3})
    spent = replace(counts, cost=Decimal("0.25"), seconds=1.5)
    record = Record(
        run=spent,
        thread=GraphSpent(model_calls=9),
        status="cut",
        hit=LimitHit(limit="max_cost", used=Decimal("0.25"), allowed=Decimal("0.3")),
        stopped_at="abc",
        after="def",
        effects=("look",),
        loops=LoopState(tools=Track(window=("a",), level=1)),
        observed="ghi",
    )
    assert read_record(write_record(record)) == record
    assert read_record(None) is None


def test_a_document_of_another_kind_is_refused() -> None:
    """A run is never gone on with from what is misread."""
    with pytest.raises(StateError, match="graph-run"):
        read_record('{"format": "endstop/run-state", "version": 1, "value": {}}')


def test_a_run_that_has_completed_is_not_gone_on_with() -> None:
    """LangGraph says what it says to an input of nothing."""
    graph = bound(create_agent(in_order(says("Here.")), [look]), GraphLimits(max_model_calls=3), ledger=MemoryLedger())
    graph.invoke(ASKED, CONFIG)
    with pytest.raises(EmptyInputError):
        graph.invoke(None, CONFIG)


async def test_an_async_graph_keeps_its_record_in_the_store() -> None:
    """By the store's async methods."""
    chat, store = forever("look"), InMemoryStore()
    limits = GraphLimits(max_model_calls=3)
    for calls in (3, 2):
        agent = create_agent(chat, [look], store=store)
        graph = bound(agent, limits, thread_limits=GraphLimits(max_model_calls=5, max_model_rounds=None))
        assert (await graph.ainvoke(ASKED, CONFIG))["endstop"].spent.model_calls == calls


def test_a_run_without_a_thread_is_kept_nowhere() -> None:
    """It cannot be gone on with."""
    ledger = MemoryLedger()
    bound(create_agent(forever("look"), [look]), GraphLimits(max_model_calls=3), ledger=ledger).invoke(ASKED)
    assert ledger.load("None") is None


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_record_is_kept_as_often_as_the_state(durability: Any) -> None:
    """With each step in which something was spent; where LangGraph saves at the end alone, at the end."""

    class Counting(MemoryLedger):
        saves = 0

        def save(self, key: str, document: str) -> None:
            self.saves += 1
            super().save(key, document)

    ledger = Counting()
    agent = create_agent(forever("look"), [look], checkpointer=InMemorySaver())
    graph = bound(agent, GraphLimits(max_model_calls=3), ledger=ledger)
    assert graph.invoke(ASKED, CONFIG, durability=durability)["messages"][-1].text == FINAL
    assert ledger.saves == (1 if durability == "exit" else 6)


def test_a_part_that_had_not_begun_is_begun_when_the_run_goes_on() -> None:
    """It has no state that could be copied."""
    chat = in_order(says("Here."))
    builder = StateGraph(MessagesState)
    builder.add_node("first", lambda state: {})
    builder.add_node("agent", create_agent(chat, [look]))
    builder.add_edge(START, "first")
    builder.add_edge("first", "agent")
    builder.add_edge("agent", END)
    graph = builder.compile(checkpointer=InMemorySaver())
    cut = bound(graph, GraphLimits(max_super_steps=1, on_limit="stop")).invoke(ASKED, CONFIG)
    assert cut["endstop"].limit == "max_super_steps"
    assert bound(graph, GraphLimits(max_super_steps=9)).invoke(None, CONFIG)["messages"][-1].text == "Here."


# -- procedures --------------------------------------------------------------------------------------


async def tripled(number: int) -> int:
    """Three times the number, a moment later."""
    await asyncio.sleep(0)
    return 3 * number


def procedure() -> Generator[Any, Any, list[Any]]:
    """One that goes on after an error."""
    seen = [(yield Call(lambda number: 2 * number, tripled, 2))]
    try:
        yield Call(lambda: 1 // 0, failing)
    except ZeroDivisionError as error:
        seen.append(type(error))
    seen.append((yield UserCall("finish", lambda: "given")))
    return seen


async def failing() -> None:
    """Fails as its sync form does."""
    raise ZeroDivisionError


async def test_a_procedure_is_carried_out_in_sync_and_in_async_code() -> None:
    """What an action raises is raised at its place."""
    assert perform(procedure()) == [4, ZeroDivisionError, "given"]
    assert await aperform(procedure()) == [6, ZeroDivisionError, "given"]


async def test_what_must_be_waited_for_is_refused_in_sync_code() -> None:
    """Whatever it is that can be awaited."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()
    with pytest.raises(ConfigError, match="finish"):
        UserCall("finish", lambda: future).perform()
    with pytest.raises(ConfigError, match="finish"):
        UserCall("finish", tripled, 1).perform()
    future.set_result(1)
    assert await UserCall("finish", lambda: future).aperform() == 1


async def test_what_takes_too_long_is_cancelled() -> None:
    """In async code; a thread cannot be cut short."""
    slow = Call(lambda: "done", lambda: asyncio.sleep(60))
    with pytest.raises(OutOfTime):
        await InTime(slow, 0.01).aperform()
    assert InTime(slow, 0.01).perform() == "done"
    assert await InTime(Call(lambda: 1, tripled, 1), None).aperform() == 3
