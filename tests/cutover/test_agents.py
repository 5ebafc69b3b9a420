"""The stand-ins for LangChain's and LangGraph's agents: the same signatures, the same class, and the same behaviour."""

from __future__ import annotations

import asyncio
import copy
import inspect
from typing import Any

import langchain.agents
import langgraph.prebuilt
import pytest
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.store.memory import InMemoryStore

from endstop import ConfigError
from endstop.cutover import MemoryTurnLedger, create_agent, create_react_agent, cut_over
from endstop.cutover.ledger import use_ledger

from .agents_for_tests import (
    MODES,
    OFF,
    ON,
    TWO_ROUNDS,
    WAYS,
    Shop,
    asked,
    assert_same_turn,
    in_turn,
    invoke,
    looking,
    on_thread,
    pair,
    plain,
    seen,
)


def test_the_factories_have_the_originals_signatures() -> None:
    """A program that calls them needs no change but the import."""
    assert inspect.signature(create_agent) == inspect.signature(langchain.agents.create_agent)
    assert inspect.signature(create_react_agent) == inspect.signature(langgraph.prebuilt.create_react_agent)
    assert create_agent.__doc__ == langchain.agents.create_agent.__doc__


@pytest.mark.parametrize("make", [create_agent, create_react_agent])
def test_an_agent_is_a_graph_of_the_same_class(make: Any) -> None:
    """Checks of its class hold, and its parts can be looked at."""
    agent = make(in_turn(*TWO_ROUNDS), [Shop().look], name="Finder")
    assert isinstance(agent, CompiledStateGraph)
    assert type(agent).__name__ == "CompiledStateGraph"
    assert type(agent).__doc__ == CompiledStateGraph.__doc__
    assert agent.get_name() == "Finder"
    assert "tools" in agent.get_graph().nodes
    assert "messages" in agent.get_input_jsonschema()["properties"]
    assert [*agent.get_subgraphs()] == []


def test_with_every_switch_off_chunks_are_the_originals_own() -> None:
    """What the graph yields is passed on as it is, object by object."""
    ledger = MemoryTurnLedger()
    seen_below: list[Any] = []

    class Told(CompiledStateGraph[Any, Any, Any, Any]):
        def stream(self, *given: Any, **options: Any) -> Any:
            assert not any(name.startswith("endstop") for name in options)
            for chunk in super().stream(*given, **options):
                seen_below.append(chunk)
                yield chunk

    graph = looking()
    graph.__class__ = Told
    chunks = list(cut_over(graph, switches=OFF, ledger=ledger).stream(asked()))
    assert [*map(id, chunks)] == [*map(id, seen_below)]
    assert [(record.served_by, record.route) for record in ledger.records()] == [("legacy", "legacy")]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_with_every_switch_off_turns_are_as_before(way: Any) -> None:
    """Every way to run it, every limit that cuts it."""
    for limit in (1, 2, 3, 9):
        both = pair(looking, switches=OFF)
        config = {"recursion_limit": limit}
        assert seen(way, both.moved, asked(), config) == seen(way, both.legacy, asked(), config)
        assert both.served == ["legacy"]


def test_batches_are_served_one_turn_each() -> None:
    """`batch` and `abatch` run turns beside each other, each under its own record."""
    both = pair(looking)
    inputs = [asked(number=number) for number in range(3)]
    texts = [[one["messages"][-1].text for one in graph.batch(inputs)] for graph in (both.legacy, both.moved)]
    assert texts[0] == texts[1] == ["done"] * 3
    asyncio.run(both.moved.abatch(inputs))
    assert both.served == ["kernel"] * 6


def test_events_and_typed_events_are_the_graphs() -> None:
    """`astream_events` and, where there is one, the third form of events tell what they told."""
    both = pair(looking)

    async def events(graph: Any) -> list[tuple[str, str]]:
        return [(event["event"], event["name"]) async for event in graph.astream_events(asked(), version="v2")]

    assert asyncio.run(events(both.moved)) == asyncio.run(events(both.legacy))
    assert both.refused == [("astream_events:v2",)]


@pytest.mark.filterwarnings("ignore:The v3 streaming protocol")
def test_the_third_form_of_events_is_the_graphs() -> None:
    """`stream_events(version="v3")` is refused by what it asks of the stream."""
    if not hasattr(Pregel, "stream_events") or "v3" not in inspect.getsource(Pregel.stream_events):
        pytest.skip("this LangGraph has no stream_events in a third form")
    both = pair(looking)
    told = [
        [event["method"] for event in graph.stream_events(asked(), version="v3")] for graph in (both.legacy, both.moved)
    ]
    assert told[0] == told[1]
    assert both.served == ["legacy"]


def test_an_agent_in_a_chain_is_served() -> None:
    """Under LCEL it is a runnable like others."""
    both = pair(looking)
    results = [(RunnableLambda(asked) | graph).invoke("Where?") for graph in (both.legacy, both.moved)]
    assert plain(results[0]) == plain(results[1])
    assert both.served == ["kernel"]


def test_an_agent_can_be_a_node() -> None:
    """Inside another graph it is a graph below, on the graph."""
    both = pair(looking)

    def outer(inner: Any) -> Any:
        builder: Any = StateGraph(MessagesState)
        builder.add_node("inner", inner)
        builder.add_edge(START, "inner")
        return builder.compile()

    chunks = [
        plain([*outer(graph).stream(asked(), stream_mode=MODES, subgraphs=True)]) for graph in (both.legacy, both.moved)
    ]
    assert chunks[0] == chunks[1]
    assert both.refused == [("inside_a_graph",)]


def test_a_copy_is_cut_over_in_the_same_way() -> None:
    """`with_config`, `copy` and Python's own copy keep the switches and the ledger."""
    both = pair(looking)
    limited = both.moved.with_config(recursion_limit=2)
    assert seen(invoke, limited, asked()) == seen(invoke, both.legacy.with_config(recursion_limit=2), asked())
    both.moved.copy({"name": "Other"}).invoke(asked())
    copy.copy(both.moved).invoke(asked())
    assert both.served == ["kernel"] * 3
    assert [record.agent for record in both.ledger.records()] == ["LangGraph", "Other", "LangGraph"]
    assert isinstance(limited, CompiledStateGraph)


def test_attributes_that_are_set_later_are_honoured_by_both_bodies() -> None:
    """A checkpointer or a store that an agent is given when it is there already."""
    both = pair(looking)
    for graph in (both.legacy, both.moved):
        graph.checkpointer = InMemorySaver()
        graph.store = InMemoryStore()
    assert_same_turn(both, invoke, asked(), on_thread())
    states = [plain(graph.get_state(on_thread()).values) for graph in (both.legacy, both.moved)]
    assert states[0] == states[1]
    object.__setattr__(both.moved.endstop_desk, "switches", OFF)
    assert len(both.moved.invoke(asked(number=1), on_thread())["messages"]) == 8


def test_what_is_no_agent_is_refused() -> None:
    """Only a compiled graph has turns, and one decision for each of them is enough."""
    with pytest.raises(ConfigError, match="pass a compiled agent"):
        cut_over("an agent")
    with pytest.raises(ConfigError, match="cut over already"):
        cut_over(cut_over(looking()))


def test_a_factory_makes_agents_that_are_cut_over() -> None:
    """The agent is decided for in each turn, by the switches of the process: off, until they are set."""
    ledger = MemoryTurnLedger()
    before = use_ledger(ledger)
    try:
        create_agent(in_turn(*TWO_ROUNDS), [Shop().look]).invoke(asked())
    finally:
        use_ledger(before)
    assert [(record.served_by, record.switch) for record in ledger.records()] == [("legacy", "off")]


def test_the_agents_of_the_process_can_be_on() -> None:
    """An agent that was made before its switch was set goes by it from then on."""
    both = pair(looking, switches=OFF)
    both.moved.invoke(asked())
    cut_over(both.legacy, switches=ON, ledger=both.ledger).invoke(asked())
    assert both.served == ["legacy", "kernel"]
