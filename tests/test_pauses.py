"""Pauses, sentence by sentence of the contract in `endstop._pauses`: what runs, what waits, and at which limits."""

from __future__ import annotations

import itertools
import random
import time
from datetime import timedelta

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endstop import (
    Agent,
    AskUser,
    Budget,
    Cancelled,
    Decision,
    Done,
    Interrupt,
    InterruptEvent,
    PlanLimits,
    ResumeError,
    RunState,
    ToolContext,
    ToolFatal,
    ToolReturn,
    tool,
)
from endstop.models.scripted import ScriptedModel, call, forever, turn
from tests.runs import assert_one_end, events_of, kinds
from tests.shop import APPROVE, INTEGER, Shop, answers_to, ask, assert_all_answered, book, look, pay, returns, stored


async def test_a_pause_ends_the_leg_after_the_rest_of_its_batch_has_run() -> None:
    """The other calls are answered, those that wait are not, and the model is not asked again."""
    shop = Shop(turn(calls=[pay(5), look(1), ask("age?")]))
    async with shop.agent.stream("go") as run:
        events = await events_of(run)
    result = run.result
    assert (result.stop_reason, result.truncated, shop.done) == ("paused", False, ["look 1"])
    assert returns(result) == {"look1": "page 1"}
    assert shop.model.request_count == 1
    assert kinds(events)[-4:] == ["tool_result", "interrupt", "ask_user", "done"]
    assert isinstance(assert_one_end(events), Done)
    assert result.ending is not None
    assert result.ending.pending == (pay(5), ask("age?"))
    assert str(result).startswith("[PAUSED: waiting for 2 answers: May pay be called?; age?;")


async def test_a_pause_says_what_is_asked_and_how_to_answer() -> None:
    """Its event and the result carry the same record: id, kind, question or call, schema, path and expiry."""
    shop = Shop(turn(calls=[pay(5), book(2), ask("age?"), call("offer", {"item": "tea"}, call_id="offer")]))
    async with shop.agent.stream("go", run_id="r") as run:
        events = await events_of(run)
    told = [event.pause for event in events if isinstance(event, AskUser | InterruptEvent)]
    assert tuple(told) == run.result.pauses
    assert [(p.pause_id, p.kind, p.question, p.call_id, p.path) for p in told] == [
        ("r:pay5:approval", "approval", "May pay be called?", "pay5", ("agent",)),
        ("r:book2:0", "interrupt", "question 1?", "book2", ("agent",)),
        ("r:ask:0", "ask_user", "age?", "ask", ("agent",)),
        ("r:offer:0", "interrupt", "take tea?", "offer", ("agent",)),
    ]
    assert [p.call for p in told][:2] == [pay(5), book(2)]
    assert [p.answer_schema for p in told][1:] == [INTEGER, INTEGER, None]
    assert [p.expires_at for p in told] == [None, None, None, shop.clock.time + timedelta(seconds=60)]


@pytest.mark.both_backends
async def test_the_answers_of_a_batch_may_come_together() -> None:
    """Everything that waited is answered, and the run goes on to its end with one request more."""
    shop = Shop(turn(calls=[pay(5), look(1), ask("age?")]), "done")
    paused = stored(await shop.agent.run("go", run_id="r"))
    answers = {"r:ask:0": 42, "r:pay5:approval": APPROVE}
    async with shop.agent.resume_stream(paused, answers=answers) as run:
        events = await events_of(run)
    assert (run.result.stop_reason, run.result.text) == ("completed", "done")
    assert returns(run.result) == {"look1": "page 1", "pay5": "paid 5", "ask": "42"}
    assert shop.done == ["look 1", "pay 5"]
    assert shop.model.request_count == run.result.spent.model_calls == 2
    assert kinds(events)[:3] == ["resumed", "tool_result", "tool_result"], "a call is told when it is asked for, once"
    assert events[0].answered == tuple(answers)
    assert events[0].seq == paused.state.seq + 1
    assert_one_end(events)


@pytest.mark.parametrize("order", [*itertools.permutations(["r:pay5:approval", "r:pay6:approval", "r:ask:0"])])
async def test_the_answers_of_a_batch_may_come_one_by_one_in_any_order(order: tuple[str, ...]) -> None:
    """What is answered runs at once; what still waits pauses the run again; the model is asked after the last."""
    shop = Shop(turn(calls=[pay(5), pay(6), ask("age?")]), "done")
    result = await shop.agent.run("go", run_id="r")
    for number, pause_id in enumerate(order, start=1):
        result = await shop.agent.resume(stored(result), answers={pause_id: 42 if "ask" in pause_id else APPROVE})
        assert {pause.pause_id for pause in result.pauses} == set(order[number:])
        assert set(returns(result)) == {each.split(":")[1] for each in order[:number]}
        assert shop.model.request_count == (2 if number == 3 else 1)
    assert (result.stop_reason, result.text) == ("completed", "done")
    assert shop.done == [f"pay {each[5]}" for each in order if "pay" in each]
    assert result.spent.tools == {"pay": 2, "ask_user": 1}


@pytest.mark.parametrize(
    ("answer", "done", "content", "status"),
    [
        (APPROVE, ["pay 5"], "paid 5", "ok"),
        (
            Decision(type="edit", arguments={"amount": 4}),
            ["pay 4"],
            '[A person changed the arguments to {"amount":4}]\npaid 4',
            "ok",
        ),
        (Decision(type="reject", message="too much"), [], "Not run: a person rejected it: too much", "error"),
        (Decision(type="reject"), [], "Not run: a person rejected it.", "error"),
        (Decision(type="respond", message="paid in cash"), [], "paid in cash", "ok"),
        (Decision(type="respond"), [], "", "ok"),
        ({"type": "approve"}, ["pay 5"], "paid 5", "ok"),
    ],
)
async def test_a_decision_says_what_happens_with_the_call(
    answer: object, done: list[str], content: str, status: str
) -> None:
    """Approve runs it, edit runs it with other arguments, reject and respond do not; only what ran is paid."""
    shop = Shop(turn(calls=[pay(5)]), "done")
    paused = await shop.agent.run("go")
    assert (shop.done, paused.spent.tool_calls) == ([], 0)
    result = await shop.agent.resume(stored(paused), answers=answers_to(paused, answer))
    assert shop.done == done
    assert result.messages[2] == ToolReturn(call_id="pay5", name="pay", content=content, status=status)
    assert result.spent.tools == ({"pay": 1} if done else {})
    assert result.text == "done"


async def test_a_call_that_cannot_run_is_not_asked_about() -> None:
    """Wrong arguments and unknown tools go back to the model: no person could make them right."""
    shop = Shop(turn(calls=[call("pay", {"amount": "x"}), call("give", {"amount": 1})]), "done")
    result = await shop.agent.run("go")
    assert (result.stop_reason, result.pauses) == ("completed", ())


async def test_a_tool_that_interrupts_is_called_again_with_the_answers_so_far() -> None:
    """From its beginning, each time; it is paid once however often it asks."""
    shop = Shop(turn(calls=[book(2), look(1)]), "done")
    first = stored(await shop.agent.run("go", run_id="r"))
    second = stored(await shop.agent.resume(first, answers={"r:book2:0": 7}))
    assert [(p.pause_id, p.question) for p in second.pauses] == [("r:book2:1", "question 2?")]
    result = await shop.agent.resume(second, answers={"r:book2:1": 8})
    assert shop.done == ["book with []", "look 1", "book with [7]", "book with [7, 8]"]
    assert returns(result)["book2"] == "booked 2 for 7 and 8"
    assert result.spent.tools == {"book": 1, "look": 1}


async def test_a_call_may_be_approved_first_and_ask_then() -> None:
    """The decision holds on: it is not asked for again, nor are edited arguments forgotten."""

    @tool(requires_approval=True)
    def order(item: str, context: ToolContext) -> str:
        """Order an item."""
        if not context.answers:
            raise Interrupt("how many?")
        return f"{context.answers[0]} {item}"

    agent = Agent(ScriptedModel([turn(calls=[call("order", {"item": "tea"}, call_id="o")]), "done"]), tools=[order])
    first = stored(await agent.run("go", run_id="r"))
    edited = Decision(type="edit", arguments={"item": "milk"})
    second = stored(await agent.resume(first, answers={"r:o:approval": edited}))
    assert [pause.pause_id for pause in second.pauses] == ["r:o:0"]
    result = await agent.resume(second, answers={"r:o:0": 3})
    assert returns(result) == {"o": '[A person changed the arguments to {"item":"milk"}]\n3 milk'}
    assert result.spent.tools == {"order": 1}


async def test_an_interrupt_is_no_failure() -> None:
    """It uses up no retry, and a call that fails after its answer fails like any other."""
    tried: list[int] = []

    @tool(retries=1)
    def flaky(context: ToolContext) -> str:
        """Ask, then fail."""
        tried.append(len(context.answers))
        if not context.answers:
            raise Interrupt("sure?")
        raise RuntimeError("broken")

    agent = Agent(ScriptedModel([turn(calls=[call("flaky")]), "done"]), tools=[flaky])
    paused = await agent.run("go")
    result = await agent.resume(stored(paused), answers=answers_to(paused, True))
    assert tried == [0, 1, 1]
    assert list(returns(result).values()) == ["RuntimeError: broken"]
    assert result.spent.tools == {"flaky": 2}, "the first execution and one retry"


@pytest.mark.both_backends
async def test_siblings_of_a_call_that_pauses_finish() -> None:
    """Parallel calls go on while one of them has paused already."""
    shop = Shop()
    asked = anyio.Event()

    async def asking(context: ToolContext) -> str:
        """Ask."""
        asked.set()
        raise Interrupt("what?")

    async def slow() -> str:
        """Be slower than the question."""
        await asked.wait()
        await anyio.lowlevel.checkpoint()
        shop.done.append("slow")
        return "finished"

    agent = Agent(ScriptedModel([turn(calls=[call("asking"), call("slow")]), "done"]), tools=[asking, slow])
    paused = await agent.run("go")
    assert (paused.stop_reason, shop.done, list(returns(paused).values())) == ("paused", ["slow"], ["finished"])


# -- limits, time and failures ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "limit", "payments"),
    [
        (PlanLimits(max_model_calls=3), "max_model_calls", 2),
        (PlanLimits(max_model_rounds=3), "max_model_rounds", 2),
        (PlanLimits(max_tool_calls=2, max_model_rounds=None), "max_tool_calls", 2),
    ],
)
async def test_thirteen_approvals_do_not_reset_a_count(limits: PlanLimits, limit: str, payments: int) -> None:
    """A limit of 3 model calls is one of 3 model calls, however often the run pauses and goes on."""
    pages = itertools.count(1)
    shop = Shop(forever(lambda asked: "stopped" if asked.final else turn(calls=[pay(next(pages))])), limits=limits)
    result = await shop.agent.run("go")
    for _ in range(12):
        if result.stop_reason != "paused":
            with pytest.raises(ResumeError, match=limit):
                await shop.agent.resume(result)
            break
        result = await shop.agent.resume(stored(result), answers=answers_to(result, APPROVE))
    assert shop.model.request_count == result.spent.model_calls <= 4
    assert limit == "max_tool_calls" or shop.model.request_count == 3
    assert len(shop.done) == payments
    assert (result.truncated, result.text, result.ending and result.ending.limit) == (True, "stopped", limit)


async def test_a_limit_that_ends_the_run_gives_up_what_waits() -> None:
    """Nothing is asked of a person any more: the call is answered as not run, and its id takes no answer."""
    shop = Shop(turn(calls=[pay(5), look(1), look(2)]), "partial", "whole", limits=PlanLimits(max_tool_calls=1))
    result = stored(await shop.agent.run("go", run_id="r"))
    assert (result.stop_reason, result.text, result.pauses) == ("budget", "partial", ())
    assert returns(result)["pay5"] == "Not run: the run must end."
    more = PlanLimits(max_tool_calls=9)
    with pytest.raises(ResumeError, match="'r:pay5:approval' is used: it was answered or given up before"):
        await shop.agent.resume(result, answers={"r:pay5:approval": APPROVE}, limits=more)
    assert (await shop.agent.resume(result, limits=more)).text == "whole"
    assert shop.done == ["look 1"]


async def test_a_limit_on_one_tool_leaves_the_question_beside_it() -> None:
    """A call that waits for approval can still run, so the round is not one in which nothing could."""
    limits = PlanLimits(tool_limits={"look": 0})
    shop = Shop(turn(calls=[look(1), pay(5)]), "done", limits=limits)
    paused = await shop.agent.run("go")
    assert paused.stop_reason == "paused"
    assert (await shop.agent.resume(paused, answers=answers_to(paused, APPROVE))).text == "done"


async def test_a_round_is_judged_by_all_its_calls_when_a_late_one_is_refused() -> None:
    """Something ran before the pause, so it is not a round in which nothing could: the model is told and goes on."""
    shop = Shop(turn(calls=[pay(5), look(1)]), "done", limits=PlanLimits(tool_limits={"pay": 0}))
    paused = await shop.agent.run("go")
    result = await shop.agent.resume(stored(paused), answers=answers_to(paused, APPROVE))
    assert returns(result)["pay5"] == "Not run: the limit tool_limits['pay'] is used up (0 of 0)."
    assert (result.stop_reason, result.text, shop.done) == ("completed", "done", ["look 1"])


async def test_a_call_that_ran_and_failed_has_run() -> None:
    """Its round is not one in which nothing could, though another of its calls was refused for good."""

    def broken() -> str:
        """Fail."""
        raise RuntimeError("broken")

    shop = Shop()
    model = ScriptedModel([turn(calls=[call("broken"), look(1)]), "done"])
    agent = Agent(model, tools=[broken, shop.look], limits=PlanLimits(tool_limits={"look": 0}))
    assert (await agent.run("go")).stop_reason == "completed"


async def test_an_approved_call_still_needs_its_unit() -> None:
    """A yes is no way past a limit."""
    shop = Shop(turn(calls=[pay(5), look(1)]), turn(calls=[look(2)]), "end", limits=PlanLimits(max_tool_calls=1))
    paused = await shop.agent.run("go")
    result = await shop.agent.resume(paused, answers=answers_to(paused, APPROVE))
    assert (result.stop_reason, shop.done) == ("budget", ["look 1"])
    assert returns(result)["pay5"] == "Not run: the limit max_tool_calls is used up (1 of 1)."


async def test_waiting_for_a_person_is_no_working_time() -> None:
    """Neither of the run's own budget nor of one that it shares: both stand still while it is paused."""
    shop = Shop(turn(calls=[pay(5)]), "done", limits=PlanLimits(max_seconds=3_600))
    shared = Budget(PlanLimits(max_seconds=3_600))
    started = time.monotonic()
    paused = await shop.agent.run("go", budget=shared)
    asked = time.monotonic()
    await anyio.sleep(0.1)
    answered = time.monotonic()
    assert shared.spent(answered).seconds == shared.spent(asked).seconds
    result = await shop.agent.resume(stored(paused), answers=answers_to(paused, APPROVE), budget=shared)
    ended = time.monotonic()
    worked = (ended - started) - (answered - asked)
    assert 0 < result.spent.seconds <= worked
    assert 0 < shared.spent(ended).seconds <= worked


async def test_the_deadline_counts_the_waiting() -> None:
    """It is a time of day: an answer that comes after it runs nothing."""
    shop = Shop(turn(calls=[pay(5)]))
    limits = PlanLimits(deadline=shop.clock.time + timedelta(hours=1))
    paused = stored(await shop.agent.run("go", limits=limits))
    shop.clock.time += timedelta(hours=2)
    result = await shop.agent.resume(paused, answers=answers_to(paused, APPROVE))
    assert (result.stop_reason, shop.done, shop.model.request_count) == ("budget", [], 1)
    assert result.ending is not None
    assert (result.ending.limit, result.ending.pending) == ("deadline", (pay(5),))


async def test_an_answer_is_taken_until_the_pause_expires() -> None:
    """The last moment is in time; after it the id is refused by name, and the state is as it was."""
    shop = Shop(turn(calls=[call("offer", {"item": "tea"}, call_id="offer")]), "done")
    paused = stored(await shop.agent.run("go", run_id="r"))
    shop.clock.time += timedelta(seconds=61)
    with pytest.raises(ResumeError, match=r"^the pause 'r:offer:0' expired at 2030-01-01T00:01:00\+00:00"):
        await shop.agent.resume(paused, answers={"r:offer:0": "yes"})
    shop.clock.time -= timedelta(seconds=1)
    assert (await shop.agent.resume(paused, answers={"r:offer:0": "yes"})).text == "done"


@pytest.mark.parametrize("seconds", [1e300, float("inf"), float("nan")])
async def test_a_time_that_no_calendar_has_never_comes(seconds: float) -> None:
    """A tool's odd expiry is no reason to lose the run."""

    def asking(context: ToolContext) -> str:
        """Ask."""
        raise Interrupt("what?", expires_in_seconds=seconds)

    paused = await Agent(ScriptedModel([turn(calls=[call("asking")])]), tools=[asking]).run("go")
    assert [pause.expires_at for pause in paused.pauses] == [None]


async def test_a_fatal_error_beside_a_pause_loses_neither() -> None:
    """The error carries the state in which the other call still waits."""
    shop = Shop(turn(calls=[pay(5), call("burn")]), "done")
    with pytest.raises(ToolFatal, match="fire") as failed:
        await shop.agent.run("go", run_id="r")
    assert failed.value.state is not None
    state = RunState.from_json(failed.value.state.to_json())
    assert (await shop.agent.resume(state)).stop_reason == "paused"
    result = await shop.agent.resume(state, answers={"r:pay5:approval": APPROVE})
    assert (result.text, shop.done) == ("done", ["pay 5"])


@pytest.mark.both_backends
async def test_a_cancelled_run_gives_up_what_waits() -> None:
    """The history is valid, the id takes no answer any more, and the run can go on."""
    started = anyio.Event()

    @tool(requires_approval=True)
    async def wire(amount: int) -> str:
        """Wire an amount, and never come back."""
        started.set()
        await anyio.sleep_forever()
        return ""

    wires = [call("wire", {"amount": n}, call_id=f"wire{n}") for n in (5, 6)]
    agent = Agent(ScriptedModel([turn(calls=wires), "done"]), tools=[wire])
    paused = await agent.run("go", run_id="r")
    async with agent.resume_stream(stored(paused), answers={"r:wire5:approval": APPROVE}) as run:
        await started.wait()
        run.cancel()
        events = await events_of(run)
    result = stored(run.result)
    assert isinstance(assert_one_end(events), Cancelled)
    assert (result.stop_reason, result.pauses) == ("cancelled", ())
    assert result.ending is not None
    assert result.ending.pending == tuple(wires)
    assert_all_answered(result.messages)
    with pytest.raises(ResumeError, match="'r:wire6:approval' is used"):
        await agent.resume(result, answers={"r:wire6:approval": APPROVE})
    assert (await agent.resume(result)).text == "done"


async def test_leaving_the_stream_gives_up_what_waits_too() -> None:
    """What was done until then is in the stream's state, whose history is valid."""
    shop = Shop(turn(calls=[pay(5), call("hang")]), "done")

    async def hang() -> str:
        """Never come back."""
        await anyio.sleep_forever()
        return ""

    agent = Agent(shop.model, tools=[tool(requires_approval=True)(shop.pay), hang])
    async with agent.stream("go") as run:
        async for event in run:
            if event.kind == "tool_call" and event.call.name == "hang":
                break
    assert run.state.pauses == []
    assert_all_answered(run.state.messages)
    assert (await agent.resume(run.state)).text == "done"


# -- any batch, any order --------------------------------------------------------------------------

CALLS = {
    "look": ({"n": 1}, 1),
    "pay": ({"amount": 1}, 0),
    "book": ({"seats": 1}, 1),
    "offer": ({"item": "tea"}, 1),
    "ask_user": ({"question": "age?", "schema": INTEGER}, 1),
    "look_away": ({}, 0),
}
"""The arguments of a call, and how many units it takes before anybody decides on it."""

DECISIONS = [APPROVE, Decision(type="edit", arguments={"amount": 2}), Decision(type="reject"), Decision(type="respond")]


@given(st.lists(st.lists(st.sampled_from([*CALLS]), min_size=1, max_size=5), max_size=3), st.integers(0, 2**32))
@settings(max_examples=60)
async def test_any_batch_answered_in_any_order(batches: list[list[str]], seed: int) -> None:
    """Every call is answered once and paid once, the model asked once a batch, and every state can be stored."""
    chance = random.Random(seed)
    turns = [turn(calls=[call(name, dict(CALLS[name][0])) for name in names]) for names in batches]
    shop = Shop(*turns, "done")
    result = await shop.agent.run("go")
    used: set[str] = set()
    paid = sum(CALLS[name][1] for name in itertools.chain(*batches))
    while result.stop_reason == "paused":
        asked, waiting = shop.model.request_count, set(answers_to(result, None))
        assert waiting.isdisjoint(used)
        chosen = chance.sample(sorted(waiting), chance.randint(1, len(waiting)))
        answers = {each: chance.choice(DECISIONS) if each.endswith("approval") else 1 for each in chosen}
        paid += sum(answer in DECISIONS[:2] for answer in answers.values())
        result = await shop.agent.resume(stored(result), answers=answers)
        used.update(chosen)
        if waiting - used:
            assert shop.model.request_count == asked
    assert result.text == "done"
    assert shop.model.request_count == result.spent.model_calls == len(batches) + 1
    assert result.spent.tool_calls == paid
    assert used == set(result.state.closed_pauses)
    assert_all_answered(result.messages)


async def test_a_pause_that_nobody_answered_in_time_is_given_up() -> None:
    """Going on without an answer is possible then: the call is answered as not run, and the model goes on."""

    async def confirm() -> str:
        """Ask a person who does not come."""
        raise Interrupt("Really?", expires_in_seconds=0.001)

    agent = Agent(ScriptedModel([turn(calls=[call("confirm", call_id="c")]), "done without"]), tools=[confirm])
    paused = await agent.run("Go.")
    await anyio.sleep(0.01)
    result = await agent.resume(paused)
    assert (result.stop_reason, result.text) == ("completed", "done without")
    assert returns(result) == {"c": "Not run: nobody answered in time."}
    with pytest.raises(ResumeError, match="completed"):
        await agent.resume(result)
