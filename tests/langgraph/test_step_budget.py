"""The step budget is the contract's, to the letter: names, counts, signatures, reasons and banners."""

from __future__ import annotations

import hashlib
import operator
import os
from typing import Annotated, TypedDict, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from endstop import ConfigError
from endstop.langgraph.step_budget import (
    BANNERS,
    StepBudgetSettings,
    StepBudgetState,
    add_int,
    detect_loop,
    honest_truncation_delta,
    should_truncate,
    step_delta,
)

COUNTS = st.integers(min_value=0, max_value=10_000)

BUDGET = StepBudgetSettings(enable_step_budget=True, max_total_steps=3)
LOOPS = StepBudgetSettings(enable_loop_detect=True, loop_window=3)
BOTH = StepBudgetSettings(enable_step_budget=True, max_total_steps=3, enable_loop_detect=True, loop_window=3)

SAME = ["writer:3bc15c8a"] * 3


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the tester's counts."""
    for name in [name for name in os.environ if name.startswith("ENDSTOP_")]:
        monkeypatch.delenv(name)


# --- counting ---------------------------------------------------------------------------------------------------------


def test_the_state_has_the_three_channels_of_the_contract() -> None:
    """A count that adds up, a mark, and a history that grows."""
    assert get_type_hints(StepBudgetState, include_extras=True) == {
        "step_count": Annotated[int, add_int],
        "truncated": bool,
        "action_history": Annotated[list[str], operator.add],
    }


@pytest.mark.parametrize(
    ("left", "right", "total"), [(2, 3, 5), (None, 3, 3), (2, None, 2), (None, None, 0), (0, 0, 0)]
)
def test_what_is_missing_counts_as_zero(left: int | None, right: int | None, total: int) -> None:
    """`(left or 0) + (right or 0)`."""
    assert add_int(left, right) == total


@given(COUNTS, COUNTS, COUNTS)
def test_the_order_of_parallel_writes_does_not_matter(one: int, two: int, three: int) -> None:
    """It is addition: any order and grouping of the writes gives one total."""
    assert add_int(add_int(one, two), three) == add_int(one, add_int(three, two)) == one + two + three


class Counted(StepBudgetState, total=False):
    """A state with a fan-out in it."""

    widths: list[int]


class Work(TypedDict):
    """What one parallel node is sent."""

    item: int


def spread(state: Counted) -> list[Send]:
    """As many parallel nodes as the first width says."""
    return [Send("work", {"item": item}) for item in range(state["widths"][0])]


def rounds_of_parallel_nodes() -> StateGraph[Counted]:
    """A graph in which rounds of parallel nodes follow each other until no width is left."""
    builder = StateGraph(Counted)
    builder.add_node("work", lambda work: dict(step_delta("work", str(work["item"]))))
    builder.add_node("join", lambda state: {"widths": state["widths"][1:], **step_delta("join", "")})
    builder.add_conditional_edges(START, spread, ["work"])
    builder.add_edge("work", "join")
    builder.add_conditional_edges("join", lambda state: spread(state) if state["widths"] else END, ["work", END])
    return builder


@given(st.lists(st.integers(min_value=1, max_value=12), min_size=1, max_size=4))
def test_parallel_nodes_add_and_never_overwrite(widths: list[int]) -> None:
    """On a real graph every execution is counted once and signed once, however many run at once."""
    state = rounds_of_parallel_nodes().compile().invoke({"widths": widths})
    assert state["step_count"] == sum(widths) + len(widths)
    assert len(state["action_history"]) == state["step_count"]


# --- signatures -------------------------------------------------------------------------------------------------------


def test_a_step_is_one_count_and_one_signature() -> None:
    """The digits are the first eight of the md5 of what the node worked on."""
    assert step_delta("writer", "hello") == {"step_count": 1, "action_history": ["writer:5d41402a"]}


@given(st.text())
def test_only_the_first_80_characters_are_signed(param: str) -> None:
    """Characters, not bytes: in UTF-8 they may be up to four bytes each."""
    digits = hashlib.md5(param[:80].encode(), usedforsecurity=False).hexdigest()[:8]
    assert step_delta("node", param)["action_history"] == [f"node:{digits}"]


def test_texts_that_differ_in_character_81_look_alike() -> None:
    """The 80th character still tells them apart."""
    assert step_delta("n", "字" * 80 + "a") == step_delta("n", "字" * 80 + "b")
    assert step_delta("n", "字" * 79 + "a") != step_delta("n", "字" * 79 + "b")


def test_half_a_surrogate_pair_is_signed() -> None:
    """Models do write it, and it is no valid UTF-8."""
    assert step_delta("n", "\ud83d")["action_history"] != step_delta("n", "\ud83c")["action_history"]


# --- the plain rule for loops -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "window", "loops"),
    [
        (["a", "a", "a"], 3, True),
        (["b", "a", "a", "a"], 3, True),
        (["a", "a"], 3, False),
        (["a", "a", "b"], 3, False),
        (["a", "a", "a", "b"], 3, False),
        (["a", "b", "a", "b", "a", "b"], 3, False),
        (["a", "a"], 2, True),
        ([], 3, False),
    ],
)
def test_a_loop_is_the_same_signature_a_window_long(history: list[str], window: int, loops: bool) -> None:
    """The last ones count; nodes that take turns never meet the rule, and a shorter history never does."""
    assert detect_loop(history, window=window) is loops


def test_the_window_is_three_by_default() -> None:
    """Two alike are not yet a loop."""
    assert detect_loop(["a"] * 3)
    assert not detect_loop(["a"] * 2)


def test_a_window_of_nothing_is_refused() -> None:
    """Nothing is always all the same."""
    with pytest.raises(ConfigError, match=r"window=0 cannot be used: use a whole number, 1 or more"):
        detect_loop(["a"], window=0)


# --- whether to stop --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "answer"),
    [
        (2, (False, "")),
        (3, (True, "步数预算超限（3/3）")),
        (5, (True, "步数预算超限（5/3）")),
    ],
)
def test_the_budget_is_used_up_at_its_limit(steps: int, answer: tuple[bool, str]) -> None:
    """The reason has the count and the limit."""
    assert should_truncate({"step_count": steps}, BUDGET) == answer


def test_a_loop_is_a_reason_of_its_own() -> None:
    """With its switch on, and no budget."""
    assert should_truncate({"step_count": 99, "action_history": SAME}, LOOPS) == (True, "检测到动作循环")
    assert should_truncate({"step_count": 99, "action_history": SAME[1:]}, LOOPS) == (False, "")


def test_the_budget_is_asked_before_the_loop() -> None:
    """Where both would stop the run, the budget is the reason."""
    assert should_truncate({"step_count": 3, "action_history": SAME}, BOTH) == (True, "步数预算超限（3/3）")
    assert should_truncate({"step_count": 2, "action_history": SAME}, BOTH) == (True, "检测到动作循环")


def test_both_switches_are_off_by_default() -> None:
    """Off is never: no count and no history ends a run."""
    assert StepBudgetSettings() == StepBudgetSettings(enable_step_budget=False, enable_loop_detect=False)
    assert should_truncate({"step_count": 1_000_000, "action_history": SAME}) == (False, "")


@pytest.mark.parametrize("state", [{}, {"step_count": None, "action_history": None}])
def test_a_state_to_which_nothing_was_written_is_at_zero(state: dict[str, object]) -> None:
    """So it stops only where not one step is allowed."""
    assert should_truncate(state, BOTH) == (False, "")
    none = StepBudgetSettings(enable_step_budget=True, max_total_steps=0)
    assert should_truncate(state, none) == (True, "步数预算超限（0/0）")


def test_without_settings_the_environment_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read at every call."""
    monkeypatch.setenv("ENDSTOP_MAX_TOTAL_STEPS", "3")
    assert should_truncate({"step_count": 5}) == (False, "")
    monkeypatch.setenv("ENDSTOP_ENABLE_STEP_BUDGET", "1")
    assert should_truncate({"step_count": 5}) == (True, "步数预算超限（5/3）")


def test_reasons_and_endings_come_in_english() -> None:
    """Where `language` says so."""
    english = StepBudgetSettings(enable_step_budget=True, max_total_steps=3, enable_loop_detect=True, language="en")
    assert should_truncate({"step_count": 5}, english) == (True, "step budget exceeded (5/3)")
    assert should_truncate({"action_history": SAME}, english) == (True, "action loop detected")
    assert honest_truncation_delta("x", language="en")["review_feedback"] == "honest ending: x"


# --- the ending -------------------------------------------------------------------------------------------------------


def test_the_ending_passes_the_draft_and_says_why() -> None:
    """The contract's words."""
    assert honest_truncation_delta("步数预算超限（5/3）") == {
        "truncated": True,
        "review_decision": "pass",
        "review_feedback": "诚实收尾：步数预算超限（5/3）",
    }


def test_the_banner_is_the_contracts() -> None:
    """In both languages it says that this is a partial result."""
    assert BANNERS["zh"] == "⚠️ 本次研究因步数预算/循环检测被截断，以下为基于已有材料的部分结果。"
    assert BANNERS["en"].startswith("⚠️ This research was cut short")
    assert "partial result" in BANNERS["en"]


def test_a_graph_with_other_channels_takes_the_ending() -> None:
    """What its state does not have is ignored, so the delta may be merged into any node's update."""
    builder = StateGraph(StepBudgetState)
    builder.add_node("last", lambda _: {**honest_truncation_delta("x"), **step_delta("last", "")})
    builder.add_edge(START, "last")
    state = builder.compile().invoke({})
    assert state == {"step_count": 1, "truncated": True, "action_history": step_delta("last", "")["action_history"]}


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "remedy"),
    [
        ("enable_step_budget", 1, "use True or False"),
        ("enable_loop_detect", "yes", "use True or False"),
        ("max_total_steps", -1, "use a whole number, 0 or more"),
        ("max_total_steps", True, "use a whole number, 0 or more"),
        ("max_total_steps", 2.5, "use a whole number, 0 or more"),
        ("loop_window", 1, "use a whole number, 2 or more"),
        ("language", "de", "use 'zh' or 'en'"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(field: str, value: object, remedy: str) -> None:
    """With the value, and what would be accepted."""
    with pytest.raises(ConfigError) as caught:
        StepBudgetSettings(**{field: value})
    assert (caught.value.field, caught.value.value, caught.value.remedy) == (field, value, remedy)


def test_the_environment_sets_every_field() -> None:
    """Its name in capitals behind the prefix."""
    given = {
        "ENDSTOP_ENABLE_STEP_BUDGET": "true",
        "ENDSTOP_MAX_TOTAL_STEPS": "40",
        "ENDSTOP_ENABLE_LOOP_DETECT": "On",
        "ENDSTOP_LOOP_WINDOW": " 4 ",
        "ENDSTOP_LANGUAGE": "EN",
    }
    assert StepBudgetSettings.from_env(given) == StepBudgetSettings(
        enable_step_budget=True, max_total_steps=40, enable_loop_detect=True, loop_window=4, language="en"
    )


@pytest.mark.parametrize("empty", [{}, {"ENDSTOP_MAX_TOTAL_STEPS": "", "ENDSTOP_ENABLE_STEP_BUDGET": " "}])
def test_what_the_environment_leaves_out_is_the_default(empty: dict[str, str]) -> None:
    """An empty variable is one that is not set."""
    assert StepBudgetSettings.from_env(empty) == StepBudgetSettings()


@pytest.mark.parametrize("text", ["0", "false", "No", "OFF"])
def test_a_switch_can_be_set_off(text: str) -> None:
    """In the usual words."""
    assert not StepBudgetSettings.from_env({"ENDSTOP_ENABLE_STEP_BUDGET": text}).enable_step_budget


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("ENDSTOP_ENABLE_STEP_BUDGET", "maybe"),
        ("ENDSTOP_ENABLE_LOOP_DETECT", "2"),
        ("ENDSTOP_MAX_TOTAL_STEPS", "-1"),
        ("ENDSTOP_MAX_TOTAL_STEPS", "many"),
        ("ENDSTOP_MAX_TOTAL_STEPS", "٣"),
        ("ENDSTOP_LOOP_WINDOW", "1"),
        ("ENDSTOP_LANGUAGE", "de"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(variable: str, text: str) -> None:
    """By its own name, which is what the reader can change; it is never taken for off."""
    with pytest.raises(ConfigError) as caught:
        StepBudgetSettings.from_env({variable: text})
    assert caught.value.field == variable
    assert str(caught.value.value) == text
