"""The built-in tool by which a model asks its user."""

from __future__ import annotations

import pytest

from endstop import Agent, AskUser, InterruptEvent, ToolReturn, ask_user
from endstop.models.scripted import ScriptedModel, call, turn
from tests.runs import events_of
from tests.shop import answers_to, returns, stored


def asker(*questions: dict[str, object]) -> tuple[Agent[str], ScriptedModel]:
    """An agent whose model asks all the questions at once."""
    model = ScriptedModel([turn(calls=[call("ask_user", question) for question in questions]), "done"])
    return Agent(model, tools=[ask_user]), model


async def test_the_model_is_offered_a_question_and_a_schema() -> None:
    """The context parameter is the kernel's own."""
    agent, model = asker({"question": "name?"})
    await agent.run("go")
    (spec,) = model.requests[0].tools
    assert (spec.name, set(spec.parameters["properties"])) == ("ask_user", {"question", "schema"})
    assert spec.parameters["required"] == ["question"]


async def test_it_is_offered_only_where_the_adopter_does() -> None:
    """An agent without it has no such tool."""
    model = ScriptedModel([turn(calls=[call("ask_user", {"question": "name?"})]), "done"])
    result = await Agent(model).run("go")
    assert (result.stop_reason, list(returns(result).values())) == (
        "completed",
        ["There is no tool 'ask_user'; the tools are: none."],
    )


async def test_a_question_pauses_the_run() -> None:
    """The pause is of kind `ask_user`, has the model's question and schema, and is told by an event of its own."""
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    agent, _ = asker({"question": "who are you?", "schema": schema})
    async with agent.stream("go") as run:
        events = await events_of(run)
    (pause,) = run.result.pauses
    assert (pause.kind, pause.question, pause.answer_schema) == ("ask_user", "who are you?", schema)
    assert [event.pause for event in events if isinstance(event, AskUser)] == [pause]
    assert [event for event in events if isinstance(event, InterruptEvent)] == []


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        ("Ada", "Ada"),
        ("", ""),
        (42, "42"),
        (True, "true"),
        ({"name": "Ada", "of": ["1815"]}, '{"name":"Ada","of":["1815"]}'),
        (None, "(no result)"),
    ],
)
async def test_the_answer_is_the_tool_s_return(answer: object, content: str) -> None:
    """Text as it is, anything else as JSON."""
    agent, model = asker({"question": "name?"})
    paused = await agent.run("go")
    result = await agent.resume(stored(paused), answers=answers_to(paused, answer))
    last = model.requests[-1].messages[-1]
    assert isinstance(last, ToolReturn)
    assert (last.content, last.status) == (content, "ok")
    assert result.text == "done"


async def test_several_questions_of_one_turn_are_asked_at_once() -> None:
    """Each has its own pause, and each is one tool call, paid once; asking changes nothing."""
    agent, model = asker({"question": "name?"}, {"question": "age?"}, {"question": "age?"})
    paused = stored(await agent.run("go"))
    answers = {pause.pause_id: str(number) for number, pause in enumerate(paused.pauses)}
    assert len(answers) == 3
    assert paused.ending is not None
    assert paused.ending.effects == ()
    result = await agent.resume(paused, answers=answers)
    assert list(returns(result).values()) == ["0", "1", "2"]
    assert result.spent.tools == {"ask_user": 3}
    assert model.request_count == 2


async def test_a_question_without_its_text_goes_back_to_the_model() -> None:
    """Nobody is asked nothing."""
    agent, _ = asker({"schema": {"type": "string"}})
    result = await agent.run("go")
    assert list(returns(result).values()) == [
        "The arguments do not fit: question: Missing required keyword only argument"
    ]
