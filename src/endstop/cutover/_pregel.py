"""What a node of a LangGraph graph expects around it: the one place in the cutover for LangGraph's private names.

A node, a tool and LangChain's helpers (`get_stream_writer`, `get_runtime`, `interrupt`) read their surroundings from
the configuration that they run under. A turn on the kernel gives them the same.
"""

from __future__ import annotations

import functools
import itertools
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from langchain_core.callbacks import AsyncCallbackManager, CallbackManager
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tracers import LangChainTracer
from langgraph._internal import _constants
from langgraph._internal._config import (
    ensure_config,
    get_async_callback_manager_for_config,
    get_callback_manager_for_config,
    merge_configs,
    patch_config,
)
from langgraph._internal._constants import (
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_READ,
    CONFIG_KEY_RUNTIME,
    CONFIG_KEY_SCRATCHPAD,
    CONFIG_KEY_SEND,
    CONFIG_KEY_STREAM,
    CONFIG_KEY_TASK_ID,
    NS_SEP,
)
from langgraph._internal._fields import get_cached_annotated_keys, get_update_as_tuples
from langgraph._internal._runnable import set_config_context
from langgraph._internal._scratchpad import PregelScratchpad
from langgraph.channels.base import BaseChannel
from langgraph.config import get_config
from langgraph.errors import ErrorCode, GraphRecursionError, InvalidUpdateError, create_error_message
from langgraph.pregel import Pregel, _algo, _io
from langgraph.pregel._messages import StreamMessagesHandler
from langgraph.pregel.protocol import StreamProtocol
from langgraph.runtime import Runtime

from langgraph import errors, runtime

if TYPE_CHECKING:
    from contextvars import Context

    from langchain_core.callbacks import BaseCallbackHandler
    from langchain_core.runnables import RunnableConfig
    from langgraph.types import Command

Write: TypeAlias = tuple[str, object]
"""A state key and what is written to it."""

Chunk: TypeAlias = tuple[tuple[str, ...], str, Any]
"""A namespace, a stream mode and what is told in it."""

Manager: TypeAlias = CallbackManager | AsyncCallbackManager
"""The callbacks of a run."""

Scratch: TypeAlias = PregelScratchpad
"""The counters that a running node may ask for, and the answers to the questions that it asks people."""

_NO_CLASS: Any = None
_READ_STATE: str | None = getattr(_constants, "CONFIG_KEY_READ_STATE", None)
_EXECUTION_INFO: Any = getattr(runtime, "ExecutionInfo", None)
_NODE_CANCELLED: Any = getattr(errors, "NodeCancelledError", None)
_SAYS_INTEGRATION = "ls_integration" in cast("Any", Pregel).stream.__code__.co_consts  # a function, not typed as one
_local_read = cast("Any", _algo).local_read  # its types leave their parameters open
_task_writes: Any = _algo.PregelTaskWrites
_output_updates: Any = _io.map_output_updates
_output_values = cast("Any", _io).map_output_values  # its types leave their parameters open


def scratch(step: int = 0, stop: int = 0) -> Scratch:
    """The counters of one execution of a node in this super-step, of a run that stops at that one."""
    return PregelScratchpad(
        step=step,
        stop=stop,
        call_counter=itertools.count(0).__next__,
        interrupt_counter=itertools.count(0).__next__,
        get_null_resume=_no_answer,
        resume=[],
        subgraph_counter=itertools.count(0).__next__,
    )


def _no_answer(consume: bool = False) -> None:
    """What a person answered to no question in particular: nothing."""


def merged_config(bound: RunnableConfig | None, given: RunnableConfig | None) -> RunnableConfig:
    """The configuration of a run, with what the graph has bound and what surrounds the call."""
    return ensure_config(bound, given)


def configurable(config: RunnableConfig) -> dict[str, Any]:
    """What the configuration says to nodes and checkpointers."""
    return config.get("configurable", {})


def with_handler(config: RunnableConfig | None, handler: BaseCallbackHandler) -> RunnableConfig:
    """The configuration with one callback handler more."""
    merged = merge_configs(config, {"callbacks": [handler]})
    if config is not None and "recursion_limit" in config:
        merged["recursion_limit"] = config["recursion_limit"]  # LangChain and older LangGraph drop a limit of 25
    return merged


def inside_a_graph(config: RunnableConfig) -> bool:
    """Whether the call comes from a node or a tool of a graph that is running."""
    return CONFIG_KEY_TASK_ID in configurable(config)


def callback_manager(config: RunnableConfig, *, is_async: bool) -> Any:
    """The callbacks that a run under this configuration reports to."""
    return (get_async_callback_manager_for_config if is_async else get_callback_manager_for_config)(config)


def opened_run(config: RunnableConfig, given: object, name: str, *, is_async: bool) -> Any:
    """The callbacks of a run that begins; of an async run, what gives them when it is waited for."""
    manager = callback_manager(config, is_async=is_async)
    if _SAYS_INTEGRATION and "ls_integration" not in manager.metadata:
        manager.add_metadata({"ls_integration": "langgraph"})
    return manager.on_chain_start(
        _NO_CLASS,
        given,
        name=config.get("run_name", name),
        run_id=config.get("run_id"),
    )


def messages_handler(tell: Callable[[Chunk], None], *, subgraphs: bool) -> StreamMessagesHandler:
    """What tells the messages of a run, token by token, in mode `messages`."""
    handler = StreamMessagesHandler(cast("Any", tell), subgraphs)  # its chunks are tuples of three as well
    handler.parent_ns = ()
    return handler


def current_namespace() -> tuple[str, ...]:
    """The namespace of the graph in which the caller is a node or a tool."""
    return (*configurable(get_config())[CONFIG_KEY_CHECKPOINT_NS].split(NS_SEP)[:-1],)


def recursion_error(limit: int) -> GraphRecursionError:
    """LangGraph's error for a run that is out of super-steps, with its text."""
    text = (
        f"Recursion limit of {limit} reached without hitting a stop condition. "
        "You can increase the limit by setting the `recursion_limit` config key."
    )
    return GraphRecursionError(create_error_message(message=text, error_code=ErrorCode.GRAPH_RECURSION_LIMIT))


def invalid_update(returned: object) -> InvalidUpdateError:
    """LangGraph's error for a node that returned nothing that a node may return."""
    code = ErrorCode.INVALID_GRAPH_NODE_RETURN_VALUE
    return InvalidUpdateError(create_error_message(message=f"Expected dict, got {returned}", error_code=code))


def node_cancelled(node: str, error: BaseException) -> BaseException:
    """What a run raises for a node that raised a cancellation of its own, as this version of LangGraph does."""
    return error if _NODE_CANCELLED is None else cast("BaseException", _NODE_CANCELLED(node))  # an error class


def command_writes(command: Command[Any]) -> Sequence[Write]:
    """What a command writes to the state."""
    return command._update_as_tuples()  # pyright: ignore[reportPrivateUsage] - LangGraph's own reading of a command


def fields_written(returned: object, keys: Sequence[str]) -> Sequence[Write] | None:
    """What an object with annotated fields writes to the state; `None` for anything else."""
    return get_update_as_tuples(returned, keys) if get_cached_annotated_keys(type(returned)) else None


def runtime_for(config: RunnableConfig, *, context: object, store: object, writer: Callable[[object], None]) -> Any:
    """What nodes and tools are handed as `runtime`."""
    outer = configurable(config).get(CONFIG_KEY_RUNTIME)
    kind: Any = Runtime
    own = kind(context=context, store=store, stream_writer=writer, previous=None)
    return cast("Any", outer).merge(own) if isinstance(outer, Runtime) else own  # of any context


def surroundings(
    config: RunnableConfig, *, runtime: object, tell: Callable[[Chunk], None], subgraphs: bool, modes: Iterable[str]
) -> RunnableConfig:
    """The configuration that all nodes of a run share."""
    shared: dict[str, object] = {CONFIG_KEY_RUNTIME: runtime}
    if subgraphs:
        protocol: Any = StreamProtocol
        shared[CONFIG_KEY_STREAM] = protocol(tell, set(modes))
    return patch_config(config, configurable=shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlace:
    """Where one execution of a node stands in its run."""

    node: str
    step: int
    triggers: tuple[str, ...]
    path: tuple[object, ...]
    task_id: str

    @property
    def namespace(self) -> str:
        """The node and the execution, as LangGraph writes them."""
        return f"{self.node}:{self.task_id}"

    def metadata(self) -> dict[str, object]:
        """What callbacks are told of the place."""
        return {
            "langgraph_step": self.step,
            "langgraph_node": self.node,
            "langgraph_triggers": self.triggers,
            "langgraph_path": self.path,
            "langgraph_checkpoint_ns": self.namespace,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What one execution of a node finds around it besides its place."""

    scratch: Scratch
    channels: Mapping[str, BaseChannel[Any, Any, Any]]
    managed: Mapping[str, Any]
    write: Callable[[Iterable[Write]], None]
    writes: Sequence[Write]
    read: Callable[[], object] | None
    metadata: Mapping[str, object]


class NodeRuns:
    """The configurations and callback runs of the nodes of one run.

    Where nobody listens to the run, no callback is made up for it; the configurations are the same.
    """

    def __init__(self, config: RunnableConfig, manager: Any, *, is_async: bool) -> None:
        self._config = merge_configs(config)
        self._manager = manager
        self._is_async = is_async
        self._configurable = configurable(self._config)
        self._metadata: dict[str, Any] = self._config.pop("metadata", {})
        for key in ("callbacks", "run_name", "run_id"):
            cast("dict[str, Any]", self._config).pop(key, None)  # a typed dict, by key
        self._info = {
            "thread_id": self._configurable.get("thread_id"),
            "run_id": str(run_id) if (run_id := config.get("run_id")) else None,
        }

    @property
    def is_heard(self) -> bool:
        """Whether anything listens to the run."""
        return bool(self._manager.handlers or self._manager.inheritable_handlers)

    def open(self, place: TaskPlace, around: Around, given: object) -> Any:
        """The configuration of a node that begins, and its callbacks; in an async run, what gives them when awaited."""
        config = self._placed(place, around)
        config["run_name"] = place.node
        config["callbacks"] = self._manager.get_child(f"graph:step:{place.step}")
        manager = callback_manager(config, is_async=self._is_async)
        return config, manager.on_chain_start(_NO_CLASS, given, name=place.node)

    def quiet(self, place: TaskPlace, around: Around) -> RunnableConfig:
        """The configuration of a node that nobody listens to."""
        config = self._placed(place, around)
        inherited: list[str] = self._manager.inheritable_tags
        metadata = {**self._manager.inheritable_metadata, **config.get("metadata", {})}
        kind: type[Any] = AsyncCallbackManager if self._is_async else CallbackManager
        config["callbacks"] = kind(
            handlers=[],
            inheritable_handlers=[],
            parent_run_id=uuid.uuid4(),
            tags=[*inherited, "seq:step:1"],
            inheritable_tags=[*inherited],
            metadata={**metadata},
            inheritable_metadata=metadata,
        )
        return config

    def _placed(self, place: TaskPlace, around: Around) -> RunnableConfig:
        metadata = {**place.metadata(), **around.metadata}
        task = _task_writes(place.path, place.node, around.writes, place.triggers)
        around_it = {
            **self._configurable,
            CONFIG_KEY_TASK_ID: place.task_id,
            CONFIG_KEY_CHECKPOINT_NS: place.namespace,
            CONFIG_KEY_SCRATCHPAD: around.scratch,
            CONFIG_KEY_SEND: around.write,
            CONFIG_KEY_READ: functools.partial(_local_read, around.scratch, around.channels, around.managed, task),
            CONFIG_KEY_RUNTIME: self._runtime(place),
        }
        if _READ_STATE is not None:
            around_it[_READ_STATE] = around.read
        return {**self._config, "metadata": {**self._metadata, **metadata}, "configurable": around_it}

    def _runtime(self, place: TaskPlace) -> Any:
        """The runtime that knows which execution it is handed to, where this version of LangGraph tells."""
        shared: Any = self._configurable.get(CONFIG_KEY_RUNTIME)
        if _EXECUTION_INFO is None or not isinstance(shared, Runtime):
            return shared
        info = _EXECUTION_INFO(checkpoint_id="", checkpoint_ns=place.namespace, task_id=place.task_id, **self._info)
        return cast("Any", shared).override(execution_info=info)  # of any context


def inside(config: RunnableConfig, run: Any, number: int) -> RunnableConfig:
    """The configuration of a step of a node: the node's own function is the first, then what writes for it."""
    return patch_config(config, callbacks=run.get_child(f"seq:step:{number}"))


def context_of(config: RunnableConfig, run: Any) -> Context:
    """The context in which a node's function runs: the caller's, with the configuration as the current one."""
    if run is None:
        context = copy_context()
        context.run(var_child_runnable_config.set, config)
        return context
    tracers = (handler for handler in run.handlers if isinstance(handler, LangChainTracer))
    traced = next((tracer.run_map.get(str(run.run_id)) for tracer in tracers), None)
    with set_config_context(config, traced) as context:
        return context.copy()


def told_updates(keys: str | Sequence[str], node: str, writes: Sequence[Write], tags: Sequence[str]) -> Iterable[Any]:
    """What mode `updates` tells of one execution of a node."""
    task: Any = SimpleNamespace(name=node, config={"tags": tags})
    told: Iterable[Any] = _output_updates(keys, [(task, writes or [("", None)])])
    return told


def told_values(
    keys: str | Sequence[str], writes: Sequence[Write], channels: Mapping[str, BaseChannel[Any, Any, Any]]
) -> Iterable[Any]:
    """What mode `values` tells after these writes."""
    told: Iterable[Any] = _output_values(keys, writes, channels)
    return told


def new_task_id() -> str:
    """An id for one execution of a node."""
    return str(uuid.uuid4())
