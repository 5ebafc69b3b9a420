"""A person rejects a call, the agent asks for it again, and neither limit ever fires."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, ModelCallLimitMiddleware
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from endstop import PlanLimits
from endstop.langgraph import BoundMiddleware, bound
from tests.cases.fakes import CaseModel, Counted, always
from tests.cases.outcomes import ASK, BUDGET, ON_THREAD, PAUSED, Case, Outcome, measured

REJECTIONS = 20
REJECT = Command(resume={"decisions": [{"type": "reject", "message": "Do not send that."}]})
LIMITS = PlanLimits(max_model_calls=3)
CONFIG: Any = {"recursion_limit": 30, **ON_THREAD}


def reject_all(invoke: Callable[[object], Any]) -> Any:
    """The last state of a run in which a person rejects whatever is asked, `REJECTIONS` times at most."""
    state = invoke(ASK)
    for _ in range(REJECTIONS):
        if "__interrupt__" not in state:
            break
        state = invoke(REJECT)
    return state


def sender() -> tuple[CaseModel, Counted]:
    """A model that wants to send one mail, whatever anybody says."""
    return CaseModel(answer=always("send_mail", query="Dear customer")), Counted("send_mail", "sent")


@cache
def today() -> Outcome:
    """Three model calls allowed, 30 super-steps allowed."""
    model, send = sender()
    parts = [ModelCallLimitMiddleware(run_limit=3), HumanInTheLoopMiddleware({"send_mail": True})]
    agent = create_agent(model, [send.tool], middleware=parts, checkpointer=InMemorySaver())
    return measured(lambda: reject_all(lambda given: agent.invoke(given, CONFIG)), model, send)


@cache
def in_the_middleware() -> Outcome:
    """The same limit, counted in the checkpoints."""
    model, send = sender()
    parts = [BoundMiddleware(LIMITS), HumanInTheLoopMiddleware({"send_mail": True})]
    agent = create_agent(model, [send.tool], middleware=parts, checkpointer=InMemorySaver())
    return measured(lambda: reject_all(lambda given: agent.invoke(given, CONFIG)), model, send)


@cache
def ours() -> Outcome:
    """The same limit around the graph, counted beside its thread."""
    model, send = sender()
    parts = [HumanInTheLoopMiddleware({"send_mail": True})]
    agent = bound(create_agent(model, [send.tool], middleware=parts, checkpointer=InMemorySaver()), LIMITS)
    return measured(lambda: reject_all(lambda given: agent.invoke(given, CONFIG)), model, send)


CASES = (Case(symptom="a rejected call is asked for again", use="`bound`, `BoundMiddleware`", today=today, ours=ours),)


def test_today_each_answer_of_the_person_starts_the_count_again() -> None:
    """One call and 20 more after 20 rejections, under a limit of 3."""
    assert today() == Outcome(end=PAUSED, model_calls=1 + REJECTIONS, tool_calls=0)


@pytest.mark.parametrize("run", [ours, in_the_middleware])
def test_the_limit_holds_over_all_answers_of_the_person(run: Callable[[], Outcome]) -> None:
    """Two rejections, and the third call is the answer without tools."""
    said = "max_model_calls is used up (3 of 3) (model_answer)"
    assert run() == Outcome(end=BUDGET, model_calls=3, tool_calls=0, said=said)
