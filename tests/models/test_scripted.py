"""The scripted, recording and replaying models."""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING

import anyio
import pytest

from endstop._errors import ConfigError, ContextOverflow, ModelError, StateError
from endstop._messages import ImagePart, ModelTurn, TextPart, ToolCall, ToolReturn, ToolSpec, Usage, UserMessage
from endstop.models.base import Delta, ModelRequest
from endstop.models.scripted import (
    RecordingModel,
    ReplayModel,
    ScriptedModel,
    ScriptError,
    Step,
    call,
    forever,
    load_recording,
    turn,
)

if TYPE_CHECKING:
    from pathlib import Path

    from endstop.models.base import Model

QUESTION = ModelRequest(messages=(UserMessage(content="What is an endstop?"),))


async def ignore(delta: Delta) -> None:
    """Drops a delta."""


class Heard(list[Delta]):
    """The deltas that a model gave."""

    async def __call__(self, delta: Delta) -> None:
        self.append(delta)

    def text(self, kind: str = "text") -> str:
        """The pieces of one kind, joined."""
        return "".join(delta.text for delta in self if delta.kind == kind)


async def answers(model: Model, count: int) -> list[ModelTurn]:
    """The model's answers to the same question."""
    return [await model.respond(QUESTION, ignore) for _ in range(count)]


@pytest.mark.both_backends
async def test_steps_are_answered_in_order() -> None:
    """A text, a turn, a step and a function from the request are all answers."""
    spoken = turn("three", usage=(3, 1))
    model = ScriptedModel(["one", Step(text="two"), spoken, lambda request: f"asked {len(request.messages)}"])
    assert [answer.text for answer in await answers(model, 4)] == ["one", "two", "three", "asked 1"]
    assert repr(model) == "<ScriptedModel 'scripted': 4 requests, steps: 4>"


async def test_a_turn_is_answered_as_it_is() -> None:
    """A turn of the script comes back whole."""
    whole = ModelTurn(text="a", thinking="b", finish_reason="length", usage=Usage(input_tokens=1), model="m")
    assert await answers(ScriptedModel([whole]), 1) == [whole]


async def test_a_missing_step_is_named() -> None:
    """A request that the script has no step for says how many there were and what was asked."""
    model = ScriptedModel(["one"])
    await answers(model, 1)
    with pytest.raises(ScriptError, match=r"'scripted' has 1 steps and was asked 2 times; .*'What is an endstop\?'"):
        await answers(model, 1)


@pytest.mark.parametrize(
    ("messages", "shown"),
    [
        ((), "missing: it has none"),
        ((turn("hello"),), "the model's 'hello'"),
        ((ToolReturn(call_id="1", name="search", content="found"),), "the return of search: 'found'"),
        ((UserMessage(content=(TextPart(text="see"), ImagePart(data=b"1"))),), r"the user's 'see\\n\[image\]'"),
        ((UserMessage(content="x" * 500),), r"x\.\.\.$"),
    ],
)
async def test_a_missing_step_shows_the_last_message(messages: tuple[UserMessage, ...], shown: str) -> None:
    """Whoever spoke last is shown, cut where it is long."""
    with pytest.raises(ScriptError, match=shown):
        await ScriptedModel([]).respond(ModelRequest(messages=messages), ignore)


async def test_left_over_steps_are_refused() -> None:
    """Leaving the model without taking every step fails and shows the first that is left."""
    refused = pytest.raises(ScriptError, match=r"1 of the 2 steps of 'scripted' were never asked for; .*'two'")
    with refused, ScriptedModel(["one", "two"]) as model:
        await answers(model, 1)


async def test_an_error_inside_is_not_hidden_by_left_over_steps() -> None:
    """Where the body of a `with` fails, its error is what is raised."""
    with pytest.raises(ZeroDivisionError), ScriptedModel(["one"]):
        raise ZeroDivisionError


async def test_a_complete_script_is_accepted() -> None:
    """Leaving the model after its last step is fine, and steps that come forever need not be taken."""
    with ScriptedModel(["one", forever("more")]) as model:
        await answers(model, 1)


async def test_forever_repeats_its_steps() -> None:
    """The last steps of a script can come in turn without end."""
    model = ScriptedModel(["start", forever("a", "b")])
    assert [answer.text for answer in await answers(model, 6)] == ["start", "a", "b", "a", "b", "a"]
    assert repr(model) == "<ScriptedModel 'scripted': 6 requests, steps: 1 and forever 2>"


def test_nothing_comes_after_forever() -> None:
    """A step after `forever` could never be reached."""
    with pytest.raises(ConfigError, match="nothing can come after"):
        ScriptedModel([forever("a"), "b"])


def test_forever_needs_a_step() -> None:
    """`forever()` alone has no meaning."""
    with pytest.raises(ConfigError, match="at least one step"):
        forever()


async def test_requests_are_recorded_as_they_were() -> None:
    """A history that grows afterwards does not change what was recorded."""
    messages = [UserMessage(content="first")]
    model = ScriptedModel(["one", "two"])
    await model.respond(ModelRequest(messages=messages, final=True), ignore)
    messages.append(UserMessage(content="second"))
    await model.respond(ModelRequest(messages=messages), ignore)
    assert [[m.content for m in request.messages] for request in model.requests] == [["first"], ["first", "second"]]
    assert [request.final for request in model.requests] == [True, False]


async def test_recording_can_be_off() -> None:
    """Without recording, only the number of requests is kept."""
    model = ScriptedModel([forever("x")], record=False)
    await answers(model, 3)
    assert (model.requests, model.request_count) == ([], 3)


async def test_errors_are_raised() -> None:
    """An error of the script is raised with its data."""
    model = ScriptedModel([ModelError("busy", retryable=True, retry_after_seconds=2, status=429)])
    with pytest.raises(ModelError, match="busy") as caught:
        await answers(model, 1)
    assert (caught.value.retryable, caught.value.retry_after_seconds, caught.value.status) == (True, 2, 429)


async def test_a_model_error_is_raised_as_a_copy() -> None:
    """Two runs that meet the same scripted error do not share what is attached to it."""
    scripted = ContextOverflow("too long")
    scripted.__cause__ = ValueError("why")
    model = ScriptedModel([forever(scripted)])
    caught: list[ContextOverflow] = []
    for _ in range(2):
        with pytest.raises(ContextOverflow, match="too long") as info:
            await answers(model, 1)
        caught.append(info.value)
    assert caught[0] is not caught[1]
    assert caught[0].__cause__ is scripted.__cause__


async def test_another_error_is_raised_itself() -> None:
    """An error that is no model error is raised as it is."""
    scripted = OSError("gone")
    with pytest.raises(OSError, match="gone") as caught:
        await answers(ScriptedModel([scripted]), 1)
    assert caught.value is scripted


async def test_an_error_can_come_in_the_middle_of_an_answer() -> None:
    """A step with pieces and an error gives the pieces first."""
    heard = Heard()
    with pytest.raises(ModelError):
        await ScriptedModel([Step(deltas=("par", "tial"), error=ModelError("cut"))]).respond(QUESTION, heard)
    assert heard.text() == "partial"


async def test_text_is_streamed_word_by_word() -> None:
    """With `stream`, the pieces joined are the thinking and the text, spaces and all."""
    heard = Heard()
    answer = await ScriptedModel([turn(" It  stops\nthe axis. ", thinking="hm hm")], stream=True).respond(
        QUESTION, heard
    )
    assert (heard.text(), heard.text("thinking")) == (answer.text, answer.thinking)
    assert [delta.text for delta in heard] == ["hm ", "hm", " ", "It  ", "stops\n", "the ", "axis. "]


async def test_nothing_is_streamed_unless_asked() -> None:
    """A scripted model gives no pieces by itself."""
    heard = Heard()
    await ScriptedModel(["some words"]).respond(QUESTION, heard)
    assert heard == []


async def test_given_pieces_are_streamed() -> None:
    """A step's own pieces are given as they are, and make its text and thinking."""
    pieces = ("It st", Delta(text="why?", kind="thinking"), "ops.")
    heard = Heard()
    answer = await ScriptedModel([Step(deltas=pieces)]).respond(QUESTION, heard)
    assert answer == turn("It stops.", thinking="why?")
    assert heard == [Delta(text="It st"), Delta(text="why?", kind="thinking"), Delta(text="ops.")]


def test_pieces_must_be_the_text() -> None:
    """Pieces that joined are not the text are a mistake of the script."""
    with pytest.raises(ConfigError, match="joined they must be the text 'ab'"):
        Step(text="ab", deltas=("a",))


def test_a_step_has_a_turn_or_its_parts() -> None:
    """A step that says both is ambiguous."""
    with pytest.raises(ConfigError, match="either a turn or its parts"):
        Step(turn=turn("a"), text="b")


@pytest.mark.both_backends
async def test_latency_passes_before_the_answer() -> None:
    """A model's latency can be cancelled; a step's own replaces it, and 0 never suspends."""
    model = ScriptedModel([Step(text="quick", latency_seconds=0), "never"], latency_seconds=3600)
    assert await answers(model, 1) == [turn("quick")]
    with anyio.move_on_after(0.01) as scope:
        await answers(model, 1)
    assert scope.cancelled_caught


async def test_latency_can_pass_between_pieces() -> None:
    """A slow stream can be cancelled after its first piece."""
    heard = Heard()
    model = ScriptedModel([Step(deltas=("one ", "two"), delta_latency_seconds=3600)])
    with anyio.move_on_after(0.05) as scope:
        await model.respond(QUESTION, heard)
    assert (heard.text(), scope.cancelled_caught) == ("one ", True)


def test_an_answer_without_latency_never_suspends() -> None:
    """Answering is one step of the coroutine, so that a benchmark measures nothing else."""
    answering = ScriptedModel(["now"]).respond(QUESTION, ignore)
    with pytest.raises(StopIteration) as finished:
        answering.send(None)
    assert finished.value.value == turn("now")


def test_a_call_has_a_stable_id() -> None:
    """The same call has the same id in every process; another call has another."""
    assert call("search", {"q": "a", "n": 1}).call_id == call("search", {"n": 1, "q": "a"}).call_id
    assert len({made.call_id for made in (call("a"), call("b"), call("a", {"q": 1}))}) == 3
    assert call("search", call_id="mine") == ToolCall(call_id="mine", name="search", arguments={})


async def test_ids_never_repeat() -> None:
    """A made-up id that comes again is numbered, as a provider's ids never repeat; a given id is kept."""
    again = call("search", {"q": "a"})
    model = ScriptedModel([turn(calls=[again, again]), forever(turn(calls=[again, call("open", call_id="mine")]))])
    ids = [asked.call_id for answer in await answers(model, 3) for asked in answer.tool_calls]
    assert ids == [again.call_id, *(f"{again.call_id}-2 {again.call_id}-3 mine {again.call_id}-4 mine".split())]


def test_a_turn_says_how_it_ended() -> None:
    """A turn with calls ends in `tool_calls`, another in `stop`, unless said otherwise."""
    assert [turn(calls=[call("a")]).finish_reason, turn("a").finish_reason] == ["tool_calls", "stop"]
    assert turn("a", finish_reason="length").finish_reason == "length"
    assert turn(usage=(5, 2)).usage == Usage(input_tokens=5, output_tokens=2)


def test_threads_share_a_script() -> None:
    """Every step is taken once, however many threads ask."""
    model = ScriptedModel([str(number) for number in range(400)])
    taken: list[str] = []

    async def ask() -> None:
        taken.extend(answer.text for answer in await answers(model, 100))

    threads = [threading.Thread(target=anyio.run, args=(ask,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken, key=int) == [str(number) for number in range(400)]
    model.assert_complete()


# Recording and replay


TOOL = ToolSpec(name="search", description="Searches.", parameters={"type": "object"})


def conversation(model_turns: int) -> list[ModelRequest]:
    """The requests of a run in which the model searches, with a growing history."""
    messages: list[UserMessage | ModelTurn | ToolReturn] = [
        UserMessage(content=(TextPart(text="Look."), ImagePart(data=b"\xff\x00")))
    ]
    requests: list[ModelRequest] = []
    for number in range(model_turns):
        requests.append(ModelRequest(messages=tuple(messages), instructions="Be brief.", tools=(TOOL,)))
        asked = call("search", {"q": str(number)}, call_id=f"c{number}")
        messages += [turn(calls=[asked], usage=(1, 1)), ToolReturn(call_id=f"c{number}", name="search", content="é")]
    return requests


def script(model_turns: int) -> list[ModelTurn]:
    """The turns that the model of `conversation` answers."""
    asked = [call("search", {"q": str(number)}, call_id=f"c{number}") for number in range(model_turns)]
    return [turn("on it", calls=[each], usage=(1, 1)) for each in asked]


async def record(path: Path, model_turns: int = 3) -> list[ModelTurn]:
    """Records a run at the path; the answers that were given."""
    model = RecordingModel(ScriptedModel(script(model_turns), name="real", stream=True), path)
    return [await model.respond(request, ignore) for request in conversation(model_turns)]


async def test_a_replay_answers_as_recorded(tmp_path: Path) -> None:
    """Turns, pieces and the model's name come back from the file."""
    recorded = await record(tmp_path / "run.jsonl")
    heard = Heard()
    with ReplayModel(tmp_path / "run.jsonl") as model:
        replayed = [await model.respond(request, heard) for request in conversation(3)]
    assert (replayed, model.name) == (recorded, "real")
    assert heard.text() == "on it" * 3


async def test_a_recording_grows_with_the_history_only(tmp_path: Path) -> None:
    """Each line has the messages that are new in it, and loading gives the whole history back."""
    await record(tmp_path / "run.jsonl", 20)
    exchanges = load_recording(tmp_path / "run.jsonl")
    assert [each.request for each in exchanges] == conversation(20)
    lines = (tmp_path / "run.jsonl").read_bytes().splitlines()
    assert len(lines[19]) < 2 * len(lines[1])


async def test_a_recording_holds_another_conversation(tmp_path: Path) -> None:
    """Histories that have nothing in common with the one before are whole."""
    model = RecordingModel(ScriptedModel(["a", "b", "c"]), tmp_path / "run.jsonl")
    asked = [ModelRequest(messages=(UserMessage(content=text),)) for text in ("1", "2", "1")]
    for request in asked:
        await model.respond(request, ignore)
    assert [each.request for each in load_recording(tmp_path / "run.jsonl")] == asked


async def test_a_failed_request_is_not_recorded(tmp_path: Path) -> None:
    """Only answers are recorded, so that a replay needs no retry."""
    model = RecordingModel(ScriptedModel([ModelError("busy"), "fine"]), tmp_path / "run.jsonl")
    with pytest.raises(ModelError):
        await model.respond(QUESTION, ignore)
    await model.respond(QUESTION, ignore)
    assert [each.turn.text for each in load_recording(tmp_path / "run.jsonl")] == ["fine"]


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"instructions": "Be long."}, "instructions was 'Be brief.' and is now 'Be long.'"),
        ({"tools": ()}, r"tools had 1 entries and now has 0"),
        ({"tools": (dataclasses.replace(TOOL, name="find"),)}, r"tools\[0\].name was 'search' and is now 'find'"),
        ({"messages": (UserMessage(content="Look."),)}, r"messages\[0\].content was \[.* and is now 'Look.'"),
        ({"max_output_tokens": 5}, "max_output_tokens was None and is now 5"),
    ],
)
async def test_another_request_is_refused(tmp_path: Path, changes: dict[str, object], difference: str) -> None:
    """A request that is not the recorded one fails and names the first difference."""
    await record(tmp_path / "run.jsonl", 1)
    other = dataclasses.replace(conversation(1)[0], **changes)
    with pytest.raises(ScriptError, match=f"request 1 is not the recorded one: {difference}"):
        await ReplayModel(tmp_path / "run.jsonl").respond(other, ignore)


async def test_a_lenient_replay_takes_any_request(tmp_path: Path) -> None:
    """Without `strict`, the recorded answers come whatever is asked."""
    recorded = await record(tmp_path / "run.jsonl")
    assert await answers(ReplayModel(tmp_path / "run.jsonl", strict=False), 3) == recorded


async def test_a_replay_can_keep_the_pace(tmp_path: Path) -> None:
    """With `pace`, the recorded times pass: here they are stretched so far that only a cancellation ends them."""
    await record(tmp_path / "run.jsonl", 1)
    slow = [dataclasses.replace(each, seconds=3600.0, deltas=()) for each in load_recording(tmp_path / "run.jsonl")]
    with anyio.move_on_after(0.01) as scope:
        await ReplayModel(slow, pace=1.0).respond(conversation(1)[0], ignore)
    assert scope.cancelled_caught
    assert (await ReplayModel(slow).respond(conversation(1)[0], ignore)).text == "on it"


async def test_a_replay_can_keep_the_pace_of_its_pieces(tmp_path: Path) -> None:
    """The time after the first piece is spread over the pieces."""
    await record(tmp_path / "run.jsonl", 1)
    slow = [dataclasses.replace(each, seconds=3600.0) for each in load_recording(tmp_path / "run.jsonl")]
    heard = Heard()
    with anyio.move_on_after(0.1) as scope:
        await ReplayModel(slow, pace=1.0).respond(conversation(1)[0], heard)
    assert (heard.text(), scope.cancelled_caught) == ("on ", True)


async def test_a_line_that_was_being_written_is_left_out(tmp_path: Path) -> None:
    """A recorder that was stopped in the middle of a line loses only that line."""
    await record(tmp_path / "run.jsonl", 2)
    whole = (tmp_path / "run.jsonl").read_bytes()
    (tmp_path / "run.jsonl").write_bytes(whole[:-10])
    assert len(load_recording(tmp_path / "run.jsonl")) == 1


async def test_a_broken_line_is_named(tmp_path: Path) -> None:
    """A line that is not a recorded exchange is refused by its number."""
    await record(tmp_path / "run.jsonl", 1)
    with (tmp_path / "run.jsonl").open("a") as file:
        file.write("{}\n")
    with pytest.raises(StateError, match=r"run\.jsonl, line 2: "):
        ReplayModel(tmp_path / "run.jsonl")


def test_an_empty_recording_has_no_answers(tmp_path: Path) -> None:
    """A recorder that was never asked leaves a file that loads."""
    RecordingModel(ScriptedModel([], name="real"), tmp_path / "run.jsonl")
    assert ReplayModel(tmp_path / "run.jsonl").name == "replay"
