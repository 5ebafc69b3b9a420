"""The work does not fit, and the user gets a stock phrase or an error instead of what there is."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from langchain.agents import create_agent
from langgraph.prebuilt import create_react_agent

from endstop import PlanLimits
from endstop.langgraph import bound
from tests.cases.fakes import CaseModel, Counted, asks, results, says
from tests.cases.outcomes import ANSWERED, ASK, OUT_OF_STEPS, TOOL_LIMIT, Case, Outcome, measured

INSIGHTS = 4
CALLS_EACH = 5


def analyst() -> tuple[CaseModel, Counted]:
    """A model that makes four insights, with five calls each."""

    def answer(messages: Any) -> Any:
        done = len(results(messages))
        if "max_model_rounds" in str(messages[-1].content):
            return says(f"{done // CALLS_EACH} of {INSIGHTS} insights.")
        if done == INSIGHTS * CALLS_EACH:
            return says("All four insights.")
        return asks("chart", query=f"insight {done // CALLS_EACH + 1}, step {done % CALLS_EACH + 1}")

    return CaseModel(answer=answer), Counted("chart", "drawn")


@cache
def today(limit: int) -> Outcome:
    """Four insights under a recursion limit."""
    model, chart = analyst()
    agent = create_agent(model, [chart.tool])
    return measured(lambda: agent.invoke(ASK, {"recursion_limit": limit}), model, chart)


@cache
def stock_phrase() -> Outcome:
    """An agent that stops itself in time, as `create_react_agent` does at an even limit."""
    model, chart = analyst()
    agent = create_react_agent(model, [chart.tool])
    return measured(lambda: agent.invoke(ASK, {"recursion_limit": 24}), model, chart)


@cache
def ours(*, warn_model: bool) -> Outcome:
    """12 rounds, as many as 25 super-steps: the model is told in time, or is asked for an answer at the end."""
    model, chart = analyst()
    limits = PlanLimits(max_model_rounds=12, warn_model=warn_model)
    agent = bound(create_agent(model, [chart.tool]), limits)
    return measured(lambda: agent.invoke(ASK), model, chart)


CASES = (
    Case(
        symptom="work that does not fit is lost; wanted is a word in time",
        use="`bound` with `warn_model`",
        today=partial(today, 25),
        ours=partial(ours, warn_model=True),
    ),
    Case(
        symptom="stopping at the limit gives a stock phrase; wanted is an answer",
        use="`bound`",
        today=stock_phrase,
        ours=partial(ours, warn_model=False),
    ),
)


def test_today_the_only_way_is_a_higher_limit() -> None:
    """At 25 two insights were made and nothing is said of them; 48 is enough for these four."""
    assert today(25) == Outcome(end=OUT_OF_STEPS, model_calls=13, tool_calls=12)
    assert today(48) == Outcome(end=ANSWERED, model_calls=21, tool_calls=20, said="All four insights.")


def test_today_stopping_in_time_says_sorry() -> None:
    """Nobody asks the model for an answer from what it has."""
    sorry = "Sorry, need more steps to process this request."
    assert stock_phrase() == Outcome(end=ANSWERED, model_calls=12, tool_calls=11, said=sorry)


def test_a_word_in_time_lets_the_model_wrap_up() -> None:
    """It is told when four fifths of the rounds are used, and ends by itself."""
    assert ours(warn_model=True) == Outcome(end=ANSWERED, model_calls=11, tool_calls=10, said="2 of 4 insights.")


def test_at_the_limit_the_model_is_asked_for_an_answer() -> None:
    """The last round is kept for it, so that 12 rounds are 12 calls."""
    said = "max_model_rounds is used up (12 of 12) (model_answer)"
    assert ours(warn_model=False) == Outcome(end=TOOL_LIMIT, model_calls=12, tool_calls=11, said=said)
