"""A thread is what the graph would have left, whichever body served its turns, however they ended."""

from __future__ import annotations

import asyncio
import operator
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, NotRequired

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import (
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    after_agent,
    after_model,
    before_agent,
    before_model,
)
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, RemoveMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.channels import UntrackedValue
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.prebuilt import create_react_agent
from langgraph.types import Command, interrupt

from tests.langgraph.savers import KINDS, Savers, postgres

from .agents_for_tests import (
    OFF,
    ON,
    TWO_ROUNDS,
    Pair,
    Shop,
    ainvoke,
    asked,
    asks,
    in_turn,
    invoke,
    looking,
    on_thread,
    pair,
    plain,
    says,
    seen,
    stream,
)


class Kept(AgentState[Any]):
    """A state with a sum, a plain key, and one that is never saved."""

    total: NotRequired[Annotated[int, operator.add]]
    note: NotRequired[str]
    passing: NotRequired[Annotated[str, UntrackedValue]]


@before_model(state_schema=Kept)
def count_up(state: Any, runtime: Any) -> dict[str, Any]:
    """Write to every kind of key."""
    return {"total": 1, "note": f"after {state.get('total', 0)}", "passing": state.get("passing", "") + "x"}


@after_model(state_schema=Kept)
def count_ten(state: Any, runtime: Any) -> dict[str, Any]:
    """Add ten."""
    return {"total": 10}


@before_agent
def forget_first(state: Any, runtime: Any) -> dict[str, Any] | None:
    """Forget the oldest message of a long thread."""
    messages = state["messages"]
    return {"messages": [RemoveMessage(messages[0].id)]} if len(messages) > 5 else None


@after_agent
def keep_two(state: Any, runtime: Any) -> dict[str, Any]:
    """Keep the newest two messages."""
    return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *state["messages"][-2:]]}


@after_model(can_jump_to=["end"])
def stop_early(state: Any, runtime: Any) -> dict[str, Any] | None:
    """End the turn at the second answer."""
    return {"jump_to": "end"} if sum(isinstance(one, AIMessage) for one in state["messages"]) % 2 == 0 else None


@tool
def add_hundred(place: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Add a hundred."""
    return Command(update={"total": 100, "messages": [ToolMessage("added", tool_call_id=tool_call_id)]})


@tool
def finish(place: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Finish."""
    return Command(goto="__end__", update={"messages": [ToolMessage("finished", tool_call_id=tool_call_id)]})


@tool
def broken(place: str) -> str:
    """Fail."""
    raise OSError(f"no way into the {place}")


@tool
def ask_person(place: str) -> str:
    """Ask a person."""
    return f"said {interrupt({'place': place})}"


def at(name: str, place: str = "hall") -> tuple[str, dict[str, Any]]:
    """A call of a tool."""
    return name, {"place": place}


def agent(*answers: AIMessage, saver: Any = None, **options: Any) -> Any:
    """An agent with all these tools, and a checkpointer."""
    tools = [Shop().look, add_hundred, finish, broken, ask_person]
    return create_agent(in_turn(*answers), tools, checkpointer=saver or InMemorySaver(), **options)


def summing(saver: Any = None) -> Any:
    """An agent that writes to every kind of key, in hooks and in tools."""
    return agent(
        asks(at("look"), at("add_hundred")),
        asks(at("add_hundred")),
        says(),
        middleware=[count_up, count_ten],
        saver=saver,
    )


LOOK_FOR_EVER = (asks(at("look")),)

AGENTS: dict[str, Callable[[], Any]] = {
    "plain": lambda: looking(checkpointer=InMemorySaver()),
    "sums": summing,
    "forgets one": lambda: agent(*TWO_ROUNDS, middleware=[count_up, forget_first]),
    "forgets all": lambda: agent(*TWO_ROUNDS, middleware=[count_up, keep_two]),
    "jumps": lambda: agent(*LOOK_FOR_EVER, middleware=[stop_early]),
    "counts calls": lambda: agent(*LOOK_FOR_EVER, middleware=[ModelCallLimitMiddleware(run_limit=2, thread_limit=3)]),
    "structured": lambda: agent(
        asks(at("look")), asks(("Found", {"text": "key"})), response_format=ToolStrategy(FOUND)
    ),
    "goes to the end": lambda: agent(asks(at("finish")), says()),
    "the older agent": lambda: create_react_agent(in_turn(*TWO_ROUNDS), [Shop().look], checkpointer=InMemorySaver()),
    "the older agent, hooks": lambda: create_react_agent(
        in_turn(*TWO_ROUNDS),
        [Shop().look],
        pre_model_hook=lambda state: {"llm_input_messages": state["messages"]},
        post_model_hook=lambda state: {},
        checkpointer=InMemorySaver(),
    ),
    "fails": lambda: agent(asks(at("look")), asks(at("broken")), says()),
}

FOUND: dict[str, Any] = {
    "title": "Found",
    "description": "What was found.",
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
}


def state_of(graph: Any, config: Any) -> str:
    """All that `get_state` says of a thread, but for when and under which id it was saved."""
    state = graph.get_state(config)
    tasks = [(task.name, task.error, task.interrupts, task.result) for task in state.tasks]
    return plain((state.values, state.next, tasks))


def assert_same_thread(both: Pair, config: Any) -> None:
    """The two threads hold the same."""
    assert state_of(both.moved, config) == state_of(both.legacy, config)


@pytest.mark.parametrize("limit", [1, 2, 3, 40])
@pytest.mark.parametrize("name", AGENTS)
def test_the_thread_is_the_same_at_every_limit(name: str, limit: int) -> None:
    """A turn that is cut leaves what the graph leaves, and the next turn goes on from there."""
    both = pair(AGENTS[name])
    config = on_thread(recursion_limit=limit)
    for number in range(2):
        given = asked(number=number)
        assert seen(invoke, both.moved, given, config) == seen(invoke, both.legacy, given, config)
        assert_same_thread(both, config)
    assert both.served == ["kernel"] * 2


class Walk:
    """An agent whose turns go now to one body and now to the other, beside one that was always legacy."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.both = pair(make)
        self.config = on_thread()

    def turn(self, number: int, *, on_kernel: bool, limit: int) -> None:
        """One turn of both."""
        config = {**self.config, "recursion_limit": limit}
        desk = self.both.moved.endstop_desk
        object.__setattr__(desk, "switches", ON if on_kernel else OFF)
        given = asked(number=number)
        assert seen(invoke, self.both.moved, given, config) == seen(invoke, self.both.legacy, given, config)
        assert_same_thread(self.both, self.config)


TURNS = st.lists(st.tuples(st.booleans(), st.sampled_from([2, 3, 5, 40])), min_size=2, max_size=5)


@settings(max_examples=15)
@given(name=st.sampled_from(sorted(AGENTS)), turns=TURNS)
def test_turns_go_either_way(name: str, turns: list[tuple[bool, int]]) -> None:
    """After each turn, whoever served it and wherever it was cut, the state is that of an agent that never moved."""
    walk = Walk(AGENTS[name])
    for number, (on_kernel, limit) in enumerate(turns):
        walk.turn(number, on_kernel=on_kernel, limit=limit)


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


def test_every_checkpointer_keeps_a_thread(savers: Savers) -> None:
    """Turns on either body, cut, failed and finished, on a thread that is in a database."""
    with savers.open() as saver:
        both = pair(lambda: summing(saver))
        for number, limit in enumerate([40, 3, 40]):
            for graph, thread in ((both.legacy, "legacy"), (both.moved, "moved")):
                seen(invoke, graph, asked(number=number), on_thread(thread, recursion_limit=limit))
            assert state_of(both.moved, on_thread("moved")) == state_of(both.legacy, on_thread("legacy"))
        assert both.served == ["kernel"] * 3


def test_every_checkpointer_keeps_a_thread_of_async_callers(savers: Savers) -> None:
    """The same for `ainvoke`."""

    async def turns() -> None:
        async with savers.aopen() as saver:
            both = pair(lambda: summing(saver))
            for number in range(2):
                for graph, thread in ((both.legacy, "legacy"), (both.moved, "moved")):
                    await graph.ainvoke(asked(number=number), on_thread(thread))
            states = [await both.legacy.aget_state(on_thread(thread)) for thread in ("legacy", "moved")]
            assert plain(states[1].values) == plain(states[0].values)
            assert both.served == ["kernel"] * 2

    asyncio.run(turns())


@pytest.mark.parametrize("way", [invoke, ainvoke], ids=lambda way: way.__name__)
@pytest.mark.parametrize("next_on_kernel", [True, False])
def test_an_error_beside_a_finished_tool_leaves_both(way: Callable[..., Any], *, next_on_kernel: bool) -> None:
    """The result of the one is kept and not lost with the other's error; a new question gives both up."""
    answers = (asks(at("look"), at("broken")), says())
    both = pair(lambda: agent(*answers))
    config = on_thread()
    assert seen(way, both.moved, asked(), config) == seen(way, both.legacy, asked(), config)
    state = both.moved.get_state(config)
    assert [(task.name, task.error) for task in state.tasks if task.error] == [
        ("tools", "OSError('no way into the hall')")
    ]
    object.__setattr__(both.moved.endstop_desk, "switches", ON if next_on_kernel else OFF)
    seen(way, both.moved, asked(number=1), config)
    left = [type(one).__name__ for one in both.moved.get_state(on_thread()).values["messages"]]
    assert left[:3] == ["HumanMessage", "AIMessage", "HumanMessage"]


def test_the_graph_goes_on_after_an_error_where_the_kernel_left_off() -> None:
    """`invoke(None)` runs what failed again, and not what had finished beside it."""
    shop = Shop()
    tries: list[str] = []

    def fails_once(place: str) -> str:
        """Fail the first time."""
        tries.append(place)
        if len(tries) == 1:
            raise OSError("closed")
        return "open"

    answers = (asks(at("look"), at("fails_once")), says())
    both = pair(lambda: create_agent(in_turn(*answers), [shop.look, fails_once], checkpointer=InMemorySaver()))
    with pytest.raises(OSError, match="closed"):
        asyncio.run(both.moved.ainvoke(asked(), on_thread()))
    result = asyncio.run(both.moved.ainvoke(None, on_thread()))
    assert [one.type for one in result["messages"]] == ["human", "ai", "tool", "tool", "ai"]
    assert both.refused == [(), ("input:none",)]
    assert tries == ["hall", "hall"]
    assert shop.ran == ["hall"]


def answers_to(graph: Any, config: Any) -> Any:
    """An answer to every open question, by its id."""
    return Command(resume={one.id: "yes" for one in graph.get_state(config).interrupts})


@pytest.mark.parametrize("way", [invoke, ainvoke], ids=lambda way: way.__name__)
def test_questions_are_answered_by_their_ids(way: Callable[..., Any]) -> None:
    """The kernel asks, the graph goes on with the answers, and what ran beside the questions does not run again."""
    shops = [Shop(), Shop()]
    waiting = iter(shops)
    answers = (asks(at("look"), at("ask_person", "attic"), at("ask_person", "cellar")), says())
    both = pair(lambda: create_agent(in_turn(*answers), [next(waiting).look, ask_person], checkpointer=InMemorySaver()))
    config = on_thread()
    asked_of = [way(graph, asked(), config)["__interrupt__"] for graph in (both.legacy, both.moved)]
    places = [sorted(one.value["place"] for one in questions) for questions in asked_of]
    assert places == [["attic", "cellar"]] * 2
    assert_same_thread(both, config)
    assert {one.id for one in asked_of[1]} == {one.id for one in both.moved.get_state(config).interrupts}
    results = [way(graph, answers_to(graph, config), config) for graph in (both.legacy, both.moved)]
    assert plain(results[1]) == plain(results[0])
    assert_same_thread(both, config)
    assert [shop.ran for shop in shops] == [["hall"], ["hall"]]
    assert both.refused == [(), ("input:command",)]


def test_twelve_approvals_run_each_call_once() -> None:
    """A turn with an approval in each round goes on and on, on the graph, after the kernel asked the first."""
    shops = [Shop(), Shop()]
    waiting = iter(shops)
    rounds = [asks(at("look", f"room {index}")) for index in range(12)]
    both = pair(
        lambda: create_agent(
            in_turn(*rounds, says()),
            [next(waiting).look],
            middleware=[HumanInTheLoopMiddleware({"look": True})],
            checkpointer=InMemorySaver(),
        )
    )
    approve = Command(resume={"decisions": [{"type": "approve"}]})
    for step in (asked(), *[approve] * 12):
        results = [graph.invoke(step, on_thread()) for graph in (both.legacy, both.moved)]
        assert plain(results[1]) == plain(results[0])
    assert shops[1].ran == shops[0].ran == [f"room {index}" for index in range(12)]
    assert both.served == ["kernel", *["legacy"] * 12]


def test_many_threads_at_once_stay_apart() -> None:
    """Turns of different threads, at the same time in threads of the process."""
    both = pair(summing)

    def turns(thread: str) -> str:
        for number in range(2):
            both.moved.invoke(asked(thread, number), on_thread(thread))
        return state_of(both.moved, on_thread(thread))

    with ThreadPoolExecutor(4) as pool:
        states = list(pool.map(turns, "abcd"))
    alike = {re.sub(r"content='[abcd]'|answer-\d+", "*", state) for state in states}
    assert len(alike) == 1
    assert [f"content={thread!r}" in state for thread, state in zip("abcd", states, strict=True)] == [True] * 4


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_a_stream_that_is_left_early_keeps_what_was_done(chunks: int) -> None:
    """Whoever leaves the stream finds in the thread the super-steps that it was told of."""
    both = pair(lambda: looking(checkpointer=InMemorySaver()))
    running = both.moved.stream(asked(), on_thread(), stream_mode="values")
    told = [next(running) for _ in range(chunks)]
    running.close()
    assert plain(both.moved.get_state(on_thread()).values) == plain(told[-1])
    (record,) = both.ledger.records()
    assert (record.served_by, record.cancelled, record.error) == ("kernel", True, None)


def test_a_thread_told_twice_is_one_update() -> None:
    """A sum that hooks and tools add to is saved as the stream told it last: nothing is added twice."""
    both = pair(summing)
    last = seen(stream, both.moved, asked(), on_thread(), stream_mode="values")
    assert f"'total': {both.moved.get_state(on_thread()).values['total']}" in last
    assert both.moved.get_state(on_thread()).values["total"] == 3 * 11 + 200
