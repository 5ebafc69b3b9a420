"""Stages around the loop: retrieval before the first round, the post-model stage after the last of a leg."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from endstop import (
    Agent,
    ImagePart,
    ModelError,
    ModelTurn,
    PlanLimits,
    ResumeError,
    Retrieved,
    RetrievedEvent,
    RunState,
    TextPart,
    UserMessage,
)
from endstop._messages import JsonObject
from endstop.models.scripted import ScriptedModel, ScriptStep, call, turn
from endstop.turn_observation import observing
from tests.runs import assert_one_end, events_of, kinds, look
from tests.shop import APPROVE, Shop, answers_to, pay, stored

RECALLED = UserMessage(content="You met Ada.", source="kernel")


class Shelf:
    """A retrieval stage that always finds the same, and notes what it was asked."""

    def __init__(self, found: Retrieved | None = None, *, error: Exception | None = None) -> None:
        self.found = found or Retrieved(text="You met Ada.", counts={"found": 3, "admitted": 1})
        self.error = error
        self.asked: list[str] = []

    async def retrieve(self, prompt: str) -> Retrieved:
        await anyio.lowlevel.checkpoint()
        self.asked.append(prompt)
        if self.error is not None:
            raise self.error
        return self.found


class Drawer:
    """A post-model stage that notes each time it is called."""

    def __init__(self, *, error: Exception | None = None, seconds: float = 0) -> None:
        self.error = error
        self.seconds = seconds
        self.applied: list[list[JsonObject]] = []

    async def apply(self, ops: Sequence[JsonObject]) -> None:
        await anyio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        self.applied.append(list(ops))


def writes(*numbers: int, text: str = "", calls: Sequence[object] = ()) -> ModelTurn:
    """A turn with an envelope of an operation for each number."""
    ops = ", ".join(f'{{"n": {number}}}' for number in numbers)
    return turn(f'{text}<MEMORY_EXTRACT>{{"ops": [{ops}]}}</MEMORY_EXTRACT>', calls=calls)


def looks(*pages: int) -> list[object]:
    return [call("look", {"n": page}) for page in pages]


# -- retrieval -------------------------------------------------------------------------------------


async def test_what_is_recalled_stands_before_the_prompt_in_every_request() -> None:
    """Before the first round, once; the history that was given comes first, and the result has it all."""
    shelf = Shelf()
    model = ScriptedModel([turn(calls=looks(1)), "Ada"])
    earlier = [UserMessage(content="hello"), ModelTurn(text="hi")]
    result = await Agent(model, tools=[look], retrieval=shelf).run("who was it?", history=earlier)
    prompt = UserMessage(content="who was it?")
    assert [tuple(request.messages[:4]) for request in model.requests] == [(*earlier, RECALLED, prompt)] * 2
    assert shelf.asked == ["who was it?"]
    assert result.new_messages[:2] == (RECALLED, prompt)


async def test_its_counts_are_told_by_an_event_before_the_first_round() -> None:
    """All that the stage reports, as it reports it; an observation gets what was admitted."""
    with observing() as seen:
        async with Agent(ScriptedModel(["Ada"]), retrieval=Shelf()).stream("who?") as run:
            events = await events_of(run)
    assert kinds(events)[:3] == ["started", "retrieved", "round_started"]
    told = events[1]
    assert isinstance(told, RetrievedEvent)
    assert (told.counts, told.round, seen.recalled) == ({"found": 3, "admitted": 1}, 0, 1)


async def test_nothing_found_adds_no_message() -> None:
    """The event says that there was nothing."""
    model = ScriptedModel(["nobody"])
    async with Agent(model, retrieval=Shelf(Retrieved(counts={"admitted": 0}))).stream("who?") as run:
        events = await events_of(run)
    assert [message.content for message in model.requests[0].messages] == ["who?"]
    assert [event.counts for event in events if isinstance(event, RetrievedEvent)] == [{"admitted": 0}]


async def test_it_is_asked_with_the_text_of_the_prompt() -> None:
    """Images and files are named in it, not sent."""
    shelf = Shelf()
    parts = [TextPart(text="who is"), ImagePart(url="https://example.com/a.png"), TextPart(text="this?")]
    await Agent(ScriptedModel(["Ada"]), retrieval=shelf).run(parts)
    assert shelf.asked == ["who is\n[image]\nthis?"]


async def test_it_is_not_asked_again_when_the_run_goes_on() -> None:
    """Neither after a pause, nor with more rounds, nor from an error, nor in another process."""
    shelf = Shelf()
    shop = Shop(turn(calls=[pay(5)]), turn(calls=[pay(6)]), "partly", ModelError("down"), "done")
    agent = Agent(shop.model, tools=shop.agent.tools, retrieval=shelf, limits=PlanLimits(max_model_rounds=3))
    paused = stored(await agent.run("go"))
    paused = stored(await agent.resume(paused, answers=answers_to(paused, APPROVE)))
    partly = stored(await agent.resume(paused, answers=answers_to(paused, APPROVE)))
    assert partly.text == "partly"
    more = PlanLimits(max_model_rounds=9)
    with pytest.raises(ModelError) as failed:
        await agent.resume(partly, limits=more)
    assert failed.value.state is not None
    result = await agent.resume(RunState.from_json(failed.value.state.to_json()))
    assert (result.text, shelf.asked) == ("done", ["go"])
    assert result.messages.count(RECALLED) == 1


async def test_an_error_of_the_retrieval_ends_the_run_before_anything_is_bought() -> None:
    """It leaves the stream bare, as the last event says; the run can go on when the stage works again."""
    shelf = Shelf(error=OSError("no disk"))
    model = ScriptedModel(["Ada"])
    agent = Agent(model, retrieval=shelf)
    async with agent.stream("who?") as run:
        events = [await anext(run), await anext(run)]
        with pytest.raises(OSError, match="no disk"):
            await anext(run)
    end = assert_one_end(events)
    assert (kinds(events), end.error) == (["started", "error"], "no disk")
    assert model.request_count == 0
    shelf.error = None
    assert (await agent.resume(run.state)).text == "Ada"
    assert shelf.asked == ["who?", "who?"]


async def test_a_slow_retrieval_is_cut_off_by_the_time_limit() -> None:
    """It is work like any other; the run ends and says so."""

    class Stuck:
        async def retrieve(self, prompt: str) -> Retrieved:
            await anyio.sleep_forever()
            return Retrieved()

    limits = PlanLimits(max_seconds=0.05, on_limit="stop")
    with anyio.fail_after(5):
        result = await Agent(ScriptedModel([]), retrieval=Stuck(), limits=limits).run("who?")
    assert result.stop_reason == "budget"
    assert result.ending is not None
    assert result.ending.limit == "max_seconds"


# -- post-model ------------------------------------------------------------------------------------


async def test_the_operations_of_all_rounds_are_applied_once_in_order() -> None:
    """After the last round, before the run is told to be done."""
    drawer = Drawer()
    model = ScriptedModel([writes(1, 2, calls=looks(1)), turn(calls=looks(2)), writes(3, text="Ada")])
    result = await Agent(model, tools=[look], post_model=drawer).run("go")
    assert drawer.applied == [[{"n": 1}, {"n": 2}, {"n": 3}]]
    assert result.text == "Ada"


async def test_without_operations_it_is_not_called() -> None:
    """Neither without an envelope nor with an empty one."""
    drawer = Drawer()
    for step in ("Ada", writes(text="Ada")):
        assert (await Agent(ScriptedModel([step]), post_model=drawer).run("go")).text == "Ada"
    assert drawer.applied == []


async def test_without_the_stage_operations_are_only_kept() -> None:
    """An agent that does not opt in has them on its turns, and no more happens."""
    result = await Agent(ScriptedModel([writes(1, text="Ada")])).run("go")
    newest = result.messages[-1]
    assert isinstance(newest, ModelTurn)
    assert newest.extraction_ops == ({"n": 1},)


async def test_each_leg_applies_what_it_brought_and_nothing_twice() -> None:
    """Also where the run goes on in another process."""
    drawer = Drawer()
    shop = Shop(writes(1, calls=[pay(5)]), writes(2, calls=[pay(6)]), writes(3, text="done"))
    agent = Agent(shop.model, tools=shop.agent.tools, post_model=drawer)
    result = await agent.run("go")
    assert drawer.applied == [[{"n": 1}]]
    while result.stop_reason == "paused":
        result = await agent.resume(stored(result), answers=answers_to(result, APPROVE))
    assert drawer.applied == [[{"n": 1}], [{"n": 2}], [{"n": 3}]]


async def test_operations_of_an_earlier_conversation_are_not_applied_again() -> None:
    """A history that is given was another run's work."""
    drawer = Drawer()
    agent = Agent(ScriptedModel([writes(1, text="Ada"), writes(2, text="Bob")]), post_model=drawer)
    first = await agent.run("who?")
    await agent.run("and then?", history=first.messages)
    assert drawer.applied == [[{"n": 1}], [{"n": 2}]]


async def test_a_truncated_run_applies_what_it_has() -> None:
    """The operations were written, whatever ended the run; going on applies the rest."""
    drawer = Drawer()
    steps: list[ScriptStep] = [writes(1, calls=looks(1)), writes(2, text="partly"), writes(3, text="whole")]
    agent = Agent(ScriptedModel(steps), tools=[look], post_model=drawer, limits=PlanLimits(max_model_rounds=2))
    partly = await agent.run("go")
    assert (partly.stop_reason, drawer.applied) == ("tool_limit", [[{"n": 1}, {"n": 2}]])
    await agent.resume(stored(partly), limits=PlanLimits(max_model_rounds=5))
    assert drawer.applied[1:] == [[{"n": 3}]]


async def test_a_run_that_failed_applies_its_operations_when_it_goes_on() -> None:
    """A leg that did not come to its end has applied nothing yet."""
    drawer = Drawer()
    steps: list[ScriptStep] = [writes(1, calls=looks(1)), ModelError("down"), writes(2, text="done")]
    agent = Agent(ScriptedModel(steps), tools=[look], post_model=drawer)
    with pytest.raises(ModelError) as failed:
        await agent.run("go")
    assert drawer.applied == []
    assert failed.value.state is not None
    await agent.resume(failed.value.state)
    assert drawer.applied == [[{"n": 1}, {"n": 2}]]


async def test_an_error_of_the_post_model_stage_loses_nothing_that_was_done() -> None:
    """It is raised, and the state has the answer: going on applies the operations and asks the model nothing."""
    drawer = Drawer(error=OSError("no disk"))
    model = ScriptedModel([writes(1, text="Ada")])
    agent = Agent(model, post_model=drawer)
    async with agent.stream("go") as run:
        with pytest.raises(OSError, match="no disk"):
            await events_of(run)
    drawer.error = None
    result = await agent.resume(RunState.from_json(run.state.to_json()))
    assert (result.stop_reason, result.text, drawer.applied) == ("completed", "Ada", [[{"n": 1}]])
    assert model.request_count == 1


async def test_a_slow_post_model_stage_does_not_cost_the_answer() -> None:
    """A run that has answered is completed, though the time is up before its operations are applied."""
    drawer = Drawer(seconds=3_600)
    model = ScriptedModel([writes(1, text="Ada"), "asked again"])
    limits = PlanLimits(max_seconds=0.3, answer_seconds=0.1)
    with anyio.fail_after(5):
        result = await Agent(model, tools=[look], post_model=drawer, limits=limits).run("go")
    assert (result.text, model.request_count) == ("Ada", 1)
    assert result.stop_reason == "completed"


async def test_a_delegated_child_has_stages_of_its_own() -> None:
    """Its retrieval is asked with its task, and its operations go to its own stage."""
    shelf, drawer, other = Shelf(), Drawer(), Drawer()
    helper = Agent(ScriptedModel([writes(1, text="Ada")]), name="helper", retrieval=shelf, post_model=drawer)
    model = ScriptedModel([turn(calls=[call("helper", {"task": "find her"})]), writes(2, text="done")])
    agent = Agent(model, tools=[helper.as_tool()], post_model=other)
    async with agent.stream("go") as run:
        events = await events_of(run)
    assert [event.path for event in events if event.kind == "retrieved"] == [("agent", "helper")]
    assert (shelf.asked, drawer.applied, other.applied) == (["find her"], [[{"n": 1}]], [[{"n": 2}]])


async def test_operations_that_time_kept_from_being_applied_wait_for_a_resume() -> None:
    """The answer stands, and going on applies what it brought, without asking the model again."""
    drawer = Drawer()

    class Slow:
        async def apply(self, ops: Sequence[JsonObject]) -> None:
            await anyio.sleep_forever()

    model = ScriptedModel([writes(1, text="Ada")])
    first = await Agent(model, post_model=Slow(), limits=PlanLimits(max_seconds=0.1)).run("go")
    assert (first.stop_reason, first.text) == ("completed", "Ada")
    agent = Agent(model, post_model=drawer)
    result = await agent.resume(stored(first), limits=PlanLimits(max_seconds=60))
    assert (result.stop_reason, result.text, drawer.applied) == ("completed", "Ada", [[{"n": 1}]])
    assert model.request_count == 1
    with pytest.raises(ResumeError, match="completed"):
        await agent.resume(stored(result))
