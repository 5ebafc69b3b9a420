"""What happens in the rounds of a run: tools, the returns that the model sees, structured output, and warnings."""

from __future__ import annotations

import gc
import threading
import weakref
from contextvars import ContextVar
from dataclasses import dataclass

import anyio
import pytest
from pydantic import BaseModel

from endstop import (
    Agent,
    LimitWarning,
    ModelTurn,
    OutputInvalid,
    PlanLimits,
    RunState,
    ToolCall,
    ToolContext,
    ToolReturn,
    UserMessage,
    tool,
)
from endstop.models.scripted import ScriptedModel, Step, call, turn
from tests.runs import (
    asks,
    assert_one_end,
    assert_valid_history,
    events_of,
    look,
    searcher,
)


def returns(messages: tuple[object, ...]) -> list[tuple[str, str]]:
    """Status and text of each tool return."""
    return [(message.status, message.content) for message in messages if isinstance(message, ToolReturn)]


# --- tools ----------------------------------------------------------------------------------------


@pytest.mark.both_backends
async def test_the_model_sees_what_its_tools_returned() -> None:
    """The second request has the calls and their returns, in the order asked."""
    agent, model = searcher(asks(2, 1), "done")
    result = await agent.run("Go.")
    assert list(model.requests[1].messages) == list(result.messages[:4])
    assert returns(result.messages) == [("ok", "page 2"), ("ok", "page 1")]


@pytest.mark.both_backends
async def test_faults_go_back_to_the_model_and_siblings_finish() -> None:
    """An unknown tool, arguments that do not fit, and an exception are returns that say what was wrong."""

    async def fail(n: int) -> str:
        """Fail."""
        raise LookupError(f"no page {n}")

    broken = ToolCall(call_id="c3", name="look", arguments={}, invalid_arguments="{n: 1")
    calls = (
        call("nowhere", {"n": 1}),
        call("look", {"n": "many"}),
        broken,
        call("fail", {"n": 4}),
        call("look", {"n": 5}),
    )
    model = ScriptedModel([turn(calls=calls), "done"])
    result = await Agent(model, tools=[look, fail]).run("Go.")
    (unknown, misfit, no_json, failed, fine) = returns(result.messages)
    assert [unknown[0], misfit[0], no_json[0], failed[0], fine[0]] == ["error"] * 4 + ["ok"]
    assert "nowhere" in unknown[1]
    assert "look" in unknown[1]
    assert "n" in misfit[1]
    assert "{n: 1" in no_json[1]
    assert "LookupError: no page 4" in failed[1]
    assert result.spent.tools == {"fail": 1, "look": 1}
    assert_valid_history(result.messages)


@pytest.mark.both_backends
async def test_calls_of_one_turn_run_at_the_same_time() -> None:
    """Async tools and sync ones in threads: each waits until all have started."""
    started: list[str] = []
    all_started, threads_go = anyio.Event(), threading.Event()

    def begun(name: str) -> None:
        started.append(name)
        if len(started) == 4:
            all_started.set()
            threads_go.set()

    async def task(n: int) -> str:
        """Wait in a task."""
        begun(f"task {n}")
        await all_started.wait()
        return "together"

    def thread(n: int) -> str:
        """Wait in a thread."""
        anyio.from_thread.run_sync(begun, f"thread {n}")
        return "together" if threads_go.wait(20) else "alone"

    calls = [call(name, {"n": n}) for name in ("task", "thread") for n in range(2)]
    agent = Agent(ScriptedModel([turn(calls=calls), "done"]), tools=[task, thread])
    assert returns((await agent.run("Go.")).messages) == [("ok", "together")] * 4


_WHO: ContextVar[str] = ContextVar("who")


@pytest.mark.both_backends
async def test_a_sync_tool_is_off_the_event_loop_and_has_the_context_of_the_run() -> None:
    """Blocking it blocks nobody else, and context variables reach it."""
    loop_thread = threading.get_ident()
    seen: list[object] = []

    def note() -> str:
        """Note where it runs."""
        seen.extend([threading.get_ident() != loop_thread, _WHO.get()])
        return "noted"

    _WHO.set("me")
    await Agent(ScriptedModel([turn(calls=[call("note")]), "done"]), tools=[note]).run("Go.")
    assert seen == [True, "me"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deps:
    """What this adopter's tools need."""

    user: str


@pytest.mark.both_backends
async def test_a_tool_may_know_the_run_it_is_in() -> None:
    """The context has the deps and where in the run the call is; the model knows nothing of it."""
    seen: list[ToolContext[Deps]] = []

    async def note(n: int, context: ToolContext[Deps]) -> str:
        """Note the context."""
        seen.append(context)
        return context.deps.user

    model = ScriptedModel([asks(1), turn(calls=[call("note", {"n": 1}, call_id="c1")]), "done"])
    agent = Agent(model, tools=[look, note], name="clerk")
    result = await agent.run("Go.", deps=Deps(user="ann"), run_id="r1")
    context = seen[0]
    assert (context.run_id, context.path, context.round) == ("r1", ("clerk",), 2)
    assert (context.call_id, context.tool) == ("c1", "note")
    assert context.budget.spent(0).tool_calls == 2
    assert returns(result.messages)[-1] == ("ok", "ann")
    assert list(model.requests[0].tools[1].parameters["properties"]) == ["n"]


async def test_what_a_tool_reserves_counts() -> None:
    """A tool that sends requests of its own draws on the budget of the run."""

    async def judge(context: ToolContext) -> str:
        """Ask another model."""
        hit = context.budget.charge({"model_calls": 1, "tokens": 50})
        return "judged" if hit is None else f"no: {hit.limit}"

    model = ScriptedModel([turn(calls=[call("judge")]), turn(calls=[call("judge")], text="more"), "done"])
    result = await Agent(model, tools=[judge]).run("Go.", limits=PlanLimits(max_model_calls=4))
    assert result.spent.model_calls == 4
    assert result.spent.tokens >= 50
    assert [text for _, text in returns(result.messages)] == ["judged"] + ["no: max_model_calls"] * (
        len(returns(result.messages)) - 1
    )


@pytest.mark.both_backends
async def test_a_tool_that_takes_too_long_is_an_error_for_the_model() -> None:
    """Its own time limit ends it, not the run."""

    @tool(timeout_seconds=0.05)
    async def nap() -> str:
        """Sleep."""
        await anyio.sleep(60)
        return "never"

    result = await Agent(ScriptedModel([turn(calls=[call("nap")]), "done"]), tools=[nap]).run("Go.")
    assert returns(result.messages) == [("error", "TimeoutError: nap took longer than 0.05 seconds")]
    assert result.stop_reason == "completed"


@pytest.mark.both_backends
async def test_a_shaky_tool_is_tried_again() -> None:
    """`retries` more executions, each a tool call; the model sees the last one."""
    tries: list[int] = []

    @tool(retries=2)
    async def shaky() -> str:
        """Try."""
        tries.append(1)
        if len(tries) < 3:
            raise OSError("not yet")
        return "at last"

    result = await Agent(ScriptedModel([turn(calls=[call("shaky")]), "done"]), tools=[shaky]).run("Go.")
    assert returns(result.messages) == [("ok", "at last")]
    assert result.spent.tools == {"shaky": 3}


# --- what models send -----------------------------------------------------------------------------


def numbered(call_id: str, n: int) -> ToolCall:
    return ToolCall(call_id=call_id, name="look", arguments={"n": n})


@pytest.mark.parametrize(
    "ids",
    [("", ""), ("same", "same"), ("call_1_1", ""), ("", "call_1_0"), ("call_1_2", "call_1_2", "call_1_1", "")],
)
async def test_every_call_of_a_turn_has_an_id_and_a_return_of_its_own(ids: tuple[str, ...]) -> None:
    """Empty and repeated ids are made good, whatever the model's other ids look like."""
    calls = [numbered(call_id, n) for n, call_id in enumerate(ids)]
    result = await searcher(turn(calls=calls), "done")[0].run("Go.")
    assert returns(result.messages) == [("ok", f"page {n}") for n in range(len(ids))]
    assert_valid_history(result.messages)


async def test_ids_are_unique_over_rounds_and_over_runs_of_one_conversation() -> None:
    """Providers refuse a history in which an id stands for two calls."""
    agent, _ = searcher(turn(calls=[numbered("", 1)]), turn(calls=[numbered("a", 2)]), "done")
    first = await agent.run("Go.")
    agent, _ = searcher(turn(calls=[numbered("", 3)]), turn(calls=[numbered("a", 4)]), "done")
    second = await agent.run("Go on.", history=first.messages)
    assert_valid_history(second.messages)
    agent, _ = searcher(turn(calls=[numbered("", 5)]), "done")
    assert_valid_history((await agent.run("And on.", history=second.messages)).messages)


async def test_good_ids_are_the_models_own() -> None:
    """What needs no repair is replayed as it was, the provider's own form included."""
    sent = ModelTurn(tool_calls=(numbered("x1", 1),), finish_reason="tool_calls", native={"id": "x1"})
    result = await searcher(sent, "done")[0].run("Go.")
    assert result.messages[1] == sent


@pytest.mark.both_backends
async def test_a_long_result_is_cut_with_its_length_said() -> None:
    """A megabyte from a tool does not fill the conversation; the model is told that and how much is missing."""

    async def dump() -> str:
        """Dump."""
        return "é" * 1_000_000

    @tool(max_result_chars=100)
    async def brief() -> str:
        """Be brief."""
        return "x" * 101

    agent = Agent(ScriptedModel([turn(calls=[call("dump"), call("brief")]), "done"]), tools=[dump, brief])
    (_, long), (_, short) = returns((await agent.run("Go.")).messages)
    assert len(long) < 20_100
    assert "1000000" in long
    assert short.startswith("x" * 100 + "\n")
    assert "100 of 101" in short


async def test_a_calls_arguments_that_were_cut_off_are_not_run() -> None:
    """A turn that ended at the output cap in the middle of a call says so to the model."""
    cut = ToolCall(call_id="c1", name="look", arguments={}, invalid_arguments='{"n": 12')
    agent, _ = searcher(turn(calls=[cut], finish_reason="length"), "done")
    ((status, text),) = returns((await agent.run("Go.")).messages)
    assert status == "error"
    assert "cut off" in text


# --- structured output ----------------------------------------------------------------------------


class Page(BaseModel):
    """A structured output."""

    number: int


def reader(*steps: object, limits: PlanLimits | None = None) -> tuple[Agent[Page], ScriptedModel]:
    """An agent with a structured output."""
    model = ScriptedModel(steps)
    return Agent(model, tools=[look], output_type=Page, limits=limits or PlanLimits()), model


@pytest.mark.both_backends
async def test_an_answer_of_the_right_form_is_the_output() -> None:
    """The schema is asked for in every request, and the text is kept beside the output."""
    agent, model = reader(asks(1), '{"number": 1}')
    result = await agent.run("Go.")
    assert (result.output, result.text) == (Page(number=1), '{"number": 1}')
    assert all(request.output_schema == Page.model_json_schema() for request in model.requests)


@pytest.mark.both_backends
async def test_an_answer_of_the_wrong_form_is_sent_back_with_the_problem() -> None:
    """Each repair is a round; the model reads which field is wrong."""
    agent, model = reader("one", '{"number": "many"}', '{"number": 1}')
    result = await agent.run("Go.")
    assert (result.output, result.spent.model_rounds) == (Page(number=1), 3)
    told = model.requests[2].messages[-1]
    assert isinstance(told, UserMessage)
    assert told.source == "kernel"
    assert "number" in str(told.content)


@pytest.mark.both_backends
async def test_repairs_end() -> None:
    """After the last one `OutputInvalid` is raised, with the last problem and a state to go on from."""
    agent, model = reader("one", "two", "three", "four", '{"number": 5}')
    with pytest.raises(OutputInvalid) as raised:
        await agent.run("Go.")
    assert model.request_count == 3
    assert raised.value.problem in str(raised.value)
    state = raised.value.state
    assert state is not None
    assert state.spent.model_rounds == 3
    assert_valid_history(state.messages)
    again = RunState.from_json(state.to_json())
    with pytest.raises(OutputInvalid):
        await agent.resume(again)
    assert (await agent.resume(again)).output == Page(number=5)


async def test_repairs_are_inside_the_limits() -> None:
    """A limit that is reached while repairing ends the run honestly, not with an error."""
    agent, model = reader("one", "two", "three")
    result = await agent.run("Go.", limits=PlanLimits(max_model_rounds=2))
    assert model.request_count == 2
    assert (result.output, result.text, result.stop_reason) == (None, "two", "tool_limit")


async def test_no_repairs_is_one_chance() -> None:
    """`output_repairs=0` raises at the first answer that does not fit."""
    model = ScriptedModel(["one"])
    with pytest.raises(OutputInvalid):
        await Agent(model, output_type=Page, output_repairs=0).run("Go.")


async def test_a_type_that_is_no_object_is_wrapped_for_the_provider() -> None:
    """A list is asked for inside an object, and handed over as a list."""
    model = ScriptedModel(['{"value": [1, 2]}'])
    result = await Agent(model, output_type=list[int]).run("Go.")
    assert result.output == [1, 2]
    assert (model.requests[0].output_schema or {}).get("type") == "object"


# --- warnings -------------------------------------------------------------------------------------


def warned(events: list[object]) -> list[tuple[str, object]]:
    """The warnings among events: limit and amount used."""
    return [(event.hit.limit, event.hit.used) for event in events if isinstance(event, LimitWarning)]


@pytest.mark.both_backends
async def test_each_limit_is_warned_of_once() -> None:
    """When its share is used, whichever limit it is, and never again."""
    pages = [asks(n, n + 100, usage=(100, 10)) for n in range(8)]
    agent, _ = searcher(*pages, turn("done", usage=(100, 10)))
    limits = PlanLimits(
        max_model_rounds=20, max_tool_calls=20, tool_limits={"look": 32}, max_tokens=100_000, warn_at=0.4
    )
    async with agent.stream("Go.", limits=limits) as stream:
        events = await events_of(stream)
    assert_one_end(events)
    assert warned(events) == [("max_tool_calls", 8), ("tool_limits['look']", 14), ("max_model_rounds", 8)]


async def test_no_warning_where_none_is_wanted() -> None:
    """`warn_at=None` warns never; a run that stays below is not warned of."""
    for limits, pages in ((PlanLimits(warn_at=None), 9), (PlanLimits(max_model_rounds=100), 3)):
        agent, _ = searcher(*[asks(n) for n in range(pages)], "done")
        async with agent.stream("Go.", limits=limits) as stream:
            assert warned(await events_of(stream)) == []


@pytest.mark.both_backends
async def test_the_model_is_warned_after_the_newest_return_and_never_in_the_instructions() -> None:
    """The line is new text at the end, so that nothing a provider has cached is changed; it comes once a limit."""
    model = ScriptedModel([*[asks(n) for n in range(8)], "done"])
    agent = Agent(model, tools=[look], instructions="Be brief.")
    result = await agent.run("Go.", limits=PlanLimits(max_model_rounds=10, warn_at=0.5, warn_model=True))
    lines = [index for index, message in enumerate(result.messages) if "near its limits" in str(message)]
    assert len(lines) == 1
    line = result.messages[lines[0]]
    assert isinstance(line, UserMessage)
    assert line.source == "kernel"
    assert "max_model_rounds: 5 of 10 used" in str(line.content)
    assert isinstance(result.messages[lines[0] - 1], ToolReturn)
    assert {request.instructions for request in model.requests} == {"Be brief."}
    for earlier, later in zip(model.requests, model.requests[1:], strict=False):
        assert list(later.messages[: len(earlier.messages)]) == list(earlier.messages)


async def test_the_model_is_not_told_where_that_is_not_wanted() -> None:
    """By default the warning is an event alone."""
    agent, model = searcher(*[asks(n) for n in range(8)], "done")
    await agent.run("Go.", limits=PlanLimits(max_model_rounds=10, warn_at=0.5))
    assert not any("near its limits" in str(message) for message in model.requests[-1].messages)


async def test_a_blank_piece_is_passed_on_like_any_other() -> None:
    """Empty pieces of an answer do no harm."""
    agent, _ = searcher(Step(deltas=("", "a", "", " b", "")))
    async with agent.stream("Go.") as stream:
        assert_one_end(await events_of(stream))
    assert stream.result.text == "a b"


class _Deps:
    """Something that a run holds, and nothing else."""


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_run_that_is_over_is_freed_at_once(streamed: bool) -> None:
    """Nothing in a run holds itself: a thousand runs leave no work for the garbage collector."""
    agent, _ = searcher(asks(1, 2), asks(3), "done")
    deps = _Deps()
    held = weakref.ref(deps)
    gc.collect()
    gc.disable()
    try:
        if streamed:
            async with agent.stream("Go.", deps=deps) as run:
                assert [event.kind async for event in run][-1] == "done"
            del run
        else:
            await agent.run("Go.", deps=deps)
        del deps
        assert held() is None
    finally:
        gc.enable()
