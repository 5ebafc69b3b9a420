"""The facade gives the same responses and chunks from a graph, from the kernel, and from an `Agent` of the kernel."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware, ModelCallLimitMiddleware
from langchain.agents.structured_output import ToolStrategy
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.runtime import get_runtime
from pydantic import BaseModel

from endstop.cutover import (
    AgentConfig,
    AgentResponse,
    CutoverAgent,
    MemoryTurnLedger,
    RecursionExhaustedError,
    Switches,
    cut_over,
    rounds_for_recursion_limit,
    use_ledger,
)
from endstop.cutover.presets import Procedure
from endstop.models.scripted import call, turn
from endstop.turn_observation import observe_recall, observing
from tests.cutover.agents_for_tests import OFF, ON, TWO_ROUNDS, Shop, asks, in_turn, looking, plain, says
from tests.cutover.callers import chunks_of, native, streamed, told

HALL = asks(("look", {"place": "hall"}))
BODIES = pytest.mark.parametrize("switches", [OFF, ON], ids=["legacy", "kernel"])


ENDS = (PermissionError, GraphRecursionError)
"""What a turn of these agents may raise."""


def outcomes(agent: CutoverAgent) -> tuple[str, str]:
    """All that callers of `run` and of `stream_chunks` see of the same turn: what they get and what is raised."""

    async def watched() -> list[Any]:
        seen: list[Any] = []
        try:
            async for chunk in agent.stream_chunks("Where is the key?", run_id="one", wire_version=2):
                seen += told([chunk])
        except ENDS as error:
            seen.append((type(error), str(error)))
        return seen

    try:
        response = asyncio.run(agent.run("Where is the key?", run_id="one"))
        served = plain(replace(response, duration_ms=0))
    except ENDS as error:
        served = plain((type(error), str(error)))
    return served, plain(asyncio.run(watched()))


# -- the same on both bodies -----------------------------------------------------------------------


@tool
async def broken(place: str) -> str:
    """Look where nothing can be seen."""
    raise PermissionError(place)


PLACES = st.sampled_from(["hall", "attic"])
CALLS = st.tuples(
    st.sampled_from(["look", "look", "look", "broken", "nowhere"]), st.fixed_dictionaries({"place": PLACES})
)
TEXTS = st.sampled_from(["", "Let me see.", "In the hall."])


@st.composite
def answers(draw: st.DrawFn) -> AIMessage:
    """What a model may say: words, reasoning, calls of tools that work, fail or are not there."""
    answer = asks(*draw(st.lists(CALLS, max_size=2)))
    return answer.model_copy(
        update={
            "content": draw(TEXTS),
            "additional_kwargs": draw(st.sampled_from([{}, {"reasoning_content": "It was a key."}])),
        }
    )


@settings(max_examples=15)
@given(script=st.lists(answers(), min_size=1, max_size=3), limit=st.integers(1, 9), is_preset=st.booleans())
def test_both_bodies_give_the_same_response_and_the_same_chunks(
    script: list[AIMessage], limit: int, is_preset: bool
) -> None:
    """Whatever the model says and wherever the limit is: answers, failures, and a loop that never ends."""
    ledger = MemoryTurnLedger()

    def made(switches: Switches) -> CutoverAgent:
        model, tools, config = in_turn(*script), [Shop().look, broken], AgentConfig(recursion_limit=limit)
        if is_preset:
            return CutoverAgent.from_preset(config, model, tools, switches=switches, ledger=ledger)
        return CutoverAgent(create_agent(model, tools), config=config, switches=switches, ledger=ledger)

    assert outcomes(made(ON)) == outcomes(made(OFF))
    assert [record.served_by for record in ledger.records()] == ["kernel", "kernel", "legacy", "legacy"]


@BODIES
def test_a_turn_is_told_in_order(switches: Switches) -> None:
    """Reasoning and words as the model writes them, each call before its result, and the end."""
    thought = AIMessage("In the hall.", additional_kwargs={"reasoning_content": "It was there."})
    chunks = streamed(CutoverAgent(looking(answers=(HALL, thought)), switches=switches), run_id="turn-7")
    key = {"call_id": "call-0-look", "name": "look"}
    done = {"memory_entries_used": 0, "system_prompt_tokens": 0, "duration_ms": 0, "extracted_ops": []}
    assert told(chunks) == [
        ("tool_call", key | {"arguments": {"place": "hall"}}),
        ("tool_result", key | {"result": "hall: nothing here", "is_error": False}),
        ("thinking", "It was there."),
        ("text_delta", "In the hall."),
        ("done", done | {"activation_log": {}, "final_response": "In the hall."}),
    ]
    assert {chunk.run_id for chunk in chunks} == {"turn-7"}


@BODIES
def test_words_are_told_as_they_come(switches: Switches) -> None:
    """A model that streams is heard piece by piece, and its answer is not told again as a whole."""
    model = GenericFakeChatModel(messages=iter([AIMessage("In the hall."), AIMessage("In the hall.")]))
    chunks = streamed(CutoverAgent(create_agent(model, []), switches=switches))
    assert [chunk.data for chunk in chunks[:-1]] == ["In", " ", "the", " ", "hall."]


@BODIES
def test_a_response_is_what_legacy_callers_hold(switches: Switches) -> None:
    """The answer, the whole conversation as dicts, and the ids; all of it can be written down."""
    response = asyncio.run(CutoverAgent(looking(), switches=switches).run("Where?", run_id="turn-7", session_id="s"))
    assert (response.final_response, response.run_id, response.session_id) == ("done", "turn-7", "s")
    assert [message["type"] for message in response.messages] == ["human", "ai", "tool", "ai"]
    assert ToolMessage.model_validate(response.messages[2]).content == "hall: nothing here"
    assert response.duration_ms > 0
    assert AgentResponse.from_json(response.to_json()) == response


@BODIES
def test_a_turn_without_an_answer_has_none(switches: Switches) -> None:
    """It is `None`, and not an empty text."""
    assert (
        asyncio.run(CutoverAgent(looking(answers=(says(""),)), switches=switches).run("Where?")).final_response is None
    )


@BODIES
def test_what_a_tool_returns_directly_is_the_answer(switches: Switches) -> None:
    """The turn ends with it; the call that asked for it is none."""
    direct = StructuredTool.from_function(
        lambda: "in the hall", name="direct", description="Find it.", return_direct=True
    )
    agent = CutoverAgent(create_agent(in_turn(asks(("direct", {}))), [direct]), switches=switches)
    assert asyncio.run(agent.run("Where?")).final_response == "in the hall"


class Found(BaseModel):
    """Where it is."""

    place: str


@BODIES
def test_a_structured_answer_is_in_the_response(switches: Switches) -> None:
    """It is no text, and its call is told before its result."""
    model = in_turn(asks(("Found", {"place": "hall"})))
    agent = CutoverAgent(create_agent(model, [], response_format=ToolStrategy(Found)), switches=switches)
    response = asyncio.run(agent.run("Where?"))
    assert (response.structured, response.final_response) == (Found(place="hall"), None)
    assert [chunk.event_type for chunk in streamed(agent)] == ["tool_call", "tool_result", "done"]


# -- which body serves -----------------------------------------------------------------------------


def test_each_surface_has_its_switch() -> None:
    """`run` and `run_sync` are one, `stream_chunks` the other; each turn leaves one record under its run id."""
    ledger, run_id = MemoryTurnLedger(), str(uuid.uuid4())
    agent = CutoverAgent(looking(), switches=Switches({"invocation.run": "on"}, environ={}), ledger=ledger)
    asyncio.run(agent.run("Where?", run_id=run_id, session_id="s"))
    agent.run_sync("Where?", run_id="turn-7")
    streamed(agent)
    assert [(record.surface, record.served_by) for record in ledger.records()] == [
        ("invocation.run", "kernel"),
        ("invocation.run", "kernel"),
        ("invocation.stream", "legacy"),
    ]
    first, second, _ = ledger.records()
    assert (first.run_id, first.thread_id) == (run_id, "s")
    assert second.run_id == str(uuid.uuid5(uuid.NAMESPACE_OID, "turn-7"))


def test_what_a_graph_was_cut_over_with_holds_unless_the_facade_says_otherwise() -> None:
    """The facade has a graph of its own, and leaves the caller's as it is."""
    ledger, other = MemoryTurnLedger(), MemoryTurnLedger()
    graph = cut_over(looking(), switches=ON, ledger=ledger)
    CutoverAgent(graph).run_sync("Where?")
    CutoverAgent(graph, switches=OFF, ledger=other, config=AgentConfig(ask_user_enabled=True)).run_sync("Where?")
    graph.invoke({"messages": "Where?"})
    assert [record.served_by for record in ledger.records()] == ["kernel", "kernel"]
    assert [record.served_by for record in other.records()] == ["legacy"]


@pytest.mark.parametrize("code", ["ask_user_enabled", "experimental_interrupt", "procedural_enforce_preconditions"])
def test_a_preset_that_the_kernel_refuses_runs_on_its_graph(code: str) -> None:
    """Its rounds cost more super-steps; the ledger says why."""
    ledger = MemoryTurnLedger()
    config = AgentConfig(**{code: True})
    agent = CutoverAgent.from_preset(config, in_turn(*TWO_ROUNDS), [Shop().look], switches=ON, ledger=ledger)
    assert agent.run_sync("Where?").final_response == "done"
    assert [record.refusals for record in ledger.records()] == [(code,)]


@pytest.mark.parametrize("limit", [3, 4, 7, 12])
@BODIES
def test_a_preset_has_the_rounds_of_its_recursion_limit(limit: int, switches: Switches) -> None:
    """As many as `rounds_for_recursion_limit` says can finish, and one more cannot."""
    rounds = rounds_for_recursion_limit(limit)

    def agent(script_rounds: int) -> CutoverAgent:
        looks = [AIMessage("", tool_calls=[_look_call(f"call-{number}")]) for number in range(script_rounds - 1)]
        model = in_turn(*looks, says("found"))
        return CutoverAgent.from_preset(AgentConfig(recursion_limit=limit), model, [Shop().look], switches=switches)

    assert agent(rounds).run_sync("Where?").final_response == "found"
    with pytest.raises(GraphRecursionError, match=r"^recursion_exhausted: .*config\.agent\.recursion_limit"):
        agent(rounds + 1).run_sync("Where?")


def _look_call(call_id: str) -> Any:
    return {"name": "look", "args": {"place": "hall"}, "id": call_id}


# -- sessions --------------------------------------------------------------------------------------


@BODIES
def test_a_session_is_a_thread(switches: Switches) -> None:
    """With a checkpointer the second turn knows the first, and tells only what is new; without a name one is drawn."""
    agent = CutoverAgent(looking(checkpointer=InMemorySaver()), switches=switches)
    first = asyncio.run(agent.run("Where is the key?", session_id="customer-3"))
    again = streamed(agent, "And the lamp?", session_id="customer-3")
    whole = asyncio.run(agent.run("And the cat?", session_id="customer-3"))
    assert [chunk.event_type for chunk in again] == ["tool_call", "tool_result", "text_delta", "done"]
    assert (len(first.messages), len(whole.messages)) == (4, 12)
    drawn = asyncio.run(agent.run("Where?"))
    assert drawn.session_id not in ("", "customer-3")
    assert len(drawn.messages) == 4


@BODIES
def test_a_conversation_can_be_given_as_it_was_returned(switches: Switches) -> None:
    """The dicts of a response, role dicts and messages of LangChain are all taken."""
    agent = CutoverAgent(looking(), switches=switches)
    first = agent.run_sync("Where is the key?")
    question = {"role": "user", "content": "And the lamp?"}
    longer = agent.run_sync([*first.messages, question])
    assert longer.messages[:4] == first.messages
    assert len(agent.run_sync([HumanMessage("Where?")]).messages) == 4


# -- failures --------------------------------------------------------------------------------------


@BODIES
def test_an_error_of_a_tool_is_the_callers(switches: Switches) -> None:
    """It leaves `run` and the stream as it is, on both bodies, after the chunks before it."""
    agent = CutoverAgent(create_agent(in_turn(asks(("broken", {"place": "hall"}))), [broken]), switches=switches)
    with pytest.raises(PermissionError, match="hall"):
        asyncio.run(agent.run("Where?"))

    kinds: list[str] = []

    async def watched() -> None:
        async for chunk in agent.stream_chunks("Where?"):
            kinds.append(chunk.event_type)

    with pytest.raises(PermissionError, match="hall"):
        asyncio.run(watched())
    assert kinds == ["tool_call"]


def test_a_graph_that_runs_out_below_keeps_its_own_name() -> None:
    """An agent in a tool names its own run; the one around it passes that on."""
    below = CutoverAgent(looking(answers=(HALL,)), config=AgentConfig(recursion_limit=3))

    @tool
    async def delegate(task: str) -> str:
        """Hand a task on."""
        return str((await below.run(task, run_id="below")).final_response)

    agent = CutoverAgent(create_agent(in_turn(asks(("delegate", {"task": "look"}))), [delegate]), switches=ON)
    with pytest.raises(RecursionExhaustedError) as caught:
        asyncio.run(agent.run("Where?", run_id="above"))
    assert caught.value.run_id == "below"


def graph_that_waits(started: asyncio.Event, stopped: list[str], switches: Switches = OFF) -> CutoverAgent:
    @tool
    async def wait() -> str:
        """Wait for ever."""
        return await waiting(started, stopped)

    return CutoverAgent(create_agent(in_turn(asks(("wait", {}))), [wait]), switches=switches)


def moved_graph_that_waits(started: asyncio.Event, stopped: list[str]) -> CutoverAgent:
    return graph_that_waits(started, stopped, ON)


async def waiting(started: asyncio.Event, stopped: list[str]) -> str:
    started.set()
    try:
        await asyncio.Event().wait()
    finally:
        stopped.append("stopped")
    return ""


def kernel_agent_that_waits(started: asyncio.Event, stopped: list[str]) -> CutoverAgent:
    async def wait() -> str:
        """Wait for ever."""
        return await waiting(started, stopped)

    return native(turn(calls=[call("wait")]), turn("done"), tools=[wait])


@pytest.mark.parametrize("make", [graph_that_waits, moved_graph_that_waits, kernel_agent_that_waits])
def test_a_stream_that_is_closed_early_stops_its_turn(make: Any, ledger: MemoryTurnLedger) -> None:
    """When it is closed the tool has been stopped, and the record says that the caller broke the turn off."""
    stopped: list[str] = []

    async def leaves() -> None:
        started = asyncio.Event()
        stream = make(started, stopped).stream_chunks("Where?")
        async with aclosing(stream):
            async for _ in stream:
                await started.wait()
                break
        assert stopped == ["stopped"]

    asyncio.run(leaves())
    assert [record.cancelled for record in ledger.records()] == [True]


@pytest.fixture
def ledger() -> Iterator[MemoryTurnLedger]:
    """The ledger of the process, while a test runs."""
    own = MemoryTurnLedger()
    before = use_ledger(own)
    yield own
    use_ledger(before)


# -- what was observed -----------------------------------------------------------------------------


def recalling(count: int, switches: Switches = ON, below: CutoverAgent | None = None) -> CutoverAgent:
    """An agent whose tool recalls so many memories and then asks an agent below."""

    @tool
    async def recall() -> str:
        """Recall."""
        observe_recall({"admitted": count})
        await asyncio.sleep(0)
        return "" if below is None else str((await below.run("And you?")).memory_entries_used)

    return CutoverAgent(create_agent(in_turn(asks(("recall", {})), says()), [recall]), switches=switches)


@BODIES
def test_what_a_turn_recalled_is_told(switches: Switches) -> None:
    """In the response and in the last chunk; the reader of a stream has nothing of it in its own context."""
    assert asyncio.run(recalling(7, switches).run("What do you know?")).memory_entries_used == 7

    async def reads() -> Any:
        with observing() as mine:
            chunks = await chunks_of(recalling(7, switches))
        return mine.recalled, chunks[-1].data

    recalled, done = asyncio.run(reads())
    assert (recalled, done["memory_entries_used"]) == (None, 7)


@BODIES
def test_a_turn_within_a_turn_has_an_observation_of_its_own(switches: Switches) -> None:
    """The one below says 2 to the tool that asked it, the one above 5."""
    response = asyncio.run(recalling(5, switches, below=recalling(2, switches)).run("What do you know?"))
    assert response.memory_entries_used == 5
    assert response.messages[2]["content"] == "2"


def test_turns_of_graphs_at_the_same_time_do_not_mix() -> None:
    """On either body, each with a count of its own."""

    async def all_of_them() -> list[AgentResponse]:
        agents = [recalling(number, ON if number % 2 else OFF) for number in range(24)]
        return await asyncio.gather(*(agent.run("What do you know?") for agent in agents))

    assert [response.memory_entries_used for response in asyncio.run(all_of_them())] == [*range(24)]


# -- pauses ----------------------------------------------------------------------------------------


def pausing(kind: str, switches: Switches) -> tuple[CutoverAgent, dict[str, Any]]:
    """An agent that waits for a person, and what wire version 2 tells of that beside the id."""
    hall = {"call_id": None, "name": "look", "arguments": {"place": "hall"}}
    config = AgentConfig(ask_user_enabled=kind == "asks", experimental_interrupt=kind == "approves")
    options: dict[str, Any] = {"checkpointer": InMemorySaver(), "switches": switches}
    if kind == "asks":
        model = in_turn(asks(("ask_user", {"question": "Which key?"})))
        return CutoverAgent.from_preset(config, model, [], **options), {"question": "Which key?", "call": None}
    if kind == "approves":
        procedure = Procedure(approve=frozenset({"look"}))
        agent = CutoverAgent.from_preset(config, in_turn(HALL), [Shop().look], procedure=procedure, **options)
        return agent, {"question": None, "call": hall}
    if kind == "breakpoint":
        graph = looking(checkpointer=InMemorySaver(), interrupt_after=["tools"])
        return CutoverAgent(graph, switches=switches), {"question": None, "call": None}
    approval = HumanInTheLoopMiddleware(interrupt_on={"look": True})
    graph = looking(middleware=[approval], checkpointer=InMemorySaver())
    return CutoverAgent(graph, switches=switches), {"question": None, "call": hall}


@pytest.mark.parametrize("kind", ["asks", "approves", "middleware", "breakpoint"])
@BODIES
def test_a_pause_is_told_in_wire_version_2_only(kind: str, switches: Switches) -> None:
    """The stream ends without `done`; an older consumer gets no chunk that it does not know."""
    agent, expected = pausing(kind, switches)
    paused = streamed(agent, session_id="1", wire_version=2)[-1]
    assert paused.event_type == ("ask_user" if kind == "asks" else "interrupt")
    assert isinstance(paused.data, dict)
    assert {key: paused.data[key] for key in expected} == expected
    assert {"pause_id", "answer_schema", "expires_at", "value"} < paused.data.keys()
    last = streamed(agent, session_id="2")[-1]
    assert last.event_type == ("tool_result" if kind == "breakpoint" else "tool_call")


@BODIES
def test_a_turn_that_waits_has_no_answer(switches: Switches) -> None:
    """Its response has the conversation up to there."""
    agent, _ = pausing("middleware", switches)
    response = asyncio.run(agent.run("Where?", session_id="1"))
    assert response.final_response is None
    assert [message["type"] for message in response.messages] == ["human", "ai"]


# -- what hooks write ------------------------------------------------------------------------------


class Greets(AgentMiddleware):
    """Writes a message of the model's as a dict, which the state makes a message of, and one of the user's."""

    def before_agent(self, state: Any, runtime: Any) -> Any:
        return {"messages": [{"role": "assistant", "content": "Good morning."}, HumanMessage("He is in a hurry.")]}


class Waits(AgentMiddleware):
    """Writes nothing."""

    def before_model(self, state: Any, runtime: Any) -> Any:
        return None


@BODIES
def test_what_a_hook_says_is_told_once(switches: Switches) -> None:
    """Whatever form it gives its message, and where it ends the turn in place of the model."""
    agent = CutoverAgent(looking(answers=(says("Hello."),), middleware=[Greets(), Waits()]), switches=switches)
    assert [chunk.data for chunk in streamed(agent)[:-1]] == ["Good morning.", "Hello."]
    limited = CutoverAgent(looking(middleware=[ModelCallLimitMiddleware(run_limit=1)]), switches=switches)
    *_, words, done = told(streamed(limited))
    assert words == ("text_delta", done[1]["final_response"])


@BODIES
def test_a_context_reaches_the_tools(switches: Switches) -> None:
    """`deps` is the `runtime.context` of a graph."""

    @tool
    def who() -> str:
        """Say who asks."""
        return str(get_runtime(str).context)

    graph = create_agent(in_turn(asks(("who", {})), says()), [who], context_schema=str)
    response = CutoverAgent(graph, switches=switches).run_sync("Who am I?", deps="customer 3")
    assert response.messages[2]["content"] == "customer 3"
