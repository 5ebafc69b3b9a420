"""A bound graph with others inside it: everything below is charged to it, and what is bound inside ends by itself."""

from __future__ import annotations

import asyncio
import operator
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import create_react_agent
from langgraph.types import Command, Send
from typing_extensions import TypedDict

from endstop.langgraph import GraphLimits, bound

from .fakes import ASKED, BOTH, FINAL, FakeChat, Looker, PlainChat, asks, forever, in_order, look, says, unanswered

pytestmark = pytest.mark.filterwarnings("ignore:create_react_agent has been moved")

Run = Callable[..., Any]


def only(**limits: Any) -> GraphLimits:
    """These limits alone."""
    return replace(GraphLimits(max_model_rounds=None, max_depth=None), **limits)


def delegating(child: Any, chat: FakeChat, config: Any = None) -> Any:
    """An agent whose tool `delegate` runs a child, with a config of its own where one is given."""

    def run_child(place: str) -> str:
        return str(child.invoke({"messages": [("user", place)]}, config)["messages"][-1].text)

    @tool
    def delegate(place: str) -> str:
        """Delegate a task."""
        return run_child(place)

    async def arun_child(place: str) -> str:
        return str((await child.ainvoke({"messages": [("user", place)]}, config))["messages"][-1].text)

    delegate.coroutine = arun_child  # type: ignore[attr-defined]  # a structured tool has it
    return create_agent(chat, [delegate])


@pytest.mark.parametrize("run", BOTH)
def test_an_unbound_sub_agent_in_a_tool_is_inside_the_limit(run: Run) -> None:
    """What it found is not lost: the final answer is asked from it, and the call says that it was broken off."""
    of_child, of_parent = forever("look"), forever("delegate")
    graph = delegating(create_agent(of_child, [look]), of_parent)
    state = run(bound(graph, only(max_model_calls=6)))
    made = state["endstop"]
    assert (of_parent.requests + of_child.requests, made.spent.model_calls, made.limit) == (6, 6, "max_model_calls")
    assert made.spent.tools == {"delegate": 1, "look": 4}
    assert [call.name for call in made.pending] == ["delegate"]
    assert unanswered(state["messages"]) == []
    assert "Stopped before it was done" in state["messages"][-2].text
    told = [m for m in of_parent.sent[-1] if isinstance(m, HumanMessage) and "could not be finished" in m.text]
    assert "nothing here" in told[0].text


@pytest.mark.parametrize("run", BOTH)
def test_a_bound_sub_agent_ends_by_itself_and_its_parent_goes_on(run: Run) -> None:
    """Its partial answer is the tool's return; every unit is charged once, here and above."""
    of_child, of_parent = forever("look"), in_order(asks("delegate"), says("So it is."))
    child = bound(create_agent(of_child, [look]), only(max_model_calls=3))
    state = run(bound(delegating(child, of_parent), only(max_model_calls=9)))
    assert "endstop" not in state
    assert (of_child.requests, of_parent.requests) == (3, 2)
    assert [m.text for m in state["messages"] if isinstance(m, ToolMessage)] == [FINAL]


@pytest.mark.parametrize("run", BOTH)
def test_a_bound_sub_agent_does_not_escape_its_parent(run: Run) -> None:
    """Both limits hold, whichever is met first."""
    of_child, of_parent = forever("look"), forever("delegate")
    child = bound(create_agent(of_child, [look]), only(max_model_calls=100))
    state = run(bound(delegating(child, of_parent), only(max_model_calls=7)))
    assert of_child.requests + of_parent.requests == 7
    assert state["endstop"].spent.model_calls == 7


@pytest.mark.parametrize("run", BOTH)
def test_a_sub_agent_with_callbacks_of_its_own_is_seen(run: Run) -> None:
    """Whatever config a tool passes on."""

    class Own(BaseCallbackHandler):
        pass

    of_child, of_parent = forever("look"), forever("delegate")
    graph = delegating(create_agent(of_child, [look]), of_parent, {"callbacks": [Own()]})
    run(bound(graph, only(max_model_calls=5)))
    assert of_child.requests + of_parent.requests == 5


def test_callbacks_of_the_caller_are_told_as_ever() -> None:
    """The caller's config is handed to the graph as it is."""

    class Counting(BaseCallbackHandler):
        def __init__(self) -> None:
            self.models = 0

        def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
            self.models += 1

    counting, chat = Counting(), forever("look")
    bound(create_agent(chat, [look]), only(max_model_calls=3)).invoke(ASKED, {"callbacks": [counting]})
    assert counting.models == 4  # The refused one was announced before it was refused.
    assert chat.requests == 3


@pytest.mark.parametrize("kind", ["bound", "unbound"])
async def test_eight_children_at_once_cannot_overrun_a_limit(kind: str) -> None:
    """There is nothing between the check and the taking."""
    looker = Looker(seconds=0.01)
    of_child, of_parent = forever("look"), forever(*["delegate"] * 8)
    of_child.latency_seconds = 0.01
    child = create_agent(of_child, [looker.tool])
    graph = delegating(bound(child, only()) if kind == "bound" else child, of_parent)
    state = await bound(graph, only(max_model_calls=7, max_tool_calls=20)).ainvoke(ASKED)
    assert of_child.requests + of_parent.requests == 7
    assert state["endstop"].spent.model_calls == 7
    assert unanswered(state["messages"]) == []


def test_threads_that_race_cannot_overrun_a_limit() -> None:
    """Thirty-two tools start model calls at the same time, over and over."""
    chat = PlainChat(rule=lambda messages: says("."))
    barrier = threading.Barrier(32)

    @tool
    def think(place: str) -> str:
        """Think."""
        barrier.wait(timeout=30)
        for _ in range(8):
            chat.invoke(place)
        return "done"

    graph = create_agent(forever(*["think"] * 32), [think])
    state = bound(graph, only(max_model_calls=50)).invoke(ASKED, {"max_concurrency": 64})
    assert chat.requests == 50 - 2
    assert state["endstop"].spent.model_calls == 50


def test_runs_at_once_do_not_share_their_limits() -> None:
    """A bound graph is run by many callers at the same time, from threads and from tasks."""
    chat = forever("look")
    graph = bound(create_agent(chat, [look]), only(max_model_calls=3))
    with ThreadPoolExecutor(8) as pool:
        states = list(pool.map(lambda _: graph.invoke(ASKED), range(24)))

    async def many() -> list[Any]:
        return await asyncio.gather(*(graph.ainvoke(ASKED) for _ in range(24)))

    states += asyncio.run(many())
    assert {state["endstop"].spent.model_calls for state in states} == {3}
    assert chat.requests == 48 * 3


@pytest.mark.parametrize("run", BOTH)
@pytest.mark.parametrize(("levels", "reached"), [(0, (0, 0)), (1, (2, 0)), (2, (2, 1))])
def test_the_levels_below_a_run_are_bound(run: Run, levels: int, reached: tuple[int, int]) -> None:
    """A run that is too deep is refused before its first request; the call that asked for it is told."""
    deepest = in_order(says("deepest"))
    middle = in_order(asks("delegate"), says("middle"))
    top = in_order(asks("delegate"), says("top"))
    graph = delegating(delegating(create_agent(deepest, [look]), middle), top)
    state = run(bound(graph, only(max_depth=levels)))
    assert (middle.requests, deepest.requests) == reached
    assert (state["messages"][-1].text, "endstop" in state) == ("top", False)
    assert unanswered(state["messages"]) == []


def test_the_levels_below_are_those_of_every_bound_graph_around() -> None:
    """A graph that is bound inside another one does not begin to count anew for it."""
    deepest, middle, top = (
        in_order(says("deepest")),
        in_order(asks("delegate"), says("middle")),
        in_order(asks("delegate"), says("top")),
    )
    inner = bound(delegating(create_agent(deepest, [look]), middle), only(max_depth=5))
    state = bound(delegating(inner, top), only(max_depth=1)).invoke(ASKED)
    assert (middle.requests, deepest.requests) == (2, 0)
    assert state["messages"][-1].text == "top"


def fan_out(chat: FakeChat, width: int) -> Any:
    """A graph that researches its topics at once and writes a report."""

    class State(TypedDict):
        found: Annotated[list[str], operator.add]
        report: str

    def research(state: Any) -> Any:
        return {"found": [chat.invoke(state["topic"]).text]}

    def write(state: State) -> Any:
        return {"report": chat.invoke(" ".join(state["found"])).text}

    builder = StateGraph(State)
    builder.add_node("research", research)
    builder.add_node("write", write)
    builder.add_conditional_edges(
        START, lambda state: [Send("research", {"topic": f"topic {i}"}) for i in range(width)], ["research"]
    )
    builder.add_edge("research", "write")
    builder.add_edge("write", END)
    return builder.compile()


@pytest.mark.parametrize("run", BOTH)
def test_a_fan_out_is_one_round_and_one_super_step(run: Run) -> None:
    """However wide it is; each of its requests is a model call."""
    chat = PlainChat(rule=lambda messages: says("found"))
    assert "endstop" not in run(bound(fan_out(chat, 8), only(max_model_rounds=2, max_super_steps=2)), {"found": []})
    state = run(bound(fan_out(chat, 8), only(max_model_calls=5)), {"found": []})
    made = state["endstop"]
    assert (state["found"], made.limit, made.rung, made.text) == (
        ["found"] * 5,
        "max_model_calls",
        "last_text",
        "found",
    )
    assert chat.requests == 9 + 5


@pytest.mark.parametrize("run", BOTH)
@pytest.mark.parametrize("inner", ["bound", "unbound"])
def test_an_agent_that_is_a_node_is_inside(run: Run, inner: str) -> None:
    """Its nodes and super-steps are counted with those of the graph that it is in."""
    chat = forever("look")
    agent = create_agent(chat, [look])
    builder = StateGraph(MessagesState)
    builder.add_node("agent", bound(agent, only(max_model_calls=2)) if inner == "bound" else agent)
    builder.add_edge(START, "agent")
    builder.add_edge("agent", END)
    state = run(bound(builder.compile(), only(max_super_steps=6)))
    if inner == "bound":
        assert "endstop" not in state
        assert state["messages"][-1].response_metadata["endstop"]["limit"] == "max_model_calls"
        assert chat.requests == 2
    else:
        made = state["endstop"]
        assert (made.limit, made.spent.super_steps) == ("max_super_steps", 6)
        assert made.spent.nodes == {"agent": 1, "model": 3, "tools": 2}
        assert made.text == FINAL
    assert unanswered(state["messages"]) == []


def test_handoffs_between_agents_are_inside() -> None:
    """Agents that hand the conversation to each other for ever are stopped."""

    def handing(to: str, chat: FakeChat) -> Any:
        @tool(f"to_{to}")
        def hand_over(place: str) -> Any:
            """Hand over."""
            return Command(goto=to, graph=Command.PARENT, update={"messages": [ToolMessage("Over.", tool_call_id="x")]})

        return create_agent(chat, [hand_over], name=f"from_{to}")

    a, b = forever("to_b"), forever("to_a")
    builder = StateGraph(MessagesState)
    builder.add_node("a", handing("b", a), destinations=("b",))
    builder.add_node("b", handing("a", b), destinations=("a",))
    builder.add_edge(START, "a")
    state = bound(builder.compile(), only(max_model_calls=6), loops=None).invoke(ASKED)
    assert (a.requests + b.requests, state["endstop"].limit) == (6, "max_model_calls")


@pytest.mark.parametrize("run", BOTH)
def test_a_supervisor_that_asks_the_same_again_is_in_a_loop(run: Run) -> None:
    """It does not notice the answer: the cycle of its nodes brings nothing new."""
    create_supervisor = pytest.importorskip("langgraph_supervisor").create_supervisor
    of_worker, of_supervisor = in_order(says("It is 42.")), forever(("transfer_to_worker", {}))
    worker = create_react_agent(of_worker, [look], name="worker")
    supervisor = create_supervisor([worker], model=of_supervisor).compile()
    state = run(bound(supervisor, only(max_model_calls=50)), config={"recursion_limit": 200})
    made = state["endstop"]
    assert (made.stop_reason, made.limit, made.text) == ("loop", "loop", FINAL)
    assert of_worker.requests <= 6
    assert unanswered(state["messages"]) == []


@pytest.mark.parametrize("run", BOTH)
def test_a_supervisor_with_its_workers_is_one_budget(run: Run) -> None:
    """All their requests together."""
    create_supervisor = pytest.importorskip("langgraph_supervisor").create_supervisor
    of_worker, of_supervisor = forever("look"), forever(("transfer_to_worker", {}))
    worker = create_react_agent(of_worker, [look], name="worker")
    supervisor = create_supervisor([worker], model=of_supervisor).compile()
    state = run(bound(supervisor, only(max_model_calls=8)))
    assert of_worker.requests + of_supervisor.requests == 8
    assert state["endstop"].limit == "max_model_calls"
    assert unanswered(state["messages"]) == []


def test_the_functional_api_is_bound_too() -> None:
    """A loop in an entrypoint is one super-step to LangGraph's own limit; here each task is a node."""
    runs: list[int] = []

    @task
    def work(number: int) -> int:
        runs.append(number)
        return number

    @entrypoint()
    def forever_working(given: int) -> int:
        while True:
            given = work(given + 1).result()

    made = bound(forever_working, only(node_limits={"work": 5}), loops=None)
    assert made.invoke(0) is None
    assert len(runs) == 5
    *_, last = made.stream(0, stream_mode="custom")
    assert (last.limit, last.used) == ("node_limits['work']", 5)


def test_a_node_that_repeats_itself_is_in_a_loop_unless_it_may_be_waiting() -> None:
    """Two nodes with a model that go round and bring nothing new are stopped; nodes without one may be polling."""
    chat = PlainChat(rule=lambda messages: says("The same draft."))

    class State(TypedDict):
        draft: str
        polls: int

    def write(state: State) -> Any:
        return {"draft": chat.invoke("Write.").text}

    builder = StateGraph(State)
    builder.add_node("write", write)
    builder.add_node("review", lambda state: {})
    builder.add_edge(START, "write")
    builder.add_edge("write", "review")
    builder.add_edge("review", "write")
    made = bound(builder.compile(), only(max_model_calls=50)).invoke({})["endstop"]
    assert (made.stop_reason, made.text) == ("loop", "The same draft.")
    assert chat.requests <= 8

    waited: list[int] = []

    def poll(state: State) -> Any:
        waited.append(1)
        return {"draft": "not yet"}

    polling = StateGraph(State)
    polling.add_node("poll", poll)
    polling.add_edge(START, "poll")
    polling.add_conditional_edges("poll", lambda state: "poll" if len(waited) < 15 else END, ["poll", END])
    assert "endstop" not in bound(polling.compile(), only(max_model_calls=50)).invoke({})
    assert len(waited) == 15
