"""Replays recorded turns on the kernel body of an agent: what the agent is made of is kept, and nothing of it acts.

The agent is made again by its own factory with its own arguments, but for these: every chat model, those of its
middleware included, gives the recorded answers; every tool returns what was recorded; no thread or store is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import BaseCallbackHandler

from endstop._errors import ConfigError
from endstop.cutover import _pregel
from endstop.cutover._body import kernel_tools
from endstop.cutover._made import Made
from endstop.cutover._players import RecordedModel
from endstop.cutover._replay_view import ReplayedTurn, ReplayReport
from endstop.cutover._serving import Asked, Serving
from endstop.cutover.envelope import check_agent, codes
from endstop.cutover.replay import replay_turn
from endstop.cutover.tape import TapeExhausted, turns

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from langchain_core.language_models import BaseChatModel
    from langchain_core.runnables import RunnableConfig
    from langchain_core.tools import BaseTool

    from endstop.cutover.envelope import Graph
    from endstop.cutover.tape import RecordedTurn


def replay_agent(
    path: str | os.PathLike[str], agent: object, *, surface: str | None = None, strict: bool = False
) -> ReplayReport:
    """Replay the turns of a tape on the kernel body of an agent, and compare.

    `agent` is what `endstop.cutover.create_agent` or `create_react_agent` made. `surface` is the name of the agent
    whose turns they are, where the tape holds those of several. Turns that the kernel would refuse are counted apart;
    with `strict` they count as differences.

    Raises:
        ConfigError: the agent was made elsewhere, so that it is not known what of.
        TapeError: the file is no tape.
    """
    made_of(agent)
    asked = (turn for turn in turns(path) if turn.requests and surface in (None, turn.surface))
    return ReplayReport(turns=tuple(rehearse(turn, agent) for turn in asked), strict=strict)


def rehearse(turn: RecordedTurn, agent: object) -> ReplayedTurn:
    """Replay one turn on the kernel body of an agent.

    Raises:
        ConfigError: as for `replay_agent`.
    """
    made, graph = made_of(agent), _graph(agent)
    if refused := codes(check_agent(graph)):
        return ReplayedTurn(run_id=turn.run_id, refused_by=refused)

    def build(model: BaseChatModel, stand_ins: Sequence[BaseTool]) -> _OnKernel:
        return _OnKernel(_graph(made.again(model, stand_ins)))

    return replay_turn(turn, build, _tools_of(graph))


def made_of(agent: object) -> Made:
    """How the agent was made.

    Raises:
        ConfigError: it was not made by a factory of the cutover.
    """
    made: object = getattr(agent, "endstop_made", None)
    if not isinstance(made, Made):
        remedy = "make it with endstop.cutover.create_agent or create_react_agent"
        raise ConfigError("agent", type(agent).__name__, remedy)
    return made


class _OnKernel:
    """An agent's graph with the kernel for its body, whatever the switches say."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._tools = kernel_tools(graph)

    def invoke(self, input: dict[str, object], config: RunnableConfig | None = None, /) -> None:
        """Run one turn; what it does is for the callbacks in its configuration to see."""
        graph = self._graph
        merged = _pregel.with_handler(_pregel.merged_config(graph.config, config), _NothingReal())
        asked = Asked(input=input, config=merged, stream_mode="values", output_keys=graph.output_channels)
        for _ in Serving(graph, self._tools, asked, None, is_async=False).chunks():
            pass


class _NothingReal(BaseCallbackHandler):
    """Stops whatever would ask a chat model that is not the recorded one."""

    raise_error = True
    run_inline = True

    def on_chat_model_start(self, serialized: dict[str, Any] | None, *args: Any, **kwargs: Any) -> None:
        """Let the recorded model answer, and no other."""
        named = serialized or {}
        name = (named.get("id") or [named.get("name")])[-1]
        if name != RecordedModel.__name__:
            raise TapeExhausted(f"answer of {name}, which the agent does not show to be its own")


def _graph(agent: Any) -> Graph:
    graph: Graph = agent
    return graph


def _tools_of(graph: Graph) -> list[BaseTool]:
    """The tools that an agent's graph runs, those of its middleware included."""
    node: Any = graph.builder.nodes.get("tools")
    return list(node.runnable.tools_by_name.values()) if node is not None else []
