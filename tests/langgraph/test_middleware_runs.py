"""What a run has spent under a `BoundMiddleware` is in its checkpoints: no pause, crash or other process loses it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from endstop import LimitHit, PlanLimits, Spent
from endstop.langgraph._agent_run import Bounds, LiveRuns
from endstop.langgraph._channels import Addition, RunRecord, added, joined
from endstop.langgraph.middleware import BoundMiddleware
from tests.langgraph.fakes import ASKED, FINAL, FakeChat, Looker, asks, forever, in_order, says, unanswered
from tests.langgraph.savers import KINDS, Savers, postgres

State = Mapping[str, Any]
THREAD: Any = {"configurable": {"thread_id": "1"}}
OTHER: Any = {"configurable": {"thread_id": "2"}}
AGAIN = {"messages": [("user", "And the lock?")]}


def limits(**fields: Any) -> PlanLimits:
    """These limits and no other."""
    return replace(PlanLimits(max_model_rounds=None), **fields)


def agent_of(model: FakeChat, tools: list[Any], saver: Any, bounds: PlanLimits, *more: Any, **options: Any) -> Any:
    """An agent with a middleware of its own, as another process would make it."""
    parts = [BoundMiddleware(bounds, **options), *more]
    return create_agent(model, tools, middleware=parts, checkpointer=saver)


def approvals(state: State) -> Command[Any]:
    count = len(state["__interrupt__"][0].value["action_requests"])
    return Command(resume={"decisions": [{"type": "approve"}] * count})


# -- pauses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("new_process", [False, True])
def test_approvals_do_not_give_the_count_back(new_process: bool) -> None:
    """13 rounds with an approval each are 13 requests, in one process or in as many as there are legs."""
    model, look, saver = forever("look"), Looker(), InMemorySaver()

    def agent() -> Any:
        return agent_of(model, [look.tool], saver, limits(max_model_calls=13), HumanInTheLoopMiddleware({"look": True}))

    bound = agent()
    state, count = bound.invoke(ASKED, THREAD), 0
    while "__interrupt__" in state:
        count += 1
        bound = agent() if new_process else bound
        state = bound.invoke(approvals(state), THREAD)
    assert (count, model.requests, look.started) == (12, 13, 12)
    assert (state["endstop"]["used"], state["endstop"]["limit"]) == (13, "max_model_calls")
    assert state["messages"][-1].text == FINAL


def test_a_call_that_a_person_refused_is_not_an_execution() -> None:
    """The limit is left for others, and the model is told."""
    model, look, saver = in_order(asks("look"), asks("look"), says("Done.")), Looker(), InMemorySaver()
    agent = agent_of(model, [look.tool], saver, limits(max_tool_calls=1), HumanInTheLoopMiddleware({"look": True}))
    agent.invoke(ASKED, THREAD)
    state = agent.invoke(Command(resume={"decisions": [{"type": "reject"}]}), THREAD)
    state = agent.invoke(approvals(state), THREAD)
    assert (look.started, state["messages"][-1].text) == (1, "Done.")


@pytest.mark.parametrize("new_process", [False, True])
def test_a_tool_that_waits_is_paid_once(new_process: bool) -> None:
    """Calls of one batch that are done before the pause are counted with those after it, each of them once."""
    model, look, saver = in_order(asks("look", "ask", "look"), says("Done.")), Looker(), InMemorySaver()

    @tool
    def ask(place: str) -> str:
        """Ask a person."""
        return interrupt(place)

    def agent() -> Any:
        return agent_of(model, [look.tool, ask], saver, limits(max_tool_calls=3, max_model_calls=9))

    bound = agent()
    assert "__interrupt__" in bound.invoke(ASKED, THREAD)
    assert look.started == 2
    bound = agent() if new_process else bound
    state = bound.invoke(Command(resume="yes"), THREAD)
    assert state["messages"][-1].text == "Done."
    spent = bound.get_state(THREAD).values["endstop_run"]["record"]["spent"]
    assert (spent["tool_calls"], spent["tools"]) == (3, {"look": 2, "ask": 1})
    assert look.started == 2


def test_the_reserve_is_held_also_where_a_leg_begins_with_tools() -> None:
    """A sub-agent in the first tool after a pause cannot eat what the final answer was promised."""
    child_model, saver = forever("look"), InMemorySaver()
    child = create_agent(child_model, [Looker().tool])

    @tool
    def delegate(place: str) -> str:
        """Delegate."""
        return str(child.invoke(ASKED)["messages"][-1].text)

    def leg(given: Any) -> State:
        asking = HumanInTheLoopMiddleware({"delegate": True})
        return agent_of(model, [delegate], saver, limits(max_model_calls=6), asking).invoke(given, THREAD)

    model = forever("delegate")
    state = leg(approvals(leg(ASKED)))
    assert model.requests + child_model.requests == 6
    assert state["messages"][-1].text == FINAL


# -- runs and threads ------------------------------------------------------------------------------


def test_a_new_turn_of_the_user_begins_a_new_run() -> None:
    """Its counters start again, and the ending of the run before is gone from the state."""
    model, saver = forever("look"), InMemorySaver()
    agent = agent_of(model, [Looker().tool], saver, limits(max_model_calls=3))
    first, second = agent.invoke(ASKED, THREAD), agent.invoke(AGAIN, THREAD)
    assert model.requests == 6
    assert first["endstop"]["spent"]["model_calls"] == second["endstop"]["spent"]["model_calls"] == 3
    model.rule = lambda messages: says("In the door.")
    assert agent.invoke(AGAIN, THREAD)["endstop"] is None


def test_a_thread_limit_bounds_all_its_runs_together() -> None:
    """The next turn has what is left; when nothing is, the model is not asked, and another thread has its own."""
    model, saver = forever("look"), InMemorySaver()
    agent = agent_of(model, [Looker().tool], saver, limits(max_model_calls=3), thread_limits=limits(max_model_calls=5))
    agent.invoke(ASKED, THREAD)
    second, third = agent.invoke(AGAIN, THREAD), agent.invoke(AGAIN, THREAD)
    assert model.requests == 5
    assert second["endstop"]["spent"]["model_calls"] == 2
    assert (third["endstop"]["rung"], third["endstop"]["used"], third["endstop"]["allowed"]) == ("empty", 5, 5)
    assert agent.invoke(ASKED, OTHER)["endstop"]["spent"]["model_calls"] == 3


class Speaker(AgentMiddleware[Any, Any]):
    """Adds a message in the user's name to the result of every tool, as some tools do with pictures."""

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        return Command(update={"messages": [handler(request), HumanMessage("(a picture)")]})


@pytest.mark.parametrize("new_process", [False, True])
def test_words_in_the_users_name_begin_no_run(new_process: bool) -> None:
    """The run that they came in goes on, also where a leg begins with the tool that brings them."""
    model, look, saver = forever("look"), Looker(), InMemorySaver()

    def agent() -> Any:
        more = [Speaker(), HumanInTheLoopMiddleware({"look": True})]
        return agent_of(model, [look.tool], saver, limits(max_model_calls=4), *more)

    bound = agent()
    state = bound.invoke(ASKED, THREAD)
    while "__interrupt__" in state:
        bound = agent() if new_process else bound
        state = bound.invoke(approvals(state), THREAD)
    assert sum(message.text == "(a picture)" for message in state["messages"]) == 3
    assert model.requests == 4


def test_calls_that_an_earlier_run_left_open_are_answered() -> None:
    """The model is never sent a history that a provider refuses, and the stored one is left as it is."""
    model, saver = forever("look"), InMemorySaver()
    asking = HumanInTheLoopMiddleware({"look": True})
    agent = agent_of(model, [Looker().tool], saver, limits(max_model_calls=3), asking)
    assert "__interrupt__" in agent.invoke(ASKED, THREAD)
    model.rule = lambda messages: says("Done.")
    state = agent.invoke(AGAIN, THREAD)
    assert state["messages"][-1].text == "Done."
    assert all(unanswered(sent) == [] for sent in model.sent)
    assert model.sent[-1][2].text == "Not run: the conversation was broken off before"


def test_what_a_request_spent_that_failed_counts_where_the_process_lives() -> None:
    """The state of a node that fails is lost; a leg that goes on from the same place knows of it."""
    saver, failures = InMemorySaver(), [RuntimeError("overloaded"), None, None, RuntimeError("overloaded"), None]

    def rule(messages: Any) -> AIMessage:
        failure = failures.pop(0) if failures else None
        if failure is not None:
            raise failure
        return asks("look")

    model = FakeChat(rule=rule)
    agent = agent_of(model, [Looker().tool], saver, limits(max_model_calls=5))
    with pytest.raises(RuntimeError):
        agent.invoke(ASKED, THREAD)
    with pytest.raises(RuntimeError):
        agent.invoke(None, THREAD)
    state = agent.invoke(None, THREAD)
    assert model.requests == 5
    assert state["endstop"]["spent"]["model_calls"] == 5


def test_another_process_goes_on_where_this_one_left_off() -> None:
    """And this one goes on where that one did, although it remembers the run itself."""
    model, saver = forever("look"), InMemorySaver()
    asking = HumanInTheLoopMiddleware({"look": True})
    here, there = (agent_of(model, [Looker().tool], saver, limits(max_model_calls=6), asking) for _ in range(2))
    state = here.invoke(ASKED, THREAD)
    for agent in (there, here, there, there, here):
        state = agent.invoke(approvals(state), THREAD)
    assert model.requests == 6
    assert state["endstop"]["used"] == 6


def test_loops_are_seen_across_pauses() -> None:
    """What the detector remembers is in the state as well."""
    model, saver = forever(("look", {"place": "mat"})), InMemorySaver()
    state: Any = None
    for leg in range(7):
        asking = HumanInTheLoopMiddleware({"look": True})
        agent = agent_of(model, [Looker().tool], saver, limits(max_model_calls=20), asking)
        state = agent.invoke(ASKED if leg == 0 else approvals(state), THREAD)
    assert state["endstop"]["limit"] == "loop"
    assert model.requests == 7


def test_time_is_counted_while_it_works_and_not_while_it_waits() -> None:
    """A person may take as long as it takes."""
    model, saver = forever("look"), InMemorySaver()
    agent = agent_of(
        model, [Looker(seconds=0.05).tool], saver, limits(max_seconds=60), HumanInTheLoopMiddleware({"look": True})
    )
    state = agent.invoke(ASKED, THREAD)
    asyncio.run(asyncio.sleep(0.3))
    agent.invoke(approvals(state), THREAD)
    assert 0.04 < agent.get_state(THREAD).values["endstop_run"]["record"]["spent"]["seconds"] < 0.3


def test_no_more_runs_are_remembered_than_the_newest() -> None:
    """Any other goes on from its state alone."""
    bounds = Bounds(limits=limits(), thread_limits=None, loops=None, prices=None)
    live, records = LiveRuns(most=2), [RunRecord(run_id=name, turn=name) for name in "abc"]
    runs = [live.make("here", record, bounds, None, tools=True) for record in records]
    assert [live.find("here", record.head, None) for record in records] == [None, *runs[1:]]
    assert live.make("here", records[2], bounds, None, tools=True) is runs[2]


# -- checkpointers ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    """Where Postgres is."""
    with postgres() as running:
        yield running


@pytest.fixture(params=KINDS)
def savers(request: pytest.FixtureRequest, tmp_path: Path) -> Savers:
    """Each kind of checkpointer."""
    dsn = request.getfixturevalue("dsn") if request.param == "postgres" else None
    return Savers(request.param, tmp_path, dsn)


def test_every_checkpointer_keeps_the_counters(savers: Savers) -> None:
    """With a new connection and a new agent for each of the legs between which a person approves."""
    model, look = forever("look"), Looker()
    state: Any = None
    for leg in range(13):
        with savers.open() as saver:
            asking = HumanInTheLoopMiddleware({"look": True})
            agent = agent_of(model, [look.tool], saver, limits(max_model_calls=13), asking)
            state = agent.invoke(ASKED if leg == 0 else approvals(state), THREAD)
    assert (model.requests, look.started, state["endstop"]["limit"]) == (13, 12, "max_model_calls")


async def test_every_checkpointer_keeps_the_counters_of_async_code(savers: Savers) -> None:
    """And so does each from async code."""
    model, look = forever("look"), Looker()
    state: Any = None
    for leg in range(4):
        async with savers.aopen() as saver:
            asking = HumanInTheLoopMiddleware({"look": True})
            agent = agent_of(model, [look.tool], saver, limits(max_model_calls=4), asking)
            state = await agent.ainvoke(ASKED if leg == 0 else approvals(state), THREAD)
    assert (model.requests, look.started, state["endstop"]["limit"]) == (4, 3, "max_model_calls")


# -- streams ---------------------------------------------------------------------------------------


def test_a_stream_ends_with_the_ending() -> None:
    """`updates` and `values` bring it with the last message; the last `messages` chunk is the answer."""
    agent = agent_of(forever("look"), [Looker().tool], InMemorySaver(), limits(max_model_calls=2))
    chunks = list(agent.stream(ASKED, THREAD, stream_mode=["updates", "values", "messages"]))
    updates = [chunk for mode, chunk in chunks if mode == "updates"]
    values = [chunk for mode, chunk in chunks if mode == "values"]
    said = [chunk for mode, chunk in chunks if mode == "messages"]
    assert [next(iter(update)) for update in updates] == ["model", "tools", "model"]
    assert updates[-1]["model"]["endstop"]["limit"] == values[-1]["endstop"]["limit"] == "max_model_calls"
    assert said[-1][0].text == FINAL


def test_no_super_step_is_added() -> None:
    """A run of r rounds takes the super-steps that it takes without the middleware."""
    model = forever("look")
    agent = agent_of(model, [Looker().tool], None, limits(max_model_calls=5))
    assert len(list(agent.stream(ASKED, {"recursion_limit": 10}))) == 9


def test_events_are_streamed() -> None:
    """Through the entry point that hands on a limit of 25 super-steps."""
    agent = agent_of(forever("look"), [Looker().tool], InMemorySaver(), limits(max_model_calls=3))

    async def events() -> list[Any]:
        return [event async for event in agent.astream_events(ASKED, THREAD, version="v2")]

    ends = [event for event in asyncio.run(events()) if event["event"] == "on_chain_end"]
    assert ends[-1]["data"]["output"]["endstop"]["limit"] == "max_model_calls"


# -- the channel -----------------------------------------------------------------------------------

counts = st.integers(0, 3)
additions = st.builds(
    lambda model_calls, looks, asks_, seconds, hit: Addition(
        run_id="r",
        spent=Spent(
            model_calls=model_calls,
            tool_calls=looks + asks_,
            tools={name: count for name, count in (("look", looks), ("ask", asks_)) if count},
            seconds=seconds,
        ),
        hit=LimitHit(limit="max_tool_calls", used=5, allowed=5) if hit else None,
    ),
    counts,
    counts,
    counts,
    st.floats(0, 9),
    st.booleans(),
)


@given(st.lists(additions, max_size=5), st.randoms())
def test_what_parallel_calls_add_is_added_in_any_order(parts: list[Addition], random: Any) -> None:
    """None is lost and none counts twice, whichever comes first."""
    shuffled = parts.copy()
    random.shuffle(shuffled)
    records: list[RunRecord] = []
    for order in (parts, shuffled):
        data: Any = RunRecord(run_id="r", turn="r", spent=Spent(model_calls=1)).to_data()
        for part in order:
            data = joined(data, part.to_data())
        record = RunRecord.from_data(data)
        assert record is not None
        records.append(record)
    assert records[0] == records[1]
    assert records[0].spent.model_calls == 1 + sum(part.spent.model_calls for part in parts)
    assert records[0].spent.tool_calls == sum(part.spent.tool_calls for part in parts)
    assert sum(records[0].spent.tools.values()) == records[0].spent.tool_calls
    assert (records[0].steps, records[0].hit is not None) == (len(parts), any(part.hit for part in parts))


def test_a_whole_record_replaces_the_one_before() -> None:
    """It is written by the model node, which nothing runs beside."""
    record = RunRecord(run_id="r", turn="r", tip="1").to_data()
    assert joined({}, record) == record
    assert joined(record, RunRecord(run_id="s", turn="s").to_data()) == RunRecord(run_id="s", turn="s").to_data()


def test_what_is_added_to_another_run_is_dropped() -> None:
    """A call that ends after its run was replaced has nothing to add to."""
    late = Addition(run_id="old", spent=Spent(tool_calls=1)).to_data()
    record = RunRecord(run_id="new", turn="new")
    assert RunRecord.from_data(joined(record.to_data(), late)) == record
    assert joined({}, late) == {}
    assert RunRecord.from_data({}) is None


def test_time_is_not_added() -> None:
    """What runs at once takes it once."""
    both = added(Spent(seconds=3.0), Spent(seconds=2.0))
    assert both.seconds == 3.0
