"""An agent writes the same note again and again after it has found the answer."""

from __future__ import annotations

from functools import cache

from langchain.agents import create_agent

from endstop import PlanLimits
from endstop.langgraph import bound
from tests.cases.fakes import CaseModel, Counted, always
from tests.cases.outcomes import ASK, BUDGET, OUT_OF_STEPS, Case, Outcome, measured


def keeper() -> tuple[CaseModel, Counted]:
    """A model that wants to keep what it has found, and does not notice that it did."""
    return CaseModel(answer=always("save_memory", query="40 orders")), Counted("save_memory", "saved")


@cache
def today() -> Outcome:
    """The only bound is the number of super-steps."""
    model, save = keeper()
    agent = create_agent(model, [save.tool])
    return measured(lambda: agent.invoke(ASK, {"recursion_limit": 25}), model, save)


@cache
def ours() -> Outcome:
    """The tool that writes has a limit of its own."""
    model, save = keeper()
    agent = bound(create_agent(model, [save.tool]), PlanLimits(tool_limits={"save_memory": 1}))
    return measured(lambda: agent.invoke(ASK, {"recursion_limit": 25}), model, save)


CASES = (
    Case(symptom="the same note is written again and again", use="`bound` with `tool_limits`", today=today, ours=ours),
)


def test_today_it_is_written_twelve_times_and_then_lost() -> None:
    """An error ends it, and the caller has no answer."""
    assert today() == Outcome(end=OUT_OF_STEPS, model_calls=13, tool_calls=12)


def test_a_limit_on_the_tool_lets_it_write_once() -> None:
    """The second call is answered with the reason; a round in which nothing could run ends the run."""
    said = "tool_limits['save_memory'] is used up (1 of 1) (model_answer)"
    assert ours() == Outcome(end=BUDGET, model_calls=3, tool_calls=1, said=said)
