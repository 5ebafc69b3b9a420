"""The errors of a turn are caught by what catches the errors of the graph."""

from __future__ import annotations

import copy
import pickle

import pytest
from langgraph.errors import GraphRecursionError

from endstop import EndstopError, PlanLimits, RunError, RunState
from endstop.cutover.errors import AgentError, RecursionExhaustedError

STATE = RunState(run_id="r1", agent="helper", limits=PlanLimits(), messages=[])


def test_a_handler_for_the_graphs_error_catches_the_kernels() -> None:
    """It is both LangGraph's and ours."""
    error = RecursionExhaustedError("r1", state=STATE)
    assert isinstance(error, GraphRecursionError)
    assert isinstance(error, RunError)
    assert (error.run_id, error.state) == ("r1", STATE)


@pytest.mark.parametrize("run_id", ["", "r1"])
def test_the_message_names_the_setting(run_id: str) -> None:
    """A person reads what to change, a program the first word."""
    message = str(RecursionExhaustedError(run_id))
    assert message.startswith("recursion_exhausted:")
    assert "config.agent.recursion_limit" in message
    assert run_id in message


def test_a_failure_is_not_a_budget_that_ran_out() -> None:
    """Neither handler sees the other's error, as with the graph's."""
    assert issubclass(AgentError, EndstopError)
    assert not issubclass(AgentError, GraphRecursionError)
    assert not issubclass(RecursionExhaustedError, AgentError)


def test_each_has_a_code() -> None:
    """For programs."""
    assert (AgentError.code, RecursionExhaustedError.code) == ("agent", "recursion_exhausted")


@pytest.mark.parametrize("error", [AgentError("no"), RecursionExhaustedError("r1", state=STATE)])
def test_copying_and_pickling_keep_message_and_data(error: RunError) -> None:
    """A worker hands its error to another process."""
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is type(error)
        assert (str(twin), twin.state, vars(twin)) == (str(error), error.state, vars(error))
