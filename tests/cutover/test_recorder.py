"""What an agent does is on its tape, and the agent does not notice."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import FakeListLLM
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import create_react_agent
from langgraph.types import Command, interrupt

from endstop import ConfigError
from endstop.cutover._recorder import Recorder, record
from endstop.cutover.tape import messages_of, read_tape, turns_of

from .agents import agent, calls, look, says, taped, turn_of

SECRET = "hunter2hunter2"


def test_a_turn_is_on_the_tape(tmp_path: Path) -> None:
    """Requests with tools and settings, answers, calls, results, and the end, all of one turn."""
    with record(tmp_path / "t.jsonl") as recorder:
        config = {"configurable": {"thread_id": 7}, "recursion_limit": 12, "tags": ["night"]}
        out = agent(calls(("look", {"word": "a"})), "done", name="helper").invoke({"messages": "hello"}, config)
    tape = read_tape(tmp_path / "t.jsonl")
    [turn] = tape.turns
    assert (recorder.problems, tape.incomplete, tape.problems) == ([], (), ())
    assert (turn.surface, turn.thread_id, turn.recursion_limit, turn.tags) == ("helper", "7", 12, ("night",))
    assert [[m.type for m in messages_of(r.messages)] for r in turn.requests] == [
        ["system", "human"],
        ["system", "human", "ai", "tool"],
    ]
    assert [t["function"]["name"] for t in turn.requests[0].tools] == ["look", "fail"]
    assert turn.requests[0].settings["model"] == "scripted"
    [call] = turn.calls
    assert (call.name, call.args, call.call_id, call.round) == ("look", {"word": "a"}, "c1", 1)
    assert messages_of(turn.messages) == out["messages"]
    assert messages_of(turn.start) == out["messages"][:1]


def test_both_agents_are_taped_sync_and_async_and_streamed(tmp_path: Path) -> None:
    """One import more or less, `invoke`, `ainvoke`, `stream`: the same turn."""
    older = create_react_agent(says(calls(("look", {"word": "a"})), "done"), [look])
    with record(tmp_path / "t.jsonl"):
        older.invoke({"messages": [("user", "hello")]})
        asyncio.run(older.ainvoke({"messages": [("user", "hello")]}))
        assert list(older.stream({"messages": [("user", "hello")]}))
    tape = read_tape(tmp_path / "t.jsonl")
    assert [(len(t.requests), len(t.calls), len(t.messages)) for t in tape.turns] == [(2, 1, 4)] * 3


def test_turns_at_once_do_not_mix(tmp_path: Path) -> None:
    """Many turns in threads and tasks, each whole and with its own words."""
    with record(tmp_path / "t.jsonl"):

        def one(word: str) -> None:
            agent(calls(("look", {"word": word}), prefix=word), word).invoke({"messages": word})

        async def many() -> None:
            agents = [(f"t{i}", agent(calls(("look", {"word": f"t{i}"})), f"t{i}")) for i in range(10)]
            await asyncio.gather(*(a.ainvoke({"messages": word}) for word, a in agents))

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(copy_context().run, one, f"w{i}") for i in range(10)]:
                done.result()
        asyncio.run(many())
    tape = read_tape(tmp_path / "t.jsonl")
    assert len(tape.turns) == 20
    for turn in tape.turns:
        first, last = messages_of([turn.messages[0], turn.messages[-1]])
        assert first.content == last.content == turn.calls[0].args["word"]


def test_an_agent_in_a_tool_has_a_turn_of_its_own() -> None:
    """It names its parent, and the outer turn has the tool's result alone."""
    inner = agent("forty-two", name="inner")

    @tool
    def ask(question: str) -> str:
        """Ask the other one."""
        says("a model that the tool asks by itself").invoke(question)
        return inner.invoke({"messages": question})["messages"][-1].content

    within, outer = taped(
        lambda config: agent(calls(("ask", {"question": "?"})), "done", tools=[ask]).invoke({"messages": "go"}, config)
    )
    assert (within.surface, within.parent, outer.parent) == ("inner", outer.run_id, None)
    assert (len(within.requests), len(outer.requests)) == (1, 2)
    assert outer.calls[0].message["data"]["content"] == "forty-two"


def test_an_agent_in_a_node_has_a_turn_of_its_own() -> None:
    """Also where a graph is a node of a graph."""
    graph = StateGraph(MessagesState)
    graph.add_node("inner", agent("hi"))
    graph.add_edge(START, "inner")
    within, outer = taped(lambda config: graph.compile().invoke({"messages": "go"}, config))
    assert (within.parent, len(within.requests), len(outer.requests)) == (outer.run_id, 1, 0)


def test_errors_end_a_turn() -> None:
    """Of the model and of a tool, by class and text."""

    def run(config: dict[str, Any]) -> None:
        with pytest.raises(ZeroDivisionError):
            agent(ZeroDivisionError("by zero")).invoke({"messages": "go"}, config)
        with pytest.raises(KeyError):
            agent(calls(("fail", {"word": "x"}))).invoke({"messages": "go"}, config)

    model, called = taped(run)
    assert model.error == model.requests[0].error
    assert (model.error.name, model.error.text) == ("builtins.ZeroDivisionError", "by zero")
    assert called.error == called.calls[0].error
    assert (called.error.name, called.error.text) == ("builtins.KeyError", "'x'")
    assert messages_of(called.start) == messages_of(called.requests[0].messages)[1:]


def test_an_interrupt_is_told_once_and_resumed() -> None:
    """What is asked of a person, and what the person said, as the input of the next turn."""

    @tool
    def ask(question: str) -> str:
        """Ask a person."""
        return interrupt({"q": question})

    def run(config: dict[str, Any]) -> None:
        own = agent(calls(("ask", {"question": "?"})), "done", tools=[ask], checkpointer=InMemorySaver())
        config |= {"configurable": {"thread_id": "1"}}
        own.invoke({"messages": "go"}, config)
        own.invoke(Command(resume="yes"), config)

    asked, resumed = taped(run)
    assert [one["value"] for one in asked.interrupts] == [{"q": "?"}]
    assert asked.calls[0].interrupts == asked.interrupts
    assert asked.error is None
    assert (resumed.input["resume"], resumed.interrupts, resumed.calls[0].message["data"]["content"]) == (
        "yes",
        (),
        "yes",
    )


def test_a_secret_is_nowhere_on_the_tape(tmp_path: Path) -> None:
    """Known by its name: in calls, in the texts of a provider, headers, metadata and results that are JSON."""
    args = {"word": "a", "API_KEY": SECRET, "nested": [{"Authorization": {"bearer": SECRET}}]}

    @tool
    def sign_in(word: str, API_KEY: str, nested: list[dict[str, Any]]) -> str:
        """Sign in."""
        return json.dumps({"session": [{"token": SECRET}], "user": API_KEY[:0]})

    answer = calls(("sign_in", args))
    answer.additional_kwargs = {"tool_calls": [{"function": {"name": "sign_in", "arguments": json.dumps(args)}}]}
    answer.response_metadata = {"headers": {"set-cookie": SECRET}}
    with record(tmp_path / "t.jsonl") as recorder:
        agent(answer, "done", tools=[sign_in]).invoke(
            {"messages": [HumanMessage("go", additional_kwargs={"password": SECRET})]},
            {"metadata": {"token": SECRET}},
        )
    assert recorder.problems == []
    assert SECRET.encode() not in (tmp_path / "t.jsonl").read_bytes()
    [turn] = read_tape(tmp_path / "t.jsonl").turns
    parameters = turn.requests[0].tools[0]["function"]["parameters"]["properties"]
    assert parameters["API_KEY"] == {"type": "string"}


def test_the_names_can_be_ones_own(tmp_path: Path) -> None:
    """And a text is no set of names."""
    with record(tmp_path / "t.jsonl", redact={"word"}):
        agent(calls(("look", {"word": SECRET, "api_key": "seen"})), "done", tools=[look]).invoke({"messages": "go"})
    [turn] = read_tape(tmp_path / "t.jsonl").turns
    assert turn.calls[0].args == {"word": "[redacted]", "api_key": "seen"}
    with pytest.raises(ConfigError, match="set of names"), record(tmp_path / "t.jsonl", redact="word"):
        pass


def test_a_full_disk_does_not_reach_the_turn(caplog: pytest.LogCaptureFixture) -> None:
    """The turn goes on as it would; the problem is kept and logged, and the tape says what is missing."""
    events: list[Any] = []

    def full(event: Any) -> None:
        if event["event"] == "model_answer":
            raise OSError(28, "No space left on device")
        events.append(event)

    recorder = Recorder(full)
    out = agent("done").invoke({"messages": "go"}, {"callbacks": [recorder]})
    assert out["messages"][-1].content == "done"
    assert recorder.problems == ["OSError: [Errno 28] No space left on device"]
    assert "No space left" in caplog.text
    [turn] = turns_of(events)
    assert turn.incomplete
    assert turn.problems == ("events of this turn are missing",)


def test_problems_do_not_pile_up() -> None:
    """A disk that stays full for ever fills no memory."""
    recorder = Recorder(lambda _: 1 / 0)
    answers = [calls(("look", {"word": "a"})) for _ in range(60)]
    logging.disable(logging.WARNING)
    try:
        agent(*answers, "done").invoke({"messages": "go"}, {"callbacks": [recorder], "recursion_limit": 200})
    finally:
        logging.disable(logging.NOTSET)
    assert len(recorder.problems) == 100


def test_what_cannot_be_written_makes_the_turn_incomplete(caplog: pytest.LogCaptureFixture) -> None:
    """A result that is no JSON, and a Command: the class is named, the value is not shown."""
    events: list[Any] = []
    recorder = Recorder(events.append)

    @tool(response_format="content_and_artifact")
    def odd() -> tuple[str, object]:
        """Return something odd."""
        return "odd", object()

    @tool
    def go() -> Command[Any]:
        """Go somewhere."""
        return Command(update={"messages": [{"role": "tool", "content": "went", "tool_call_id": "c2"}]})

    agent(calls(("odd", {}), ("go", {})), "done", tools=[odd, go]).invoke({"messages": "x"}, {"callbacks": [recorder]})
    [turn] = turns_of(events)
    assert sorted(turn.problems)[0] == "model_request: a value of type builtins.object cannot be written"
    assert "tool_result: a Command that a tool returned cannot be written" in turn.problems
    assert "builtins.object" in caplog.text


def test_what_is_no_graph_is_no_turn() -> None:
    """A model by itself, and a run that the recorder saw nothing begin of."""
    assert taped(lambda config: says("hi").invoke("x", config)) == []
    assert taped(lambda config: FakeListLLM(responses=["hi"]).invoke("x", config)) == []


def test_outputs_that_are_no_state_are_taken(tmp_path: Path) -> None:
    """The messages alone, or another channel."""
    with record(tmp_path / "t.jsonl"):
        agent("hi").invoke({"messages": "go"}, output_keys="messages")
    [turn] = read_tape(tmp_path / "t.jsonl").turns
    assert [m.content for m in messages_of(turn.messages)] == ["go", "hi"]


def test_a_process_that_is_killed_leaves_what_it_did(tmp_path: Path) -> None:
    """Each event is in the file when it happens: the turn is there without its end."""
    program = (
        "import os, signal, sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from langchain_core.tools import tool\n"
        "from agents import agent, calls\n"
        "from endstop.cutover._recorder import record\n"
        "@tool\n"
        "def die() -> str:\n"
        "    'Die.'\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "with record(sys.argv[1]):\n"
        "    agent(calls(('die', {})), tools=[die]).invoke({'messages': 'go'})\n"
    )
    path = tmp_path / "t.jsonl"
    done = subprocess.run([sys.executable, "-c", program, path], env={**os.environ}, check=False)
    assert done.returncode == -signal.SIGKILL
    tape = read_tape(path)
    [turn] = tape.incomplete
    assert (tape.turns, turn.ended, turn.calls[0].finished) == ((), False, False)
    assert isinstance(messages_of([turn.requests[0].answer])[0], AIMessage)


def test_the_turn_is_the_same_with_and_without_a_tape(tmp_path: Path) -> None:
    """Same messages, whatever is taped."""
    lines = (calls(("look", {"word": "a"}), ("nope", {})), "done")
    bare = agent(*lines).invoke({"messages": "go"})["messages"]
    with record(tmp_path / "t.jsonl"):
        seen = agent(*lines).invoke({"messages": "go"})["messages"]
    assert [(m.type, m.content) for m in seen] == [(m.type, m.content) for m in bare]
    assert turn_of(*lines).ended
