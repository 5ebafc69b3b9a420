"""All that endstop knows of LangGraph's and LangChain's versions and insides; nothing else may reach into them."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from uuid import UUID

from langchain.tools import tool_node as langchain_tools
from langchain_core.callbacks import AsyncCallbackManager
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig, RunnableSequence
from langchain_core.runnables.config import DEFAULT_RECURSION_LIMIT as CORE_RECURSION_LIMIT
from langchain_core.runnables.config import get_async_callback_manager_for_config, get_callback_manager_for_config
from langchain_core.tools import ToolException
from langgraph._internal._config import DEFAULT_RECURSION_LIMIT, ensure_config, patch_configurable
from langgraph._internal._constants import (
    CONF,
    CONFIG_KEY_CHECKPOINT_ID,
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_CHECKPOINTER,
    CONFIG_KEY_RESUMING,
    CONFIG_KEY_RUNTIME,
    CONFIG_KEY_SEND,
    CONFIG_KEY_TASK_ID,
    CONFIG_KEY_THREAD_ID,
    ERROR,
    INTERRUPT,
)
from langgraph._internal._typing import MISSING
from langgraph.channels import BaseChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.constants import START
from langgraph.errors import InvalidUpdateError
from langgraph.func import task
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import tool_node as langgraph_tools
from langgraph.pregel import Pregel, _algo
from langgraph.pregel._loop import PregelLoop
from langgraph.runtime import Runtime
from langgraph.types import Command
from pydantic import BaseModel, ValidationError

from endstop.langgraph._reach import reachable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from typing import TypeGuard

    from langchain_core.messages import BaseMessage
    from typing_extensions import TypeIs

AnyPregel: TypeAlias = "Pregel[Any, Any, Any, Any]"


# --- the structure of a graph --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RawBranch:
    """A conditional edge: its function, and its targets by the router's own words (`None`: it does not say)."""

    source: str
    name: str
    function: object
    ends: Mapping[str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RawNode:
    """A node: what runs, the functions in it, and the targets that its commands declare."""

    name: str
    runnable: object
    functions: tuple[object, ...]
    ends: Mapping[str, str]
    deferred: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RawGraph:
    """What a compiled graph is built of, in the order in which it was added where that is kept."""

    nodes: tuple[RawNode, ...]
    edges: tuple[tuple[str, str], ...]
    joins: tuple[tuple[tuple[str, ...], str], ...]
    branches: tuple[RawBranch, ...]


def raw_graph(graph: AnyPregel) -> RawGraph | None:
    """The structure of a graph that was compiled from a builder; `None` for every other one."""
    if not isinstance(graph, CompiledStateGraph):
        return None
    builder: StateGraph[Any, Any, Any, Any] = graph.builder
    return RawGraph(
        nodes=tuple(
            RawNode(
                name=name,
                runnable=spec.runnable,
                functions=functions_of(spec.runnable),
                ends=_by_label(spec.ends or ()),
                deferred=spec.defer,
            )
            for name, spec in builder.nodes.items()
        ),
        edges=tuple(sorted(builder.edges)),
        joins=tuple(sorted(builder.waiting_edges)),
        branches=tuple(
            RawBranch(
                source=source,
                name=name,
                function=next(iter(functions_of(branch.path)), branch.path),
                ends=None if branch.ends is None else _by_label(branch.ends),
            )
            for source, branches in builder.branches.items()
            for name, branch in branches.items()
        ),
    )


def built_from(graph: object) -> object:
    """What a graph was compiled from: the same for all graphs that are made of it; itself where that is not known."""
    return getattr(graph, "builder", graph)


def is_graph(found: object) -> TypeIs[AnyPregel]:
    """Whether it is a graph that can be run here."""
    return isinstance(found, Pregel)


def is_builder(found: object) -> bool:
    """Whether it is a graph that is not compiled yet."""
    return isinstance(found, StateGraph)


def functional_entry(graph: AnyPregel) -> tuple[str, tuple[object, ...]] | None:
    """The name and the functions of an `@entrypoint`; `None` for a graph that is none."""
    if isinstance(graph, CompiledStateGraph) or len(graph.nodes) != 1:
        return None
    name, node = next(iter(graph.nodes.items()))
    return (name, functions_of(node.bound)) if node.triggers == ["__start__"] else None


def functions_of(runnable: object) -> tuple[object, ...]:
    """The plain functions behind a runnable, the sync one first; the runnable itself where it holds none."""
    held = (getattr(runnable, "func", None), getattr(runnable, "afunc", None))
    functions = tuple(function for function in held if function is not None)
    return functions or (runnable,)


def task_name(found: object) -> str | None:
    """The name under which an `@task` runs; `None` for anything else."""
    return getattr(found, "__name__", None) if isinstance(found, _TASK) else None


_TASK: type[object] = type(task(task_name))


def is_wrapped(tool_node: object) -> bool:
    """Whether code of a middleware stands around its tools, which may run others in their place."""
    return any(getattr(tool_node, name, None) is not None for name in ("_wrap_tool_call", "_awrap_tool_call"))


def bound_config(graph: AnyPregel) -> Mapping[str, object]:
    """The config that `with_config` bound to a graph."""
    return cast("Mapping[str, object]", graph.config or {})  # a typed dict, read by key


def bound_configurable(graph: AnyPregel) -> Mapping[str, object]:
    """What `with_config` bound under `configurable`."""
    return cast("Mapping[str, object]", bound_config(graph).get("configurable") or {})  # of anything


def paused_nodes(graph: AnyPregel) -> frozenset[str]:
    """The nodes before or after which the graph was compiled to stop and wait; every one for `"*"`."""
    named: set[str] = set()
    for nodes in (graph.interrupt_before_nodes, graph.interrupt_after_nodes):
        named.update(graph.nodes if nodes == "*" else nodes)
    return frozenset(named)


def _by_label(ends: object) -> Mapping[str, str]:
    """The targets of a branch or a command by label: their own names where they are only listed."""
    if isinstance(ends, dict):
        return {str(label): end for label, end in cast("dict[object, str]", ends).items()}  # any word of a router's
    return {end: end for end in cast("tuple[str, ...]", ends)}  # checked when the graph was compiled


# --- agents that LangChain builds ----------------------------------------------------------------------------------

_LIBRARIES = ("langchain", "langgraph", "deepagents")
_REACT_MODEL = "create_react_agent.<locals>.call_model"
_MODEL_FUNCTIONS = {"create_agent.<locals>.model_node", _REACT_MODEL}
_JUMP_FUNCTION = "_add_middleware_edge.<locals>.jump_edge"


def is_library_code(function: object) -> bool:
    """Whether LangChain or LangGraph wrote it: they declare where their nodes go, and send to nothing but tools."""
    return str(getattr(function, "__module__", "")).partition(".")[0] in _LIBRARIES


def is_model_function(function: object) -> bool:
    """Whether it is the node function in which an agent that LangChain or LangGraph built calls its model."""
    return getattr(function, "__qualname__", "").replace(".a", ".") in _MODEL_FUNCTIONS


def drops_calls(function: object) -> bool:
    """Whether this model function, with no step left, drops the tool calls that its model asked for and apologises."""
    return getattr(function, "__qualname__", "") in (_REACT_MODEL, _REACT_MODEL.replace(".call", ".acall"))


def way_without_jump(function: object) -> str | None:
    """For the router behind a middleware's hook: the node that follows where the hook asks for no jump."""
    if getattr(function, "__qualname__", "") != _JUMP_FUNCTION:
        return None
    default = _captured(function).get("default_destination")
    return default if isinstance(default, str) else None


# --- the recursion limit -------------------------------------------------------------------------------------------


def default_recursion_limit() -> int:
    """What a graph runs under when neither its caller nor its config names a limit."""
    return int(DEFAULT_RECURSION_LIMIT)


def is_handed_on(recursion_limit: int) -> bool:
    """Whether a graph below gets a limit that was named: some versions take their default's own number for none."""
    return type(DEFAULT_RECURSION_LIMIT) is not int or recursion_limit != DEFAULT_RECURSION_LIMIT


def core_recursion_limit() -> int:
    """What LangChain's own entry points name on the caller's behalf, which LangGraph takes for the caller's word."""
    return int(CORE_RECURSION_LIMIT)


# --- what a run of a graph tells -----------------------------------------------------------------------------------


LANGCHAIN_CALLBACKS = "langchain_core.callbacks.manager"
"""The logger under which LangChain tells what callback handlers raise."""

_STEP_TAG = "graph:step:"
_TASK_PATH_LENGTH = 4


def node_of(
    name: str | None, tags: Sequence[str] | None, metadata: Mapping[str, Any] | None
) -> tuple[str, int, bool] | None:
    """Of a node that starts its name, its super-step and whether it is a task; `None` for any other run.

    A task is what an `@entrypoint` calls: it is no super-step of its own. The input is taken in step 0 by a node of
    LangGraph's own, which its limit does not count either.
    """
    if not tags or not metadata:
        return None
    node, step = metadata.get("langgraph_node"), metadata.get("langgraph_step")
    if not isinstance(node, str) or not isinstance(step, int) or node == START:
        return None
    for tag in tags:
        if tag.startswith(_STEP_TAG):
            return node, step, False
    is_task = name == node and tuple(metadata.get("langgraph_path", ()))[_TASK_PATH_LENGTH - 1 :] == (True,)
    return (node, step, True) if is_task else None


def close_untold(error: BaseException) -> None:
    """Close what LangChain left behind where a handler refused a model call: the coroutines that tell the others.

    It makes them all before it awaits the first, and Python would warn of each that was never awaited.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code is AsyncCallbackManager.on_chat_model_start.__code__:
            for name in ("inline_tasks", "non_inline_tasks"):
                for coroutine in frame.f_locals.get(name, ()):
                    coroutine.close()


def _tool_invocation_errors() -> tuple[type[Exception], ...]:
    modules = (langgraph_tools, langchain_tools)
    found = dict.fromkeys(getattr(module, "ToolInvocationError", None) for module in modules)
    return tuple(error for error in found if error is not None) or (ToolException,)


if TYPE_CHECKING:

    class ToolInvocationError(ToolException):
        """What a tool node answers a call with, whatever it makes of other errors; its `message` is the answer."""

        message: str

else:
    ToolInvocationError = type("ToolInvocationError", _tool_invocation_errors(), {})


# --- what a run of a graph leaves ----------------------------------------------------------------------------------


def default_stream_mode(graph: AnyPregel, config: Mapping[str, Any] | None) -> str | list[str]:
    """The stream mode of a run whose caller names none: the graph's own, or `values` where it is a node."""
    return "values" if is_nested(config) else cast("str | list[str]", graph.stream_mode)  # of literals


def is_nested(config: Mapping[str, Any] | None) -> bool:
    """Whether a graph that is run with this config is a node of another one, or is called by one."""
    return CONFIG_KEY_TASK_ID in _configurable(config)


def whole_config(graph: AnyPregel, config: RunnableConfig | None) -> RunnableConfig:
    """The config that a run has: what is bound to the graph and what surrounds it, under what its caller says."""
    return ensure_config(graph.config, config)


def thread_of(config: Mapping[str, Any]) -> tuple[str | None, str]:
    """The id of the thread that a run with this config is on, if it is on one, and its namespace in it."""
    configurable = _configurable(config)
    thread = configurable.get(CONFIG_KEY_THREAD_ID)
    return None if thread is None else str(thread), str(configurable.get(CONFIG_KEY_CHECKPOINT_NS) or "")


def saver_of(graph: AnyPregel, config: Mapping[str, Any]) -> BaseCheckpointSaver[Any] | None:
    """The checkpointer of a run with this config: the graph's own, or that of the graph around it."""
    own: object = _loose(graph).checkpointer
    inherited: object = _configurable(config).get(CONFIG_KEY_CHECKPOINTER)
    saver = inherited if inherited is not None and own is not False else own
    loose = _loose(saver)
    return loose if isinstance(saver, BaseCheckpointSaver) else None


def thread_config(config: Mapping[str, Any]) -> RunnableConfig:
    """The config that names the thread of a run alone, at its newest state."""
    thread, namespace = thread_of(config)
    return {CONF: {CONFIG_KEY_THREAD_ID: thread, CONFIG_KEY_CHECKPOINT_NS: namespace}}


def checkpoint_id(config: Mapping[str, Any]) -> str | None:
    """The id of the checkpoint that a config names."""
    found = _configurable(config).get(CONFIG_KEY_CHECKPOINT_ID)
    return None if found is None else str(found)


def at_checkpoint(config: RunnableConfig | None, checkpoint_id: str) -> RunnableConfig:
    """The config, at a checkpoint."""
    return patch_configurable(config, {CONFIG_KEY_CHECKPOINT_ID: checkpoint_id})


def writes_of(pending: Iterable[tuple[str, str, object]], task_id: str) -> list[tuple[str, object]]:
    """What a task has written, if it came to its end."""
    writes = [(channel, value) for task, channel, value in pending if task == task_id]
    return [] if any(channel in (ERROR, INTERRUPT) for channel, _ in writes) else writes


def is_resuming(config: Mapping[str, Any]) -> bool:
    """Whether a graph that is run by another one goes on with what it did before."""
    return bool(_configurable(config).get(CONFIG_KEY_RESUMING))


def _configurable(config: Mapping[str, Any] | None) -> Mapping[str, Any]:
    found: Mapping[str, Any] | None = (config or {}).get(CONF)
    return found or {}


def plain_writer(graph: AnyPregel, update: Mapping[str, object]) -> str | None:
    """The node as which an update of the state is stored, if there is one: best one after which no router is asked."""
    if not isinstance(graph, CompiledStateGraph):
        return None
    builder = graph.builder
    entry: Mapping[str, object] = _loose(builder).schemas.get(builder.input_schema, {})
    fit = [START] if all(key in entry for key in update) else []
    nodes = [*fit, *builder.nodes]
    return next((name for name in nodes if not builder.branches.get(name)), next(iter(nodes), None))


def ran_out_when_done(graph: AnyPregel, error: BaseException) -> bool:
    """Whether the recursion limit of this graph raised when it had nothing left to run.

    LangGraph raises before it looks what is left, and tells nobody, so that this is read where it raised.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        loop = frame.f_locals.get("loop")
        if isinstance(loop, PregelLoop) and frame.f_locals.get("self") is graph and loop.status == "out_of_steps":
            return not _next_tasks(loop)
    return False


def _next_tasks(loop: Any) -> Mapping[str, object]:
    tasks: Mapping[str, object] = _loose(_algo).prepare_next_tasks(
        loop.checkpoint,
        loop.checkpoint_pending_writes,
        loop.nodes,
        loop.channels,
        loop.managed,
        loop.config,
        loop.step,
        loop.stop,
        for_execution=False,
    )
    return tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomEvent:
    """Tells the callback handlers of a run something, and so whoever reads its events."""

    config: RunnableConfig
    name: str
    data: object
    run_id: UUID | None

    def perform(self) -> object:
        """Tell it."""
        get_callback_manager_for_config(self.config).on_custom_event(self.name, self.data, run_id=self.run_id)
        return None

    async def aperform(self) -> object:
        """Tell it."""
        manager = get_async_callback_manager_for_config(self.config)
        await manager.on_custom_event(self.name, self.data, run_id=self.run_id)
        return None


def merged(graph: AnyPregel, state: Mapping[str, object], updates: Iterable[Mapping[str, object]]) -> dict[str, object]:
    """The state after updates that are applied at once, as the graph's own channels merge them."""
    writes: dict[str, list[object]] = {}
    for update in updates:
        for key, value in update.items():
            writes.setdefault(key, []).append(value)
    after = dict(state)
    for key, values in writes.items():
        made = channels_of(graph).get(key)
        loose = _loose(made)
        if isinstance(made, BaseChannel):
            channel = loose.from_checkpoint(state.get(key, MISSING))
            try:
                channel.update(values)
            except InvalidUpdateError:  # It takes one value a step; the graph would have failed.
                channel.update(values[-1:])
            after[key] = channel.get()
    return after


def channels_of(graph: AnyPregel) -> Mapping[str, object]:
    """The channels of a graph by name: the keys of its state, and those of LangGraph's own."""
    channels: Mapping[str, object] = _loose(graph).channels
    return channels


def is_update(found: object) -> TypeGuard[Mapping[str, object]]:
    """Whether what a node gave is an update of the state, by its keys."""
    return isinstance(found, Mapping)


def update_in(made: object) -> Mapping[str, object] | None:
    """The update of the state in what a node gave, its commands included; `None` where it gave none."""
    given: Any = made
    several: list[Any] = given if isinstance(made, list) and made else [given]
    updates: list[object] = [one.update if isinstance(one, Command) else one for one in several]
    found = [update for update in updates if is_update(update)]
    return {key: value for update in found for key, value in update.items()} if len(found) == len(updates) else None


def state_keys(graph: AnyPregel) -> Collection[str]:
    """The keys of the state of a graph."""
    of_state = isinstance(graph, CompiledStateGraph)
    keys: Collection[str] = _loose(graph).builder.channels if of_state else _loose(graph).channels
    return keys


def check_update(graph: AnyPregel, state: Mapping[str, object], update: Mapping[str, object]) -> None:
    """Make sure that the graph takes an update: raises what its reducers raise, and what its schema does.

    A state that its callers see a part of only may lack what the schema asks for: that is not the update's fault.
    """
    after = merged(graph, state, [update])
    schema: object = _loose(graph).builder.state_schema if isinstance(graph, CompiledStateGraph) else None
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        try:
            schema(**after)
        except ValidationError as error:
            if any(not found["loc"] or found["loc"][0] in update for found in error.errors()):
                raise


def _loose(found: object) -> Any:
    """Something of LangGraph's whose own types leave out what they are made of."""
    return found


def after_agent_nodes(graph: AnyPregel) -> tuple[str, ...]:
    """The nodes of an agent that run after its answer: the `after_agent` hooks of its middleware."""
    return tuple(name for name in graph.nodes if name.endswith(".after_agent"))


def node_runnable(graph: AnyPregel, name: str) -> Runnable[Any, object] | None:
    """What a node of the graph does with the state, without its edges; `None` where there is no such node."""
    raw = raw_graph(graph)
    node = next((node for node in raw.nodes if node.name == name), None) if raw is not None else None
    return cast("Runnable[Any, object] | None", node.runnable if node is not None else None)  # of a node it is one


def node_config(graph: AnyPregel, config: RunnableConfig | None) -> RunnableConfig:
    """A config under which a node runs by itself, with what LangGraph hands to nodes that ask for it."""
    return patch_configurable(config, {CONFIG_KEY_RUNTIME: Runtime(store=graph.store)})


def calls_model(runnable: object) -> bool:
    """Whether a function, or the functions behind a runnable, can get at a chat model."""
    found = (one for function in functions_of(runnable) for one in reachable(function))
    return any(True for one in found for _ in _chat_models(one))


_GAVE_UP = "Sorry, need more steps to process this request."


def gave_up(graph: AnyPregel, message: BaseMessage) -> bool:
    """Whether a message is what LangGraph's agent says in place of its model's answer where it has no steps left."""
    if not isinstance(message, AIMessage) or message.content != _GAVE_UP:
        return False
    raw = raw_graph(graph)
    return raw is not None and any(is_model_function(f) for node in raw.nodes for f in node.functions)


def chat_models_of(graph: AnyPregel) -> Iterator[tuple[BaseChatModel, SystemMessage | None]]:
    """The chat models that a graph's nodes call, with the system message of an agent: its own first, then those below.

    What a node chooses while it runs cannot be seen.
    """
    raw = raw_graph(graph)
    nodes = raw.nodes if raw is not None else ()
    for node in nodes:
        for function in node.functions:
            captured = list(reachable(function))
            model = next((model for one in captured for model in _chat_models(one)), None)
            if model is not None:
                yield model, _system_message(function, captured)
    for node in nodes:
        if is_graph(node.runnable):
            yield from chat_models_of(node.runnable)


def _chat_models(value: object) -> Iterator[BaseChatModel]:
    loose = _loose(value)
    if isinstance(value, BaseChatModel):
        yield value
    elif isinstance(value, RunnableBinding):
        yield from _chat_models(loose.bound)
    elif isinstance(value, RunnableSequence):
        for step in loose.steps:
            yield from _chat_models(step)


def _system_message(function: object, captured: Iterable[object]) -> SystemMessage | None:
    """The system message of an agent that LangChain or LangGraph built."""
    if not is_model_function(function):
        return None
    for value in captured:
        loose = _loose(value)
        if isinstance(value, SystemMessage):
            return value
        if isinstance(value, RunnableSequence):
            prompt = list(reachable(functions_of(loose.first)[0]))
            found = next((one for one in prompt if isinstance(one, SystemMessage)), None)
            if found is not None:
                return found
    text = _captured(function).get("system_prompt")
    return SystemMessage(text) if isinstance(text, str) else None


def _captured(function: object) -> Mapping[str, object]:
    """The variables that a function has captured, by name."""
    return inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}


def write_channels(config: RunnableConfig, values: Mapping[str, object]) -> None:
    """Write state from inside a node or a hook that wraps what a node does; it counts when the node has run.

    A hook around a model call cannot return state in every version, and one around a tool would have to change
    what the hooks outside it are given.
    """
    (config.get("configurable") or {})[CONFIG_KEY_SEND](list(values.items()))


def task_of(config: RunnableConfig) -> str:
    """What tells one execution of a node from every other; it stays the same where the node is run again."""
    return str((config.get("configurable") or {})[CONFIG_KEY_TASK_ID])


def is_summary(message: BaseMessage) -> bool:
    """Whether LangChain's `SummarizationMiddleware` put a message in the place of older ones."""
    told = message.additional_kwargs.get("lc_source") == "summarization"
    return told or (isinstance(message, HumanMessage) and str(message.content).startswith(_SUMMARY))


_SUMMARY = "Here is a summary of the conversation to date:"
