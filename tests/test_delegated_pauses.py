"""Pauses below: a delegated child that asks pauses its parent, and is answered from the top."""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endstop import (
    Agent,
    Decision,
    Interrupt,
    MemoryEffects,
    ModelRequest,
    PlanLimits,
    ResumeError,
    RunState,
    Tool,
    ToolFatal,
    ToolReturn,
    ask_user,
    tool,
)
from endstop._resume import resumed_state
from endstop.models.scripted import ScriptedModel, ScriptStep, call, forever, turn
from tests.runs import events_of
from tests.shop import APPROVE, FREE, Clock, answers_to, assert_all_answered, delegating, ends, returns, stored

T = TypeVar("T")


class Chain:
    """A boss above a helper above a clerk, whose tools ask people; `done` is what the tools did."""

    def __init__(self, *asked: str, effects: MemoryEffects | None = None) -> None:
        self.done: list[str] = []
        effects = effects or MemoryEffects()
        tools = [tool(requires_approval=True)(self.pay), self.look, ask_user]
        arguments = {"pay": {"amount": 1}, "look": {"n": 1}, "ask_user": {"question": "name?"}}
        calls = [call(name, arguments[name], call_id=f"{name}{n}") for n, name in enumerate(asked)]
        self.model = ScriptedModel([delegating("a", to="helper"), "all done"])
        self.middle = ScriptedModel([delegating("b", to="clerk"), "middle done"])
        self.lowest = ScriptedModel([turn(calls=calls), "clerk done"])
        clerk = Agent(self.lowest, tools=tools, name="clerk", effects=effects)
        helper = Agent(self.middle, tools=[clerk.as_tool()], name="helper", effects=effects)
        self.agent = Agent(self.model, tools=[helper.as_tool(), self.look], name="boss", effects=effects)

    async def pay(self, amount: int) -> str:
        """Pay an amount."""
        self.done.append(f"pay {amount}")
        return f"paid {amount}"

    async def look(self, n: int) -> str:
        """Look at a page."""
        self.done.append(f"look {n}")
        return f"page {n}"


@pytest.mark.both_backends
async def test_a_pause_two_levels_down_pauses_the_run_and_is_answered_at_its_top() -> None:
    """With the path of the agent that asks; each level goes on where it was, and nothing is done or paid twice."""
    chain = Chain("pay", "look")
    async with chain.agent.stream("go", run_id="r") as run:
        events = await events_of(run)
    paused = stored(run.result)
    (pause,) = paused.pauses
    assert (pause.pause_id, pause.path) == ("r/a/b:pay0:approval", ("boss", "helper", "clerk"))
    assert (pause.call.name, pause.call_id) == ("pay", "a"), "what asks, and the call of this run that waits for it"
    assert [event.path for event in events if event.kind == "interrupt"] == [pause.path], "told once, by who asks"
    assert ends(events) == [("done", pause.path[: 3 - n]) for n in range(3)]
    assert chain.done == ["look 1"]
    async with chain.agent.resume_stream(paused, answers={pause.pause_id: APPROVE}) as run:
        events = await events_of(run)
    assert [event.path for event in events if event.kind == "resumed"] == [pause.path[: n + 1] for n in range(3)]
    assert [event.kind for event in events if event.kind == "retrieved" or event.kind == "started"] == []
    assert events[0].seq == paused.state.seq + 1
    assert (run.result.text, chain.done) == ("all done", ["look 1", "pay 1"])
    assert run.result.spent.model_calls == 6
    assert run.result.spent.tools == {"helper": 1, "clerk": 1, "pay": 1, "look": 1}
    assert returns(run.result) == {"a": "middle done"}
    assert [m.request_count for m in (chain.model, chain.middle, chain.lowest)] == [2, 2, 2]


async def test_the_pauses_of_a_child_may_be_answered_together() -> None:
    """From the top, as if they were its own."""
    chain = Chain("pay", "ask_user", "pay")
    paused = stored(await chain.agent.run("go", run_id="r"))
    answers = {"r/a/b:pay0:approval": APPROVE, "r/a/b:ask_user1:0": "Ada", "r/a/b:pay2:approval": APPROVE}
    assert {pause.pause_id for pause in paused.pauses} == set(answers)
    result = await chain.agent.resume(paused, answers=answers)
    assert (result.text, chain.done) == ("all done", ["pay 1", "pay 1"])
    with pytest.raises(ResumeError, match="completed"):
        await chain.agent.resume(result, answers=answers)


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
async def test_the_pauses_of_a_child_may_be_answered_one_by_one(order: tuple[int, ...]) -> None:
    """In any order: what is answered runs at once, at every depth, and what still waits pauses the run again."""
    chain = Chain("pay", "ask_user", "pay")
    result = await chain.agent.run("go", run_id="r")
    ids = [pause.pause_id for pause in result.pauses]
    payments = 0
    for number, index in enumerate(order, start=1):
        result = await chain.agent.resume(stored(result), answers={ids[index]: APPROVE if index != 1 else "Ada"})
        assert {pause.pause_id for pause in result.pauses} == {ids[each] for each in order[number:]}
        payments += index != 1
        assert len(chain.done) == payments
        with pytest.raises(ResumeError, match=r"is used|completed"):
            await chain.agent.resume(result, answers={ids[index]: APPROVE})
    assert result.text == "all done"
    assert result.spent.tools == {"helper": 1, "clerk": 1, "pay": 2, "ask_user": 1}


@pytest.mark.both_backends
async def test_two_children_and_the_parent_pause_at_once() -> None:
    """Each question has its own id; a child that needs no answer any more comes to its end, the others wait."""
    done: list[str] = []

    @tool(requires_approval=True)
    def pay(amount: int) -> str:
        """Pay an amount."""
        done.append(f"pay {amount}")
        return f"paid {amount}"

    def step(asked: ModelRequest) -> ScriptStep:
        if len(asked.messages) > 1:
            return "bought"
        return turn(calls=[call("pay", {"amount": 1}, call_id="pay")])

    helper = Agent(ScriptedModel([forever(step)]), tools=[pay], name="helper")
    first = [*delegating("a", "b").tool_calls, call("pay", {"amount": 2}, call_id="pay")]
    agent = Agent(ScriptedModel([turn(calls=first), "the end"]), tools=[helper.as_tool(), pay], name="boss")
    result = await agent.run("go", run_id="r")
    for number, pause_id in enumerate(["r/b:pay:approval", "r:pay:approval", "r/a:pay:approval"], start=1):
        assert pause_id in {pause.pause_id for pause in result.pauses}
        result = await agent.resume(stored(result), answers={pause_id: APPROVE})
        assert len(done) == number
    assert returns(result) == {"b": "bought", "pay": "paid 2", "a": "bought"}
    assert (result.text, result.spent.tools) == ("the end", {"helper": 2, "pay": 3})


async def test_an_edit_and_a_rejection_reach_the_call_two_levels_down() -> None:
    """The decision is about the call that asks, not about the delegation."""
    chain = Chain("pay", "pay")
    paused = await chain.agent.run("go", run_id="r")
    edit, reject = Decision(type="edit", arguments={"amount": 7}), Decision(type="reject", message="no")
    await chain.agent.resume(paused, answers={"r/a/b:pay0:approval": edit, "r/a/b:pay1:approval": reject})
    assert chain.done == ["pay 7"]
    told = [message.content for message in chain.lowest.requests[-1].messages if isinstance(message, ToolReturn)]
    assert told == ['[A person changed the arguments to {"amount":7}]\npaid 7', "Not run: a person rejected it: no"]


async def test_a_delegation_may_itself_need_approval() -> None:
    """Nothing below it runs before, and it is not asked for again when its child pauses."""
    chain = Chain("pay")
    helper = chain.agent.tools[0]
    assert isinstance(helper, Tool)
    agent = Agent(chain.model, tools=[replace(helper, requires_approval=True)], name="boss")
    first = await agent.run("go", run_id="r")
    assert chain.middle.request_count == 0
    second = stored(await agent.resume(first, answers={"r:a:approval": APPROVE}))
    assert [pause.pause_id for pause in second.pauses] == ["r/a/b:pay0:approval"]
    result = await agent.resume(second, answers=answers_to(second, APPROVE))
    assert (result.text, chain.done) == ("all done", ["pay 1"])
    assert result.spent.tools == {"helper": 1, "clerk": 1, "pay": 1}


async def test_a_limit_of_the_parent_gives_up_what_waits_below() -> None:
    """The ids of a child that nobody will go on with take no answer any more."""
    clock = Clock()
    chain = Chain("pay", "pay", effects=clock)
    limits = PlanLimits(deadline=clock.time + timedelta(hours=1))
    paused = stored(await chain.agent.run("go", limits=limits, run_id="r"))
    clock.time += timedelta(hours=2)
    result = await chain.agent.resume(paused, answers={"r/a/b:pay0:approval": APPROVE})
    assert (result.stop_reason, result.pauses, chain.done) == ("budget", (), [])
    with pytest.raises(ResumeError, match="'r/a/b:pay1:approval' is used"):
        await chain.agent.resume(result, answers={"r/a/b:pay1:approval": APPROVE}, limits=FREE)


@pytest.mark.parametrize("leaving", [False, True], ids=["cancelled", "left"])
async def test_a_leg_that_is_broken_off_gives_up_what_waits_below(leaving: bool) -> None:
    """Also what nobody has answered yet: the history is valid and no id takes an answer any more."""
    started = anyio.Event()

    @tool(requires_approval=True)
    async def wire(amount: int) -> str:
        """Wire an amount, and never come back."""
        started.set()
        await anyio.sleep_forever()
        return ""

    wires = [call("wire", {"amount": n}, call_id=f"wire{n}") for n in (5, 6)]
    helper = Agent(ScriptedModel([turn(calls=wires)]), tools=[wire], name="helper")
    agent = Agent(ScriptedModel([delegating("a", to="helper"), "after all"]), tools=[helper.as_tool()], name="boss")
    paused = stored(await agent.run("go", run_id="r"))
    async with agent.resume_stream(paused, answers={"r/a:wire5:approval": APPROVE}) as run:
        await started.wait()
        if not leaving:
            run.cancel()
            await events_of(run)
    state = RunState.from_json(run.state.to_json())
    assert (state.pauses, state.children, state.stop_reason) == ([], {}, "cancelled")
    assert_all_answered(state.messages)
    for pause_id in ("r/a:wire5:approval", "r/a:wire6:approval"):
        with pytest.raises(ResumeError, match="is used"):
            await agent.resume(state, answers={pause_id: APPROVE})
    assert (await agent.resume(state)).text == "after all"


async def test_a_fatal_error_beside_a_child_that_pauses_again_loses_neither() -> None:
    """The error's state has what the child still waits for, and it is answered from there."""

    @tool(requires_approval=True)
    def burn() -> str:
        """End the run."""
        raise ToolFatal("fire")

    chain = Chain("pay", "pay")
    calls = [*delegating("a").tool_calls, call("burn", call_id="burn")]
    agent = Agent(ScriptedModel([turn(calls=calls), "after all"]), tools=[chain.agent.tools[0], burn], name="boss")
    paused = stored(await agent.run("go", run_id="r"))
    with pytest.raises(ToolFatal) as failed:
        await agent.resume(paused, answers={"r/a/b:pay0:approval": APPROVE, "r:burn:approval": APPROVE})
    assert failed.value.state is not None
    state = RunState.from_json(failed.value.state.to_json())
    assert ([pause.pause_id for pause in state.pauses], chain.done) == (["r/a/b:pay1:approval"], ["pay 1"])
    result = await agent.resume(state, answers={"r/a/b:pay1:approval": APPROVE})
    assert (result.text, chain.done) == ("after all", ["pay 1", "pay 1"])


async def test_a_leg_may_begin_where_answers_are_noted_and_nothing_is_done_yet() -> None:
    """What a process that was killed early had stored: the child goes on, and pauses again for the rest."""
    chain = Chain("pay", "look", "pay")
    paused = await chain.agent.run("go", run_id="r")
    answers = {"r/a/b:pay0:approval": APPROVE}
    noted = resumed_state(paused.state, limits=None, answers=answers, now=MemoryEffects().now())
    again = stored(await chain.agent.resume(RunState.from_json(noted.to_json())))
    assert ([pause.pause_id for pause in again.pauses], chain.done) == (["r/a/b:pay2:approval"], ["look 1", "pay 1"])


class Keys(MemoryEffects):
    """Notes the keys under which work is asked for."""

    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def step(self, key: str, do: Callable[[], Awaitable[T]]) -> T:
        self.seen.append(key)
        return await do()


async def test_no_two_steps_of_a_run_and_its_children_share_a_key() -> None:
    """One journal serves them all: a key that came twice would be answered with what another step had kept."""
    effects = Keys()
    chain = Chain("pay", "ask_user", effects=effects)
    result = await chain.agent.run("go")
    while result.stop_reason == "paused":
        pause = result.pauses[0]
        result = await chain.agent.resume(result, answers={pause.pause_id: APPROVE})
    assert result.text == "all done"
    assert sorted(effects.seen) == sorted(set(effects.seen))


# -- any tree, any order ---------------------------------------------------------------------------


class Tree:
    """Agents above agents: a list is a batch of calls, a list inside it another agent with its own batch."""

    def __init__(self, batch: list[object]) -> None:
        self.done: list[str] = []
        self.asked: list[str] = []
        self.models: list[ScriptedModel] = []
        self.agent = self.grow(batch)

    def grow(self, batch: list[object]) -> Agent[str]:
        number = len(self.models)
        self.models.append(ScriptedModel([]))
        tools: list[Tool] = [tool(requires_approval=True)(self.pay), ask_user]
        calls = []
        for each in batch:
            if isinstance(each, list):
                child = self.grow(each)
                tools.append(child.as_tool())
                calls.append(call(child.name, {"task": "go"}))
            else:
                self.asked.append(str(each))
                calls.append(call(str(each), {"amount": 1} if each == "pay" else {"question": "what?"}))
        self.models[number] = ScriptedModel([turn(calls=calls), f"done {number}"])
        return Agent(self.models[number], tools=tools, name=f"agent{number}", limits=FREE)

    async def pay(self, amount: int) -> str:
        """Pay an amount."""
        self.done.append("pay")
        return f"paid {amount}"


BATCHES = st.recursive(
    st.sampled_from(["pay", "ask_user"]), lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=6
).filter(lambda batch: isinstance(batch, list))


@given(BATCHES, st.integers(0, 2**32))
@settings(max_examples=50)
async def test_any_tree_of_agents_answered_in_any_order(batch: list[object], seed: int) -> None:
    """Whoever asks, at whatever depth: each is asked once, runs once, and every model is asked twice in all."""
    tree, chance = Tree(batch), random.Random(seed)
    result = await tree.agent.run("go")
    assert len(result.pauses) == len(tree.asked)
    waiting = set(answers_to(result, None))
    while result.stop_reason == "paused":
        chosen = chance.sample(sorted(waiting), chance.randint(1, len(waiting)))
        paid = len(tree.done)
        result = await tree.agent.resume(stored(result), answers=dict.fromkeys(chosen, APPROVE))
        assert len(tree.done) == paid + sum("approval" in each for each in chosen)
        waiting -= set(chosen)
        assert set(answers_to(result, None)) == waiting
    assert result.text == "done 0"
    assert [model.request_count for model in tree.models] == [2] * len(tree.models)
    assert result.spent.model_calls == 2 * len(tree.models)
    assert result.spent.tool_calls == len(tree.asked) + len(tree.models) - 1
    assert_all_answered(result.messages)


async def test_what_nobody_answered_a_child_in_time_is_given_up_below() -> None:
    """The child is told, goes on, and its answer is the call's return."""

    async def confirm() -> str:
        """Ask a person who does not come."""
        raise Interrupt("Really?", expires_in_seconds=0.001)

    below = ScriptedModel([turn(calls=[call("confirm", call_id="c")]), "child done without"])
    helper = Agent(below, tools=[confirm], name="helper")
    agent = Agent(ScriptedModel([delegating("a", to="helper"), "all done"]), tools=[helper.as_tool()], name="boss")
    paused = stored(await agent.run("go"))
    await anyio.sleep(0.01)
    result = await agent.resume(paused)
    assert (result.stop_reason, result.text) == ("completed", "all done")
    assert returns(result) == {"a": "child done without"}
