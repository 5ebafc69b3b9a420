"""A supervisor does not notice that its expert has answered, and asks the same again."""

from __future__ import annotations

from functools import cache
from typing import Any

from langchain.agents import create_agent

from endstop import PlanLimits
from endstop.langgraph import bound
from tests.cases.fakes import CaseModel, Counted, always, says
from tests.cases.outcomes import ASK, LOOP, OUT_OF_STEPS, Case, Outcome, measured


def team() -> tuple[CaseModel, CaseModel, Counted, Any]:
    """A supervisor with an expert that is an agent of its own, called as a tool."""
    expert_model = CaseModel(answer=lambda messages: says("There are 40 orders."), answers_without_tools=False)
    expert = create_agent(expert_model)
    ask = Counted("ask_expert", lambda query: expert.invoke({"messages": [("user", query)]})["messages"][-1].text)
    supervisor_model = CaseModel(answer=always("ask_expert", query="How many orders?"))
    return supervisor_model, expert_model, ask, create_agent(supervisor_model, [ask.tool])


@cache
def today() -> Outcome:
    """The only bound is the number of super-steps."""
    model, expert_model, ask, supervisor = team()
    outcome = measured(lambda: supervisor.invoke(ASK, {"recursion_limit": 25}), model, ask)
    assert expert_model.calls == outcome.tool_calls
    return outcome


@cache
def ours() -> Outcome:
    """The supervisor alone is bound: what it asks of its expert is inside."""
    model, _, ask, supervisor = team()
    supervisor = bound(supervisor, PlanLimits(max_model_rounds=None))
    return measured(lambda: supervisor.invoke(ASK, {"recursion_limit": 25}), model, ask)


CASES = (Case(symptom="a supervisor asks its expert the same again", use="`bound`", today=today, ours=ours),)


def test_today_the_expert_answers_twelve_times_and_the_answer_is_lost() -> None:
    """An error ends it, and the caller has no answer."""
    assert today() == Outcome(end=OUT_OF_STEPS, model_calls=13, tool_calls=12)


def test_bound_ends_it_as_a_loop_with_the_answer() -> None:
    """The repeat is the same request with the same answer."""
    said = "the run repeats itself; the same call (ask_expert) came 6 times running and returned nothing new"
    assert ours() == Outcome(end=LOOP, model_calls=7, tool_calls=6, said=f"{said} (model_answer)")
