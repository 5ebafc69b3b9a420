"""An agent without any limit set makes the same call for ever."""

from __future__ import annotations

from functools import cache

from langchain.agents import create_agent

from endstop import PlanLimits
from endstop.langgraph import bound
from endstop.langgraph.audit import audit
from tests.cases.fakes import CaseModel, Counted, always
from tests.cases.outcomes import ASK, LOOP, NOT_ENDED, OLD_DEFAULT, OUT_OF_STEPS, Case, Outcome, measured


def searcher() -> tuple[CaseModel, Counted]:
    """A model that searches for the same words, and never finds anything."""
    return CaseModel(answer=always("search", query="orders"), most_calls=300), Counted("search", "no hits")


@cache
def today() -> Outcome:
    """As the documentation shows it: no config at all."""
    model, search = searcher()
    agent = create_agent(model, [search.tool])
    return measured(lambda: agent.invoke(ASK), model, search)


@cache
def ours() -> Outcome:
    """The same agent, bound by the limits that it has where nobody sets one."""
    model, search = searcher()
    agent = bound(create_agent(model, [search.tool]), PlanLimits())
    return measured(lambda: agent.invoke(ASK), model, search)


CASES = (Case(symptom="no limit is set, and the same call is made for ever", use="`bound`", today=today, ours=ours),)


def test_today_it_goes_on_for_thousands_of_rounds() -> None:
    """300 calls later nothing has happened; versions whose default is 25 raise after 13."""
    if OLD_DEFAULT:
        assert today() == Outcome(end=OUT_OF_STEPS, model_calls=13, tool_calls=12)
    else:
        assert today() == Outcome(end=NOT_ENDED, model_calls=300, tool_calls=300)


def test_bound_ends_it_as_a_loop() -> None:
    """The third repeat is seen and told; it goes on, and the run ends with what the model knows."""
    said = "the run repeats itself; the same call (search) came 6 times running and returned nothing new (model_answer)"
    assert ours() == Outcome(end=LOOP, model_calls=7, tool_calls=6, said=said)


def test_the_audit_says_so_before_anybody_pays() -> None:
    """It names the limit that holds, and that it is no bound in practice."""
    model, search = searcher()
    found = audit(create_agent(model, [search.tool]))
    assert found.limit.super_steps == (25 if OLD_DEFAULT else 9_999)
    assert ("unbounded_in_practice" in {finding.code for finding in found.findings}) is not OLD_DEFAULT
