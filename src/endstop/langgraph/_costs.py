"""What the rounds of a model cost in super-steps, and how many of them a recursion limit allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from endstop.langgraph._audits import Costs, Rounds
from endstop.langgraph._cycles import loops_of
from endstop.langgraph._graph_map import START
from endstop.langgraph._wiring import arrivals, endings, wiring

if TYPE_CHECKING:
    from collections.abc import Mapping

    from endstop.langgraph._graph_map import GraphMap
    from endstop.langgraph._wiring import Wiring


def costs_of(graph: GraphMap, model: str | None = None, caps: Mapping[str, int] | None = None) -> Costs | None:
    """What a round costs, in runs that no middleware cuts short.

    `model` names the node that calls the model; left out, it is the one that does: of several the one that a tool round
    leads back to, or else the one that is on a cycle. `None` where that leaves none or more than one, or where the
    node cannot be reached.
    """
    wired = wiring(graph, jumps=False)
    from_start = arrivals(wired, START)
    name = model or _the_model(graph, wired)
    if name is None or name not in from_start:
        return None
    from_model, until_end = arrivals(wired, name), endings(wired)
    tools = [node.name for node in graph.of_kind("tools") if node.name in from_model]
    back = [from_model[tool] + there[name] for tool in tools if name in (there := arrivals(wired, tool))]
    shortest = from_model.get(name)
    return Costs(
        model=name,
        entry=from_start[name],
        exit=until_end.get(name, 1) - 1,
        per_round=min(back, default=shortest),
        per_cycle=shortest,
        least=until_end.get(START, 1) - 1,
        most_rounds=(caps or {}).get(name, graph.node(name).cap),
        exact=name in until_end and _is_one_way(graph, wired),
    )


def rounds_under(costs: Costs, recursion_limit: int, *, any_way: bool = False) -> Rounds:
    """The rounds that a recursion limit allows: 0 can finish where not even one can.

    A run ends without an error if it needs fewer super-steps than the limit; the model is called in every super-step up
    to the limit itself. With `any_way` a round is the shortest way back to the model, and not a tool round.
    """
    step = costs.per_cycle if any_way else costs.per_round
    ends_in = recursion_limit - 1 - costs.entry - costs.exit
    finish = 0 if ends_in < 0 or recursion_limit - 1 < costs.least else _rounds(ends_in, step)
    called = 0 if recursion_limit < costs.entry else _rounds(recursion_limit - costs.entry, step)
    most = called if costs.most_rounds is None else costs.most_rounds
    return Rounds(finish=min(finish, most), called=min(called, most))


def _rounds(super_steps: int, per_round: int | None) -> int:
    return 1 if per_round is None else super_steps // per_round + 1


def _the_model(graph: GraphMap, wired: Wiring) -> str | None:
    models = [node.name for node in graph.of_kind("model")]
    if len(models) < 2:
        return next(iter(models), None)
    tools = {node.name for node in graph.of_kind("tools")}
    loops = loops_of(wired)
    looping = [name for name in models if any(name in loop for loop in loops)]
    with_tools = [name for name in looping if any(name in loop and tools & loop for loop in loops)]
    return next((found[0] for found in (with_tools, looping) if len(found) == 1), None)


def _is_one_way(graph: GraphMap, wired: Wiring) -> bool:
    """Whether one node runs at a time and all edges are known, so that the shortest way is one that a run takes."""
    tools = {node.name for node in graph.of_kind("tools")}
    sent = any(edge.kind == "send" and edge.target not in tools for edge in graph.edges)
    return not (sent or wired.joins or wired.deferred or wired.unknown or any(map(wired.starts_several, wired.names)))
