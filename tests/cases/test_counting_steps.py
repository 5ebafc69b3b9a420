"""How many rounds does a recursion limit buy? People count wrong, because it counts something else."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, after_agent, after_model, before_agent
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, StateGraph

from endstop.langgraph.audit import audit
from tests.cases.fakes import CaseModel, Counted, asks, results, says
from tests.cases.outcomes import ANSWERED, ASK, OUT_OF_STEPS, Case, Outcome, measured

LENGTHS = range(1, 8)
PAIRS = [(length, limit) for length in LENGTHS for limit in range(1, 10)]
"""Lines by their length, and limits."""
WANTED = 30
"""Rounds that somebody wants."""


class Passed(TypedDict):
    """How many nodes of a line have run."""

    nodes: Annotated[int, operator.add]


@cache
def line(length: int) -> Any:
    """A graph of so many nodes in a row."""
    graph = StateGraph(Passed)
    names = [f"node {number}" for number in range(length)]
    for name in names:
        graph.add_node(name, lambda state: {"nodes": 1})
    for before, after in zip([START, *names], [*names, END], strict=True):
        graph.add_edge(before, after)
    return graph.compile()


def line_ends(length: int, limit: int) -> bool:
    """Whether the line comes to its end under the limit."""
    try:
        line(length).invoke({"nodes": 0}, {"recursion_limit": limit})
    except GraphRecursionError:
        return False
    return True


def line_is_said_to_end(length: int, limit: int) -> bool:
    """The same, read off the graph."""
    found = audit(line(length), recursion_limit=limit).findings
    return "worst_case_exceeds_limit" not in {finding.code for finding in found}


def hooks() -> list[AgentMiddleware[Any, Any]]:
    """Two hooks before the agent, two after the model, one after the agent: none of them does anything."""

    def nothing(state: Any, runtime: Any) -> None:
        return None

    return [
        before_agent(nothing, name="FirstBefore"),
        before_agent(nothing, name="SecondBefore"),
        after_model(nothing, name="FirstAfter"),
        after_model(nothing, name="SecondAfter"),
        after_agent(nothing, name="Last"),
    ]


def looker(tool_calls: int, *, hooked: bool) -> tuple[CaseModel, Counted, Any]:
    """An agent that calls a tool so many times, one after the other, and then answers."""

    def answer(messages: Sequence[BaseMessage]) -> AIMessage:
        seen = len(results(messages))
        return says("There are 40.") if seen == tool_calls else asks("look", query=f"page {seen}")

    model, look = CaseModel(answer=answer, most_calls=120), Counted("look", "one more")
    return model, look, create_agent(model, [look.tool], middleware=hooks() if hooked else [])


@cache
def run(tool_calls: int, limit: int, *, hooked: bool) -> Outcome:
    """What comes of an agent that needs so many tool calls, under the limit."""
    model, look, agent = looker(tool_calls, hooked=hooked)
    return measured(lambda: agent.invoke(ASK, {"recursion_limit": limit}), model, look)


def rounds(limit: int, *, hooked: bool) -> int:
    """The rounds that the audit says can finish; a run of so many has one tool call less."""
    found = audit(looker(1, hooked=hooked)[2], recursion_limit=limit).rounds
    assert found is not None
    return found.finish


def lines_today() -> Outcome:
    """The least limit for each length, by trying."""
    least = [next(limit for limit in range(1, 10) if line_ends(length, limit)) for length in LENGTHS]
    return Outcome(end=f"a line of {LENGTHS[-1]} nodes ends at {least[-1]}, raises at {least[-1] - 1}")


def lines_audited() -> Outcome:
    """The least limit for each length, by the audit."""
    least = [next(limit for limit in range(1, 10) if line_is_said_to_end(length, limit)) for length in LENGTHS]
    return Outcome(end="said before the run", said=f"{LENGTHS[-1]} nodes need {least[-1]}")


def hooked_today() -> Outcome:
    """A run that has one tool call more than can finish."""
    return run(5, 25, hooked=True)


def hooked_audited() -> Outcome:
    """What is known before."""
    most = rounds(25, hooked=True) - 1
    said = f"{most} tool calls can finish; a run with {most}: {run(most, 25, hooked=True).end}"
    return Outcome(end="said before the run", said=said)


def doubled_today() -> Outcome:
    """As many super-steps as rounds."""
    return run(WANTED - 1, WANTED, hooked=False)


def doubled_audited() -> Outcome:
    """What is known before."""
    bare = (
        f"{rounds(WANTED, hooked=False)} rounds under {WANTED}, {rounds(2 * WANTED, hooked=False)} under {2 * WANTED}"
    )
    return Outcome(end="said before the run", said=f"{bare}, and with five hooks {rounds(2 * WANTED, hooked=True)}")


CASES = (
    Case(symptom="the formula for the limit of a line of nodes", use="`audit`", today=lines_today, ours=lines_audited),
    Case(symptom="25 was never 25 tool calls: five hooks", use="`audit`", today=hooked_today, ours=hooked_audited),
    Case(
        symptom="30 rounds are wanted, and a limit of 30 is set",
        use="`audit`",
        today=doubled_today,
        ours=doubled_audited,
    ),
)


def test_today_a_line_of_k_nodes_needs_a_limit_of_k_plus_one() -> None:
    """A run that ends in the last super-step that it may take raises."""
    assert [line_ends(*pair) for pair in PAIRS] == [length <= limit - 1 for length, limit in PAIRS]


def test_the_audit_says_the_same_of_every_line_and_limit() -> None:
    """It counts the nodes, and knows the rule."""
    assert [line_is_said_to_end(*pair) for pair in PAIRS] == [line_ends(*pair) for pair in PAIRS]


def test_today_25_is_4_tool_calls_with_five_hooks() -> None:
    """Each hook is a super-step; without them 11 finish."""
    assert run(4, 25, hooked=True) == Outcome(end=ANSWERED, model_calls=5, tool_calls=4, said="There are 40.")
    assert run(5, 25, hooked=True) == Outcome(end=OUT_OF_STEPS, model_calls=6, tool_calls=5)
    assert run(11, 25, hooked=False).end == ANSWERED
    assert run(12, 25, hooked=False).end == OUT_OF_STEPS


def test_the_audit_counts_the_hooks() -> None:
    """5 rounds are 4 tool calls and the answer."""
    assert rounds(25, hooked=True) == 5
    assert rounds(25, hooked=False) == 12


def test_today_twice_the_rounds_is_enough_for_a_bare_agent_only() -> None:
    """30 rounds need 60: not 30, not 59, and not 60 with hooks."""
    assert run(WANTED - 1, 2 * WANTED, hooked=False).end == ANSWERED
    assert run(WANTED - 1, 2 * WANTED - 1, hooked=False).end == OUT_OF_STEPS
    assert doubled_today() == Outcome(end=OUT_OF_STEPS, model_calls=15, tool_calls=15)
    assert run(14, 2 * WANTED, hooked=True).end == OUT_OF_STEPS


def test_the_audit_says_how_many_rounds_finish() -> None:
    """Just 30 under 60, 29 under 59, and with hooks 14, which a run confirms."""
    assert (rounds(2 * WANTED, hooked=False), rounds(2 * WANTED - 1, hooked=False)) == (WANTED, WANTED - 1)
    assert rounds(2 * WANTED, hooked=True) == 14
    assert run(13, 2 * WANTED, hooked=True).end == ANSWERED
