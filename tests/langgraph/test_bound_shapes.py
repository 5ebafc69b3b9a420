"""What a bound graph hands over: where no limit is met exactly what the graph does, and where one is, that it was."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent, middleware
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import create_react_agent
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from endstop import LoopPolicy
from endstop.langgraph import GraphEnding, GraphLimits, bound

from .fakes import ASKED, FINAL, Looker, PlainChat, asks, forever, in_order, look, says

pytestmark = pytest.mark.filterwarnings("ignore:create_react_agent has been moved")

FAR = GraphLimits(max_model_rounds=100, max_tool_calls=100, max_super_steps=500, max_tokens=10**7, max_seconds=600)
"""Limits that no run here meets, of every kind of check."""

MODES = [
    "values",
    "updates",
    "messages",
    "custom",
    "tasks",
    "debug",
    "checkpoints",
    ["values"],
    ["updates", "messages"],
]


def agent() -> Any:
    """An agent that calls two tools at once, one more, and answers."""
    chat = in_order(asks("look", "listen"), asks("look"), says("Under the mat."))
    return create_agent(chat, [look, Looker("listen").tool])


def hooked() -> Any:
    """An agent with a node before and after its model."""

    @middleware.before_model
    def before(state: Any, runtime: Any) -> None:
        return None

    @middleware.after_agent
    def after(state: Any, runtime: Any) -> dict[str, Any]:
        return {"messages": [AIMessage("Tidied up.", id="tidy")]}

    return create_agent(in_order(asks("look"), says("Under the mat.")), [look], middleware=[before, after])


def react() -> Any:
    """LangGraph's own agent."""
    return create_react_agent(in_order(asks("look"), says("Under the mat.")), [look])


def fan_out() -> Any:
    """Parallel branches that meet, and write to a stream of their own; the output leaves out a part of the state."""

    class State(TypedDict):
        topics: list[str]
        found: Annotated[list[str], operator.add]
        report: str

    class Output(TypedDict):
        report: str

    chat = PlainChat(rule=lambda messages: says(f"All about {messages[-1].text}."))

    def research(state: Any) -> Any:
        get_stream_writer()({"about": state["topic"]})
        return {"found": [chat.invoke(state["topic"]).text]}

    builder = StateGraph(State, output_schema=Output)
    builder.add_node("split", lambda state: {})
    builder.add_node("research", research)
    builder.add_node("write", lambda state: {"report": " ".join(sorted(state["found"]))})
    builder.add_edge(START, "split")
    builder.add_conditional_edges(
        "split", lambda state: [Send("research", {"topic": topic}) for topic in state["topics"]], ["research"]
    )
    builder.add_edge("research", "write")
    builder.add_edge("write", END)
    return builder.compile()


def nested() -> Any:
    """An agent as a node of another graph."""
    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent())
    builder.add_edge(START, "agent")
    builder.add_edge("agent", END)
    return builder.compile()


def typed() -> Any:
    """A graph whose state is a pydantic model."""

    class State(BaseModel):
        text: str
        count: int = 0

    builder = StateGraph(State)
    builder.add_node("count", lambda state: {"count": state.count + 1})
    builder.add_edge(START, "count")
    builder.add_edge("count", END)
    return builder.compile()


GRAPHS: list[tuple[Callable[[], Any], Any]] = [
    (agent, ASKED),
    (hooked, ASKED),
    (react, ASKED),
    (fan_out, {"topics": ["keys", "mats"]}),
    (nested, ASKED),
    (typed, {"text": "hello"}),
]
EACH_GRAPH = pytest.mark.parametrize(("make", "given"), GRAPHS, ids=[make.__name__ for make, _ in GRAPHS])


def plain(value: Any, names: dict[str, str] | None = None) -> Any:
    """The value with every id and time, which differ from run to run, replaced by the order of its first appearance."""
    names = {} if names is None else names
    if isinstance(value, BaseMessage):
        return type(value).__name__, plain(dict(value), names)
    if isinstance(value, BaseModel):
        return type(value).__name__, plain(dict(value), names)
    if isinstance(value, dict):
        return {key: plain(one, names) for key, one in value.items() if key not in ("timestamp", "ts", "step_time")}
    if isinstance(value, list | tuple):
        return type(value).__name__, [plain(one, names) for one in value]
    if isinstance(value, str):
        return _named(value, names)
    return value if isinstance(value, int | float | bool | None) else (type(value).__name__, repr(value)[:20])


def _named(text: str, names: dict[str, str]) -> str:
    is_id = any(mark in text for mark in ("-4", "call-", "run--", "place ")) or text.count("-") >= 4
    return names.setdefault(text, f"<{len(names)}>") if is_id else text


def ordered(chunks: Sequence[Any]) -> list[Any]:
    """Chunks with their ids made plain, the parallel ones in a fixed order."""
    return sorted((plain(chunk) for chunk in chunks), key=repr)


@EACH_GRAPH
@pytest.mark.parametrize("subgraphs", [False, True])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_stream_is_the_same_in_every_mode(make: Any, given: Any, mode: Any, subgraphs: bool) -> None:
    """Chunk for chunk, with the namespaces of subgraphs where they are asked for."""
    bare = ordered(list(make().stream(given, stream_mode=mode, subgraphs=subgraphs)))
    assert ordered(list(bound(make(), FAR).stream(given, stream_mode=mode, subgraphs=subgraphs))) == bare


@EACH_GRAPH
@pytest.mark.parametrize("mode", [None, *MODES], ids=str)
async def test_an_async_stream_is_the_same_in_every_mode(make: Any, given: Any, mode: Any) -> None:
    """Also where no mode is named."""
    bare = ordered([chunk async for chunk in make().astream(given, stream_mode=mode)])
    assert ordered([chunk async for chunk in bound(make(), FAR).astream(given, stream_mode=mode)]) == bare


@EACH_GRAPH
@pytest.mark.parametrize(
    "options",
    [{}, {"stream_mode": "updates"}, {"stream_mode": ["updates", "values"]}, {"output_keys": []}, {"version": "v2"}],
    ids=str,
)
async def test_a_result_is_the_same(make: Any, given: Any, options: Any) -> None:
    """Whatever shape of it is asked for, by invoke and by ainvoke."""
    if options.get("version") and not has_versions():
        pytest.skip("this version of langgraph has one version of its results")

    def seen(result: Any) -> Any:
        return ordered(result) if isinstance(result, list) else plain(result)

    bare = seen(make().invoke(given, **options))
    assert seen(bound(make(), FAR).invoke(given, **options)) == bare
    assert seen(await bound(make(), FAR).ainvoke(given, **options)) == bare


def has_versions() -> bool:
    """Whether this LangGraph has the second version of its results."""
    return (
        "version"
        in inspect.signature(
            StateGraph(MessagesState).add_node("a", print).set_entry_point("a").compile().invoke
        ).parameters
    )


@EACH_GRAPH
async def test_batches_and_events_are_the_same(make: Any, given: Any) -> None:
    """Each input of a batch is a run of its own; the events are those of the graph, in its order."""
    assert plain(bound(make(), FAR).batch([given] * 2)) == plain(make().batch([given] * 2))
    assert plain(await bound(make(), FAR).abatch([given] * 2)) == plain(await make().abatch([given] * 2))
    events = [(e["event"], e["name"]) async for e in bound(make(), FAR).astream_events(given)]
    assert sorted(events) == sorted([(e["event"], e["name"]) async for e in make().astream_events(given)])


@pytest.mark.parametrize("output_keys", ["messages", ["messages"]])
def test_chosen_keys_are_the_same(output_keys: Any) -> None:
    """A single key is given bare."""
    bare = plain(agent().invoke(ASKED, output_keys=output_keys))
    assert plain(bound(agent(), FAR).invoke(ASKED, output_keys=output_keys)) == bare


@pytest.mark.parametrize("run", ["invoke", "stream"])
def test_a_pause_is_the_same_with_and_without_a_checkpointer(run: str) -> None:
    """The interrupt is handed over as LangGraph does, and the answer to it goes in as it would."""

    def make(saver: Any) -> Any:
        builder = StateGraph(MessagesState)
        builder.add_node("ask", lambda state: {"messages": [AIMessage(interrupt("May I?"), id="said")]})
        builder.add_edge(START, "ask")
        builder.add_edge("ask", END)
        return builder.compile(checkpointer=saver)

    config = {"configurable": {"thread_id": "1"}}
    for saver in (None, InMemorySaver):
        results = []
        for graph in (make(saver and saver()), bound(make(saver and saver()), FAR)):
            first = getattr(graph, run)(ASKED, config)
            made = [first if run == "invoke" else list(first)]
            if saver:
                second = getattr(graph, run)(Command(resume="Yes."), config)
                made.append(second if run == "invoke" else list(second))
            results.append(plain(made))
        assert results[0] == results[1]


def test_the_history_of_a_thread_is_the_same() -> None:
    """What is kept beside the thread is not in the graph's own history."""
    config: Any = {"configurable": {"thread_id": "1"}}
    histories = []
    for wrap in (lambda graph: graph, lambda graph: bound(graph, FAR)):
        graph = wrap(create_agent(in_order(asks("look"), says("Done.")), [look], checkpointer=InMemorySaver()))
        graph.invoke(ASKED, config)
        histories.append(
            [(one.next, one.metadata, len(one.values.get("messages", ()))) for one in graph.get_state_history(config)]
        )
    assert plain(histories[0]) == plain(histories[1])


def test_errors_come_out_as_they_are() -> None:
    """A tool that fails fails as it would."""

    def failing(state: MessagesState) -> Any:
        raise KeyError("nothing there")

    builder = StateGraph(MessagesState)
    builder.add_node("failing", failing)
    builder.add_edge(START, "failing")
    with pytest.raises(KeyError, match="nothing there") as raised:
        bound(builder.compile(), FAR).invoke(ASKED)
    assert any("During task with name 'failing'" in note for note in raised.value.__notes__)


# -- the end of a run that is cut ----------------------------------------------------------------------------------


def cut() -> Any:
    """An agent that is cut at its third request."""
    return bound(create_agent(forever("look"), [look]), GraphLimits(max_model_calls=3))


def endings(mode: str, payload: Any) -> Iterator[GraphEnding]:
    """The ending in a last chunk of a mode."""
    match mode:
        case "values":
            yield payload["endstop"]
        case "updates":
            yield payload["endstop"]["endstop"]
        case "custom":
            yield payload
        case "tasks":
            yield payload["endstop"]
        case "debug":
            yield payload["payload"]["endstop"]


@pytest.mark.parametrize("subgraphs", [False, True])
@pytest.mark.parametrize("mode", ["values", "updates", "custom", "tasks", "debug"])
async def test_the_last_chunk_of_a_stream_is_the_ending(mode: str, subgraphs: bool) -> None:
    """In the shape of its mode, bare or with mode and namespace."""
    for options in ({"stream_mode": mode}, {"stream_mode": [mode]}):
        *_, last = cut().stream(ASKED, subgraphs=subgraphs, **options)
        last_async = [chunk async for chunk in cut().astream(ASKED, subgraphs=subgraphs, **options)][-1]
        for chunk in (last, last_async):
            if subgraphs:
                assert chunk[0] == ()
            if isinstance(options["stream_mode"], list):
                assert chunk[-2] == mode
            payload = chunk[-1] if subgraphs or isinstance(options["stream_mode"], list) else chunk
            (ending,) = endings(mode, payload)
            assert (ending.limit, ending.text) == ("max_model_calls", FINAL)


def test_the_last_message_of_a_stream_is_the_final_answer() -> None:
    """With the ending in its metadata."""
    *_, (message, metadata) = cut().stream(ASKED, stream_mode="messages")
    assert (message.text, metadata["langgraph_node"]) == (FINAL, "endstop")
    assert message.response_metadata["endstop"]["limit"] == "max_model_calls"


def test_every_mode_of_a_stream_gets_its_last_chunk() -> None:
    """The state comes last, as it does for a graph."""
    chunks = list(cut().stream(ASKED, stream_mode=["updates", "messages", "custom", "values"]))
    assert [mode for mode, _ in chunks[-4:]] == ["updates", "messages", "custom", "values"]
    assert chunks[-1][1]["messages"][-1].text == FINAL


async def test_the_events_of_a_cut_run_end_with_one_that_tells_so() -> None:
    """A custom event of the name `endstop`, after everything else."""
    events = [event async for event in cut().astream_events(ASKED)]
    assert (events[-1]["event"], events[-1]["name"]) == ("on_custom_event", "endstop")
    assert events[-1]["data"].limit == "max_model_calls"
    assert events[-1]["run_id"] == events[0]["run_id"]


async def test_every_run_of_a_batch_has_its_own_limits() -> None:
    """One is cut and the other is not."""
    chat = in_order(says("Here."))
    short = {"messages": [("user", "a")]}
    assert ["endstop" in state for state in bound(create_agent(chat, [look]), FAR).batch([short, short])] == [
        False,
        False,
    ]
    states = cut().batch([ASKED] * 3) + await cut().abatch([ASKED] * 3)
    assert [state["endstop"].spent.model_calls for state in states] == [3] * 6


def test_lists_of_chunks_and_single_keys_keep_the_mark() -> None:
    """Where there is no place for a key, the last message says it."""
    messages = cut().invoke(ASKED, output_keys="messages")
    assert messages[-1].response_metadata["endstop"]["limit"] == "max_model_calls"
    chunks = cut().invoke(ASKED, stream_mode="updates")
    assert chunks[-1]["endstop"]["endstop"].limit == "max_model_calls"


def test_the_second_version_of_results_has_it_in_its_value() -> None:
    """`GraphOutput.value` has the key, and each part of a stream says what it is."""
    if not has_versions():
        pytest.skip("this version of langgraph has one version of its results")
    assert cut().invoke(ASKED, version="v2").value["endstop"].limit == "max_model_calls"
    *_, last = cut().stream(ASKED, stream_mode=["updates", "values"], version="v2")
    assert (last["type"], last["ns"], last["interrupts"]) == ("values", (), ())
    assert last["data"]["endstop"].text == FINAL


def test_loops_alone_are_bounds_too() -> None:
    """With every limit off a graph is only watched for loops; with neither it is the graph itself."""
    nothing = GraphLimits(max_model_rounds=None, max_depth=None)
    chat = forever(("look", {"place": "the mat"}))
    assert bound(create_agent(chat, [look]), nothing, loops=LoopPolicy()).invoke(ASKED)["endstop"].stop_reason == "loop"


def test_a_stream_without_modes_gives_nothing() -> None:
    """As the graph does."""
    assert list(agent().stream(ASKED, stream_mode=[])) == []
    assert list(cut().stream(ASKED, stream_mode=[])) == []
