"""The envelope: whether the kernel can serve a turn exactly. Everything here decides and does nothing.

`check_agent` looks at what an agent is made of, `check_turn` at one call of it, `check_thread` at its thread. Each
refusal has a code of a closed set (`CODES`), the reason, and a remedy; `SERVED` is what the kernel serves all the same.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import typing_extensions
from langchain_core.runnables import RunnableConfig
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.channels.ephemeral_value import EphemeralValue
from langgraph.channels.last_value import LastValue
from langgraph.channels.untracked_value import UntrackedValue
from langgraph.constants import START
from langgraph.pregel import Pregel
from langgraph.types import Command

from endstop.cutover.presets import preset_refusals

if TYPE_CHECKING:
    from langgraph.checkpoint.base import CheckpointTuple
    from langgraph.graph.state import CompiledStateGraph

    from endstop.cutover.presets import AgentConfig

Graph: TypeAlias = "CompiledStateGraph[Any, Any, Any, Any]"

SERVED_MODES = frozenset({"values", "updates", "messages", "custom"})
"""The stream modes that the kernel serves."""

SERVED_VERSIONS = frozenset({"v1", "v2"})
"""The forms of a stream's chunks that the kernel serves."""

MODEL_NODES = frozenset({"model", "agent"})
"""The node that asks the model: in `create_agent`, and in `create_react_agent`."""

_PRESET = "a preset's wiring spends super-steps that the kernel's rounds do not stand for"
_PRESET_REMEDY = "use graph_preset='react_loop' with its switches off, or leave this agent on its graph"

CODES: Mapping[str, tuple[str, str]] = {
    "graph_shape": (
        "it is not the graph of create_agent or create_react_agent",
        "make the agent with create_agent, or bound its graph with endstop.langgraph.bound",
    ),
    "subgraph_node": ("the node {node!r} is a graph of its own", "call that graph in a tool or a hook"),
    "custom_state_schema": (
        "{what}, which the kernel does not hold",
        "make the state a TypedDict (AgentState) of plain keys and keys with a reducer in Annotated[...]",
    ),
    "interrupt_before": (
        "the graph stops before {nodes} in each turn",
        "ask for approval in the agent (HumanInTheLoopMiddleware), not at a node",
    ),
    "interrupt_after": (
        "the graph stops after {nodes} in each turn",
        "ask for approval in the agent (HumanInTheLoopMiddleware), not at a node",
    ),
    "node_cache": ("a node has a cache policy", "cache in the model or in the tool"),
    "node_retry": (
        "the graph or a node has a retry policy",
        "retry in the model or the tool (ModelRetryMiddleware, ToolRetryMiddleware)",
    ),
    "step_timeout": ("the graph has a step_timeout", "give the model and the tools timeouts"),
    "debug": ("the graph prints its steps", "leave out debug=True"),
    "trace_policy": (
        "a trace policy changes what LangGraph records of a node",
        "hide inputs and outputs in the client of the tracer, or leave this agent on its graph",
    ),
    "input:<kind>": (
        "only a new input in a dict begins a turn; {kind} goes on with an old one, or is none",
        "nothing: the graph goes on with the turns that it has begun",
    ),
    "astream_events:<version>": (
        "these events tell of LangGraph's own inner runs",
        "use stream_mode=['messages', 'updates']",
    ),
    "inside_a_graph": (
        "it is called by a node or tool of a running graph, whose state and stream it is part of",
        "move the outer agent first",
    ),
    "recursion_limit": ("{limit!r} is no limit", "use a whole number, 1 or more"),
    "stream_mode:<mode>": (
        "this mode tells of LangGraph's own tasks and checkpoints",
        "use values, updates, messages and custom",
    ),
    "output_keys": ("the agent has no state key {keys}", "name keys of its state"),
    "static_breakpoint": ("the call sets {option}", "ask for approval in the agent (HumanInTheLoopMiddleware)"),
    "durability:<mode>": (
        "the kernel keeps a turn at its end, as durability='exit' does, where it has a checkpointer",
        "leave it out, or use 'exit' with a checkpointer",
    ),
    "option:<name>": ("the kernel has no such option, or not this value of it", "leave out the option"),
    "inherited_checkpointer": ("its threads are those of a graph around it", "give it a checkpointer of its own"),
    "thread_id": ("the call names no thread", "set configurable.thread_id"),
    "checkpoint_id": ("the call goes back to an older state", "leave out checkpoint_id"),
    "thread_has_pending_interrupt": (
        "the thread waits for a person",
        "answer with Command(resume=...), which the graph goes on with",
    ),
    "thread_has_foreign_channels": (
        "the thread holds {keys}, which this agent's state does not have",
        "use the agent that wrote the thread, or a thread of its own",
    ),
    "ask_user_enabled": (_PRESET, _PRESET_REMEDY),
    "experimental_interrupt": (_PRESET, _PRESET_REMEDY),
    "procedural_enforce_preconditions": (_PRESET, _PRESET_REMEDY),
    "graph_preset": (_PRESET, _PRESET_REMEDY),
}
"""Every code -> why, and the remedy. A refusal names the value that stands for what is in angle brackets."""

SERVED: Mapping[str, str] = {
    "middleware:<Name>": "every middleware, LangChain's or your own: its hooks are nodes, its wraps stand around calls",
    "context_schema": "`context=` reaches the model, the hooks and the tools as `runtime.context`",
    "tool_injected_state": "a tool with `InjectedState` or `ToolRuntime` is handed the state of its super-step",
    "tool_injected_store": "a tool with `InjectedStore` or `ToolRuntime` is handed the agent's store",
    "tool_returns_command": "the updates and the `goto` of a tool's `Command` are taken as the graph takes them",
    "tool_without_schema": "a tool whose schema is a dict, and a provider's own tool, go to the model as they are",
    "response_format:<kind>": "`ToolStrategy`, `ProviderStrategy` and a schema alone, with their retries",
    "dynamic_model": "a model chosen in each round: by a function, or by a hook that overrides it",
    "dynamic_prompt": "a prompt made in each round: by a function, or by `dynamic_prompt`",
    "pre_model_hook": "a node of its own in each round, counted as a super-step",
    "post_model_hook": "a node of its own in each round, counted as a super-step",
    "max_concurrency": "it bounds how many tools run at once",
    "cache": "`cache=` alone changes nothing; a node with a cache policy is `node_cache`",
}
"""What the kernel serves though it may not look so -> how. None of these is a reason to refuse a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why the kernel does not serve a turn, and what would change that."""

    code: str
    why: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Eligible:
    """The kernel serves it exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of an agent, as its caller made it; `options` are those that differ from what LangGraph does by default.

    `output_keys` are the state keys that are told, `events` the version of `astream_events` that the call is part of.
    """

    input: object
    config: RunnableConfig
    modes: tuple[str, ...]
    options: Mapping[str, object]
    output_keys: tuple[str, ...] = ()
    inside_a_graph: bool = False
    events: str | None = None


def check(subject: Graph | AgentConfig, call: Call | None = None) -> Eligible | list[Refusal]:
    """Whether the kernel serves an agent or a preset at all and, with `call`, that call of it."""
    if isinstance(subject, Pregel):
        refusals = [*check_agent(subject), *(check_turn(subject, call) if call is not None else ())]
    else:
        refusals = list(check_preset(subject))
    return refusals or Eligible()


def codes(refusals: Sequence[Refusal]) -> tuple[str, ...]:
    """The codes of refusals, each once, in their order."""
    return tuple(dict.fromkeys(refusal.code for refusal in refusals))


def _refusal(name: str, value: str | None = None, **told: object) -> Refusal:
    """The refusal of a code, of which `value` takes the place in angle brackets and `told` fills the reason."""
    why, remedy = CODES[name]
    stem = name.partition("<")[0]
    return Refusal(code=name if value is None else f"{stem}{value}", why=why.format(**told), remedy=remedy)


# -- what an agent is made of ----------------------------------------------------------------------


def check_preset(config: AgentConfig) -> tuple[Refusal, ...]:
    """The refusals of a preset agent."""
    return tuple(_refusal(code) for code in preset_refusals(config))


def check_agent(graph: Graph) -> tuple[Refusal, ...]:
    """The refusals that hold for every turn of an agent, as it is now."""
    return tuple(refusal for rule in _AGENT_RULES for refusal in rule(graph))


def _shape(graph: Any) -> Iterator[Refusal]:
    builder = graph.builder
    waits = builder.waiting_edges or any(node.defer for node in builder.nodes.values())
    is_plain = not waits and START not in builder.branches
    if not MODEL_NODES & set(builder.nodes) or not is_plain:
        yield _refusal("graph_shape")
    for name, node in builder.nodes.items():
        if isinstance(node.runnable, Pregel):
            yield _refusal("subgraph_node", node=name)


def _state(graph: Any) -> Iterator[Refusal]:
    builder = graph.builder
    for schema in {builder.state_schema, *(node.input_schema for node in builder.nodes.values())}:
        if not _is_typed_dict(schema):
            yield _refusal("custom_state_schema", what=f"LangGraph makes an object of the state {schema.__name__}")
    for key, channel in builder.channels.items():
        if type(channel) not in _CHANNELS:
            yield _refusal("custom_state_schema", what=f"the state key {key!r} is a {type(channel).__name__}")


_CHANNELS = (LastValue, BinaryOperatorAggregate, EphemeralValue, UntrackedValue)


def _is_typed_dict(schema: object) -> bool:
    return typing.is_typeddict(schema) or typing_extensions.is_typeddict(schema)


def _breakpoints(graph: Any) -> Iterator[Refusal]:
    if graph.interrupt_before_nodes:
        yield _refusal("interrupt_before", nodes=", ".join(graph.interrupt_before_nodes))
    if graph.interrupt_after_nodes:
        yield _refusal("interrupt_after", nodes=", ".join(graph.interrupt_after_nodes))


def _policies(graph: Any) -> Iterator[Refusal]:
    nodes = graph.builder.nodes.values()
    if any(node.cache_policy for node in nodes) or graph.cache_policy:
        yield _refusal("node_cache")
    if any(node.retry_policy for node in nodes) or graph.retry_policy:
        yield _refusal("node_retry")
    if graph.step_timeout is not None:
        yield _refusal("step_timeout")
    if graph.debug:
        yield _refusal("debug")
    policies = [policy for node in nodes if (policy := getattr(node, "trace_policy", None))]
    if any(_changes(policy.process_inputs) or _changes(policy.process_outputs) for policy in policies):
        yield _refusal("trace_policy")


def _changes(transform: Callable[[object], object] | None) -> bool:
    """Whether it changes what a trace records; one that finds no policy set gives back what it is given."""
    probe: dict[str, object] = {}
    try:
        return transform is not None and transform(probe) is not probe
    except Exception:
        return True


_AGENT_RULES: tuple[Callable[[Any], Iterator[Refusal]], ...] = (_shape, _state, _breakpoints, _policies)


# -- one call --------------------------------------------------------------------------------------


def check_turn(graph: Graph, call: Call) -> tuple[Refusal, ...]:
    """The refusals of one call, from what the caller gave."""
    return tuple(refusal for rule in _CALL_RULES for refusal in rule(graph, call))


def _input(graph: Any, call: Call) -> Iterator[Refusal]:
    if not isinstance(call.input, dict):
        kind = _KINDS.get(type(call.input), type(call.input).__name__)
        yield _refusal("input:<kind>", kind, kind=kind)


_KINDS: Mapping[type, str] = {type(None): "none", Command: "command"}


def _surroundings(graph: Any, call: Call) -> Iterator[Refusal]:
    if call.events is not None:
        yield _refusal("astream_events:<version>", call.events)
    if call.inside_a_graph:
        yield _refusal("inside_a_graph")
    limit: object = call.config.get("recursion_limit")
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        yield _refusal("recursion_limit", limit=limit)


def _stream(graph: Any, call: Call) -> Iterator[Refusal]:
    for mode in call.modes:
        if mode not in SERVED_MODES:
            yield _refusal("stream_mode:<mode>", mode)
    unknown = [key for key in call.output_keys if key not in graph.channels]
    if unknown:
        yield _refusal("output_keys", keys=", ".join(unknown))


def _options(graph: Any, call: Call) -> Iterator[Refusal]:
    for name, value in call.options.items():
        if name in ("interrupt_before", "interrupt_after"):
            yield _refusal("static_breakpoint", option=name)
        elif name != "durability":
            yield _refusal("option:<name>", name)
        elif value != "exit" or not graph.checkpointer:
            yield _refusal("durability:<mode>", str(value))


def _thread(graph: Any, call: Call) -> Iterator[Refusal]:
    configurable: Mapping[str, object] = call.config.get("configurable", {})
    if graph.checkpointer is True:
        yield _refusal("inherited_checkpointer")
    elif graph.checkpointer:
        if configurable.get("thread_id") is None:
            yield _refusal("thread_id")
        if configurable.get("checkpoint_id"):
            yield _refusal("checkpoint_id")


_CALL_RULES: tuple[Callable[[Any, Call], Iterator[Refusal]], ...] = (_input, _surroundings, _stream, _options, _thread)


# -- a thread --------------------------------------------------------------------------------------


def check_thread(graph: Graph, saved: CheckpointTuple | None) -> tuple[Refusal, ...]:
    """The refusals that come from what a thread holds."""
    return () if saved is None else (*_questions(saved), *_foreign(graph, saved))


def _questions(saved: CheckpointTuple) -> Iterator[Refusal]:
    if any(channel == "__interrupt__" for _, channel, _ in saved.pending_writes or ()):
        yield _refusal("thread_has_pending_interrupt")


def _foreign(graph: Any, saved: CheckpointTuple) -> Iterator[Refusal]:
    ours = {*graph.builder.channels, *graph.builder.managed}
    foreign = sorted(key for key in saved.checkpoint["channel_values"] if key not in ours and not _is_inner(key))
    if foreign:
        yield _refusal("thread_has_foreign_channels", keys=", ".join(foreign))


def _is_inner(key: str) -> bool:
    """Whether a channel is LangGraph's own, for where a run goes next."""
    return key.startswith(("__", "branch:", "join:"))
