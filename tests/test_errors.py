"""Every error is in one tree, says what is wrong and what to do, and keeps its data wherever it goes."""

from __future__ import annotations

import copy
import inspect
import pickle
import re

import pytest

import endstop
from endstop import _errors
from endstop._errors import (
    ConfigError,
    ContextOverflow,
    EndstopError,
    Interrupt,
    LimitExceeded,
    ModelError,
    OutputInvalid,
    PriceUnknown,
    ResumeError,
    RunError,
    StateError,
    ToolFatal,
    UsageError,
)
from endstop._limits import PlanLimits
from endstop._messages import UserMessage
from endstop._results import AgentResult, Ending
from endstop._state import RunState

CLASSES = [
    member
    for _, member in inspect.getmembers(_errors, inspect.isclass)
    if issubclass(member, EndstopError) and member.__module__ == _errors.__name__
]

STATE = RunState(run_id="r", agent="a", limits=PlanLimits(), messages=[UserMessage(content="Go")], stop_reason="budget")
ENDING = Ending(rung="empty", reason="max_tool_calls is used up (2 of 2)", limit="max_tool_calls", used=2, allowed=2)
RESULT: AgentResult[None] = AgentResult(output=None, text="", stop_reason="budget", ending=ENDING, state=STATE)

EXAMPLES: list[EndstopError] = [
    ConfigError("max_tokens", -1, "use a whole number"),
    StateError("no state", field="value.round"),
    ResumeError("not higher", limit="max_tokens"),
    PriceUnknown("m"),
    Interrupt("May I?", schema={"type": "boolean"}, expires_in_seconds=3.0, asks_user=True),
    ModelError("busy", retryable=True, retry_after_seconds=2.5, status=503),
    ContextOverflow("too long", status=400),
    ToolFatal("stop"),
    OutputInvalid("no JSON"),
    LimitExceeded(ENDING, RESULT),
]


def attached() -> ModelError:
    """An error as it leaves a run, with all that was done."""
    error = ModelError("busy")
    error.state = STATE
    return error


@pytest.mark.parametrize("error", [*EXAMPLES, attached()], ids=lambda error: type(error).__name__)
def test_an_error_can_be_copied_and_pickled(error: EndstopError) -> None:
    """What a worker process raised arrives with its class, its message and its data."""
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


def test_every_class_has_a_code_of_its_own() -> None:
    """A program can tell every error from every other by its code."""
    codes = [vars(each).get("code") for each in CLASSES]
    assert None not in codes
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z_]+", str(code)) for code in codes)


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    """The picture names every class, each below its base."""
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (_errors.__doc__ or "").splitlines():
        match = re.match(r"^    ([│ ├└─]*)([A-Z]\w+)", line)
        if match:
            level = len(match[1]) // 4
            path[level:] = [match[2]]
            drawn[match[2]] = path[level - 1] if level else "Exception"
    assert drawn == {each.__name__: each.__base__.__name__ for each in CLASSES if each.__base__}


def test_every_class_is_public() -> None:
    """Whatever can be raised can be caught by its name."""
    assert {each.__name__ for each in CLASSES} <= set(endstop.__all__)


def test_misuse_is_told_from_failure() -> None:
    """What was refused before anything ran is no failed run, and only a failed run has a state."""
    assert not issubclass(UsageError, RunError)
    assert not issubclass(RunError, UsageError)
    assert [type(error).__name__ for error in EXAMPLES if hasattr(error, "state")] == [
        type(error).__name__ for error in EXAMPLES if isinstance(error, RunError)
    ]
    assert ModelError("busy").state is None


def test_a_wrong_setting_is_named_with_its_value_and_the_remedy() -> None:
    """One line says all that is needed to mend it."""
    error = ConfigError("max_tokens", -1, "use a whole number, 0 or more")
    assert str(error) == "max_tokens=-1 cannot be used: use a whole number, 0 or more"
    assert (error.field, error.value, error.remedy) == ("max_tokens", -1, "use a whole number, 0 or more")


def test_a_huge_value_does_not_drown_the_message() -> None:
    """The value is cut in the message and whole in the error."""
    error = ConfigError("prompt", "x" * 1_000, "say less")
    assert len(str(error)) < 150
    assert "xxx..." in str(error)
    assert error.value == "x" * 1_000


def test_an_unknown_price_says_three_ways_out() -> None:
    """The model is named, and what can be installed, passed or set."""
    error = PriceUnknown("my-model")
    assert error.model == "my-model"
    for part in ("'my-model'", "endstop[prices]", "prices=", "assume_price="):
        assert part in str(error)


def test_a_model_error_is_final_unless_it_says_otherwise() -> None:
    """Retrying is for errors that are known to pass."""
    error = ModelError("no")
    assert (error.retryable, error.retry_after_seconds, error.status) == (False, None, None)
    assert issubclass(ContextOverflow, ModelError)


def test_an_exceeded_limit_carries_the_whole_partial_result() -> None:
    """Nothing that was done is lost by raising."""
    error = LimitExceeded(ENDING, RESULT)
    assert error.result is RESULT
    assert error.ending is ENDING
    assert str(error) == ENDING.reason


def test_invalid_output_says_the_last_problem() -> None:
    """The last complaint is in the message and apart from it."""
    error = OutputInvalid("value: Input should be a valid integer")
    assert error.problem in str(error)
