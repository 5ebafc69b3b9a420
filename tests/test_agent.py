"""The agent as its users meet it: how it is made, run, streamed and shared."""

from __future__ import annotations

import dataclasses
from collections import Counter

import anyio
import pytest

from endstop import (
    Agent,
    AgentResult,
    Budget,
    ConfigError,
    FilePart,
    ImagePart,
    ModelTurn,
    PlanLimits,
    PriceUnknown,
    RunState,
    TextPart,
    ToolCall,
    ToolReturn,
    UsageError,
    UserMessage,
)
from endstop.models.base import ModelRequest
from endstop.models.scripted import ScriptedModel, call, forever, turn
from tests.runs import asks, assert_nothing_held, assert_valid_history, events_of, look, searcher

# --- making one -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"name": ""}, "name"),
        ({"model": "gpt"}, "model"),
        ({"model": None}, "model"),
        ({"output_repairs": -1}, "output_repairs"),
        ({"output_repairs": True}, "output_repairs"),
        ({"tools": [look, look]}, "tools"),
        ({"tools": ["look"]}, "tools"),
        ({"tools": [lambda n: n]}, "name"),
    ],
)
def test_what_cannot_be_used_is_refused_when_the_agent_is_made(options: dict[str, object], field: str) -> None:
    """The error names the field; no run is needed to find out."""
    with pytest.raises(ConfigError) as refused:
        Agent(**{"model": ScriptedModel([]), **options})
    assert refused.value.field == field


def test_an_agent_is_frozen() -> None:
    """Nothing that runs can change what another run of it sees."""
    agent, _ = searcher("done")
    with pytest.raises(dataclasses.FrozenInstanceError):
        agent.name = "other"


@pytest.mark.parametrize("prompt", ["", " \n", [], [""], ["text"], b"bytes", 7, None, {"text": "x"}])
async def test_a_prompt_that_says_nothing_is_refused(prompt: object) -> None:
    """Empty or of a wrong type: nothing is sent."""
    agent, model = searcher("never")
    with pytest.raises(ConfigError) as refused:
        await agent.run(prompt)
    assert (refused.value.field, model.request_count) == ("prompt", 0)


# --- running it -----------------------------------------------------------------------------------


@pytest.mark.both_backends
async def test_a_run_goes_from_prompt_to_answer() -> None:
    """Tools run, the answer is the result, and everything said is in its messages."""
    agent, model = searcher(asks(1, usage=(10, 2)), turn("One page.", usage=(20, 3)))
    result = await agent.run("How many pages?")
    assert (result.text, result.output, result.stop_reason) == ("One page.", "One page.", "completed")
    assert (result.truncated, result.ending) == (False, None)
    assert [message.kind for message in result.messages] == ["user", "model", "tool", "model"]
    assert (result.spent.model_calls, result.spent.tool_calls, result.spent.tokens) == (2, 1, 35)
    assert result.duration_ms == result.spent.seconds * 1_000 > 0
    assert model.requests[0].messages[0] == UserMessage(content="How many pages?")
    assert_valid_history(result.messages)


@pytest.mark.both_backends
async def test_run_and_stream_come_to_the_same_result() -> None:
    """`run` is the stream, read to its end."""
    results = []
    for streamed in (False, True):
        agent, _ = searcher(asks(1), "done")
        if streamed:
            async with agent.stream("Go.", run_id="r") as stream:
                await events_of(stream)
            results.append(stream.result)
        else:
            results.append(await agent.run("Go.", run_id="r"))
    one, two = results
    assert (one.messages, one.text, one.stop_reason) == (two.messages, two.text, two.stop_reason)
    assert one.state.seq == two.state.seq


def test_run_sync_needs_no_event_loop() -> None:
    """The same run for code that is not async."""
    agent, _ = searcher(asks(1), "done")
    assert agent.run_sync("Go.", limits=PlanLimits(max_model_rounds=3)).text == "done"


@pytest.mark.both_backends
async def test_run_sync_is_refused_inside_an_event_loop() -> None:
    """It would block the loop that it needs; the error says what to call."""
    agent, model = searcher("never")
    with pytest.raises(UsageError, match=r"await agent\.run"):
        agent.run_sync("Go.")
    assert model.request_count == 0


async def test_instructions_are_no_message() -> None:
    """They are sent with every request and are no part of the conversation."""
    model = ScriptedModel([asks(1), "done"])
    result = await Agent(model, tools=[look], instructions="Be brief.").run("Go.")
    assert {request.instructions for request in model.requests} == {"Be brief."}
    assert "Be brief." not in str(result.messages)


async def test_a_prompt_may_have_several_parts() -> None:
    """Text, an image and a file reach the model as they are, and survive storing."""
    parts = [
        TextPart(text="What is this?"),
        ImagePart(data=b"\x89PNG\xff\x00", media_type="image/png"),
        FilePart(name="a.pdf", url="https://example.org/a.pdf", media_type="application/pdf"),
    ]
    agent, model = searcher("A picture.")
    result = await agent.run(parts)
    assert model.requests[0].messages[0] == UserMessage(content=tuple(parts))
    assert RunState.from_json(result.state.to_json()) == result.state


async def test_a_run_has_an_id() -> None:
    """The one that was given, else one of its own."""
    agent = Agent(ScriptedModel([forever("done")]))
    assert (await agent.run("Go.", run_id="mine")).run_id == "mine"
    one, two = await agent.run("Go."), await agent.run("Go.")
    assert one.run_id
    assert one.run_id != two.run_id


@pytest.mark.both_backends
async def test_a_history_goes_on() -> None:
    """The messages of a result are the history of the next run, and only its own are new."""
    agent, model = searcher("One.", "Two.")
    first = await agent.run("First?")
    second = await agent.run("Second?", history=first.messages)
    assert [getattr(m, "content", getattr(m, "text", "")) for m in model.requests[1].messages] == [
        "First?",
        "One.",
        "Second?",
    ]
    assert len(second.new_messages) == 2
    assert second.messages[:2] == first.messages


async def test_a_history_that_was_broken_off_is_made_valid() -> None:
    """A call that nobody answered is answered as not run, and a return that answers nothing is left out."""
    asked = ToolCall(call_id="c1", name="look", arguments={"n": 1})
    stray = ToolReturn(call_id="c9", name="look", content="stray")
    history = [UserMessage(content="First?"), stray, ModelTurn(tool_calls=(asked,), finish_reason="tool_calls")]
    agent, model = searcher("done")
    result = await agent.run("Go on.", history=history)
    assert_valid_history(model.requests[0].messages)
    assert [m.status for m in result.messages if isinstance(m, ToolReturn)] == ["not_run"]
    assert history[1] is stray
    assert len(history) == 3


async def test_limits_of_a_run_replace_the_agents_own() -> None:
    """They are not mixed: what the run's limits leave open is open."""
    agent, model = searcher(limits=PlanLimits(max_model_rounds=2))
    await agent.run("Go.")
    assert model.request_count == 2
    await agent.run("Go.", limits=PlanLimits(max_model_rounds=None, max_tool_calls=7))
    assert model.request_count == 2 + 9


async def test_a_price_that_is_not_known_is_refused_before_anything_runs() -> None:
    """In `stream` as in `run`, with nothing held."""
    agent = Agent(ScriptedModel([], name="no-such-model"), limits=PlanLimits(max_cost=1))
    budget = Budget(PlanLimits(max_model_calls=5))
    with pytest.raises(PriceUnknown) as refused:
        agent.stream("Go.", budget=budget)
    assert refused.value.model == "no-such-model"
    assert_nothing_held(budget)


# --- odd sizes ------------------------------------------------------------------------------------


@pytest.mark.both_backends
async def test_a_megabyte_goes_in_and_out() -> None:
    """A long prompt and a long answer are neither cut nor copied into something else."""
    text = "zwölf Boxkämpfer " * 65_000
    agent, model = searcher(text)
    result = await agent.run(text)
    assert result.text == text
    assert model.requests[0].messages[0] == UserMessage(content=text)
    assert AgentResult.from_json(result.to_json()) == result


async def test_text_that_no_encoding_takes_is_made_good() -> None:
    """A lone surrogate in a prompt or in a tool's result would break storing and sending."""

    async def odd(n: int) -> str:
        """Return odd text."""
        return f"{n} \ud83d"

    agent = Agent(ScriptedModel([turn(calls=[call("odd", {"n": 1})]), "done"]), tools=[odd])
    result = await agent.run("Go \udc00.")
    result.to_json().encode("utf-8")
    assert RunState.from_json(result.state.to_json()) == result.state


async def test_a_model_may_ask_for_hundreds_of_calls_at_once() -> None:
    """All run, and each return is at its place."""
    agent, _ = searcher(asks(*range(500)), "done")
    result = await agent.run("Go.")
    contents = [m.content for m in result.messages if isinstance(m, ToolReturn)]
    assert contents == [f"page {n}" for n in range(500)]


# --- sharing it -----------------------------------------------------------------------------------


@pytest.mark.both_backends
async def test_a_thousand_runs_of_one_agent_do_not_mix() -> None:
    """Each has its own prompt, history, deps, count and answer; together they are charged to the shared budget."""

    def step(request: ModelRequest) -> ModelTurn:
        prompt = request.messages[0]
        assert isinstance(prompt, UserMessage)
        number = int(str(prompt.content))
        seen = [m.content for m in request.messages if isinstance(m, ToolReturn)]
        return asks(number + len(seen), usage=(3, 1)) if len(seen) < 3 else turn("|".join(seen), usage=(3, 1))

    agent = Agent(ScriptedModel([forever(step)], latency_seconds=0.001, record=False), tools=[look])
    budget = Budget(PlanLimits(max_model_rounds=None, max_model_calls=10_000, max_tool_calls=9_000))
    answers: dict[int, AgentResult[str]] = {}

    async def go(number: int) -> None:
        answers[number] = await agent.run(f"{number}", budget=budget, run_id=f"run {number}")

    async with anyio.create_task_group() as group:
        for number in range(1_000):
            group.start_soon(go, number * 10)
    for number, result in answers.items():
        assert result.text == f"page {number}|page {number + 1}|page {number + 2}"
        assert result.run_id == f"run {number}"
        assert (result.spent.model_calls, result.spent.tool_calls, result.spent.tokens) == (4, 3, 16)
    assert (budget.spent(0).model_calls, budget.spent(0).tool_calls) == (4_000, 3_000)
    assert_nothing_held(budget)


async def test_an_agent_may_call_itself_from_a_tool() -> None:
    """A run inside a tool of another run of the same agent is a run of its own."""
    counts: Counter[str] = Counter()

    async def again(n: int) -> str:
        """Run the agent again."""
        counts["again"] += 1
        return (await agents[0].run(f"{n}")).text if n else "the bottom"

    def step(request: ModelRequest) -> ModelTurn:
        prompt, newest = request.messages[0], request.messages[-1]
        if isinstance(newest, ToolReturn):
            return turn(f"{newest.content}, and up")
        assert isinstance(prompt, UserMessage)
        return turn(calls=[call("again", {"n": int(str(prompt.content)) - 1})])

    agents = [Agent(ScriptedModel([forever(step)]), tools=[again])]
    assert (await agents[0].run("3")).text == "the bottom, and up, and up, and up"
    assert counts["again"] == 3
