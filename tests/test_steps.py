"""What a run does next, and what it has come to when it ends: both decided from its state alone."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endstop._agent import Agent
from endstop._errors import ConfigError
from endstop._limits import LOOP, LimitHit, PlanLimits, Spent
from endstop._messages import Message, ModelTurn, ToolCall, ToolReturn, UserMessage
from endstop._pauses import Pause
from endstop._results import Ending
from endstop._stages import Retrieved
from endstop._state import RunState, StopReason
from endstop._steps import (
    CallModel,
    Fail,
    Finish,
    Plan,
    Recall,
    Repair,
    RetryPolicy,
    RunTools,
    conclude,
    next_step,
)
from endstop.models.scripted import ScriptedModel
from tests.strategies import states

GO = UserMessage(content="Go")
CALLS = (ToolCall(call_id="1", name="search", arguments={}), ToolCall(call_id="2", name="pay", arguments={}))
ASKS = ModelTurn(text="Let me see.", tool_calls=CALLS, finish_reason="tool_calls")
RETURNS = tuple(ToolReturn(call_id=call.call_id, name=call.name, content="found") for call in CALLS)
DONE = ModelTurn(text="Done")
ROUNDS = LimitHit(limit="max_model_rounds", used=9, allowed=10)
TOKENS = LimitHit(limit="max_tokens", used=90, allowed=100)


class Memory:
    """A retrieval stage that is never asked here."""

    async def retrieve(self, prompt: str) -> Retrieved:
        """Nothing."""
        return Retrieved()


def search() -> str:
    """Find."""
    return "found"


def plan(*, tools: bool = True, output_type: type[Any] = str, repairs: int = 2, memory: Memory | None = None) -> Plan:
    """What an agent compiles to."""
    agent = Agent(
        ScriptedModel([]),
        tools=[search] if tools else [],
        output_type=output_type,
        output_repairs=repairs,
        retrieval=memory,
    )
    return agent._plan


def state(*messages: Message, **fields: Any) -> RunState:
    """A run that has said so much."""
    return RunState(run_id="r", agent="a", limits=fields.pop("limits", PlanLimits()), messages=[*messages], **fields)


def waiting_for(*calls: ToolCall) -> list[Pause]:
    """Pauses of these calls."""
    return [
        Pause(
            pause_id=f"p{call.call_id}",
            kind="approval",
            question=f"May {call.name} run?",
            call=call,
            call_id=call.call_id,
            path=("a",),
        )
        for call in calls
    ]


# -- the next step ---------------------------------------------------------------------------------


def test_a_run_begins_with_the_model() -> None:
    """Whatever was said last, it is the model's turn."""
    assert next_step(state(GO), plan()) == CallModel()
    assert next_step(state(DONE, GO), plan()) == CallModel()


def test_retrieval_comes_before_everything_and_once() -> None:
    """Before the first round, and not again after a pause or a resume."""
    memory = Memory()
    assert next_step(state(GO), plan(memory=memory)) == Recall(retrieval=memory)
    assert next_step(state(GO, recalled=True), plan(memory=memory)) == CallModel()


def test_calls_are_run_in_the_order_asked() -> None:
    """Those that have no answer yet."""
    assert next_step(state(GO, ASKS), plan()) == RunTools(calls=CALLS)
    assert next_step(state(GO, ASKS, RETURNS[0]), plan()) == RunTools(calls=CALLS[1:])


def test_the_model_reads_what_its_tools_returned() -> None:
    """When every call is answered."""
    assert next_step(state(GO, ASKS, *RETURNS), plan()) == CallModel()


def test_a_call_that_waits_for_a_person_holds_up_no_other() -> None:
    """The rest of the batch is run; when only calls that wait are left, the run is paused."""
    assert next_step(state(GO, ASKS, pauses=waiting_for(CALLS[1])), plan()) == RunTools(calls=CALLS[:1])
    paused = state(GO, ASKS, RETURNS[0], pauses=waiting_for(CALLS[1]))
    assert next_step(paused, plan()) == Finish(stop_reason="paused")


def test_calls_are_refused_when_a_limit_is_used_up() -> None:
    """Each is answered all the same, so that the history stays valid."""
    assert next_step(state(GO, ASKS, hit=TOKENS), plan()) == RunTools(calls=CALLS, refuse=True)


def test_a_final_answer_is_asked_for_once() -> None:
    """From the reserve, without tools; having been asked for is enough, however it ended."""
    ended = state(GO, ASKS, *RETURNS, hit=ROUNDS)
    assert next_step(ended, plan()) == CallModel(final=True)
    for wrap_up in ("asked", "answered"):
        assert next_step(replace(ended, wrap_up=wrap_up), plan()) == Finish(stop_reason="tool_limit")


@pytest.mark.parametrize("on_limit", ["stop", "raise"])
def test_no_final_answer_is_asked_for_where_none_is_wanted(on_limit: Any) -> None:
    """`stop` and `raise` hold nothing back for one."""
    ended = state(GO, ASKS, *RETURNS, hit=ROUNDS, limits=PlanLimits(on_limit=on_limit))
    assert next_step(ended, plan()) == Finish(stop_reason="tool_limit")


def test_an_agent_without_tools_is_not_asked_again() -> None:
    """Each of its rounds was asked for a final answer."""
    assert next_step(state(GO, hit=TOKENS), plan(tools=False)) == Finish(stop_reason="budget")


@pytest.mark.parametrize(
    ("limit", "stop_reason"),
    [
        ("max_model_rounds", "tool_limit"),
        ("max_model_calls", "budget"),
        ("max_tool_calls", "budget"),
        ("tool_limits['search']", "budget"),
        ("max_tokens", "budget"),
        ("max_output_tokens", "budget"),
        ("max_cost", "budget"),
        ("max_seconds", "budget"),
        ("deadline", "budget"),
        ("model_output_cap", "budget"),
        (LOOP, "loop"),
    ],
)
def test_the_stop_reason_tells_what_kind_of_limit_it_was(limit: str, stop_reason: StopReason) -> None:
    """Rounds used up without an answer have a reason of their own, as loops have."""
    ended = state(GO, ASKS, *RETURNS, hit=LimitHit(limit=limit, used=1, allowed=1), wrap_up="answered")
    assert next_step(ended, plan()) == Finish(stop_reason=stop_reason)


def test_a_round_that_answers_ends_the_run() -> None:
    """Also where it used the last unit of every limit: nobody asks for more."""
    assert next_step(state(GO, DONE), plan()) == Finish(stop_reason="completed")
    limits = PlanLimits(max_model_rounds=1, max_model_calls=1, max_tokens=10)
    spent = Spent(model_rounds=1, model_calls=1, input_tokens=8, output_tokens=2)
    assert next_step(state(GO, DONE, limits=limits, spent=spent), plan()) == Finish(stop_reason="completed")


@pytest.mark.parametrize("on_limit", ["answer", "stop", "raise"])
def test_a_limit_that_is_found_after_the_answer_does_not_void_it(on_limit: Any) -> None:
    """The time may be up while the answer is being told: it is there, whole, and the run is completed."""
    hit = LimitHit(limit="max_seconds", used=10.0, allowed=10.0)
    answered = state(GO, DONE, hit=hit, limits=PlanLimits(max_seconds=10, on_limit=on_limit))
    assert next_step(answered, plan()) == Finish(stop_reason="completed")


def test_an_answer_that_was_cut_at_a_limit_is_not_whole() -> None:
    """What is noted as the last that can be had is not taken for the answer."""
    cut = ModelTurn(text="The answer is", finish_reason="length")
    ended = state(GO, cut, hit=LimitHit(limit="model_output_cap", used=3, allowed=3), wrap_up="asked")
    assert next_step(ended, plan()) == Finish(stop_reason="budget")


def test_an_answer_of_the_wrong_form_is_repaired_a_bounded_number_of_times() -> None:
    """Then the run fails, with the last complaint."""
    wrong = state(GO, ModelTurn(text="three"))
    step = next_step(wrong, plan(output_type=int, repairs=1))
    assert isinstance(step, Repair)
    assert step.problem.startswith("the answer: Invalid JSON")
    assert next_step(replace(wrong, repairs=1), plan(output_type=int, repairs=1)) == Fail(problem=step.problem)
    assert isinstance(next_step(wrong, plan(output_type=int, repairs=0)), Fail)


def test_an_answer_of_the_right_form_ends_the_run() -> None:
    """However many repairs it took."""
    right = state(GO, ModelTurn(text='{"value": 3}'), repairs=2)
    assert next_step(right, plan(output_type=int)) == Finish(stop_reason="completed")


def test_a_limit_ends_the_repairing() -> None:
    """Repairs are inside the limits."""
    complaint = UserMessage(content="Again", source="kernel")
    wrong = state(GO, ModelTurn(text="three"), complaint, hit=ROUNDS, wrap_up="answered", repairs=1)
    assert next_step(wrong, plan(output_type=int)) == Finish(stop_reason="tool_limit")


begun = states.filter(lambda each: each.messages)
PLANS = [plan(), plan(tools=False), plan(output_type=int)]


@settings(max_examples=30)
@given(begun, st.sampled_from(PLANS))
def test_deciding_changes_nothing(any_state: RunState, any_plan: Plan) -> None:
    """Whatever the state, there is a next step, the same whenever it is asked for, and the state is as it was."""
    before = copy.deepcopy(any_state)
    step = next_step(any_state, any_plan)
    assert next_step(any_state, any_plan) == step
    assert any_state == before


@settings(max_examples=30)
@given(begun, st.sampled_from(PLANS))
def test_concluding_changes_nothing(any_state: RunState, any_plan: Plan) -> None:
    """Whatever the state, there is a result, with an ending exactly where it did not complete."""
    before = copy.deepcopy(any_state)
    result = conclude(any_state, any_plan)
    assert any_state == before
    assert result.stop_reason == (any_state.stop_reason or "cancelled")
    assert (result.ending is None) == (result.stop_reason == "completed")
    assert str(result).startswith("[" if result.ending else result.text)


# -- the result ------------------------------------------------------------------------------------


def ending(ended: RunState, **fields: Any) -> Ending:
    """How a run ended."""
    found = conclude(ended, plan(**fields)).ending
    assert found is not None
    return found


def test_a_completed_run_has_its_answer_and_no_ending() -> None:
    """Text is the output of an agent of text; another type has its value."""
    done = state(GO, ASKS, *RETURNS, DONE, stop_reason="completed")
    result = conclude(done, plan())
    assert (result.text, result.output, result.ending, result.truncated) == ("Done", "Done", None, False)
    typed = conclude(state(GO, ModelTurn(text='{"value": 3}'), stop_reason="completed"), plan(output_type=int))
    assert (typed.text, typed.output) == ('{"value": 3}', 3)


def test_a_completed_run_whose_history_goes_on_has_no_answer() -> None:
    """A state that was put together by hand is not trusted beyond what it says."""
    result = conclude(state(GO, DONE, GO, stop_reason="completed"), plan(output_type=int))
    assert (result.text, result.output, result.ending) == ("", None, None)


def test_a_final_answer_is_the_models() -> None:
    """The best rung: it is what the reserve was for."""
    ended = state(GO, ASKS, *RETURNS, DONE, hit=ROUNDS, wrap_up="answered", stop_reason="tool_limit")
    result = conclude(ended, plan())
    assert result.ending is not None
    assert (result.ending.rung, result.text, result.output) == ("model_answer", "Done", "Done")
    assert result.truncated


def test_without_a_final_answer_the_last_text_stands() -> None:
    """Also where a final answer came without a word."""
    unfinished = state(GO, ASKS, *RETURNS, hit=ROUNDS, stop_reason="tool_limit")
    silent = replace(unfinished, messages=[*unfinished.messages, ModelTurn()], wrap_up="answered")
    failed = replace(unfinished, wrap_up="asked", note="the final answer failed: busy")
    for ended in (unfinished, silent, failed):
        result = conclude(ended, plan())
        assert (result.ending.rung, result.text) == ("last_text", "Let me see.")


def test_without_a_text_the_results_of_the_tools_stand() -> None:
    """They are the text and not the output: no model answered."""
    quiet = ModelTurn(tool_calls=CALLS)
    result = conclude(state(GO, quiet, *RETURNS, hit=ROUNDS, stop_reason="tool_limit"), plan())
    assert (result.ending.rung, result.output) == ("tool_digest", None)
    assert result.text == "- search({}): found\n- pay({}): found"


def test_without_anything_the_ending_is_empty() -> None:
    """And says so."""
    result = conclude(state(GO, hit=TOKENS, stop_reason="budget"), plan())
    assert (result.ending.rung, result.text, result.output) == ("empty", "", None)
    assert str(result) == "[TRUNCATED: max_tokens leaves no room (90 of 100); there is no answer]"


def test_only_what_this_run_said_counts() -> None:
    """The last answer of an earlier conversation is not this run's."""
    ended = state(GO, DONE, GO, first_message=2, hit=TOKENS, stop_reason="budget")
    assert ending(ended).rung == "empty"


def test_a_partial_answer_has_an_output_where_it_has_the_form() -> None:
    """It was asked for in the form, and may have it."""
    ended = state(GO, ModelTurn(text='{"value": 3}'), hit=TOKENS, wrap_up="answered", stop_reason="budget")
    assert conclude(ended, plan(output_type=int)).output == 3
    wrong = replace(ended, messages=[GO, ModelTurn(text="about three")])
    result = conclude(wrong, plan(output_type=int))
    assert (result.output, result.text, result.ending.rung) == (None, "about three", "model_answer")


def test_the_ending_names_the_limit_and_what_is_left_undone() -> None:
    """The limit with its figures, the calls that were not run, and each tool once that may have changed something."""
    ended = state(
        *(GO, ASKS, *RETURNS),
        hit=LimitHit(limit="max_cost", used=Decimal("0.4"), allowed=Decimal("0.5")),
        spent=Spent(cost=Decimal("0.45")),
        unrun=[CALLS[1]],
        side_effects=["pay", "book", "pay"],
        note="the final answer failed: busy",
        stop_reason="budget",
    )
    assert ending(ended) == Ending(
        rung="last_text",
        reason="max_cost leaves no room (0.45 of 0.5 US dollars); the final answer failed: busy",
        limit="max_cost",
        used=Decimal("0.45"),
        allowed=Decimal("0.5"),
        pending=(CALLS[1],),
        effects=("pay", "book"),
    )


def test_what_the_final_answer_cost_is_used_as_well() -> None:
    """The figures are those of the end; a limit of a shared budget keeps the larger ones it was found with."""
    ended = state(GO, DONE, hit=ROUNDS, wrap_up="answered", spent=Spent(model_rounds=10), stop_reason="tool_limit")
    assert (ending(ended).used, ending(ended).allowed) == (10, 10)
    shared = replace(ended, spent=Spent(model_rounds=2))
    assert ending(shared).used == 9
    late = replace(ended, hit=LimitHit(limit="deadline", used=5.0, allowed=5.0))
    assert (ending(late).limit, ending(late).reason) == ("deadline", "the deadline has come")


def test_a_cancelled_run_names_no_limit() -> None:
    """A run that has no stop reason yet was cancelled, and what it asked for and did not get is pending."""
    for stop_reason in (None, "cancelled"):
        ended = ending(state(GO, ASKS, stop_reason=stop_reason))
        assert (ended.reason, ended.limit, ended.used, ended.allowed) == ("the run was cancelled", None, None, None)
        assert ended.pending == CALLS
    assert not conclude(state(GO, stop_reason="cancelled"), plan()).truncated


def test_a_paused_run_says_what_it_waits_for() -> None:
    """Every question is in the reason."""
    one = ending(state(GO, ASKS, RETURNS[1], pauses=waiting_for(CALLS[0]), stop_reason="paused"))
    assert one.reason == "waiting for 1 answer: May search run?"
    assert one.pending == CALLS[:1]
    both = ending(state(GO, ASKS, pauses=waiting_for(*CALLS), stop_reason="paused"))
    assert both.reason == "waiting for 2 answers: May search run?; May pay run?"


# -- retries ---------------------------------------------------------------------------------------


def test_the_wait_doubles_up_to_its_most() -> None:
    """Half a second, one, two, four, ... and never more than the policy says."""
    retry = RetryPolicy(max_wait_seconds=5.0)
    assert [retry.wait_seconds(attempt, None, 0.0) for attempt in range(1, 7)] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


@pytest.mark.parametrize("attempt", [1_000, 2_000, 10**6])
def test_the_wait_stays_finite_however_often_it_was_tried(attempt: int) -> None:
    """A policy of very many attempts waits the most between them."""
    assert RetryPolicy(max_attempts=10**7).wait_seconds(attempt, None, 0.0) == 20.0


def test_the_jitter_is_drawn_and_the_provider_has_the_last_word() -> None:
    """Where it asks to wait longer, it is waited longer; where less, not less."""
    retry = RetryPolicy()
    assert retry.wait_seconds(1, None, 0.5) == 1.0
    assert retry.wait_seconds(1, 30.0, 0.5) == 30.0
    assert retry.wait_seconds(1, 0.1, 0.5) == 1.0
    assert RetryPolicy(initial_wait_seconds=0, jitter_seconds=0).wait_seconds(3, None, 1.0) == 0.0


@given(st.integers(1, 30), st.none() | st.floats(0, 1e6), st.floats(0, 1))
def test_a_wait_is_within_what_the_policy_says(attempt: int, asked: float | None, draw: float) -> None:
    """Never negative, never beyond the most and the jitter but where the provider asked."""
    retry = RetryPolicy()
    wait = retry.wait_seconds(attempt, asked, draw)
    assert (asked or 0.0) <= wait <= max(retry.max_wait_seconds + retry.jitter_seconds, asked or 0.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_attempts", 0),
        ("max_attempts", True),
        ("max_attempts", None),
        ("max_attempts", 2.0),
        *[
            (field, value)
            for field in ("initial_wait_seconds", "max_wait_seconds", "jitter_seconds", "max_retry_after_seconds")
            for value in (-0.1, True, None, "1", float("nan"), float("inf"))
        ],
    ],
)
def test_a_policy_that_cannot_be_followed_is_refused_by_name(field: str, value: object) -> None:
    """The field and the value are in the error."""
    with pytest.raises(ConfigError) as caught:
        RetryPolicy(**{field: value})
    assert (caught.value.field, caught.value.value) == (field, value)


def test_steps_are_values() -> None:
    """Equal by content, and none can be changed after it was decided."""
    for step in (
        CallModel(),
        RunTools(calls=CALLS),
        Repair(problem="p"),
        Finish(stop_reason="budget"),
        Fail(problem="p"),
    ):
        assert step == copy.copy(step)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(step, dataclasses.fields(step)[0].name, None)
