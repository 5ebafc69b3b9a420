"""What is hard to end right: a turn beside others, cut off in its clean-up, or sent back to its thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from endstop.cutover import MemoryTurnLedger, TurnRecord, cut_over
from tests.cutover.agents_for_tests import ON, TWO_ROUNDS, Pair, asks, in_turn, looking, on_thread, pair, says

PLAIN = {"messages": [("user", "hi")]}


def both(make: Callable[[], Any]) -> Pair:
    """The agent as it was, and cut over with its turns on the kernel."""
    return pair(make)


@pytest.mark.parametrize("mode", ["values", "messages", ["updates", "custom"]])
def test_a_model_that_stops_an_iteration_ends_the_turn(mode: Any) -> None:
    """No future can hold a `StopIteration`: the turn would wait for it for ever."""
    agents = both(lambda: create_agent(GenericFakeChatModel(messages=iter([])), []))
    for agent in (agents.legacy, agents.moved):
        with pytest.raises(RuntimeError, match="generator raised StopIteration"):
            list(agent.stream(PLAIN, stream_mode=mode))


def test_a_thread_knows_messages_by_the_ids_that_the_caller_got() -> None:
    """However they were written: as a tuple, in a dict, or without an id."""
    agents = both(lambda: looking(checkpointer=InMemorySaver()))
    for agent in (agents.legacy, agents.moved):
        got = agent.invoke(PLAIN, on_thread())["messages"]
        kept = agent.get_state(on_thread()).values["messages"]
        assert [message.id for message in got] == [message.id for message in kept]
        more = agent.invoke({"messages": [*got, ("user", "again")]}, on_thread())["messages"]
        assert len(more) == len(got) + 4
        edited = agent.invoke({"messages": [HumanMessage("edited", id=got[0].id)]}, on_thread())["messages"]
        assert [message.content for message in edited if message.id == got[0].id] == ["edited"]
        left = agent.invoke({"messages": [RemoveMessage(id=got[0].id), ("user", "more")]}, on_thread())["messages"]
        assert got[0].id not in [message.id for message in left]
    assert set(agents.served) == {"kernel"}


def test_a_turn_that_fails_at_once_leaves_its_input_under_the_ids_of_the_stream() -> None:
    """The first super-step never ends, so nothing but the input is there."""

    def fails(_: Any) -> AIMessage:
        raise ValueError("the model is out")

    out = in_turn(says()).model_copy(update={"rule": fails})
    agents = both(lambda: create_agent(out, [], checkpointer=InMemorySaver()))
    for agent in (agents.legacy, agents.moved):
        chunks = agent.stream(PLAIN, on_thread(), stream_mode="values")
        told = next(chunks)["messages"]
        with pytest.raises(ValueError, match="the model is out"):
            list(chunks)
        kept = agent.get_state(on_thread()).values["messages"]
        assert [message.id for message in kept] == [message.id for message in told]


def test_a_turn_that_is_cancelled_lets_parallel_tools_clean_up() -> None:
    """They are cancelled once, as under LangGraph."""

    def cleaned(agent: Any) -> list[str]:
        done.clear()

        async def cut() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await agent.ainvoke(PLAIN)

        asyncio.run(cut())
        return list(done)

    done: list[str] = []

    @tool("look")
    async def slow(place: str) -> str:
        """Look in a place."""
        try:
            await asyncio.sleep(30)
        finally:
            done.append("begun")
            await asyncio.sleep(0.05)
            done.append("done")
        return place

    two = in_turn(asks(("look", {"place": "hall"}), ("look", {"place": "attic"})), says())
    agents = both(lambda: create_agent(two, [slow]))
    assert cleaned(agents.legacy) == cleaned(agents.moved) == ["begun", "begun", "done", "done"]


class Stop(BaseException):
    """Neither an error nor one of Python's own signals."""


@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_tool_raises_beside_others_comes_out_as_it_is(is_async: bool) -> None:
    """Not in a group, whatever it is."""

    @tool("look")
    def stops(place: str) -> str:
        """Look in a place."""
        if place == "hall":
            raise Stop(place)
        return place

    two = in_turn(asks(("look", {"place": "hall"}), ("look", {"place": "attic"})), says())
    agents = both(lambda: create_agent(two, [stops]))
    for agent in (agents.legacy, agents.moved):
        with pytest.raises(Stop, match="hall"):
            asyncio.run(agent.ainvoke(PLAIN)) if is_async else agent.invoke(PLAIN)


def test_an_answer_that_tells_a_part_of_its_usage_is_an_answer() -> None:
    """The kernel takes it for one that tells none."""

    def partly(_: Any) -> AIMessage:
        answer = says()
        answer.usage_metadata = {"total_tokens": 3}  # type: ignore[typeddict-item]  # what some models do
        return answer

    agent = cut_over(create_agent(in_turn(says()).model_copy(update={"rule": partly}), []), switches=ON)
    assert agent.invoke(PLAIN)["messages"][-1].content == "done"


class Broken(MemoryTurnLedger):
    """A ledger of somebody's own, whose database is down."""

    def add(self, record: TurnRecord) -> None:
        raise ValueError("the database is down")


def test_a_ledger_of_ones_own_that_fails_changes_no_turn() -> None:
    """The turn is over and paid: its caller gets it."""
    agent = cut_over(create_agent(in_turn(*TWO_ROUNDS), [tool("look")(_look)]), switches=ON, ledger=Broken())
    assert agent.invoke(PLAIN)["messages"][-1].content == "done"


def _look(place: str) -> str:
    """Look in a place."""
    return place
