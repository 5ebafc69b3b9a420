"""The delegate: each turn goes one way, by its switch and the envelope, and leaves one record in the ledger.

A turn that the kernel refuses runs on the legacy body. An error of the kernel is the caller's error: the turn is never
run a second time, which would bill and act twice. A ledger that cannot be written changes nothing for the caller: the
record is lost, and the log says so.
"""

from __future__ import annotations

import inspect
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from langgraph.pregel import Pregel

from endstop._tools import Tool
from endstop.cutover import _pregel
from endstop.cutover._body import kernel_tools
from endstop.cutover._serving import Asked, Serving
from endstop.cutover._shadow import NOT_REPLAYED, Shadow, later
from endstop.cutover.envelope import SERVED_VERSIONS, Call, Refusal, check_agent, check_thread, check_turn, codes
from endstop.cutover.ledger import TurnLedger, TurnRecord, keep, spent_amounts
from endstop.cutover.switches import Route, Surface, Switches, default_switches

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import CheckpointTuple

Graph: TypeAlias = Any
"""A `CompiledStateGraph`, whose members' types LangGraph leaves open."""

SURFACE = "endstop_surface"
"""The option by which `invoke` tells `stream` that it is `invoke` that was called."""

EVENTS = "endstop_events"
"""The option by which `astream_events` tells `astream` its version."""

_GRAPH: Any = Pregel
_KNOWN_OPTIONS = frozenset(inspect.signature(_GRAPH.stream).parameters)
_SERVED_OPTIONS = frozenset({"stream_mode", "output_keys", "subgraphs", "version", "context"}) & _KNOWN_OPTIONS
_NO_OPTION: Mapping[str, tuple[object, ...]] = {"debug": (None, False), "print_mode": ((), [], None)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """How an agent's turns are decided: by its switches, into its ledger (`None`: those of the process)."""

    switches: Switches | None
    ledger: TurnLedger | None
    refusals: tuple[Refusal, ...]
    tools: tuple[Tool, ...]

    @classmethod
    def of(
        cls, graph: Graph, switches: Switches | None, ledger: TurnLedger | None, refusals: tuple[Refusal, ...]
    ) -> Desk:
        """The desk of an agent."""
        return cls(switches=switches, ledger=ledger, refusals=refusals, tools=kernel_tools(graph))

    def way_of(self, surface: Surface, thread_id: str | None) -> tuple[Route, str]:
        """The way that the switch asks for, and the switch as it is set."""
        switches = default_switches() if self.switches is None else self.switches
        return switches.decide(surface, thread_id), str(switches.setting(surface))


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What one method of an agent tells another, which it is carried out by, about the call that was made."""

    surface: Surface
    events: str | None = None

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> Marks:
        """The marks among the options of a call, which are the caller's own without them."""
        return cls(surface=options.pop(SURFACE, "invocation.stream"), events=options.pop(EVENTS, None))


class Turned:
    """One turn on its way: how it was decided, and what is known of it when it is over."""

    def __init__(self, desk: Desk, graph: Graph, config: RunnableConfig, surface: Surface) -> None:
        self._desk = desk
        self._graph = graph
        self._surface: Surface = surface
        self._began = time.perf_counter()
        self._serving: Serving | None = None
        self.route: Route
        self.route, self._switch = desk.way_of(surface, _thread_id(config))
        self.config = config
        self.refusals: tuple[Refusal, ...] = ()
        self.asked: Asked | None = None
        self.shadow: Shadow | None = None

    @property
    def needs_thread(self) -> bool:
        """Whether the thread must be read before the turn can be decided."""
        return self.route != "legacy" and not self.refusals and bool(self._graph.checkpointer)

    def on_kernel(self, saved: CheckpointTuple | None, *, is_async: bool) -> Serving | None:
        """The turn on the kernel, with what its thread holds; `None` where the legacy body serves it."""
        self.refusals += check_thread(self._graph, saved)
        if self.route == "kernel" and not self.refusals and self.asked is not None:
            self._serving = Serving(self._graph, self._desk.tools, self.asked, saved, is_async=is_async)
        if self.route == "shadow" and not self.refusals and Shadow.falls_on(self._graph):
            self.shadow = Shadow(self._graph)
        return self._serving

    def legacy_config(self, config: RunnableConfig | None) -> RunnableConfig | None:
        """The configuration that the legacy body runs under: the caller's, and in the shadow a tape besides."""
        return config if self.shadow is None else self.shadow.taping(config)

    @contextmanager
    def recorded(self) -> Generator[None]:
        """Leave the record of the turn when the block ends, however it ends."""
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            record, shadow = self._record(error), self.shadow
            if shadow is None or record.cancelled:
                keep(record, self._desk.ledger)
            else:
                later(lambda: self._keep_judged(record, shadow))

    def _keep_judged(self, record: TurnRecord, shadow: Shadow) -> None:
        differences: tuple[str, ...] = (NOT_REPLAYED,)
        try:
            differences = shadow.differences()
        finally:
            keep(replace(record, differences=differences), self._desk.ledger)

    def _record(self, error: BaseException | None) -> TurnRecord:
        serving = self._serving
        spent = serving.spent if serving is not None else None
        return TurnRecord(
            surface=self._surface,
            served_by="kernel" if serving is not None else "legacy",
            route=self.route,
            switch=self._switch,
            run_id=str(self.config.get("run_id") or uuid.uuid4()),
            duration_ms=(time.perf_counter() - self._began) * 1000,
            refusals=codes(self.refusals),
            rounds=serving.rounds if serving is not None else None,
            error=type(error).__name__ if isinstance(error, Exception) else None,
            cancelled=error is not None and not isinstance(error, Exception),
            spent=spent_amounts(spent) if spent is not None else {},
            agent=self._graph.get_name(),
            thread_id=_thread_id(self.config),
        )


def decided(
    desk: Desk, graph: Graph, input: object, config: RunnableConfig | None, options: dict[str, Any], marks: Marks
) -> Turned:
    """One turn, decided as far as it can be without reading its thread."""
    merged = _pregel.merged_config(graph.config, config)
    turned = Turned(desk, graph, merged, marks.surface)
    if turned.route == "legacy":
        return turned
    turned.refusals = (
        *check_agent(graph),
        *desk.refusals,
        *check_turn(graph, _call(graph, input, merged, options, marks)),
    )
    if not turned.refusals and isinstance(input, dict):
        turned.asked = _asked(graph, input, merged, options)
    return turned


def _call(graph: Graph, input: object, config: RunnableConfig, options: Mapping[str, Any], marks: Marks) -> Call:
    mode: Any = _mode(graph, options)
    keys: Any = options.get("output_keys") or ()
    return Call(
        input=input,
        config=config,
        modes=_modes(mode),
        options={name: value for name, value in options.items() if not _is_served(name, value)},
        output_keys=(keys,) if isinstance(keys, str) else tuple(keys),
        inside_a_graph=_pregel.inside_a_graph(config),
        events=marks.events,
    )


def _asked(graph: Graph, input: Any, config: RunnableConfig, options: Mapping[str, Any]) -> Asked:
    keys = options.get("output_keys")
    return Asked(
        input=input,
        config=config,
        stream_mode=_mode(graph, options),
        output_keys=graph.stream_channels_asis if keys is None else keys,
        subgraphs=bool(options.get("subgraphs")),
        version=options.get("version") or "v1",
        context=options.get("context"),
    )


def _mode(graph: Graph, options: Mapping[str, Any]) -> Any:
    mode = options.get("stream_mode")
    return graph.stream_mode if mode is None else mode


def _modes(given: Any) -> tuple[str, ...]:
    """The modes of a stream; what is neither one nor a list of them is named by its type, which is no mode."""
    match given:
        case str():
            return (given,)
        case [*modes] if not isinstance(given, tuple):
            return tuple(str(mode) for mode in modes)
        case _:
            return (type(given).__name__,)


def _is_served(name: str, value: object) -> bool:
    """Whether the kernel does what an option asks for, or LangGraph does so by itself."""
    if name == "version" and name in _SERVED_OPTIONS:
        return value is None or value in SERVED_VERSIONS
    return name in _SERVED_OPTIONS or value in _NO_OPTION.get(name, (None,))


def _thread_id(config: RunnableConfig) -> str | None:
    thread_id: object = config.get("configurable", {}).get("thread_id")
    return None if thread_id is None else str(thread_id)
