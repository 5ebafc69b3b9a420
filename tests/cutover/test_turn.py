"""A turn on the kernel, seen from outside, is the turn of the original: chunks, results, errors, callbacks."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from dataclasses import replace
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents import middleware as library
from langchain.tools import InjectedState
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.config import get_config, get_stream_writer
from langgraph.runtime import get_runtime
from langgraph.types import Command, Send

from .scripts import (
    HOOKS,
    KINDS,
    MIDDLEWARE,
    MODES,
    SURFACES,
    TOOL_NAMES,
    Call,
    Kind,
    Script,
    ScriptedChat,
    Surface,
    on_kernel,
    seen,
)

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")
HI: dict[str, Any] = {"messages": [HumanMessage("hi", id="question")]}
TWO_ROUNDS = ((Call(tool="double"), Call(tool="halve", x=4)), (Call(tool="double", x=3),), "six")


def same(script: Script) -> list[object]:
    """What a caller sees of the script, the same on both bodies."""
    agent, ledger = on_kernel(script.agent())
    told = seen(agent, script)
    assert told == seen(script.agent(), script)
    assert [record.served_by for record in ledger.records()] == ["kernel"]
    return told


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_each_stream_mode_tells_the_same(kind: Kind, mode: str | list[str]) -> None:
    """Sync and async, token by token or whole, with the namespaces of subgraphs or without, all keys or one."""
    script = Script(kind=kind, answers=TWO_ROUNDS, mode=mode)
    same(replace(script, streams=True))
    same(replace(script, surface="astream", subgraphs=True))
    same(replace(script, output_keys="messages"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_limit_ends_the_turn_at_the_same_place(kind: Kind) -> None:
    """The chunks before it and the error, or the "Sorry" of create_react_agent, are the same."""
    for limit in (1, 2, 3, 4, 7, 8):
        endless = Script(kind=kind, answers=((Call(tool="double"),),) * 9, limit=limit, mode=["updates", "values"])
        told = same(endless)
        assert "GraphRecursionError" in str(told[-1]) or "Sorry, need more steps" in str(told[-1])


@pytest.mark.parametrize("name", [*TOOL_NAMES, "unknown"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_tool_does_the_same(kind: Kind, name: str) -> None:
    """Alone, beside another, and with arguments that do not fit."""
    answers = ((Call(tool=name), Call(tool="double")), (Call(tool=name, x="much"),), "text")
    for surface in ("invoke", "astream"):
        same(Script(kind=kind, answers=answers, surface=surface, mode=["updates", "custom"]))
    same(Script(kind=kind, answers=((Call(tool=name),), "text"), surface="stream", mode="values"))


@pytest.mark.parametrize("name", MIDDLEWARE)
def test_each_middleware_does_the_same(name: str) -> None:
    """Hooks, jumps, wrappers, limits and states of its own."""
    answers = ((Call(tool="double"), Call(tool="double", x=2)), (Call(tool="fail"),), "", (Call(tool="halve"),))
    for surface in ("stream", "ainvoke"):
        same(Script(answers=answers, middleware=(name,), surface=surface, mode=["updates", "values"]))
    same(Script(answers=("first", "second"), middleware=tuple({name, "sign"})))


@pytest.mark.parametrize("hooks", [("pre_model_hook",), ("post_model_hook",), (*HOOKS,)])
def test_each_hook_of_create_react_agent_does_the_same(hooks: tuple[str, ...]) -> None:
    """And costs the same super-steps."""
    for limit in (1, 2, 3, 5, 7):
        same(Script(kind="create_react_agent v2", answers=TWO_ROUNDS, hooks=hooks, limit=limit, mode="updates"))


def test_structured_answers_are_asked_for_as_often() -> None:
    """One that does not fit, one beside a tool call, two at once, then a good one."""
    bad, good = Call(tool="Verdict", x="perhaps"), Call(tool="Verdict", x=True)
    for answers in (((bad,), (good,)), ((good, Call(tool="double")),), ((good, good), (good,)), ("text", (good,))):
        for surface in ("invoke", "astream"):
            same(Script(answers=answers, structured=True, surface=surface, limit=9))


# --- errors ---------------------------------------------------------------------------------------------------------


class Trouble(Exception):
    """An error of a tool."""


def agent_of(*tools: Any, calls: tuple[Call, ...] | None = None, **options: Any) -> Any:
    asked = calls if calls is not None else tuple(Call(tool=one.name) for one in tools)
    return on_kernel(create_agent(ScriptedChat(answers=(asked, "done")), tools, **options))[0]


@pytest.mark.parametrize("is_async", [False, True])
def test_the_error_of_a_tool_is_the_callers_with_its_note(is_async: bool) -> None:
    """The very exception, with what LangGraph notes on it."""
    trouble = Trouble("out of order")

    @tool
    def broken(x: int) -> str:
        """Break."""
        raise trouble

    with pytest.raises(Trouble) as raised:
        asyncio.run(agent_of(broken).ainvoke(HI)) if is_async else agent_of(broken).invoke(HI)
    assert raised.value is trouble
    assert [note[:34] for note in trouble.__notes__] == ["During task with name 'tools' and "]


async def test_what_runs_beside_a_failed_tool_is_cancelled() -> None:
    """Nothing goes on that nobody waits for."""
    did: list[str] = []

    @tool
    async def slow(x: int) -> str:
        """Wait."""
        try:
            await asyncio.Event().wait()
        finally:
            did.append("ended")
        return ""

    @tool
    async def broken(x: int) -> str:
        """Break."""
        await asyncio.sleep(0.01)
        raise Trouble

    with pytest.raises(Trouble):
        await agent_of(slow, broken).ainvoke(HI)
    assert did == ["ended"]


@pytest.mark.parametrize("surface", SURFACES)
def test_retries_of_models_and_tools_are_the_same(surface: Surface) -> None:
    """What is tried again is tried as often, and the last error is told in the same words."""

    def agent() -> Any:
        names = [name for name in ("ModelRetryMiddleware", "ToolRetryMiddleware") if hasattr(library, name)]
        busy = (ValueError("busy"),) if "ModelRetryMiddleware" in names else ()
        answers = (*busy, (Call(tool="broken"),), "text")

        @tool
        def broken(x: int) -> str:
            """Break."""
            raise Trouble("still out of order")

        retries = [getattr(library, name)(max_retries=1, initial_delay=0, jitter=False) for name in names]
        return create_agent(ScriptedChat(answers=answers), [broken], middleware=retries)

    script = Script(surface=surface, mode="updates")
    assert seen(on_kernel(agent())[0], script) == seen(agent(), script)


# --- where tools run ------------------------------------------------------------------------------------------------


def test_a_single_sync_node_runs_in_the_callers_thread_and_may_start_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does under LangGraph; the tool node itself takes a thread for each call, which may as well."""
    ran_in: list[bool] = []

    async def answer() -> str:
        return "forty-two"

    @tool
    def ask(x: int) -> str:
        """Ask."""
        return asyncio.run(answer())

    def hook(state: Any) -> dict[str, Any]:
        ran_in.append(threading.current_thread() is threading.main_thread())
        return {"llm_input_messages": [HumanMessage(asyncio.run(answer()))]}

    script = Script(kind="create_react_agent v2", answers=("text",), hooks=("pre_model_hook",))
    monkeypatch.setitem(HOOKS, "pre_model_hook", hook)
    same(script)
    assert ran_in == [True, True]
    assert agent_of(ask).invoke(HI)["messages"][2].content == "forty-two"


@pytest.mark.parametrize("is_async", [False, True])
def test_tools_run_beside_each_other(is_async: bool) -> None:
    """Each waits for the other; one after the other they would wait for ever."""
    barrier = threading.Barrier(2, timeout=10)

    @tool
    def one(x: int) -> str:
        """Meet."""
        return str(barrier.wait() >= 0)

    @tool
    def other(x: int) -> str:
        """Meet."""
        return str(barrier.wait() >= 0)

    agent = agent_of(one, other)
    result = asyncio.run(agent.ainvoke(HI)) if is_async else agent.invoke(HI)
    assert [message.content for message in result["messages"][2:4]] == ["True", "True"]


@pytest.mark.parametrize("is_async", [False, True])
def test_no_more_tools_run_at_once_than_the_caller_allows(is_async: bool) -> None:
    """`max_concurrency` is honoured."""
    running: list[int] = []
    most: list[int] = []

    @tool
    async def busy(x: int) -> str:
        """Work."""
        running.append(x)
        most.append(len(running))
        await asyncio.sleep(0.001)
        running.remove(x)
        return "done"

    def busy_too(x: int) -> str:
        return asyncio.run(busy.coroutine(x))  # type: ignore[attr-defined]  # the function of the tool

    busy.func = busy_too  # type: ignore[attr-defined]  # one tool for both kinds of caller
    calls = tuple(Call(tool="busy", x=number) for number in range(4))
    agent, config = agent_of(busy, calls=calls), {"max_concurrency": 1}
    asyncio.run(agent.ainvoke(HI, config)) if is_async else agent.invoke(HI, config)
    assert most == [1, 1, 1, 1]


@pytest.mark.parametrize("is_async", [False, True])
def test_tools_see_the_context_of_the_caller(is_async: bool) -> None:
    """Context variables are the caller's; what a tool sets stays its own."""

    @tool
    def ask(x: int) -> str:
        """Ask."""
        who = WHO.get()
        WHO.set("the tool")
        return who

    token = WHO.set("the caller")
    try:
        agent = agent_of(ask)
        result = asyncio.run(agent.ainvoke(HI)) if is_async else agent.invoke(HI)
        assert result["messages"][2].content == "the caller"
        assert WHO.get() == "the caller"
    finally:
        WHO.reset(token)


def test_a_tool_knows_its_place() -> None:
    """State, context, store and step are those of the run."""
    found: list[Any] = []

    @tool
    def look(x: int, state: Annotated[dict[str, Any], InjectedState]) -> str:
        """Look."""
        metadata = get_config()["metadata"]
        place = metadata["langgraph_step"], metadata["langgraph_node"], metadata["langgraph_path"]
        found.append((place, len(state["messages"]), get_runtime().store, get_runtime().context))
        return "seen"

    script = Script(answers=((Call(tool="look"),), "done"))
    agent = create_agent(ScriptedChat(answers=script.answers), [look])
    on_kernel(agent)[0].invoke(HI, context="the context")
    create_agent(ScriptedChat(answers=script.answers), [look]).invoke(HI, context="the context")  # type: ignore[call-overload]  # any context
    assert found[0] == found[1]
    assert found[0][0][0] == 2


# --- callers that listen or leave -----------------------------------------------------------------------------------


class Listener(BaseCallbackHandler):
    """Writes down each callback: what run, below which, with what tags and metadata."""

    run_inline = True

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self._names: dict[Any, str] = {}

    def _started(self, event: str, run_id: Any, parent_run_id: Any, tags: Any, metadata: Any, name: str) -> None:
        self._names[run_id] = name
        keys = {key: value for key, value in metadata.items() if "checkpoint_ns" not in key}
        above = self._names.get(parent_run_id)
        self.heard.append((event, name, above, sorted(tags), sorted(metadata), str(sorted(keys.items()))))

    def on_chain_start(self, serialized: Any, inputs: Any, **k: Any) -> None:
        self._started("chain", k["run_id"], k["parent_run_id"], k["tags"], k["metadata"], k["name"])

    def on_chat_model_start(self, serialized: Any, messages: Any, **k: Any) -> None:
        self._started("model", k["run_id"], k["parent_run_id"], k["tags"], k["metadata"], k["name"])

    def on_tool_start(self, serialized: Any, input_str: str, **k: Any) -> None:
        self._started("tool", k["run_id"], k["parent_run_id"], k["tags"], k["metadata"], k["name"])

    def on_chain_end(self, outputs: Any, **k: Any) -> None:
        self.heard.append(("end", self._names[k["run_id"]]))

    def on_tool_end(self, output: Any, **k: Any) -> None:
        self.heard.append(("end", self._names[k["run_id"]]))

    def on_chain_error(self, error: BaseException, **k: Any) -> None:
        self.heard.append(("error", self._names[k["run_id"]], type(error)))

    def on_tool_error(self, error: BaseException, **k: Any) -> None:
        self.heard.append(("error", self._names[k["run_id"]], type(error)))


def heard(agent: Any, script: Script, **config: Any) -> list[Any]:
    listener = Listener()
    options: Any = {"recursion_limit": script.limit, "callbacks": [listener], **config}
    try:
        asyncio.run(agent.ainvoke(HI, options)) if script.surface == "ainvoke" else agent.invoke(HI, options)
    except Exception as error:  # the listener hears of it
        listener.heard.append(type(error))
    return listener.heard


@pytest.mark.parametrize("surface", ["invoke", "ainvoke"])
@pytest.mark.parametrize(
    "script",
    [
        *(Script(kind=kind, answers=((Call(tool="double"),), "text"), prompted=True) for kind in KINDS),
        Script(kind="create_react_agent v2", answers=((Call(tool="double"),), "text"), hooks=(*HOOKS,)),
        Script(answers=((Call(tool="double"),), "text"), middleware=("greet", "sign", "whisper", "soften")),
        Script(answers=("one", "two"), middleware=("ask_twice", "stop_at_three")),
        Script(answers=((Call(tool="fail"),),)),
        Script(answers=(ValueError("the model is out"),)),
        Script(answers=((Call(tool="double"),),) * 9, limit=4),
    ],
    ids=str,
)
def test_callbacks_hear_the_same(script: Script, surface: Surface) -> None:
    """The same runs in the same order below each other, with the same names, tags and metadata."""
    script = replace(script, surface=surface)
    config = {"tags": ["mine"], "metadata": {"who": "me"}, "run_name": "mine"} if script.prompted else {}
    agent, ledger = on_kernel(script.agent())
    assert heard(agent, script, **config) == heard(script.agent(), script, **config)
    assert [record.served_by for record in ledger.records()] == ["kernel"]


def test_a_caller_who_stops_asking_pays_for_nothing_more() -> None:
    """The model is not asked again for a stream that is left."""
    for mode in ("values", "updates", "messages"):
        model = ScriptedChat(answers=((Call(tool="double"),),) * 9)
        original = ScriptedChat(answers=((Call(tool="double"),),) * 9)
        for chat, agent in (
            (model, on_kernel(create_agent(model, [_double()]))[0]),
            (original, create_agent(original, [_double()])),
        ):
            stream = agent.stream(HI, stream_mode=mode)
            next(stream), next(stream)
            stream.close()
            assert len(chat.asked) == 1, mode


async def test_an_async_caller_who_stops_asking_pays_for_nothing_more() -> None:
    """The same without a thread of its own."""
    model = ScriptedChat(answers=((Call(tool="double"),),) * 9)
    stream = on_kernel(create_agent(model, [_double()]))[0].astream(HI, stream_mode="values")
    await anext(stream), await anext(stream)
    await stream.aclose()
    assert len(model.asked) == 1


async def test_a_caller_that_is_cancelled_cancels_the_turn() -> None:
    """The tool that is running ends, and the callbacks hear that the turn did."""
    started = asyncio.Event()
    did: list[str] = []

    @tool
    async def slow(x: int) -> str:
        """Wait."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            did.append("ended")
        return ""

    listener = Listener()
    asking = asyncio.get_running_loop().create_task(agent_of(slow).ainvoke(HI, {"callbacks": [listener]}))
    await started.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert did == ["ended"]
    assert [one for one in listener.heard if one[0] == "error"][-1] == ("error", "LangGraph", asyncio.CancelledError)


def _double() -> Any:
    @tool
    def double(x: int) -> str:
        """Double it."""
        return str(2 * x)

    return double


def test_a_message_is_told_while_the_node_still_runs() -> None:
    """Tokens are worth something because they come early."""
    heard_first = threading.Event()

    @tool
    def wait(x: int) -> str:
        """Tell, and wait until that was heard."""
        get_stream_writer()("told")
        return str(heard_first.wait(10))

    for chunk in agent_of(wait).stream(HI, stream_mode=["custom", "updates"]):
        if chunk == ("custom", "told"):
            heard_first.set()
        elif "tools" in chunk[1]:
            assert chunk[1]["tools"]["messages"][0].content == "True"


def test_a_tool_may_send_to_nodes_and_write_to_the_state() -> None:
    """Commands with packets, lists of commands and unknown targets are taken as the graph takes them."""

    @tool
    def again(x: int) -> Command[Any]:
        """Call another tool in its own right."""
        call = {"name": "double", "args": {"x": 5}, "id": "sent", "type": "tool_call"}
        return Command(update={"messages": []}, goto=[Send("tools", [call])])

    def agent() -> Any:
        script = ((Call(tool="again"), Call(tool="double")), "text")
        return create_agent(ScriptedChat(answers=script), [again, _double()])

    script = Script(mode=["updates", "values"])
    told = seen(on_kernel(agent())[0], script)
    assert told == seen(agent(), script)


def test_the_answer_of_a_model_keeps_its_tool_calls_in_the_kernels_record() -> None:
    """The ledger knows how many rounds a turn took."""
    script = Script(answers=TWO_ROUNDS, surface="invoke")
    agent, ledger = on_kernel(script.agent())
    result = agent.invoke(HI)
    assert isinstance(result["messages"][-1], AIMessage)
    assert [record.rounds for record in ledger.records()] == [3]
