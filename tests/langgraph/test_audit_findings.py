"""Each finding is made where it is true, and not where it is not; docs/audit.md tells of each."""

from __future__ import annotations

import operator
import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, ModelCallLimitMiddleware, ToolCallLimitMiddleware
from langchain.agents.structured_output import ToolStrategy
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, Send
from pydantic import BaseModel

from endstop import PlanLimits
from endstop.langgraph import BoundMiddleware, GraphLimits, _findings, bound
from endstop.langgraph._audits import Finding
from endstop.langgraph.audit import audit
from tests.langgraph.wirings import WIRINGS, After, Before, Graph, Rounds, look, rounds_run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "audit.md"


class State(TypedDict):
    count: Annotated[int, operator.add]


def step(state: State) -> dict[str, Any]:
    return {"count": 1}


def agent(*middleware: Any, tools: Any = (look,), **options: Any) -> Graph:
    return create_agent(Rounds(), list(tools), middleware=list(middleware), **options)


def findings(graph: object, code: str, **options: Any) -> list[Finding]:
    return [finding for finding in audit(graph, **options).findings if finding.code == code]


def one(graph: object, code: str, **options: Any) -> Finding:
    """The one finding with this code."""
    (found,) = findings(graph, code, **options)
    assert found.explanation
    assert found.remedy
    return found


def test_the_limit_that_holds_is_told_once() -> None:
    """With where it comes from; a subgraph does not tell it again."""
    found = one(agent(), "effective_limit", recursion_limit=30)
    assert (found.severity, found.where) == ("info", "")
    assert "30 super-steps: the run is given it" in found.explanation


ADVICE = (
    "unbounded_in_practice",
    "odd_limit_leaves_dangling_call",
    "after_agent_skipped_on_limit",
    "fan_out_multiplies",
    "subagent_escapes_limit",
)
LIMITS = PlanLimits(max_model_rounds=None, max_model_calls=7, max_seconds=60)


@tool
def delegate(place: str) -> str:
    """Ask another agent."""
    return str(INNER.invoke({"messages": [("user", place)]}))


INNER = agent().with_config({"recursion_limit": 9_999})


@pytest.mark.parametrize("recursion_limit", [9_999, 25])
def test_a_bound_graph_is_told_to_be_bounded_and_not_to_become_it(recursion_limit: int) -> None:
    """Its limits are named in place of the advice, which stays for the graph inside."""
    plain = agent(After(), tools=[look, delegate])
    advised = {finding.code for finding in audit(plain, recursion_limit=9_999).findings}
    assert advised >= {"unbounded_in_practice", "fan_out_multiplies", "subagent_escapes_limit"}
    report = audit(bound(plain, LIMITS), recursion_limit=recursion_limit)
    assert not {finding.code for finding in report.findings} & set(ADVICE)
    assert not [finding for finding in report.findings if "bound(graph" in finding.remedy]
    found = one(bound(plain, LIMITS), "bounded")
    assert "bound ends every run inside max_model_calls=7, max_seconds=60" in found.explanation
    assert "bounded by bound alone: not every cycle has a cap" in str(report)
    assert '"bounded": {"by": "bound", "limits": "max_model_calls=7, max_seconds=60"}' in report.to_json()


def test_an_agent_with_the_middleware_is_told_to_be_bounded() -> None:
    """Its model is called again after its tools alone: the middleware asks for no other way back."""
    bounded = agent(BoundMiddleware(LIMITS, thread_limits=PlanLimits(max_model_rounds=50)))
    report = audit(bounded, recursion_limit=9_999)
    assert [finding.code for finding in report.findings] == ["bounded", "effective_limit"]
    assert "BoundMiddleware ends every run inside max_model_calls=7, max_seconds=60, max_model_rounds=50 a thread" in (
        report.findings[0].explanation
    )
    assert [str(cycle) for cycle in report.cycles] == ["model -> tools -> model"]


def test_a_recursion_limit_may_come_before_the_limits_of_the_middleware() -> None:
    """It breaks the run off, whatever the middleware would have done later."""
    bounded = agent(BoundMiddleware(LIMITS))
    assert findings(bounded, "odd_limit_leaves_dangling_call", recursion_limit=5)
    assert not findings(bound(agent(), LIMITS), "odd_limit_leaves_dangling_call", recursion_limit=5)


def test_a_structured_answer_may_be_asked_for_again_in_a_bounded_agent() -> None:
    """That way back is the agent's own."""

    class Found(BaseModel):
        place: str

    bounded = agent(BoundMiddleware(LIMITS), response_format=ToolStrategy(Found))
    assert "model -> model" in [str(cycle) for cycle in audit(bounded).cycles]


@pytest.mark.parametrize("limits", [PlanLimits(max_model_rounds=None), GraphLimits(tool_limits={"look": 1})])
def test_limits_that_bound_no_run_are_no_bounds(limits: PlanLimits) -> None:
    """A depth, or how often one tool runs: the model may go on for ever."""
    assert findings(bound(agent(), limits), "unbounded_in_practice", recursion_limit=9_999)
    assert not findings(bound(agent(), limits), "bounded")


def test_what_bounds_a_graph_bounds_the_graphs_that_are_its_nodes() -> None:
    """And one that is bound itself, in a graph that is not, tells for itself."""

    def around(inner: Graph) -> Graph:
        builder = StateGraph(MessagesState)
        builder.add_node("inner", inner)
        builder.add_edge(START, "inner")
        return builder.compile()

    assert findings(around(agent()), "unbounded_in_practice", recursion_limit=9_999)
    assert not findings(bound(around(agent()), LIMITS), "unbounded_in_practice", recursion_limit=9_999)
    assert not findings(around(bound(agent(), LIMITS)), "unbounded_in_practice", recursion_limit=9_999)
    assert one(around(bound(agent(), LIMITS)), "bounded").where == "inner"


def test_a_loop_under_a_limit_of_thousands() -> None:
    """It is found where no cap bounds the loop and the limit is one that nobody wants to see reached."""
    found = one(agent(), "unbounded_in_practice", recursion_limit=_findings.HIGH_LIMIT)
    assert (found.severity, found.where) == ("warning", "model")
    assert "model -> tools -> model" in found.explanation
    assert not findings(agent(), "unbounded_in_practice", recursion_limit=_findings.HIGH_LIMIT - 1)
    assert not findings(agent(ModelCallLimitMiddleware(run_limit=5)), "unbounded_in_practice", recursion_limit=5_000)
    assert not findings(agent(tools=()), "unbounded_in_practice", recursion_limit=5_000)


def test_a_loop_that_is_not_among_those_listed() -> None:
    """Of a graph with too many cycles to list, it is known all the same whether every one has a cap."""
    builder = StateGraph(State)
    names = [f"n{number}" for number in range(12)]
    for name in names:
        builder.add_node(name, step)
        builder.add_conditional_edges(name, lambda state: END, [*(other for other in names if other != name), END])
    builder.add_edge(START, "n0")
    caps = dict.fromkeys(names[:-2], 3)
    report = audit(builder.compile(), recursion_limit=5_000, caps=caps)
    assert report.cycles_cut
    assert all(cycle.caps for cycle in report.cycles)
    found = one(builder.compile(), "unbounded_in_practice", recursion_limit=5_000, caps=caps)
    assert found.where == ""
    assert "Nothing ends a loop before" in found.explanation


def test_a_limit_that_not_one_round_fits_into() -> None:
    """Every run raises under it; the remedy names the least limit that will do."""
    found = one(agent(Before(), After()), "no_round_can_finish", recursion_limit=3)
    assert (found.severity, found.where) == ("error", "model")
    assert "at least 4" in found.remedy
    assert not findings(agent(Before(), After()), "no_round_can_finish", recursion_limit=4)


def writing() -> Graph:
    """A writer and a reviewer who sends the text back."""

    def review(state: State) -> Literal["writer", "__end__"]:
        return "writer" if state["count"] < 8 else "__end__"

    builder = StateGraph(State)
    builder.add_node("writer", step)
    builder.add_node("reviewer", step)
    builder.add_edge(START, "writer")
    builder.add_edge("writer", "reviewer")
    builder.add_conditional_edges("reviewer", review)
    return builder.compile()


def test_caps_that_add_up_to_more_than_the_limit() -> None:
    """At the worst case itself a run raises, and with one super-step more it does not: tried on the real graph."""
    caps = {"reviewer->writer": 3}
    found = one(writing(), "worst_case_exceeds_limit", recursion_limit=8, caps=caps)
    assert (found.severity, found.where) == ("error", "")
    assert "takes 8 super-steps (2 + 2 * caps[reviewer->writer])" in found.explanation
    assert "at least 9" in found.remedy
    assert not findings(writing(), "worst_case_exceeds_limit", recursion_limit=9, caps=caps)
    assert writing().invoke({"count": 0}, {"recursion_limit": 9}) == {"count": 8}
    with pytest.raises(GraphRecursionError):
        writing().invoke({"count": 0}, {"recursion_limit": 8})


def test_a_branch_that_does_not_say_where_it_leads() -> None:
    """LangGraph's own drawing shows such a branch as the end; here it is a loop that is not declared."""
    builder = StateGraph(MessagesState)
    builder.add_node("llm", lambda state: {})
    builder.add_node("act", lambda state: {})
    builder.add_edge(START, "llm")
    builder.add_conditional_edges("llm", lambda state: "act" if state else END)
    builder.add_edge("act", "llm")
    found = one(builder.compile(), "unknown_targets")
    assert (found.severity, found.where) == ("warning", "llm")
    assert "path_map" in found.remedy
    cycle = next(cycle for cycle in audit(builder.compile()).cycles if cycle.nodes == ("llm", "act"))
    assert not cycle.declared


def test_a_command_that_does_not_say_where_it_leads() -> None:
    """One of a node and one of a tool; where the targets are declared nothing is found."""

    def wanders(state: State) -> Any:
        return Command(goto="a")

    def declares(state: State) -> Command[Literal["a", "__end__"]]:
        return Command(goto="a")

    def updates(state: State) -> Any:
        return Command(update={"count": 1})

    @tool
    def hand_over(to: str) -> Any:
        """Hand over."""
        return Command(goto=to)

    def graph(node: Any) -> Graph:
        builder = StateGraph(State)
        builder.add_node("a", node)
        builder.add_edge(START, "a")
        return builder.compile()

    assert one(graph(wanders), "unknown_targets").where == "a"
    assert not findings(graph(declares), "unknown_targets")
    assert not findings(graph(updates), "unknown_targets")
    found = one(agent(tools=[look, hand_over]), "unknown_targets")
    assert found.where == "tools"
    assert "the tool 'hand_over'" in found.explanation


def test_a_command_to_the_graph_around_it() -> None:
    """A tool of a subgraph that hands over to a node of the outer graph: it is the outer graph that does not say so."""

    @tool
    def hand_over(to: str) -> Any:
        """Hand over."""
        return Command(goto=to, graph=Command.PARENT)

    def outer(**options: Any) -> Graph:
        builder = StateGraph(MessagesState)
        builder.add_node("desk", agent(tools=[hand_over]), **options)
        builder.add_node("clerk", lambda state: {})
        builder.add_edge(START, "desk")
        return builder.compile()

    assert one(outer(), "unknown_targets").where == "desk"
    assert not findings(outer(destinations=("clerk", END)), "unknown_targets")


def test_an_agent_in_a_tool_escapes_the_limit() -> None:
    """It is bound to a limit of its own, unless it is handed the caller's config: tried on the real graph."""
    model = Rounds(rounds=40)
    inner = create_agent(model, [look]).with_config({"recursion_limit": 500})
    again = Rounds(rounds=2)

    @tool("look")
    def ask(place: str) -> str:
        """Ask the agent."""
        return str(inner.invoke({"messages": [("user", place)]})["messages"][-1].content)

    @tool("look")
    def ask_within(place: str, config: RunnableConfig) -> str:
        """Ask the agent, under the same limit."""
        return str(inner.invoke({"messages": [("user", place)]}, config)["messages"][-1].content)

    found = one(create_agent(again, [ask]), "subagent_escapes_limit", recursion_limit=6)
    assert (found.severity, found.where) == ("warning", "tools")
    assert "bound to 500 super-steps" in found.explanation
    assert rounds_run(create_agent(again, [ask]), again, 2, 6) == (True, 2)
    assert model.called == 40

    assert not findings(create_agent(again, [ask_within]), "subagent_escapes_limit", recursion_limit=6)
    with pytest.raises(GraphRecursionError):
        create_agent(again, [ask_within]).invoke({"messages": [("user", "Go")]}, {"recursion_limit": 6})


def test_an_agent_in_a_tool_multiplies() -> None:
    """Its rounds are counted apart, and the recursion limit of the outer one takes all of them for one super-step."""
    inner = create_agent(Rounds(), [look]).with_config({"recursion_limit": 9})

    @tool
    def ask(place: str) -> str:
        """Ask the agent."""
        return str(inner.invoke({"messages": [("user", place)]}))

    def asks(state: MessagesState) -> Any:
        return inner.invoke(state)

    builder = StateGraph(MessagesState)
    builder.add_node("asks", asks)
    builder.add_edge(START, "asks")
    assert not findings(builder.compile(), "fan_out_multiplies")
    found = one(agent(tools=[ask]), "fan_out_multiplies", recursion_limit=10)
    assert (found.severity, found.where) == ("warning", "tools")
    assert "5 rounds here and 5 there come to 25 model calls" in found.explanation


def test_tasks_without_a_stated_number_multiply() -> None:
    """A router that starts tasks is asked how many at most; the tools of an agent are not asked about."""

    def spread(state: State) -> list[Send]:
        return [Send("work", state)] * state["count"]

    builder = StateGraph(State)
    builder.add_node("split", step)
    builder.add_node("work", step)
    builder.add_edge(START, "split")
    builder.add_conditional_edges("split", spread, ["work"])
    graph = builder.compile()
    found = one(graph, "fan_out_multiplies")
    assert (found.severity, found.where) == ("warning", "work")
    assert "--fan-out work=N" in found.remedy
    assert not findings(graph, "fan_out_multiplies", fan_out={"work": 9})
    assert not findings(agent(), "fan_out_multiplies")


def test_what_hooks_cost() -> None:
    """Each hook of a middleware is a node; wrappers are none."""
    found = one(agent(Before(), ModelCallLimitMiddleware(run_limit=4)), "middleware_steps")
    assert (found.severity, found.where) == ("info", "model")
    assert "2 a round (ModelCallLimitMiddleware.before_model" in found.explanation
    assert "1 a run (Before.before_agent)" in found.explanation
    assert not findings(agent(), "middleware_steps")


class Tidies(After):
    done = False

    def after_agent(self, state: Any, runtime: Any) -> None:
        """Tidy up."""
        type(self).done = True


def test_work_after_the_agent_is_skipped() -> None:
    """Where the limit can be reached; tried on the real graph."""
    found = one(agent(Tidies()), "after_agent_skipped_on_limit", recursion_limit=6)
    assert (found.severity, found.where) == ("warning", "Tidies.after_agent")
    with pytest.raises(GraphRecursionError):
        agent(Tidies()).invoke({"messages": [("user", "Go")]}, {"recursion_limit": 6})
    assert not Tidies.done
    capped = agent(Tidies(), ModelCallLimitMiddleware(run_limit=2))
    assert not findings(capped, "after_agent_skipped_on_limit", recursion_limit=20)
    capped.invoke({"messages": [("user", "Go")]}, {"recursion_limit": 20})
    assert Tidies.done


@pytest.mark.parametrize("limit", range(3, 13))
@pytest.mark.parametrize("middleware", [[], [Before()], [ModelCallLimitMiddleware(run_limit=99)]], ids=len)
def test_a_limit_that_leaves_a_call_without_an_answer(limit: int, middleware: list[Any]) -> None:
    """It is found at the very limits at which the saved thread of the real run ends with one."""
    graph = agent(*middleware, checkpointer=InMemorySaver())
    thread: RunnableConfig = {"configurable": {"thread_id": "1"}, "recursion_limit": limit}
    with pytest.raises(GraphRecursionError):
        graph.invoke({"messages": [("user", "Go")]}, thread)
    messages = graph.get_state(thread).values["messages"]
    found = findings(graph, "odd_limit_leaves_dangling_call", recursion_limit=limit)
    assert bool(found) == bool(getattr(messages[-1], "tool_calls", None))
    for finding in found:
        better = [int(number) for number in re.findall(r"\b\d+\b", finding.remedy)]
        assert len(better) == 2
        assert not any(findings(graph, finding.code, recursion_limit=number) for number in better)


def test_an_agent_that_apologises_leaves_no_call() -> None:
    """Out of steps, `create_react_agent` drops the calls that its model asked for."""
    react = next(wiring for wiring in WIRINGS if wiring.name == "react v2").build(Rounds())
    assert not any(findings(react, "odd_limit_leaves_dangling_call", recursion_limit=limit) for limit in (24, 25))


def test_a_limit_in_the_wrong_place() -> None:
    """Bound under `configurable` it does nothing: tried on the real graph."""
    graph = writing().with_config({"configurable": {"recursion_limit": 3}})
    found = one(graph, "configurable_limit_ignored")
    assert (found.severity, found.where) == ("error", "")
    assert graph.invoke({"count": 0}) == {"count": 8}
    assert not findings(writing().with_config({"recursion_limit": 3}), "configurable_limit_ignored")


def test_an_entrypoint_has_no_bound() -> None:
    """However many tasks it runs, it is one super-step: tried on the real one."""

    @task
    def once(number: int) -> int:
        return number

    @entrypoint()
    def work(most: int) -> int:
        return sum(once(1).result() for _ in range(most))

    found = one(work, "functional_api_unbounded")
    assert (found.severity, found.where) == ("warning", "work")
    assert work.invoke(50, {"recursion_limit": 1}) == 50
    assert (audit(work).rounds, audit(work).worst_case) == (None, None)
    assert "unbounded: the tasks of an entrypoint are not counted" in str(audit(work))


def test_a_limit_middleware_begins_again() -> None:
    """Where a person may be asked, each resume counts from zero."""
    asks = HumanInTheLoopMiddleware(interrupt_on={"look": True})
    limits = ModelCallLimitMiddleware(run_limit=3), ToolCallLimitMiddleware(run_limit=4)
    found = findings(agent(*limits, asks), "limit_middleware_resets_on_resume")
    assert [finding.severity for finding in found] == ["warning", "warning"]
    assert "ModelCallLimitMiddleware(run_limit=3)" in found[0].explanation
    assert "HumanInTheLoopMiddleware.after_model may interrupt" in found[0].explanation
    assert not findings(agent(*limits), "limit_middleware_resets_on_resume")
    assert not findings(agent(ModelCallLimitMiddleware(thread_limit=3), asks), "limit_middleware_resets_on_resume")
    paused = agent(limits[0], interrupt_before=["tools"])
    assert "tools may interrupt" in one(paused, "limit_middleware_resets_on_resume").explanation


def test_findings_about_a_subgraph_name_its_path() -> None:
    """They stand with those of the whole, the gravest first."""
    builder = StateGraph(MessagesState)
    builder.add_node("helper", agent(Before()))
    builder.add_edge(START, "helper")
    found = audit(builder.compile(), recursion_limit=2).findings
    assert [(finding.severity, finding.code, finding.where) for finding in found] == [
        ("error", "no_round_can_finish", "helper/model"),
        ("warning", "odd_limit_leaves_dangling_call", "helper/model"),
        ("info", "effective_limit", ""),
        ("info", "middleware_steps", "helper/model"),
    ]


def test_every_finding_is_documented() -> None:
    """docs/audit.md has a heading for each code, and none for one that is not."""
    source = Path(_findings.__file__).read_text(encoding="utf-8")
    codes = set(re.findall(r'code="(\w+)"', source))
    assert codes
    assert codes == set(re.findall(r"(?m)^### `(\w+)`$", PAGE.read_text(encoding="utf-8")))
