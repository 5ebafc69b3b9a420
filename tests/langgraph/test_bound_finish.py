"""The ladder of endings of a bound graph: the caller's own, the model's answer, and what stands below."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import before_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import create_react_agent
from langgraph.runtime import Runtime
from langgraph.types import Command
from pydantic import BaseModel
from typing_extensions import TypedDict

from endstop import ConfigError
from endstop.langgraph import GraphLimits, bound
from endstop.langgraph._compat import chat_models_of

from .fakes import ASKED, BOTH, FINAL, FakeChat, PlainChat, asks, forever, in_order, look, says, unanswered

pytestmark = pytest.mark.filterwarnings("ignore:create_react_agent has been moved")

Run = Callable[..., Any]


def only(**limits: Any) -> GraphLimits:
    """These limits alone."""
    return replace(GraphLimits(max_model_rounds=None), **limits)


# -- the model's answer ------------------------------------------------------------------------------


@pytest.mark.parametrize("run", BOTH)
@pytest.mark.parametrize(
    "make",
    [
        lambda chat: create_agent(chat, [look], system_prompt="Be brief."),
        lambda chat: create_react_agent(chat, [look], prompt="Be brief."),
        lambda chat: create_react_agent(chat, [look], prompt=SystemMessage("Be brief.")),
    ],
)
def test_the_agents_own_model_is_asked_with_its_system_message(make: Any, run: Run) -> None:
    """From a valid history, with a notice at the end that no tools are left; neither is in the state."""
    chat = forever("look")
    state = run(bound(make(chat), only(max_super_steps=3)))
    system, *history, notice = chat.sent[-1]
    assert (system.type, system.text) == ("system", "Be brief.")
    assert unanswered(history) == []
    assert isinstance(history[-1], ToolMessage)
    assert "Not run: max_super_steps is used up (3 of 3)" in history[-1].text
    assert isinstance(notice, HumanMessage)
    assert "No more tools can be called" in notice.text
    assert [m.type for m in state["messages"]] == ["human", "ai", "tool", "ai", "tool", "ai"]


@pytest.mark.parametrize("run", BOTH)
def test_another_model_may_give_the_answer(run: Run) -> None:
    """A smaller one, say."""
    chat, small = forever("look"), PlainChat(rule=lambda messages: says("Briefly: no."))
    state = run(bound(create_agent(chat, [look]), only(max_model_calls=3), finish=small))
    assert (chat.requests, small.requests, state["endstop"].text) == (2, 1, "Briefly: no.")


class CappedChat(FakeChat):
    """A chat model whose answers can be capped."""

    max_tokens: int = 5_000


def test_the_final_answer_is_capped_at_what_is_left() -> None:
    """It is ours to cap, as the requests of the graph are not."""
    caps: list[int] = []

    class Told(CappedChat):
        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            caps.append(self.max_tokens)
            return super()._generate(*args, **kwargs)

    chat = Told(rule=lambda messages: asks("look"))
    bound(create_agent(chat, [look]), only(max_output_tokens=100)).invoke(ASKED)
    assert set(caps[:-1]) == {5_000}
    assert 16 <= caps[-1] <= 100


@pytest.mark.parametrize("run", BOTH)
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ValueError("overloaded"), "the final answer failed: overloaded"),
        (AIMessage(""), "the final answer was empty"),
    ],
)
def test_an_answer_that_cannot_be_had_is_done_without(run: Run, answer: Any, why: str) -> None:
    """The ending says so, and the next rung takes its place."""

    def rule(messages: Any) -> AIMessage:
        if isinstance(answer, Exception):
            raise answer
        return answer

    state = run(bound(create_agent(forever("look"), [look]), only(max_model_calls=3), finish=PlainChat(rule=rule)))
    made = state["endstop"]
    assert (made.rung, made.reason) == ("tool_digest", f"max_model_calls is used up (3 of 3); {why}")
    assert "nothing here" in made.text


def test_an_answer_that_still_asks_for_tools_keeps_its_text_alone() -> None:
    """Nothing would answer the calls."""
    stubborn = PlainChat(rule=lambda messages: asks("look", text="I would look again."))
    state = bound(create_agent(forever("look"), [look]), only(max_model_calls=3), finish=stubborn).invoke(ASKED)
    assert state["endstop"].text == "I would look again."
    assert unanswered(state["messages"]) == []


@pytest.mark.parametrize("saver", [None, InMemorySaver()])
def test_messages_that_the_graph_keeps_to_itself_are_read_where_they_are_stored(saver: Any) -> None:
    """Without a checkpointer nobody but the graph has them, and the last text is the answer."""

    class State(MessagesState):
        answer: str

    class Output(TypedDict):
        answer: str

    chat = FakeChat(rule=lambda messages: asks("look", text="Let me look."))
    with_tools = chat.bind_tools([look])

    def think(state: State) -> Any:
        return {"messages": [with_tools.invoke(state["messages"])], "answer": "not yet"}

    builder = StateGraph(State, output_schema=Output)
    builder.add_node("think", think)
    builder.add_edge(START, "think")
    builder.add_edge("think", "think")
    graph = bound(builder.compile(checkpointer=saver), only(max_model_calls=3), loops=None)
    state = graph.invoke(ASKED, {"configurable": {"thread_id": "1"}})
    assert set(state) == {"answer", "endstop"}
    rung = ("last_text", "Let me look.") if saver is None else ("model_answer", FINAL)
    assert (state["endstop"].rung, state["endstop"].text) == rung


# -- the caller's own --------------------------------------------------------------------------------


@pytest.mark.parametrize("run", BOTH)
def test_a_function_of_the_state_may_end_the_run(run: Run) -> None:
    """It gets a valid history and gives an update of the state, which is merged as the graph would merge it."""
    seen: list[Any] = []

    def finish(state: Any) -> Any:
        seen.append(state)
        return {"messages": [AIMessage("Enough.")]}

    chat = forever("look")
    state = run(bound(create_agent(chat, [look]), only(max_super_steps=3), finish=finish))
    assert unanswered(seen[0]["messages"]) == []
    assert (state["endstop"].rung, state["endstop"].text) == ("model_answer", "Enough.")
    assert [m.type for m in state["messages"]] == ["human", "ai", "tool", "ai", "tool", "ai"]
    assert state["messages"][-1].response_metadata["endstop"]["limit"] == "max_super_steps"


async def test_the_function_may_be_async_where_the_graph_is() -> None:
    """In sync code it cannot be waited for; then the next rung takes its place."""

    async def finish(state: Any) -> Any:
        return {"messages": AIMessage("Enough.")}

    graph = bound(create_agent(forever("look"), [look]), only(max_model_calls=3), finish=finish)
    assert (await graph.ainvoke(ASKED))["endstop"].text == "Enough."
    made = graph.invoke(ASKED)["endstop"]
    assert made.rung == "tool_digest"
    assert "run the graph by ainvoke" in made.reason


@pytest.mark.parametrize("run", BOTH)
def test_what_the_function_spends_is_inside_the_limits(run: Run) -> None:
    """A model that it calls has the reserve, and nothing beyond it."""
    small = PlainChat(rule=lambda messages: says("Briefly: no."))

    def finish(state: Any) -> Any:
        return {"messages": [small.invoke(state["messages"])]}

    def greedy(state: Any) -> Any:
        return {"messages": [small.invoke(state["messages"]) for _ in range(5)]}

    chat = forever("look")
    state = run(bound(create_agent(chat, [look]), only(max_model_calls=3), finish=finish))
    assert (chat.requests, small.requests) == (2, 1)
    assert (state["endstop"].text, state["endstop"].spent.model_calls) == ("Briefly: no.", 3)
    state = run(bound(create_agent(chat, [look]), only(max_model_calls=3), finish=greedy))
    assert (chat.requests, small.requests, state["endstop"].rung) == (4, 2, "tool_digest")
    assert "finish failed" in state["endstop"].reason


@pytest.mark.parametrize("made", [None, "nothing", {"messages": "no message"}])
def test_a_function_that_gives_no_update_leaves_the_rest_to_the_ladder(made: Any) -> None:
    """What it gives that is no message is not made one."""
    state = bound(create_agent(forever("look"), [look]), only(max_model_calls=2), finish=lambda state: made).invoke(
        ASKED
    )
    assert all(isinstance(message, BaseMessage) for message in state["messages"])
    assert unanswered(state["messages"]) == []
    assert "endstop" in state


class Report(TypedDict):
    """A state without messages."""

    draft: str
    report: str


def writing(chat: BaseChatModel) -> Any:
    """A graph that drafts for ever, with a node that would publish."""

    def write(state: Report) -> Any:
        return {"draft": chat.invoke("Write.").text}

    def publish(state: Report, runtime: Runtime) -> Any:
        assert runtime.store is None
        return Command(update={"report": f"Cut short: {state['draft']}"}, goto=END)

    builder = StateGraph(Report)
    builder.add_node("write", write)
    builder.add_node("publish", publish)
    builder.add_edge(START, "write")
    builder.add_conditional_edges("write", lambda state: "write", ["write", "publish"])
    return builder.compile()


@pytest.mark.parametrize("run", BOTH)
def test_a_node_of_the_graph_may_end_the_run(run: Run) -> None:
    """It is run with the state, and what it asks to go to next is left undone."""
    chat = PlainChat(rule=lambda messages: says("A draft."))
    state = run(bound(writing(chat), only(max_model_calls=3), finish="publish", loops=None), {"draft": ""})
    assert state["report"] == "Cut short: A draft."
    assert (chat.requests, state["endstop"].rung) == (3, "model_answer")


def test_a_function_may_end_a_graph_without_messages() -> None:
    """Its update is the end."""
    chat = PlainChat(rule=lambda messages: says("A draft."))
    graph = bound(writing(chat), only(max_model_calls=2), finish=lambda state: {"report": state["draft"]}, loops=None)
    assert graph.invoke({"draft": ""})["report"] == "A draft."


def test_a_node_that_is_not_there_is_told_at_once() -> None:
    """Not when the run ends."""
    with pytest.raises(ConfigError, match="name of one of the graph's nodes"):
        bound(writing(PlainChat(rule=lambda messages: says("."))), only(), finish="print")
    with pytest.raises(ConfigError, match="a function of the state"):
        bound(writing(PlainChat(rule=lambda messages: says("."))), only(), finish=3)


# -- what stands below -------------------------------------------------------------------------------


def test_a_state_without_messages_has_its_last_text() -> None:
    """The text of the newest answer is in the ending."""
    chat = PlainChat(rule=lambda messages: says("A draft."))
    made = bound(writing(chat), only(max_model_calls=2), loops=None).invoke({"draft": ""})["endstop"]
    assert (made.rung, made.text) == ("last_text", "A draft.")


def test_the_last_message_is_the_answer_where_it_has_the_text() -> None:
    """It is marked as it stands, and said once."""

    def say(state: MessagesState) -> Any:
        return {"messages": [AIMessage("This far.")]}

    builder = StateGraph(MessagesState)
    builder.add_node("say", say)
    builder.add_edge(START, "say")
    builder.add_edge("say", "say")
    state = bound(builder.compile(), only(max_super_steps=1, on_limit="stop")).invoke(ASKED)
    assert [m.text for m in state["messages"]] == ["Where is the key?", "This far."]
    assert state["messages"][-1].response_metadata["endstop"]["rung"] == "last_text"


def test_the_model_is_told_when_limits_are_near() -> None:
    """At the end of the newest result, where that is asked for."""
    chat = forever("look")
    limits = only(max_model_calls=10, warn_at=0.5, warn_model=True)
    state = bound(create_agent(chat, [look]), limits).invoke(ASKED)
    told = [m.text for m in state["messages"] if isinstance(m, ToolMessage) and "near its limits" in m.text]
    assert len(told) == 1
    assert "max_model_calls: 5 of 10 used" in told[0]


def test_a_hook_before_the_agent_is_no_part_of_its_answer() -> None:
    """What it adds is the run's own, all the same."""

    @before_agent
    def greet(state: Any, runtime: Any) -> Any:
        return {"messages": [AIMessage("Hello.")]}

    state = bound(create_agent(forever("look"), [look], middleware=[greet]), only(max_model_calls=0)).invoke(ASKED)
    assert (state["endstop"].rung, state["endstop"].text) == ("last_text", "Hello.")


def test_results_that_are_lists_of_blocks_can_be_added_to() -> None:
    """The notice becomes a block of its own."""

    @tool
    def paint(place: str) -> list[dict[str, str]]:
        """Paint."""
        return [{"type": "text", "text": "blue"}]

    chat = in_order(*[asks(("paint", {"place": "wall"}))] * 3, says("Done."))
    state = bound(create_agent(chat, [paint]), only()).invoke(ASKED)
    last = [m for m in state["messages"] if isinstance(m, ToolMessage)][-1]
    assert "You are repeating yourself" in str(last.content)
    assert "endstop" not in state


def test_an_update_that_the_graph_does_not_know_is_left_out() -> None:
    """As LangGraph leaves out what a node gives beside the keys of the state."""
    graph = bound(create_agent(forever("look"), [look]), only(max_model_calls=2), finish=lambda state: {"nowhere": 1})
    assert set(graph.invoke(ASKED)) == {"messages", "endstop"}


def test_a_model_inside_a_chain_is_found() -> None:
    """Behind a prompt, and beside a chain that has none."""
    chat = PlainChat(rule=lambda messages: asks("look"))
    prompt = RunnableLambda(lambda text: text)
    thinking, reading = prompt | chat, prompt | prompt

    def think(state: MessagesState) -> Any:
        return {"messages": [thinking.invoke(reading.invoke(state["messages"]))]}

    builder = StateGraph(MessagesState)
    builder.add_node("think", think)
    builder.add_edge(START, "think")
    builder.add_edge("think", "think")
    assert [model for model, _ in chat_models_of(builder.compile())] == [chat]


def test_a_recursion_limit_below_is_told_as_that_of_the_graph_that_it_stopped() -> None:
    """A sub-agent that runs out of steps of its own ends the run, as it does without bounds."""
    child = create_agent(forever("look"), [look])

    def delegate(state: MessagesState) -> Any:
        child.invoke(ASKED, {"recursion_limit": 4})

    builder = StateGraph(MessagesState)
    builder.add_node("delegate", delegate)
    builder.add_edge(START, "delegate")
    made = bound(builder.compile(), only()).invoke(ASKED)["endstop"]
    assert (made.limit, made.allowed) == ("recursion_limit", 4)


@pytest.mark.parametrize("saver", [None, InMemorySaver()])
@pytest.mark.parametrize(
    "said", ["Enough.", ["Enough."], [("ai", "Enough.")], [{"role": "assistant", "content": "Enough."}]]
)
def test_a_function_may_give_messages_in_any_form_that_langgraph_takes(said: Any, saver: Any) -> None:
    """A bare text is the answer."""
    agent = create_agent(forever("look"), [look], checkpointer=saver)
    graph = bound(agent, only(max_model_calls=3), finish=lambda state: {"messages": said})
    state = graph.invoke(ASKED, {"configurable": {"thread_id": "1"}})
    assert (state["endstop"].rung, state["endstop"].text) == ("model_answer", "Enough.")
    assert (state["messages"][-1].type, state["messages"][-1].text) == ("ai", "Enough.")


def test_a_function_may_run_tools_of_its_own() -> None:
    """Calls that are answered stay; the last message asks for none."""
    said = [asks("look"), asks("look", text="Enough.")]
    agent = create_agent(forever("look"), [look])
    state = bound(agent, only(max_model_calls=3), finish=lambda state: {"messages": said}).invoke(ASKED)
    assert unanswered(state["messages"]) == []
    assert (state["endstop"].text, state["messages"][-1].tool_calls) == ("Enough.", [])


@pytest.mark.parametrize("saver", [None, InMemorySaver()])
@pytest.mark.parametrize(
    ("made", "why"),
    [
        (5, "finish gave no update of the state but int"),
        (None, "finish gave no update of the state but NoneType"),
        ([], "finish gave no update of the state but list"),
        ({}, "finish gave no answer"),
        ({"nowhere": 1}, "finish gave no answer"),
        ({"messages": [asks("look")]}, "finish gave no answer"),
        ({"messages": [5]}, "finish failed: "),
    ],
)
def test_what_a_function_gives_that_is_no_end_is_said_and_done_without(made: Any, why: str, saver: Any) -> None:
    """The next rung takes its place, and nothing is raised after all was paid."""
    agent = create_agent(forever("look"), [look], checkpointer=saver)
    graph = bound(agent, only(max_model_calls=3), finish=lambda state: made)
    state = graph.invoke(ASKED, {"configurable": {"thread_id": "1"}})
    assert state["endstop"].rung == "tool_digest"
    assert f"; {why}" in state["endstop"].reason
    assert unanswered(state["messages"]) == []


class Counted(BaseModel):
    """A state that is checked."""

    name: str
    count: int = 0


@pytest.mark.parametrize("run", BOTH)
@pytest.mark.parametrize("saver", [None, InMemorySaver()])
@pytest.mark.parametrize(("count", "rung"), [(7, "model_answer"), ("many", "empty")])
def test_an_update_that_the_schema_refuses_is_done_without(run: Run, saver: Any, count: Any, rung: str) -> None:
    """LangGraph would raise where it reads the state, when it is stored already."""
    builder = StateGraph(Counted)
    builder.add_node("count", lambda state: {"count": state.count + 1})
    builder.add_edge(START, "count")
    builder.add_conditional_edges("count", lambda state: "count", ["count", END])
    graph = bound(
        builder.compile(checkpointer=saver), only(max_super_steps=3), loops=None, finish=lambda s: {"count": count}
    )
    state = run(graph, {"name": "x"}, {"configurable": {"thread_id": f"{run} {count}"}})
    assert (state["count"], state["endstop"].rung) == (7 if count == 7 else 3, rung)
    assert ("finish failed" in state["endstop"].reason) == (count != 7)


def test_the_model_node_of_an_agent_ends_it_where_it_gives_a_text() -> None:
    """What it asks for is left undone."""
    made = bound(
        create_agent(forever("look", text="Not yet found."), [look]), only(max_super_steps=3), finish="model"
    ).invoke(ASKED)["endstop"]
    assert (made.rung, made.text) == ("model_answer", "Not yet found.")
    silent = bound(create_agent(forever("look"), [look]), only(max_super_steps=3), finish="model").invoke(ASKED)
    assert "finish gave no answer" in silent["endstop"].reason


def test_a_final_answer_that_is_interrupted_is_charged() -> None:
    """It was sent: whoever goes on does not send another one."""

    class Interrupted(FakeChat):
        def _answer(self, messages: list[BaseMessage], tools: tuple[str, ...]) -> Any:
            made = super()._answer(messages, tools)
            if not tools:
                raise KeyboardInterrupt
            return made

    chat = Interrupted(rule=lambda messages: asks("look"))
    graph = bound(create_agent(chat, [look], checkpointer=InMemorySaver()), only(max_model_calls=3))
    thread: Any = {"configurable": {"thread_id": "1"}}
    with pytest.raises(KeyboardInterrupt):
        graph.invoke(ASKED, thread)
    made = graph.invoke(None, thread)["endstop"]
    assert (chat.requests, made.spent.model_calls, made.spent.unmeasured) == (3, 3, 1)
