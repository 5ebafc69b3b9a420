"""What one turn produced that its kernel result does not carry: the contract of `endstop.turn_observation`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace

import anyio
import anyio.to_thread
import pytest

from endstop import Agent, ModelError, ModelRequest, ModelTurn, Retrieved, ToolReturn
from endstop.models.scripted import ScriptedModel, ScriptStep, call, forever, turn
from endstop.turn_observation import TurnObservation, observe_recall, observe_turn, observing
from tests.runs import events_of, look

NOTHING = TurnObservation()


def saw(*ops: Mapping[str, object], seen: bool = True) -> SimpleNamespace:
    """A model turn as far as it is observed."""
    return SimpleNamespace(extraction_ops=ops, extraction_seen=seen)


def envelope(number: int) -> str:
    return f'<MEMORY_EXTRACT>{{"ops": [{{"n": {number}}}]}}</MEMORY_EXTRACT>'


class Shelf:
    """A retrieval stage that admits so many."""

    def __init__(self, admitted: int) -> None:
        self.admitted = admitted

    async def retrieve(self, prompt: str) -> Retrieved:
        await anyio.lowlevel.checkpoint()
        return Retrieved(counts={"found": 9, "admitted": self.admitted})


# -- the record and its variable -------------------------------------------------------------------


def test_the_record_has_these_fields_and_is_mutable() -> None:
    """Names, order and defaults are the contract's."""
    fields = [(field.name, field.default) for field in dataclasses.fields(TurnObservation)]
    assert fields == [("extraction_ops", ()), ("extraction_seen", False), ("recalled", None)]
    observation = TurnObservation()
    observation.recalled = 3
    assert observation == TurnObservation(recalled=3)


def test_the_last_round_wins() -> None:
    """A later turn replaces what an earlier one left, also with nothing."""
    with observing() as seen:
        observe_turn(saw({"n": 1}, {"n": 2}))
        assert seen == TurnObservation(extraction_ops=({"n": 1}, {"n": 2}), extraction_seen=True)
        observe_turn(saw({"n": 3}))
        assert seen.extraction_ops == ({"n": 3},)
        observe_turn(saw(seen=False))
        assert seen == NOTHING


@pytest.mark.parametrize(
    ("counts", "recalled"), [({"admitted": 4}, 4), ({"admitted": 0, "found": 7}, 0), ({"admitted": "5"}, 5)]
)
def test_what_was_admitted_is_recorded_as_a_whole_number(counts: Mapping[str, object], recalled: int) -> None:
    """Zero is a number: the stage was asked and admitted nothing."""
    with observing() as seen:
        observe_recall(counts)
    assert seen.recalled == recalled


@pytest.mark.parametrize("counts", [None, {}, {"found": 7}])
def test_counts_that_do_not_say_it_change_nothing(counts: Mapping[str, object] | None) -> None:
    """Neither from nothing nor from a number that was recorded before."""
    with observing() as seen:
        observe_recall(counts)
        assert seen.recalled is None
        observe_recall({"admitted": 2})
        observe_recall(counts)
    assert seen.recalled == 2


def test_without_an_open_observation_nothing_happens() -> None:
    """A turn that nobody observes is unchanged; what closed before is not written into."""
    with observing() as closed:
        pass
    observe_turn(saw({"n": 1}))
    observe_recall({"admitted": 1})
    assert closed == NOTHING


def test_the_inner_of_two_observations_is_written_into() -> None:
    """After it the outer one is open again, which knows nothing of the inner turn."""
    with observing() as outer:
        observe_recall({"admitted": 1})
        with observing() as inner:
            observe_turn(saw({"n": 1}))
            observe_recall({"admitted": 2})
        observe_turn(saw({"n": 3}))
    assert inner == TurnObservation(extraction_ops=({"n": 1},), extraction_seen=True, recalled=2)
    assert outer == TurnObservation(extraction_ops=({"n": 3},), extraction_seen=True, recalled=1)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_an_observation_is_closed_on_an_error_too(error: type[BaseException]) -> None:
    """The error leaves, and nothing is recorded after it."""

    def serve() -> None:
        with observing() as seen:
            opened.append(seen)
            observe_recall({"admitted": 1})
            raise error

    opened: list[TurnObservation] = []
    with observing() as outer:
        with pytest.raises(error):
            serve()
        observe_recall({"admitted": 5})
    assert (opened[0].recalled, outer.recalled) == (1, 5)


async def test_a_cancelled_turn_is_closed_too() -> None:
    """What it had recorded can still be read."""
    with observing() as outer:
        with anyio.CancelScope() as scope, observing() as seen:
            observe_recall({"admitted": 1})
            scope.cancel()
            await anyio.sleep_forever()
        observe_recall({"admitted": 2})
    assert (seen.recalled, outer.recalled) == (1, 2)


async def test_a_task_and_a_thread_inside_the_block_write_into_the_caller_s_record() -> None:
    """The variable is inherited, and the object is one."""

    async def task() -> None:
        observe_turn(saw({"n": 1}))
        await anyio.to_thread.run_sync(observe_recall, {"admitted": 3})

    with observing() as seen:
        async with anyio.create_task_group() as group:
            group.start_soon(task)
    assert seen == TurnObservation(extraction_ops=({"n": 1},), extraction_seen=True, recalled=3)


# -- turns of the kernel ---------------------------------------------------------------------------


@pytest.mark.both_backends
async def test_a_run_is_observed_by_the_block_around_it() -> None:
    """The operations of its last round and what its retrieval admitted, streamed or not."""
    steps: list[ScriptStep] = [turn(envelope(1), calls=[call("look", {"n": 1})]), f"Ada{envelope(2)}"]
    expected = TurnObservation(extraction_ops=({"n": 2},), extraction_seen=True, recalled=4)
    with observing() as seen:
        await Agent(ScriptedModel(steps), tools=[look], retrieval=Shelf(4)).run("who?")
    assert seen == expected
    with observing() as seen:
        async with Agent(ScriptedModel(steps, stream=True), tools=[look], retrieval=Shelf(4)).stream("who?") as run:
            await events_of(run)
    assert seen == expected


async def test_a_last_round_without_an_envelope_leaves_none() -> None:
    """What an earlier round wrote is not its own: those operations are on the turns of the result."""
    steps: list[ScriptStep] = [turn(envelope(1), calls=[call("look", {"n": 1})]), "Ada"]
    with observing() as seen:
        result = await Agent(ScriptedModel(steps), tools=[look]).run("who?")
    assert seen == NOTHING
    assert [m.extraction_seen for m in result.messages if isinstance(m, ModelTurn)] == [True, False]


async def test_a_run_that_fails_was_observed_until_then() -> None:
    """And its observation is closed."""
    steps: list[ScriptStep] = [turn(envelope(1), calls=[call("look", {"n": 1})]), ModelError("down")]
    with observing() as outer:
        with observing() as seen, pytest.raises(ModelError):
            await Agent(ScriptedModel(steps), tools=[look]).run("who?")
        assert outer == NOTHING
    assert seen.extraction_ops == ({"n": 1},)


async def test_a_run_that_nobody_observes_is_the_same() -> None:
    """An observation changes nothing in the run."""
    steps: list[ScriptStep] = [f"Ada{envelope(1)}"]
    plain = await Agent(ScriptedModel(steps)).run("who?", run_id="r")
    with observing():
        observed = await Agent(ScriptedModel(steps)).run("who?", run_id="r")
    assert plain.messages == observed.messages


@pytest.mark.parametrize("calls", [1, 2], ids=["alone", "in parallel"])
async def test_a_delegated_child_does_not_overwrite_its_parent(calls: int) -> None:
    """It opens an observation of its own: the parent's has the parent's last round and recall alone."""
    helper = Agent(ScriptedModel([forever(f"found{envelope(7)}")]), name="helper", retrieval=Shelf(7))
    asks = turn(envelope(1), calls=[call("helper", {"task": "find"}) for _ in range(calls)])

    def answer(request: ModelRequest) -> ScriptStep:
        assert isinstance(request.messages[-1], ToolReturn)
        between.append(dataclasses.replace(seen))
        return f"Ada{envelope(2)}"

    between: list[TurnObservation] = []
    agent = Agent(ScriptedModel([asks, answer]), tools=[helper.as_tool()], retrieval=Shelf(1))
    with observing() as seen:
        await agent.run("who?")
    assert between == [TurnObservation(extraction_ops=({"n": 1},), extraction_seen=True, recalled=1)]
    assert seen == TurnObservation(extraction_ops=({"n": 2},), extraction_seen=True, recalled=1)


@pytest.mark.both_backends
async def test_a_thousand_turns_at_once_do_not_mix() -> None:
    """Each block reads its own turn, however the turns take turns."""
    observed: dict[int, TurnObservation] = {}

    async def serve(number: int) -> None:
        steps: list[ScriptStep] = [turn(envelope(-number), calls=[call("look", {"n": 1})]), f"Ada{envelope(number)}"]
        model = ScriptedModel(steps, latency_seconds=0.001 * (number % 7 + 1), record=False)
        agent = Agent(model, tools=[look], retrieval=Shelf(number))
        with observing() as seen:
            await agent.run("who?")
        observed[number] = seen

    async with anyio.create_task_group() as group:
        for number in range(1_000):
            group.start_soon(serve, number)
    assert observed == {
        number: TurnObservation(extraction_ops=({"n": number},), extraction_seen=True, recalled=number)
        for number in range(1_000)
    }
