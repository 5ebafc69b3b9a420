"""What a person may answer to a pause: JSON that fits its schema, under an id that is open."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from endstop import Agent, Decision, Interrupt, ModelTurn, ResumeError, ToolCall, ToolContext, ToolSpec, tool
from endstop._messages import JsonObject
from endstop.models.scripted import ScriptedModel, call, turn
from tests.runs import events_of
from tests.shop import APPROVE, Shop, answers_to, ask, assert_all_answered, look, pause_of, pay, returns, stored


async def test_ids_that_take_no_answer_are_refused_by_name() -> None:
    """Unknown, answered, and of another run: the message names the id and those that are open; nothing runs."""
    shop = Shop(turn(calls=[pay(5), ask("age?")]))
    first = await shop.agent.run("go", run_id="r")
    second = await shop.agent.resume(first, answers={"r:ask:0": 42})
    before = second.to_json()
    for pause_id, why in [
        ("r:ask:0", "the pause 'r:ask:0' is used"),
        ("q:pay5:approval", "the pause 'q:pay5:approval' is not one of this run"),
        ("", "the pause '' is not one of this run"),
    ]:
        with pytest.raises(ResumeError, match=f"^{why}.*open are: 'r:pay5:approval'$"):
            await shop.agent.resume(second, answers={"r:pay5:approval": APPROVE, pause_id: 42})
    assert (second.to_json(), shop.done, shop.model.request_count) == (before, [], 1)


async def test_a_run_that_waits_needs_an_answer() -> None:
    """Going on without one is refused, with the ids and what they ask."""
    shop = Shop(turn(calls=[pay(5), ask("age?")]))
    paused = await shop.agent.run("go", run_id="r")
    with pytest.raises(ResumeError, match=r"one of 'r:pay5:approval' \(May pay be called\?\), 'r:ask:0' \(age\?\)$"):
        await shop.agent.resume(paused)


@pytest.mark.parametrize(
    ("call_id", "answer", "problem"),
    [
        ("ask", "old", "'old' is not of type 'integer'"),
        ("ask", None, "None is not of type 'integer'"),
        ("pay5", "yes", "use a Decision"),
        ("pay5", {"type": "perhaps"}, "use a Decision"),
        ("pay5", Decision(type="edit"), "use a Decision"),
        ("pay5", Decision(type="edit", arguments={"amount": "much"}), "'much' is not of type 'integer'"),
        ("pay5", Decision(type="edit", arguments={"amount": 1, "tip": 2}), r"\('tip' was unexpected\)"),
    ],
)
async def test_an_answer_that_does_not_fit_its_schema_is_refused(call_id: str, answer: object, problem: str) -> None:
    """Before anything runs, also where another answer fits; the right answer is taken after."""
    shop = Shop(turn(calls=[pay(5), ask("age?")]), "done")
    paused = await shop.agent.run("go", run_id="r")
    before = paused.to_json()
    right = {"r:pay5:approval": APPROVE, "r:ask:0": 42}
    with pytest.raises(ResumeError, match=f"to the pause 'r:{call_id}:.*does not fit its schema: .*{problem}"):
        await shop.agent.resume(paused, answers=right | {pause_of(paused, call_id).pause_id: answer})
    assert (paused.to_json(), shop.done) == (before, [])
    assert (await shop.agent.resume(paused, answers=right)).text == "done"


def deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "answer", [object(), {1, 2}, b"x", float("nan"), {"n": [float("inf")]}, deep(100), deep(9_999)]
)
async def test_an_answer_that_no_state_can_hold_is_refused(answer: object) -> None:
    """Also where no schema is asked for: the run must be able to be stored and read again."""
    shop = Shop(turn(calls=[call("offer", {"item": "tea"}, call_id="offer")]))
    paused = await shop.agent.run("go", run_id="r")
    with pytest.raises(ResumeError, match=r"^the answer .* to the pause 'r:offer:0' is neither JSON nor a Decision: "):
        await shop.agent.resume(paused, answers={"r:offer:0": answer})


@pytest.mark.parametrize("answer", [None, False, "", 0.5, [], {"a": [1, {"b": None}]}, deep(90), "\ud83d", "日本\0"])
async def test_any_other_json_is_an_answer(answer: object) -> None:
    """It reaches the tool as it was given, and the state that holds it can be stored and read again."""
    seen: list[object] = []

    def asking(context: ToolContext) -> str:
        """Ask twice."""
        seen.extend(context.answers[len(seen) :])
        if len(context.answers) < 2:
            raise Interrupt("what?")
        return "done"

    agent = Agent(ScriptedModel([turn(calls=[call("asking")]), "done"]), tools=[asking])
    paused = await agent.run("go")
    again = stored(await agent.resume(paused, answers=answers_to(paused, answer)))
    await agent.resume(again, answers=answers_to(again, answer))
    whole = "?" if answer == "\ud83d" else answer
    assert seen == [whole, whole], "half a surrogate pair is no text that UTF-8 can hold"


async def test_an_answer_is_taken_as_it_was_when_given() -> None:
    """What the caller does with it afterwards changes no stored run."""
    shop = Shop(turn(calls=[call("offer", {"item": "tea"}, call_id="offer"), pay(5)]))
    paused = await shop.agent.run("go", run_id="r")
    given = {"type": "edit", "arguments": {"amount": 1}}
    stream = shop.agent.resume_stream(paused, answers={"r:pay5:approval": given})
    given["arguments"] = {"amount": 1_000_000}
    async with stream as run:
        await events_of(run)
    assert shop.done == ["pay 1"]


BROKEN_SCHEMAS = {
    "no type": {"type": "wish"},
    "no pattern": {"type": "string", "pattern": "("},
    "another machine": {"$ref": "http://192.0.2.1/schema.json"},
    "another file": {"properties": {"a": {"items": [{"$ref": "schema.json#/a"}]}}},
    "nothing": {"$ref": "#/$defs/missing"},
    "no schema": {"enum": ["a"], "$ref": "#/enum/0"},
    "another base": {"properties": {"a": {"$id": "http://192.0.2.1/", "$ref": "#/$defs/a"}}, "$defs": {"a": True}},
    "itself": {"$ref": "#"},
}


@pytest.mark.parametrize("schema", BROKEN_SCHEMAS.values(), ids=BROKEN_SCHEMAS.keys())
async def test_a_question_that_no_answer_could_fit_is_not_asked(schema: dict[str, object]) -> None:
    """A schema that is none, or that leads out of itself, is an error return; nothing is ever fetched for it."""
    asked = call("ask_user", {"question": "age?", "schema": schema})
    shop = Shop(turn(calls=[asked]), "done")
    result = await shop.agent.run("go")
    assert result.stop_reason == "completed"
    assert "The schema of the answer is no JSON schema: " in next(iter(returns(result).values()))


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://192.0.2.1/schema.json"},
        {"type": "wish"},
        {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}},
    ],
    ids=["another machine", "no type", "itself, in a part"],
)
async def test_a_schema_that_is_found_wrong_later_takes_no_answer(schema: JsonObject) -> None:
    """In a stored state, or in a part that only some answers have: the answer is refused, and nothing is fetched."""
    shop = Shop(turn(calls=[ask("age?")]))
    paused = await shop.agent.run("go", run_id="r")
    paused.state.pauses[:] = [replace(pause, answer_schema=schema) for pause in paused.pauses]
    with pytest.raises(
        ResumeError, match="to the pause 'r:ask:0' does not fit its schema: the schema itself is wrong: "
    ):
        await shop.agent.resume(stored(paused), answers={"r:ask:0": {"a": 1}})


async def test_a_schema_may_refer_to_its_own_parts() -> None:
    """By paths from its root, also where it names itself."""
    schema = {
        "$id": "https://example.com/tree",
        "type": "object",
        "properties": {"name": {"$ref": "#/$defs/a~1b/anyOf/1"}, "children": {"items": {"$ref": "#"}}},
        "required": ["name"],
        "$defs": {"a/b": {"anyOf": [True, {"type": "string"}]}},
    }
    shop = Shop(turn(calls=[call("ask_user", {"question": "family?", "schema": schema})]), "done")
    paused = await shop.agent.run("go")
    with pytest.raises(ResumeError, match="'name' is a required property"):
        await shop.agent.resume(paused, answers=answers_to(paused, {"name": "Ada", "children": [{}]}))
    result = await shop.agent.resume(paused, answers=answers_to(paused, {"name": "Ada", "children": [{"name": "B"}]}))
    assert result.text == "done"


class Node(BaseModel):
    """A tree: its schema refers to itself."""

    size: int
    children: list[Node] = []


async def test_edited_arguments_are_checked_to_the_depth_of_the_tool_s_own_schema() -> None:
    """The schema of an approval has the tool's in it, whose references still lead to where they did."""

    @tool(requires_approval=True)
    def plant(tree: Node) -> str:
        """Plant a tree."""
        return str(sum(child.size for child in tree.children))

    small, wrong = {"size": 1, "children": [{"size": 2}]}, {"size": 1, "children": [{"size": "big"}]}
    agent = Agent(ScriptedModel([turn(calls=[call("plant", {"tree": {"size": 1}})]), "done"]), tools=[plant])
    paused = stored(await agent.run("go"))
    with pytest.raises(ResumeError, match="'big' is not of type 'integer'"):
        await agent.resume(paused, answers=answers_to(paused, Decision(type="edit", arguments={"tree": wrong})))
    result = await agent.resume(paused, answers=answers_to(paused, Decision(type="edit", arguments={"tree": small})))
    assert next(iter(returns(result).values())).endswith("\n2")


ODD_PARAMETERS = {
    "own root": ({"type": "object", "properties": {"n": {"type": "integer"}, "next": {"$ref": "#"}}}, True),
    "older names": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$id": "https://example.com/tool",
            "properties": {"n": {"$ref": "#/definitions/n"}},
            "definitions": {"n": {"type": "integer"}},
        },
        True,
    ),
    "another machine": ({"properties": {"n": {"$ref": "http://192.0.2.1/n.json"}}}, False),
    "no schema": ({"properties": {"n": {"type": "number of pages"}}}, False),
}


@pytest.mark.parametrize(("parameters", "checked"), ODD_PARAMETERS.values(), ids=ODD_PARAMETERS.keys())
async def test_a_tool_of_any_schema_can_be_approved_and_edited(parameters: JsonObject, checked: bool) -> None:
    """One that cannot be checked here binds nobody: the tool itself checks what it is given."""
    looked = replace(tool(look_at), spec=ToolSpec(name="look_at", description="Look.", parameters=parameters))
    model = ScriptedModel([turn(calls=[call("look_at", {"n": 1}), call("look_at", {"n": 2})]), "done"])
    agent = Agent(model, tools=[replace(looked, requires_approval=True)])
    paused = stored(await agent.run("go"))
    first, second = (pause.pause_id for pause in paused.pauses)
    wrong = Decision(type="edit", arguments={"n": "x"})
    if checked:
        with pytest.raises(ResumeError, match="'x' is not of type 'integer'"):
            await agent.resume(paused, answers={first: wrong})
    answers = {first: Decision(type="edit", arguments={"n": 3}), second: APPROVE if checked else wrong}
    result = await agent.resume(paused, answers=answers)
    edited, other = returns(result).values()
    assert edited.endswith("\npage 3")
    assert other == "page 2" if checked else "The arguments do not fit: n: Input should be a valid integer" in other


def look_at(n: int) -> str:
    """Look at a page."""
    return f"page {n}"


async def test_call_ids_that_come_again_make_pauses_of_their_own() -> None:
    """A model that numbers its calls afresh in every turn: an old answer approves no new call."""
    again = ToolCall(call_id="c", name="pay", arguments={"amount": 1})
    shop = Shop(*[ModelTurn(tool_calls=(again, again), finish_reason="tool_calls")] * 3, "done")
    result = await shop.agent.run("go", run_id="r")
    used: list[str] = []
    while result.stop_reason == "paused":
        fresh = answers_to(result, APPROVE)
        assert len(fresh) == 2
        for pause_id in used:
            with pytest.raises(ResumeError, match="is used"):
                await shop.agent.resume(result, answers={pause_id: APPROVE})
        result = await shop.agent.resume(stored(result), answers=fresh)
        used += fresh
    assert_all_answered(result.messages)
    assert (result.text, len(shop.done), len(set(used))) == ("done", 6, 6)


@given(st.lists(st.lists(st.sampled_from(["", "c", "call_1_0", "call_1_1", "call_2_0"]), max_size=3), max_size=3))
async def test_no_two_calls_of_a_run_have_the_same_id(turns: list[list[str]]) -> None:
    """Whatever ids the model gives, also those that the kernel itself would give: each call is answered once."""
    scripted = [
        ModelTurn(tool_calls=tuple(replace(look(n), call_id=each) for n, each in enumerate(ids)))
        for ids in turns
        if ids
    ]
    shop = Shop(*scripted, "done")
    result = await shop.agent.run("go")
    assert_all_answered(result.messages)
    assert len(shop.done) == sum(map(len, turns))
