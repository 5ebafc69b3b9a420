"""An agent with a `BoundMiddleware` keeps every limit, ends with an answer, and says how it ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from endstop import ConfigError, LimitExceeded, LoopPolicy, PlanLimits, Price, PriceUnknown
from endstop.langgraph import GraphLimits
from endstop.langgraph.middleware import BoundMiddleware
from tests.langgraph.fakes import (
    ASKED,
    FINAL,
    FakeChat,
    Looker,
    PlainChat,
    asks,
    forever,
    in_order,
    says,
    unanswered,
)

State = Mapping[str, Any]
Go = Callable[..., State]


def limits(**fields: Any) -> PlanLimits:
    """These limits and no other."""
    return replace(PlanLimits(max_model_rounds=None), **fields)


@pytest.fixture(params=["invoke", "ainvoke"])
def go(request: pytest.FixtureRequest) -> Go:
    """Runs an agent to its end, from sync and from async code."""
    if request.param == "invoke":
        return lambda agent, *args: agent.invoke(*(args or (ASKED,)))
    return lambda agent, *args: asyncio.run(agent.ainvoke(*(args or (ASKED,))))


def agent_of(model: FakeChat, *tools: Looker, bounds: PlanLimits, **options: Any) -> Any:
    return create_agent(model, [each.tool for each in tools], middleware=[BoundMiddleware(bounds, **options)])


def last(state: State) -> AIMessage:
    message = state["messages"][-1]
    assert isinstance(message, AIMessage)
    return message


# -- the limits ------------------------------------------------------------------------------------


def test_a_run_within_its_limits_is_as_it_would_be(go: Go) -> None:
    """The same messages and nothing else in the state; the last unit may be used."""
    model, look = in_order(asks("look"), says("Under the mat.")), Looker()
    state = go(agent_of(model, look, bounds=limits(max_model_calls=3, max_tool_calls=1)))
    assert [type(message) for message in state["messages"]] == [HumanMessage, AIMessage, ToolMessage, AIMessage]
    assert last(state).text == "Under the mat."
    assert set(state) == {"messages"}
    assert "endstop" not in last(state).response_metadata


@pytest.mark.parametrize("field", ["max_model_rounds", "max_model_calls"])
@pytest.mark.parametrize("count", [2, 5])
def test_the_last_request_is_the_final_answer(go: Go, field: str, count: int) -> None:
    """It is inside the limit, comes without tools and with a notice, and answers from what was found."""
    model, look = forever("look"), Looker()
    state = go(agent_of(model, look, bounds=limits(**{field: count})))
    assert model.requests == count
    assert model.offered == [("look",)] * (count - 1) + [()]
    assert look.started == count - 1
    assert "Answer now" in model.sent[-1][-1].text
    assert last(state).text == FINAL
    ending = state["endstop"]
    assert (ending["limit"], ending["used"], ending["allowed"]) == (field, count, count)
    assert (ending["rung"], ending["text"], ending["pending"]) == ("model_answer", FINAL, [])
    assert ending["stop_reason"] == ("tool_limit" if field == "max_model_rounds" else "budget")


def test_the_end_is_marked_on_the_message_too(go: Go) -> None:
    """Who keeps messages alone can tell the end from a normal one."""
    state = go(agent_of(forever("look"), Looker(), bounds=limits(max_model_calls=2)))
    mark = last(state).response_metadata["endstop"]
    assert mark == {key: value for key, value in state["endstop"].items() if key != "text"}


def test_with_room_for_one_request_it_is_the_final_answer(go: Go) -> None:
    """There is none to ask for tools with."""
    model = forever("look")
    state = go(agent_of(model, Looker(), bounds=limits(max_model_calls=1)))
    assert model.offered == [()]
    assert last(state).text == FINAL


def test_with_room_for_none_the_model_is_not_asked(go: Go) -> None:
    """The end says that there is no answer and why, and that nothing could be said."""
    model = forever("look")
    state = go(agent_of(model, Looker(), bounds=limits(max_model_calls=0)))
    assert model.requests == 0
    assert last(state).text == "There is no answer: max_model_calls is used up (0 of 0)."
    assert (state["endstop"]["rung"], state["endstop"]["text"]) == ("empty", "")


def test_of_parallel_calls_those_that_fit_run_in_the_order_asked(go: Go) -> None:
    """64 at once under a limit of 5: exactly the first five run, every other is answered as not run and why."""
    model, look = forever(*["look"] * 64), Looker(seconds=0.01)
    state = go(agent_of(model, look, bounds=limits(max_tool_calls=5)))
    assert look.started == 5
    answers = [message for message in state["messages"] if isinstance(message, ToolMessage)]
    assert [answer.status for answer in answers] == ["success"] * 5 + ["error"] * 59
    assert {answer.text for answer in answers[5:]} == {"Not run: max_tool_calls is used up (5 of 5)"}
    assert unanswered(state["messages"]) == []
    assert model.requests == 2
    assert [len(state["endstop"]["pending"]), state["endstop"]["limit"]] == [59, "max_tool_calls"]


def test_a_limit_of_no_tool_calls_lets_the_model_answer(go: Go) -> None:
    """0 means none at all."""
    model, look = forever("look"), Looker()
    state = go(agent_of(model, look, bounds=limits(max_tool_calls=0)))
    assert (look.started, model.requests, last(state).text) == (0, 2, FINAL)


def test_a_limit_on_one_tool_leaves_the_others(go: Go) -> None:
    """The run goes on while anything runs, and ends at the round in which nothing does."""
    look, listen = Looker(), Looker("listen")
    both, one = asks("look", "listen"), asks("look")
    model = in_order(both, both, both, one)
    state = go(agent_of(model, look, listen, bounds=limits(tool_limits={"look": 2})))
    assert (look.started, listen.started) == (2, 3)
    assert state["endstop"]["limit"] == "tool_limits['look']"
    assert model.requests == 5


def test_a_call_of_an_unknown_tool_costs_nothing(go: Go) -> None:
    """It is not an execution: the limit is left for those that are."""
    model, look = in_order(asks("nope", "look"), says("Done.")), Looker()
    state = go(agent_of(model, look, bounds=limits(max_tool_calls=1)))
    assert look.started == 1
    assert last(state).text == "Done."


def test_tokens_are_bounded(go: Go) -> None:
    """What is left for the final answer is left; no more is spent than is allowed."""
    model = forever("look", tokens=100)
    state = go(agent_of(model, Looker(), bounds=limits(max_tokens=2_000)))
    spent = state["endstop"]["spent"]
    assert state["endstop"]["limit"] == "max_tokens"
    assert 1_000 < spent["input_tokens"] + spent["output_tokens"] <= 2_000
    assert last(state).text == FINAL


def test_money_is_bounded_at_a_price(go: Go) -> None:
    """Under two thousand tokens at a dollar a million."""
    price = Price(input_per_million=Decimal(1), output_per_million=Decimal(1))
    state = go(agent_of(forever("look", tokens=100), Looker(), bounds=limits(max_cost=0.002, assume_price=price)))
    spent = state["endstop"]["spent"]
    assert Decimal("0.0005") < Decimal(spent["cost"]) <= Decimal("0.002")
    assert (state["endstop"]["limit"], spent["price_source"]) == ("max_cost", "assumed")


def test_without_a_price_a_limit_on_money_is_refused_before_the_first_request(go: Go) -> None:
    """It could not be kept."""
    model = forever("look")
    with pytest.raises(PriceUnknown, match="fake-1"):
        go(agent_of(model, Looker(), bounds=limits(max_cost=1)))
    assert model.requests == 0


class CappedChat(FakeChat):
    """A chat model that can be capped, and writes as much as it may."""

    max_tokens: int | None = None
    caps: list[int | None]

    def _answer(self, messages: list[Any], tools: tuple[str, ...]) -> Any:
        self.caps.append(self.max_tokens)
        result = super()._answer(messages, tools)
        message = result.generations[0].message
        if self.max_tokens is not None and not message.tool_calls:
            usage = {"input_tokens": 10, "output_tokens": self.max_tokens, "total_tokens": 10 + self.max_tokens}
            cut = message.model_copy(update={"response_metadata": {"finish_reason": "length"}, "usage_metadata": usage})
            result.generations[0].message = cut
        return result


def test_a_request_is_capped_at_what_is_left(go: Go) -> None:
    """So that one answer cannot overrun the limit; the reserve of the final answer is left."""
    model = CappedChat(rule=lambda messages: says("x" * 400), caps=[])
    state = go(agent_of(model, Looker(), bounds=limits(max_output_tokens=400)))
    assert model.caps == [300]
    assert state["endstop"]["spent"]["output_tokens"] == 300


def test_an_answer_that_our_cap_cut_is_marked(go: Go) -> None:
    """Its text is handed over as what it is: the last text of an unfinished run."""
    model = CappedChat(rule=lambda messages: says("It is under the"), caps=[])
    state = go(agent_of(model, Looker(), bounds=limits(max_output_tokens=400)))
    ending = state["endstop"]
    assert (ending["limit"], ending["rung"], ending["text"]) == ("max_output_tokens", "last_text", "It is under the")
    assert model.requests == 1


def test_an_answer_that_our_cap_cut_although_there_is_room_is_marked_too(go: Go) -> None:
    """One request may take no more than a half of much; what it wrote is the best there is."""
    model = CappedChat(rule=lambda messages: says("It is under the"), caps=[])
    state = go(agent_of(model, Looker(), bounds=limits(max_output_tokens=40_000)))
    assert model.caps == [16_384]
    assert (state["endstop"]["limit"], state["endstop"]["used"]) == ("model_output_cap", 16_384)


def test_a_final_answer_that_our_cap_cut_says_so(go: Go) -> None:
    """It is the answer all the same."""
    model = CappedChat(rule=lambda messages: asks("look"), caps=[])
    state = go(agent_of(model, Looker(), bounds=limits(max_output_tokens=400, max_model_calls=2)))
    assert (state["endstop"]["rung"], state["endstop"]["text"]) == ("model_answer", FINAL)
    assert state["endstop"]["reason"].endswith("; the final answer was cut at its output cap")


def test_a_request_may_take_everything_where_nothing_is_held_back(go: Go) -> None:
    """There is no final answer to leave room for."""
    model = CappedChat(rule=lambda messages: says("Under the mat."), caps=[])
    go(agent_of(model, Looker(), bounds=limits(max_output_tokens=400, on_limit="stop")))
    assert model.caps == [400]


def test_a_model_that_costs_nothing_is_capped_at_what_one_answer_may_be(go: Go) -> None:
    """No money is ever used up by it."""
    free = Price(input_per_million=Decimal(0), output_per_million=Decimal(0))
    model = CappedChat(rule=lambda messages: asks("look"), caps=[])
    go(agent_of(model, Looker(), bounds=limits(max_cost=1, assume_price=free, max_model_calls=2)))
    assert model.caps[0] == 16_384


def test_tools_that_the_provider_runs_are_none_of_ours() -> None:
    """They are offered as they are, and weigh in the estimate."""
    search = {"type": "web_search", "name": "web_search"}

    class Searching(PlainChat):
        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self.bind(tools=[{"function": {"name": "web_search"}}])

    model = Searching(rule=lambda messages: says("Under the mat."))
    agent = create_agent(model, [search], middleware=[BoundMiddleware(limits(max_tokens=9_000))])
    assert last(agent.invoke(ASKED)).text == "Under the mat."
    assert model.offered == [("web_search",)]


def test_no_cap_is_set_where_nothing_limits_tokens(go: Go) -> None:
    """The request is the adopter's own."""
    model = CappedChat(rule=lambda messages: says("Done."), caps=[])
    go(agent_of(model, Looker(), bounds=limits(max_model_calls=3)))
    assert model.caps == [None]


# -- time ------------------------------------------------------------------------------------------


def test_tools_in_flight_are_cut_off_and_answered() -> None:
    """They are told to have been stopped, and the kept seconds are there for the final answer."""
    model, look = forever("look", "look"), Looker(seconds=30)
    started = time.monotonic()
    state = asyncio.run(agent_of(model, look, bounds=limits(max_seconds=0.4)).ainvoke(ASKED))
    assert time.monotonic() - started < 5
    assert (look.started, look.finished) == (2, 0)
    texts = {message.text for message in state["messages"] if isinstance(message, ToolMessage)}
    assert all(text.startswith("Stopped before it was done, it may have had an effect: max_seconds") for text in texts)
    assert (last(state).text, state["endstop"]["limit"]) == (FINAL, "max_seconds")
    assert state["endstop"]["effects"] == ["look"]


def test_a_request_in_flight_is_cut_off() -> None:
    """The final answer is cut off as well where it does not come in time: there is a best text without it."""
    model = forever("look", text="I shall look.")
    model.latency_seconds = 30
    due = datetime.now(UTC) + timedelta(seconds=0.4)
    state = asyncio.run(agent_of(model, Looker(), bounds=limits(deadline=due)).ainvoke(ASKED))
    ending = state["endstop"]
    assert (ending["limit"], ending["rung"], ending["spent"]["model_calls"]) == ("deadline", "empty", 2)
    assert ending["reason"] == "the deadline has come; the time was up before the final answer was there"


def test_sync_work_is_not_cut_off_and_nothing_starts_after_it() -> None:
    """Sync code cannot be cancelled; the time is looked at before each request and each tool."""
    model, look = forever("look"), Looker(seconds=0.3)
    state = agent_of(model, look, bounds=limits(max_seconds=0.2)).invoke(ASKED)
    assert (look.started, look.finished) == (1, 1)
    assert (state["endstop"]["limit"], state["endstop"]["rung"]) == ("max_seconds", "tool_digest")


def test_a_tool_that_is_late_does_not_start() -> None:
    """It is told so, and no execution is charged."""
    model, look = forever("look", tokens=10), Looker()
    model.latency_seconds = 0.3
    state = agent_of(model, look, bounds=limits(max_seconds=0.35)).invoke(ASKED)
    assert (look.started, state["endstop"]["spent"]["tool_calls"]) == (0, 0)
    assert state["endstop"]["limit"] == "max_seconds"


# -- how it ends -----------------------------------------------------------------------------------


def test_stop_asks_for_no_final_answer(go: Go) -> None:
    """Every round is an ordinary one, and the best text at hand is the answer."""
    model, look = forever("look"), Looker()
    state = go(agent_of(model, look, bounds=limits(max_model_calls=2, on_limit="stop")))
    assert (model.requests, look.started) == (2, 2)
    assert (state["endstop"]["rung"], state["endstop"]["limit"]) == ("tool_digest", "max_model_calls")
    assert last(state).text.startswith("- look(")


def test_raise_carries_the_whole_partial_result(go: Go) -> None:
    """And the ending, which names the limit."""
    model = forever("look", text="Let me look.")
    with pytest.raises(LimitExceeded) as caught:
        go(agent_of(model, Looker(), bounds=limits(max_model_calls=2, on_limit="raise")))
    error = caught.value
    assert (error.ending.limit, error.result.text, error.result.stop_reason) == (
        "max_model_calls",
        "Let me look.",
        "budget",
    )
    assert len(error.result.messages) == 6


def test_a_final_answer_that_asks_for_tools_is_not_run(go: Go) -> None:
    """Its words count; its calls are answered, and a message without calls ends the graph."""
    model, look = PlainChat(rule=lambda messages: asks("look", text="Perhaps under the mat.")), Looker()
    state = go(agent_of(model, look, bounds=limits(max_model_calls=2)))
    assert (model.requests, look.started) == (2, 1)
    assert (last(state).text, last(state).tool_calls) == ("Perhaps under the mat.", [])
    assert state["endstop"]["rung"] == "model_answer"
    assert [call["name"] for call in state["endstop"]["pending"]] == ["look"]
    assert unanswered(state["messages"]) == []


def test_a_final_answer_without_words_falls_to_the_next_rung(go: Go) -> None:
    """The tool results are put together without a model."""
    model = PlainChat(rule=lambda messages: asks("look") if len(messages) < 4 else says(""))
    state = go(agent_of(model, Looker(), bounds=limits(max_model_calls=2)))
    assert state["endstop"]["rung"] == "tool_digest"
    assert last(state).text.startswith("- look(")


def test_a_final_answer_that_fails_falls_to_the_next_rung(go: Go) -> None:
    """The run ends with what it has, and the ending says what happened."""

    def rule(messages: Any) -> AIMessage:
        if len(messages) > 3:
            raise RuntimeError("overloaded")
        return asks("look", text="Let me look.")

    state = go(agent_of(PlainChat(rule=rule), Looker(), bounds=limits(max_model_calls=2)))
    assert (state["endstop"]["rung"], last(state).text) == ("last_text", "Let me look.")
    assert state["endstop"]["reason"].endswith("; the final answer failed: overloaded")


def test_an_ordinary_request_that_fails_fails_the_run(go: Go) -> None:
    """Limits change nothing about errors."""

    def rule(messages: Any) -> AIMessage:
        raise RuntimeError("overloaded")

    with pytest.raises(RuntimeError, match="overloaded"):
        go(agent_of(FakeChat(rule=rule), Looker(), bounds=limits(max_model_calls=2)))


def test_an_agent_without_tools_answers_in_its_last_round(go: Go) -> None:
    """Nothing is held back where every round is an answer."""
    model = PlainChat(rule=lambda messages: says("Under the mat."))
    state = go(agent_of(model, bounds=limits(max_model_calls=1)))
    assert last(state).text == "Under the mat."
    assert "endstop" not in state


def test_read_only_tools_are_no_effects(go: Go) -> None:
    """A tool says so in its metadata."""
    look, write = Looker(metadata={"read_only": True}), Looker("write")
    state = go(agent_of(forever("look", "write"), look, write, bounds=limits(max_model_calls=2)))
    assert state["endstop"]["effects"] == ["write"]


def test_the_model_is_warned_where_the_limits_say_so(go: Go) -> None:
    """Once a limit, after the newest result of a tool."""
    model = forever("look")
    go(agent_of(model, Looker(), bounds=limits(max_tool_calls=5, warn_model=True, max_model_calls=6)))
    warned = [i for i, sent in enumerate(model.sent) if "near its limits" in sent[-1].text]
    assert warned == [4]
    assert model.sent[4][-1].text == (
        "The run is near its limits: max_tool_calls: 4 of 5 used. Come to an answer soon."
    )


# -- loops -----------------------------------------------------------------------------------------


def test_a_loop_is_told_to_the_model_and_then_ends_the_run(go: Go) -> None:
    """The notice stands in the request alone; the ending names the loop."""
    same = ("look", {"place": "mat"})
    model, look = forever(same), Looker()
    state = go(agent_of(model, look, bounds=limits(max_model_calls=30)))
    nudged = [i for i, sent in enumerate(model.sent) if "repeating yourself" in sent[-1].text]
    assert nudged == [3]
    assert not any("repeating yourself" in message.text for message in state["messages"])
    ending = state["endstop"]
    assert (ending["limit"], ending["stop_reason"], ending["rung"]) == ("loop", "loop", "model_answer")
    assert model.requests == look.started + 1 == 7


def test_new_results_are_no_loop(go: Go) -> None:
    """Other arguments bring other results."""
    model = forever("look")
    state = go(agent_of(model, Looker(), bounds=limits(max_model_calls=12)))
    assert state["endstop"]["limit"] == "max_model_calls"


def test_a_tool_that_polls_may_repeat_itself_longer(go: Go) -> None:
    """A tool says so in its metadata."""
    model, look = forever(("look", {"place": "mat"})), Looker(metadata={"polling": True})
    state = go(agent_of(model, look, bounds=limits(max_model_calls=9)))
    assert state["endstop"]["limit"] == "max_model_calls"


@pytest.mark.parametrize("loops", [None, LoopPolicy(repeats=20)])
def test_when_repetition_is_a_loop_is_for_the_policy_to_say(go: Go, loops: LoopPolicy | None) -> None:
    """Without one, it never is."""
    model = forever(("look", {"place": "mat"}))
    policy = replace(loops, stagnant_steps=20) if loops is not None else None
    state = go(agent_of(model, Looker(), bounds=limits(max_model_calls=9), loops=policy))
    assert state["endstop"]["limit"] == "max_model_calls"


def test_the_ending_of_a_loop_names_answers_that_were_cut(go: Go) -> None:
    """A model whose calls are cut at its own cap asks the same again and again, and the tool's error hides why."""
    cut = {"finish_reason": "length"}
    model = FakeChat(rule=lambda messages: asks(("look", {})).model_copy(update={"response_metadata": cut}))
    state = go(agent_of(model, Looker(), bounds=limits(max_model_calls=30)))
    assert state["endstop"]["limit"] == "loop"
    assert "cut at its output cap" in state["endstop"]["reason"]


def test_without_limits_nothing_is_changed(go: Go) -> None:
    """Nothing is counted, and nothing kept."""
    model = in_order(asks("look"), says("Under the mat."))
    middleware = BoundMiddleware(limits(max_depth=None), loops=None)
    agent = create_agent(model, [Looker().tool], middleware=[middleware], checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}}
    assert last(go(agent, ASKED, thread)).text == "Under the mat."
    assert agent.get_state(thread).values.get("endstop_run", {}) == {}


# -- misuse ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["limits", "thread_limits"])
def test_limits_that_a_middleware_cannot_count_are_refused(field: str) -> None:
    """Super-steps and nodes are seen by `bound` alone."""
    given: Any = {"limits": PlanLimits(), field: GraphLimits(max_super_steps=5)}
    with pytest.raises(ConfigError, match="use bound"):
        BoundMiddleware(**given)
    given[field] = GraphLimits(node_limits={"tools": 2})
    with pytest.raises(ConfigError, match="use bound"):
        BoundMiddleware(**given)
    assert BoundMiddleware(GraphLimits(max_model_calls=3))


def test_limits_are_checked_when_the_middleware_is_made() -> None:
    """Not when the first user comes."""
    with pytest.raises(ConfigError, match="PlanLimits"):
        BoundMiddleware(5)  # type: ignore[arg-type]  # that is the misuse


def test_the_same_agent_serves_many_runs_at_once() -> None:
    """Each run has its own budget."""
    model, look = forever("look"), Looker(seconds=0.01)
    agent = create_agent(
        model, [look.tool], middleware=[BoundMiddleware(limits(max_model_calls=3))], checkpointer=InMemorySaver()
    )

    async def run(number: int) -> State:
        return await agent.ainvoke(ASKED, {"configurable": {"thread_id": str(number)}})

    async def run_all() -> list[State]:
        return await asyncio.gather(*(run(number) for number in range(20)))

    assert [state["endstop"]["spent"]["model_calls"] for state in asyncio.run(run_all())] == [3] * 20
    assert (model.requests, look.started) == (60, 40)
