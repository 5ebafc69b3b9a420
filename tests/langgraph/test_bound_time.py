"""The time of a bound run: what is in flight when it is used up, and what is kept of it for the final answer."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from endstop.langgraph import GraphLimits, bound

from .fakes import ASKED, BOTH, FINAL, FakeChat, Looker, PlainChat, asks, forever, in_order, look, says, unanswered


def only(**limits: Any) -> GraphLimits:
    """These limits alone."""
    return replace(GraphLimits(max_model_rounds=None), **limits)


async def test_tools_in_flight_are_cancelled_and_answered() -> None:
    """The run ends in its time, and each call says that it was broken off."""
    looker, chat = Looker(seconds=60), forever(*["look"] * 8)
    started = time.monotonic()
    state = await bound(create_agent(chat, [looker.tool]), only(max_seconds=1.0)).ainvoke(ASKED)
    assert time.monotonic() - started < 10
    made = state["endstop"]
    assert (looker.started, looker.finished, made.limit, made.text) == (8, 0, "max_seconds", FINAL)
    assert unanswered(state["messages"]) == []
    answers = [m.text for m in state["messages"] if isinstance(m, ToolMessage)]
    assert len(answers) == 8
    assert all(text.startswith("Stopped before it was done") for text in answers)
    assert len(made.pending) == 8


async def test_a_request_in_flight_is_cancelled_and_billed() -> None:
    """What was sent is paid, though nobody tells how much it was."""
    chat = forever("look")
    chat.latency_seconds = 60
    due = datetime.now(UTC) + timedelta(seconds=0.5)
    started = time.monotonic()
    state = await bound(create_agent(chat, [look]), only(deadline=due, max_tokens=100_000, on_limit="stop")).ainvoke(
        ASKED
    )
    assert time.monotonic() - started < 10
    made = state["endstop"]
    assert (made.limit, made.rung) == ("deadline", "empty")
    assert (made.spent.model_calls, made.spent.unmeasured) == (1, 1)
    assert made.spent.input_tokens > 0


async def test_the_final_answer_that_takes_too_long_is_done_without() -> None:
    """It has the time that was kept for it, and no more."""
    chat = forever("look")
    chat.latency_seconds = 60
    limits = only(max_seconds=0.8, answer_seconds=0.4)
    started = time.monotonic()
    made = (await bound(create_agent(chat, [look]), limits).ainvoke(ASKED))["endstop"]
    assert time.monotonic() - started < 10
    assert made.rung == "empty"
    assert "the final answer did not come in time" in made.reason


def test_sync_code_is_stopped_where_it_can_be() -> None:
    """A call in flight is not cut short, since a thread cannot be; nothing starts after it."""
    looker, chat = Looker(seconds=0.3), forever("look")
    state = bound(create_agent(chat, [looker.tool]), only(max_seconds=4.0, answer_seconds=3.4)).invoke(ASKED)
    made = state["endstop"]
    assert (made.limit, made.text) == ("max_seconds", FINAL)
    assert looker.started == looker.finished
    assert 1 <= looker.started <= 3
    assert unanswered(state["messages"]) == []


async def test_a_child_leaves_its_parent_the_time_for_an_answer() -> None:
    """What the run above keeps for its final answer, the run below does not use."""
    of_child = forever("look")
    of_child.latency_seconds = 60
    child = bound(create_agent(of_child, [look]), only())
    of_parent = forever("delegate")

    @tool
    async def delegate(place: str) -> str:
        """Delegate."""
        return str((await child.ainvoke(ASKED))["messages"][-1].text)

    limits = only(max_seconds=1.5, answer_seconds=0.7)
    made = (await bound(create_agent(of_parent, [delegate]), limits).ainvoke(ASKED))["endstop"]
    assert (made.limit, made.text) == ("max_seconds", FINAL)


async def test_a_run_that_is_cancelled_from_outside_is_cancelled() -> None:
    """It is not taken for a limit, and the time that it took is kept."""
    chat = forever("look")
    chat.latency_seconds = 60
    running = asyncio.ensure_future(bound(create_agent(chat, [look]), only(max_seconds=30)).ainvoke(ASKED))
    await asyncio.sleep(0.2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_the_timeout_of_a_step_is_an_error_as_ever() -> None:
    """LangGraph's own timeout is no limit of the run."""

    async def slow(state: MessagesState) -> Any:
        await asyncio.sleep(60)

    builder = StateGraph(MessagesState)
    builder.add_node("slow", slow)
    builder.add_edge(START, "slow")
    graph = builder.compile()
    graph.step_timeout = 0.2
    with pytest.raises(TimeoutError):
        await bound(graph, only(max_seconds=30)).ainvoke(ASKED)


async def test_whoever_stops_reading_stops_the_run() -> None:
    """A stream that is closed early leaves nothing running, and is no error."""
    chat = forever("look")
    graph = bound(create_agent(chat, [look]), only(max_seconds=30))
    stream = graph.astream(ASKED)
    await anext(stream)
    await stream.aclose()
    sync_stream = graph.stream(ASKED)
    next(sync_stream)
    sync_stream.close()
    assert chat.requests == 2


async def test_a_run_in_its_time_is_completed() -> None:
    """Time alone is no reason to end."""
    graph = bound(
        create_agent(in_order(says("Here.")), [look]),
        only(max_seconds=60, deadline=datetime.now(UTC) + timedelta(hours=1)),
    )
    assert "endstop" not in await graph.ainvoke(ASKED)
    assert "endstop" not in graph.invoke(ASKED)


async def test_a_final_answer_that_is_cancelled_is_charged() -> None:
    """It was sent: whoever goes on does not send another one."""

    class Slow(FakeChat):
        async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            made = await super()._agenerate(messages, stop, run_manager, **kwargs)
            if not kwargs.get("tools"):
                answering.set()
                await asyncio.sleep(60)
            return made

    answering = asyncio.Event()
    chat = Slow(rule=lambda messages: asks("look"))
    graph = bound(create_agent(chat, [look], checkpointer=InMemorySaver()), only(max_model_calls=3))
    thread: Any = {"configurable": {"thread_id": "1"}}
    running = asyncio.ensure_future(graph.ainvoke(ASKED, thread))
    await answering.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    made = (await graph.ainvoke(None, thread))["endstop"]
    assert (chat.requests, made.spent.model_calls, made.spent.unmeasured) == (3, 3, 1)


@pytest.mark.parametrize("run", BOTH)
def test_no_final_answer_is_asked_for_when_no_time_is_left(run: Any) -> None:
    """Nothing is sent at all."""
    chat = forever("look")
    made = run(bound(create_agent(chat, [look]), only(max_seconds=0)))["endstop"]
    assert (chat.requests, made.limit, made.rung) == (0, "max_seconds", "empty")
    assert "no time is left for a final answer" in made.reason


@pytest.mark.parametrize("run", BOTH)
def test_a_function_that_ends_a_run_has_the_time_that_was_kept_for_it(run: Any) -> None:
    """A model that it calls is not refused for the time that ended the run."""
    small = PlainChat(rule=lambda messages: says("Briefly: no."))
    agent = create_agent(forever("look"), [Looker(seconds=0.3).tool])
    limits = only(max_seconds=10.5, answer_seconds=10)
    state = run(bound(agent, limits, finish=lambda state: {"messages": [small.invoke("Now?")]}))
    assert (state["endstop"].limit, state["endstop"].text) == ("max_seconds", "Briefly: no.")


async def test_a_function_that_takes_too_long_is_done_without() -> None:
    """It is cancelled as the final answer would be."""

    async def finish(state: Any) -> Any:
        await asyncio.sleep(60)

    limits = only(max_seconds=0.8, answer_seconds=0.4)
    state = await bound(create_agent(forever("look"), [Looker(seconds=0.3).tool]), limits, finish=finish).ainvoke(ASKED)
    assert "finish did not come to its end in time" in state["endstop"].reason
