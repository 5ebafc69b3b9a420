"""A recorded turn is played back without a model and without a tool."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from endstop.cutover._players import RecordedModel, recorded_tools
from endstop.cutover._recorder import record
from endstop.cutover.replay import replay, replay_turn
from endstop.cutover.tape import RecordedCall, RecordedError, RecordedTurn, Request, TapeExhausted

from .agents import agent, calls, fail, look, taped, turn_of

PROMPT = "Be brief."


def built(**options: Any) -> Any:
    return lambda model, tools: create_agent(model, tools, **{"system_prompt": PROMPT, **options})


def lines_of(batches: list[list[tuple[str, dict[str, Any]]]]) -> list[Any]:
    return [*(calls(*batch, prefix=f"r{i}-") for i, batch in enumerate(batches)), "done"]


ASKED = st.tuples(st.sampled_from(["look", "nope"]), st.fixed_dictionaries({"word": st.sampled_from(["a", "b", 1])}))


@settings(max_examples=15, deadline=None)
@given(batches=st.lists(st.lists(ASKED, min_size=1, max_size=3), max_size=3))
def test_an_agent_is_the_same_as_itself(batches: list[list[tuple[str, dict[str, Any]]]]) -> None:
    """Whatever it calls, in whatever batches, unknown tools and bad arguments among them."""
    turn = turn_of(*lines_of(batches), tools=[look])
    assert replay_turn(turn, built(), [look]).differences == ()


def test_another_agent_is_seen(tmp_path: Path) -> None:
    """What it asks of the model, and with which tools."""
    path = tmp_path / "t"
    with record(path):
        agent(calls(("look", {"word": "a"})), "done").invoke({"messages": "go"})
    assert replay(path, built(), [look, fail]).to_text() == "1 turns: 1 same, 0 different, 0 refused, 0 failed"
    assert replay(path, built(), [look, fail], surface="nobody").turns == ()
    for build, code in [
        (built(system_prompt="Be long."), "model_messages"),
        (lambda model, tools: built()(model, tools[:1]), "model_tools"),
        (lambda model, tools: built()(model, tools[1:]), "tool_calls"),
    ]:
        report = replay(path, build, [look, fail])
        assert report.exit_code == 1
        assert code in {one.code for one in report.turns[0].differences}


def test_no_tool_acts() -> None:
    """Results, artifacts and errors are those of the tape: the tool is never run again."""
    ran: list[str] = []

    @tool(response_format="content_and_artifact")
    def act(word: str) -> tuple[str, list[int]]:
        """Act."""
        ran.append(word)
        return word, [len(ran)]

    turn = turn_of(calls(("act", {"word": "x"}), ("act", {"word": "y"})), "done", tools=[act])
    assert replay_turn(turn, built(), [act]).differences == ()
    assert sorted(ran) == ["x", "y"]


def test_errors_are_played_back() -> None:
    """With class and text, so that what catches or retries them does so again."""
    options = {"middleware": [ToolRetryMiddleware(max_retries=1, initial_delay=0.0, retry_on=(KeyError,))]}
    retried = turn_of(calls(("fail", {"word": "x"})), "done", **options)
    assert len(retried.calls) == 2
    assert replay_turn(retried, built(**options), [look, fail]).differences == ()

    def run(config: dict[str, Any]) -> None:
        with pytest.raises(ZeroDivisionError):
            agent(ZeroDivisionError("by zero")).invoke({"messages": "go"}, config)
        with pytest.raises(OSError, match="reset"):
            agent(ConnectionResetError(104, "reset")).invoke({"messages": "go"}, config)
        with pytest.raises(KeyError):
            agent(calls(("fail", {"word": "x"}))).invoke({"messages": "go"}, config)
        with pytest.raises(RecursionError):
            agent(calls(("look", {"word": "x"}))).invoke({"messages": "go"}, {**config, "recursion_limit": 3})

    for turn in taped(run):
        assert replay_turn(turn, built(), [look, fail]).differences == ()


def test_interrupts_are_played_back() -> None:
    """The turn that asks is the same; the one that goes on from the answer began with no messages."""

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
    assert replay_turn(asked, built(), [ask]).differences == ()
    assert "goes on from an interrupt" in str(replay_turn(resumed, built(), [ask]).error)


def test_a_thread_is_gone_on_with() -> None:
    """The history is part of what is replayed."""
    kept = agent("one", "two", checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "1"}}
    _, second = taped(lambda extra: [kept.invoke({"messages": "go"}, {**config, **extra}) for _ in range(2)])
    assert len(second.start) == 3
    assert replay_turn(second, built(), [look, fail]).differences == ()


def test_an_agent_that_asks_more_is_told_so() -> None:
    """The tape has no more answers, and no result for another call."""
    turn = turn_of("done")
    model = RecordedModel(turn)
    assert model._llm_type == "recorded"
    assert model.invoke("go").content == "done"
    with pytest.raises(TapeExhausted, match="answer number 2") as caught:
        model.invoke("go")
    assert caught.value.code == "tape_exhausted"
    [stand_in] = recorded_tools(turn, [look])
    with pytest.raises(TapeExhausted, match="result of look"):
        stand_in.invoke({"word": "a"})


def test_a_call_without_an_id_is_known_by_its_arguments() -> None:
    """Values and results are given as they were, sync and async."""
    made = [
        RecordedCall(name="look", args={"word": "a"}, round=1, result=[1]),
        RecordedCall(name="look", args={"word": "b"}, round=1, result=[2]),
    ]
    of = turn_of(calls(("look", {"word": "c"})), "done").calls
    [stand_in] = recorded_tools(RecordedTurn(run_id="1", calls=(*made, *of)), [look])
    assert stand_in.invoke({"word": "b"}) == [2]
    assert asyncio.run(stand_in.ainvoke({"word": "a"})) == [1]
    assert stand_in.invoke({"word": "c"}) == "c: found"


def test_an_error_whose_class_is_not_loaded_keeps_its_name() -> None:
    """Nothing is imported because a tape says so."""
    error = RecordedError(name="nowhere.to.be.Found", text="lost")
    turn = RecordedTurn(run_id="1", requests=(Request(messages=(), error=error),))
    with pytest.raises(Exception, match="lost") as caught:
        RecordedModel(turn).invoke("go")
    assert f"{type(caught.value).__module__}.{type(caught.value).__qualname__}" == error.name


def test_a_turn_that_cannot_be_replayed_says_why() -> None:
    """No end, or an agent that does not start."""
    cut = RecordedTurn(run_id="1", input={"messages": []})
    assert "it has no end" in str(replay_turn(cut, built(), []).error)

    class Broken:
        def invoke(self, input: object, config: object = None, /) -> object:
            raise ValueError("no")

    assert "ran no turn: ValueError: no" in str(replay_turn(turn_of("done"), lambda *_: Broken(), []).error)
