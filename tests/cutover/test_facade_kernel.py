"""The facade on an agent of the kernel: the shapes of a graph, without LangGraph; and what no facade is made of."""

from __future__ import annotations

import asyncio
import base64
import logging
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.errors import GraphRecursionError

from endstop import Agent, ConfigError, LimitExceeded, PlanLimits, ToolContext, UsageError
from endstop._ask_user import ask_user
from endstop._errors import ModelError
from endstop._messages import FilePart, ImagePart, TextPart
from endstop.cutover import AgentConfig, AgentError, CutoverAgent, MemoryTurnLedger, RecursionExhaustedError
from endstop.models.scripted import ScriptedModel, call, forever, turn
from endstop.turn_observation import observe_recall
from tests.cutover.agents_for_tests import OFF, looking
from tests.cutover.callers import chunks_of, native, streamed, told


def look(place: str) -> str:
    """Look in a place."""
    return f"{place}: nothing here"


LOOKS = turn(calls=[call("look", {"place": "hall"}, call_id="call-0-look")])


def test_an_agent_of_the_kernel_gives_the_shapes_of_a_graph() -> None:
    """The caller sees the same chunks and the same answer; the ledger has the turns, on the kernel."""
    ledger = MemoryTurnLedger()
    one, two = (native(LOOKS, turn("done"), tools=[look], ledger=ledger) for _ in range(2))
    graph = CutoverAgent(looking(), switches=OFF, ledger=MemoryTurnLedger())
    kernel_chunks, graph_chunks = (
        [item for item in told(streamed(agent)) if item[0] != "text_delta"] for agent in (one, graph)
    )
    assert kernel_chunks == graph_chunks
    response = asyncio.run(two.run("Where?", run_id="turn-7", session_id="s"))
    assert (response.final_response, response.run_id, response.session_id) == ("done", "turn-7", "s")
    assert [message["type"] for message in response.messages] == ["human", "ai", "tool", "ai"]
    records = [(r.surface, r.served_by, r.route, r.rounds, r.error, r.thread_id) for r in ledger.records()]
    assert records == [
        ("invocation.stream", "kernel", "kernel", 2, None, None),
        ("invocation.run", "kernel", "kernel", 2, None, "s"),
    ]


def test_an_agent_of_the_kernel_tells_what_it_extracted() -> None:
    """The operations of its envelopes, in the response and in the last chunk."""
    answer = turn('Noted.<MEMORY_EXTRACT>{"ops": [{"op": "add", "text": "likes tea"}]}</MEMORY_EXTRACT>')
    operations = [{"op": "add", "text": "likes tea"}]
    response = native(answer).run_sync("I like tea.")
    assert (response.final_response, response.extracted_ops) == ("Noted.", operations)
    done = streamed(native(answer), "I like tea.")[-1].data
    assert isinstance(done, dict)
    assert done["extracted_ops"] == operations


@pytest.mark.parametrize("on_limit", ["answer", "stop", "raise"])
def test_an_agent_of_the_kernel_runs_out_as_a_graph_does(on_limit: Any) -> None:
    """`config` gives the rounds of the recursion limit, and nothing is paid for an answer that is not given."""
    model = ScriptedModel([forever(turn(calls=[call("look", {"place": "hall"})]))])
    agent = Agent(model, tools=[look], loops=None, limits=PlanLimits(max_model_rounds=2, on_limit=on_limit))
    moved = CutoverAgent(agent, config=AgentConfig(recursion_limit=7))
    with pytest.raises(GraphRecursionError, match=r"^recursion_exhausted: "):
        moved.run_sync("Where?")
    assert model.request_count == 3
    with pytest.raises(RecursionExhaustedError) as caught:
        streamed(CutoverAgent(agent))
    assert caught.value.state is not None


def test_another_limit_that_raises_is_the_callers_error() -> None:
    """On both surfaces as `Agent.run` raises it."""
    limits = PlanLimits(max_tool_calls=0, on_limit="raise")
    for use in (lambda agent: agent.run_sync("Where?"), streamed):
        with pytest.raises(LimitExceeded):
            use(native(LOOKS, turn("done"), tools=[look], limits=limits))


def test_a_failure_of_an_agent_of_the_kernel_is_told_as_legacy_streams_do() -> None:
    """`run` raises the kernel's own error, the stream an `AgentError` with all that was done; both are recorded."""
    ledger = MemoryTurnLedger()
    with pytest.raises(ModelError):
        native(LOOKS, ModelError("the model is gone"), tools=[look], ledger=ledger).run_sync("Where?")
    with pytest.raises(AgentError, match="the model is gone") as caught:
        streamed(native(LOOKS, ModelError("the model is gone"), tools=[look], ledger=ledger))
    assert caught.value.state is not None
    assert caught.value.state.spent.tool_calls == 1
    assert [(record.error, record.rounds) for record in ledger.records()] == [("ModelError", 2), ("AgentError", 2)]


def test_what_is_wrong_before_a_run_is_recorded_too() -> None:
    """Nothing was spent."""
    ledger = MemoryTurnLedger()
    with pytest.raises(ConfigError, match="prompt"):
        native(ledger=ledger).run_sync(" ")
    assert [(record.error, record.rounds) for record in ledger.records()] == [("ConfigError", None)]


def test_a_pause_of_an_agent_of_the_kernel_is_told() -> None:
    """As the kernel's own events tell it, in wire version 2."""
    question = turn(calls=[call("ask_user", {"question": "Which key?"})])
    assert streamed(native(question, tools=[ask_user]))[-1].event_type == "tool_call"
    assert streamed(native(question, tools=[ask_user]), wire_version=2)[-1].event_type == "ask_user"


def test_an_agent_below_does_not_speak_to_the_caller() -> None:
    """Its words and its end are not those of the one above."""
    below = Agent(ScriptedModel([turn("below")]), name="below")
    agent = native(turn(calls=[call("below", {"task": "look"})]), turn("above"), tools=[below.as_tool()])
    kinds = told(streamed(agent))
    assert [data for kind, data in kinds if kind == "text_delta"] == ["above"]
    assert [kind for kind, _ in kinds].count("done") == 1


def test_an_agent_of_the_kernel_takes_a_whole_conversation() -> None:
    """What was said, called and answered before, with the question last."""
    first = CutoverAgent(looking(), switches=OFF).run_sync("Where is the key?")
    failed = ToolMessage("no such place", tool_call_id="x", name="look", status="error")
    before = [*first.messages, AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "x"}]), failed]
    response = native(turn("In the attic.")).run_sync([*before, ("user", "And the lamp?")])
    kinds = [message["type"] for message in response.messages]
    assert kinds == ["human", "ai", "tool", "ai", "ai", "tool", "human", "ai"]
    assert [m["status"] for m in response.messages if m["type"] == "tool"] == ["success", "error"]


def test_an_agent_of_the_kernel_takes_images_and_files() -> None:
    """Standard content blocks become the parts of a prompt."""
    data = base64.b64encode(b"bytes").decode()
    content: list[Any] = [
        "look at",
        {"type": "text", "text": "these"},
        {"type": "image", "url": "https://example.com/key.png"},
        {"type": "image", "base64": data, "mime_type": "image/jpeg"},
        {"type": "file", "base64": data, "mime_type": "application/pdf", "extras": {"filename": "key.pdf"}},
    ]
    model = ScriptedModel([turn("done")])
    CutoverAgent(Agent(model)).run_sync([HumanMessage(content)])
    [request] = model.requests
    assert request.messages[0].content == (
        TextPart(text="look at"),
        TextPart(text="these"),
        ImagePart(url="https://example.com/key.png"),
        ImagePart(data=b"bytes", media_type="image/jpeg"),
        FilePart(name="key.pdf", data=b"bytes", media_type="application/pdf"),
    )


@pytest.mark.parametrize(
    "prompt",
    [
        [AIMessage("I am last.")],
        [SystemMessage("Be brief."), HumanMessage("Where?")],
        [HumanMessage([{"type": "video", "url": "https://example.com"}])],
        [],
        [7],
        [{"type": "nothing", "content": ""}],
    ],
)
def test_a_conversation_that_the_kernel_cannot_take_is_refused(prompt: Any) -> None:
    """The error says which message, and what to do."""
    with pytest.raises(ConfigError, match="prompt"):
        native(turn("done")).run_sync(prompt)


def test_a_lost_record_changes_nothing_for_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    """The log says so."""

    class Full(MemoryTurnLedger):
        def add(self, record: Any) -> None:
            raise OSError("no space left")

    with caplog.at_level(logging.WARNING, "endstop.cutover"):
        assert native(turn("done"), ledger=Full()).run_sync("Where?").final_response == "done"
    assert "is not recorded" in caplog.text


async def test_an_agent_of_the_kernel_is_awaited_where_a_loop_runs() -> None:
    """`run_sync` would block it."""
    with pytest.raises(UsageError, match="await"):
        native(turn("done")).run_sync("Where?")


def test_turns_at_the_same_time_do_not_mix() -> None:
    """Hundreds on one event loop, run and streamed, each with a count of its own."""

    async def remember(context: ToolContext[int]) -> str:
        """Remember."""
        await asyncio.sleep(0)
        observe_recall({"admitted": context.deps})
        return ""

    def agent() -> CutoverAgent:
        return native(turn(calls=[call("remember")]), turn("done"), tools=[remember])

    async def counted(number: int) -> Any:
        if number % 2:
            return (await agent().run("What do you know?", deps=number)).memory_entries_used
        done: Any = (await chunks_of(agent(), deps=number))[-1].data
        return done["memory_entries_used"]

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*map(counted, range(300)))

    assert asyncio.run(all_of_them()) == [*range(300)]


# -- misuse ----------------------------------------------------------------------------------------


def test_what_is_no_agent_is_refused() -> None:
    """So is a preset on an agent of the kernel, which has no graph to fall back to."""
    with pytest.raises(ConfigError, match="graph"):
        CutoverAgent("agent")  # type: ignore[arg-type]  # callers are not all type-checked
    with pytest.raises(ConfigError, match="ask_user_enabled"):
        CutoverAgent(Agent(ScriptedModel([])), config=AgentConfig(ask_user_enabled=True))


async def test_a_wire_version_that_is_none_is_refused() -> None:
    """Before anything runs."""
    version: Any = 3
    stream = CutoverAgent(looking()).stream_chunks("Where?", wire_version=version)
    with pytest.raises(ConfigError, match="wire_version"):
        await anext(stream)
