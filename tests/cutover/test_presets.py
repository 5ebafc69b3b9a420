"""The preset agents are real graphs, and cost what the envelope refuses them for."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from endstop import ConfigError
from endstop.cutover.presets import PLAN_PROMPT, AgentConfig, Procedure, legacy_graph, preset_refusals
from endstop.cutover.rounds import rounds_for_graph, rounds_for_recursion_limit
from tests.langgraph.fakes import FakeChat, Looker, PlainChat, asks, in_order, says
from tests.langgraph.wirings import NEVER, Rounds, look, rounds_run

ASK, INTERRUPT, ENFORCE = "ask_user_enabled", "experimental_interrupt", "procedural_enforce_preconditions"
SWITCHES = (ASK, INTERRUPT, ENFORCE)
LIMITS = range(3, 61)
THREAD: Any = {"configurable": {"thread_id": "1"}}

some_switches = st.sets(st.sampled_from(SWITCHES), min_size=1)


def config(*switches: str, **fields: Any) -> AgentConfig:
    """A config with these switches on."""
    return AgentConfig(**dict.fromkeys(switches, True), **fields)


def told(graph: Any, given: Any = "Go.", **options: Any) -> Any:
    """The state after a turn, or after an answer to what the graph waits for."""
    return graph.invoke({"messages": [("user", given)]} if isinstance(given, str) else given, THREAD, **options)


# --- what they cost


def agrees(settings: AgentConfig, limit: int) -> int:
    """How many rounds finish under the limit; what is said of the graph, and what it does, is the same."""
    model = Rounds()
    graph = legacy_graph(settings, model, [look])
    said = rounds_for_graph(graph, limit)
    assert not rounds_run(graph, model, said.finish + 1, limit)[0]
    assert said.finish == 0 or rounds_run(graph, model, said.finish, limit)[0]
    assert rounds_run(graph, model, NEVER, limit)[1] == said.called
    return said.finish


def test_the_react_loop_finishes_exactly_the_rounds_of_the_conversion_at_low_limits() -> None:
    """At 1 and 2 it finishes none, where the conversion still says 1."""
    assert [agrees(AgentConfig(), limit) for limit in (1, 2)] == [0, 0]
    assert rounds_for_recursion_limit(1) == rounds_for_recursion_limit(2) == 1
    for limit in LIMITS[:6]:
        assert agrees(AgentConfig(), limit) == rounds_for_recursion_limit(limit)


@settings(max_examples=5, deadline=None)
@given(st.sampled_from(LIMITS))
def test_the_react_loop_finishes_exactly_the_rounds_of_the_conversion(limit: int) -> None:
    """At every limit to 60: never a call of the model more than the graph would have made."""
    assert agrees(AgentConfig(), limit) == rounds_for_recursion_limit(limit)


@settings(max_examples=7, deadline=None)
@given(some_switches, st.sampled_from(LIMITS))
def test_a_switch_reaches_fewer_rounds_than_the_conversion_says(switches: set[str], limit: int) -> None:
    """So converted it would be over its budget. A single switch under a limit of 4 is the one case that comes even."""
    finished = agrees(config(*switches), limit)
    if len(switches) == 1 and limit == 4:
        assert finished == rounds_for_recursion_limit(limit) == 1
    else:
        assert finished < rounds_for_recursion_limit(limit)


@pytest.mark.parametrize("switch", SWITCHES)
def test_each_switch_costs_a_super_step_a_round(switch: str) -> None:
    """Also in the last round, and where the switch finds nothing to do."""
    assert [agrees(config(switch), limit) for limit in (3, 4, 6, 7)] == [0, 1, 1, 2]


def test_a_plan_costs_a_super_step_once() -> None:
    """The preset reaches a round less at every odd limit, and has a request more that no round is."""
    planned = AgentConfig(graph_preset="plan_execute")
    assert [rounds_for_graph(legacy_graph(planned, Rounds(), [look]), limit).finish for limit in (3, 4, 5, 50)] == [
        *(0, 1, 1, 24)
    ]


def test_the_limit_is_bound_to_the_graph() -> None:
    """A caller that names none has that of the config."""
    graph = legacy_graph(AgentConfig(recursion_limit=7), Rounds(), [look])
    assert rounds_for_graph(graph, None) == rounds_for_graph(graph, 7)


# --- what is refused


@pytest.mark.parametrize(
    ("settings", "codes"),
    [
        (AgentConfig(), ()),
        (config(ASK), (ASK,)),
        (config(INTERRUPT), (INTERRUPT,)),
        (config(ENFORCE), (ENFORCE,)),
        (AgentConfig(graph_preset="plan_execute"), ("graph_preset",)),
        (AgentConfig(graph_preset="of their own"), ("graph_preset",)),
        (config(*SWITCHES, graph_preset="x"), (ASK, INTERRUPT, ENFORCE, "graph_preset")),
    ],
)
def test_what_the_kernel_does_not_serve_is_named(settings: AgentConfig, codes: tuple[str, ...]) -> None:
    """One code for each switch that is on, and one for any preset but the first."""
    assert preset_refusals(settings) == codes


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"graph_preset": "x"}, "graph_preset"),
        ({"recursion_limit": 0}, "recursion_limit"),
        ({"recursion_limit": None}, "recursion_limit"),
        ({"recursion_limit": True}, "recursion_limit"),
    ],
)
def test_a_config_that_no_graph_can_be_built_of_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    """Before anything is built."""
    with pytest.raises(ConfigError) as caught:
        legacy_graph(AgentConfig(**fields), Rounds(), [look])
    assert caught.value.field == field


def test_a_window_of_nothing_is_refused_by_name() -> None:
    """The model must see what it is asked."""
    with pytest.raises(ConfigError, match="window=0"):
        legacy_graph(AgentConfig(), Rounds(), [look], procedure=Procedure(window=0))


def test_a_config_is_frozen() -> None:
    """Nobody changes an agent by it afterwards."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        AgentConfig().recursion_limit = 3  # type: ignore[misc]  # that it cannot be set is what is tried


# --- what the nodes do


def said(state: Any) -> list[tuple[str, str]]:
    """The kind and the text of each message."""
    return [(message.type, message.text) for message in state["messages"]]


def by_async(graph: Any) -> Any:
    return asyncio.run(graph.ainvoke({"messages": [("user", "Go.")]}, THREAD))


@pytest.mark.parametrize("run", [told, by_async])
def test_the_loop_calls_tools_and_answers(run: Callable[[Any], Any]) -> None:
    """All calls of a turn are run, sync and async."""
    looker = Looker()
    graph = legacy_graph(AgentConfig(), in_order(asks("look", "look"), says("Found.")), [looker.tool])
    assert said(run(graph))[-1] == ("ai", "Found.")
    assert looker.finished == 2


def test_a_graph_without_tools_answers() -> None:
    """The model is offered none."""
    assert said(told(legacy_graph(AgentConfig(), PlainChat(rule=lambda messages: says("Hi.")), [])))[-1] == (
        "ai",
        "Hi.",
    )


def test_the_window_forgets_whole_turns_and_no_instructions() -> None:
    """It begins with what a person said, so that no tool's answer stands without its call."""
    model = in_order(asks("look"), says("One."))
    procedure = Procedure(window=2)
    graph = legacy_graph(AgentConfig(), model, [look], procedure=procedure, checkpointer=InMemorySaver())
    told(graph, {"messages": [SystemMessage("Be kind."), HumanMessage("First.")]})
    told(graph, "Second.")
    assert [message.text for message in model.sent[2]] == ["Be kind.", "Second."]


def test_a_turn_that_is_longer_than_the_window_is_kept() -> None:
    """The question is in it."""
    model = in_order(says("Yes."))
    graph = legacy_graph(AgentConfig(), model, [look], procedure=Procedure(window=1))
    told(graph, {"messages": [HumanMessage("Hm?"), AIMessage("Yes?"), HumanMessage("Now."), AIMessage("Well.")]})
    assert [message.text for message in model.sent[0]] == ["Now.", "Well."]


def test_the_planner_asks_without_tools_and_hands_on_the_plan() -> None:
    """What it asks with is not kept."""
    model = PlainChat(rule=lambda messages: says("Look, then tell." if messages[-1].text == PLAN_PROMPT else "Done."))
    state = told(legacy_graph(AgentConfig(graph_preset="plan_execute"), model, [look]))
    assert said(state) == [("human", "Go."), ("human", "The plan:\nLook, then tell."), ("ai", "Done.")]
    assert model.offered == [(), ("look",)]


def waiting_for(model: FakeChat, switch: str, *tools: Any, **procedure: Any) -> Any:
    """A graph on a thread, with one switch on."""
    return legacy_graph(config(switch), model, tools, procedure=Procedure(**procedure), checkpointer=InMemorySaver())


def test_a_question_waits_for_the_user() -> None:
    """The answer is the return of the call; the tools of the same round run after it, once."""
    looker = Looker()
    model = in_order(asks(("ask_user", {"question": "Which?"}), "look"), says("Thanks."))
    graph = waiting_for(model, ASK, looker.tool)
    (waits,) = told(graph)["__interrupt__"]
    assert waits.value == {"question": "Which?"}
    assert looker.started == 0
    state = told(graph, Command(resume="the red one"))
    assert said(state)[-1] == ("ai", "Thanks.")
    assert ("tool", "the red one") in said(state)
    assert looker.finished == 1


def test_a_question_alone_goes_back_to_the_model() -> None:
    """There is no tool to run."""
    model = in_order(asks(("ask_user", {"question": "Which?"})), says("Thanks."))
    graph = waiting_for(model, ASK, look)
    told(graph)
    assert said(told(graph, Command(resume="red")))[-2:] == [("tool", "red"), ("ai", "Thanks.")]


@pytest.mark.parametrize(("answer", "ran"), [(True, 1), (False, 0)])
def test_a_call_waits_for_approval(answer: bool, ran: int) -> None:
    """Approved it runs once; refused it does not, and the model reads so. Other calls run in either case."""
    looker, sender = Looker(), Looker("send")
    model = in_order(asks("look", ("send", {"place": "here"})), says("Thanks."))
    graph = waiting_for(model, INTERRUPT, looker.tool, sender.tool, approve=frozenset({"send"}))
    (waits,) = told(graph)["__interrupt__"]
    assert waits.value == {"approve": [{"name": "send", "args": {"place": "here"}}]}
    state = told(graph, Command(resume=answer))
    assert said(state)[-1] == ("ai", "Thanks.")
    assert (looker.finished, sender.finished) == (1, ran)
    assert (("tool", "Not run: it was not approved.") in said(state)) is not answer


def test_a_call_before_what_it_needs_is_refused() -> None:
    """A call of the same round does not count as before, and one that failed does not count at all."""
    looker, sender = Looker(), Looker("send")
    model = in_order(asks("send", "look"), asks("send"), says("Done."))
    procedure = Procedure(preconditions={"send": ("look",)})
    graph = legacy_graph(config(ENFORCE), model, [looker.tool, sender.tool], procedure=procedure)
    state = told(graph)
    refused = [
        message for message in state["messages"] if isinstance(message, ToolMessage) and "Not run" in message.text
    ]
    assert [(message.text, message.status) for message in refused] == [("Not run: call look first.", "error")]
    assert (looker.finished, sender.finished) == (1, 1)


def test_no_call_is_left_without_an_answer_with_every_switch_on() -> None:
    """Each is answered once, by whichever node it met."""

    def rule(messages: Any) -> BaseMessage:
        rounds = sum(isinstance(message, AIMessage) for message in messages)
        return asks(("ask_user", {"question": "?"}), "send", "look") if rounds < 2 else says("Done.")

    procedure = Procedure(approve=frozenset({"look"}), preconditions={"send": ("look",)})
    tools = [Looker().tool, Looker("send").tool]
    graph = legacy_graph(
        config(*SWITCHES), FakeChat(rule=rule), tools, procedure=procedure, checkpointer=InMemorySaver()
    )
    state = told(graph)
    while "__interrupt__" in state:
        state = told(graph, Command(resume=True))
    answers = [message for message in state["messages"] if isinstance(message, ToolMessage)]
    assert len(answers) == len({message.tool_call_id for message in answers}) == 6
    assert [message.status for message in answers if message.name == "send"] == ["error", "success"]
