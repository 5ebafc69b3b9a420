"""A bound graph keeps each of its limits, and ends at one with an answer that says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from langchain.agents import create_agent, middleware
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.channels import LastValue, Topic
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import create_react_agent
from langgraph.pregel import NodeBuilder, Pregel

from endstop import ConfigError, LimitExceeded, PlanLimits, Price, PriceUnknown
from endstop.langgraph import BoundMiddleware, GraphEnding, GraphLimits, GraphSpent, bound
from endstop.langgraph._meter import active_meter

from .fakes import ASKED, BOTH, FINAL, FakeChat, Looker, PlainChat, asks, forever, in_order, look, says, unanswered

pytestmark = pytest.mark.filterwarnings("ignore:create_react_agent has been moved")

MAKERS = [create_agent, create_react_agent]
DOLLAR = Price(input_per_million=Decimal(1), output_per_million=Decimal(1))

Run = Callable[..., Any]


def only(**limits: Any) -> GraphLimits:
    """These limits alone."""
    return replace(GraphLimits(max_model_rounds=None, max_depth=None), **limits)


def ending(state: Any) -> GraphEnding:
    """The ending of a run that was cut."""
    made = state["endstop"]
    assert isinstance(made, GraphEnding)
    return made


@pytest.mark.parametrize("run", BOTH)
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("limits", "requests", "used"),
    [
        (only(max_model_rounds=4), 4, 4),
        (only(max_model_calls=3), 3, 3),
        (only(max_tool_calls=2), 4, 2),
        (only(max_super_steps=5), 4, 5),
        (only(max_tokens=1_000), 49, 1_000),
        (only(max_output_tokens=100), 8, 100),
        (only(max_cost=Decimal("0.0001"), assume_price=DOLLAR), 5, Decimal("0.0001")),
    ],
    ids=["rounds", "calls", "tool-calls", "super-steps", "tokens", "output-tokens", "cost"],
)
def test_each_limit_is_kept_and_ends_the_run_with_an_answer(
    make: Any, run: Run, limits: GraphLimits, requests: int, used: Any
) -> None:
    """Nothing is used beyond a limit; the last request is for the final answer, without tools, inside it."""
    chat = forever("look")
    state = run(bound(make(chat, [look]), limits, loops=None), config={"recursion_limit": 1_000})
    made = ending(state)
    assert made.limit is not None
    assert made.used is not None
    assert made.used <= used
    assert chat.requests <= requests
    assert chat.offered[-1] == ()
    assert set(chat.offered[:-1]) <= {("look",)}
    assert (made.rung, made.text, made.allowed) == ("model_answer", FINAL, used)
    assert made.stop_reason == ("tool_limit" if limits.max_model_rounds else "budget")
    assert state["messages"][-1].text == FINAL
    assert unanswered(state["messages"]) == []


@pytest.mark.parametrize("run", BOTH)
def test_a_run_inside_its_limits_has_no_ending(run: Run) -> None:
    """Whoever looks for the key finds it only where the run was cut."""
    chat = in_order(asks("look"), says("It is here."))
    graph = bound(create_agent(chat, [look]), GraphLimits(max_model_calls=3))
    assert "endstop" not in run(graph)


@pytest.mark.parametrize("run", BOTH)
@pytest.mark.parametrize(
    ("limits", "is_cut"), [(only(max_tool_calls=1, max_model_calls=3), False), (only(max_model_calls=2), True)]
)
def test_an_answer_on_the_last_unit_is_a_completed_run(run: Run, limits: GraphLimits, is_cut: bool) -> None:
    """The last call of a model is the final answer's: one call less, and the run is cut."""
    chat = in_order(asks("look"), says("Under the mat."))
    state = run(bound(create_agent(chat, [look]), limits))
    assert ("endstop" in state) == is_cut
    assert state["messages"][-1].text == (FINAL if is_cut else "Under the mat.")


def test_a_graph_that_only_goes_forward_may_use_its_last_call() -> None:
    """It needs no reserve: its answer could not be followed by another request."""
    chat = PlainChat(rule=lambda messages: says("Done."))
    assert "endstop" not in bound(create_agent(chat, []), only(max_model_calls=1)).invoke(ASKED)
    assert chat.requests == 1


def test_zero_means_none_at_all() -> None:
    """No tool is run; the model is asked once, and then for its answer."""
    chat, looker = forever("look"), Looker()
    state = bound(create_agent(chat, [looker.tool]), only(max_tool_calls=0)).invoke(ASKED)
    assert (looker.started, chat.requests, ending(state).limit) == (0, 2, "max_tool_calls")
    nothing = bound(create_agent(forever("look"), [look]), only(max_model_calls=0)).invoke(ASKED)
    assert (ending(nothing).rung, ending(nothing).text) == ("empty", "")
    assert nothing["messages"][-1].text == "There is no answer: max_model_calls is used up (0 of 0)."


@pytest.mark.parametrize("run", BOTH)
@pytest.mark.parametrize("make", MAKERS)
def test_of_a_batch_that_does_not_fit_the_first_run_and_each_is_answered(make: Any, run: Run) -> None:
    """Those that fit run; every other call is told why it was not, and is pending."""
    chat, looker = forever(*["look"] * 64), Looker()
    state = run(bound(make(chat, [looker.tool]), only(max_tool_calls=5)))
    assert (looker.started, looker.finished) == (5, 5)
    assert unanswered(state["messages"]) == []
    answers = [m for m in state["messages"] if isinstance(m, ToolMessage)]
    refused = [m for m in answers if "Not run: max_tool_calls is used up (5 of 5)" in str(m.content)]
    assert (len(answers), len(refused)) == (64, 59)
    assert len(ending(state).pending) == 59
    assert {call.name for call in ending(state).pending} == {"look"}


@pytest.mark.parametrize("run", BOTH)
def test_a_limit_on_one_tool_leaves_the_others(run: Run) -> None:
    """The refused call is answered and the run goes on."""
    chat, looker, listener = forever("look", "listen"), Looker(), Looker("listen")
    limits = only(tool_limits={"look": 2}, max_model_rounds=6)
    state = run(bound(create_agent(chat, [looker.tool, listener.tool]), limits))
    assert (looker.started, listener.started, ending(state).limit) == (2, 5, "max_model_rounds")
    assert unanswered(state["messages"]) == []


def test_a_model_that_only_asks_for_what_is_refused_is_stopped() -> None:
    """An answer of whose calls none ran shows that the model does not take the hint."""
    chat, looker = forever("look"), Looker()
    state = bound(create_agent(chat, [looker.tool]), only(tool_limits={"look": 2}), loops=None).invoke(ASKED)
    assert (looker.started, chat.requests, ending(state).limit) == (2, 4, "tool_limits['look']")


def delegating(inner: Any) -> Any:
    """A graph with an agent as a node, and a node whose code calls another graph and a task."""

    def call(state: MessagesState) -> dict[str, Any]:
        helped(1).result()
        return {"messages": apart.invoke(state)["messages"]}

    @task
    def helped(number: int) -> int:
        return number

    apart = line("far")
    builder = StateGraph(MessagesState)
    builder.add_node("team", inner)
    builder.add_node("call", call)
    builder.add_edge(START, "team")
    builder.add_edge("team", "call")
    return builder.compile()


def line(node: str) -> Any:
    """A graph of one node."""
    builder = StateGraph(MessagesState)
    builder.add_node(node, lambda state: {})
    builder.add_edge(START, node)
    return builder.compile()


@pytest.mark.parametrize("field", ["limits", "thread_limits"])
def test_a_node_that_no_graph_has_is_refused(field: str) -> None:
    """A misspelt name would bind nothing; the error tells which there are, here and below."""
    graph = delegating(create_agent(forever("look"), [look]))
    given = {"limits": only(), field: only(node_limits={"modle": 2})}
    with pytest.raises(ConfigError) as refused:
        bound(graph, **given)
    of = "" if field == "limits" else "thread_limits."
    assert str(refused.value) == (
        f"{of}node_limits='modle' cannot be used: name a node of the graph: call, far, helped, model, team, tools"
    )


@pytest.mark.parametrize("name", ["team", "model", "tools", "call", "far", "helped"])
def test_a_node_of_any_graph_that_can_be_seen_is_taken(name: str) -> None:
    """Of the graphs that are nodes, of those that code calls, and tasks; what is bound, is."""
    graph = bound(delegating(create_agent(in_order(asks("look"), says("Done.")), [look])), only(node_limits={name: 0}))
    assert ending(graph.invoke(ASKED)).limit == f"node_limits['{name}']"


def test_any_node_is_taken_of_what_cannot_be_read() -> None:
    """An entrypoint may call whatever it likes, and a graph of channels says of no node what it calls."""

    @entrypoint()
    def working(number: int) -> int:
        return number

    nodes = {name: NodeBuilder().subscribe_only("in").do(lambda x: x).write_to("out") for name in ("a", "b")}
    channels: Any = {"in": LastValue(int), "out": Topic(int)}
    plain: Any = Pregel(nodes=nodes, channels=channels, input_channels="in", output_channels="out")
    assert bound(working, only(node_limits={"far": 2})).invoke(1) == 1
    assert bound(plain, only(node_limits={"far": 2})).invoke(1) == [1, 1]


@pytest.mark.parametrize("make", MAKERS)
def test_a_tool_that_no_tool_node_has_is_refused(make: Any) -> None:
    """With the names that there are, where a node below runs tools too."""
    graph = make(forever("look"), [look, Looker("listen").tool])
    with pytest.raises(ConfigError, match=r"tool_limits='loook' cannot be used: name a tool .*: listen, look$"):
        bound(graph, PlanLimits(tool_limits={"look": 1, "loook": 1}))
    with pytest.raises(ConfigError, match=r"tool_limits='loook'"):
        bound(delegating_quietly(graph), PlanLimits(tool_limits={"loook": 1}))


def delegating_quietly(inner: Any) -> Any:
    """A graph that is an agent and nothing else."""
    builder = StateGraph(MessagesState)
    builder.add_node("team", inner)
    builder.add_edge(START, "team")
    return builder.compile()


def test_any_tool_is_taken_where_others_may_be_run() -> None:
    """By a middleware around the tools, by code that invokes something, or by nodes of which none says what it runs."""

    class Around(middleware.AgentMiddleware[Any, Any]):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            return handler(request)

    limits = PlanLimits(tool_limits={"hidden": 1})
    agent = create_agent(forever("look"), [look])
    for graph in (create_agent(forever("look"), [look], middleware=[Around()]), delegating(agent), line("far")):
        bound(graph, limits)


def test_a_node_is_bound_by_name() -> None:
    """Of two nodes that alternate, one may be limited."""

    def write(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("A draft.")]}

    builder = StateGraph(MessagesState)
    builder.add_node("write", write)
    builder.add_node("review", lambda state: {})
    builder.add_edge(START, "write")
    builder.add_edge("write", "review")
    builder.add_edge("review", "write")
    state = bound(builder.compile(), only(node_limits={"write": 3}), loops=None).invoke(ASKED)
    made = ending(state)
    assert (made.limit, made.used, made.allowed) == ("node_limits['write']", 3, 3)
    assert made.spent.nodes == {"write": 3, "review": 3}
    assert (made.rung, made.text) == ("last_text", "A draft.")


@pytest.mark.parametrize("run", BOTH)
@pytest.mark.parametrize(("recursion_limit", "is_cut"), [(4, True), (5, False), (6, False)])
def test_the_recursion_limit_is_a_limit_like_the_others(run: Run, recursion_limit: int, is_cut: bool) -> None:
    """Nothing done is lost; a run that finishes exactly at the limit, for which LangGraph raises, is completed."""
    chat = in_order(asks("look"), asks("look"), says("Under the mat."))
    state = run(bound(create_agent(chat, [look]), GraphLimits()), config={"recursion_limit": recursion_limit})
    assert ("endstop" in state) == is_cut
    if is_cut:
        made = ending(state)
        assert (made.limit, made.used, made.allowed, made.stop_reason) == ("recursion_limit", 4, 4, "budget")
        assert (made.spent.tools, made.text) == ({"look": 2}, FINAL)
    else:
        assert state["messages"][-1].text == "Under the mat."


@pytest.mark.parametrize("run", BOTH)
@pytest.mark.parametrize("recursion_limit", [6, 7])
def test_an_agent_that_gives_up_for_lack_of_steps_is_cut(run: Run, recursion_limit: int) -> None:
    """LangGraph's agent says that it needs more steps, as if it had answered: here its end says so, with an answer."""
    chat = forever("look")
    state = run(bound(create_react_agent(chat, [look]), GraphLimits()), config={"recursion_limit": recursion_limit})
    assert (ending(state).limit, ending(state).used, ending(state).text) == ("recursion_limit", recursion_limit, FINAL)
    assert [m.text for m in state["messages"] if isinstance(m, AIMessage)] == [""] * ((recursion_limit - 1) // 2) + [
        FINAL
    ]
    assert unanswered(state["messages"]) == []


def test_work_after_the_answer_that_is_skipped_is_named() -> None:
    """LangGraph does not run the hooks after an agent when it is stopped."""

    @middleware.after_agent
    def tidy_up(state: Any, runtime: Any) -> None:
        return None

    agent = create_agent(forever("look"), [look], middleware=[tidy_up])
    assert ending(bound(agent, only(max_model_calls=2)).invoke(ASKED)).skipped == ("tidy_up.after_agent",)
    done = bound(create_agent(in_order(says("Yes.")), [look], middleware=[tidy_up]), only(max_model_calls=2))
    assert "endstop" not in done.invoke(ASKED)


@pytest.mark.parametrize("run", BOTH)
def test_on_limit_stop_holds_nothing_back_and_asks_no_model(run: Run) -> None:
    """The best text at hand is the answer."""
    chat = forever("look", text="Let me look.")
    state = run(bound(create_agent(chat, [look]), only(max_model_calls=3, on_limit="stop")))
    assert (chat.requests, set(chat.offered)) == (3, {("look",)})
    assert (ending(state).rung, ending(state).text) == ("last_text", "Let me look.")
    assert state["messages"][-1].text == "Let me look."
    silent = run(bound(create_agent(forever("look"), [look]), only(max_model_calls=2, on_limit="stop")))
    assert ending(silent).rung == "tool_digest"
    assert "nothing here" in ending(silent).text


@pytest.mark.parametrize("run", BOTH)
def test_on_limit_raise_carries_the_whole_partial_result(run: Run) -> None:
    """What invoke would have returned is in the error."""
    chat = forever("look", text="Let me look.")
    with pytest.raises(LimitExceeded) as raised:
        run(bound(create_agent(chat, [look]), only(max_model_calls=2, on_limit="raise")))
    result = raised.value.result
    assert isinstance(raised.value.ending, GraphEnding)
    assert (result.text, result.stop_reason, result.spent.model_calls) == ("Let me look.", "budget", 2)
    assert isinstance(result.output, dict)
    assert unanswered(result.output["messages"]) == []
    assert len(result.messages) == len(result.output["messages"])


def test_what_a_run_did_to_the_world_is_named() -> None:
    """Tools that are marked as read-only in their metadata did nothing to it."""
    reader, writer = Looker("read", metadata={"read_only": True}), Looker("write")
    state = bound(create_agent(forever("read", "write"), [reader.tool, writer.tool]), only(max_tool_calls=2)).invoke(
        ASKED
    )
    assert ending(state).effects == ("write",)
    assert ending(state).spent.tools == {"read": 1, "write": 1}


def test_the_mark_is_on_the_last_message_too() -> None:
    """Whoever stores messages alone keeps how the run ended."""
    state = bound(create_agent(forever("look"), [look]), only(max_model_calls=2)).invoke(ASKED)
    mark = state["messages"][-1].response_metadata["endstop"]
    assert (mark["limit"], mark["rung"], mark["stop_reason"]) == ("max_model_calls", "model_answer", "budget")
    assert mark["spent"]["model_calls"] == 2


def test_the_earlier_turns_of_a_conversation_are_no_answer_of_this_one() -> None:
    """The text of a run that has said nothing is not that of the run before."""
    history = [("user", "Hello."), ("assistant", "Good morning."), ("user", "Where is the key?")]
    state = bound(create_agent(forever("look"), [look]), only(max_model_calls=0)).invoke({"messages": history})
    assert ending(state).rung == "empty"


def test_code_that_swallows_the_refusal_cannot_spend() -> None:
    """Once a limit has ended the run, everything is refused, and the end is told all the same."""
    chat = PlainChat(rule=lambda messages: says("An answer."))
    failures: list[Exception] = []

    def stubborn(state: MessagesState) -> dict[str, Any]:
        for _ in range(10):
            try:
                chat.invoke(state["messages"])
            except Exception as error:
                failures.append(error)
        return {"messages": [AIMessage("I gave up.")]}

    builder = StateGraph(MessagesState)
    builder.add_node("stubborn", stubborn)
    builder.add_edge(START, "stubborn")
    builder.add_edge("stubborn", END)
    state = bound(builder.compile(), only(max_model_calls=3, on_limit="stop")).invoke(ASKED)
    assert (chat.requests, len(failures)) == (3, 7)
    assert ending(state).limit == "max_model_calls"


def test_a_refusal_that_is_wrapped_is_still_an_end() -> None:
    """An error that was raised from the refusal ends the run as the refusal itself does; any other one is raised."""
    chat = PlainChat(rule=lambda messages: says("An answer."))

    def wrapping(state: MessagesState) -> dict[str, Any]:
        try:
            return {"messages": [chat.invoke(state["messages"])]}
        except Exception as error:
            raise ValueError("the model failed") from error

    def failing(state: MessagesState) -> dict[str, Any]:
        raise ValueError("the code is wrong")

    for node, raises in ((wrapping, False), (failing, True)):
        builder = StateGraph(MessagesState)
        builder.add_node("node", node)
        builder.add_edge(START, "node")
        builder.add_edge("node", "node")
        graph = bound(builder.compile(), only(max_model_calls=1, on_limit="stop"), loops=None)
        if raises:
            with pytest.raises(ValueError, match="the code is wrong"):
                graph.invoke(ASKED)
        else:
            assert ending(graph.invoke(ASKED)).limit == "max_model_calls"


def test_every_attempt_of_a_retry_is_a_call() -> None:
    """A model that fails is charged as one that answers, and a refusal is not retried."""
    if not hasattr(middleware, "ModelRetryMiddleware"):
        pytest.skip("this version of langchain has no ModelRetryMiddleware")

    def failing(messages: Any) -> AIMessage:
        raise ConnectionError("overloaded")

    chat = FakeChat(rule=failing)
    retry = middleware.ModelRetryMiddleware(max_retries=20, initial_delay=0, jitter=False, on_failure="error")
    state = bound(create_agent(chat, [look], middleware=[retry]), only(max_model_calls=4)).invoke(ASKED)
    assert chat.requests == 4
    assert (ending(state).limit, ending(state).spent.model_rounds) == ("max_model_calls", 2)


def test_a_cost_limit_without_a_price_is_refused_before_the_first_request() -> None:
    """A model whose price nobody knows would count as free."""
    chat = forever("look")
    with pytest.raises(PriceUnknown, match="fake-1"):
        bound(create_agent(chat, [look]), only(max_cost=1)).invoke(ASKED)
    assert chat.requests == 0


def test_a_model_without_a_name_goes_by_its_class() -> None:
    """The error must say which model it is that has no price."""
    chat = FakeChat(rule=lambda messages: says("Done."), model_name="")
    with pytest.raises(PriceUnknown, match="no price is known for the model 'FakeChat'"):
        bound(create_agent(chat, [look]), only(max_cost=1)).invoke(ASKED)


def test_what_is_written_without_a_usage_is_estimated_and_bounds_the_run() -> None:
    """A provider that reports nothing must not make every answer free."""
    chat = FakeChat(rule=lambda messages: asks("look", text="word " * 70).model_copy(update={"usage_metadata": None}))
    made = ending(bound(create_agent(chat, [look]), only(max_output_tokens=1_000), loops=None).invoke(ASKED))
    written = made.spent.output_tokens - 10  # the last answer reports its own
    each = written / (made.spent.model_calls - 1)
    assert made.limit == "max_output_tokens"
    assert 100 <= each <= 130
    assert made.spent.unmeasured == made.spent.model_calls - 1


def test_usage_that_nobody_tells_is_estimated_and_said_to_be() -> None:
    """It is never silently nothing."""
    chat = FakeChat(rule=lambda messages: asks("look").model_copy(update={"usage_metadata": None}))
    made = ending(bound(create_agent(chat, [look]), only(max_model_calls=3, max_tokens=100_000)).invoke(ASKED))
    assert made.spent.unmeasured == 2
    assert made.spent.input_tokens > 20
    assert made.spent.output_tokens > 20


def test_an_answer_longer_than_expected_is_told_as_an_overshoot() -> None:
    """The requests of a graph are not ours to cap, so the result says by how much a limit may be passed."""
    answers = [asks("look", tokens=10), asks("look", tokens=5_000)]
    chat = in_order(*answers)
    made = ending(bound(create_agent(chat, [look]), only(max_tokens=4_000)).invoke(ASKED))
    assert made.limit == "max_tokens"
    assert made.spent.tokens - 4_000 <= made.spent.underestimated_tokens


def test_what_the_model_was_told_is_not_in_the_digest_of_what_was_found() -> None:
    """A digest is for people; the notice at the end of a result is for the model, and stays there."""
    chat = PlainChat(rule=lambda messages: asks(("look", {"place": "the attic"})))
    state = bound(create_agent(chat, [look]), only(max_model_calls=20)).invoke(ASKED)
    assert any("[endstop: You are repeating yourself" in str(message.content) for message in state["messages"])
    assert (ending(state).rung, ending(state).text) == (
        "tool_digest",
        '- look({"place": "the attic"}): the attic: nothing here',
    )


def test_what_a_graph_returns_says_what_it_spent() -> None:
    """All of it: LangGraph's units beside the kernel's."""
    made = ending(bound(create_agent(forever("look"), [look]), only(max_model_calls=3)).invoke(ASKED))
    expected = GraphSpent(
        model_rounds=3,
        model_calls=3,
        tool_calls=2,
        tools={"look": 2},
        input_tokens=30,
        output_tokens=30,
        super_steps=5,
        nodes={"model": 3, "tools": 2},
    )
    assert replace(made.spent, seconds=0.0) == expected


def test_nothing_leaks_to_the_consumer_of_a_stream() -> None:
    """Between two chunks the consumer's own model calls are nobody's business."""
    graph = bound(create_agent(forever("look"), [look]), only(max_model_calls=3))
    assert [active_meter() for _ in graph.stream(ASKED)] == [None] * 5


def test_only_compiled_graphs_and_limits_are_taken() -> None:
    """A mistake is told before anything runs."""
    agent = create_agent(forever("look"), [look])
    with pytest.raises(ConfigError, match="compile"):
        bound(StateGraph(MessagesState), GraphLimits())  # type: ignore[type-var]  # callers are not all type-checked
    with pytest.raises(ConfigError, match="limits"):
        bound(agent, {"max_model_calls": 3})  # type: ignore[arg-type]  # callers are not all type-checked
    with pytest.raises(ConfigError, match="finish"):
        bound(agent, PlanLimits(), finish="nowhere")


def test_a_bound_graph_is_a_graph_of_the_same_class() -> None:
    """What takes the graph takes the bound one."""
    agent = create_agent(forever("look"), [look], name="finder")
    twin = bound(agent, GraphLimits())
    assert isinstance(twin, type(agent))
    assert (twin.name, twin.get_graph().to_json(), twin.channels) == (
        "finder",
        agent.get_graph().to_json(),
        agent.channels,
    )
    assert bound(agent, only(), loops=None) is agent


def test_with_config_keeps_the_bounds() -> None:
    """A copy is bound as the graph that it is a copy of."""
    twin = bound(create_agent(forever("look"), [look]), only(max_model_calls=2)).with_config(tags=["mine"])
    assert ending(twin.invoke(ASKED)).limit == "max_model_calls"
    assert twin.config is not None
    assert twin.config.get("tags") == ["mine"]


def test_a_graph_is_bound_once() -> None:
    """Two that share one record would overwrite each other's; as a part of another graph it is bound like any other."""
    with pytest.raises(ConfigError, match="bound already"):
        bound(bound(create_agent(forever("look"), [look]), GraphLimits()), GraphLimits())


@pytest.mark.parametrize(
    ("field", "value"),
    [("loops", False), ("loops", 5), ("thread_limits", 5), ("ledger", 5), ("prices", 5), ("finish", FakeChat)],
)
def test_what_cannot_be_used_is_told_at_once(field: str, value: Any) -> None:
    """By its name, and not where the first run needs it."""
    with pytest.raises(ConfigError) as caught:
        bound(create_agent(forever("look"), [look]), PlanLimits(), **{field: value})
    assert (caught.value.field, caught.value.value) == (field, value)
    if field in ("loops", "thread_limits", "prices"):
        with pytest.raises(ConfigError) as caught:
            BoundMiddleware(PlanLimits(), **{field: value})
        assert caught.value.field == field


def test_what_is_set_on_a_bound_graph_holds_where_it_runs() -> None:
    """And not in the graph that it was made of."""
    agent = create_agent(in_order(asks("look"), says("Here.")), [look])
    twin, thread = bound(agent, only(max_model_calls=9)), {"configurable": {"thread_id": "1"}}
    twin.checkpointer = InMemorySaver()
    twin.interrupt_before_nodes = ["tools"]
    assert len(twin.invoke(ASKED, thread)["messages"]) == 2  # type: ignore[arg-type]  # a config as callers write it
    assert twin.get_state(thread).next == ("tools",)  # type: ignore[arg-type]  # a config as callers write it
    assert (agent.checkpointer, len(agent.invoke(ASKED)["messages"])) == (None, 4)
