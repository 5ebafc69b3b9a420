"""The worst case of the research assistant: derived by the audit, and reached by a run."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphRecursionError
from langgraph.graph.state import CompiledStateGraph

from endstop.langgraph import GraphLimits, bound
from endstop.langgraph.audit import audit
from endstop.langgraph.step_budget import BANNERS, StepBudgetSettings
from examples.research_assistant import ResearchSettings, build_graph
from examples.research_assistant.nodes import finished
from tests.research.scripts import QUESTION, FakeSearch, script

OFF = StepBudgetSettings()

WORST = ("CONFLICT: one?", "CONFLICT: two?", "REWRITE: clearer.")
"""Reviews that use up both guards: two returns to research, and then every rewrite."""


def worst(
    guards: ResearchSettings | None = None, budget: StepBudgetSettings = OFF
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The assistant with a model that drives it as far as its guards let it go."""
    guards = guards or ResearchSettings()
    questions = [f"Question {number}?" for number in range(guards.max_sub_questions)]
    reviews = [*WORST[:1] * guards.max_re_research, WORST[-1]]
    return build_graph(guards, model=script(*reviews, sub_questions=questions), search=FakeSearch(), budget=budget)


def driven(graph: CompiledStateGraph[Any, Any, Any, Any], recursion_limit: int = 1000) -> tuple[int, int]:
    """The node executions and the super-steps of a run."""
    config: RunnableConfig = {"recursion_limit": recursion_limit}
    tasks = [part for part in graph.stream(QUESTION, config, stream_mode="debug") if part["type"] == "task"]
    return len(tasks), max(part["step"] for part in tasks)


def test_the_worst_case_is_twenty_node_executions_in_eighteen_super_steps() -> None:
    """With the default guards: not the 29 that was printed for it, nor the 25 that its hand formula adds up to."""
    guards = ResearchSettings()
    report = audit(worst(), recursion_limit=25, caps=guards.caps, fan_out=guards.fan_out).worst_case
    assert report is not None
    assert (report.node_executions.number, report.super_steps.number) == (20, 18)
    assert report.node_executions.exact
    assert report.super_steps.exact
    assert driven(worst()) == (20, 18)


@pytest.mark.parametrize(
    ("sub_questions", "rewrites", "re_researches"), [(1, 0, 0), (1, 3, 0), (4, 0, 2), (2, 1, 1), (7, 5, 4)]
)
def test_the_audit_and_a_run_agree_on_other_guards(sub_questions: int, rewrites: int, re_researches: int) -> None:
    """Both numbers, from the graph and its guards alone, and from a run driven to the end of them."""
    guards = ResearchSettings(max_sub_questions=sub_questions, max_rewrites=rewrites, max_re_research=re_researches)
    report = audit(worst(guards), caps=guards.caps, fan_out=guards.fan_out).worst_case
    assert report is not None
    assert driven(worst(guards)) == (report.node_executions.number, report.super_steps.number)


def test_the_odometer_counts_the_node_executions_of_the_worst_case() -> None:
    """`step_count` is the first of the two numbers."""
    wide = StepBudgetSettings(enable_step_budget=True, max_total_steps=1000)
    assert worst(budget=wide).invoke(QUESTION)["step_count"] == 20


def test_at_its_super_steps_a_recursion_limit_loses_everything() -> None:
    """A run must end in fewer super-steps than its limit: at 18 it raises though all is done, at 19 it ends."""
    with pytest.raises(GraphRecursionError):
        worst().invoke(QUESTION, {"recursion_limit": 18})
    assert worst().invoke(QUESTION, {"recursion_limit": 19})["report"].startswith("A draft.")


def test_the_step_budget_ends_honestly_where_the_recursion_limit_raises() -> None:
    """Under the same limit: the draft at hand goes out, with the banner."""
    limit: RunnableConfig = {"recursion_limit": 12}
    with pytest.raises(GraphRecursionError):
        worst().invoke(QUESTION, limit)
    budget = StepBudgetSettings(enable_step_budget=True, max_total_steps=8)
    state = worst(budget=budget).invoke(QUESTION, limit)
    assert state["truncated"]
    assert state["report"].startswith(f"{BANNERS['zh']}\n\nA draft.")


def test_bound_ends_it_honestly_from_outside() -> None:
    """Under the same limit, with nothing changed inside: the draft goes out, and the ending says what was used up."""
    limits = GraphLimits(max_model_rounds=None)
    held = bound(worst(), limits, finish=lambda state: {"report": finished(state)})
    state = held.invoke(QUESTION, {"recursion_limit": 12})
    assert state["report"].startswith("A draft.\n\nRead for this:")
    assert (state["endstop"].limit, state["endstop"].used, state["endstop"].allowed) == ("recursion_limit", 12, 12)


def test_bound_counts_both_numbers_of_the_worst_case() -> None:
    """As a limit of its own: at 18 super-steps the run completes, at 17 it is ended after 19 node executions."""
    fits = bound(worst(), GraphLimits(max_model_rounds=None, max_super_steps=18)).invoke(QUESTION)
    assert "endstop" not in fits
    assert fits["report"].startswith("A draft.")
    ending = bound(worst(), GraphLimits(max_model_rounds=None, max_super_steps=17)).invoke(QUESTION)["endstop"]
    assert (ending.limit, ending.used, ending.allowed) == ("max_super_steps", 17, 17)
    assert sum(ending.spent.nodes.values()) == 19
