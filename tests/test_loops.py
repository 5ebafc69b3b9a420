"""The loop detector: what it finds, when, what it lets pass, and what its state keeps."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstop._errors import ConfigError
from endstop._loops import (
    Action,
    AgentMessage,
    LoopDetector,
    LoopFinding,
    LoopPolicy,
    LoopState,
    Outcome,
    Step,
    ToolBatch,
    UserTurn,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

DETECTOR = LoopDetector()
STORED = pydantic.TypeAdapter(LoopState)
POLL = Action(name="job_status", arguments={"job": 7}, polling=True)


def call(name: str, arguments: object = None, result: str | None = "done", *, failed: bool | None = None) -> ToolBatch:
    """One call with one argument."""
    return ToolBatch(
        outcomes=(Outcome(action=Action(name=name, arguments={"q": arguments}), result=result, failed=failed),)
    )


def of(action: Action, result: str | None, *, failed: bool | None = None) -> ToolBatch:
    """One call of a prepared action."""
    return ToolBatch(outcomes=(Outcome(action=action, result=result, failed=failed),))


def together(*batches: ToolBatch) -> ToolBatch:
    """The calls of several batches as one parallel batch."""
    return ToolBatch(outcomes=tuple(itertools.chain.from_iterable(batch.outcomes for batch in batches)))


def observe(
    steps: Iterable[Step], state: LoopState | None = None, detector: LoopDetector = DETECTOR
) -> tuple[LoopState, list[tuple[int, LoopFinding]]]:
    """The state after the steps, and each finding with the number of its step, from 1."""
    state, found = state or LoopState(), list[tuple[int, LoopFinding]]()
    for number, step in enumerate(steps, 1):
        state, finding = detector.observe(state, step)
        if finding is not None:
            found.append((number, finding))
    return state, found


def findings(steps: Iterable[Step], detector: LoopDetector = DETECTOR) -> list[tuple[int, str, bool]]:
    """Step number, kind and persistence of each finding."""
    return [(number, one.kind, one.persistent) for number, one in observe(steps, None, detector)[1]]


# --- repeats and cycles ---------------------------------------------------------------------------------------------


def test_the_third_equal_call_is_the_first_finding_and_the_sixth_the_last() -> None:
    """A streak gives one finding to tell the model and, if it goes on, one to end the run; then no more."""
    assert findings([call("search", "x")] * 20) == [(3, "repeat", False), (6, "repeat", True)]


def test_a_finding_says_what_repeats() -> None:
    """The record is enough to write the event and the line to the model."""
    [(_, finding)] = observe([call("search", "x")] * 3)[1]
    assert finding == LoopFinding(
        kind="repeat",
        period=1,
        repeats=3,
        tools=("search",),
        signature=finding.signature,
        persistent=False,
        reason="the same call (search) came 3 times running and returned nothing new",
    )
    assert finding.signature


def test_equal_steps_have_equal_signatures() -> None:
    """So that a caller can tell whether two findings are of the same loop."""
    again = [call("search", "x")] * 3
    [(_, first)] = observe(again)[1]
    [(_, second)] = observe([call("read", "y"), *again])[1]
    assert first.signature == second.signature


def test_alternation_is_found_when_it_opens_for_the_third_time() -> None:
    """A writer and a reviewer that take turns never make three equal calls in a row."""
    steps = [call("write", "draft"), call("review", "draft", "reject")] * 10
    assert findings(steps) == [(5, "cycle", False), (8, "cycle", True)]


@given(
    period=st.integers(1, 8),
    prefix=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.sampled_from(["1", "2", "no such x"]))),
)
def test_any_cycle_is_found_when_it_opens_for_the_third_time_whatever_came_before(
    period: int, prefix: list[tuple[str, int, str]]
) -> None:
    """Period p: the alarm comes at step 2p + 1 of the cycle, the persistent one three steps later."""
    before, _ = observe([call(name, argument, result) for name, argument, result in prefix])
    cycle = [call("cycle", number, f"result {number}") for number in range(period)]
    _, found = observe(itertools.islice(itertools.cycle(cycle), 3 * period + 6), before)
    assert [(number, one.persistent) for number, one in found] == [(2 * period + 1, False), (2 * period + 4, True)]


@given(st.integers(9, 20))
def test_a_longer_cycle_is_found_too(period: int) -> None:
    """Stagnation sees what is beyond the longest period, as long as the window holds two units less a step."""
    cycle = [call("cycle", number, f"result {number}") for number in range(period)]
    assert findings(itertools.islice(itertools.cycle(cycle), 2 * period + 1)) == [(2 * period + 1, "stagnation", False)]


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3)), max_size=80))
def test_a_stream_of_new_results_never_alarms(actions: list[tuple[str, int]]) -> None:
    """The same action with a new result is progress, however often it comes."""
    steps = [call(name, argument, f"page {number}") for number, (name, argument) in enumerate(actions)]
    assert findings(steps) == []


def test_a_new_result_interrupts_a_repeat() -> None:
    """Twice, then news, then twice is no loop."""
    same, news = call("read", "log", "quiet"), call("read", "log", "a line")
    assert findings([same, same, news, same, same]) == []


def test_a_streak_that_begins_again_is_reported_again() -> None:
    """Once a streak: what brings news ends one, and the next has its own first finding."""
    steps = [*[call("search", "x")] * 4, call("read", "y"), *[call("search", "x")] * 3]
    assert findings(steps) == [(3, "repeat", False), (8, "repeat", False)]


def test_known_steps_that_are_no_loop_make_no_persistent_finding() -> None:
    """After the first finding a look back at other known steps is not the loop going on."""
    steps = [*(call("read", number) for number in range(4)), *[call("search", "x")] * 3]
    assert findings([*steps, *(call("read", number) for number in range(4))]) == [(7, "repeat", False)]


def test_text_thinking_and_waiting_between_calls_are_skipped() -> None:
    """A thought does not make a repeat sensible; tools declared repeatable are not looked at."""
    think = of(Action(name="think", arguments={"thought": "again"}, repeatable=True), "")
    assert findings([call("book", "x", "full"), think, think] * 3) == [(7, "repeat", False)]


def test_repeatable_calls_in_a_batch_leave_the_rest_to_count() -> None:
    """Only the thought is skipped, not the call beside it."""
    think = of(Action(name="think", repeatable=True), "")
    assert findings([together(think, call("book", "x", "full"))] * 3) == [(3, "repeat", False)]


def test_arguments_count_whole() -> None:
    """Two commands that differ after 80 characters are two commands."""
    assert findings(call("bash", f"{'find . ' * 20} -name {number}", "ok") for number in range(7)) == []


def test_ids_in_arguments_are_never_masked() -> None:
    """Pages and items are told apart by a number, and one empty page is news of that page alone."""
    assert findings(call("orders", {"page": number, "at": "10:00:00"}, "[]") for number in range(7)) == []


def test_the_order_of_keys_does_not_count() -> None:
    """Arguments are compared as canonical JSON."""
    turned = [{"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}]
    assert findings(call("search", turned[number % 2]) for number in range(3)) == [(3, "repeat", False)]


def test_arguments_that_are_no_object_count_as_they_stand() -> None:
    """A model may write what is no JSON; it is still the same call when it comes again."""
    broken = Action(name="search", arguments="{'q': ")
    assert findings([of(broken, "bad arguments")] * 3) == [(3, "repeat", False)]


def test_the_order_of_a_parallel_batch_does_not_count() -> None:
    """A batch is one step; which of its calls comes first is chance."""
    one, two = call("read", 1, "one"), call("read", 2, "two")
    steps = [together(one, two), together(two, one), together(one, two)]
    assert findings(steps) == [(3, "repeat", False)]


def test_a_batch_is_one_step_and_asking_twice_at_once_is_asking_once() -> None:
    """Five equal calls of one round are no loop; the rounds are counted."""
    search = call("search", "x", "[]")
    assert findings([together(*[search] * 5), together(*[search] * 2)]) == []
    assert findings([together(*[search] * 5), search, search]) == [(3, "repeat", False)]


def test_an_empty_batch_is_no_step() -> None:
    """A round whose calls were all refused before they were made has nothing to compare."""
    assert observe([ToolBatch(outcomes=())] * 5) == (LoopState(), [])


def test_a_call_without_an_answer_brings_nothing_new() -> None:
    """It counts as the last answer to the same action, and otherwise as an answer of its own."""
    assert findings([call("run", 1, "x"), call("run", 1, "x"), call("run", 1, None)]) == [(3, "repeat", False)]
    assert findings([call("run", 1, None)] * 3) == [(3, "repeat", False)]
    assert findings([call("run", 1, "x"), call("run", 1, None), call("run", 1, "y")]) == []


def test_stagnation_is_known_steps_in_no_fixed_order() -> None:
    """Four known steps running, and one of them for the third time."""
    a, b, c = (call("query", number, f"rows of {number}") for number in "abc")
    new = call("query", "d", "rows of d")
    assert findings([a, b, c, new, c, a, b, c]) == [(8, "stagnation", False)]


def test_a_look_back_is_not_stagnation() -> None:
    """To go through known places once more, or to return to one step early, is still allowed."""
    places = [call("go_to", number, f"view {number}") for number in range(6)]
    assert findings([*places, *places]) == []
    assert findings([*places, places[1], places[2], places[1]]) == []


# --- failures and answers -------------------------------------------------------------------------------------------


def test_the_same_error_under_changing_arguments_is_a_streak() -> None:
    """The fifth: the fourth that says what was read before."""
    steps = [call("sql", f"select {number}", "Error: no such table", failed=True) for number in range(20)]
    assert findings(steps) == [(5, "failures", False), (8, "failures", True)]


def test_failures_are_judged_by_their_words_where_nothing_says_so() -> None:
    """Many tools return an error as text."""
    assert findings(call("sql", number, "ERROR: no such table") for number in range(5)) == [(5, "failures", False)]
    assert findings(call("sql", number, "an error table", failed=False) for number in range(5)) == []


def test_known_failures_may_take_turns() -> None:
    """Two messages that alternate say no more than one."""
    steps = [call("sql", number, f"Error: no table {'ab'[number % 2]}") for number in range(6)]
    assert findings(steps) == [(6, "failures", False)]


def test_a_new_error_or_a_success_ends_a_streak_of_failures() -> None:
    """A new message is information, and after a success things may differ."""
    same = [call("sql", number, "Error: no such table") for number in range(4)]
    later = [call("sql", number, "Error: no such table") for number in range(10, 14)]
    assert findings([*same, call("sql", "new", "Error: no such column"), *later[:3]]) == []
    assert findings([*same, call("sql", "ok", "3 rows"), *later]) == []


def test_a_retry_that_succeeds_is_no_loop() -> None:
    """Two failures and then the answer is what retries are for."""
    failed = call("fetch", "page", "503 timed out")
    assert findings([failed, failed, call("fetch", "page", "<html>"), call("fetch", "next", "<html> 2")]) == []


def test_a_failed_call_between_reads_is_a_loop_the_third_time() -> None:
    """Reading cannot change why it failed."""
    book = call("book", {"price": 299}, "Error: total price is 375", failed=True)
    reads = [of(Action(name="calculate", arguments={"q": number}, read_only=True), f"={number}") for number in (1, 2)]
    assert findings([book, reads[0], book, reads[1], book]) == [(5, "retry", False)]


def test_edit_and_test_in_turn_is_no_loop() -> None:
    """The test fails in the same way, but each edit is new and may have helped."""
    steps = list[Step]()
    for number in range(8):
        steps += [call("edit", f"fix {number}", f"edited {number}"), call("pytest", ".", "1 failed: test_x")]
    assert findings(steps) == []


def test_edit_and_test_without_a_change_is_a_loop() -> None:
    """The same edit and the same failure are a cycle of two."""
    assert findings([call("edit", "fix", "edited"), call("pytest", ".", "1 failed")] * 3) == [(5, "cycle", False)]


def test_calls_of_unknown_tools_are_a_streak_of_their_own() -> None:
    """The third, whatever the arguments and the wording of the refusal."""
    steps = [of(Action(name="reflect", arguments={"q": n}, unknown=True), f"no tool reflect {n}") for n in range(8)]
    assert findings(steps) == [(3, "unknown_tool", False), (6, "unknown_tool", True)]
    known = call("search", "x", "found")
    assert findings([*steps[:2], known, *steps[2:4]]) == []


def test_equal_answers_to_different_calls_are_advice_only() -> None:
    """The eighth, once a streak, and never persistent: working off a list looks the same."""
    steps = [call("delete", number, "ok") for number in range(40)]
    assert findings(steps) == [(8, "same_answer", False)]


def test_silence_is_no_answer() -> None:
    """Commands that print nothing have nothing to repeat."""
    assert findings(call("mkdir", number, "\n") for number in range(40)) == []


# --- polling --------------------------------------------------------------------------------------------------------


def test_polling_that_progresses_is_no_loop() -> None:
    """A percentage is news."""
    assert findings(of(POLL, f"{number} % done") for number in range(40)) == []


def test_polling_that_stands_still_has_a_higher_threshold() -> None:
    """Ten equal answers, and ten more before it is persistent."""
    assert findings([of(POLL, "queued, 3 s elapsed")] * 30) == [(10, "repeat", False), (20, "repeat", True)]


def test_waiting_in_turn_with_polling_has_the_higher_threshold_too() -> None:
    """One polling step in the unit is enough, whichever comes last."""
    steps = [of(POLL, "queued"), call("wait", "1 minute")] * 20
    assert findings(steps) == [(19, "cycle", False), (29, "cycle", True)]
    assert findings([together(of(POLL, "queued"), call("read", "x"))] * 9) == []


def test_polling_does_not_stagnate() -> None:
    """Two jobs looked at in no fixed order are still being waited for."""
    jobs = [of(replace(POLL, arguments={"job": number}), "queued") for number in (0, 0, 1, 0, 1, 1, 0, 1, 0, 0)]
    assert findings(jobs) == []


def test_polling_failures_are_no_streak_of_failures() -> None:
    """A service that is not up yet refuses for a while."""
    jobs = [of(replace(POLL, arguments={"try": number}), "connection failed", failed=True) for number in range(9)]
    assert findings(jobs) == []


# --- messages and users ---------------------------------------------------------------------------------------------


def test_messages_loop_and_a_user_turn_does_not_reset_them() -> None:
    """An agent that only talks can go round for ever with a polite partner."""
    steps = list[Step]()
    for number in range(8):
        steps += [AgentMessage(text="I will list\n the types."), UserTurn(text=f"Go ahead {number}")]
    _, found = observe(steps)
    assert [(number, one.kind, one.persistent) for number, one in found] == [
        (5, "message", False),
        (11, "message", True),
    ]
    assert found[0][1].tools == ()


def test_messages_that_alternate_are_found() -> None:
    """A cycle of two, and white space does not count."""
    steps = [AgentMessage(text="One  moment."), AgentMessage(text="Here it comes."), AgentMessage(text="One moment. ")]
    assert findings([*steps[:2], *steps[1:], steps[1], steps[0]]) == []
    assert findings([*steps[:2], steps[2], steps[1], steps[0]]) == [(5, "message", False)]


def test_the_same_words_of_two_agents_are_two_messages() -> None:
    """Three reviewers may agree."""
    assert findings(AgentMessage(text="Approved.", author=name) for name in "abc") == []


def test_a_tool_call_ends_a_streak_of_messages() -> None:
    """Text between calls is no loop by itself."""
    steps = list[Step]()
    for number in range(6):
        steps += [AgentMessage(text="Let me look."), call("read", number, f"page {number}")]
    assert findings(steps) == []


def test_new_words_of_the_user_make_it_sensible_to_look_again() -> None:
    """Three equal look-ups, each asked for anew, are no loop; the same words of a parrot change nothing."""
    look = call("order", 17, "pending")
    asked = [UserTurn(text="Is it sent?"), look, UserTurn(text="And now?"), look, UserTurn(text="Now?"), look]
    assert findings(asked) == []
    parrot = [UserTurn(text="Go on."), look] * 3
    assert findings(parrot) == [(6, "repeat", False)]


# --- policy and state -----------------------------------------------------------------------------------------------


def test_thresholds_are_the_policy_s() -> None:
    """Each is read from the policy, not from the code."""
    detector = LoopDetector(policy=LoopPolicy(repeats=2, patience=1))
    assert findings([call("search", "x")] * 5, detector) == [(2, "repeat", False), (3, "repeat", True)]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"repeats": 1}, "repeats=1 cannot be used: give a whole number of at least 2"),
        ({"polling_repeats": 1}, "polling_repeats=1 cannot be used: give a whole number of at least 2"),
        ({"patience": 0}, "patience=0 cannot be used: give a whole number of at least 1"),
        ({"same_answers": True}, "same_answers=True cannot be used: give a whole number of at least 1"),
        ({"max_period": 1.5}, r"max_period=1\.5 cannot be used: give a whole number of at least 1"),
        ({"window": 8}, "window=8 cannot be used: give a whole number of at least 9"),
    ],
)
def test_a_policy_out_of_range_is_refused_by_name(policy: dict[str, int], message: str) -> None:
    """The message names the field, the value and what would be accepted."""
    with pytest.raises(ConfigError, match=message):
        LoopPolicy(**policy)


def steps_of_any_kind() -> st.SearchStrategy[Step]:
    """Few names, arguments and results, so that loops happen."""
    action = st.builds(
        Action,
        name=st.sampled_from(["a", "b"]),
        arguments=st.sampled_from([{"q": 1}, {"q": 2}, "raw"]),
        polling=st.sampled_from([False, False, True]),
        repeatable=st.sampled_from([False, False, False, True]),
        read_only=st.booleans(),
        unknown=st.sampled_from([False, False, False, True]),
    )
    outcome = st.builds(
        Outcome,
        action=action,
        result=st.sampled_from(["one", "two", "Error: no", "", None]),
        failed=st.sampled_from([None, True, False]),
    )
    text = st.sampled_from(["hello", "go on", "\ud800"])
    batch = st.builds(ToolBatch, outcomes=st.lists(outcome, max_size=3).map(tuple))
    return st.one_of(batch, batch, batch, st.builds(AgentMessage, text=text), st.builds(UserTurn, text=text))


@given(st.lists(steps_of_any_kind(), max_size=40), st.data())
def test_the_findings_are_the_same_when_the_state_is_stored_at_any_point(
    steps: list[Step], data: st.DataObject
) -> None:
    """JSON both ways: a pause, a crash or another process does not reset a count."""
    cut = data.draw(st.integers(0, len(steps)))
    state, before = observe(steps[:cut])
    restored = STORED.validate_json(STORED.dump_json(state))
    assert restored == state
    end, after = observe(steps[cut:], restored)
    assert (end, [*before, *((cut + number, one) for number, one in after)]) == observe(steps)


@given(st.lists(steps_of_any_kind(), max_size=40))
def test_first_and_persistent_findings_take_turns(steps: list[Step]) -> None:
    """There is never a persistent finding without a first one before it, and never two for one."""
    last = {"tools": False, "messages": False}
    for _, finding in observe(steps)[1]:
        track = "messages" if finding.kind == "message" else "tools"
        if finding.persistent:
            assert last[track]
        last[track] = not finding.persistent


@given(st.lists(steps_of_any_kind(), max_size=30), st.randoms(use_true_random=False))
def test_the_order_within_batches_never_matters(steps: list[Step], chance: random.Random) -> None:
    """Shuffled batches give the same state and the same findings."""
    turned = list[Step]()
    for step in steps:
        if isinstance(step, ToolBatch):
            outcomes = list(step.outcomes)
            chance.shuffle(outcomes)
            turned.append(ToolBatch(outcomes=tuple(outcomes)))
        else:
            turned.append(step)
    assert observe(turned) == observe(steps)


def test_the_state_stays_small_however_long_the_run() -> None:
    """Bounded memory: long names, arguments and results leave digests only."""
    steps = list[Step]()
    for number in range(300):
        long = f"{number} " * 2000
        steps += [call(long, long, f"Error: {long}", failed=True), UserTurn(text=long if number % 50 == 0 else "go on")]
        steps += [AgentMessage(text=long)] if number > 250 else []
    state, _ = observe(steps)
    full = replace(state, messages=observe(AgentMessage(text=str(number)) for number in range(99))[0].messages)
    assert len(STORED.dump_json(full)) < 6_000
