"""A text-to-SQL agent repeats a failing query until the limit."""

from __future__ import annotations

from functools import cache

from langchain.agents import create_agent

from endstop import PlanLimits
from endstop.langgraph import bound
from tests.cases.fakes import CaseModel, Counted, always
from tests.cases.outcomes import ASK, FAR, LOOP, NOT_ENDED, Case, Outcome, measured


def querying() -> tuple[CaseModel, Counted]:
    """A model that sends the same query whatever the error says."""
    run_sql = Counted("run_sql", 'Error: syntax error at or near "order"')
    return CaseModel(answer=always("run_sql", query="SELECT count(*) FROM order")), run_sql


@cache
def today() -> Outcome:
    """The error goes back to the model, and the model asks again."""
    model, run_sql = querying()
    agent = create_agent(model, [run_sql.tool])
    return measured(lambda: agent.invoke(ASK, FAR), model, run_sql)


@cache
def ours() -> Outcome:
    """No limit is needed: the repeat is seen."""
    model, run_sql = querying()
    agent = bound(create_agent(model, [run_sql.tool]), PlanLimits(max_model_rounds=None))
    return measured(lambda: agent.invoke(ASK, FAR), model, run_sql)


CASES = (Case(symptom="a text-to-SQL agent repeats a failing query", use="`bound`", today=today, ours=ours),)


def test_today_the_query_is_repeated_without_end() -> None:
    """Nothing looks at what comes back."""
    assert today() == Outcome(end=NOT_ENDED, model_calls=60, tool_calls=60)


def test_bound_ends_it_after_six_queries() -> None:
    """Three make a loop, the model is told, three more end it."""
    said = "the run repeats itself; the same call (run_sql) came 6 times running and returned nothing new"
    assert ours() == Outcome(end=LOOP, model_calls=7, tool_calls=6, said=f"{said} (model_answer)")
