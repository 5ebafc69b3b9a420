"""Bound any compiled LangGraph graph, without a change inside it."""

from __future__ import annotations

import functools
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from endstop._errors import ConfigError
from endstop._limits import checked_limits
from endstop._loops import LoopDetector, LoopPolicy
from endstop.langgraph._account import Terms, check_terms
from endstop.langgraph._compat import is_graph
from endstop.langgraph._finish import finisher_of
from endstop.langgraph._graph_map import note_bounded
from endstop.langgraph._ledger import MemoryLedger, check_ledger
from endstop.langgraph._leg import Bounds, Leg, Request
from endstop.langgraph._limits import GraphLimits
from endstop.langgraph._meter import metered
from endstop.langgraph._procedures import Alarm, aperform, perform
from endstop.langgraph._reading import names_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from langchain_core.runnables import RunnableConfig
    from langgraph.pregel import Pregel

    from endstop._limits import PlanLimits, Prices
    from endstop.langgraph._finish import Finish
    from endstop.langgraph._ledger import Ledger

_LOOPS = LoopPolicy()

GraphT = TypeVar("GraphT", bound="Pregel[Any, Any, Any, Any]")


def bound(
    graph: GraphT,
    limits: PlanLimits,
    *,
    finish: Finish | None = None,
    ledger: Ledger | None = None,
    thread_limits: PlanLimits | None = None,
    loops: LoopPolicy | None = _LOOPS,
    prices: Prices | None = None,
) -> GraphT:
    """The graph, held to limits: a graph of the same class, with the same methods and results.

    A run that meets no limit, and is told of no loop, gives what the graph gives. One that is cut gives the state as
    the graph would, with `endstop`, a `GraphEnding`, beside it; in a stream, a last chunk of each mode tells it. Every
    open tool call is answered, and the last message is the answer that the run ends with.

    `limits` are of one run: from a new input to its end, all resumes included. `thread_limits` are of all runs of a
    thread together, those at once in this process included. What was spent is kept in `ledger`, by default beside
    the thread: in the graph's checkpointer, else its store, else (with `thread_limits`) in memory. `finish` makes
    the final answer: a function from the state to an update of it (which may be async where the graph is), the name
    of a node, or a chat model; by default the chat model of the graph's own agent is asked without tools. `loops`
    says what counts as a loop (`None`: nothing does). `prices` are as for an `Agent`. With no limit and no detector
    the graph itself is returned.

    Raises:
        ConfigError: it is no compiled graph, or is bound already, or a value cannot be used, or limits name a node or
            a tool that the graph does not have (of what cannot be read of a graph, any name is taken).

    A run raises what the graph raises, and:
        LimitExceeded: a limit is reached under `on_limit="raise"`; the error has the state.
        ResumeError: a run that was cut is to go on, and its limit is used up still.
        PriceUnknown: a cost limit is set, and a model that is called has no known price.
    """
    if not is_graph(graph):  # callers are not all type-checked
        raise ConfigError("graph", graph, "pass a compiled graph: builder.compile(), create_agent(...)")
    if isinstance(graph, _Bound):
        raise ConfigError("graph", graph.get_name(), "it is bound already: bind the graph that it was made of")
    checked_limits(limits)
    check_terms(thread_limits=thread_limits, loops=loops, prices=prices)
    check_ledger(ledger)
    if loops is None and thread_limits is None and not limits.limits_anything:
        return graph
    _check_names(graph, "", limits)
    if thread_limits is not None:
        _check_names(graph, "thread_limits.", thread_limits)
    made = finisher_of(graph, finish)
    asks = limits.on_limit == "answer"
    terms = Terms(
        limits=limits,
        thread_limits=thread_limits,
        prices=prices,
        loops=LoopDetector(policy=loops) if loops is not None else None,
        asks=asks and made.asks,
        pays=asks and made.pays,
    )
    # Without a checkpointer no run goes on: there is something to remember of a thread only where it has limits.
    memory = MemoryLedger() if thread_limits is not None else None
    return _bind(graph, Bounds(terms=terms, finisher=made, ledger=ledger, memory=memory))


def _check_names(graph: Pregel[Any, Any, Any, Any], field: str, limits: PlanLimits) -> None:
    nodes = limits.node_limits if isinstance(limits, GraphLimits) else dict[str, int]()
    if not nodes and not limits.tool_limits:
        return
    names = names_of(graph)
    for kind, named, known in (("node", nodes, names.nodes), ("tool", limits.tool_limits, names.tools)):
        missing = next((name for name in named if known is not None and name not in known), None)
        if missing is not None:
            raise ConfigError(f"{field}{kind}_limits", missing, f"name a {kind} of the graph: {', '.join(known or ())}")


def _bind(graph: GraphT, bounds: Bounds) -> GraphT:
    kind: type[GraphT] = _bound_class(type(graph))
    twin = _twin(graph, kind, endstop=(graph, bounds))
    note_bounded(twin, "bound", bounds.terms.limits, bounds.terms.thread_limits)
    return twin


def _twin(graph: GraphT, kind: type[GraphT], **more: object) -> GraphT:
    """A graph of this class with everything that the graph has."""
    twin = object.__new__(kind)
    vars(twin).update(vars(graph), **more)
    return twin


@functools.cache
def _bound_class(kind: type[Any]) -> type[Any]:
    return type(kind.__name__, (_Bound, kind), {"__module__": kind.__module__})


class _Bound:
    """Runs a graph under its bounds.

    LangGraph's other ways to run a graph (`invoke`, `batch`, `astream_events`, being a node) all go through these two.
    """

    endstop: tuple[Any, Bounds]

    def stream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Iterator[Any]:
        graph, bounds = self.endstop
        leg = perform(Leg.open(graph, bounds, Request(input=input, config=config, options=options)))
        try:
            with closing(graph.stream(input, config, **leg.options)) as chunks:
                while True:
                    try:
                        with metered(leg.meter):
                            chunk = next(chunks)
                    except StopIteration:
                        break
                    except Exception as error:
                        if not leg.stopped_by(error):
                            raise
                        break
                    yield from leg.take(chunk)
                    if leg.must_keep:
                        perform(leg.keep())
            yield from perform(leg.end())
            perform(leg.report())
        finally:
            perform(leg.close())

    async def astream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> AsyncIterator[Any]:
        graph, bounds = self.endstop
        leg = await aperform(Leg.open(graph, bounds, Request(input=input, config=config, options=options)))
        chunks = graph.astream(input, config, **leg.options)
        alarm = Alarm(leg.meter.seconds_left())
        try:
            while True:
                try:
                    with metered(leg.meter):
                        chunk = await alarm.before(anext(chunks))
                except StopAsyncIteration:
                    break
                except Exception as error:
                    if not leg.stopped_by(error):
                        raise
                    break
                for given in leg.take(chunk):
                    yield given
                if leg.must_keep:
                    await aperform(leg.keep())
            for given in await aperform(leg.end()):
                yield given
            await aperform(leg.report())
        finally:
            alarm.stop()
            with anyio.CancelScope(shield=True):
                await chunks.aclose()
                await aperform(leg.close())

    def __setattr__(self, name: str, value: object) -> None:
        """Set it where the graph runs as well: in a copy, since the graph itself is not ours to change."""
        graph, bounds = self.endstop
        of_graph: Any = graph  # whatever its type parameters are
        runs = _twin(of_graph, of_graph.__class__)
        setattr(runs, name, value)
        vars(self).update({name: value, "endstop": (runs, bounds)})

    def copy(self, update: dict[str, Any] | None = None) -> Any:
        graph, bounds = self.endstop
        return _bind(graph.copy(update), bounds)
