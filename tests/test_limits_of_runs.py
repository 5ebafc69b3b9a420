"""The limits of whole runs: none is passed, none ends a run that has answered, and each ends one that goes on."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import anyio
import pytest
from pydantic import BaseModel

import overshoot
from endstop import (
    Agent,
    Budget,
    GenaiPrices,
    PlanLimits,
    Price,
    PriceUnknown,
    ToolReturn,
    Usage,
    tool,
)
from endstop.models.scripted import ScriptedModel, Step, call, turn
from tests.runs import asks, assert_nothing_held, assert_valid_history, look, searcher, searches, total_spent

FREE = Price(input_per_million=Decimal(0), output_per_million=Decimal(0))
DOLLAR_A_TOKEN = Price(input_per_million=Decimal(1_000_000), output_per_million=Decimal(1_000_000))


@pytest.mark.parametrize("way", overshoot.WAYS)
@pytest.mark.parametrize("name", overshoot.CASES)
def test_no_limit_is_passed(name: str, way: overshoot.Way) -> None:
    """64 parallel calls, 8 runs and 8 threads on one budget: 0 over, or what the results admit to (tokens, time)."""
    measured = overshoot.measure(name, way)
    assert measured.holds, f"{measured.overshoot} over {measured.allowed}, {measured.bound} is the bound"
    assert len(measured.results) == (1 if way == "64 parallel calls" else overshoot.RUNS)
    assert all(result.truncated and result.ending is not None for result in measured.results)
    for result in measured.results:
        assert_valid_history(result.messages)


@pytest.mark.parametrize("name", ["max_model_rounds", "max_model_calls", "max_tool_calls", "tool_limits['work']"])
def test_a_limit_that_counts_is_used_to_the_last_unit(name: str) -> None:
    """The overshoot of 0 is no effect of stopping early: alone, a run may use all that it was given."""
    measured = overshoot.measure(name, "64 parallel calls")
    assert measured.used == measured.allowed


def test_the_underestimate_of_tokens_is_stated_and_bounds_the_overshoot() -> None:
    """A provider that counts more tokens than were estimated is the one way to pass the limit; the result says so."""
    measured = overshoot.measure("max_tokens (dense)", "64 parallel calls")
    assert 0 < measured.overshoot <= measured.results[0].spent.underestimated_tokens


async def test_a_provider_that_writes_past_its_cap_is_stated_as_an_underestimate() -> None:
    """Output tokens that the cap should have kept from being written are admitted in the result as well."""
    agent = Agent(ScriptedModel([turn("x", usage=(1, 500))]), instructions="long " * 200)
    spent = (await agent.run("Go.", limits=PlanLimits(max_output_tokens=100))).spent
    assert spent.output_tokens - 100 <= spent.underestimated_tokens


async def test_runs_on_one_budget_are_charged_to_it_whole() -> None:
    """What a shared budget has spent is the sum of its runs, and nothing stays held when they are over."""
    budget = Budget(PlanLimits(max_model_calls=31, max_tool_calls=40, max_tokens=100_000, max_output_tokens=50_000))
    results = []

    async def go() -> None:
        results.append(await searcher(searches(2, answer=turn("a", usage=(9, 3))))[0].run("Go.", budget=budget))

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(go)
    assert total_spent([budget.spent(0)]) == total_spent([result.spent for result in results])
    assert_nothing_held(budget)


# --- nothing at all -------------------------------------------------------------------------------

NOTHING = {
    "max_model_rounds": PlanLimits(max_model_rounds=0),
    "max_model_calls": PlanLimits(max_model_calls=0),
    "max_tokens": PlanLimits(max_tokens=0),
    "max_output_tokens": PlanLimits(max_output_tokens=0),
    "max_cost": PlanLimits(max_cost=0, assume_price=DOLLAR_A_TOKEN),
    "max_seconds": PlanLimits(max_seconds=0),
    "deadline": PlanLimits(deadline=datetime(2001, 1, 1, tzinfo=UTC)),
}


@pytest.mark.both_backends
@pytest.mark.parametrize("limit", NOTHING)
async def test_a_limit_of_nothing_sends_nothing(limit: str) -> None:
    """0 means none at all: not even the final answer is asked for, and the empty result is marked."""
    agent, model = searcher("an answer")
    result = await agent.run("Go.", limits=NOTHING[limit])
    assert model.request_count == 0
    assert (result.text, result.truncated) == ("", True)
    assert result.ending is not None
    assert (result.ending.limit, result.ending.rung) == (limit, "empty")
    assert result.spent.model_calls == result.spent.tokens == 0


@pytest.mark.parametrize("limits", [PlanLimits(max_tool_calls=0), PlanLimits(tool_limits={"look": 0})])
async def test_no_tool_calls_at_all_is_a_run_without_tools(limits: PlanLimits) -> None:
    """With 0 tool calls the model may still answer; a call that it asks for ends the run with the final answer."""
    agent, model = searcher("no tool needed")
    assert (await agent.run("Go.", limits=limits)).stop_reason == "completed"
    agent, model = searcher(asks(1), "without looking")
    result = await agent.run("Go.", limits=limits)
    assert (result.text, result.stop_reason, model.request_count) == ("without looking", "budget", 2)
    assert result.spent.tool_calls == 0


async def test_a_free_model_runs_under_a_cost_limit_of_nothing() -> None:
    """0 dollars allow what costs 0 dollars."""
    agent, _ = searcher(asks(1), turn("free", usage=(5, 5)))
    result = await agent.run("Go.", limits=PlanLimits(max_cost=0, assume_price=FREE))
    assert (result.stop_reason, result.spent.cost) == ("completed", 0)


# --- a limit that the answer itself used up -------------------------------------------------------

USED_UP_BY_ANSWERING = [
    PlanLimits(max_model_rounds=3),
    PlanLimits(max_model_calls=3),
    PlanLimits(max_tool_calls=1),
    PlanLimits(max_tokens=30_000),
    PlanLimits(max_output_tokens=10_000),
    PlanLimits(max_cost=30_000, assume_price=DOLLAR_A_TOKEN),
]


@pytest.mark.both_backends
@pytest.mark.parametrize("limits", USED_UP_BY_ANSWERING)
async def test_an_answer_that_uses_up_the_last_unit_is_completed(limits: PlanLimits) -> None:
    """A round that both answers and reaches a limit is an answer: it is not thrown away, and not marked."""
    agent, _ = searcher(asks(1, usage=(5, 5)), turn("the answer", usage=(29_000, 9_990)))
    result = await agent.run("Go.", limits=limits)
    assert (result.text, result.stop_reason, result.ending) == ("the answer", "completed", None)


@pytest.mark.parametrize("limits", [PlanLimits(max_model_rounds=1), PlanLimits(max_model_calls=1)])
async def test_without_tools_the_one_round_is_an_ordinary_answer(limits: PlanLimits) -> None:
    """An agent without tools that answers in its last round has completed; nothing was cut."""
    model = ScriptedModel(["hello"])
    result = await Agent(model).run("Hi.", limits=limits)
    assert (result.stop_reason, result.text) == ("completed", "hello")
    assert not model.requests[0].final


class Page(BaseModel):
    """A structured output."""

    number: int


async def test_a_final_answer_of_the_right_form_keeps_the_mark() -> None:
    """A valid output from the reserve is handed over as output, and still marked: the work was cut short."""
    agent = Agent(ScriptedModel([searches(answer='{"number": 7}')]), tools=[look], output_type=Page)
    result = await agent.run("Go.", limits=PlanLimits(max_model_rounds=2))
    assert (result.output, result.truncated) == (Page(number=7), True)


# --- the batch rule -------------------------------------------------------------------------------


@pytest.mark.both_backends
async def test_of_a_batch_that_does_not_fit_the_first_calls_run() -> None:
    """In the order asked, the calls that fit run; each other is told that it was not run and which limit it was."""
    seen: list[int] = []

    async def note(n: int) -> str:
        """Note a number."""
        seen.append(n)
        return f"noted {n}"

    model = ScriptedModel([turn(calls=[call("note", {"n": n}) for n in range(64)]), "done"])
    result = await Agent(model, tools=[note]).run("Go.", limits=PlanLimits(max_tool_calls=10))
    returns = [message for message in result.messages if isinstance(message, ToolReturn)]
    assert sorted(seen) == list(range(10))
    assert [answer.status for answer in returns] == ["ok"] * 10 + ["not_run"] * 54
    assert all("max_tool_calls" in answer.content and "10 of 10" in answer.content for answer in returns[10:])
    assert result.ending is not None
    assert [pending.arguments["n"] for pending in result.ending.pending] == list(range(10, 64))


async def test_a_limit_on_one_tool_leaves_the_others() -> None:
    """While some call of a round can run, the model goes on; what one tool may not do any more is said to it."""

    async def write(n: int) -> str:
        """Write a page."""
        return f"wrote {n}"

    both = [turn(calls=[call("look", {"n": n}), call("write", {"n": n})]) for n in range(3)]
    agent = Agent(ScriptedModel([*both, "done"]), tools=[look, write])
    result = await agent.run("Go.", limits=PlanLimits(tool_limits={"look": 1}))
    assert (result.stop_reason, result.spent.tools) == ("completed", {"look": 1, "write": 3})


async def test_calls_that_cannot_run_are_no_tool_calls() -> None:
    """An unknown tool and arguments that do not fit are answered without using a unit."""
    calls = [call("nowhere"), call("look", {"n": "many"}), call("look", {"n": 1})]
    agent, _ = searcher(turn(calls=calls), "done")
    result = await agent.run("Go.", limits=PlanLimits(max_tool_calls=1))
    assert (result.stop_reason, result.spent.tool_calls) == ("completed", 1)


async def test_a_retry_of_a_tool_is_a_tool_call() -> None:
    """Every execution is paid, and none is made beyond the limit: the last error stands then."""
    tries: list[int] = []

    @tool(retries=5)
    async def shaky() -> str:
        """Try."""
        tries.append(1)
        raise OSError("no")

    model = ScriptedModel([turn(calls=[call("shaky")]), "done"])
    result = await Agent(model, tools=[shaky]).run("Go.", limits=PlanLimits(max_tool_calls=3))
    assert (len(tries), result.spent.tool_calls) == (3, 3)


@pytest.mark.parametrize("limits", [PlanLimits(max_tool_calls=2), PlanLimits(tool_limits={"look": 2})])
async def test_refusing_tools_ends_the_run(limits: PlanLimits) -> None:
    """A model that asks on and on for tools that may not run is stopped: refusing is not waiting."""
    agent, model = searcher()
    result = await agent.run("Go.", limits=limits)
    assert (result.stop_reason, model.request_count) == ("budget", 4)


# --- tokens and money -----------------------------------------------------------------------------


async def test_a_request_is_capped_at_what_is_left() -> None:
    """`max_output_tokens` of a request is never more than any limit has left; without a limit it is not set."""
    agent, model = searcher(asks(1, usage=(100, 50)), turn("done", usage=(200, 50)))
    await agent.run("Go.", limits=PlanLimits(max_output_tokens=80))
    first, second = (request.max_output_tokens for request in model.requests)
    assert first is not None
    assert second is not None
    assert first <= 80
    assert second <= 30
    agent, model = searcher("done")
    await agent.run("Go.")
    assert model.requests[0].max_output_tokens is None


async def test_a_prompt_that_does_not_fit_the_token_limit_is_not_sent() -> None:
    """An estimate above the limit is refused before the request, at no cost."""
    agent, model = searcher("never")
    result = await agent.run("word " * 200_000, limits=PlanLimits(max_tokens=1_000))
    assert (model.request_count, result.spent.tokens, result.stop_reason) == (0, 0, "budget")


async def test_a_provider_that_reports_less_than_nothing_gives_nothing_back() -> None:
    """No usage, however wrong, makes a budget larger than it was."""
    agent, _ = searcher(asks(1, usage=(-5_000, -700)), turn("done", usage=(10, 5)))
    result = await agent.run("Go.", limits=PlanLimits(max_tokens=4_000))
    assert result.spent.input_tokens >= 10
    assert result.spent.output_tokens >= 5


async def test_tokens_that_the_provider_does_not_report_are_estimated_and_counted() -> None:
    """Missing usage is never 0: it is estimated, and `unmeasured` counts the requests."""
    agent, _ = searcher(asks(1), turn("done", usage=(50, 5)))
    spent = (await agent.run("Go.")).spent
    assert spent.unmeasured == 1
    assert spent.input_tokens > 50
    assert spent.output_tokens > 5


async def test_an_answer_cut_at_the_cap_names_the_limit_behind_the_cap() -> None:
    """What was written before the cap is the text; it is marked, and not asked for once more."""
    agent, model = searcher(Step(turn=turn("half an ans", usage=(10, 100), finish_reason="length")))
    result = await agent.run("Go.", limits=PlanLimits(max_output_tokens=100, answer_tokens=0))
    assert (result.text, result.truncated, model.request_count) == ("half an ans", True, 1)
    assert result.ending is not None
    assert (result.ending.limit, result.ending.rung) == ("max_output_tokens", "last_text")


async def test_an_answer_cut_by_the_model_itself_names_its_own_cap() -> None:
    """Without a limit of ours the cut is the model's; it is marked all the same."""
    agent, _ = searcher(Step(turn=turn("half an ans", usage=(10, 4_096), finish_reason="length")))
    result = await agent.run("Go.")
    assert (result.text, result.truncated) == ("half an ans", True)
    assert result.ending is not None
    assert result.ending.limit == "model_output_cap"


def test_a_cost_limit_without_a_price_is_refused_before_the_first_request() -> None:
    """The error names the model; nothing was sent."""
    model = ScriptedModel(["never"], name="nobody-knows-it")
    with pytest.raises(PriceUnknown, match="nobody-knows-it"):
        Agent(model).run_sync("Go.", limits=PlanLimits(max_cost=1))
    assert model.request_count == 0


async def test_a_price_assumed_for_a_shared_budget_prices_its_runs() -> None:
    """`assume_price` beside the cost limit is enough, wherever in the tree of budgets the two stand."""
    budget = Budget(PlanLimits(max_cost=100, assume_price=DOLLAR_A_TOKEN))
    result = await Agent(ScriptedModel([turn("done", usage=(20, 5))])).run("Go.", budget=budget)
    assert (result.spent.cost, budget.spent(0).cost) == (25, 25)
    assert result.spent.price_source == "assumed"


async def test_a_known_model_is_priced_by_the_table() -> None:
    """Dollars are those of the table, and the result names the table and its version."""
    if GenaiPrices().price_of("gpt-4o-mini") is None:
        pytest.skip("the price table is not installed")
    model = ScriptedModel([turn("done", usage=(1_000_000, 0))], name="gpt-4o-mini")
    spent = (await Agent(model).run("Go.", limits=PlanLimits(max_cost=10))).spent
    assert spent.cost > 0
    assert (spent.price_source or "").startswith("genai-prices ")


class TornTable:
    """A price table with a fault in it: it cannot price the answer that it is asked to."""

    source = "torn"

    def price_of(self, model: str) -> TornTable:
        """Itself."""
        return self

    def cost(self, usage: Usage) -> Decimal:
        """Fails for what a request really used."""
        if usage.output_tokens == 7:
            raise KeyError("no page for this")
        return Decimal(1)


async def test_a_price_table_that_fails_leaves_nothing_held() -> None:
    """The error is the caller's to see; the request was sent all the same, and counts."""
    budget = Budget(PlanLimits(max_model_calls=9, max_tokens=90_000))
    agent = Agent(ScriptedModel([turn("done", usage=(20, 7))]), tools=[look], prices=TornTable())
    with pytest.raises(KeyError, match="no page for this"):
        await agent.run("Go.", budget=budget)
    assert budget.spent(0).model_calls == 1
    assert_nothing_held(budget)


# --- time -----------------------------------------------------------------------------------------

TIMES = {
    "max_seconds": lambda: PlanLimits(max_seconds=3, answer_seconds=2.6),
    "deadline": lambda: PlanLimits(deadline=datetime.now(UTC) + timedelta(seconds=3), answer_seconds=2.6),
}


@pytest.mark.both_backends
@pytest.mark.parametrize("limit", TIMES)
async def test_time_ends_a_model_call_and_leaves_the_final_answer_its_own(limit: str) -> None:
    """A request in flight is cut when the time for ordinary work is up; the final answer is then asked for."""
    agent, model = searcher(Step(text="never", latency_seconds=60), "the final answer")
    result = await agent.run("Go.", limits=TIMES[limit]())
    assert result.ending is not None
    assert (result.text, result.ending.rung, result.ending.limit) == ("the final answer", "model_answer", limit)
    assert [request.final for request in model.requests] == [False, True]
    assert result.spent.model_calls == 2


@pytest.mark.both_backends
@pytest.mark.parametrize("limit", TIMES)
async def test_time_ends_tools_in_flight_and_every_call_is_answered(limit: str) -> None:
    """An async tool is cancelled, a sync one is left to its thread; both calls have a return that says so."""
    release = threading.Event()
    cancelled: list[str] = []

    async def nap() -> str:
        """Sleep."""
        try:
            await anyio.sleep(60)
        finally:
            cancelled.append("nap")
        return "never"

    def block() -> str:
        """Block a thread."""
        release.wait(60)
        return "never"

    calls = [call("look", {"n": 1}), call("nap"), call("block")]
    agent = Agent(ScriptedModel([turn(calls=calls), "what there is"]), tools=[look, nap, block])
    try:
        result = await agent.run("Go.", limits=TIMES[limit]())
    finally:
        release.set()
    returns = {answer.name: answer for answer in result.messages if isinstance(answer, ToolReturn)}
    assert {name: answer.status for name, answer in returns.items()} == {
        "look": "ok",
        "nap": "not_run",
        "block": "not_run",
    }
    assert cancelled == ["nap"]
    assert "may have had an effect" in returns["block"].content
    assert result.ending is not None
    assert (result.text, result.ending.limit) == ("what there is", limit)
    assert [pending.name for pending in result.ending.pending] == ["nap", "block"]
    assert_valid_history(result.messages)


@pytest.mark.both_backends
async def test_a_final_answer_that_takes_too_long_is_given_up() -> None:
    """The limit is the limit: the next rung of the ladder is the result, and nothing is asked again."""
    agent, model = searcher(asks(1), Step(text="late", latency_seconds=60), Step(text="later", latency_seconds=60))
    result = await agent.run("Go.", limits=PlanLimits(max_seconds=0.8, answer_seconds=0.3))
    assert result.ending is not None
    assert (result.ending.rung, model.request_count) == ("tool_digest", 3)
    assert "page 1" in result.text


@pytest.mark.both_backends
@pytest.mark.parametrize("limits", [PlanLimits(max_seconds=0.1, answer_seconds=0.02)])
async def test_time_is_checked_where_nothing_ever_waits(limits: PlanLimits) -> None:
    """Code that never gives the event loop a turn cannot be cancelled, but it gets no further round."""

    async def busy(n: int) -> str:
        """Keep the loop busy."""
        time.sleep(0.04)  # noqa: ASYNC251  # blocking the loop is what this is about
        return f"busy {n}"

    steps = [turn(calls=[call("busy", {"n": n})]) for n in range(50)]
    model = ScriptedModel(steps)
    result = await Agent(model, tools=[busy], limits=limits).run("Go.", limits=limits)
    assert result.ending is not None
    assert result.ending.limit == "max_seconds"
    assert model.request_count < 10


async def test_the_time_of_a_shared_budget_keeps_the_final_answers_too() -> None:
    """A time limit above the run is one of its limits: the final answer has its seconds inside it."""
    agent, _ = searcher(Step(text="never", latency_seconds=60), Step(text="the end", latency_seconds=0.01))
    result = await agent.run("Go.", limits=PlanLimits(answer_seconds=2.6), budget=Budget(PlanLimits(max_seconds=3)))
    assert result.ending is not None
    assert (result.text, result.ending.limit, result.ending.rung) == ("the end", "max_seconds", "model_answer")


async def test_the_clock_of_a_shared_budget_stands_while_no_run_goes_on() -> None:
    """Working time is the time of work: after the last run is over none passes."""
    budget = Budget(PlanLimits(max_seconds=100))
    await searcher("done")[0].run("Go.", budget=budget)
    then = budget.spent(time.monotonic()).seconds
    await anyio.sleep(0.02)
    assert budget.spent(time.monotonic()).seconds == then
