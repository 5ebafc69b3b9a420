"""Six model calls are allowed, and nobody limits the tokens: the context doubles with each."""

from __future__ import annotations

from functools import cache
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware

from endstop import PlanLimits
from endstop.langgraph import bound
from tests.cases.fakes import BYTES_PER_TOKEN, CaseModel, Counted, asks
from tests.cases.outcomes import ANSWERED, BUDGET, FAR, Case, Outcome, measured

MAX_TOKENS = 40_000
FIRST_TOKENS = 2_000
ANSWER_TOKENS = 50
QUESTION: Any = {"messages": [("user", "x" * FIRST_TOKENS * BYTES_PER_TOKEN)]}


def reader() -> tuple[CaseModel, Counted]:
    """A model that reads page after page, each as long as all that was said before it."""

    def page(number: str) -> str:
        tokens = FIRST_TOKENS * 2 ** (len(read.made) - 1) - ANSWER_TOKENS
        return "x" * tokens * BYTES_PER_TOKEN

    words = "y" * (ANSWER_TOKENS * BYTES_PER_TOKEN - len('{"query": "1"}'))
    read = Counted("read", page)
    return CaseModel(answer=lambda messages: asks("read", words=words, query=str(len(read.made)))), read


def tokens(model: CaseModel) -> int:
    """What all calls together took, in and out."""
    return sum(model.read) + sum(model.written)


@cache
def today() -> Outcome:
    """The limit on calls holds, and says nothing about what they cost."""
    model, read = reader()
    agent = create_agent(model, [read.tool], middleware=[ModelCallLimitMiddleware(run_limit=6)])
    outcome = measured(lambda: agent.invoke(QUESTION, FAR), model, read)
    return Outcome(end=outcome.end, model_calls=outcome.model_calls, said=f"{tokens(model)} tokens")


@cache
def ours() -> Outcome:
    """The tokens are limited, the final answer's included."""
    model, read = reader()
    agent = bound(create_agent(model, [read.tool]), PlanLimits(max_tokens=MAX_TOKENS))
    outcome = measured(lambda: agent.invoke(QUESTION, FAR), model, read)
    return Outcome(end=outcome.end, model_calls=outcome.model_calls, said=f"{tokens(model)} tokens; {outcome.said}")


CASES = (
    Case(symptom="six model calls whose context doubles", use="`bound` with `max_tokens`", today=today, ours=ours),
)


def test_today_six_calls_are_126_300_tokens() -> None:
    """63 times the first, and twice as many again with the next."""
    assert today() == Outcome(end=ANSWERED, model_calls=6, said="126300 tokens")


def test_a_limit_on_tokens_holds() -> None:
    """What a call will take is held before it is made, so that the call that does not fit is not made."""
    outcome = ours()
    assert outcome.end == BUDGET
    assert int(outcome.said.split()[0]) <= MAX_TOKENS
    assert "max_tokens leaves no room" in outcome.said
    assert outcome.said.endswith("(model_answer)")
