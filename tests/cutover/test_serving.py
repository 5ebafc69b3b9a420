"""What the kernel serves, though it might not look so: each is the same turn for its caller, in each way to run it."""

from __future__ import annotations

import asyncio
import operator
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated, Any, NotRequired

import langgraph.types
import pytest
from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import (
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    TodoListMiddleware,
    ToolCallLimitMiddleware,
    after_agent,
    after_model,
    before_agent,
    before_model,
    dynamic_prompt,
    wrap_model_call,
    wrap_tool_call,
)
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain.tools import ToolRuntime
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.cache.memory import InMemoryCache
from langgraph.config import get_stream_writer
from langgraph.errors import GraphRecursionError
from langgraph.prebuilt import InjectedState, InjectedStore, create_react_agent
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt
from pydantic import BaseModel, PydanticSchemaGenerationError

from .agents_for_tests import (
    TWO_ROUNDS,
    WAYS,
    Make,
    RuleChat,
    Shop,
    ainvoke,
    asked,
    asks,
    assert_same_turn,
    astream,
    in_turn,
    invoke,
    looking,
    pair,
    says,
    seen,
    stream,
)


class Found(BaseModel):
    """What was found."""

    text: str


@dataclass
class Caller:
    """Who calls."""

    name: str


class CallerModel(BaseModel):
    """Who calls."""

    name: str


class Counted(AgentState[Any]):
    """A state with a sum."""

    total: NotRequired[Annotated[int, operator.add]]


class Raw(BaseTool):
    """A tool whose schema is a dict."""

    name: str = "raw"
    description: str = "Look anywhere."
    args_schema: Any = {"type": "object", "properties": {"place": {"type": "string"}}}  # noqa: RUF012 - pydantic makes a field of it

    def _run(self, place: str = "") -> str:
        return f"raw {place}"


@tool
def count_messages(place: str, state: Annotated[dict[str, Any], InjectedState]) -> str:
    """Count."""
    return f"{len(state['messages'])} of {sorted(state)}"


@tool
def remember(place: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
    """Remember."""
    store.put(("places",), place, {"seen": True})
    return str([item.key for item in store.search(("places",))])


@tool
def note(place: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Note."""
    get_stream_writer()({"noting": place})
    return Command(update={"messages": [ToolMessage("noted", tool_call_id=tool_call_id)], "total": 7})


@tool
def finish(place: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Finish."""
    return Command(goto="__end__", update={"messages": [ToolMessage("finished", tool_call_id=tool_call_id)]})


@tool(return_direct=True)
def answer(place: str) -> str:
    """Answer."""
    return f"it is in the {place}"


def whole_runtime(place: str, runtime: ToolRuntime) -> str:
    """Tell of the runtime."""
    runtime.stream_writer({"at": place})
    return f"{runtime.context} {sorted(runtime.state)} {runtime.tool_call_id} {runtime.store is not None}"


def calls(name: str) -> RuleChat:
    """A chat model that calls a tool, then answers."""
    return in_turn(asks((name, {"place": "hall"})), says())


def with_runtime() -> Any:
    """An agent with a tool that is handed all that a tool can be."""
    try:
        made = tool(whole_runtime)
    except PydanticSchemaGenerationError:
        pytest.skip(f"langchain-core {version('langchain-core')} makes no tool of a function with a ToolRuntime")
    return create_agent(calls("whole_runtime"), [made], context_schema=Caller, store=InMemoryStore())


@before_model
def greet(state: Any, runtime: Any) -> dict[str, Any]:
    """Tell who calls, once."""
    return {"messages": [("system", f"{runtime.context} calls")]} if len(state["messages"]) == 1 else {}


@before_model(state_schema=Counted)
def add_one(state: Any, runtime: Any) -> dict[str, Any]:
    """Add to the sum."""
    return {"total": 1}


@before_agent
def begin(state: Any, runtime: Any) -> None:
    """Do nothing."""


@after_agent
def end(state: Any, runtime: Any) -> dict[str, Any]:
    """Say one thing more."""
    return {"messages": [AIMessage("goodbye", id="goodbye")]}


@after_model(can_jump_to=["end"])
def stop_early(state: Any, runtime: Any) -> dict[str, Any] | None:
    """End the turn at the second answer."""
    return {"jump_to": "end"} if len(state["messages"]) > 3 else None


@dynamic_prompt
def counted_prompt(request: Any) -> str:
    """A prompt for each round."""
    return f"{len(request.messages)} messages so far"


@wrap_model_call
def other_model(request: Any, handler: Any) -> Any:
    """Another model in each round."""
    request.model = in_turn(asks(("look", {"place": "attic"})), says("from the other"))
    return handler(request)


@wrap_model_call
async def other_model_async(request: Any, handler: Any) -> Any:
    """The same for async callers."""
    request.model = in_turn(asks(("look", {"place": "attic"})), says("from the other"))
    return await handler(request)


@wrap_tool_call
def in_capitals(request: Any, handler: Any) -> Any:
    """The result of a tool in capitals."""
    result = handler(request)
    return result.model_copy(update={"content": result.content.upper()})


@wrap_tool_call
async def in_capitals_async(request: Any, handler: Any) -> Any:
    """The same for async callers."""
    result = await handler(request)
    return result.model_copy(update={"content": result.content.upper()})


def middle(*middleware: Any, answers: Any = TWO_ROUNDS) -> Make:
    """Makes an agent with this middleware."""
    return lambda: looking(middleware=middleware, answers=answers)


def react(chat: Callable[[], Any] = lambda: in_turn(*TWO_ROUNDS), *, tools: Any = None, **options: Any) -> Make:
    """Makes LangGraph's older agent."""
    return lambda: create_react_agent(chat(), tools or [Shop().look], **options)


def named(name: str, body: Any, **options: Any) -> Make:
    """Makes an agent that calls one tool."""
    return lambda: create_agent(calls(name), [body], **options)


FOREVER = (asks(("look", {"place": "hall"})),)

SERVED: dict[str, Make] = {
    "an agent": looking,
    "a name and a prompt": lambda: looking(name="Finder", system_prompt="Find it."),
    "no tools": lambda: create_agent(in_turn(says()), []),
    "middleware:<Name>, hooks": middle(begin, add_one, end),
    "middleware:<Name>, jumps": middle(stop_early, answers=FOREVER),
    "middleware:<Name>, tool calls": middle(in_capitals),
    "middleware:<Name>, ModelCallLimit": middle(ModelCallLimitMiddleware(run_limit=2), answers=FOREVER),
    "middleware:<Name>, ToolCallLimit": middle(
        ToolCallLimitMiddleware(run_limit=2, exit_behavior="end"), answers=FOREVER
    ),
    "middleware:<Name>, TodoList": lambda: create_agent(
        in_turn(asks(("write_todos", {"todos": [{"content": "look", "status": "pending"}]})), says()),
        [Shop().look],
        middleware=[TodoListMiddleware()],
    ),
    "context_schema, a dataclass": lambda: looking(context_schema=Caller, middleware=[greet]),
    "context_schema, a model": lambda: looking(context_schema=CallerModel, middleware=[greet]),
    "context_schema, in a tool": with_runtime,
    "tool_injected_state": named("count_messages", count_messages),
    "tool_injected_store": lambda: create_agent(calls("remember"), [remember], store=InMemoryStore()),
    "tool_returns_command": named("note", note, state_schema=Counted),
    "tool_returns_command, that ends": named("finish", finish),
    "tool_without_schema": named("raw", Raw()),
    "tool_without_schema, of a provider": lambda: create_agent(calls("look"), [Shop().look, {"type": "web_search"}]),
    "a tool that answers itself": named("answer", answer),
    "a tool that nobody has": lambda: create_agent(calls("nope"), [Shop().look]),
    "arguments that do not fit": lambda: create_agent(in_turn(asks(("look", {"where": 1})), says()), [Shop().look]),
    "response_format:<kind>, ToolStrategy": lambda: create_agent(
        in_turn(asks(("Found", {"texts": 1})), asks(("Found", {"text": "key"}))),
        [Shop().look],
        response_format=ToolStrategy(Found),
    ),
    "response_format:<kind>, ProviderStrategy": lambda: create_agent(
        in_turn(asks(("look", {"place": "hall"})), says('{"text": "key"}')),
        [Shop().look],
        response_format=ProviderStrategy(Found),
    ),
    "response_format:<kind>, a schema": lambda: create_agent(
        in_turn(asks(("look", {"place": "hall"})), asks(("Found", {"text": "key"}))),
        [Shop().look],
        response_format=Found,
    ),
    "response_format:<kind>, of the older agent": react(response_format=Found),
    "dynamic_model": middle(other_model),
    "dynamic_model, of the older agent": lambda: create_react_agent(
        lambda state, runtime: in_turn(*TWO_ROUNDS).bind_tools([]), [Shop().look]
    ),
    "dynamic_prompt": middle(counted_prompt),
    "dynamic_prompt, of the older agent": react(prompt=lambda state: [("system", "Find."), *state["messages"]]),
    "pre_model_hook": react(pre_model_hook=lambda state: {"llm_input_messages": state["messages"][-2:]}),
    "post_model_hook": react(post_model_hook=lambda state: {}),
    "cache": lambda: looking(cache=InMemoryCache()),
    "the older agent": react(),
    "the older agent, v1": react(version="v1"),
    "the older agent with commands": react(lambda: calls("finish"), tools=[finish]),
}


ASYNC: dict[str, Make] = {
    "dynamic_model": middle(other_model_async),
    "middleware:<Name>, tool calls": middle(in_capitals_async),
}
"""What is made in another way for async callers."""


def options_of(name: str) -> dict[str, Any]:
    """The options of a call of the agent of that name."""
    return {"context": {"name": "Ada"}} if name.startswith("context_schema") else {}


@pytest.mark.parametrize("way", [stream, astream], ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", SERVED)
def test_a_turn_is_the_same_on_the_kernel(name: str, way: Callable[..., Any]) -> None:
    """What the caller is told, in all modes at once, is what the original tells."""
    make = ASYNC.get(name, SERVED[name]) if way is astream else SERVED[name]
    assert_same_turn(pair(make), way, asked(), **options_of(name))


FORMS: list[dict[str, Any]] = [
    {"stream_mode": "values"},
    {"stream_mode": "updates"},
    {"stream_mode": "messages"},
    {"stream_mode": ["updates"]},
    {"stream_mode": []},
    {"stream_mode": None},
    {"subgraphs": True},
    {"subgraphs": True, "stream_mode": "values"},
    {"output_keys": "messages"},
    {"output_keys": ["messages"]},
    {"context": None, "debug": False, "print_mode": ()},
]


@pytest.mark.parametrize("options", FORMS, ids=str)
@pytest.mark.parametrize("way", [stream, astream], ids=lambda way: way.__name__)
def test_chunks_come_in_every_form(way: Callable[..., Any], options: dict[str, Any]) -> None:
    """Each form of a stream that the kernel serves is the original's."""
    assert_same_turn(pair(looking), way, asked(), **options)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_second_form_is_told_where_there_is_one(way: Callable[..., Any]) -> None:
    """`version="v2"` gives typed parts; a LangGraph that does not know it takes no notice, so its graph serves that."""
    both = pair(looking)
    assert seen(way, both.moved, asked(), version="v2") == seen(way, both.legacy, asked(), version="v2")
    assert both.refused == [() if hasattr(langgraph.types, "GraphOutput") else ("option:version",)]


@pytest.mark.parametrize("options", [{"stream_mode": "updates"}, {"output_keys": "messages"}], ids=str)
@pytest.mark.parametrize("way", WAYS[:2], ids=lambda way: way.__name__)
def test_invoke_gives_every_form(way: Callable[..., Any], options: dict[str, Any]) -> None:
    """`invoke` with a mode or a key of its own gives what the original gives."""
    assert_same_turn(pair(looking), way, asked(), **options)


INPUTS: list[dict[str, Any]] = [
    {},
    {"messages": []},
    {"messages": "Where?"},
    {"messages": ("user", "Where?")},
    {"messages": [{"role": "user", "content": "Where?"}], "nope": 1},
    {"messages": [3.5]},
    {"nope": 1},
]


@pytest.mark.parametrize("given", INPUTS, ids=lambda given: str(given)[:40])
@pytest.mark.parametrize("way", WAYS[:2], ids=lambda way: way.__name__)
def test_every_input_is_taken_or_refused_as_by_the_graph(way: Callable[..., Any], given: dict[str, Any]) -> None:
    """What LangGraph takes for an input, and its errors for what it does not."""
    assert_same_turn(pair(looking), way, given)


@pytest.mark.parametrize("limit", range(1, 7))
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_limit_cuts_where_the_graph_is_cut(way: Callable[..., Any], limit: int) -> None:
    """At each `recursion_limit` the turn ends at the same super-step, with the same error or none."""
    assert_same_turn(pair(looking), way, asked(), {"recursion_limit": limit})


def test_the_error_of_a_limit_is_langgraphs() -> None:
    """Callers catch it by its class."""
    with pytest.raises(GraphRecursionError, match="Recursion limit of 2 reached"):
        pair(looking).moved.invoke(asked(), {"recursion_limit": 2})


class Failing:
    """A tool that fails, and how often it was tried."""

    def __init__(self) -> None:
        self.tried = 0

    def look(self, place: str) -> str:
        """Look in a place."""
        self.tried += 1
        raise OSError(f"cannot look in the {place}")


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_an_error_is_the_callers_and_nothing_runs_again(way: Callable[..., Any]) -> None:
    """A tool's own exception comes out unchanged, and the graph does not try the turn again."""
    tools = [Failing(), Failing()]
    waiting = iter(tools)
    chats: list[RuleChat] = []

    def make() -> Any:
        chats.append(in_turn(*TWO_ROUNDS))
        return create_agent(chats[-1], [tool(next(waiting).look)])

    both = pair(make)
    assert_same_turn(both, way, asked())
    assert [one.tried for one in tools] == [1, 1]
    assert [len(chat.sent) for chat in chats] == [1, 1]
    assert [record.error for record in both.ledger.records()] == ["OSError"]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_parallel_calls_give_the_same_state(way: Callable[..., Any]) -> None:
    """Several calls of one answer: their chunks come in some order, the state in that of the calls."""
    answers = (asks(*(("look", {"place": f"room {index}"}) for index in range(4))), says())
    both = pair(lambda: looking(answers=answers))
    legacy, moved = (seen(way, graph, asked(), stream_mode="values") for graph in (both.legacy, both.moved))
    assert moved == legacy
    assert both.served == ["kernel"]


def ask_person(place: str) -> str:
    """Ask a person."""
    return str(interrupt({"place": place}))


QUESTIONS: dict[str, Make] = {
    "a tool": lambda: create_agent(in_turn(asks(("ask_person", {"place": "hall"}))), [ask_person]),
    "two tools": lambda: create_agent(in_turn(asks(*[("ask_person", {"place": "hall"})] * 2)), [ask_person]),
    "after a tool": lambda: create_agent(
        in_turn(asks(("look", {"place": "hall"}), ("ask_person", {"place": "attic"}))), [Shop().look, ask_person]
    ),
    "approval": lambda: looking(middleware=[HumanInTheLoopMiddleware({"look": True})]),
    "the older agent": react(lambda: in_turn(asks(("ask_person", {"place": "hall"}))), tools=[ask_person]),
}


TOLD: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (invoke, {}),
    (ainvoke, {}),
    (stream, {"stream_mode": "values"}),
    (astream, {"stream_mode": "updates"}),
]


@pytest.mark.parametrize(("way", "options"), TOLD, ids=lambda told: getattr(told, "__name__", str(told)))
@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_is_told_in_the_same_form(name: str, way: Callable[..., Any], options: dict[str, Any]) -> None:
    """A list in what `invoke` gives, a tuple in chunks; last, the state with what ran beside it."""
    both = pair(QUESTIONS[name])
    told = [seen(way, graph, asked(), **options) for graph in (both.moved, both.legacy)]
    if "stream_mode" in options:
        # Tasks of one super-step end in any order.
        told = ["".join(sorted(text)) for text in told]
    assert told[0] == told[1]
    assert both.served == ["kernel"]


def test_a_question_is_told_before_what_runs_beside_it_ends() -> None:
    """Whoever watches the stream can answer while another tool is still at work."""
    was_told = threading.Event()
    waited: list[bool] = []

    def wait(place: str) -> str:
        """Wait until the question is told."""
        waited.append(was_told.wait(timeout=20))
        return place

    answers = (asks(("ask_person", {"place": "hall"}), ("wait", {"place": "attic"})), says())
    both = pair(lambda: create_agent(in_turn(*answers), [ask_person, wait]))

    async def watch() -> None:
        async for chunk in both.moved.astream(asked(), stream_mode="updates"):
            if "__interrupt__" in chunk:
                was_told.set()

    asyncio.run(watch())
    assert waited == [True]


class Heard(BaseCallbackHandler):
    """Keeps the names of the runs that begin and how many ended."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ended = 0

    def on_chain_start(self, serialized: Any, inputs: Any, **kwargs: Any) -> None:
        self.began.append(str(kwargs.get("name")))

    def on_chain_end(self, outputs: Any, **kwargs: Any) -> None:
        self.ended += 1


def test_callbacks_hear_the_same_runs() -> None:
    """A tracer sees the agent and its nodes, each begun and ended."""
    both = pair(looking)
    heard = [Heard(), Heard()]
    for graph, handler in zip((both.legacy, both.moved), heard, strict=True):
        invoke(graph, asked(), {"callbacks": [handler], "run_name": "finding"})
    assert heard[1].began == heard[0].began
    assert heard[1].ended == heard[0].ended


@pytest.mark.parametrize("bound", [1, 2, None])
def test_the_callers_bound_on_what_runs_at_once_holds(bound: int | None) -> None:
    """`max_concurrency` counts the tools of one answer."""
    busy: list[int] = []
    at_work: set[str] = set()

    async def work(place: str) -> str:
        """Work in a place."""
        at_work.add(place)
        busy.append(len(at_work))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        at_work.remove(place)
        return place

    answers = (asks(*(("work", {"place": f"room {index}"}) for index in range(3))), says())
    both = pair(lambda: create_agent(in_turn(*answers), [work]))
    asyncio.run(both.moved.ainvoke(asked(), {"max_concurrency": bound} if bound else {}))
    assert both.served == ["kernel"]
    assert max(busy) == (bound or 3)
