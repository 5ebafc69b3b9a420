"""LangChain's and LangGraph's agents with their callers' turns on the kernel, one switch at a time.

::

    from endstop.cutover import create_agent     # in place of langchain.agents.create_agent

The arguments and what is returned are the original's. With every switch off, so is all that it does.
"""

# LangGraph leaves types of its graphs open, and its older agent is served too.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportDeprecated=false

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar, cast

from langchain import agents as _langchain
from langgraph.graph.state import CompiledStateGraph

from endstop._errors import ConfigError
from endstop.cutover._delegate import EVENTS, SURFACE, Desk, Marks, decided
from endstop.cutover._driving import outside_the_loop
from endstop.cutover._made import Made
from endstop.cutover._threads import aread, read
from langgraph import prebuilt as _langgraph

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from endstop.cutover.envelope import Refusal
    from endstop.cutover.ledger import TurnLedger
    from endstop.cutover.switches import Switches

GraphT = TypeVar("GraphT")
MakeT = TypeVar("MakeT", bound=Callable[..., Any])


def cut_over(
    graph: GraphT,
    *,
    switches: Switches | None = None,
    ledger: TurnLedger | None = None,
    refusals: tuple[Refusal, ...] = (),
) -> GraphT:
    """An agent's graph whose turns go to the kernel where their switch says so and the envelope admits them.

    The result is a graph of the same class, with the same methods. `switches` and `ledger` are by default those of
    the process (`use_switches`, `use_ledger`). `refusals` hold for every turn, beside those that the graph has.

    Raises:
        ConfigError: it is no compiled graph, or is cut over already.
    """
    if not isinstance(graph, CompiledStateGraph):  # callers are not all type-checked
        raise ConfigError("graph", graph, "pass a compiled agent: create_agent(...)")
    if isinstance(graph, _CutOver):
        raise ConfigError("graph", type(graph).__name__, "it is cut over already")
    kind: type[GraphT] = _cut_over_class(type(graph))
    twin = object.__new__(kind)
    desk = Desk.of(cast("Any", graph), switches, ledger, refusals)  # LangGraph leaves its types open
    twin.__dict__.update(graph.__dict__, endstop_desk=desk)
    return twin


def _served(make: MakeT) -> MakeT:
    """The factory with what it makes cut over; its signature and documentation are its own."""

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        graph = cut_over(make(*args, **kwargs))
        vars(graph)["endstop_made"] = Made(factory=make, args=args, kwargs=kwargs)
        return graph

    return cast("MakeT", made)  # it takes and gives what `make` does


create_agent = _served(_langchain.create_agent)
create_react_agent = _served(_langgraph.create_react_agent)


@functools.cache
def _cut_over_class(kind: type[Any]) -> type[Any]:
    return type(kind.__name__, (_CutOver, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})


class _CutOver:
    """Serves each turn on the body that it was decided for.

    LangGraph's other ways to run a graph (`batch`, `astream_events`, being a node) go through these.
    """

    endstop_desk: Desk

    def invoke(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Any:
        over: Any = super()
        return over.invoke(input, config, **{SURFACE: "invocation.run", **options})

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Any:
        over: Any = super()
        return await over.ainvoke(input, config, **{SURFACE: "invocation.run", **options})

    def astream_events(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Any:
        over: Any = super()
        return over.astream_events(input, config, **{EVENTS: str(options.get("version", "v2")), **options})

    def astream_log(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Any:
        over: Any = super()
        return over.astream_log(input, config, **{EVENTS: "log", **options})

    def stream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Iterator[Any]:
        graph: Any = self
        over: Any = super()
        marks = Marks.taken_from(options)
        turned = decided(self.endstop_desk, graph, input, config, options, marks)
        with turned.recorded():
            with outside_the_loop():
                saved = read(graph, turned.config) if turned.needs_thread else None
            serving = turned.on_kernel(saved, is_async=False)
            yield from (
                over.stream(input, turned.legacy_config(config), **options) if serving is None else serving.chunks()
            )

    async def astream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> AsyncIterator[Any]:
        graph: Any = self
        over: Any = super()
        marks = Marks.taken_from(options)
        turned = decided(self.endstop_desk, graph, input, config, options, marks)
        with turned.recorded():
            saved = await aread(graph, turned.config) if turned.needs_thread else None
            serving = turned.on_kernel(saved, is_async=True)
            chunks = (
                over.astream(input, turned.legacy_config(config), **options) if serving is None else serving.achunks()
            )
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk

    def copy(self, update: dict[str, Any] | None = None) -> Any:
        desk = self.endstop_desk
        kind: type[Any] = type(self).__mro__[2]
        plain: Any = object.__new__(kind)
        ours = {"endstop_desk", "endstop_made"} & vars(self).keys()
        vars(plain).update({name: value for name, value in vars(self).items() if name not in ours})
        twin = cut_over(plain.copy(update), switches=desk.switches, ledger=desk.ledger, refusals=desk.refusals)
        vars(twin).update({name: value for name, value in vars(self).items() if name == "endstop_made"})
        return twin
