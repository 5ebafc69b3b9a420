"""How runs end: the reserved final answer, the ladder below it, and the three things to do at a limit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from pydantic import BaseModel

from endstop import (
    Agent,
    AgentResult,
    ErrorEvent,
    LimitExceeded,
    ModelError,
    ModelRequest,
    ModelTurn,
    PlanLimits,
    Price,
    ToolReturn,
    Truncated,
    UserMessage,
    tool,
)
from endstop.models.scripted import ScriptedModel, ScriptStep, Step, call, turn
from tests.runs import (
    AT_ONCE,
    asks,
    assert_one_end,
    assert_valid_history,
    events_of,
    kinds,
    look,
    searcher,
    searches,
    total_spent,
)

CENT_A_TOKEN = Price(input_per_million=Decimal(10_000), output_per_million=Decimal(10_000))

LIMITS = {
    "max_model_rounds": PlanLimits(max_model_rounds=4),
    "max_model_calls": PlanLimits(max_model_calls=4),
    "max_tool_calls": PlanLimits(max_tool_calls=2),
    "tool_limits['look']": PlanLimits(tool_limits={"look": 2}),
    "max_tokens": PlanLimits(max_tokens=2_500),
    "max_output_tokens": PlanLimits(max_output_tokens=400),
    "max_cost": PlanLimits(max_cost=25, assume_price=CENT_A_TOKEN),
}
"""One limit at a time that stops a run which looks at page after page, at 150 tokens in and 150 out a round."""


def spender() -> tuple[Agent[str], ScriptedModel]:
    """An agent whose model goes on for as long as it may, and reports what it was let write."""

    def step(page: int) -> ScriptStep:
        def answer(request: ModelRequest) -> ModelTurn:
            output = min(20 if request.final else 150, request.max_output_tokens or 150)
            return turn("the end", usage=(150, output)) if request.final else asks(page, usage=(150, output))

        return answer

    return searcher(*(step(page) for page in range(100)))


# --- the final answer -----------------------------------------------------------------------------


@pytest.mark.both_backends
async def test_ten_rounds_are_ten_requests() -> None:
    """The final answer is the last of the rounds, never one more; it is asked for without tools."""
    agent, model = searcher()
    result = await agent.run("Go.", limits=PlanLimits(max_model_rounds=10))
    assert model.request_count == result.spent.model_rounds == 10
    assert [request.final for request in model.requests] == [False] * 9 + [True]
    assert [bool(request.tools) for request in model.requests] == [True] * 9 + [False]
    assert (result.text, result.stop_reason) == ("what there is", "tool_limit")
    assert result.spent.tool_calls == 9


async def test_the_default_is_ten_rounds() -> None:
    """An agent that was given no limits has 10 rounds."""
    agent, model = searcher()
    await agent.run("Go.")
    assert model.request_count == 10


async def test_with_one_round_that_round_is_the_final_answer() -> None:
    """There is nothing to hold back from: the one request is the final one."""
    agent, model = searcher()
    result = await agent.run("Go.", limits=PlanLimits(max_model_rounds=1))
    assert [request.final for request in model.requests] == [True]
    assert (result.text, result.truncated) == ("what there is", True)


@pytest.mark.both_backends
@pytest.mark.parametrize("limit", LIMITS)
async def test_every_limit_keeps_a_final_answer_inside_itself(limit: str) -> None:
    """Whatever ends the run, the last answer was paid from a reserve and the limit holds with it."""
    agent, model = spender()
    result = await agent.run("Go.", limits=LIMITS[limit])
    assert [request.final for request in model.requests[-2:]] == [False, True]
    assert result.text == "the end"
    assert result.ending is not None
    assert (result.ending.limit, result.ending.rung) == (limit, "model_answer")
    assert result.ending.used is not None
    assert result.ending.allowed is not None
    assert 0 < result.ending.used <= result.ending.allowed
    assert result.stop_reason == ("tool_limit" if limit == "max_model_rounds" else "budget")
    assert result.spent.underestimated_tokens == 0
    assert_valid_history(result.messages)


async def test_the_final_request_keeps_the_history() -> None:
    """A notice of the kernel asks for the answer at its end; instructions and history stay as they were."""
    agent = Agent(ScriptedModel([searches()]), tools=[look], instructions="Be brief.")
    model = agent.model
    assert isinstance(model, ScriptedModel)
    await agent.run("Go.", limits=PlanLimits(max_model_rounds=2))
    first, last = model.requests
    assert last.instructions == first.instructions == "Be brief."
    assert list(last.messages[: len(first.messages)]) == list(first.messages)
    notice = last.messages[-1]
    assert isinstance(notice, UserMessage)
    assert notice.source == "kernel"


class Page(BaseModel):
    """A structured output."""

    number: int


async def test_the_final_request_keeps_the_output_schema() -> None:
    """Structured output is asked for in the final answer as in every other, and validated."""
    model = ScriptedModel([searches(answer='{"number": 3}')])
    result = await Agent(model, tools=[look], output_type=Page).run("Go.", limits=PlanLimits(max_model_rounds=3))
    assert model.requests[-1].output_schema == model.requests[0].output_schema
    assert model.requests[-1].output_schema is not None
    assert result.output == Page(number=3)


async def test_a_final_answer_of_the_wrong_form_is_text_without_output() -> None:
    """There is no round left to repair it: what was written is handed over as text."""
    model = ScriptedModel([searches(answer="three, I think")])
    result = await Agent(model, tools=[look], output_type=Page).run("Go.", limits=PlanLimits(max_model_rounds=3))
    assert (result.output, result.text, result.truncated) == (None, "three, I think", True)


# --- the ladder -----------------------------------------------------------------------------------

TWO = PlanLimits(max_model_rounds=2)


def ended(result: AgentResult[str]) -> tuple[str, str]:
    """The rung and the text of a truncated result."""
    assert result.truncated
    assert result.ending is not None
    return result.ending.rung, result.text


@pytest.mark.both_backends
async def test_the_last_text_stands_in_for_an_empty_final_answer() -> None:
    """Rung 2: what the model said beside its calls is better than nothing."""
    agent, _ = searcher(asks(1, text="So far: one page."), "")
    assert ended(await agent.run("Go.", limits=TWO)) == ("last_text", "So far: one page.")


async def test_a_blank_text_is_no_answer() -> None:
    """White space alone is passed over."""
    agent, _ = searcher(asks(1, text="Found one."), " \n ")
    assert ended(await agent.run("Go.", limits=TWO)) == ("last_text", "Found one.")


async def test_tool_results_stand_in_where_the_model_said_nothing() -> None:
    """Rung 3: what the tools returned, put together without a model; what failed is left out."""
    calls = [call("look", {"n": 1}), call("nowhere")]
    agent, _ = searcher(turn(calls=calls), "")
    rung, text = ended(await agent.run("Go.", limits=TWO))
    assert rung == "tool_digest"
    assert "page 1" in text
    assert "nowhere" not in text


async def test_the_digest_says_that_results_were_cut() -> None:
    """Many long results each have a share; the text stays readable."""

    async def dump(n: int) -> str:
        """Dump a page."""
        return f"{n}" * 10_000

    steps = turn(calls=[call("dump", {"n": n}) for n in range(10, 60)])
    result = await Agent(ScriptedModel([steps, ""]), tools=[dump]).run("Go.", limits=TWO)
    rung, text = ended(result)
    assert rung == "tool_digest"
    assert "cut" in text
    assert len(text) < 10_000


async def test_with_nothing_at_all_the_result_is_empty_and_says_so() -> None:
    """Rung 4: no text is made up."""
    agent, _ = searcher("")
    result = await agent.run("Go.", limits=PlanLimits(max_model_rounds=1))
    assert ended(result) == ("empty", "")
    assert "there is no answer" in str(result)


async def test_a_history_that_was_given_is_no_answer() -> None:
    """The ladder looks at the run's own messages: an answer to an earlier question is not handed over again."""
    history = [UserMessage(content="Before?"), ModelTurn(text="The answer to another question.")]
    agent, _ = searcher("")
    result = await agent.run("Go.", history=history, limits=PlanLimits(max_model_rounds=1))
    assert ended(result) == ("empty", "")


@pytest.mark.both_backends
async def test_a_final_answer_that_asks_for_tools_again_is_refused_them() -> None:
    """Its calls are answered as not run and are among the pending ones; its text, if any, is the answer."""
    agent, model = searcher(asks(1), asks(2, 3, text="I would look further, but so far: one."))
    result = await agent.run("Go.", limits=TWO)
    assert ended(result) == ("model_answer", "I would look further, but so far: one.")
    assert result.ending is not None
    assert [pending.arguments for pending in result.ending.pending] == [{"n": 2}, {"n": 3}]
    assert result.spent.tool_calls == 1
    assert model.request_count == 2
    assert_valid_history(result.messages)


async def test_a_final_answer_of_calls_alone_is_no_answer() -> None:
    """Without a text of its own the next rung is taken, and the model is not asked once more."""
    agent, model = searcher(asks(1, text="one page"), asks(2))
    assert ended(await agent.run("Go.", limits=TWO)) == ("last_text", "one page")
    assert model.request_count == 2


@pytest.mark.both_backends
async def test_a_final_answer_that_fails_does_not_fail_the_run() -> None:
    """The reason names the failure, and the next rung is the result."""
    agent, model = searcher(asks(1), ModelError("the service is down", status=500))
    result = await agent.run("Go.", limits=TWO)
    assert ended(result)[0] == "tool_digest"
    assert result.ending is not None
    assert "the service is down" in result.ending.reason
    assert "max_model_rounds" in result.ending.reason
    assert model.request_count == 2


async def test_a_final_answer_that_fails_in_passing_is_sent_again_within_the_limits() -> None:
    """Retries of the final answer are requests like any other."""
    agent, model = searcher(asks(1), ModelError("busy", retryable=True), "made it")
    assert ended(await agent.run("Go.", limits=TWO)) == ("model_answer", "made it")
    agent, model = searcher(asks(1), ModelError("busy", retryable=True), "never asked for")
    result = await agent.run("Go.", limits=PlanLimits(max_model_calls=2))
    assert ended(result)[0] == "tool_digest"
    assert model.request_count == 2
    assert result.ending is not None
    assert "busy" in result.ending.reason


async def test_a_cut_final_answer_says_so() -> None:
    """An answer that the reserve's room cut off is handed over, and the reason says that it was cut."""
    agent, _ = searcher(asks(1), Step(turn=turn("The ans", finish_reason="length")))
    result = await agent.run("Go.", limits=TWO)
    assert ended(result) == ("model_answer", "The ans")
    assert result.ending is not None
    assert "cut" in result.ending.reason


# --- what an ending says --------------------------------------------------------------------------


async def test_an_ending_names_limit_amounts_pending_calls_and_effects() -> None:
    """Everything that a program or a person needs to decide what to do next."""

    @tool(read_only=True)
    async def read(n: int) -> str:
        """Read."""
        return f"read {n}"

    async def write(n: int) -> str:
        """Write."""
        return f"wrote {n}"

    calls = [call("read", {"n": 1}), call("write", {"n": 1}), call("write", {"n": 2}), call("read", {"n": 2})]
    agent = Agent(ScriptedModel([turn(calls=calls), "partly done"]), tools=[read, write])
    result = await agent.run("Go.", limits=PlanLimits(max_tool_calls=2))
    ending = result.ending
    assert ending is not None
    assert (ending.limit, ending.used, ending.allowed) == ("max_tool_calls", 2, 2)
    assert ending.pending == tuple(calls[2:])
    assert ending.effects == ("write",)
    assert ending.rung == "model_answer"
    assert ending.reason == "max_tool_calls is used up (2 of 2)"
    assert result.text == "partly done"


async def test_a_tool_that_was_not_started_had_no_effect() -> None:
    """Neither a refused call nor one with arguments that do not fit is an effect."""
    agent, _ = searcher(turn(calls=[call("look", {"n": "x"})]), "done")
    result = await agent.run("Go.", limits=PlanLimits(max_model_rounds=2))
    assert result.ending is not None
    assert result.ending.effects == ()


async def test_calls_that_a_later_round_left_behind_are_not_pending() -> None:
    """A refused call that the model heard of and went on from is settled."""

    async def write(n: int) -> str:
        """Write."""
        return f"wrote {n}"

    both = [turn(calls=[call("look", {"n": n}), call("write", {"n": n})]) for n in range(2)]
    last = turn(calls=[call("write", {"n": 9})])
    agent = Agent(ScriptedModel([*both, last, "end"]), tools=[look, write])
    limits = PlanLimits(max_model_rounds=4, tool_limits={"look": 1})
    result = await agent.run("Go.", limits=limits)
    assert result.ending is not None
    assert (result.ending.limit, result.ending.pending) == ("max_model_rounds", ())


@pytest.mark.parametrize("limit", LIMITS)
async def test_the_text_of_a_truncated_result_opens_with_the_banner(limit: str) -> None:
    """`str(result)` can't be taken for a whole answer; `result.text` is the answer alone."""
    agent, _ = spender()
    result = await agent.run("Go.", limits=LIMITS[limit])
    first, *rest = str(result).split("\n\n")
    assert first.startswith(f"[TRUNCATED: {limit} ")
    assert "partial answer" in first
    assert "\n\n".join(rest) == result.text == "the end"


async def test_a_completed_result_has_no_banner_and_no_ending() -> None:
    """Nothing marks what is whole."""
    result = await searcher(asks(1), "done")[0].run("Go.")
    assert (str(result), result.ending, result.truncated, result.stop_reason) == ("done", None, False, "completed")


@pytest.mark.both_backends
async def test_a_limit_is_told_in_the_stream_before_the_end() -> None:
    """`truncated` carries the ending of the result that `done` carries."""
    agent, _ = searcher()
    async with agent.stream("Go.", limits=TWO) as stream:
        events = await events_of(stream)
    assert kinds(events)[-2:] == ["truncated", "done"]
    told = events[-2]
    assert isinstance(told, Truncated)
    assert told.ending == stream.result.ending
    assert_one_end(events)


# --- stop and raise -------------------------------------------------------------------------------


@pytest.mark.both_backends
@pytest.mark.parametrize("limit", LIMITS)
async def test_stop_holds_nothing_back(limit: str) -> None:
    """All units go into ordinary rounds, no final answer is asked for, and the result is the best that is there."""
    agent, model = spender()
    limits = LIMITS[limit]
    stopped = await agent.run("Go.", limits=with_on_limit(limits, "stop"))
    assert not any(request.final for request in model.requests)
    assert ended(stopped)[0] == "tool_digest"
    assert stopped.ending is not None
    assert stopped.ending.limit == limit
    if limit in ("max_model_rounds", "max_model_calls"):
        assert model.request_count == 4
    if limit == "max_tool_calls":
        assert stopped.spent.tool_calls == 2


async def test_stop_with_one_round_is_one_ordinary_round() -> None:
    """The round is asked with its tools, they run, and the run ends as the loop of old would."""
    agent, model = searcher(asks(1))
    result = await agent.run("Go.", limits=PlanLimits(max_model_rounds=1, on_limit="stop"))
    assert (model.requests[0].final, result.spent.tool_calls, result.stop_reason) == (False, 1, "tool_limit")


@pytest.mark.both_backends
@pytest.mark.parametrize("limit", LIMITS)
async def test_raise_carries_the_whole_partial_result(limit: str) -> None:
    """`LimitExceeded` has the ending, the result with its banner, and the state to go on from."""
    agent, _ = spender()
    with pytest.raises(LimitExceeded) as raised:
        await agent.run("Go.", limits=with_on_limit(LIMITS[limit], "raise"))
    result = raised.value.result
    assert raised.value.ending == result.ending
    assert raised.value.ending.limit == limit
    assert limit in str(raised.value)
    assert result.truncated
    assert "page 0" in result.text
    assert result.spent.model_calls >= 2
    assert_valid_history(result.messages)
    assert raised.value.state is not None
    assert raised.value.state.messages == list(result.messages)
    assert total_spent([raised.value.state.spent]) == total_spent([result.spent])


async def test_raise_is_told_in_the_stream_as_truncated_and_error() -> None:
    """A reader of events learns of the limit, and of the error that leaves the stream after it."""
    agent, _ = searcher()
    events = []
    with pytest.raises(LimitExceeded):  # noqa: PT012  # the events before the error count too
        async with agent.stream("Go.", limits=PlanLimits(max_model_rounds=1, on_limit="raise")) as stream:
            async for event in stream:
                events.append(event)
    assert kinds(events)[-2:] == ["truncated", "error"]
    last = assert_one_end(events)
    assert isinstance(last, ErrorEvent)
    assert last.code == "limit_exceeded"


async def test_time_under_stop_ends_without_asking() -> None:
    """Nothing is held of the time either: what is there when it is up is the result."""
    agent, model = searcher(asks(1), Step(text="late", latency_seconds=60))
    due = datetime.now(UTC) + timedelta(seconds=0.5)
    result = await agent.run("Go.", limits=PlanLimits(deadline=due, on_limit="stop"))
    assert ended(result)[0] == "tool_digest"
    assert model.request_count == 2
    assert result.ending is not None
    assert (result.ending.limit, result.ending.reason) == ("deadline", "the deadline has come")


async def test_the_mark_survives_storing() -> None:
    """A result that was stored as JSON is as truncated as it was, with the same ending and banner."""
    agent, _ = searcher(asks(1), asks(2, text="partial"))
    result = await agent.run("Go.", limits=TWO)
    again = AgentResult.from_json(result.to_json())
    assert again == result
    assert (again.ending, str(again), again.truncated) == (result.ending, str(result), True)


def with_on_limit(limits: PlanLimits, on_limit: str) -> PlanLimits:
    """The same limits with another way to end."""
    given = {name: getattr(limits, name) for name in PlanLimits.__dataclass_fields__}
    return PlanLimits(**{**given, "on_limit": on_limit})


def test_every_call_is_answered_in_the_final_request_too() -> None:
    """The request for the final answer has a return for every call that the limit refused."""
    agent, model = searcher(asks(*range(5)), "end")
    agent.run_sync("Go.", limits=PlanLimits(max_tool_calls=3))
    final = model.requests[-1]
    assert final.final
    assert [m.status for m in final.messages if isinstance(m, ToolReturn)] == ["ok"] * 3 + ["not_run"] * 2


async def test_a_retry_policy_of_one_attempt_sends_the_final_answer_once() -> None:
    """`max_attempts` holds for the final answer as for any request."""
    model = ScriptedModel([asks(1), ModelError("busy", retryable=True), "never"])
    agent = Agent(model, tools=[look], retry=type(AT_ONCE)(max_attempts=1))
    assert ended(await agent.run("Go.", limits=TWO))[0] == "tool_digest"
    assert model.request_count == 2


async def test_text_that_time_cut_off_is_the_last_text() -> None:
    """What the user saw being written is not lost: it is handed over, marked."""
    step = Step(text="one two", deltas=("one ", "two"), delta_latency_seconds=60)
    limits = PlanLimits(max_seconds=1, on_limit="stop")
    result = await Agent(ScriptedModel([step])).run("Go.", limits=limits)
    assert result.stop_reason == "budget"
    assert result.ending is not None
    assert result.ending.rung == "last_text"
    assert result.text == "one "
