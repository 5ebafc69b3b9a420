"""Each refusal: a turn that the kernel does not serve runs on the graph as it did, once, and the ledger says why."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from langchain.agents import AgentState, create_agent
from langgraph.cache.memory import InMemoryCache
from langgraph.channels import AnyValue
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import create_react_agent
from langgraph.prebuilt.chat_agent_executor import AgentStatePydantic
from langgraph.types import CachePolicy, Command, RetryPolicy, interrupt

from endstop.cutover import AgentConfig, Call, Eligible, check
from endstop.cutover import create_agent as moved_agent
from endstop.cutover.envelope import CODES, SERVED
from endstop.cutover.switches import Switches

from .agents_for_tests import (
    OFF,
    TWO_ROUNDS,
    Pair,
    RuleChat,
    Shop,
    asked,
    asks,
    in_turn,
    on_thread,
    pair,
    plain,
    says,
    seen,
    stream,
)

PAGE = Path(__file__).parent.parent.parent / "docs" / "envelope.md"


def agent(chat: RuleChat, **options: Any) -> Any:
    """An agent that looks in places."""
    return create_agent(chat, [Shop().look], **options)


def threaded(chat: RuleChat, **options: Any) -> Any:
    """The same with a checkpointer."""
    return agent(chat, checkpointer=InMemorySaver(), **options)


def ask_person(place: str) -> str:
    """Ask a person about a place."""
    return str(interrupt({"place": place}))


def asking(chat: RuleChat) -> Any:
    """An agent whose tool asks a person."""
    return create_agent(chat, [ask_person], checkpointer=InMemorySaver())


def by_hand(chat: RuleChat, *, name: str = "model", more: Any = None, cache: Any = None, **policies: Any) -> Any:
    """A graph made by hand, whose one node asks a model."""
    builder: Any = StateGraph(MessagesState)
    builder.add_node(name, lambda state: {"messages": [chat.invoke(state["messages"])]}, **policies)
    builder.add_edge(START, name)
    if more is not None:
        builder.add_node("below", more)
        builder.add_edge(name, "below")
    return builder.compile(cache=cache)


def below() -> Any:
    """A graph to be a node of another."""
    return by_hand(in_turn(says("from below")))


class Noted(AgentState[Any]):
    """A state with a key of a rare kind."""

    note: Annotated[str, AnyValue]


class Totalled(AgentState[Any]):
    """A state with a key that other agents do not have."""

    total: int


def with_attribute(name: str, value: object) -> Callable[[RuleChat], Any]:
    """An agent with an attribute that was set after it was made."""

    def made(chat: RuleChat) -> Any:
        graph = agent(chat)
        setattr(graph, name, value)
        return graph

    return made


def called(config: Any = None, given: Any = None, **options: Any) -> Callable[[Any], str]:
    """A call by `stream`."""
    return lambda graph: seen(stream, graph, asked() if given is None else given, config, **options)


def nothing_given(graph: Any) -> str:
    """A call without an input."""
    return seen(stream, graph, None, on_thread())


def events(graph: Any) -> str:
    """The events of a run."""

    async def told() -> list[Any]:
        return [event["event"] async for event in graph.astream_events(asked(), version="v2")]

    return plain(asyncio.run(told()))


def log(graph: Any) -> str:
    """The log of a run."""

    async def told() -> list[Any]:
        return [patch async for patch in graph.astream_log(asked(), include_names=["model"])]

    return str(len(asyncio.run(told())))


def as_node(graph: Any) -> str:
    """A run of a graph of which it is a node."""
    outer: Any = StateGraph(MessagesState)
    outer.add_node("inner", graph)
    outer.add_edge(START, "inner")
    return plain(outer.compile().invoke(asked()))


def in_a_node(graph: Any) -> str:
    """A run of a graph of which a node calls it."""
    outer: Any = StateGraph(MessagesState)
    outer.add_node("inner", lambda state: {"messages": graph.invoke(state)["messages"][-1:]})
    outer.add_edge(START, "inner")
    return plain(outer.compile().invoke(asked()))


def traced(chat: RuleChat, process_inputs: Callable[[Any], Any]) -> Any:
    """An agent whose model node has a trace policy; not every LangGraph lets one be given."""
    graph = agent(chat)
    spec = graph.builder.nodes["model"]
    policy = SimpleNamespace(process_inputs=process_inputs, process_outputs=None)
    kept = {field.name: getattr(spec, field.name) for field in fields(spec)}
    graph.builder.nodes["model"] = SimpleNamespace(**kept | {"trace_policy": policy})
    return graph


AGENTS: dict[str, Callable[[RuleChat], Any]] = {
    "graph_shape": lambda chat: by_hand(chat, name="llm"),
    "subgraph_node": lambda chat: by_hand(chat, more=below()),
    "custom_state_schema": lambda chat: agent(chat, state_schema=Noted),
    "custom_state_schema, of objects": lambda chat: create_react_agent(
        chat, [Shop().look], state_schema=AgentStatePydantic
    ),
    "interrupt_before": lambda chat: agent(chat, interrupt_before=["tools"]),
    "interrupt_after": lambda chat: agent(chat, interrupt_after=["tools"]),
    "node_cache": lambda chat: by_hand(chat, cache=InMemoryCache(), cache_policy=CachePolicy()),
    "node_retry": lambda chat: by_hand(chat, retry_policy=RetryPolicy()),
    "node_retry, of the graph": with_attribute("retry_policy", (RetryPolicy(),)),
    "step_timeout": with_attribute("step_timeout", 20),
    "debug": lambda chat: agent(chat, debug=True),
    "trace_policy": lambda chat: traced(chat, lambda inputs: "hidden"),
    "trace_policy, that fails": lambda chat: traced(chat, lambda inputs: inputs["messages"]),
}
"""Agents that the kernel serves in no turn, by their code."""

CALLS: dict[str, tuple[Callable[[RuleChat], Any], Callable[[Any], str]]] = {
    "input:none": (threaded, nothing_given),
    "input:command": (threaded, called(on_thread(), Command(update=asked()))),
    "input:str": (agent, called(given="Where is the key?")),
    "astream_events:v2": (agent, events),
    "astream_events:log": (agent, log),
    "inside_a_graph": (agent, as_node),
    "inside_a_graph, called in a node": (agent, in_a_node),
    "recursion_limit": (agent, called({"recursion_limit": 0})),
    "stream_mode:debug": (agent, called(stream_mode="debug")),
    "stream_mode:tasks": (agent, called(stream_mode=["values", "tasks"])),
    "stream_mode:checkpoints": (threaded, called(on_thread(), stream_mode="checkpoints")),
    "stream_mode:tuple": (agent, called(stream_mode=("values", "updates"))),
    "output_keys": (agent, called(output_keys=["messages", "nope"])),
    "static_breakpoint": (threaded, called(on_thread(), interrupt_before=["tools"])),
    "static_breakpoint, after": (threaded, called(on_thread(), interrupt_after=["tools"])),
    "durability:sync": (threaded, called(on_thread(), durability="sync")),
    "durability:exit": (agent, called(durability="exit")),
    "option:print_mode": (agent, called(print_mode="values")),
    "option:version": (agent, called(version="v9")),
    "inherited_checkpointer": (lambda chat: agent(chat, checkpointer=True), called()),
    "thread_id": (threaded, called()),
    "checkpoint_id": (threaded, called({"configurable": {"thread_id": "1", "checkpoint_id": "0"}})),
}
"""Calls that the kernel does not serve, by their code."""


def outcome(make: Callable[[RuleChat], Any], call: Callable[[Any], str]) -> tuple[str, Pair]:
    """What a caller sees of a call that the kernel refuses, compared with the original's, model calls and all."""
    chats = [in_turn(*TWO_ROUNDS), in_turn(*TWO_ROUNDS)]
    waiting = iter(chats)
    both = pair(lambda: make(next(waiting)))
    expected = call(both.legacy)
    # Chunks of modes for debugging carry times.
    assert re.sub(r"\d{4}-\d\d-\d\dT[\d:.+]+", "*", call(both.moved)) == re.sub(
        r"\d{4}-\d\d-\d\dT[\d:.+]+", "*", expected
    )
    assert len(chats[1].sent) == len(chats[0].sent)
    return expected, both


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_that_the_kernel_does_not_serve_runs_as_it_did(name: str) -> None:
    """What an agent is made of can keep all its turns on the graph."""
    _, both = outcome(AGENTS[name], called())
    assert both.served == ["legacy"]
    assert both.refused == [(name.partition(",")[0],)]


@pytest.mark.filterwarnings("ignore:astream_log is deprecated")
@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_the_kernel_does_not_serve_runs_as_it_did(name: str) -> None:
    """What a caller asks for can keep one turn on the graph."""
    make, call = CALLS[name]
    _, both = outcome(make, call)
    assert set(both.served) == {"legacy"}
    assert both.refused[0] == (name.partition(",")[0],)


def test_a_thread_that_waits_for_a_person_goes_on_as_it_did() -> None:
    """A new question to a thread with an open one is the graph's to handle."""
    chats = [in_turn(asks(("ask_person", {"place": "hall"})), says()) for _ in range(2)]
    waiting = iter(chats)
    both = pair(lambda: asking(next(waiting)))
    for number in range(2):
        call = called(on_thread(), asked(number=number), stream_mode=["values", "updates"])
        assert call(both.moved) == call(both.legacy)
    assert both.served == ["kernel", "legacy"]
    assert both.refused == [(), ("thread_has_pending_interrupt",)]
    assert len(chats[1].sent) == len(chats[0].sent)


def test_a_thread_of_another_agent_goes_on_as_it_did() -> None:
    """A thread may hold keys that only the agent that wrote it has."""
    savers = iter([InMemorySaver(), InMemorySaver()])

    def make() -> Any:
        saver = next(savers)
        writer = agent(in_turn(*TWO_ROUNDS), state_schema=Totalled, checkpointer=saver)
        writer.invoke({**asked(), "total": 3}, on_thread())
        return agent(in_turn(*TWO_ROUNDS), checkpointer=saver)

    both = pair(make)
    call = called(on_thread(), asked(number=1))
    assert call(both.moved) == call(both.legacy)
    assert both.refused == [("thread_has_foreign_channels",)]


PRESETS: dict[str, AgentConfig] = {
    "ask_user_enabled": AgentConfig(ask_user_enabled=True),
    "experimental_interrupt": AgentConfig(experimental_interrupt=True),
    "procedural_enforce_preconditions": AgentConfig(procedural_enforce_preconditions=True),
    "graph_preset": AgentConfig(graph_preset="plan_execute"),
}


@pytest.mark.parametrize("code", PRESETS)
def test_a_preset_with_other_wiring_is_refused(code: str) -> None:
    """Each switch of a preset agent is refused by its own name."""
    refusals = check(PRESETS[code])
    assert not isinstance(refusals, Eligible)
    assert [refusal.code for refusal in refusals] == [code]


def test_a_plain_preset_is_eligible() -> None:
    """The kernel serves the plain loop."""
    assert check(AgentConfig()) == Eligible()


def test_check_says_of_an_agent_and_a_call_what_would_be_refused() -> None:
    """What the agent is made of comes first, then what the call asks for; without either it is eligible."""
    call = Call(input=asked(), config={"recursion_limit": 9}, modes=("debug",), options={"durability": "sync"})
    assert check(agent(in_turn(says()))) == Eligible()
    refusals = check(agent(in_turn(says()), debug=True), call)
    assert not isinstance(refusals, Eligible)
    assert [refusal.code for refusal in refusals] == ["debug", "stream_mode:debug", "durability:sync"]
    assert all(refusal.why and refusal.remedy for refusal in refusals)


def test_what_an_agent_is_made_of_is_looked_at_in_each_turn() -> None:
    """An attribute that is set later counts from then on."""
    both = pair(lambda: agent(in_turn(*TWO_ROUNDS)))
    for timeout in (None, 20, None):
        both.moved.step_timeout = both.legacy.step_timeout = timeout
        assert called()(both.moved) == called()(both.legacy)
    assert both.served == ["kernel", "legacy", "kernel"]


def test_every_code_has_a_test() -> None:
    """The codes are a closed set, and no code stands there that nothing produces."""
    produced = {name.partition(",")[0] for name in (*AGENTS, *CALLS, *PRESETS)}
    families = {name.partition("<")[0]: name for name in CODES if "<" in name}
    named = {next((name for stem, name in families.items() if code.startswith(stem)), code) for code in produced}
    assert named | {"thread_has_pending_interrupt", "thread_has_foreign_channels"} == set(CODES)


def table(*rows: tuple[str, ...]) -> str:
    """A Markdown table; the first row is its head."""
    head, *body = rows
    lines = [head, tuple("---" for _ in head), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def test_the_page_has_every_code() -> None:
    """docs/envelope.md lists the codes that the module has, in its words."""
    text = PAGE.read_text(encoding="utf-8")
    told = {code: (re.sub(r"\{\w+(!r)?\}", "…", why), remedy) for code, (why, remedy) in CODES.items()}
    refused = table(("code", "why", "remedy"), *((f"`{code}`", *words) for code, words in told.items()))
    assert refused in text, f"the page needs this table:\n{refused}"
    served = table(("what", "how it is served"), *((f"`{name}`", how) for name, how in SERVED.items()))
    assert served in text, f"the page needs this table:\n{served}"


def test_a_switch_that_is_off_asks_nothing() -> None:
    """With the switch off nothing is checked: a turn that would be refused has no refusal in its record."""
    both = pair(lambda: agent(in_turn(*TWO_ROUNDS), debug=False), switches=OFF)
    both.moved.stream_mode = both.legacy.stream_mode = "debug"
    list(both.moved.stream(asked()))
    assert both.refused == [()]
    assert both.served == ["legacy"]


def test_a_shadow_turn_is_checked_and_served_by_the_graph() -> None:
    """Before the switch is on, the ledger shows what would be refused."""
    shadow = Switches({"invocation.run": "shadow", "invocation.stream": "shadow"}, environ={})
    both = pair(lambda: agent(in_turn(*TWO_ROUNDS)), switches=shadow)
    both.moved.invoke(asked())
    both.moved.invoke(asked(), print_mode="values")
    assert both.served == ["legacy", "legacy"]
    assert both.refused == [(), ("option:print_mode",)]


def test_the_original_is_not_changed() -> None:
    """Cutting an agent over leaves the one that it was made of alone."""
    assert moved_agent is not create_agent
    assert type(agent(in_turn(says()))).__mro__[0].__module__ == "langgraph.graph.state"
