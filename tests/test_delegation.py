"""An agent as a tool of another: one budget, one stream, and an answer that says what it is worth."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from endstop import (
    Agent,
    AgentResult,
    Budget,
    Event,
    MemoryEffects,
    ModelError,
    ModelRequest,
    ModelTurn,
    PlanLimits,
    Tool,
    ToolContext,
    ToolFatal,
    ToolReturn,
    tool,
)
from endstop.models.scripted import Forever, ScriptedModel, ScriptStep, call, forever, turn
from tests.runs import AT_ONCE, events_of, look, searches
from tests.shop import FREE, assert_all_answered, delegating, ends, returns, stored


def boss(
    helper: Agent[str] | Tool, *steps: ScriptStep, limits: PlanLimits = FREE, effects: MemoryEffects | None = None
) -> tuple[Agent[str], ScriptedModel]:
    """An agent on a script with one helper."""
    model = ScriptedModel(steps)
    tools = [helper.as_tool() if isinstance(helper, Agent) else helper]
    return Agent(model, tools=tools, name="boss", limits=limits, effects=effects or MemoryEffects()), model


def helper_on(*steps: ScriptStep | Forever, limits: PlanLimits = FREE) -> Agent[str]:
    """A helper with a tool, on a script."""
    return Agent(ScriptedModel(steps), tools=[look], name="helper", limits=limits, retry=AT_ONCE)


def searching(limits: PlanLimits = FREE) -> tuple[Agent[str], ScriptedModel]:
    """A helper that never stops of its own accord."""
    model = ScriptedModel([searches(answer="partly found")])
    return Agent(model, tools=[look], name="helper", limits=limits), model


async def watched(agent: Agent[str], prompt: str = "go") -> tuple[AgentResult[str], list[Event]]:
    async with agent.stream(prompt, run_id="r") as run:
        events = await events_of(run)
    return run.result, events


# -- one budget ------------------------------------------------------------------------------------


async def test_the_task_goes_in_and_the_answer_comes_back() -> None:
    """The child sees the task alone; its answer is the tool's return."""
    helper = helper_on("42")
    agent, model = boss(helper, delegating("compute"), "it is 42")
    result = await agent.run("what is it?")
    assert result.text == "it is 42"
    assert returns(result) == {"compute": "42"}
    (asked,) = helper.model.requests
    assert [message.content for message in asked.messages] == ["compute"]
    assert model.requests[0].tools[0].parameters["required"] == ["task"]


async def test_every_unit_of_a_child_is_its_ancestors_too() -> None:
    """Rounds, calls, tool executions and tokens of three levels are in the top run's account, and in a shared one."""
    look_once = turn(calls=[call("look", {"n": 1})], usage=(10, 1))
    lowest = Agent(ScriptedModel([look_once, turn("found", usage=(20, 2))]), tools=[look], name="lowest")
    steps = [turn(calls=[call("lowest", {"task": "find"})], usage=(100, 10)), turn("got it", usage=(200, 20))]
    helper = Agent(ScriptedModel(steps), tools=[lowest.as_tool()], name="helper")
    top = [turn(calls=[call("helper", {"task": "find"})], usage=(1_000, 100)), turn("done", usage=(2_000, 200))]
    shared = Budget(FREE)
    result = await boss(helper, *top)[0].run("go", budget=shared)
    for spent in (result.spent, shared.spent(0.0)):
        assert (spent.model_rounds, spent.model_calls, spent.tool_calls) == (6, 6, 3)
        assert spent.tools == {"helper": 1, "lowest": 1, "look": 1}
        assert (spent.input_tokens, spent.output_tokens) == (3_330, 333)


async def test_a_sub_agent_is_inside_the_limit_of_its_parent() -> None:
    """A parent with 4 model calls has 4 in all, whatever its child would like: three times as many would be none."""
    helper, helper_model = searching()
    agent, model = boss(helper, delegating("search"), "the end", limits=PlanLimits(max_model_calls=4))
    result = await agent.run("go")
    assert helper_model.request_count + model.request_count == result.spent.model_calls == 4
    assert returns(result)["search"].startswith("[TRUNCATED: max_model_calls ")
    assert (result.stop_reason, result.text) == ("budget", "the end"), "its last call is the one that it kept"


@pytest.mark.parametrize("allowed", [2, 3, 5, 10, 17, 18])
@pytest.mark.parametrize("unit", ["max_model_calls", "max_tool_calls", "tool_limits"])
async def test_eight_children_at_once_never_overshoot_one_limit(unit: str, allowed: int) -> None:
    """Each would take what it can get; together they get what is there, and the parent its last word."""
    model = ScriptedModel([searches(parallel=2, answer="partly")], latency_seconds=0.001)
    helper = Agent(model, tools=[look], name="helper", limits=FREE)
    bounded = {"look": allowed} if unit == "tool_limits" else allowed
    limits = PlanLimits(max_model_rounds=None, **{unit: bounded})
    agent, top = boss(helper, delegating(*"abcdefgh"), "the end", limits=limits)
    result = await agent.run("go")
    used = {
        "max_model_calls": result.spent.model_calls,
        "max_tool_calls": result.spent.tool_calls,
        "tool_limits": result.spent.tools.get("look", 0),
    }
    assert used[unit] <= allowed
    assert model.request_count + top.request_count == result.spent.model_calls
    assert len(returns(result)) == 8
    assert result.text == "the end"
    assert_all_answered(result.messages)


async def test_a_child_has_limits_of_its_own_besides() -> None:
    """Those given to `as_tool` in place of the agent's; used up, they end the child and not the parent."""
    helper, helper_model = searching(PlanLimits(max_model_rounds=50))
    agent, _ = boss(helper.as_tool(limits=PlanLimits(max_model_rounds=3)), delegating("search"), "the end")
    result = await agent.run("go")
    assert helper_model.request_count == 3
    banner = "[TRUNCATED: max_model_rounds is used up (3 of 3); this is a partial answer from what was found so far]"
    assert returns(result) == {"search": f"{banner}\n\npartly found"}
    assert (result.stop_reason, result.text) == ("completed", "the end")


async def test_a_child_that_raises_at_its_limit_hands_over_its_partial_answer_too() -> None:
    """`on_limit="raise"` is for code that calls the agent; the parent's model reads the same marked text."""
    helper, _ = searching(PlanLimits(max_model_rounds=2, on_limit="raise"))
    agent, _ = boss(helper, delegating("search"), "the end")
    result, events = await watched(agent)
    assert returns(result)["search"].startswith("[TRUNCATED: max_model_rounds is used up (2 of 2);")
    assert ends(events) == [("error", ("boss", "helper")), ("done", ("boss",))]


# -- one stream ------------------------------------------------------------------------------------


async def test_the_events_of_a_child_are_in_the_stream_with_their_path() -> None:
    """Numbers rise by one over all of them, and the stream ends with the one `done` of the parent."""
    helper = helper_on(
        forever(lambda asked: "found" if len(asked.messages) > 1 else turn(calls=[call("look", {"n": 1})]))
    )
    agent, _ = boss(helper, delegating("a", "b"), "the end")
    result, events = await watched(agent)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert {event.path: event.run_id for event in events if event.path == ("boss",)} == {("boss",): "r"}
    assert {event.run_id for event in events if event.path == ("boss", "helper")} == {"r/a", "r/b"}
    assert ends(events) == [("done", ("boss", "helper"))] * 2 + [("done", ("boss",))]
    assert events[-1].path == ("boss",)
    for run_id in ("r/a", "r/b"):
        kinds = [event.kind for event in events if event.run_id == run_id]
        assert (kinds[0], kinds[-1]) == ("started", "done")
    assert result.run_id == "r"


async def test_a_long_answer_of_a_child_waits_for_the_reader() -> None:
    """Its events are the parent's to read: however many they are, none is lost and nothing stands still."""
    long = ScriptedModel([" ".join("word" for _ in range(3_000))], stream=True)
    agent, _ = boss(Agent(long, name="helper"), delegating("write"), "the end")
    _, events = await watched(agent)
    assert sum(event.kind == "text_delta" and event.path == ("boss", "helper") for event in events) == 3_000


@pytest.mark.both_backends
async def test_a_reader_who_comes_late_finds_every_child_at_work() -> None:
    """Where nobody reads for a while all of them wait, and all go on when somebody does."""
    words = " ".join("word" for _ in range(300))

    def step(asked: ModelRequest) -> ScriptStep:
        return words if len(asked.messages) > 1 else turn(words, calls=[call("look", {"n": 1})])

    helper = Agent(ScriptedModel([forever(step)], stream=True), tools=[look], name="helper", limits=FREE)
    agent, _ = boss(helper, delegating(*"abcdefgh"), "the end")
    async with agent.stream("go") as run:
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(5):
            events = await events_of(run)
    assert ends(events) == [("done", ("boss", "helper"))] * 8 + [("done", ("boss",))]
    assert sum(event.kind == "text_delta" for event in events) == 8 * 2 * 300 + 1


async def test_a_delegated_run_without_a_stream_comes_to_its_end() -> None:
    """A framework that calls the tool by itself reads no events: nothing waits for a reader that is not there."""
    long = ScriptedModel([" ".join("word" for _ in range(3_000))], stream=True)
    alone = Agent(long, name="helper").as_tool()
    context = ToolContext(deps=None, run_id="r", path=(), round=1, call_id="c", tool="helper", budget=Budget(FREE))
    with anyio.fail_after(5):
        answer = await alone.body({"task": "write"}, context)
    assert len(str(answer).split()) == 3_000


# -- depth -----------------------------------------------------------------------------------------


def nested(levels: int) -> tuple[Agent[str], list[str]]:
    """An agent above so many others, each of which hands its task on; the lowest answers. Who ran is noted."""
    ran: list[str] = []

    def step(name: str, below: str | None) -> Callable[[ModelRequest], ScriptStep]:
        def answer(request: ModelRequest) -> ScriptStep:
            newest = request.messages[-1]
            if isinstance(newest, ToolReturn) or below is None:
                return f"{name} says: {newest.content}"
            return turn(calls=[call(below, {"task": "go on"})])

        ran.append(name)
        return answer

    agent: Agent[str] | None = None
    for level in range(levels, -1, -1):
        tools = [] if agent is None else [agent.as_tool()]
        below = None if agent is None else agent.name

        def start(request: ModelRequest, name: str = f"level{level}", below: str | None = below) -> ScriptStep:
            return step(name, below)(request)

        agent = Agent(ScriptedModel([forever(start)]), tools=tools, name=f"level{level}", limits=FREE)
    assert agent is not None
    return agent, ran


@pytest.mark.parametrize(("max_depth", "levels"), [(0, 0), (1, 1), (2, 2), (3, 3), (None, 4), (8, 4)])
async def test_delegation_goes_no_deeper_than_it_may(max_depth: int | None, levels: int) -> None:
    """`max_depth` counts the levels below the run; a child beyond is not started, and its caller is told why."""
    agent, ran = nested(4)
    result = await agent.run("go", limits=PlanLimits(max_model_rounds=None, max_depth=max_depth))
    assert set(ran) == {f"level{level}" for level in range(levels + 1)}
    refused = "Not run: the limit max_depth leaves no level of delegation for " in result.text
    assert refused == (levels < 4)
    assert result.stop_reason == "completed"


async def test_a_child_that_was_not_started_is_no_result() -> None:
    """Its return has the status that says so: neither the digest of an ending nor a caller takes it for an answer."""
    agent, _ = nested(1)
    result = await agent.run("go", limits=PlanLimits(max_depth=0))
    assert [message.status for message in result.messages if isinstance(message, ToolReturn)] == ["not_run"]
    assert result.spent.tools == {}, "a call that is refused is no execution"


async def test_a_child_cannot_allow_itself_more_depth() -> None:
    """Its own limit can only shorten what is left."""
    lowest = Agent(ScriptedModel(["never"]), name="lowest")
    asks_lowest = [turn(calls=[call("lowest", {"task": "go"})]), "could not"]
    helper = Agent(ScriptedModel(asks_lowest), tools=[lowest.as_tool()], name="helper", limits=PlanLimits(max_depth=5))
    agent, _ = boss(helper, delegating("go"), "the end", limits=PlanLimits(max_depth=1))
    result = await agent.run("go")
    assert returns(result) == {"go": "could not"}
    assert lowest.model.request_count == 0


# -- time, errors, cancellation --------------------------------------------------------------------


async def test_a_slow_child_leaves_the_time_for_its_parent_s_last_answer() -> None:
    """The seconds that the parent keeps are not the child's, however slow it is."""
    slow = Agent(ScriptedModel([forever("never")], latency_seconds=3_600), name="helper", limits=FREE)
    limits = PlanLimits(max_seconds=3_600.5, answer_seconds=3_600.0)
    agent, model = boss(slow, delegating("wait"), "partly", limits=limits)
    result = await agent.run("go")
    assert (result.text, model.request_count) == ("partly", 2)
    assert result.spent.seconds < 3_600
    assert_all_answered(result.messages)


async def test_a_child_cut_by_its_parent_s_time_hands_over_what_it_has() -> None:
    """It keeps a part of what is left for a last answer of its own, as its parent does."""

    async def stuck(n: int) -> str:
        """Never come back."""
        await anyio.sleep_forever()
        return ""

    model = ScriptedModel([turn(calls=[call("look", {"n": 1})]), "half of it"])
    helper = Agent(model, tools=[tool(name="look")(stuck)], name="helper", limits=FREE)
    limits = PlanLimits(max_seconds=3_600.5, answer_seconds=3_600.0)
    agent, _ = boss(helper, delegating("wait"), "the end", limits=limits)
    result = await agent.run("go")
    assert returns(result)["wait"].startswith("[TRUNCATED: max_seconds ")
    assert returns(result)["wait"].endswith("\n\nhalf of it")
    assert result.text == "the end"


async def test_a_child_that_runs_out_of_its_own_time_ends_honestly() -> None:
    """Its parent reads what it had and goes on."""
    model = ScriptedModel([turn("half of it", calls=[call("look", {"n": 1})]), "never"])

    async def stuck(n: int) -> str:
        """Never come back."""
        await anyio.sleep_forever()
        return ""

    helper = Agent(model, tools=[tool(name="look")(stuck)], name="helper")
    limits = PlanLimits(max_seconds=0.05, on_limit="stop")
    agent, _ = boss(helper.as_tool(limits=limits), delegating("wait"), "the end")
    result = await agent.run("go")
    assert returns(result)["wait"].startswith("[TRUNCATED: max_seconds ")
    assert returns(result)["wait"].endswith("\n\nhalf of it")
    assert result.text == "the end"


async def test_a_failure_of_a_child_is_its_parent_s_to_read() -> None:
    """Its error is the tool's return, and an event of the child; the parent goes on."""
    helper = helper_on(ModelError("overloaded"))
    agent, _ = boss(helper, delegating("try"), "the end")
    result, events = await watched(agent)
    assert [m for m in result.messages if isinstance(m, ToolReturn)] == [
        ToolReturn(call_id="try", name="helper", content="ModelError: overloaded", status="error")
    ]
    assert ends(events) == [("error", ("boss", "helper")), ("done", ("boss",))]
    assert result.text == "the end"


@pytest.mark.both_backends
async def test_a_fatal_error_in_a_child_ends_the_whole_run() -> None:
    """Going on would do harm, at any level; the error carries the state of the run that was asked for."""

    def burn() -> str:
        """End the run."""
        raise ToolFatal("fire")

    helper = Agent(ScriptedModel([turn(calls=[call("burn")])]), tools=[burn], name="helper")
    agent, _ = boss(helper, delegating("go"), "after all")
    with pytest.raises(ToolFatal, match="fire") as failed:
        await agent.run("go", run_id="r")
    state = failed.value.state
    assert state is not None
    assert (state.run_id, state.spent.model_calls) == ("r", 2)
    assert_all_answered(state.messages)
    assert (await agent.resume(state)).text == "after all"


@pytest.mark.both_backends
async def test_a_cancellation_reaches_the_children() -> None:
    """Two levels down too: each ends, the innermost first, and what they spent is counted."""
    arrived = anyio.Event()

    async def wait(request: ModelRequest, on_delta: Callable[..., Awaitable[None]]) -> ModelTurn:
        arrived.set()
        await anyio.sleep_forever()
        return turn("never")

    lowest = Agent(Waiting(wait), name="lowest")
    helper = Agent(
        ScriptedModel([turn(calls=[call("lowest", {"task": "wait"})])]), tools=[lowest.as_tool()], name="mid"
    )
    agent, _ = boss(helper, delegating("wait", to="mid"), "after all")
    async with agent.stream("go") as run:
        await arrived.wait()
        run.cancel()
        events = await events_of(run)
    assert ends(events) == [
        ("cancelled", ("boss", "mid", "lowest")),
        ("cancelled", ("boss", "mid")),
        ("cancelled", ("boss",)),
    ]
    assert run.result.spent.model_calls == 3
    assert_all_answered(run.result.messages)
    assert (await agent.resume(stored(run.result))).text == "after all"


class Waiting:
    """A model that is a function."""

    name = "waiting"

    def __init__(self, respond: Callable[..., Awaitable[ModelTurn]]) -> None:
        self.respond = respond
