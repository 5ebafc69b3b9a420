"""The meter sees what runs in a bound graph, whatever callbacks the code in it passes on, and charges it once."""

from __future__ import annotations

import logging
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models.fake import FakeListLLM
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph

from endstop import LoopPolicy, Price, PriceUnknown
from endstop._budget import Budget
from endstop._limits import LimitHit
from endstop._loops import LoopDetector
from endstop.langgraph import GraphEnding, GraphLimits, bound
from endstop.langgraph._meter import Meter, Refused, Stop, active_meter, metered, refusal_in
from endstop.langgraph._pay import GraphPurse
from endstop.langgraph._watch import LoopWatch, NodeWatch

from .fakes import ASKED, FakeChat, Looker, PlainChat, asks, forever, in_order, look, says


def only(**limits: Any) -> GraphLimits:
    """These limits alone."""
    return replace(GraphLimits(max_model_rounds=None), **limits)


def ending_of(graph: Any, limits: GraphLimits, **options: Any) -> GraphEnding:
    """The ending of a run that is cut."""
    made: GraphEnding = bound(graph, limits, **options).invoke(ASKED, {"recursion_limit": 1_000})["endstop"]
    return made


class Own(BaseCallbackHandler):
    """A handler of the code's own."""


def test_it_is_active_where_the_graph_runs_and_nowhere_else() -> None:
    """Also in the threads that the graph starts."""
    seen: list[Meter | None] = []

    def node(state: MessagesState) -> Any:
        seen.append(active_meter())

    builder = StateGraph(MessagesState)
    for name in ("a", "b"):
        builder.add_node(name, node)
        builder.add_edge(START, name)
    bound(builder.compile(), only(max_super_steps=5)).invoke(ASKED)
    assert len(seen) == 2
    assert seen[0] is seen[1] is not None
    assert active_meter() is None


def test_a_refusal_is_not_logged_as_an_error_of_a_handler(caplog: pytest.LogCaptureFixture) -> None:
    """LangChain logs whatever a handler raises; any other error is told as ever."""

    class Failing(BaseCallbackHandler):
        def on_chain_start(self, *args: Any, **kwargs: Any) -> None:
            raise ValueError("a broken handler")

    with caplog.at_level(logging.WARNING):
        bound(create_agent(forever("look"), [look]), only(max_model_calls=2)).invoke(ASKED)
        with pytest.raises(PriceUnknown):
            bound(create_agent(forever("look"), [look]), only(max_cost=1)).invoke(ASKED)
        assert not caplog.records
        bound(create_agent(in_order(says(".")), [look]), only()).invoke(ASKED, {"callbacks": [Failing()]})
    assert "a broken handler" in caplog.text


def test_calls_with_callbacks_of_their_own_are_charged() -> None:
    """A model and a tool that are called out of a tool, with a config that knows nothing of the graph."""
    chat = FakeChat(rule=lambda messages: asks("look"))
    looker = Looker()

    @tool
    def think(place: str) -> str:
        """Think."""
        chat.bind_tools([look]).invoke(place, {"callbacks": [Own()]})
        return str(looker.tool.invoke({"place": place}, {"callbacks": [Own()]}))

    made = ending_of(create_agent(forever("think"), [think]), only(max_model_calls=5))
    assert made.spent.tools == {"think": 2, "look": 2}
    assert (made.spent.model_calls, chat.requests) == (5, 2)


def test_a_refused_tool_that_a_tool_calls_is_told_to_it() -> None:
    """What it makes of that is its own matter."""
    looker = Looker()

    @tool
    def think(place: str) -> str:
        """Think."""
        try:
            return str(looker.tool.invoke({"place": place}, {"callbacks": [Own()]}))
        except Exception as error:
            return f"no: {error}"

    chat = in_order(asks("think"), asks("think"), says("Done."))
    state = bound(create_agent(chat, [think]), only(tool_limits={"look": 1})).invoke(ASKED)
    answers = [m.text for m in state["messages"] if isinstance(m, ToolMessage)]
    assert answers[1] == "no: Not run: tool_limits['look'] is used up (1 of 1)"
    assert (looker.started, "endstop" in state) == (1, False)


def test_a_plain_text_model_is_charged_too() -> None:
    """Its usage is not told, and so it is estimated."""
    model = FakeListLLM(responses=["An answer."])

    def think(state: MessagesState) -> Any:
        return {"messages": [AIMessage(model.invoke("What?"))]}

    builder = StateGraph(MessagesState)
    builder.add_node("think", think)
    builder.add_edge(START, "think")
    builder.add_edge("think", "think")
    made = ending_of(builder.compile(), only(max_model_calls=3, max_tokens=100_000), loops=None)
    assert (made.spent.model_calls, made.spent.unmeasured) == (3, 3)
    assert made.spent.input_tokens > 0


def test_a_failing_model_of_a_bound_child_is_charged_once() -> None:
    """The error passes both meters."""
    failures = [ConnectionError("overloaded"), ConnectionError("overloaded")]

    def rule(messages: Any) -> AIMessage:
        if failures:
            raise failures.pop()
        return says("Here.")

    chat = PlainChat(rule=rule)

    def think(state: MessagesState) -> Any:
        return {"messages": [chat.with_retry(wait_exponential_jitter=False).invoke(state["messages"])]}

    inner = StateGraph(MessagesState)
    inner.add_node("think", think)
    inner.add_edge(START, "think")
    outer = StateGraph(MessagesState)
    outer.add_node("inner", bound(inner.compile(), only(max_model_calls=10)))
    outer.add_edge(START, "inner")
    outer.add_edge("inner", "inner")
    made = ending_of(outer.compile(), only(max_model_calls=4), loops=None)
    assert (made.spent.model_calls, chat.requests) == (4, 4)


def test_a_tool_that_fails_has_run() -> None:
    """Its execution was started, and it had its chance to do something."""

    @tool
    def fail(place: str) -> str:
        """Fail."""
        raise ValueError("broken")

    def calling(state: MessagesState) -> Any:
        try:
            fail.invoke({"place": "here"})
        except ValueError:
            return {}

    builder = StateGraph(MessagesState)
    builder.add_node("calling", calling)
    builder.add_edge(START, "calling")
    builder.add_edge("calling", "calling")
    made = ending_of(builder.compile(), only(max_super_steps=2))
    assert (made.spent.tools, made.effects) == ({"fail": 2}, ("fail",))


def test_a_free_model_has_room_under_a_cost_limit() -> None:
    """A price of nothing divides by nothing."""
    free = Price(input_per_million=Decimal(0), output_per_million=Decimal(0))
    made = ending_of(create_agent(forever("look"), [look]), only(max_cost=1, assume_price=free, max_model_calls=3))
    assert (made.limit, made.spent.cost, made.spent.price_source) == ("max_model_calls", 0, "assumed")


class NoPrices:
    """A table that knows no model."""

    def price_of(self, model: str) -> None:
        """None of them."""


def test_an_unknown_price_is_no_matter_where_nothing_limits_the_cost() -> None:
    """The run is not priced then."""
    made = ending_of(create_agent(forever("look"), [look]), only(max_model_calls=2), prices=NoPrices())
    assert (made.spent.cost, made.spent.price_source) == (0, None)


def test_a_refusal_is_found_behind_the_errors_that_were_raised_from_it() -> None:
    """By its cause, or as what was being handled."""
    budget = Budget(only())
    purse = GraphPurse(budget, only(), prices=None, keeps_reserve=False)
    meter = Meter(budget, only(), purse, above=None)
    hit = LimitHit(limit="max_model_calls", used=1, allowed=1)
    stop = Stop(meter, hit)
    error = ValueError()
    error.__cause__ = stop
    assert refusal_in(error) is stop
    assert refusal_in(ValueError()) is None
    assert str(stop) == "max_model_calls is used up (1 of 1)"
    assert repr(Refused(meter, hit)) == "Not run: max_model_calls is used up (1 of 1)"
    with metered(meter):
        assert active_meter() is meter


def test_results_that_answer_nobody_are_no_batch() -> None:
    """A list of messages that does not begin with a question is not looked at."""
    watch = LoopWatch(LoopDetector(policy=LoopPolicy()))
    assert watch.sent([ToolMessage("?", tool_call_id="1")], {}) is None
    assert watch.sent([], {}) is None
    assert watch.observed is None


@pytest.mark.parametrize(("traits", "steps"), [({}, 6), ({"polling": True}, 20), ({"repeatable": True}, 0)])
def test_tools_say_by_their_metadata_how_often_they_may_repeat(traits: dict[str, Any], steps: int) -> None:
    """Waiting for something outside is given more time, and thinking is never a loop."""
    chat = forever(("look", {"place": "the mat"}))
    made = ending_of(create_agent(chat, [Looker(metadata=traits).tool]), only(max_tool_calls=30))
    assert made.limit == ("loop" if steps else "max_tool_calls")
    assert made.spent.tool_calls == (steps or 30)


def test_what_a_node_gives_is_read_without_what_changes_each_time() -> None:
    """Ids of messages and of calls say nothing; new text, other arguments and other values do."""

    def steps(make: Any) -> list[bool]:
        watch = NodeWatch(LoopDetector(policy=LoopPolicy()))
        watch.began([HumanMessage("?", id="0")])
        found = [watch.gave([("node", make(i))], polling=False) for i in range(8)]
        return [finding is not None for finding in found]

    again = [False, False, True, False, False, True, False, False]
    assert steps(lambda i: {"messages": [HumanMessage("?", id="0"), AIMessage("Same.", id=f"{i + 1}")]}) == again
    assert steps(lambda i: [{"count": 1}, None]) == again
    assert steps(lambda i: {"messages": (asks(("look", {"place": "mat"})),)}) == again
    assert not any(steps(lambda i: {"messages": [AIMessage(f"Text {chr(97 + i)}.", id=f"{i + 1}")]}))
    assert not any(steps(lambda i: {"value": "abcdefgh"[i]}))


def test_a_node_that_calls_no_model_ends_a_run_by_steps_alone() -> None:
    """There is nothing to charge it but the node and the super-step."""
    builder = StateGraph(MessagesState)
    builder.add_node("quiet", lambda state: {})
    builder.add_edge(START, "quiet")
    builder.add_edge("quiet", END)
    state = bound(builder.compile(), only(max_super_steps=1)).invoke(ASKED)
    assert "endstop" not in state
