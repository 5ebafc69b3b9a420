"""A bound run on a thread: its count goes on after pauses, in other processes, and after a cut; its state is valid."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import create_react_agent
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, Send, interrupt

from endstop import ConfigError, ResumeError
from endstop.langgraph import GraphEnding, GraphLimits, MemoryLedger, bound

from .fakes import ASKED, FINAL, Looker, PlainChat, asks, forever, in_order, look, says, unanswered
from .savers import KINDS, Savers, postgres

pytestmark = pytest.mark.filterwarnings("ignore:create_react_agent has been moved")

APPROVE = Command(resume={"decisions": [{"type": "approve"}]})


@pytest.fixture(scope="module")
def postgres_dsn() -> Iterator[str]:
    """A schema in a Postgres server."""
    with postgres() as dsn:
        yield dsn


@pytest.fixture(params=KINDS)
def savers(request: pytest.FixtureRequest, tmp_path: Path) -> Savers:
    """Checkpointers of each kind."""
    dsn = request.getfixturevalue("postgres_dsn") if request.param == "postgres" else None
    return Savers(request.param, tmp_path, dsn)


def only(**limits: Any) -> GraphLimits:
    """These limits alone."""
    return replace(GraphLimits(max_model_rounds=None), **limits)


def thread() -> Any:
    """The config of a new thread."""
    return {"configurable": {"thread_id": str(uuid4())}}


def approving(chat: Any, saver: Any, limits: GraphLimits, looker: Looker | None = None) -> Any:
    """An agent whose tool needs approval, as a process that has just started would make it."""
    asking = HumanInTheLoopMiddleware({"look": True})
    return bound(create_agent(chat, [(looker or Looker()).tool], middleware=[asking], checkpointer=saver), limits)


# -- pauses ----------------------------------------------------------------------------------------


def test_twelve_approvals_do_not_reset_the_count(savers: Savers) -> None:
    """Each is given to a graph and a connection of their own; the limit is one of the run and not of a leg."""
    config, chat, looker = thread(), forever("look"), Looker()
    limits = only(max_model_calls=14, max_tool_calls=20)
    with savers.open() as saver:
        state = approving(chat, saver, limits, looker).invoke(ASKED, config)
    approvals = 0
    while "__interrupt__" in state:
        approvals += 1
        with savers.open() as saver:
            state = approving(chat, saver, limits, looker).invoke(APPROVE, config)
    made = state["endstop"]
    assert (approvals, looker.started, chat.requests) == (13, 13, 14)
    assert (made.limit, made.used, made.spent.tools) == ("max_model_calls", 14, {"look": 13})
    assert unanswered(state["messages"]) == []


async def test_twelve_async_approvals_do_not_reset_the_count(savers: Savers) -> None:
    """As in sync code."""
    config, chat = thread(), forever("look")
    limits = only(max_model_calls=3)
    async with savers.aopen() as saver:
        state = await approving(chat, saver, limits).ainvoke(ASKED, config)
    approvals = 0
    while "__interrupt__" in state and approvals < 12:
        approvals += 1
        async with savers.aopen() as saver:
            state = await approving(chat, saver, limits).ainvoke(APPROVE, config)
    assert (approvals, chat.requests, state["endstop"].limit) == (2, 3, "max_model_calls")


def test_rejections_count_as_well() -> None:
    """A model that asks again after each refusal of a person runs into the limit."""
    config, chat, looker = thread(), forever("look"), Looker()
    graph = approving(chat, InMemorySaver(), only(max_model_calls=4), looker)
    state = graph.invoke(ASKED, config)
    while "__interrupt__" in state:
        state = graph.invoke(Command(resume={"decisions": [{"type": "reject"}]}), config)
    assert (looker.started, chat.requests, state["endstop"].limit) == (0, 4, "max_model_calls")


def test_a_breakpoint_pauses_a_run_too() -> None:
    """A graph that stops before a node says so in no state that it returns; the count goes on all the same."""
    config, chat = thread(), forever("look")
    agent = create_agent(chat, [look], checkpointer=InMemorySaver(), interrupt_before=["tools"])
    graph = bound(agent, only(max_model_calls=3))
    state = graph.invoke(ASKED, config)
    legs = 1
    while "endstop" not in state and legs < 10:
        legs += 1
        state = graph.invoke(None, config)
    assert (legs, chat.requests, state["endstop"].used) == (3, 3, 3)


def test_waiting_for_a_person_takes_no_time() -> None:
    """Working time stands still between the legs of a run."""
    config = thread()
    graph = approving(in_order(asks("look"), says("Here.")), InMemorySaver(), only(max_seconds=5.0))
    graph.invoke(ASKED, config)
    state = graph.invoke(APPROVE, config)
    assert "endstop" not in state


def test_loops_are_found_across_pauses() -> None:
    """The streak of equal calls goes on where each of them was approved."""
    config, chat = thread(), forever(("look", {"place": "the mat"}))
    graph = approving(chat, InMemorySaver(), only(max_model_calls=50))
    state = graph.invoke(ASKED, config)
    approvals = 0
    while "__interrupt__" in state and approvals < 20:
        approvals += 1
        state = graph.invoke(APPROVE, config)
    assert (approvals, state["endstop"].stop_reason) == (6, "loop")


def test_a_new_input_starts_a_new_run() -> None:
    """Each turn of a conversation has the whole of its limits."""
    config, chat = thread(), forever("look")
    graph = bound(create_agent(chat, [look], checkpointer=InMemorySaver()), only(max_model_calls=3))
    spent = [graph.invoke(ASKED, config)["endstop"].spent.model_calls for _ in range(3)]
    assert (spent, chat.requests) == ([3, 3, 3], 9)


def test_a_new_input_to_a_paused_run_starts_a_new_one() -> None:
    """As it does for LangGraph's own counters."""
    config, chat = thread(), forever("look")
    graph = approving(chat, InMemorySaver(), only(max_model_calls=2))
    graph.invoke(ASKED, config)
    graph.invoke(ASKED, config)
    assert graph.invoke(APPROVE, config)["endstop"].spent.model_calls == 2
    assert chat.requests == 3


# -- a run that was cut ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [create_agent, create_react_agent])
@pytest.mark.parametrize("limits", [only(max_model_calls=3), only(max_super_steps=3), only(max_tool_calls=1)])
def test_the_stored_state_of_a_cut_run_is_the_one_returned(make: Any, limits: GraphLimits) -> None:
    """Every call is answered, the answer stands last, and nothing is left to run."""
    config = thread()
    agent = make(forever("look"), [look], checkpointer=InMemorySaver())
    state = bound(agent, limits).invoke(ASKED, config)
    stored = agent.get_state(config)
    assert stored.values["messages"] == state["messages"]
    assert stored.next == ()
    assert unanswered(stored.values["messages"]) == []
    assert stored.values["messages"][-1].response_metadata["endstop"]["limit"] == state["endstop"].limit


def test_a_thread_that_was_cut_takes_the_next_turn_without_its_bounds(savers: Savers) -> None:
    """The bare graph goes on from a valid history."""
    config = thread()
    with savers.open() as saver:
        bound(create_agent(forever("look"), [look], checkpointer=saver), only(max_super_steps=3)).invoke(ASKED, config)
    with savers.open() as saver:
        chat = in_order(says("?"), says("?"), says("?"), says("Here."))
        state = create_agent(chat, [look], checkpointer=saver).invoke(ASKED, config)
    assert state["messages"][-1].text == "Here."
    assert unanswered(chat.sent[0]) == []


def test_a_cut_run_goes_on_with_higher_limits(savers: Savers) -> None:
    """From where it was stopped: the forced answer is taken back, and nothing is bought twice."""
    config, chat, looker = thread(), forever("look"), Looker()

    def leg(limits: GraphLimits, given: Any) -> Any:
        with savers.open() as saver:
            return bound(create_agent(chat, [looker.tool], checkpointer=saver), limits).invoke(given, config)

    first = leg(only(max_model_calls=3), ASKED)
    second = leg(only(max_model_calls=5), None)
    assert (looker.started, chat.requests, second["endstop"].spent.model_calls) == (3, 5, 5)
    assert [m.text for m in second["messages"] if isinstance(m, AIMessage)].count(FINAL) == 1
    kept = [m.id for m in first["messages"][:-1]]
    assert [m.id for m in second["messages"]][: len(kept)] == kept
    assert unanswered(second["messages"]) == []


async def test_a_cut_run_goes_on_in_async_code(savers: Savers) -> None:
    """With a limit that allows it to come to its end, it is completed."""
    config = thread()
    chat = in_order(asks("look"), asks("look"), asks("look"), says("Here."))
    async with savers.aopen() as saver:
        agent = create_agent(chat, [look], checkpointer=saver)
        first = await bound(agent, only(max_model_calls=3)).ainvoke(ASKED, config)
        assert first["endstop"].limit == "max_model_calls"
        second = await bound(agent, only(max_model_calls=10)).ainvoke(None, config)
    assert "endstop" not in second
    assert second["messages"][-1].text == "Here."
    assert unanswered(second["messages"]) == []


def test_going_on_without_a_higher_limit_is_an_error() -> None:
    """It says which limit is used up."""
    config = thread()
    graph = bound(create_agent(forever("look"), [look], checkpointer=InMemorySaver()), only(max_model_calls=3))
    graph.invoke(ASKED, config)
    with pytest.raises(ResumeError, match=r"max_model_calls is used up \(3 of 3\)") as raised:
        graph.invoke(None, config)
    assert raised.value.limit == "max_model_calls"


def test_going_on_after_a_loop_counts_it_anew() -> None:
    """Whoever goes on has looked at it."""
    config, chat = thread(), forever(("look", {"place": "the mat"}))
    graph = bound(create_agent(chat, [look], checkpointer=InMemorySaver()), only(max_model_calls=50))
    assert graph.invoke(ASKED, config)["endstop"].stop_reason == "loop"
    before = chat.requests
    assert graph.invoke(None, config)["endstop"].stop_reason == "loop"
    assert chat.requests >= before + 3


def test_the_recursion_limit_starts_anew_when_a_run_goes_on() -> None:
    """As it does in LangGraph."""
    config, chat = thread(), in_order(asks("look"), asks("look"), asks("look"), says("Here."))
    graph = bound(create_agent(chat, [look], checkpointer=InMemorySaver()), GraphLimits())
    assert graph.invoke(ASKED, {**config, "recursion_limit": 4})["endstop"].limit == "recursion_limit"
    state = graph.invoke(None, {**config, "recursion_limit": 6})
    assert state["messages"][-1].text == "Here."


def researchers(chat: PlainChat) -> Any:
    """A graph that asks about six topics at once."""

    def research(state: Any) -> Any:
        return {"messages": [chat.invoke(state["topic"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("research", research)
    builder.add_conditional_edges(
        START, lambda state: [Send("research", {"topic": f"topic {i}"}) for i in range(6)], ["research"]
    )
    builder.add_edge("research", END)
    return builder.compile(checkpointer=InMemorySaver())


def test_what_ran_beside_the_cut_is_kept() -> None:
    """Of parallel branches one is refused: the others have written their part, stored as well."""
    chat, config = PlainChat(rule=lambda messages: says(f"About {messages[-1].text}.")), thread()
    graph = researchers(chat)
    state = bound(graph, only(max_model_calls=4, on_limit="stop")).invoke(ASKED, config)
    said = [m.text for m in state["messages"] if isinstance(m, AIMessage) and m.text.startswith("About")]
    assert len(set(said)) == 4
    assert graph.get_state(config).values["messages"] == state["messages"]
    assert graph.get_state(config).next == ()


def test_what_ran_beside_the_cut_is_not_bought_again() -> None:
    """When the run goes on, the branches that had finished are not run a second time."""
    chat, config = PlainChat(rule=lambda messages: says(f"About {messages[-1].text}.")), thread()
    graph = researchers(chat)
    bound(graph, only(max_model_calls=4, on_limit="stop")).invoke(ASKED, config)
    state = bound(graph, only(max_model_calls=10, on_limit="stop")).invoke(None, config)
    assert "endstop" not in state
    assert chat.requests == 6
    assert {m.text for m in state["messages"] if isinstance(m, AIMessage)} == {f"About topic {i}." for i in range(6)}


# -- where it is kept --------------------------------------------------------------------------------


def test_the_record_goes_with_the_thread(savers: Savers) -> None:
    """Deleting the thread deletes it; the history of the graph does not show it."""
    config = thread()
    with savers.open() as saver:
        agent = create_agent(forever("look"), [look], checkpointer=saver)
        bound(agent, only(max_model_calls=2)).invoke(ASKED, config)
        assert {one.config["configurable"]["checkpoint_ns"] for one in agent.get_state_history(config)} == {""}
        assert len(list(saver.list({"configurable": {**config["configurable"], "checkpoint_ns": "endstop"}}))) == 1
        saver.delete_thread(config["configurable"]["thread_id"])
        assert list(saver.list(config)) == []


def test_a_thread_has_limits_of_its_own_over_all_its_turns(savers: Savers) -> None:
    """A turn may use what its own limits and those of the thread leave."""
    config, chat = thread(), forever("look")
    limits, of_thread = only(max_model_calls=3), only(max_model_calls=7)

    def turn() -> GraphEnding:
        with savers.open() as saver:
            graph = bound(create_agent(chat, [look], checkpointer=saver), limits, thread_limits=of_thread)
            ending: GraphEnding = graph.invoke(ASKED, config)["endstop"]
            return ending

    spent = [turn().spent.model_calls for _ in range(4)]
    assert (spent, chat.requests) == ([3, 3, 1, 0], 7)


def test_a_thread_without_a_checkpointer_is_counted_in_the_store() -> None:
    """The graph's own store is the next best place."""
    config, chat, store = thread(), forever("look"), InMemoryStore()
    for calls in (3, 2):
        graph = bound(
            create_agent(chat, [look], store=store), only(max_model_calls=3), thread_limits=only(max_model_calls=5)
        )
        assert graph.invoke(ASKED, config)["endstop"].spent.model_calls == calls
    assert [item.namespace for item in store.search(())] == [("endstop",)]


def test_a_thread_without_either_is_counted_in_this_process() -> None:
    """Another bound graph knows nothing of it."""
    config, chat = thread(), forever("look")
    graph = bound(create_agent(chat, [look]), only(max_model_calls=3), thread_limits=only(max_model_calls=5))
    assert [graph.invoke(ASKED, config)["endstop"].spent.model_calls for _ in range(2)] == [3, 2]


def test_a_ledger_of_ones_own_comes_first() -> None:
    """It is asked by the thread's id, and gets documents that it needs not understand."""
    config, chat, ledger = thread(), forever("look"), MemoryLedger()
    saver = InMemorySaver()
    for calls in (3, 2):
        agent = create_agent(chat, [look], checkpointer=saver)
        graph = bound(agent, only(max_model_calls=3), ledger=ledger, thread_limits=only(max_model_calls=5))
        assert graph.invoke(ASKED, config)["endstop"].spent.model_calls == calls
    document = ledger.load(config["configurable"]["thread_id"])
    assert document is not None
    assert document.startswith('{"format":"endstop/graph-run"')
    assert "endstop" not in saver.storage[config["configurable"]["thread_id"]]


class AsyncLedger:
    """A ledger that is only async."""

    def __init__(self) -> None:
        self.documents: dict[str, str] = {}

    async def load(self, key: str) -> str | None:
        return self.documents.get(key)

    async def save(self, key: str, document: str) -> None:
        self.documents[key] = document


async def test_a_ledger_may_be_async_where_the_graph_is() -> None:
    """In sync code it is refused, before anything runs."""
    config, chat, ledger = thread(), forever("look"), AsyncLedger()
    graph = bound(
        create_agent(chat, [look]), only(max_model_calls=3), ledger=ledger, thread_limits=only(max_model_calls=5)
    )
    assert [(await graph.ainvoke(ASKED, config))["endstop"].spent.model_calls for _ in range(2)] == [3, 2]
    assert list(ledger.documents) == [config["configurable"]["thread_id"]]
    before = chat.requests
    with pytest.raises(ConfigError, match="ledger"):
        graph.invoke(ASKED, config)
    assert chat.requests == before


def test_what_was_spent_before_a_crash_is_not_lost() -> None:
    """A process that dies in the middle of a run has kept what it spent with each step."""

    class Crash(BaseException):
        pass

    config, chat, saver = thread(), forever("look"), InMemorySaver()
    looker = Looker()

    def dying(place: str) -> str:
        looker.started += 1
        if looker.started == 3:
            raise Crash
        return f"{place}: nothing here"

    looker._run = dying  # type: ignore[method-assign]  # the tool that kills the process
    agent = create_agent(chat, [looker.tool], checkpointer=saver)
    stream = bound(agent, only(max_model_calls=5)).stream(ASKED, config)
    with pytest.raises(Crash):
        list(stream)
    made = bound(create_agent(chat, [look], checkpointer=saver), only(max_model_calls=5)).invoke(None, config)[
        "endstop"
    ]
    assert (made.limit, made.spent.model_calls, chat.requests) == ("max_model_calls", 5, 5)


def test_a_pause_inside_a_bound_part_of_a_bound_graph_keeps_both_counts() -> None:
    """A sub-agent that is a node, bound by itself, goes on with its own count and with that of the graph around it."""
    config, chat = thread(), forever("look")
    asking = HumanInTheLoopMiddleware({"look": True})
    inner = bound(create_agent(chat, [look], middleware=[asking]), only(max_model_calls=4))
    builder = StateGraph(MessagesState)
    builder.add_node("inner", inner)
    builder.add_edge(START, "inner")
    builder.add_edge("inner", END)
    graph = bound(builder.compile(checkpointer=InMemorySaver()), only(max_model_calls=20))
    state = graph.invoke(ASKED, config)
    approvals = 0
    while "__interrupt__" in state and approvals < 12:
        approvals += 1
        state = graph.invoke(APPROVE, config)
    assert (approvals, chat.requests) == (3, 4)
    assert "endstop" not in state
    assert state["messages"][-1].response_metadata["endstop"]["limit"] == "max_model_calls"
    assert not [m for m in state["messages"] if isinstance(m, ToolMessage) and m.status == "error"]


def test_an_interrupt_of_a_node_runs_through() -> None:
    """The answer reaches the node, and the run is completed."""
    builder = StateGraph(MessagesState)
    builder.add_node("ask", lambda state: {"messages": [AIMessage(str(interrupt("May I?")))]})
    builder.add_edge(START, "ask")
    builder.add_edge("ask", END)
    config = thread()
    graph = bound(builder.compile(checkpointer=InMemorySaver()), only(max_super_steps=2))
    assert "__interrupt__" in graph.invoke(ASKED, config)
    state = graph.invoke(Command(resume="Yes."), config)
    assert (state["messages"][-1].text, "endstop" in state) == ("Yes.", False)


def test_a_part_that_is_a_graph_goes_on_where_it_was(savers: Savers) -> None:
    """A sub-agent that is a node, cut in the middle, has its own state in the thread and is not begun anew."""
    config, looker = thread(), Looker()
    chat = in_order(asks("look"), asks("look"), asks("look"), asks("look"), says("Here."))

    def leg(limits: GraphLimits, given: Any) -> Any:
        builder = StateGraph(MessagesState)
        builder.add_node("agent", create_agent(chat, [looker.tool]))
        builder.add_edge(START, "agent")
        builder.add_edge("agent", END)
        with savers.open() as saver:
            return bound(builder.compile(checkpointer=saver), limits).invoke(given, config)

    assert leg(only(max_model_calls=4), ASKED)["endstop"].limit == "max_model_calls"
    assert looker.started == 3
    state = leg(only(max_model_calls=10), None)
    assert (looker.started, chat.requests, state["messages"][-1].text) == (4, 3 + 1 + 2, "Here.")
    assert unanswered(state["messages"]) == []


def test_a_command_to_a_thread_that_was_cut_starts_a_new_run() -> None:
    """Only `None` asks to go on with the run that was cut."""
    config, chat = thread(), forever("look")
    graph = bound(create_agent(chat, [look], checkpointer=InMemorySaver()), only(max_model_calls=3))
    graph.invoke(ASKED, config)
    state = graph.invoke(Command(update=ASKED, goto="model"), config)
    assert (state["endstop"].spent.model_calls, chat.requests) == (3, 6)


def test_a_late_answer_to_a_thread_that_was_cut_is_refused() -> None:
    """Nothing waits for it: it must not pass for a run that has completed, nor spoil going on."""
    config, chat = thread(), forever("look")
    agent = create_agent(chat, [look], checkpointer=InMemorySaver())
    graph = bound(agent, only(max_model_calls=3))
    graph.invoke(ASKED, config)
    with pytest.raises(ResumeError, match="waits for no answer: go on with it by an input of None") as refused:
        graph.invoke(Command(resume="yes"), config)
    assert (refused.value.limit, chat.requests) == ("max_model_calls", 3)
    assert bound(agent, only(max_model_calls=5)).invoke(None, config)["endstop"].used == 5


def test_a_finished_thread_is_given_back_without_a_run() -> None:
    """As the graph itself does."""
    config, chat = thread(), in_order(says("Here."))
    graph = bound(create_agent(chat, [look], checkpointer=InMemorySaver()), only(max_model_calls=3))
    first = graph.invoke(ASKED, config)
    assert graph.invoke(None, config)["messages"] == first["messages"]
    assert chat.requests == 1


def test_an_entrypoint_keeps_its_count_on_a_thread() -> None:
    """It has no state of messages to mend; what its tasks gave is LangGraph's to keep."""
    runs: list[int] = []

    @task
    def work(number: int) -> int:
        runs.append(number)
        return number

    @entrypoint(checkpointer=InMemorySaver())
    def working(given: int) -> int:
        return sum(work(number).result() for number in range(given))

    config = thread()
    *_, last = bound(working, only(node_limits={"work": 3})).stream(5, config, stream_mode="custom")
    assert (last.limit, runs) == ("node_limits['work']", [0, 1, 2])
    assert bound(working, only(node_limits={"work": 10})).invoke(None, config) == 10
    assert runs == [0, 1, 2, 3, 4]


def test_parallel_writes_that_the_graph_would_refuse_lose_nothing_else() -> None:
    """Of two branches that write the same single value, the newest is kept where the third one was cut."""

    class State(MessagesState):
        note: str

    builder = StateGraph(State)
    chat = PlainChat(rule=lambda messages: says("."))

    def think(state: Any) -> Any:
        if state["number"] == 2:
            chat.invoke("?")
        return {"note": f"note {state['number']}"}

    builder.add_node("think", think)
    builder.add_conditional_edges(START, lambda state: [Send("think", {"number": i}) for i in range(3)], ["think"])
    builder.add_edge("think", END)
    state = bound(builder.compile(), only(max_model_calls=0)).invoke(ASKED)
    assert state["note"] in ("note 0", "note 1")
    assert state["endstop"].limit == "max_model_calls"


@pytest.mark.parametrize("saver", [None, InMemorySaver()])
def test_runs_at_once_on_a_thread_share_its_limits(saver: Any) -> None:
    """Each has its own limits beside; afterwards the count is what all have spent."""
    chat = forever("look")
    chat.latency_seconds = 0.01
    agent = create_agent(chat, [look], checkpointer=saver)
    graph = bound(agent, only(max_model_calls=5), thread_limits=only(max_model_calls=10))
    config: Any = {"configurable": {"thread_id": "at once"}}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: graph.invoke(ASKED, config), range(8)))
    assert chat.requests == 10
    assert graph.invoke(ASKED, config)["endstop"].used == 10
    assert chat.requests == 10


def test_nothing_is_remembered_of_a_thread_that_cannot_be_gone_on_with() -> None:
    """Without a checkpointer and without limits of the thread there is no use for it."""
    for limits, remembers in ((None, False), (only(max_model_calls=9), True)):
        graph: Any = bound(create_agent(forever("look"), [look]), only(max_model_calls=2), thread_limits=limits)
        graph.invoke(ASKED, thread())
        assert (graph.endstop[1].memory is not None) is remembers
        assert graph.endstop[1].threads._open == {}
